"""Hosts that build one small image and share a cache. The image has a layer for each wheel, and no system."""

from __future__ import annotations

import dataclasses
import io
import shutil
from pathlib import Path

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.core.progress import LineProgress
from imagebuilder.engines import embedded
from imagebuilder.engines.context import BuildContext
from imagebuilder.host.site import Site
from imagebuilder.layers import hints
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock
from imagebuilder.plan import Plan, WheelLayer
from imagebuilder.registry.cache import Cache, Filled
from imagebuilder.store import Store
from imagebuilder.workflow import sharing
from tests.support.wheels import dice, locked, make_wheel
from tests.unit import samples

PLACE = "team/cache"


def two_wheels(folder: Path) -> dict[str, Path]:
    """Make two wheels, by the hash of each."""
    made = {}
    for name in ("one", "two"):
        path = make_wheel(folder, {f"{name}/__init__.py": dice(len(name)).randbytes(90_000)}, name=name)
        made[locked(path).sha256] = path
    return made


def lock_of(wheels: dict[str, Path]) -> Lock:
    return samples.lock(wheels=tuple(sorted(map(locked, wheels.values()), key=lambda wheel: wheel.name)))


@dataclasses.dataclass
class Host:
    """A host that builds: its store, what it shows, and the cache that it asks."""

    folder: Path
    registry: str
    wheels: dict[str, Path]

    def __post_init__(self) -> None:
        self.store = Store(self.folder)
        self.said = io.StringIO()
        self.site = Site()
        self.shared = dataclasses.replace(self.site, cache=f"{self.registry}/{PLACE}")

    def cache(self) -> Cache:
        return Cache(f"{self.registry}/{PLACE}", self.site, self.progress.note)

    @property
    def progress(self) -> LineProgress:
        return LineProgress(self.said)

    def build(self, lock: Lock, *, whole: bool = False, remake: bool = False) -> embedded.Built:
        context = BuildContext(
            lock=lock,
            store=self.store,
            site=self.site,
            progress=self.progress,
            cache=self.cache(),
            whole=whole,
            remake=remake,
        )
        return embedded.build(plan_of(lock), context)

    def has(self, lock: Lock) -> None:
        """Put the packages of a lock into the store, as after a download."""
        for wheel in lock.wheels:
            place = self.store.download(wheel.sha256)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.wheels[wheel.sha256], place)

    def fill(self, lock: Lock) -> Filled:
        """Put everything into the cache."""
        return sharing.share(lock, plan_of(lock), self.store, self.shared, self.progress)

    def learn(self, lock: Lock) -> Lock:
        """Return the lock as a build of this host leaves it."""
        keys = [[layer.key for layer in plan_of(lock).layers]]
        return hints.learn(LockFile(sections=(lock,)), keys, self.store).sections[0]


def plan_of(lock: Lock) -> Plan:
    """Plan an image of a layer for each wheel: no system has to be made for it."""
    plan = plans.plan(select(samples.recipe()), lock.knowing(()), ())
    layers = tuple(WheelLayer(component=w.name, wheels=(w,), python=lock.python) for w in lock.wheels)
    return dataclasses.replace(plan, layers=layers)
