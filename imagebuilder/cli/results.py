"""The type of the `result` in each verb's `--json`, and the JSON Schema of the whole document.

Loaded only for `--json`: it imports what the types name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from imagebuilder.cli.answer import VERSION
from imagebuilder.engines.dockerfile import BuiltByDocker
from imagebuilder.engines.embedded import Built
from imagebuilder.errors import ImagebuilderError, InputError, Problem
from imagebuilder.image.diff import ImageDifference, packages_of
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.plan import Config, Plan
from imagebuilder.publish.attest.inspection import IndexInspection, Inspection
from imagebuilder.publish.attest.reports import AttachedReport
from imagebuilder.publish.attest.verification import VerifyCheck
from imagebuilder.publish.gates import Waiver
from imagebuilder.publish.join import Joined
from imagebuilder.publish.promote import Promoted
from imagebuilder.publish.push import Pushed
from imagebuilder.publish.verify import Verified
from imagebuilder.smoke.checkpoints import Comparison
from imagebuilder.smoke.report import Report
from imagebuilder.store.cache import Damage, Pruned, Share, Usage
from imagebuilder.workflow.doctor import HostFinding
from imagebuilder.workflow.project import Copied
from imagebuilder.workflow.reproduce import RebuildVerdict


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


@dataclass(frozen=True, kw_only=True)
class RebuiltImage:
    """The second build of `--verify-reproducible`."""

    same: bool
    verdict: RebuildVerdict


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """The image of one platform.

    Sizes, layers and bytes are null if BuildKit built it; `digest` is "" if it made no manifest.
    `layers_away` counts the layers whose bytes stay in the cache.
    """

    name: str
    platform: str
    digest: str
    config: str
    tag: str
    seconds: float
    size: int | None = None
    layers: int | None = None
    layers_made: int | None = None
    layers_reused: int | None = None
    layers_away: int | None = None
    fetched_bytes: int | None = None
    reproducible: RebuiltImage | None = None

    @classmethod
    def of(cls, built: Built, verdict: RebuildVerdict | None) -> BuiltImage:
        """Describe an image of the embedded engine."""
        return cls(
            name=built.image.name,
            platform=built.image.platform,
            digest=built.image.manifest,
            config=built.image.config,
            tag=built.image.tag,
            size=built.image.size,
            layers=len(built.image.layers),
            layers_made=built.made,
            layers_reused=built.reused,
            layers_away=built.away,
            fetched_bytes=built.fetched,
            seconds=round(built.seconds, 3),
            reproducible=None if verdict is None else RebuiltImage(same=verdict.same, verdict=verdict),
        )

    @classmethod
    def of_docker(cls, built: BuiltByDocker, planned: Plan) -> BuiltImage:
        """Describe an image that BuildKit built."""
        return cls(
            name=planned.name,
            platform=planned.platform,
            digest=built.digest,
            config=built.config,
            tag=planned.tag,
            seconds=round(built.seconds, 3),
        )


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What was built: `digest` is that of the index if there are several platforms.

    `reference` is the name in the local engine, "" if the image was not loaded.
    """

    name: str
    tag: str
    digest: str
    reference: str
    images: tuple[BuiltImage, ...]
    copied: CopiedResult | None


@dataclass(frozen=True, kw_only=True)
class PushedPlatform:
    """The image of one platform."""

    platform: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class PushedResult:
    """What was sent, attached (kind and digest) and signed; `moved` has the tags' digests before."""

    reference: str
    digest: str
    tags: tuple[str, ...]
    pushed_bytes: int
    pushed_blobs: int
    mounted_blobs: int
    reused_blobs: int
    reused_bytes: int
    moved: tuple[tuple[str, str], ...]
    retries: int
    resumed: int
    resent_bytes: int
    seconds: float
    packing_seconds: float
    platforms: tuple[PushedPlatform, ...]
    artefacts: tuple[tuple[str, str], ...]
    signed: int
    waivers: tuple[Waiver, ...]

    @classmethod
    def of(cls, pushed: Pushed) -> PushedResult:
        """Describe a push."""
        return cls(
            **vars(pushed.result),
            packing_seconds=pushed.packing_seconds,
            platforms=tuple(
                PushedPlatform(platform=image.platform, digest=image.manifest) for image in pushed.images
            ),
            artefacts=tuple(artefact for item in pushed.attached for artefact in item.artefacts),
            signed=pushed.signed,
            waivers=pushed.waivers,
        )


@dataclass(frozen=True, kw_only=True)
class JoinResult:
    """The index, the images that it joins, and the tags that it moved, with the digests they had."""

    reference: str
    digest: str
    tags: tuple[str, ...]
    platforms: tuple[PushedPlatform, ...]
    moved: tuple[tuple[str, str], ...]
    signed: int
    waivers: tuple[Waiver, ...]

    @classmethod
    def of(cls, joined: Joined) -> JoinResult:
        """Describe an index."""
        platforms = tuple(
            PushedPlatform(platform=name, digest=digest) for name, digest in joined.joint.images
        )
        return cls(
            reference=joined.reference,
            digest=joined.joint.digest,
            tags=joined.tags,
            platforms=platforms,
            moved=joined.moved,
            signed=joined.signed,
            waivers=joined.joint.waivers,
        )


@dataclass(frozen=True, kw_only=True)
class InspectedIndex:
    """An index. `lock` is the checksum of the lock that its images are from."""

    reference: str
    digest: str
    lock: str
    tags: tuple[str, ...]
    signed: bool


@dataclass(frozen=True, kw_only=True)
class InspectResult:
    """The images; `index` is null for a single one."""

    index: InspectedIndex | None
    images: tuple[Inspection, ...]

    @classmethod
    def of(cls, found: Inspection | IndexInspection) -> InspectResult:
        """Describe an image or an index."""
        if isinstance(found, Inspection):
            return cls(index=None, images=(found,))
        index = InspectedIndex(
            reference=found.index.reference,
            digest=found.index.digest,
            lock=found.index.lock,
            tags=found.tags,
            signed=found.index.signed,
        )
        return cls(index=index, images=found.images)


@dataclass(frozen=True, kw_only=True)
class VerifiedImage:
    """The checks of one image, the reports attached to it, and the gates that were waived."""

    reference: str
    digest: str
    passed: bool
    checks: tuple[VerifyCheck, ...]
    reports: tuple[AttachedReport, ...]
    waivers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class VerifiedIndex:
    """The checks of an index."""

    reference: str
    digest: str
    checks: tuple[VerifyCheck, ...]


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """Whether all checks passed; `index` is null for a single image."""

    passed: bool
    index: VerifiedIndex | None
    images: tuple[VerifiedImage, ...]

    @classmethod
    def of(cls, verified: Verified) -> VerifyResult:
        """Describe the checks."""
        index = None
        if verified.index is not None:
            whole = verified.index
            index = VerifiedIndex(reference=whole.reference, digest=whole.digest, checks=verified.joint)
        return cls(
            passed=verified.passed,
            index=index,
            images=tuple(
                VerifiedImage(
                    reference=image.reference,
                    digest=image.digest,
                    passed=image.passed,
                    checks=image.checks,
                    reports=image.reports,
                    waivers=image.waivers,
                )
                for image in verified.images
            ),
        )


@dataclass(frozen=True, kw_only=True)
class ComparedCheckpoints:
    """Two checkpoints, and how they differ."""

    first: str
    other: str
    equal: bool
    comparison: Comparison


@dataclass(frozen=True, kw_only=True)
class CompareResult:
    """Each checkpoint compared with the first."""

    pairs: tuple[ComparedCheckpoints, ...]


@dataclass(frozen=True, kw_only=True)
class DoctorResult:
    """What this host has and lacks."""

    findings: tuple[HostFinding, ...]


@dataclass(frozen=True, kw_only=True)
class CacheListResult:
    """The store's folder, and what is in it."""

    folder: str
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class CacheUseResult:
    """The blobs of each recipe's images, and the bytes of those in no image and of the downloads."""

    folder: str
    recipes: tuple[Share, ...]
    other: int
    downloads: int


@dataclass(frozen=True, kw_only=True)
class CacheVerifyResult:
    """The damaged files; `removed` with `--fix`."""

    folder: str
    damages: tuple[Damage, ...]
    removed: bool


@dataclass(frozen=True, kw_only=True)
class CachePruneResult:
    """What was removed, or with `dry_run` would be."""

    pruned: Pruned
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a command did not succeed.

    Attributes:
        code: the exit code, see docs/reference/exit-codes.md.
        problems: what is wrong; empty if the result says it, for example which check failed.

    """

    code: int
    problems: tuple[Problem, ...]


RESULTS: dict[str, type] = {
    "check": CheckResult,
    "lock": LockResult,
    "plan": PlanResult,
    "diff": DiffResult,
    "update": UpdateResult,
    "fetch": FetchResult,
    "build": BuildResult,
    "smoke-test": Report,
    "report": Report,
    "compare-checkpoints": CompareResult,
    "push": PushedResult,
    "promote": Promoted,
    "join": JoinResult,
    "inspect": InspectResult,
    "verify": VerifyResult,
    "doctor": DoctorResult,
    "cache ls": CacheListResult,
    "cache du": CacheUseResult,
    "cache verify": CacheVerifyResult,
    "cache prune": CachePruneResult,
}


def schema(verb: str) -> dict[str, Any]:
    """Describe what a verb prints with `--json`, as JSON Schema 2020-12.

    Raises:
        InputError: the verb is unknown, or has no `--json`.

    """
    kind = RESULTS.get(verb)
    if kind is None:
        raise InputError(
            f"no verb `{verb}` has --json", where="--json", hint=f"choose one of {', '.join(RESULTS)}"
        )
    template = "#/$defs/{model}"
    kinds: tuple[Any, ...] = (kind | None, Failure | None)
    parts = [TypeAdapter(each).json_schema(mode="serialization", ref_template=template) for each in kinds]
    definitions = {name: entry for part in parts for name, entry in part.pop("$defs", {}).items()}
    keys = {
        "version": {"const": VERSION},
        "command": {"const": verb},
        "ok": {"type": "boolean", "description": "Whether the exit code is 0."},
        "result": {**parts[0], "description": "Null if the command ended before it had one."},
        "error": {**parts[1], "description": "Null if the exit code is 0."},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"imagebuilder {verb} --json",
        "type": "object",
        "properties": keys,
        "required": list(keys),
        "additionalProperties": False,
        "$defs": definitions,
    }
