"""Makes the layers that the store lacks, each as soon as its packages are downloaded.

Three things run at the same time: downloads (limited by the network), splicing (a thread for each core,
limited by disk and hashing), and the OS layer (limited by dpkg), followed by compiled components (which use
all cores). The OS layer and compiled components are made in the caller's thread, because Ctrl-C arrives there
and must end mmdebstrap.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from pathlib import Path

from imagebuilder.core import process
from imagebuilder.core.progress import Advance
from imagebuilder.engines.context import BuildContext, Scheduled, Step, step_of
from imagebuilder.engines.steps import make, packages
from imagebuilder.errors import BuildError
from imagebuilder.fetch import locked
from imagebuilder.fetch.locked import Package
from imagebuilder.host.tools import choose_tools
from imagebuilder.layers.bytecode.interpreter import Interpreters
from imagebuilder.layers.package import wheel_name
from imagebuilder.layers.wheels.collisions import check_collisions
from imagebuilder.lock.model import Wheel
from imagebuilder.plan import BuiltLayer, CompiledLayer, Layer, OsLayer, PackageLayer, Plan, WheelLayer
from imagebuilder.store import DamagedDownloadError, LayerRecord, check_bytes, sparse


def make_layers(layers: Sequence[Scheduled], context: BuildContext) -> tuple[dict[str, LayerRecord], int]:
    """Make layers, each as soon as its packages are downloaded.

    If a step finds a damaged download in the store, the file is downloaded again, and the step is repeated
    once.

    Returns:
        The records, and the bytes downloaded.

    Raises:
        FetchError: a file could not be downloaded, or is not the locked one.
        BuildError: a layer could not be made.
        StoreError: the store is full or not writable.

    """
    records: dict[str, LayerRecord] = {}
    mended: set[str] = set()
    fetched = 0
    context.progress.expect({step.key: _weight(step) for step in map(step_of, layers)})
    while missing := dict.fromkeys(step_of(layer) for layer in layers if layer.key not in records):
        with (
            Interpreters(context.store, choose_tools(context.site)) as pythons,
            _threads() as (network, cores),
        ):
            queue = _Queue(tuple(missing), context, cores, pythons)
            try:
                _attempt(queue, network, records)
            except DamagedDownloadError as error:
                if error.sha256 in mended:
                    raise
                context.progress.note(f"{error.name} in the store is damaged: downloading it again")
                mended.add(error.sha256)
                context.store.drop_download(error.sha256)
            finally:
                queue.cancelled.set()
            fetched += queue.fetched
    return records, fetched


def _attempt(queue: _Queue, network: ThreadPoolExecutor, records: dict[str, LayerRecord]) -> None:
    """Make the layers of the queue, and add each record when its layer is done."""
    fetching = network.submit(queue.fetch)
    for layer in queue.executed:
        if queue.wait_for(layer, fetching):
            records.update(queue.make(layer))
    fetching.result()
    # All layers are handed out now: the last download handed out the last of them.
    for job in as_completed(queue.jobs):
        records.update(job.result())


def check_wheels(plan: Plan, context: BuildContext) -> None:
    """Refuse two wheels that write different content to one path: the upper layer would win silently.

    Raises:
        BuildError: names the wheels and the path.

    """
    wheels = {
        wheel.file: wheel
        for layer in plan.layers
        if isinstance(layer, WheelLayer)
        for wheel in layer.wheels
        if context.store.has_download(wheel.sha256, wheel.size)
    }
    files = {name: context.store.download(wheel.sha256) for name, wheel in wheels.items()}
    files |= _package_wheel(plan, context)
    try:
        check_collisions(files)
    except BuildError:
        # Wheels of layers that were made earlier may have holes, or be damaged by now; compare without these.
        damaged = [name for name, wheel in wheels.items() if _was_damaged(wheel, context)]
        check_collisions({name: path for name, path in files.items() if name not in damaged})


def _package_wheel(plan: Plan, context: BuildContext) -> dict[str, Path]:
    """Find the wheels that were built here, by their names."""
    records = (
        context.store.layer(layer.wheel_key)
        for layer in plan.layers
        if isinstance(layer, PackageLayer | CompiledLayer)
    )
    places = [context.store.blob(record.digest) for record in records if record]
    return {wheel_name(place): place for place in places}


def _was_damaged(wheel: Wheel, context: BuildContext) -> bool:
    """Remove a damaged download, which a later build downloads again; return whether it was damaged."""
    sparse.fill(context.store, wheel.sha256)
    try:
        check_bytes(context.store.download(wheel.sha256), wheel.sha256, wheel.file)
    except DamagedDownloadError:
        context.progress.note(f"{wheel.file} in the store is damaged: removing it")
        context.store.drop_download(wheel.sha256)
        return True
    return False


@contextmanager
def _threads() -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
    network = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fetch")
    cores = ThreadPoolExecutor(max_workers=max(2, process.cores()), thread_name_prefix="splice")
    try:
        yield network, cores
    finally:
        cores.shutdown(wait=True, cancel_futures=True)
        network.shutdown(wait=True, cancel_futures=True)


class _CancelledError(Exception):
    """Ends a worker thread of a build that failed or was interrupted; it is never shown."""


class _Queue:
    """The layers that wait for packages; starts each when its last package is downloaded."""

    def __init__(
        self, layers: Sequence[Step], context: BuildContext, cores: ThreadPoolExecutor, pythons: Interpreters
    ) -> None:
        self.cancelled = threading.Event()
        self.jobs: list[Future[dict[str, LayerRecord]]] = []
        self.fetched = 0
        # In this order, because a compiled component may need earlier ones.
        self.executed = tuple(layer for layer in layers if isinstance(layer, OsLayer | BuiltLayer))
        self._context = context
        self._cores = cores
        self._pythons = pythons
        self._guard = threading.Lock()
        self._layers = {layer.key: layer for layer in layers}
        self._waiting: dict[str, set[str]] = {}
        # Several layers may need a package: some build dependencies are in the image, too.
        self._wanted_by: dict[str, list[str]] = {}
        self._begun: set[str] = set()
        self._absent: list[Package] = []
        for layer in layers:
            absent = locked.absent(packages(layer), context.store)
            self._absent.extend(absent)
            self._waiting[layer.key] = {package.sha256 for package in absent}
            for sha256 in self._waiting[layer.key]:
                self._wanted_by.setdefault(sha256, []).append(layer.key)
        for layer in sorted(layers, key=_weight, reverse=True):
            self._hand_out(layer.key)

    def fetch(self) -> None:
        """Download the packages that the store lacks."""
        context = self._context
        locked.fetch(
            self._absent,
            context.lock,
            context.store,
            context.site,
            cache=context.cache,
            advance=self._received,
            finished=self._finished,
        )

    def wait_for(self, layer: Layer, fetching: Future[None]) -> bool:
        """Wait until a layer's packages are downloaded; return False if fetching failed before that."""
        while self._waiting[layer.key]:
            finished, _ = wait([fetching], timeout=0.1)
            if finished and self._waiting[layer.key]:
                return False
        return True

    def make(self, layer: Step) -> dict[str, LayerRecord]:
        """Make a layer; its packages are downloaded."""
        return make(layer, self._context, self._pythons, self._advance_of(layer.key))

    def _advance_of(self, key: str) -> Advance:
        def advance(count: int) -> None:
            if self.cancelled.is_set():
                raise _CancelledError
            self._context.progress.advance(key, count)

        return advance

    def _received(self, sha256: str, count: int) -> None:
        if self.cancelled.is_set():
            raise _CancelledError
        key = self._wanted_by[sha256][0]
        with self._guard:
            self.fetched += count
            if key not in self._begun:
                # Under the guard: another thread must not advance a row that has not begun.
                self._begun.add(key)
                layer = self._layers[key]
                total = sum(p.size for p in packages(layer) if self._wanted_by.get(p.sha256, [""])[0] == key)
                self._context.progress.begin(key, layer.title, "downloading", total)
        self._context.progress.advance(key, count)

    def _finished(self, sha256: str) -> None:
        for key in self._wanted_by[sha256]:
            with self._guard:
                self._waiting[key].discard(sha256)
            self._hand_out(key)

    def _hand_out(self, key: str) -> None:
        layer = self._layers[key]
        if self._waiting[key] or isinstance(layer, OsLayer | BuiltLayer):  # the caller's thread makes these
            return
        self.jobs.append(self._cores.submit(self.make, layer))


def _weight(layer: Step) -> int:
    return sum(package.size for package in packages(layer))
