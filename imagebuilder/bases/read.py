"""From the base that a recipe names to what its lock says of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagebuilder.bases import facts, fetch, tree
from imagebuilder.bases.facts import System
from imagebuilder.errors import ImagebuilderError, InputError, Problem
from imagebuilder.lock import BaseImage, BaseLayer
from imagebuilder.recipe import RegistryImage
from imagebuilder.registry import pull
from imagebuilder.registry.reference import parse
from imagebuilder.site import Site
from imagebuilder.store import Store
from imagebuilder.yamlfile import printable

log = logging.getLogger(__name__)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,254}")
_LONGEST = 32_768  # characters; Linux takes variables of up to 131072 bytes


@dataclass(frozen=True, kw_only=True)
class Base:
    """A base as it was found: what a lock says of it, and the system in it."""

    image: BaseImage
    system: System


def read(
    wanted: RegistryImage, architecture: str, site: Site, store: Store, previous: BaseImage | None = None
) -> Base:
    """Look a base up in its registry, and read its layers, which stay in the store.

    Args:
        wanted: as the recipe has it.
        architecture: Debian's name of it, which is also OCI's for those that there are wheels for.
        site: how to reach the registry.
        store: where the layers go.
        previous: the base of the lock so far, which stays; None takes what the tag stands for now.

    Raises:
        InputError: what is in it cannot be a base.
        RegistryError: there is no such image, or the registry cannot be reached.
        FetchError: a layer could not be had.
        BuildError: a layer is damaged.

    """
    client = fetch.client_of(wanted.name, site)
    tag = parse(wanted.name).tag
    name = wanted.pinned or (previous.digest if previous else "") or tag
    try:
        found = pull.find(client, name, architecture)
        layers = tuple(BaseLayer.model_validate(vars(layer)) for layer in found.layers)
        fetch.fetch_layers(
            layers, client, store, advance=lambda _sha256, _count: None, finished=lambda _sha256: None
        )
        system = _system(wanted.name, layers, store)
    except ImagebuilderError as error:
        # Where it stands in the recipe; what it is called is in the message.
        error.problems = tuple(_of_recipe(problem, wanted) for problem in error.problems)
        raise
    if system.architecture != architecture:
        raise InputError(
            f"{wanted.name} holds a system for {system.architecture}, not for {architecture}",
            where="base: image",
            hint="its config says otherwise, so the image is broken: choose another",
        )
    index = found.index or (previous.index if previous and previous.digest == found.digest else "")
    return Base(image=_base_image(wanted, found, index, layers, system), system=system)


def again(image: BaseImage, store: Store) -> System:
    """Read the system of a locked base from its layers, which are in the store."""
    return _system(image.name, image.layers, store)


def _system(name: str, layers: tuple[BaseLayer, ...], store: Store) -> System:
    blobs = [(store.download(layer.sha256), layer.diff_id) for layer in layers]
    return facts.of_tree(tree.read(blobs, facts.wanted, name), name)


def _base_image(
    wanted: RegistryImage, found: pull.Image, index: str, layers: tuple[BaseLayer, ...], system: System
) -> BaseImage:
    return BaseImage(
        name=wanted.name,
        digest=found.digest,
        index=index,
        user=str(found.config.get("User") or ""),
        env=_environment(found.config),
        labels=_labels(found.config),
        accounts=dict(system.accounts),
        archives=tuple(sorted({archive.name for archive in system.archives})),
        layers=layers,
        packages=system.packages,
    )


def _environment(config: Mapping[str, Any]) -> dict[str, str]:
    pairs = config.get("Env")
    texts = [text for text in pairs if isinstance(text, str)] if isinstance(pairs, list) else []
    return _told("variable", {name: value for name, _, value in (text.partition("=") for text in texts)})


def _labels(config: Mapping[str, Any]) -> dict[str, str]:
    found = config.get("Labels")
    texts = {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
    return _told("label", texts)


def _told(kind: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Leave out what does not fit on a line, or has no usual name."""
    name = _VARIABLE if kind == "variable" else _LABEL
    kept = {
        key: text
        for key, text in texts.items()
        if name.fullmatch(key) and text.isprintable() and len(text) <= _LONGEST
    }
    for key in sorted(texts.keys() - kept.keys()):
        log.warning("the base's %s %s is left out: it is not plain text", kind, printable(key))
    return kept


def _of_recipe(problem: Problem, wanted: RegistryImage) -> Problem:
    if problem.where == "base: image":
        return problem
    # A mirror may have been asked in place of the registry.
    elsewhere = f" (at {problem.where})" if problem.where and wanted.name not in problem.where else ""
    message = f"{wanted.image}: {problem.message}{elsewhere}"
    return Problem(message=message, where="base: image", hint=problem.hint)
