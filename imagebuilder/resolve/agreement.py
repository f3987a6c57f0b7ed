"""Check that a lock agrees with its recipe: offline, and without trusting the lock.

The checksum in a lock finds a stale lock, but not an edited one, because anybody can compute it. So
everything that recipe and catalog determine is computed again and compared. What checks each field of a lock:

| field | checked by |
|---|---|
| `format` | `lock.file`, which reads only its own |
| platform of a section, `python`, `base`, order of every list | `lock.rules`, and equal to the recipe's |
| `inputs` | checksum of recipe and catalog (`lock.file.require_in_step`) |
| `recipe` | the recipe's name |
| `base`, `image.name`, `image.digest` or `image.index` | the recipe's base, and the digest if it has one |
| `image.layers`, `env`, `labels`, `user`, `created` | the registry's manifest and config, at the build |
| `image.packages`, `accounts`, `archives` | the layers of the base, at the build |
| `pins` | computed from the packages, and within the recipe's pins |
| `packages` | those that recipe and catalog request, each among the installed |
| `requirements` | the requirement files; of an image that came without them, here the lock decides |
| `overrides` | only pins that the recipe forces, with the versions that the lock has |
| `wheels[].name`, `version`, `file` | each other (`lock.rules`), pins; METADATA at the build |
| `wheels[].component` | requirements; those of METADATA at the build (`closure`) |
| `debs[].name`, `version`, `architecture`, `path` | each other (`lock.rules`), pins; the control file |
| `debs[].archive` | the archives of the base and of the catalog |
| `archives` | the lock decides: they date the image, and say which snapshot to ask |
| an extra or missing package | METADATA and control files at the build (`closure`, `layers.system.debs`) |
| `catalog` | the files in the recipe's folder `catalog` |
| `builds` | components that the recipe compiles, their requests in the catalog |
| `builds[].compiled` | the recipe's `compile:`, its patches; what the source requires, at the build |
| `project.name`, `requires` | the pyproject.toml of the user's package |
| `project.wheels` | its build requirements; METADATA at the build (`closure`) |
| `layers[].key` | keys of the plan; its digest by the bytes, its diffID by `build --verify` |
| `sha256`, `size` | the bytes: the lock decides, but an index or archive must have them under that name |
| versions of packages that nobody pins | the bytes: the lock decides |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from imagebuilder import catalog
from imagebuilder.catalog import Selection
from imagebuilder.core import platforms
from imagebuilder.debian import suites
from imagebuilder.debian import versions as debversion
from imagebuilder.errors import InputError, LockError, Problem
from imagebuilder.lock import model as locks
from imagebuilder.lock.model import Build, Lock, RequirementSet, Wheel
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import archivepins, basefit, debpins
from imagebuilder.resolve.request import ArchivePin, BuildRequest, CompileRequest, Request, request

OF_PYTHON = "python"  # the component of wheels that no other component requires

Problems = Iterator[tuple[str, str]]
"""Key path and message of each problem."""


def require(selection: Selection, lock: Lock, where: str) -> None:
    """Refuse a lock that does not agree with its recipe.

    Args:
        selection: the recipe, with its components.
        lock: the lock of one of its platforms; its checksum agrees with the recipe.
        where: the lock's file, for messages.

    Raises:
        LockError: every difference, each with its key.

    """
    hint = locks.again(where)
    problems = [
        Problem(message=text, where=f"{where}: {key}", hint=hint) for key, text in _problems(selection, lock)
    ]
    if problems:
        raise LockError.of(problems)


def pin_versions(selection: Selection, lock: Lock) -> dict[str, str]:
    """Return the full version of every component in the image, pinned or not.

    Components whose package is not in the lock are left out.
    """
    debs = {package.name: package.version for package in lock.installed}
    wheels = {wheel.name: wheel.version for wheel in lock.wheels}
    versions = {build.component: build.version for build in lock.builds if not build.compiled}
    compiled = {name: build.version for name, build in lock.compiled.items()}
    for part in selection.parts:
        provider, name = part.provider, part.component.name
        if part.built:
            continue
        if provider.wheel:
            package = canonicalize_name(catalog.fill(provider.wheel, part.pin))
            version = compiled.get(package, wheels.get(package))
        else:
            version = debs.get(catalog.fill(provider.real, part.pin) or part.apt[0])
            version = debversion.upstream(version) if version else None
        if version is not None:
            versions[name] = version
    return versions


def environment(python: str, architecture: str) -> dict[str, str]:
    """Return the variables for markers of requirements, for a Python on one of our platforms."""
    return {
        "implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix",
        "sys_platform": "linux", "platform_system": "Linux",
        "platform_machine": platforms.MACHINES[platforms.of(architecture)],
        "python_version": python, "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0", "platform_release": "", "platform_version": "",
    }  # fmt: skip


def counts(requirement: Requirement, variables: Mapping[str, str], extra: str = "") -> bool:
    """Return whether a requirement applies: it has no marker, or the marker is true."""
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate({**variables, "extra": extra})
    except (UndefinedComparison, UndefinedEnvironmentName, ValueError):
        return False  # a meaningless comparison, such as of a version with a word


def _problems(selection: Selection, lock: Lock) -> Problems:
    recipe, wanted = selection.recipe, request(selection, platforms.of(lock.architecture))
    yield from _head(recipe, lock, wanted)
    yield from _base(recipe, lock)
    yield from _pins(lock, wanted)
    yield from _packages(lock, wanted)
    yield from _archives(lock, wanted)
    yield from _files(recipe, lock, wanted)
    yield from _required("wheels", lock.wheels, (*wanted.of_wheels, *lock.depends), lock)
    yield from _components("wheels", lock.wheels, wanted.components)
    yield from _overrides(lock, wanted)
    yield from _builds(lock, wanted)
    yield from _project(lock, wanted)
    if lock.catalog != selection.recorded:
        yield "catalog", "is not what the files in the recipe's folder `catalog` say"


def _head(recipe: Recipe, lock: Lock, wanted: Request) -> Problems:
    pairs = (("recipe", lock.recipe, recipe.name), ("python", lock.python, wanted.python))
    for key, has, asked in pairs:
        if has != asked:
            yield key, f"is {has}, and the recipe asks for {asked}"


def _base(recipe: Recipe, lock: Lock) -> Problems:
    if recipe.image is None:
        if lock.base != recipe.base:
            yield "base", f"is {lock.base}, and the recipe asks for {recipe.base}"
        if lock.image:
            yield "image", f"is {lock.image.name}, and the recipe's base is {recipe.base}"
        return
    try:
        suites.facts(*lock.base.split(":", 1))
    except (InputError, TypeError):
        yield "base", f"`{lock.base}` is not a distribution and suite that images are made of"
    if lock.image is None:
        yield "image", f"is missing, and the recipe's base is {recipe.image.name}"
        return
    if lock.image.name != recipe.image.name:
        yield "image.name", f"is {lock.image.name}, and the recipe's base is {recipe.image.name}"
    if recipe.image.pinned not in {"", lock.image.digest, lock.image.index}:
        yield "image.digest", f"is {lock.image.digest}, and the recipe asks for {recipe.image.pinned}"


def _pins(lock: Lock, wanted: Request) -> Problems:
    """Compare `pins` with the packages, and the packages with the recipe's pins."""
    versions = pin_versions(wanted.selection, lock)
    for name in sorted(versions.keys() | lock.pins.keys()):
        has, is_there = lock.pins.get(name), versions.get(name)
        if has is None:
            yield "pins", f"does not name {name}, and the lock's packages have {name} {is_there}"
        elif is_there is None:
            yield f"pins.{name}", f"is {has}, and no package of the lock provides {name}"
        elif has != is_there:
            yield f"pins.{name}", f"is {has}, and the lock's packages have {name} {is_there}"
    debs = {package.name: package.version for package in lock.installed}
    for pin in debpins.all_pins(wanted):
        version = debversion.upstream(debs.get(pin.package, ""))
        if not isinstance(pin, ArchivePin) and not catalog.matches(version, pin.value):
            yield (
                f"pins.{pin.pin}",
                f'the recipe asks for {pin.pin} "{pin.value}", and {pin.package} is {version or "missing"}',
            )
    refined = archivepins.refined(wanted, {wheel.name: wheel.version for wheel in lock.wheels})
    for archived in archivepins.pins(refined):
        if not archivepins.are_met(replace(refined, deb_pins=(archived,)), lock.installed):
            yield (
                f"pins.{archived.pin}",
                f'the recipe asks for {archived.pin} "{archived.value}", and {archived.package} is not that',
            )


def _packages(lock: Lock, wanted: Request) -> Problems:
    """Check that `packages` are the requested ones, and that each is installed."""
    if lock.packages != wanted.packages:
        more = sorted(set(lock.packages) ^ set(wanted.packages))
        yield "packages", f"is not what recipe and catalog ask for: {', '.join(more)}"
    versions = {package.name: package.version for package in lock.installed}
    distribution, _, _ = lock.base.partition(":")
    known = suites.known().get(distribution)
    for package in sorted({"libc6", *(known.packages if known else ()), *wanted.packages}):
        name, _, version = package.partition("=")
        if name not in versions:
            yield "debs", f"does not have `{name}`, which every image needs or the recipe asks for"
        elif version and versions[name] != version:
            yield "debs", f"has {name} {versions[name]}, and the recipe asks for {version}"


def _archives(lock: Lock, wanted: Request) -> Problems:
    known = {*(lock.image.archives if lock.image else ()), ""}
    known |= {pin.archive for pin in archivepins.pins(wanted)}
    for number, deb in enumerate(lock.debs):
        if deb.archive not in known:
            yield f"debs[{number}].archive", f"neither the base nor a pin knows the archive {deb.archive}"


def _files(recipe: Recipe, lock: Lock, wanted: Request) -> Problems:
    """Compare what requirement files ask for, limit and allow with what the lock has."""
    if [item.file for item in lock.requirements] != [entry.file for entry in recipe.requirement_files]:
        yield "requirements", "does not list the requirement files of the recipe"
    for number, (item, is_now) in enumerate(zip(lock.requirements, recorded(wanted), strict=False)):
        if item != is_now:
            yield f"requirements[{number}]", f"is not what {is_now.file} asks for"
    hashed = wanted.hashed
    from_files = wanted.from_files
    limits = [(Requirement(text), from_files[text].place) for text in wanted.constraints]
    for number, wheel in enumerate(lock.wheels):
        for limit, place in limits:
            if limit.name == wheel.name and not limit.specifier.contains(wheel.version, prereleases=True):
                yield f"wheels[{number}].version", f"is {wheel.version}, and {place} limits it: `{limit}`"
        for demand in hashed.get((wheel.name, wheel.version), ()):
            if wheel.sha256 not in demand.hashes:
                yield f"wheels[{number}].sha256", f"is not among the hashes of {demand.place}"


def recorded(wanted: Request) -> tuple[RequirementSet, ...]:
    """Return what a lock keeps of the requirement files."""
    return tuple(
        RequirementSet(file=item.file, asked=item.asked, limits=item.limits) for item in wanted.files
    )


def _required(key: str, wheels: Sequence[Wheel], requirements: Iterable[str], lock: Lock) -> Problems:
    """Yield requirements that no wheel satisfies."""
    variables = environment(lock.python, lock.architecture)
    versions = {wheel.name: wheel.version for wheel in wheels}
    for text in requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if not counts(requirement, variables):
            continue
        if name not in versions:
            yield key, f"does not have {name}, and `{text}` is asked for"
        elif not requirement.specifier.contains(versions[name], prereleases=True):
            yield key, f"has {name} {versions[name]}, and `{text}` is asked for"


def _components(key: str, wheels: Sequence[Wheel], components: Mapping[str, str]) -> Problems:
    known = {*components.values(), OF_PYTHON}
    for number, wheel in enumerate(wheels):
        owner = components.get(wheel.name)
        if wheel.component not in ({owner} if owner else known):
            wanted = owner or " or ".join(sorted(known))
            yield f"{key}[{number}].component", f"is {wheel.component}, and {wheel.name} belongs to {wanted}"


def _overrides(lock: Lock, wanted: Request) -> Problems:
    """Check that the lock's overrides are the recipe's. Their reasons are only for people."""
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    expected = [
        (pin.pin, pin.value, versions.get(canonicalize_name(pin.package), "")) for pin in wanted.forced
    ]
    below = basefit.overrides(wanted.selection, lock.image) if lock.image else ()
    expected += [(item.pin, item.wanted, item.locked) for item in below]
    if [(item.pin, item.wanted, item.locked) for item in lock.overrides] != expected:
        names = ", ".join(name for name, _, _ in expected) or "nothing"
        yield "overrides", f"is not what the recipe forces, which is {names}"
        return
    start = len(lock.overrides) - len(below)
    if lock.overrides[start:] != below:
        yield "overrides", "gives other reasons than the base"
    askers = tuple(f"{wheel.name} {wheel.version} requires " for wheel in lock.wheels)
    for number, item in enumerate(lock.overrides[:start]):
        if not all(text.startswith(askers) for text in item.contradicts):
            yield f"overrides[{number}].contradicts", "names a wheel that the lock does not have"


def _builds(lock: Lock, wanted: Request) -> Problems:
    asked = wanted.builds if lock.image is None else ()
    components = [item.component for item in asked]
    if [build.component for build in lock.builds] != components:
        yield "builds", f"is not what the recipe compiles, which is {', '.join(components) or 'nothing'}"
        return
    for number, (build, item) in enumerate(zip(lock.builds, asked, strict=True)):
        yield from _build(f"builds[{number}]", build, item, lock)


def _project(lock: Lock, wanted: Request) -> Problems:
    has, asked = lock.project, wanted.project
    if has is None or asked is None:
        if has is not None:
            yield "project", "is there, and the recipe has no project"
        if asked is not None:
            yield "project", f"is missing, and the recipe's project is {asked.name}"
        return
    for key in ("name", "requires"):
        if getattr(has, key) != getattr(asked, key):
            yield f"project.{key}", "is not what the pyproject.toml of your package says"
    yield from _required("project.wheels", has.wheels, asked.requires, lock)
    yield from _components("project.wheels", has.wheels, {})


def fits(build: Build, asked: BuildRequest) -> bool:
    """Return whether a build is of the kind and the version that a recipe asks for."""
    if isinstance(asked, CompileRequest):
        return build.compiled is not None and SpecifierSet(asked.value).contains(
            build.version, prereleases=True
        )
    return build.compiled is None and catalog.matches(build.version, asked.value)


def _compiled(key: str, build: Build, asked: CompileRequest, lock: Lock) -> Problems:
    compiled = build.compiled
    if compiled is None:
        return
    if tuple((patch.file, patch.sha256) for patch in compiled.patches) != asked.patches:
        yield f"{key}.compiled.patches", "are not those of the recipe"
    if not set(asked.wheels) <= set(compiled.requires):
        yield f"{key}.compiled.requires", "lacks what the recipe names under `requires`"
    against = tuple(wheel for wheel in lock.wheels if wheel.name in compiled.against)
    yield from _required(f"{key}.wheels", (*against, *build.wheels), compiled.requires, lock)
    for number, wheel in enumerate(build.wheels):
        if wheel.name in asked.matched and any(wheel.name == other.name for other in lock.wheels):
            yield f"{key}.wheels[{number}]", f"has {wheel.name}, and it has to be the image's own"


def _build(key: str, build: Build, asked: BuildRequest, lock: Lock) -> Problems:
    if not fits(build, asked):
        yield f"{key}.version", f'is {build.version}, and the recipe asks for "{asked.value}"'
    if build.packages != asked.packages:
        yield f"{key}.packages", "is not what recipe and catalog ask for"
    there = {*build.system, *(deb.name for deb in build.debs)}
    distribution, _, _ = lock.base.partition(":")
    known = suites.known().get(distribution)
    for package in sorted({"libc6", *(known.packages if known else ()), *asked.packages}):
        if package.partition("=")[0] not in there:
            yield f"{key}.debs", f"does not have `{package}`, which the build needs"
    for number, deb in enumerate(build.debs):
        if deb.archive:
            yield f"{key}.debs[{number}].archive", f"a suite has no archive {deb.archive}"
    if isinstance(asked, CompileRequest):
        yield from _compiled(key, build, asked, lock)
    else:
        yield from _required(f"{key}.wheels", build.wheels, asked.wheels, lock)
    yield from _components(f"{key}.wheels", build.wheels, {})
    if len(build.sources) != 1 or not _is_source(build, asked, lock):
        yield f"{key}.sources", f"is not the one source of {build.component} {build.version}"


def _is_source(build: Build, asked: BuildRequest, lock: Lock) -> bool:
    """Return whether a build's first source is its component's, in its version, from an allowed place."""
    source = build.sources[0]
    if source.origin == "upstream":
        return (source.name, source.version) == (asked.component, build.version)
    if source.origin == "index":
        return (source.name, source.version) == (asked.sdist, build.version)
    distribution, _, _ = lock.base.partition(":")
    known = suites.known().get(distribution)
    return (
        (source.name, debversion.upstream(source.version)) == (asked.debian, build.version)
        and known is not None
        and source.suite in known.suites
    )
