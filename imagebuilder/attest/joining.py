"""Joining published images of several platforms, built on hosts of their own, under one name.

What is asked of them is what a push of all at once asks: that they are made from one recipe and one lock, and
that each was proven.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from imagebuilder import lockfile, oci
from imagebuilder.attest import verdict
from imagebuilder.attest.bundle import REPORT, SOURCE
from imagebuilder.attest.provenance import LOCK, RECIPE
from imagebuilder.attest.published import Published
from imagebuilder.attest.source import Source
from imagebuilder.errors import GateError, ImagebuilderError, InputError, Problem
from imagebuilder.gates import Gate, Waiver, pass_all
from imagebuilder.registry.artefacts import digest_of
from imagebuilder.yamlfile import printable


@dataclass(frozen=True, kw_only=True)
class Joint:
    """An index that is ready to be pushed.

    Attributes:
        index: its bytes.
        images: platform and digest of each image.
        tags: to push it under, as the recipe says; empty where no recipe was found.
        own: those of them that say nothing but what is inside.
        waivers: what was let pass.

    """

    index: bytes
    images: tuple[tuple[str, str], ...]
    tags: tuple[str, ...]
    own: tuple[str, ...]
    waivers: tuple[Waiver, ...]

    @property
    def digest(self) -> str:
        """Its digest."""
        return digest_of(self.index)


def join(images: Sequence[Published], waived: Collection[str] = ()) -> Joint:
    """Make the index of published images.

    Args:
        images: of one repository, each for another platform.
        waived: gates that may say no: `recipe`, `smoke-test`.

    Raises:
        InputError: they are not images of different platforms.
        GateError: they are not of one recipe and lock, or one was not proven.

    """
    _require_distinct(images)
    sources = [_source(image) for image in images]
    gates = [Gate(name="recipe", check=lambda: _require_one_source(images, sources))]
    gates += [Gate(name="smoke-test", check=partial(_require_proof, image)) for image in images]
    waivers = pass_all(gates, waived)
    source = sources[0] if not any(waiver.gate == "recipe" for waiver in waivers) else None
    checksum = lockfile.loads(source.lock, LOCK).checksum if source else ""
    entries = [
        oci.Entry(
            platform=image.platform,
            digest=image.digest,
            size=image.manifest_size,
            labels=image.labels,
        )
        for image in images
    ]
    return Joint(
        index=oci.index_document(entries, checksum),
        images=tuple(sorted((image.platform, image.digest) for image in images)),
        tags=source.tags() if source else (),
        own=(images[0].labels.get("org.opencontainers.image.version", ""), checksum[:12]),
        waivers=waivers,
    )


def _require_distinct(images: Sequence[Published]) -> None:
    if len(images) < 2:
        raise InputError(
            "one image needs no index",
            where="imagebuilder join",
            hint="name the images of two platforms at least",
        )
    seen: dict[str, Published] = {}
    for image in images:
        first = seen.setdefault(image.platform, image)
        if first is not image:
            raise InputError(
                f"both are for {printable(image.platform)}",
                where=f"{first.reference} and {image.reference}",
                hint="name one image of each platform",
            )


def _source(image: Published) -> Source | None:
    """Find the recipe and the lock that are attached to an image, and are what its labels say."""
    for found in image.attachments:
        if found.kind != SOURCE:
            continue
        try:
            source = Source(recipe=found.files[RECIPE].decode(), lock=found.files[LOCK].decode())
            lock = lockfile.loads(source.lock, LOCK).section(image.platform)
        except (ImagebuilderError, UnicodeDecodeError):
            continue
        if lock is not None and lock.checksum == image.labels.get("org.imagebuilder.lock"):
            return source
    return None


def _require_one_source(images: Sequence[Published], sources: Sequence[Source | None]) -> None:
    everywhere = " and ".join(str(image.reference) for image in images)
    lacking = [image for image, source in zip(images, sources, strict=True) if source is None]
    if lacking:
        raise GateError.of(
            [
                Problem(
                    message="no recipe and lock are attached that it was made from",
                    where=str(image.reference),
                    hint="push it with imagebuilder and without --no-attach (or --out-of-step)",
                )
                for image in lacking
            ]
        )
    (first, *others) = (source for source in sources if source is not None)
    if any(other != first for other in others):
        raise GateError(
            "the images are made from different recipes or locks",
            where=everywhere,
            hint="build and push each from the same recipe and lock (or --out-of-step)",
        )
    named = {image.platform for image in images}
    missing = sorted(set(lockfile.loads(first.lock, LOCK).platforms) - named)
    if missing:
        raise GateError(
            f"the recipe is also for {' and '.join(missing)}",
            where=everywhere,
            hint="name the images of all its platforms (or --out-of-step)",
        )


def _require_proof(image: Published) -> None:
    reasons = ["no report of a smoke test is attached"]
    for found in image.attachments:
        if found.kind != REPORT:
            continue
        try:
            report = verdict.read(found.data)
        except ValueError as error:
            reasons.append(str(error))
            continue
        if report.digest == image.digest and report.is_proof:
            return
        reasons.append("the report that is attached is no proof of it")
    raise GateError(
        f"on {printable(image.platform)}: {reasons[-1]}",
        where=str(image.reference),
        hint="run the smoke test where it was built, and push again (or join with --untested)",
    )
