"""The pages of `inspect --html` and `diff --html`: they show what `--json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuilder.core import webpage
from imagebuilder.core.progress import human

_FOLDER = Path(__file__).parent
# The style sheet has this many colours; the smallest components share the last one.
_COLOURS = 6
# The width of a whole bar, in the units of its drawing.
_WIDTH = 1000.0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A layer as a part of a bar: where it begins, how wide it is, and its number among the colours."""

    start: float
    width: float
    colour: int
    layer: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Share:
    """The layers of one component: their bytes, and their bar, to the scale of the largest component."""

    component: str
    size: int
    colour: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, kw_only=True)
class Change:
    """The layers of one component that two images do not share."""

    component: str
    gone: tuple[Mapping[str, Any], ...]
    new: tuple[Mapping[str, Any], ...]
    gone_bytes: int
    new_bytes: int


def inspection(told: Mapping[str, Any]) -> str:
    """Return the page of an image or an index, from what `inspect --json` prints."""
    images = told.get("platforms", [told])
    title = told["reference"]
    return webpage.render(
        _FOLDER / "inspect.html.j2", title, _filters(), told=told, images=images, title_text=title
    )


def difference(told: Mapping[str, Any], before: str, after: str) -> str:
    """Return the page of two images, from what `diff --json` prints and the names that were compared."""
    changed = changes(told["gone"] or (), told["new"] or ())
    return webpage.render(
        _FOLDER / "diff.html.j2",
        f"{before} → {after}",
        _filters(),
        told=told,
        before=before,
        after=after,
        changes=changed,
        most=max((max(one.gone_bytes, one.new_bytes) for one in changed), default=0) or 1,
        packages=told["packages"] or (),
    )


def shares(layers: Sequence[Mapping[str, Any]]) -> tuple[Share, ...]:
    """Group layers by component, the largest first."""
    groups = _grouped(layers)
    sizes = {component: _bytes(group) for component, group in groups.items()}
    ranked = sorted(groups, key=lambda component: (-sizes[component], component))
    scale = _WIDTH / (max(sizes.values(), default=0) or 1)
    return tuple(
        Share(
            component=component,
            size=sizes[component],
            colour=min(rank, _COLOURS - 1),
            segments=_segments(groups[component], {component: rank}, scale),
        )
        for rank, component in enumerate(ranked)
    )


def strip(layers: Sequence[Mapping[str, Any]]) -> tuple[Segment, ...]:
    """Put all layers into one bar, the lowest first, each in its component's colour."""
    ranks = {share.component: rank for rank, share in enumerate(shares(layers))}
    return _segments(layers, ranks, _WIDTH / (_bytes(layers) or 1))


def changes(gone: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> tuple[Change, ...]:
    """Group the layers that two images do not share by component, the most bytes first."""
    left, added = _grouped(gone), _grouped(new)
    found = [
        Change(
            component=component,
            gone=tuple(left.get(component, ())),
            new=tuple(added.get(component, ())),
            gone_bytes=_bytes(left.get(component, ())),
            new_bytes=_bytes(added.get(component, ())),
        )
        for component in left.keys() | added.keys()
    ]
    return tuple(sorted(found, key=lambda one: (-one.new_bytes, -one.gone_bytes, one.component)))


def _filters() -> dict[str, Any]:
    return {"human": human, "shares": shares, "strip": strip}


def _segments(
    layers: Iterable[Mapping[str, Any]], ranks: Mapping[str, int], scale: float
) -> tuple[Segment, ...]:
    found, start = [], 0.0
    for layer in layers:
        width = layer["size"] * scale
        colour = min(ranks[layer["component"]], _COLOURS - 1)
        found.append(Segment(start=start, width=width, colour=colour, layer=layer))
        start += width
    return tuple(found)


def _grouped(layers: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for layer in layers:
        groups.setdefault(layer["component"], []).append(layer)
    return groups


def _bytes(layers: Iterable[Mapping[str, Any]]) -> int:
    return sum(layer["size"] for layer in layers)
