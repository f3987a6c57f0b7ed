"""Merge a user's own YAML into a manifest, as Kustomize and Helm users know it.

Mappings are merged key by key, and lists of mappings by the key that names their items. All other values
replace what was there, and an empty value removes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagebuilder.core import yamlfile
from imagebuilder.core.yamlfile import Document, printable
from imagebuilder.errors import InputError, Problem
from imagebuilder.launch import schema
from imagebuilder.launch.targets import Manifest, Script, Target

_Path = tuple[str | int, ...]
_Origins = dict[_Path, _Path]
# What names an item of a list, the first that all items have; a volume may be mounted at several paths.
_KEYS = ("mountPath", "name", "target", "containerPort")


def merged(files: Sequence[Script | Manifest], target: Target, path: Path) -> tuple[Script | Manifest, ...]:
    """Merge an overlay into the document that it names by its `kind`, by default the job itself.

    Raises:
        InputError: the overlay is not readable, the target has no manifest, or the result does not fit the
            schema of its kind; every problem with its line.

    """
    document = yamlfile.read(path, numbers=True)
    if document.problems:
        raise InputError.of([entry.problem for entry in document.problems])
    if not isinstance(document.data, Mapping):
        raise InputError("must be a mapping", where=document.where(()))
    manifest = next((file for file in files if isinstance(file, Manifest)), None)
    if manifest is None:
        raise InputError(
            f"the target {target.name} has no manifest to merge it into", where=document.where(())
        )
    index = _chosen(manifest, document, next(iter(target.header.schemas)))
    origins: _Origins = {}
    whole = _merge(manifest.documents[index], document.data, (), (), origins)
    _require_valid(whole, _schema_of(target, whole), document, origins)
    documents = (*manifest.documents[:index], whole, *manifest.documents[index + 1 :])
    return tuple(replace(file, documents=documents) if file is manifest else file for file in files)


def require_valid(files: Sequence[Script | Manifest], target: Target) -> None:
    """Check the manifests of a job.

    Raises:
        InputError: one does not fit the schema of its kind.

    """
    for file in files:
        if isinstance(file, Manifest):
            for document in file.documents:
                name = _schema_of(target, document)
                _require_valid(document, name, Document(file=file.name, data=document), {})


def _schema_of(target: Target, document: Mapping[str, Any]) -> str:
    return target.header.schemas.get(
        str(document.get("kind", "")), next(iter(target.header.schemas.values()))
    )


def _chosen(manifest: Manifest, document: Document, default: str) -> int:
    wanted = document.data.get("kind")
    kinds = [entry.get("kind") for entry in manifest.documents]
    if wanted is None:
        return kinds.index(default) if default in kinds else 0
    if wanted not in kinds:
        raise InputError(
            f"the job has no object of the kind `{printable(str(wanted))}`",
            where=document.where(("kind",)),
            hint=f"it has {', '.join(str(kind) for kind in kinds if kind) or 'none'}",
        )
    return kinds.index(wanted)


def _merge(old: Any, new: Any, at: _Path, place: _Path, origins: _Origins) -> Any:
    origins[at] = place
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        result = dict(old)
        for key, value in new.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = _merge(result.get(key), value, (*at, key), (*place, key), origins)
        return result
    if isinstance(new, (list, tuple)):
        return _merge_list(old, new, at, place, origins)
    if isinstance(new, Mapping):
        return _merge({}, new, at, place, origins)
    return new


def _merge_list(old: Any, new: Sequence[Any], at: _Path, place: _Path, origins: _Origins) -> list[Any]:
    name = _named_by((*old, *new)) if isinstance(old, (list, tuple)) else ""
    result = list(old) if name else []
    for number, item in enumerate(new):
        same = [index for index, entry in enumerate(result) if name and entry[name] == item[name]]
        index = same[0] if same else len(result)
        there = result[index] if same else None
        found = _merge(there, item, (*at, index), (*place, number), origins)
        result[index : index + 1] = [found]
    return result


def _named_by(items: Sequence[Any]) -> str:
    """Return the key that names all of these items; empty if none does."""
    if not all(isinstance(item, Mapping) for item in items):
        return ""
    return next((key for key in _KEYS if items and all(key in item for item in items)), "")


def _require_valid(whole: Any, name: str, document: Document, origins: _Origins) -> None:
    problems = []
    for mistake in schema.mistakes(whole, name):
        path = mistake.path
        while path and path not in origins:
            path = path[:-1]
        rest = mistake.path[len(path) :]
        place = (*origins.get(path, ()), *rest)
        problems.append(Problem(message=mistake.message, where=document.where(place), hint=mistake.hint))
    if problems:
        raise InputError.of(problems[:50])
