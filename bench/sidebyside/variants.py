"""The recipe that is measured, and what becomes of it when one thing changes: each with its lock and base."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from imagebuilder.core.progress import Progress
from imagebuilder.engines import embedded
from imagebuilder.errors import InputError
from imagebuilder.fetch import locked
from imagebuilder.host.site import detect
from imagebuilder.image import layout
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock
from imagebuilder.plan import FilesLayer, Layer, OsLayer, OsPart, Plan
from imagebuilder.store import Store, link_or_copy
from imagebuilder.workflow import read_plan, update_lock

CHANGES = Path(__file__).resolve().parents[1] / "recipes" / "changes.yaml"


@dataclass(frozen=True, kw_only=True)
class Base:
    """The Debian base that every side starts from.

    Attributes:
        reference: its name in an engine.
        archive: to load it from.
        size: bytes of its layers, packed.

    """

    reference: str
    archive: Path
    size: int


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A recipe in one state.

    Attributes:
        name: `main`, or what changed.
        recipe: its file; the lock lies beside it.
        lock: that lock.
        plan: of it.
        base: what the sides with a Dockerfile start from.
        forced: whether a pin is against what another package asks for.
        project: the folder of the user's own code; None if the recipe has none.

    """

    name: str
    recipe: Path
    lock: Lock
    plan: Plan
    base: Base
    forced: bool
    project: Path | None = None

    @property
    def requirements(self) -> str:
        return "".join(f"{wheel.name}=={wheel.version}\n" for wheel in self.lock.wheels)

    def forget_layers(self) -> None:
        """Take out of the lock what builds have learnt of its layers."""
        place = locks.path_for(self.recipe)
        file = lockfile.read(place)
        plain = tuple(lock.knowing(()) for lock in file.sections)
        lockfile.write(LockFile(sections=plain), place)


class Bases:
    """Makes bases, each once: variants that differ in wheels only share one."""

    def __init__(self, store: Store, seed: Store | None, folder: Path, progress: Progress) -> None:
        """Make none yet.

        Args:
            store: gets the bases' layers, and nothing else is ever built in it.
            seed: a store that may have them, and their packages, already.
            folder: for archives.
            progress: whom to tell.

        """
        self.store = store
        self._seed = seed
        self._folder = folder
        self._progress = progress
        self._made: dict[str, Base] = {}

    @property
    def made(self) -> tuple[Base, ...]:
        return tuple(self._made.values())

    def of(self, plan: Plan, lock: Lock) -> Base:
        system = plan.system.key
        if system not in self._made:
            # Packages and settings: what a Dockerfile by hand would find in the image that it starts from.
            kept = tuple(layer for layer in plan.layers if isinstance(layer, OsLayer | OsPart | FilesLayer))
            name = f"bench-base{len(self._made)}-{plan.name}"
            # Root's, as bases are: what a Dockerfile adds, it adds as root.
            config = dataclasses.replace(plan.config, user="0:0")
            base = dataclasses.replace(plan, name=name, layers=kept, config=config)
            self._take(kept, lock)
            context = embedded.BuildContext(
                lock=lock, store=self.store, site=detect(), progress=self._progress
            )
            image = embedded.build(base, context).image
            archive = self._folder / f"{name}.tar"
            layout.export(image, self.store, archive)
            self._made[system] = Base(
                reference=f"{image.name}:{image.tag}",
                archive=archive,
                size=sum(layer.record.size for layer in image.layers),
            )
        return self._made[system]

    def _take(self, layers: Iterable[Layer], lock: Lock) -> None:
        """Take what the seed has, so that no clock has to wait for what is not measured."""
        if self._seed is None:
            return
        known = [deb for deb in lock.debs if self._seed.has_download(deb.sha256, deb.size)]
        locked.copy(known, self._seed, self.store)
        for layer in layers:
            record = self._seed.layer(layer.key)
            if record is not None and self.store.layer(layer.key) is None:
                if not record.is_empty:
                    place = self.store.blob(record.digest)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    link_or_copy(self._seed.blob(record.digest), place)
                self.store.put_layer(layer.key, record)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What `changes.yaml` says of one recipe."""

    imports: str
    changes: Mapping[str, Mapping[str, Any]]
    matrix: tuple[tuple[str, ...], ...]
    project: bool


def scheme(name: str) -> Scheme:
    """Read it; a recipe that the file does not know can be built, but not changed."""
    said = yaml.safe_load(CHANGES.read_text(encoding="utf-8")).get(name, {})
    return Scheme(
        imports=said.get("import", "sys"),
        changes=said.get("changes", {}),
        matrix=tuple(tuple(each) for each in said.get("matrix", ())),
        project=said.get("project", False),
    )


def prepare(source: Path, changes: Iterable[str], plan_of: Scheme, folder: Path, bases: Bases) -> Variant:
    """Write a recipe with some changes into a folder, and lock it: what still fits stays as it was."""
    wanted = tuple(changes)
    name = "+".join(wanted) or "main"
    text = source.read_text(encoding="utf-8")
    for change in wanted:
        text = changed(text, change, plan_of, source)
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    recipe = place / source.name
    recipe.write_text(text, encoding="utf-8")
    project = place / "project" if plan_of.project else None
    if project:
        write_project(project)
    known = locks.path_for(source) if not wanted else locks.path_for(folder / "main" / source.name)
    if known.exists():
        shutil.copy(known, locks.path_for(recipe))
    if wanted or not known.exists():
        update_lock(recipe, None, None, bases.store)
    lock, plan = read_plan(recipe)
    return Variant(
        name=name,
        recipe=recipe,
        lock=lock,
        plan=plan,
        base=bases.of(plan, lock),
        forced=bool(lock.overrides),
        project=project,
    )


def write_project(folder: Path) -> None:
    """Write a package of 200 modules with 30 lines each, in the layout that `uv init --package` makes."""
    package = folder / "src" / "tinytrain"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "tinytrain"\nversion = "1.0"\n\n'
        '[build-system]\nrequires = ["uv_build"]\nbuild-backend = "uv_build"\n'
    )
    for name in ("__init__", "__main__"):
        (package / f"{name}.py").write_text("")
    for number in range(200):
        lines = "".join(f"value{line} = {number * line}\n" for line in range(30))
        (package / f"module{number}.py").write_text(lines)


def change_a_line(project: Path) -> None:
    """Write another number into one line of one module."""
    file = project / "src" / "tinytrain" / "module100.py"
    head, _, number = file.read_text().rpartition(" = ")
    file.write_text(f"{head} = {int(number) + 1}\n")


def known_bytes(variants: Mapping[str, Variant], matrix: Iterable[Variant]) -> dict[str, int]:
    """Count what each change brings, and the different components of the matrix: see `samples.Run.facts`."""
    main = {wheel.sha256 for wheel in variants["main"].lock.wheels}
    facts = {
        f"changed: {name}": sum(wheel.size for wheel in variant.lock.wheels if wheel.sha256 not in main)
        for name, variant in variants.items()
        if name != "main"
    }
    six = tuple(matrix)
    if six:
        wheels = {wheel.sha256: wheel.size for variant in six for wheel in variant.lock.wheels}
        bases = {variant.base.reference: variant.base.size for variant in six}
        facts["distinct"] = sum(wheels.values()) + sum(bases.values())
        facts["largest"] = max(
            sum(wheel.size for wheel in variant.lock.wheels) + variant.base.size for variant in six
        )
    return facts


def changed(text: str, change: str, plan_of: Scheme, source: Path) -> str:
    """Make one change in a recipe's text; raises InputError where it is not described, or does not fit."""
    if change not in plan_of.changes:
        raise InputError(
            f"nothing is said of the change `{change}`",
            where=f"{CHANGES.name}: {source.stem}",
            hint="name other kinds of work with --work, or write it down there",
        )
    said = plan_of.changes[change]
    for old, new in said.get("replace", {}).items():
        if old not in text:
            raise InputError(f"`{old}` is not in it", where=str(source), hint=f"mend {CHANGES.name}")
        text = text.replace(old, new)
    return f"{text.rstrip()}\n{said.get('append', '')}\n"
