"""Build an image again in an empty store, and compare the images layer by layer and file by file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from imagebuilder.engines.embedded import BuildContext
from imagebuilder.plan import Plan
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import layerdiff
from imagebuilder.workflow.layerdiff import FileDifference, LayerDifference
from imagebuilder.workflow.rebuild import fresh_build

_SHOWN = 50  # files of a layer in the text; the JSON has them all


@dataclass(frozen=True, kw_only=True)
class LayerVerdict:
    """One layer that did not come out the same: its title, both digests, and what differs.

    A digest is empty if that build has no such layer, because it compiled nothing for it.
    """

    title: str
    first: str
    second: str
    difference: LayerDifference


@dataclass(frozen=True, kw_only=True)
class RebuildVerdict:
    """The result of building again.

    Attributes:
        first, second: digests of both manifests.
        platform: of the image.
        layers: those that differ, the lowest first.
        config: keys of the image's config that differ, apart from the layers.
        seconds: duration of building and comparing.

    """

    first: str
    second: str
    platform: str
    layers: tuple[LayerVerdict, ...]
    config: tuple[str, ...]
    seconds: float

    @property
    def same(self) -> bool:
        """Whether both images are equal, bit for bit."""
        return self.first == self.second


def verify(plan: Plan, image: ImageRecord, context: BuildContext) -> RebuildVerdict:
    """Build an image again, without reusing any layer, and compare.

    Args:
        plan: of the image.
        image: the first build.
        context: of the first build.

    Raises:
        ImagebuilderError: as a build does.

    """
    started = time.monotonic()
    with fresh_build(plan, context) as (built, other):
        again = built.image
        return RebuildVerdict(
            first=image.manifest,
            second=again.manifest,
            platform=image.platform,
            layers=tuple(_layers(image, context.store, again, other)),
            config=_config(image, context.store, again, other),
            seconds=time.monotonic() - started,
        )


def lines(verdict: RebuildVerdict) -> Iterator[str]:
    """Format a verdict: one line if both are equal, else every layer and file that differs."""
    if verdict.same:
        yield f"again   the same digest from a fresh store, in {verdict.seconds:.1f} s"
        return
    yield f"again   {verdict.second}, another digest"
    for key in verdict.config:
        yield f"config  {key} differs"
    for layer in verdict.layers:
        files = layer.difference.files
        count = f"{len(files)} file{'s differ' if len(files) != 1 else ' differs'}"
        yield f"layer   {layer.title}: {count if files else layer.difference.about}"
        for found in files[:_SHOWN]:
            yield from _file(found)
        if len(files) > _SHOWN:
            yield f"          and {len(files) - _SHOWN} more; --json names them all"


def _file(found: FileDifference) -> Iterator[str]:
    changes = zip(found.what, found.first, found.second, strict=True)
    yield f"          /{found.path}: " + "; ".join(
        f"{what}: {a or '-'} -> {b or '-'}" for what, a, b in changes
    )
    if found.line:
        yield f"            line {found.line}: {found.first_line!r} -> {found.second_line!r}"


def _layers(first: ImageRecord, store: Store, second: ImageRecord, other: Store) -> Iterator[LayerVerdict]:
    before, after = (
        {layer.title: layer.record.digest for layer in image.layers} for image in (first, second)
    )
    for title in before | after:
        one, two = before.get(title, ""), after.get(title, "")
        if one and two and one != two:
            difference = layerdiff.compare(store.blob(one), other.blob(two))
            yield LayerVerdict(title=title, first=one, second=two, difference=difference)
        elif one != two:
            about = f"only the {'first' if one else 'second'} build has this layer"
            difference = LayerDifference(files=(), about=about)
            yield LayerVerdict(title=title, first=one, second=two, difference=difference)


def _config(first: ImageRecord, store: Store, second: ImageRecord, other: Store) -> tuple[str, ...]:
    one, two = _flat(first, store), _flat(second, other)
    return tuple(sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key)))


def _flat(image: ImageRecord, store: Store) -> Mapping[str, Any]:
    config: dict[str, Any] = json.loads(store.blob(image.config).read_bytes())
    inner = config.pop("config", {})
    config.pop("rootfs", None)  # the layers' diffIDs: they are compared by themselves
    return config | {f"config.{key}": value for key, value in inner.items()}
