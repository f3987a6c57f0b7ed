"""Resolve the wheels of a lock, for the image's Python and C library, on any host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder.errors import ConflictError, FetchError, Problem
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Override, Wheel
from imagebuilder.resolve import closure, conflicts, newest, ownwheels, wheelfile
from imagebuilder.resolve.request import Request
from imagebuilder.resolve.uv import File, Solution, SolveRequest, Target, UnsolvableError, files, solve

if TYPE_CHECKING:
    from imagebuilder.recipe.requirements import Demand

_PARALLEL = 8
GONE = (
    "lock other versions: imagebuilder lock --upgrade; or name an index or folder that has it in a file for "
    "--site; or build with a store or a cache that has it"
)


def resolve_wheels(
    request: Request,
    glibc: str,
    site: Site,
    keep: Sequence[Wheel] = (),
    upgrade: Collection[str] | None = None,
) -> tuple[tuple[Wheel, ...], tuple[Override, ...]]:
    """Find the wheels of an image, and the pins that were forced against other packages' requirements.

    Args:
        request: the request.
        glibc: version of the base's C library, as in "2.41".
        site: how to reach an index.
        keep: wheels of the present lock; their versions are kept if they still fit.
        upgrade: None keeps all, an empty collection moves all, and names move these pins or distributions.

    Raises:
        ConflictError: pins and requirements cannot be used together; every conflict, with remedies.
        FetchError: the index cannot be reached.

    """
    target = Target(python=request.python, glibc=glibc, architecture=request.architecture, site=site)
    forced = request.forced
    query = SolveRequest(
        requirements=request.of_wheels,
        overrides=(*(pin.requirement for pin in forced), *_never(request)),
        constraints=request.constraints,
    )
    try:
        solution = _solve(request, query, target, _kept(request, keep, upgrade))
    except UnsolvableError as error:
        raise newest.with_whole_set(conflicts.explain(request, target, str(error)), request, target) from None
    offered = files(solution.versions.items(), target)
    wheels = _wheels(request, solution, offered, target, keep)
    overrides = tuple(
        Override(
            pin=pin.pin,
            wanted=pin.value,
            locked=solution.versions[canonicalize_name(pin.package)],
            contradicts=conflicts.contradictions(
                canonicalize_name(pin.package),
                solution.versions[canonicalize_name(pin.package)],
                solution,
                target,
            ),
        )
        for pin in forced
    )
    return wheels, overrides


def available(wheels: Sequence[Wheel], request: Request, glibc: str, site: Site) -> tuple[Wheel, ...]:
    """Return the wheels of another platform whose versions also exist for this one.

    Raises:
        FetchError: the index cannot be reached.

    """
    target = Target(python=request.python, glibc=glibc, architecture=request.architecture, site=site)
    offered = _offered_files([(wheel.name, wheel.version) for wheel in wheels], target) if wheels else {}
    return tuple(wheel for wheel in wheels if wheelfile.best(offered.get(wheel.name, ()), target))


def locate_wheels(
    wheels: Sequence[Wheel], python: str, glibc: str, site: Site, architecture: str = "amd64"
) -> dict[str, tuple[str, ...]]:
    """Return the current URLs of locked wheels by sha256 (`file:` URLs in a wheel folder).

    Raises:
        FetchError: an index cannot be reached, or does not have some of the files any more; names each.

    """
    target = Target(python=python, glibc=glibc, architecture=architecture, site=site)
    if not wheels:
        return {}
    offered = _offered_files([(wheel.name, wheel.version) for wheel in wheels], target)
    urls: dict[str, tuple[str, ...]] = {}
    problems = []
    for wheel in wheels:
        # The hash decides: an index may have other bytes under the same name.
        same = [file for file in offered.get(wheel.name, ()) if file.sha256 == wheel.sha256]
        named = [file for file in offered.get(wheel.name, ()) if file.name == wheel.file]
        if same or (named and not named[0].sha256):
            urls[wheel.sha256] = tuple(file.url for file in same or named)
            continue
        what = "has other bytes under the name" if named else "no longer has"
        problems.append(
            Problem(
                message=f"the package index {what} {wheel.file}",
                hint=GONE,
            )
        )
    if problems:
        raise FetchError.of(problems)
    return urls


def _never(request: Request) -> tuple[str, ...]:
    """Return overrides by which no wheel is looked for of packages that are compiled."""
    return tuple(f"{item.component} ; sys_platform == 'never'" for item in request.compiles)


def _kept(request: Request, keep: Sequence[Wheel], upgrade: Collection[str] | None) -> dict[str, str]:
    """Return the versions to keep: without packages that may move, or that no longer fit the recipe."""
    if upgrade is not None and not upgrade:
        return {}
    packages = {pin.pin: canonicalize_name(pin.package) for pin in request.wheel_pins}
    moving = {packages.get(name, canonicalize_name(name)) for name in upgrade or ()}
    kept = {wheel.name: wheel.version for wheel in keep if wheel.name not in moving}
    for text in (*request.of_wheels, *request.constraints):
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name in kept and not requirement.specifier.contains(kept[name], prereleases=True):
            del kept[name]
    return kept


def _solve(request: Request, query: SolveRequest, target: Target, kept: Mapping[str, str]) -> Solution:
    """Solve, and keep as many versions of the present lock as possible.

    uv's own way (an existing output file) does not work: with several indexes it then searches only one of
    them, and misses wheels of the others.
    """
    direct = {canonicalize_name(Requirement(text).name) for text in query.requirements}
    if direct <= set(kept):
        staying = _solve_constrained(request, query, target, kept)
        if staying:
            return staying
    fresh = _solve_loaded(request, query, target)
    if not kept:
        return fresh
    # New or moving packages get their newest version: first only these, then also their dependencies.
    moving = direct - set(kept)
    with_trees = {name for root in moving for name in fresh.tree(root)}
    for free in (moving, with_trees):
        limits = {**kept, **{name: fresh.versions[name] for name in free}}
        solution = _solve_constrained(request, query, target, limits)
        if solution:
            return solution
    return fresh


def _solve_constrained(
    request: Request, query: SolveRequest, target: Target, limits: Mapping[str, str]
) -> Solution | None:
    lines = tuple(f"{name}=={version}" for name, version in sorted(limits.items()))
    try:
        solution = solve(replace(query, constraints=(*query.constraints, *lines)), target)
    except UnsolvableError:
        return None
    return None if conflicts.idle_pins(request, solution) else solution


def _solve_loaded(request: Request, query: SolveRequest, target: Target) -> Solution:
    """Solve so that every pinned component is loaded by the component that should load it.

    A wheel folder may have another build of the same version (`2.13.0+cpu`), which uv prefers to the index's.
    If that build does not load a pinned component, use the index's.
    """
    solution = solve(query, target)
    idle = conflicts.idle_pins(request, solution)
    builds = [
        f"{loader.package}!={version}"
        for loader, _ in idle
        if "+" in (version := solution.versions[canonicalize_name(loader.package)])
        and "+" not in loader.value
    ]
    if builds:
        other = replace(query, requirements=(*query.requirements, *builds))
        try:
            second = solve(other, target)
        except UnsolvableError:
            second = solution
        if not conflicts.idle_pins(request, second):
            return second
    if idle:
        raise ConflictError.of(conflicts.never_loaded(request, solution, target))
    return solution


def _is_allowed(file: File, demands: Sequence[Demand], *, unknown: bool = True) -> bool:
    """Tell whether requirement files allow a file; `unknown` if the index may leave its hash out."""
    return all(file.sha256 in demand.hashes or (unknown and not file.sha256) for demand in demands)


def _no_wheel(package: str, candidates: Sequence[File], target: Target, recipe: str) -> Problem:
    offers = ", ".join(sorted(item.name for item in candidates)) or "no wheels at all"
    return Problem(
        message=f"{package} has no wheel for Python {target.python} and glibc {target.glibc} on "
        f"{target.architecture}",
        where=recipe,
        hint=f"the index offers {offers}",
    )


def _not_allowed(name: str, version: str, offered: Sequence[File], demands: Sequence[Demand]) -> Problem:
    files = ", ".join(f"{file.name} (sha256:{file.sha256[:12]}...)" for file in offered[:3])
    return Problem(
        message=f"no file of {name} {version} has a hash that is allowed here: the index offers {files}",
        where=" and ".join(demand.place for demand in demands),
        hint="the index has other files than the ones that were locked; if they are right, "
        "write the requirement file again",
    )


def _offered_files(versions: Sequence[tuple[str, str]], target: Target) -> dict[str, tuple[File, ...]]:
    """Return the files of packages by name. uv solves for one version of each."""
    first = dict(versions)
    offered = _offered_once(tuple(first.items()), target)
    others = [(name, version) for name, version in versions if first[name] != version]
    for name, more in _offered_files(others, target).items() if others else ():
        offered[name] = (*offered.get(name, ()), *more)
    return offered


def _offered_once(versions: Sequence[tuple[str, str]], target: Target) -> dict[str, tuple[File, ...]]:
    try:
        return files(versions, target)
    except UnsolvableError:
        pass
    # One missing version makes the whole query fail: query one by one, to name every missing version.
    offered: dict[str, tuple[File, ...]] = {}

    def ask(version: tuple[str, str]) -> None:
        try:
            offered.update(files([version], target))
        except UnsolvableError:
            return

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(ask, versions))
    return offered


def _wheels(
    request: Request,
    solution: Solution,
    offered: Mapping[str, tuple[File, ...]],
    target: Target,
    keep: Sequence[Wheel],
) -> tuple[Wheel, ...]:
    known = {wheel.sha256: wheel for wheel in keep}
    chosen: dict[str, File] = {}
    problems = []
    hashed = request.hashed
    for name, version in sorted(solution.versions.items()):
        everything = ownwheels.first(offered.get(name, ()), target.site)
        demands = hashed.get((name, str(Version(version))), ())
        candidates = tuple(file for file in everything if _is_allowed(file, demands))
        if everything and not candidates:
            problems.append(_not_allowed(name, version, everything, demands))
            continue
        # A locked file stays, even if a better one of the same version has appeared since.
        locked = next((file for file in candidates if file.sha256 in known), None)
        file = locked or wheelfile.best(candidates, target)
        if file is None:
            problems.append(_no_wheel(f"{name} {version}", candidates, target, request.recipe))
            continue
        size = known[file.sha256].size if locked else file.size
        chosen[name] = File(name=file.name, url=file.url, sha256=file.sha256, size=size)
    versions = {name: (solution.versions[name], file) for name, file in chosen.items()}
    problems += ownwheels.displaced(request, versions, target.site)
    if problems:
        raise ConflictError.of(problems)
    session = target.site.session()
    with session, ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        sizes = pool.map(lambda file: wheelfile.measure(file, session), chosen.values())
        measured = dict(zip(chosen, sizes, strict=True))
    problems = [
        _not_allowed(name, solution.versions[name], (file,), demands)
        for name, file in measured.items()
        if not _is_allowed(
            file,
            demands := hashed.get((name, str(Version(solution.versions[name]))), ()),
            unknown=False,
        )
    ]
    if problems:
        raise ConflictError.of(problems)
    owners = closure.owners(solution.versions, request.components, solution.tree)
    return tuple(
        Wheel(
            name=name,
            version=str(Version(solution.versions[name])),
            file=file.name,
            size=file.size,
            sha256=file.sha256,
            component=owners[name],
        )
        for name, file in sorted(measured.items())
    )
