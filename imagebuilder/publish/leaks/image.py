"""Search all layers and the config of an image. Results are kept, so each layer is read only once.

    <store>/scans/<hex>.json    one file for each layer, named after its digest

A result is used only with the same rules and the same marks of the host, which it records.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.errors import StoreError
from imagebuilder.publish.leaks import host, rules
from imagebuilder.publish.leaks.host import Mark
from imagebuilder.publish.leaks.layer import LayerScan, Note, scan_layer
from imagebuilder.publish.leaks.rules import SecretFinding
from imagebuilder.publish.leaks.text import Search, TextPlace, without_repeats
from imagebuilder.store import ImageLayer, ImageRecord, Store, explained

# Below this many bytes, starting another process takes longer than it saves.
_ALONE = 50_000_000


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The result of a search.

    Attributes:
        findings: each with the title of its layer; `config` for the image's config.
        notes: files that could not be searched completely.
        files, bytes: of all layers, unpacked.
        layers: number of layers.
        read: number of layers that were read; the others had results.
        seconds: duration.
        rules: version of the rules, a hash.

    """

    findings: tuple[tuple[str, SecretFinding], ...]
    notes: tuple[Note, ...] = ()
    files: int
    bytes: int
    layers: int
    read: int
    seconds: float
    rules: str


@checked_dataclass(frozen=True, kw_only=True)
class _Record:
    """A layer's result, with the rules and marks that it is valid for."""

    rules: str
    marks: str
    scan: LayerScan


_RECORD = TypeAdapter(_Record)


def scan(
    image: ImageRecord,
    store: Store,
    marks: Sequence[Mark] = (),
    *,
    advance: Advance = no_advance,
    workers: int = 0,
) -> Scan:
    """Search an image of the store for secrets.

    Args:
        image: what to search.
        store: has its blobs, and keeps the results.
        marks: data of this host that must not be in it.
        advance: called with the compressed bytes done.
        workers: number of processes; 0 for one per core.

    Raises:
        StoreError: a blob is gone or damaged.

    """
    started = time.monotonic()
    known, version = rules.load(), host.version(marks)
    with store.in_use():
        scans: dict[str, LayerScan] = {}
        missing: dict[str, int] = {}
        for layer in image.layers:
            digest, size = layer.record.digest, layer.record.size
            if found := _recall(store, digest, known.version, version):
                scans[digest] = found
                advance(size)
            else:
                missing[digest] = size
        for digest, result in _read(store, missing, marks, workers or os.cpu_count() or 1):
            scans[digest] = result
            _remember(store, digest, _Record(rules=known.version, marks=version, scan=result))
            advance(missing[digest])
        config = _config(image, store, Search(known, marks))
    return Scan(
        findings=(*_placed(image.layers, scans), *(("config", finding) for finding in config)),
        notes=tuple(note for layer in image.layers for note in scans[layer.record.digest].notes),
        files=sum(item.files for item in scans.values()),
        bytes=sum(item.bytes for item in scans.values()),
        layers=len(image.layers),
        read=len(missing),
        seconds=time.monotonic() - started,
        rules=known.version,
    )


def recall(store: Store, digest: str, marks: Sequence[Mark] = ()) -> LayerScan | None:
    """Return the kept result for a layer, if it is of these marks and the present rules."""
    return _recall(store, digest, rules.load().version, host.version(marks))


def remember(store: Store, digest: str, found: LayerScan, marks: Sequence[Mark] = ()) -> None:
    """Keep the result for a layer, with these marks and the present rules."""
    _remember(store, digest, _Record(rules=rules.load().version, marks=host.version(marks), scan=found))


def _placed(layers: Sequence[ImageLayer], scans: dict[str, LayerScan]) -> list[tuple[str, SecretFinding]]:
    return [(layer.title, finding) for layer in layers for finding in scans[layer.record.digest].findings]


def _read(store: Store, sizes: dict[str, int], marks: Sequence[Mark], workers: int) -> Any:
    """Search layers, the largest first, on all cores; yields digest and result as they finish."""
    order = sorted(sizes, key=lambda digest: (-sizes[digest], digest))
    if min(workers, len(order)) < 2 or sum(sizes.values()) < _ALONE:
        search = Search(rules.load(), marks)
        for digest in order:
            yield digest, scan_layer(store.blob(digest), search)
        return
    # Spawned, because a forked process could inherit locks of threads that it does not have.
    with ProcessPoolExecutor(
        min(workers, len(order)), get_context("spawn"), initializer=_begin, initargs=(tuple(marks),)
    ) as pool:
        waiting: dict[Future[LayerScan], str] = {
            pool.submit(_work, store.blob(digest)): digest for digest in order
        }
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _Worker:
    """What a worker keeps between layers."""

    search: Search


def _begin(marks: tuple[Mark, ...]) -> None:
    # Ctrl-C ends the workers silently: their parent reports it. A parent that ignores it (nohup, `&` in a
    # script) has started workers that ignore it too, and they have to go on doing so.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _Worker.search = Search(rules.load(), marks)


def _work(path: Path) -> LayerScan:
    return scan_layer(path, _Worker.search)


def _config(image: ImageRecord, store: Store, search: Search) -> tuple[SecretFinding, ...]:
    """Search the image's config: variables, labels, commands, history."""
    path = store.blob(image.config)
    try:
        config = json.loads(path.read_bytes())
        run = config.get("config") or {}
        texts = {
            "env": run.get("Env") or (),
            "labels": [f"{name}={value}" for name, value in (run.get("Labels") or {}).items()],
            "commands": [*(run.get("Entrypoint") or ()), *(run.get("Cmd") or ())],
            "history": [
                str(step.get(key, ""))
                for step in config.get("history") or ()
                for key in ("created_by", "comment", "author")
            ],
        }
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise StoreError(
            f"the config of `{image.name}` cannot be read: {error}", where=str(path), hint="build it again"
        ) from error
    return _in_texts(
        {f"(config)/{name}": "\n".join(map(str, words)).encode() for name, words in texts.items()}, search
    )


def scan_documents(documents: Mapping[str, bytes], marks: Sequence[Mark]) -> tuple[SecretFinding, ...]:
    """Search the documents that are attached to an image.

    Args:
        documents: bytes by name.
        marks: data of this host that must not be in them.

    """
    texts = {f"(attached)/{name}": data for name, data in documents.items()}
    return _in_texts(texts, Search(rules.load(), marks))


def _in_texts(texts: Mapping[str, bytes], search: Search) -> tuple[SecretFinding, ...]:
    found = {
        replace(finding, file=hashlib.sha256(data).hexdigest()): None
        for name, data in texts.items()
        for finding in search.text(data, TextPlace.of(name))
    }
    return without_repeats(tuple(found))


def _path(store: Store, digest: str) -> Path:
    return store.root / "scans" / f"{store.blob(digest).name}.json"


def _recall(store: Store, digest: str, version: str, marks: str) -> LayerScan | None:
    try:
        record = _RECORD.validate_json(_path(store, digest).read_bytes())
    except (OSError, ValidationError):
        return None
    return record.scan if (record.rules, record.marks) == (version, marks) else None


def _remember(store: Store, digest: str, record: _Record) -> None:
    path = _path(store, digest)
    with store.work() as folder, explained(path):
        draft = folder / path.name
        draft.write_bytes(_RECORD.dump_json(record))
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(path)
