"""All layers and the config of an image, searched; a layer's result is kept, so that it is read once.

    <store>/scans/<hex>.json    one file a layer, named after its digest

The record says by which rules and for which marks of the host it holds; with others it counts as absent.
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

# Below this many bytes another process takes longer to start than to help.
_ALONE = 50_000_000


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What was searched, and found.

    Attributes:
        findings: with the title of the layer that each is in; `config` for the image's config.
        notes: files that could not be searched as a whole.
        files, bytes: of all layers, unpacked.
        layers: how many there are.
        read: how many had to be read now; the others' results were there.
        seconds: it took.
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
    """A layer's result, and what it holds for."""

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
        store: that holds its blobs, and keeps the results.
        marks: what of this host must not be there.
        advance: told the compressed bytes done, of all layers.
        workers: processes to use; 0 for one a core.

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


def _placed(layers: Sequence[ImageLayer], scans: dict[str, LayerScan]) -> list[tuple[str, SecretFinding]]:
    return [(layer.title, finding) for layer in layers for finding in scans[layer.record.digest].findings]


def _read(store: Store, sizes: dict[str, int], marks: Sequence[Mark], workers: int) -> Any:
    """Search layers, the largest first, on all cores; gives digest and result as they come."""
    order = sorted(sizes, key=lambda digest: (-sizes[digest], digest))
    if min(workers, len(order)) < 2 or sum(sizes.values()) < _ALONE:
        search = Search(rules.load(), marks)
        for digest in order:
            yield digest, scan_layer(store.blob(digest), search)
        return
    # Spawned, for a copy of this process could hold locks of threads that it does not have.
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
    """Search what the image's config says: variables, labels, commands, history."""
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
    """Search what is attached to an image.

    Args:
        documents: by their names.
        marks: what of this host must not be there.

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
