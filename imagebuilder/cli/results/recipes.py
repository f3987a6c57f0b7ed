"""Results of the verbs about recipes and locks: check, lock, plan, diff, update, fetch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.errors import ImagebuilderError, Problem
from imagebuilder.image.diff import ImageDifference, packages_of
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.plan import Config, Plan
from imagebuilder.workflow.project import Copied


@dataclass(frozen=True, kw_only=True)
class CopiedFolderResult:
    """A folder of the user's own files: `to` is where the image has it, null for the user's package.

    `names` lists its files in `plan`, and is null in other verbs.
    """

    source: str
    to: str | None
    files: int
    bytes: int
    names: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class CopiedResult:
    """What a recipe copies of the user's own files. `uncommitted` differ from the commit in `revision`."""

    files: int
    bytes: int
    revision: str
    uncommitted: tuple[str, ...]
    folders: tuple[CopiedFolderResult, ...]

    @classmethod
    def of(cls, copied: Copied, *, names: bool = False) -> CopiedResult | None:
        """Describe what is copied; None if nothing is."""
        if not copied.folders:
            return None
        return cls(
            files=copied.files,
            bytes=copied.bytes,
            revision=copied.project.revision,
            uncommitted=copied.uncommitted,
            folders=tuple(
                CopiedFolderResult(
                    source=folder.source,
                    to=folder.target or None,
                    files=len(folder.names),
                    bytes=folder.bytes,
                    names=folder.names if names else None,
                )
                for folder in copied.folders
            ),
        )


@dataclass(frozen=True, kw_only=True)
class CheckedRecipe:
    """A recipe: whether it is right, whether it has a lock, and its problems with their exit code."""

    recipe: str
    ok: bool
    locked: bool
    exit_code: int = 0
    problems: tuple[Problem, ...] = ()
    copied: CopiedResult | None = None


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The recipes in the order given."""

    recipes: tuple[CheckedRecipe, ...]

    @classmethod
    def of(cls, found: Sequence[tuple[Path, Copied | ImagebuilderError]]) -> CheckResult:
        """Describe recipes by what they copy, or by the error that was found."""
        rows = []
        for path, outcome in found:
            name, locked = str(path), locks.path_for(path).exists()
            if isinstance(outcome, ImagebuilderError):
                problems = outcome.problems
                row = CheckedRecipe(
                    recipe=name, ok=False, locked=locked, exit_code=outcome.exit_code, problems=problems
                )
            else:
                row = CheckedRecipe(recipe=name, ok=True, locked=locked, copied=CopiedResult.of(outcome))
            rows.append(row)
        return cls(recipes=tuple(rows))


@dataclass(frozen=True, kw_only=True)
class LockedPlatform:
    """A platform of a lock: its pins, and numbers of packages."""

    platform: str
    pins: dict[str, str]
    debs: int
    wheels: int
    builds: int


@dataclass(frozen=True, kw_only=True)
class LockResult:
    """The lock's path, whether it was written, and what changed."""

    lock: str
    written: bool
    platforms: tuple[LockedPlatform, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, path: str, made: LockFile, changes: tuple[str, ...], notes: tuple[str, ...]) -> LockResult:
        """Describe a lock; without changes it was not written."""
        platforms = tuple(
            LockedPlatform(
                platform=name,
                pins=dict(section.pins),
                debs=len(section.debs),
                wheels=len(section.wheels),
                builds=len(section.builds),
            )
            for name, section in zip(made.platforms, made.sections, strict=True)
        )
        return cls(lock=path, written=bool(changes), platforms=platforms, changes=changes, notes=notes)


@dataclass(frozen=True, kw_only=True)
class PlannedLayer:
    """A layer. `packages_bytes` is the size of the packages that it is made from."""

    kind: str
    title: str
    key: str
    packages_bytes: int


@dataclass(frozen=True, kw_only=True)
class PlannedImage:
    """The planned image of one platform."""

    name: str
    platform: str
    tag: str
    layers: tuple[PlannedLayer, ...]
    config: Config
    copied: CopiedResult | None

    @classmethod
    def of(cls, planned: Plan, copied: CopiedResult | None) -> PlannedImage:
        """Describe a plan."""
        layers = tuple(
            PlannedLayer(
                kind=type(layer).__name__,
                title=layer.title,
                key=layer.key,
                packages_bytes=sum(package.size for package in packages_of(layer)),
            )
            for layer in planned.layers
        )
        return cls(
            name=planned.name,
            platform=planned.platform,
            tag=planned.tag,
            layers=layers,
            config=planned.config,
            copied=copied,
        )


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """The planned image of each platform."""

    images: tuple[PlannedImage, ...]


@dataclass(frozen=True, kw_only=True)
class MovedPin:
    """The versions of a pin."""

    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class DiffResult:
    """`same` if nothing differs."""

    same: bool
    difference: ImageDifference


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """The pins that moved, why the others did not, and how the image changes.

    `written` is false with `--dry-run`.
    """

    recipe: str
    written: bool
    moved: dict[str, MovedPin]
    left: dict[str, str]
    same: bool
    difference: ImageDifference


@dataclass(frozen=True, kw_only=True)
class FetchedRecipe:
    """The packages of a recipe on one platform; `fetched_bytes` were not in the store."""

    recipe: str
    architecture: str
    packages: int
    bytes: int
    fetched_bytes: int


@dataclass(frozen=True, kw_only=True)
class FetchResult:
    """The folder that holds the packages, and the recipes."""

    store: str
    recipes: tuple[FetchedRecipe, ...]
