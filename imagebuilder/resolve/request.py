"""Combine a recipe with the catalog into requirements for the resolvers. Looks nothing up."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder import catalog
from imagebuilder.catalog import Component, Selection
from imagebuilder.core import platforms
from imagebuilder.debian import versions
from imagebuilder.recipe import Places, Recipe

if TYPE_CHECKING:
    from imagebuilder.recipe.requirements import Demand, FileDemands

# Programs that unpack Debian's source archives, besides gzip, which is essential.
_UNPACKERS = frozenset({"xz-utils", "bzip2"})
# Components that Python packages are compiled against, besides Python and what they require as wheels.
_MPIS = ("openmpi", "mpich")
_CUDA = ("cuda", "cudnn", "nccl", "nvcc")


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """A pin, and the package whose version it fixes: a Python distribution or a Debian package."""

    pin: str
    value: str
    package: str

    @property
    def requirement(self) -> str:
        """The pin as a Python requirement for a prefix: `9.10` also accepts 9.10.2.21."""
        version = Version(self.value)
        exact = version.is_prerelease or version.local or version.is_postrelease
        return f"{self.package}=={self.value}" + ("" if exact else ".*")


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """The requirements for compiling one component.

    Attributes:
        component: its name.
        value: its pin.
        debian, sdist: the Debian source package or the Python distribution that it is compiled from; both
            empty if only upstream has its source.
        packages: Debian packages of the root that it is compiled in.
        wheels: Python requirements of that root.
        against: compiled components of that root.

    """

    component: str
    value: str
    debian: str
    sdist: str
    packages: tuple[str, ...]
    wheels: tuple[str, ...]
    against: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CompileRequest(BuildRequest):
    """The requirements for compiling a Python package, which becomes a wheel.

    Attributes:
        requirement: what the recipe asks for, with its version; `value` is that version's specifier.
        matched: wheels that are compiled against only in the image's version, by name.
        patches: files of patches and their sha256.

    """

    requirement: str
    matched: tuple[str, ...]
    patches: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProjectRequest:
    """The user's own package: its name, what it is built with, and the extras of it that the image has."""

    name: str
    requires: tuple[str, ...]
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ArchivePin(Pinned):
    """A pin whose Debian package is not in the distribution's archive; its version ends with `ending`."""

    archive: str
    ending: str


@dataclass(frozen=True, kw_only=True)
class LinkedDeb:
    """A Debian package of a component that a pinned framework loads from a wheel: their versions must match.

    Attributes:
        wheel: the Debian package's version, as a pin of the wheel.
        package: the Debian package.
        place: the recipe's key that requests the Debian package: `pins.nccl`, `apt: libnccl2`.

    """

    wheel: Pinned
    package: str
    place: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that determines a lock.

    Attributes:
        recipe: the recipe's name, for messages.
        distribution, suite, architecture: the base, by Debian's names (`debian`, `trixie`, `amd64`).
        python: major.minor of the image's Python.
        wheel_pins: pins that wheels from an index provide.
        requirements: Python requirements besides the pins.
        pip: those of them that stand in the recipe, in its order, for messages.
        owners: normalised distribution name, and the component that requires it.
        overrides: pins of wheels to force.
        deb_pins: pins that Debian packages provide.
        packages: Debian packages, `name` or `name=version`, sorted.
        sections: sections of the archive besides those of every image, such as `non-free`.
        builds: components to compile.
        linked: Debian packages of components that pinned frameworks load from wheels.
        files: what the recipe's requirement files ask for.
        project: the user's own package: how it is built.
        selection: the recipe and its components, for messages and limits.

    """

    recipe: str
    distribution: str
    suite: str
    architecture: str
    python: str
    wheel_pins: tuple[Pinned, ...]
    requirements: tuple[str, ...]
    pip: tuple[str, ...]
    owners: tuple[tuple[str, str], ...]
    overrides: tuple[str, ...]
    deb_pins: tuple[Pinned, ...]
    packages: tuple[str, ...]
    sections: tuple[str, ...] = ()
    builds: tuple[BuildRequest, ...] = ()
    linked: tuple[LinkedDeb, ...] = ()
    files: tuple[FileDemands, ...] = ()
    project: ProjectRequest | None = None
    selection: Selection = field(repr=False, compare=False)

    @property
    def places(self) -> Places:
        """The places of the recipe's keys."""
        return self.selection.places

    def place_of(self, linked: LinkedDeb) -> str:
        """Return the place of the key that requests such a Debian package."""
        if linked.place.startswith("pins."):
            return self.places.of("pins", linked.wheel.pin)
        return self.places.of_package(linked.package)

    @property
    def of_wheels(self) -> tuple[str, ...]:
        """All requirements on wheels: pins, other requirements, and versions of Debian packages."""
        pins = (*self.wheel_pins, *(linked.wheel for linked in self.linked))
        return (*(pin.requirement for pin in pins), *self._free(self.requirements))

    def _free(self, requirements: Iterable[str]) -> tuple[str, ...]:
        """Leave out requirements on packages of forced pins: only the pin counts there."""
        forced = {canonicalize_name(pin.package) for pin in self.forced}
        return tuple(text for text in requirements if canonicalize_name(Requirement(text).name) not in forced)

    @property
    def forced(self) -> tuple[Pinned, ...]:
        """The pins to force, as pins of wheels, also if a Debian package provides the component."""
        by_apt = (linked.wheel for linked in self.linked if linked.place.startswith("pins."))
        return tuple(pin for pin in (*self.wheel_pins, *by_apt) if pin.pin in self.overrides)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The limits that requirement files set to packages which something else asks for."""
        found = {demand.requirement for file in self.files for demand in file.demands if demand.constraint}
        return self._free(sorted(found))

    @property
    def from_files(self) -> dict[str, Demand]:
        """Return the first demand of a requirement file for each requirement in it."""
        found: dict[str, Demand] = {}
        for file in self.files:
            for demand in file.demands:
                found.setdefault(demand.requirement, demand)
        return found

    @property
    def hashed(self) -> dict[tuple[str, str], tuple[Demand, ...]]:
        """Return the demands that allow certain files alone, by name and version of the package."""
        found: dict[tuple[str, str], tuple[Demand, ...]] = {}
        for demand in (demand for file in self.files for demand in file.demands if demand.hashes):
            key = (demand.name, str(demand.exact))
            found[key] = (*found.get(key, ()), demand)
        return found

    @property
    def compiles(self) -> tuple[CompileRequest, ...]:
        """The packages that are compiled to wheels."""
        return tuple(item for item in self.builds if isinstance(item, CompileRequest))

    @property
    def components(self) -> dict[str, str]:
        """The component of each wheel that a component requires by name."""
        return {canonicalize_name(package): component for package, component in self.owners}

    def checksum(self) -> str:
        """Return the hex sha256 of everything that a lock is made from. A lock with another one is stale."""
        asked = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        del asked["selection"]  # the recipe has its own checksum, and the other fields cover the catalog
        # Fields that most recipes do not use count only if they are used.
        asked["files"] = [(file.file, file.asked, file.limits) for file in self.files]
        asked["catalog"] = self.selection.recorded
        for key in ("sections", "builds", "linked", "files", "project", "catalog"):
            if not asked[key]:
                del asked[key]
        text = json.dumps(asked, sort_keys=True, default=dataclasses.asdict)
        return hashlib.sha256(f"{self.selection.recipe.checksum()}\n{text}".encode()).hexdigest()


def request(selection: Selection, platform: str = "") -> Request:
    """Make the request for one of the recipe's platforms, by default its first."""
    recipe, parts = selection.recipe, selection.parts
    wheel_pins, deb_pins, packages, requirements = [], [], set(recipe.apt), _of_index(recipe)
    platform = platform or recipe.platforms[0]
    files = selection.demands.get(platform, ())
    requirements += [text for file in files for text in file.asked]
    owners: dict[str, str] = {}
    for part in parts:
        name, provider, version = part.component.name, part.provider, part.pin
        if provider.wheel and canonicalize_name(provider.wheel) not in recipe.compiles:
            package = catalog.fill(provider.wheel, version)
            wheel_pins.append(Pinned(pin=name, value=version, package=package))
            owners[package] = name
        for extra in part.wheels:
            requirements.append(extra)
            owners.setdefault(Requirement(extra).name, name)
        packages.update(part.apt)
        if part.apt and version and not part.built and not provider.wheel:
            deb_pins.append(_deb_pin(part, part.apt[0], recipe.pins))
    return Request(
        recipe=recipe.name,
        distribution=recipe.distribution,
        suite=recipe.suite,
        architecture=platforms.architecture(platform),
        python=recipe.python_minor,
        wheel_pins=tuple(wheel_pins),
        requirements=tuple(sorted(set(requirements))),
        pip=recipe.pip,
        owners=tuple(sorted(owners.items())),
        overrides=tuple(sorted(recipe.override)),
        deb_pins=tuple(deb_pins),
        packages=tuple(sorted(packages)),
        sections=tuple(sorted({section for part in parts for section in part.provider.sections})),
        builds=_builds(selection),
        linked=tuple(_linked(selection)),
        files=files,
        project=_project(selection),
        selection=selection,
    )


def _of_index(recipe: Recipe) -> list[str]:
    """Return the recipe's Python packages that come as wheels."""
    return [text for text in recipe.pip if canonicalize_name(Requirement(text).name) not in recipe.compiles]


def _compiles(selection: Selection) -> Iterator[CompileRequest]:
    """Yield the packages that become wheels, in the recipe's order."""
    recipe, by_name = selection.recipe, selection.by_name
    asked: dict[str, str] = {canonicalize_name(Requirement(text).name): text for text in recipe.pip}
    for part in selection.parts:
        if part.provider.wheel and part.pin:
            pin = Pinned(pin=part.component.name, value=part.pin, package=part.provider.wheel)
            asked.setdefault(canonicalize_name(part.provider.wheel), pin.requirement)
    matched = {catalog.fill(part.provider.wheel, part.pin) for part in selection.parts if part.provider.wheel}
    for entry in recipe.compiled:
        # What is compiled for GPUs finds nvcc, headers and link names, also if the image does without them.
        parts = (selection.with_devel() if entry.cuda else selection).by_name
        used = [parts[name] for name in (*_MPIS, *(_CUDA if entry.cuda else ())) if name in parts]
        packages = {package for part in used for package in part.apt} | {
            *entry.apt,
            f"python{recipe.python_minor}-dev",
        }
        packages |= set(by_name["python"].apt) | _compiler(selection)
        packages |= {"patch"} if entry.patches else set()
        devel = {wheel for part in used if entry.cuda for wheel in _wheels_of(part)}
        yield CompileRequest(
            component=entry.name,
            value=str(Requirement(asked[entry.name]).specifier),
            debian="",
            sdist=entry.name,
            packages=tuple(sorted(packages)),
            wheels=tuple(sorted({*entry.requires, *devel})),
            against=tuple(name for name in _MPIS if name in by_name and by_name[name].built),
            requirement=asked[entry.name],
            matched=tuple(sorted({canonicalize_name(name) for name in (*matched, "numpy")})),
            patches=tuple((patch.file, patch.sha256) for patch in entry.patches),
        )


def _wheels_of(part: catalog.Part) -> Iterator[str]:
    """Yield the wheels of a component as requirements: those that come with it, and its own."""
    yield from part.wheels
    if part.provider.wheel and part.pin:
        package = catalog.fill(part.provider.wheel, part.pin)
        yield Pinned(pin=part.component.name, value=part.pin, package=package).requirement


def _project(selection: Selection) -> ProjectRequest | None:
    asked, package = selection.recipe.package, selection.package
    if asked is None or package is None:
        return None
    return ProjectRequest(name=package.name, requires=package.requires, extras=asked.extras)


def family(component: Component) -> frozenset[str]:
    """Name all distributions that the catalog knows as providers of a component, whatever the recipe pins."""
    return frozenset(
        canonicalize_name(catalog.fill(provider.wheel, provider.when.get(component.name, "")))
        for provider in component.providers
        if provider.wheel
    )


def _builds(selection: Selection) -> tuple[BuildRequest, ...]:
    """Return the components to compile, each after those that it is compiled against."""
    parts, by_name = selection.parts, selection.by_name
    base = {package for part in parts if part.component.name == "python" for package in part.apt}
    compiler = _compiler(selection)
    requests = []
    for part in parts:
        build = part.built
        if build is None:
            continue
        against = tuple(name for name in build.against if name in by_name)
        beside = {package for name in against for package in by_name[name].apt}
        needs = {catalog.fill(package, part.pin) for package in build.needs}
        needs |= base if build.sdist or build.wheels else set()
        needs |= set() if build.sdist else _UNPACKERS
        requests.append(
            BuildRequest(
                component=part.component.name,
                value=part.pin,
                debian=build.debian,
                sdist=build.sdist,
                packages=tuple(sorted({*needs, *part.apt, *compiler, *beside})),
                wheels=tuple(catalog.fill(text, part.pin) for text in build.wheels),
                against=tuple(name for name in against if by_name[name].built),
            )
        )
    # Dependencies are one level deep: a library, and components compiled against it.
    requests.sort(key=lambda item: (bool(item.against), item.component))
    return (*requests, *_compiles(selection))


def _compiler(selection: Selection) -> set[str]:
    """Return the packages of the pinned compiler, or else of the suite's default."""
    gcc = selection.by_name.get("gcc")
    return set(gcc.apt) if gcc else {"gcc", "g++", "libc6-dev", "make"}


def _deb_pin(part: catalog.Part, package: str, pins: Mapping[str, str]) -> Pinned:
    name, provider = part.component.name, part.provider
    if not provider.archive:
        return Pinned(pin=name, value=part.pin, package=package)
    endings = [catalog.fill(text, pins[other]) for other, text in provider.built_for.items() if other in pins]
    return ArchivePin(
        pin=name, value=part.pin, package=package, archive=provider.archive, ending="".join(endings)
    )


def _linked(selection: Selection) -> Iterator[LinkedDeb]:
    """Yield Debian packages, pinned or with a version, of components that frameworks load from wheels."""
    recipe, components, chosen = selection.recipe, selection.components, selection.by_name
    loaded = {name for pin in recipe.pins if pin in components for name in components[pin].loads}
    for name in sorted(loaded):
        wheel = next(iter(selection.wheels_of(name)), "")
        if not wheel:
            continue
        if name in chosen and chosen[name].provider.archive:
            part = chosen[name]
            yield LinkedDeb(
                wheel=Pinned(pin=name, value=part.pin, package=wheel),
                package=catalog.fill(part.provider.apt[0], part.pin),
                place=f"pins.{name}",
            )
        patterns = [p.apt[0] for p in components[name].providers if p.archive]
        for asked in recipe.apt:
            package, _, version = asked.partition("=")
            if version and any(catalog.names_package(pattern, package) for pattern in patterns):
                yield LinkedDeb(
                    wheel=Pinned(pin=name, value=versions.upstream(version), package=wheel),
                    package=package,
                    place=f"apt: {package}",
                )
