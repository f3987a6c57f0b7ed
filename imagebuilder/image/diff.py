"""Compares two images, built or only planned: pins, packages, layers, bytes to push."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from imagebuilder.core import labels as label_names
from imagebuilder.core import platforms
from imagebuilder.image import oci
from imagebuilder.lock.model import BaseLayer, Deb, Lock, Wheel
from imagebuilder.plan import BuiltLayer, BytecodeLayer, ImportedLayer, Layer, OsPart, Plan
from imagebuilder.store import ImageRecord, Store


@dataclass(frozen=True, kw_only=True)
class ComparedLayer:
    """One layer: its digest or key, its title, the pin that it belongs to, and its bytes in a registry.

    `measured` is false if the layer was never made here. Then `size` is that of its packages, which is close
    for wheels, too small for installed packages, and 0 for what is compiled.
    """

    identity: str
    title: str
    component: str
    size: int
    measured: bool


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two images.

    Attributes:
        name: the name that a person gave.
        pins: full version by component.
        packages: version by kind and name (`wheel torch`); None if only layers are known.
        layers: the lowest first; None if only packages are known.

    """

    name: str
    pins: Mapping[str, str]
    packages: Mapping[str, str] | None
    layers: tuple[ComparedLayer, ...] | None


@dataclass(frozen=True, kw_only=True)
class ChangedValue:
    """One value that differs; it is empty on a side that does not have it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class ImageDifference:
    """The differences between two images.

    Attributes:
        pins: by component.
        packages: by kind and name; None where one side's are not known.
        gone, new: layers of one side only; None where one side's are not known.
        push_bytes: what a push of the second would send to a registry that has the first.
        shared_bytes: what it would not send.
        measured: false where `push_bytes` counts packages, for layers that were never made here.

    """

    pins: tuple[ChangedValue, ...]
    packages: tuple[ChangedValue, ...] | None
    gone: tuple[ComparedLayer, ...] | None
    new: tuple[ComparedLayer, ...] | None
    push_bytes: int
    shared_bytes: int
    measured: bool

    @property
    def same(self) -> bool:
        """Whether no difference is known."""
        return not (self.pins or self.packages or self.gone or self.new)


def compare(before: Side, after: Side) -> ImageDifference:
    """Compare two sides in everything that is known of both."""
    packages = None
    if before.packages is not None and after.packages is not None:
        packages = _changes(before.packages, after.packages)
    gone = new = None
    shared = 0
    if before.layers is not None and after.layers is not None:
        there = {part.identity for part in before.layers}
        wanted = {part.identity for part in after.layers}
        gone = tuple(part for part in before.layers if part.identity not in wanted)
        new = tuple(part for part in after.layers if part.identity not in there)
        shared = sum(part.size for part in after.layers if part.identity in there)
    return ImageDifference(
        pins=_changes(before.pins, after.pins),
        packages=packages,
        gone=gone,
        new=new,
        push_bytes=sum(part.size for part in new or ()),
        shared_bytes=shared,
        measured=all(part.measured for part in new or ()),
    )


def of_locks(name: str, sections: Sequence[Lock]) -> Side:
    """Describe the locks of one recipe; with several platforms, names of packages contain the platform."""
    return _joined(name, [(platforms.of(lock.architecture), of_lock(name, lock)) for lock in sections])


def of_plans(name: str, planned: Sequence[tuple[Lock, Plan]], store: Store) -> Side:
    """Describe the planned images of one recipe, as `of_locks` does."""
    return _joined(name, [(plan.platform, of_plan(name, lock, plan, store)) for lock, plan in planned])


def of_images(name: str, images: Sequence[tuple[ImageRecord, Mapping[str, str]]]) -> Side:
    """Describe the images of one name, each with its labels, as `of_locks` does."""
    return _joined(name, [(image.platform, of_image(name, image, labels)) for image, labels in images])


def _joined(name: str, sides: Sequence[tuple[str, Side]]) -> Side:
    """Join the sides of several platforms; a layer that several of them share counts once."""
    if len(sides) == 1:
        return sides[0][1]
    parts: dict[str, ComparedLayer] = {}
    for platform, side in sides:
        for part in side.layers or ():
            parts.setdefault(part.identity, replace(part, title=f"{part.title} ({platform})"))
    known = all(side.packages is not None for _, side in sides)
    return Side(
        name=name,
        pins={f"{key} ({platform})": text for platform, side in sides for key, text in side.pins.items()},
        packages={
            f"{key} ({platform})": text
            for platform, side in sides
            for key, text in (side.packages or {}).items()
        }
        if known
        else None,
        layers=tuple(parts.values()) if all(side.layers is not None for _, side in sides) else None,
    )


def of_lock(name: str, lock: Lock) -> Side:
    """Describe a lock without its recipe: packages, but no layers."""
    return Side(name=name, pins=lock.pins, packages=_packages(lock), layers=None)


def of_plan(name: str, lock: Lock, plan: Plan, store: Store) -> Side:
    """Describe a planned image, with the sizes of layers that the store has already."""
    parts = []
    for layer in plan.layers:
        record = store.known_layer(layer.key)
        if record is None and isinstance(layer, OsPart) and layer.debs:
            record = store.layer(layer.likely)
        if record is not None and record.is_empty:
            continue
        # The wheels that it is compiled from say nothing about the size of bytecode.
        packages = () if isinstance(layer, BytecodeLayer) else packages_of(layer)
        blob = layer.blob if isinstance(layer, ImportedLayer) else None
        parts.append(
            ComparedLayer(
                identity=record.digest if record else blob.digest if blob else f"key:{layer.key}",
                title=layer.title,
                component=oci.component(layer),
                size=record.size if record else sum(package.size for package in packages),
                measured=record is not None or blob is not None,
            )
        )
    return Side(name=name, pins=lock.pins, packages=_packages(lock), layers=tuple(parts))


def packages_of(layer: Layer) -> tuple[Deb | Wheel | BaseLayer, ...]:
    """List the packages in a layer, or the base layer that it is; a compiled layer has none."""
    if isinstance(layer, ImportedLayer):
        return (layer.blob,)
    return (
        () if isinstance(layer, BuiltLayer) else (*getattr(layer, "debs", ()), *getattr(layer, "wheels", ()))
    )


def of_image(name: str, image: ImageRecord, labels: Mapping[str, str]) -> Side:
    """Describe an image of the store, by its record and its labels."""
    return Side(
        name=name,
        pins=label_names.pins(labels),
        packages=None,
        layers=tuple(
            ComparedLayer(
                identity=layer.record.digest,
                title=layer.title,
                component=layer.component,
                size=layer.record.size,
                measured=True,
            )
            for layer in image.layers
        ),
    )


def _packages(lock: Lock) -> dict[str, str]:
    """Return the version of every package; a part of the hash tells rebuilt packages of one version apart."""
    return {
        **({f"base {lock.image.name}": lock.image.digest} if lock.image else {}),
        **{
            f"deb {deb.name}": f"{deb.version} {getattr(deb, 'sha256', '')[:12]}".strip()
            for deb in lock.installed
        },
        **{f"wheel {wheel.name}": f"{wheel.version} {wheel.sha256[:12]}" for wheel in lock.wheels},
        **{
            f"source {source.name}": f"{source.version} {source.sha256[:12]}"
            for build in lock.builds
            for source in build.sources
        },
    }


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ChangedValue, ...]:
    return tuple(
        ChangedValue(name=name, before=before.get(name, ""), after=after.get(name, ""))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )
