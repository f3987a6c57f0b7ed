"""Making the layers that a store lacks: each as soon as its packages are there.

Three things run at once: downloads (bound by network), splicing (a thread a core, bound by disk and
hashing), and the OS layer (bound by dpkg) with the compiled components after it (bound by all cores). These
are made in the caller's thread, for Ctrl-C arrives there and has to end mmdebstrap.
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
from imagebuilder.plan import BuiltLayer, Layer, OsLayer, PackageLayer, Plan, WheelLayer
from imagebuilder.store import DamagedDownloadError, LayerRecord, check_bytes


def make_layers(layers: Sequence[Scheduled], context: BuildContext) -> tuple[dict[str, LayerRecord], int]:
    """Make layers: each as soon as its packages are there.

    A download that rotted in the store is found when it is read; it is fetched again, and what could not be
    made with it is tried once more.

    Returns:
        The records, and the bytes fetched.

    Raises:
        FetchError: bytes that could not be had, or were not the locked ones.
        BuildError: a layer could not be made.
        StoreError: the store is full or not writable.

    """
    records: dict[str, LayerRecord] = {}
    mended: set[str] = set()
    fetched = 0
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
                context.progress.note(f"{error.name} in the store is damaged: it is fetched again")
                mended.add(error.sha256)
                context.store.drop_download(error.sha256)
            finally:
                queue.cancelled.set()
            fetched += queue.fetched
    return records, fetched


def _attempt(queue: _Queue, network: ThreadPoolExecutor, records: dict[str, LayerRecord]) -> None:
    """Make what the queue holds, and add each record as it comes."""
    fetching = network.submit(queue.fetch)
    for layer in queue.executed:
        if queue.wait_for(layer, fetching):
            records.update(queue.make(layer))
    fetching.result()
    # Every layer has been handed out by now: the last download did it.
    for job in as_completed(queue.jobs):
        records.update(job.result())


def check_wheels(plan: Plan, context: BuildContext) -> None:
    """Refuse two wheels that write one path differently: which one won would depend on the layers' order.

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
        # Layers that were there already may stand on wheels that rotted since: those say nothing any more.
        damaged = [name for name, wheel in wheels.items() if _was_damaged(wheel, context)]
        if not damaged:
            raise
        check_collisions({name: path for name, path in files.items() if name not in damaged})


def _package_wheel(plan: Plan, context: BuildContext) -> dict[str, Path]:
    """Find the wheel of the user's project, by its name."""
    records = (
        context.store.layer(layer.wheel_key) for layer in plan.layers if isinstance(layer, PackageLayer)
    )
    places = [context.store.blob(record.digest) for record in records if record]
    return {wheel_name(place): place for place in places}


def _was_damaged(wheel: Wheel, context: BuildContext) -> bool:
    """Remove a download that rotted; a later build that needs it fetches it."""
    try:
        check_bytes(context.store.download(wheel.sha256), wheel.sha256, wheel.file)
    except DamagedDownloadError:
        context.progress.note(f"{wheel.file} in the store is damaged: it is removed")
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
    """Ends a worker thread of a build that has failed or was interrupted; nobody sees it."""


class _Queue:
    """Which layers still wait for packages; hands each to the cores once its last package is there."""

    def __init__(
        self, layers: Sequence[Step], context: BuildContext, cores: ThreadPoolExecutor, pythons: Interpreters
    ) -> None:
        self.cancelled = threading.Event()
        self.jobs: list[Future[dict[str, LayerRecord]]] = []
        self.fetched = 0
        # In this order: what is compiled may need what was compiled before.
        self.executed = tuple(layer for layer in layers if isinstance(layer, OsLayer | BuiltLayer))
        self._context = context
        self._cores = cores
        self._pythons = pythons
        self._guard = threading.Lock()
        self._layers = {layer.key: layer for layer in layers}
        self._waiting: dict[str, set[str]] = {}
        # A package may be wanted by several: what compiles a component is partly in the image, too.
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
        """Download what is absent."""
        context = self._context
        locked.fetch(
            self._absent,
            context.lock,
            context.store,
            context.site,
            advance=self._received,
            finished=self._finished,
        )

    def wait_for(self, layer: Layer, fetching: Future[None]) -> bool:
        """Wait until a layer's packages are there; False when fetching ended without them (it failed)."""
        while self._waiting[layer.key]:
            finished, _ = wait([fetching], timeout=0.1)
            if finished and self._waiting[layer.key]:
                return False
        return True

    def make(self, layer: Step) -> dict[str, LayerRecord]:
        """Make a layer whose packages are there."""
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
            first = key not in self._begun
            self._begun.add(key)
            self.fetched += count
        if first:
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
