"""Results of the verbs about images: build, push, join, inspect, verify, compare-checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from imagebuilder.cli.results.recipes import CopiedResult
from imagebuilder.engines.dockerfile import BuiltByDocker
from imagebuilder.engines.embedded import Built
from imagebuilder.plan import Plan
from imagebuilder.publish.attest.inspection import IndexInspection, Inspection
from imagebuilder.publish.attest.reports import AttachedReport
from imagebuilder.publish.attest.verification import VerifyCheck
from imagebuilder.publish.gates import Waiver
from imagebuilder.publish.join import Joined
from imagebuilder.publish.push import Pushed
from imagebuilder.publish.verify import Verified
from imagebuilder.registry.upload import PushResult
from imagebuilder.smoke.checkpoints import Comparison
from imagebuilder.workflow.reproduce import RebuildVerdict


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
class PushedResult(PushResult):
    """What was sent, attached (kind and digest) and signed; `moved` has the tags' digests before."""

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
