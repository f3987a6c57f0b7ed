"""Resolve packages of `compile:`: their sources, and what they are compiled with and against."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.errors import ConflictError, FetchError, Problem
from imagebuilder.host.settings import local_path
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Archives, Build, Compiled, Deb, LockedPatch, Source, Wheel
from imagebuilder.resolve import agreement, debian, python, sdist
from imagebuilder.resolve.request import CompileRequest, Request
from imagebuilder.resolve.uv import File, SolveRequest, Target, UnsolvableError, solve
from imagebuilder.resolve.uv import sdist as find_sdist

_LARGEST = 2 << 30
_PIECE = 1 << 20
# Any C library: sources are for all of them.
_ANY_GLIBC = "2.36"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A source that fits, and what it says of itself: see `Compiled` and `Source` of the lock."""

    source: Source
    depends: tuple[str, ...]
    requires: tuple[str, ...]


def prepare(
    request: Request, site: Site, keep: Sequence[Build], upgrade: Collection[str] | None
) -> dict[str, Prepared]:
    """Find the source of every package to compile, and read what it requires. Executes nothing.

    Args:
        request: the request.
        site: how to reach the index.
        keep: builds of the present lock, whose versions stay if they fit.
        upgrade: as for `make_locks`.

    Raises:
        ConflictError: a package has no source that fits, or a source that cannot be unpacked safely.
        FetchError: the index cannot be reached.

    """
    old = {build.component: build for build in keep if build.compiled}
    problems: list[Problem] = []
    found: dict[str, Prepared] = {}
    for asked in request.compiles:
        moves = upgrade is not None and (not upgrade or asked.component in upgrade)
        kept = old.get(asked.component)
        try:
            found[asked.component] = _prepare(asked, request, site, None if moves else kept)
        except ConflictError as error:
            problems += error.problems
    if problems:
        raise ConflictError.of(problems)
    return found


def wanting(request: Request, prepared: Mapping[str, Prepared]) -> Request:
    """Return the request with what the compiled packages require of the image's wheels."""
    more = {text for item in prepared.values() for text in item.depends}
    return replace(request, requirements=tuple(sorted({*request.requirements, *more}))) if more else request


@dataclass(frozen=True, kw_only=True)
class Image:
    """What packages are compiled against: an image's Debian packages and wheels, both resolved."""

    debs: Sequence[Deb]
    wheels: Sequence[Wheel]


def resolve(
    request: Request, prepared: Mapping[str, Prepared], image: Image, site: Site, keep: Sequence[Build] = ()
) -> tuple[Build, ...]:
    """Resolve what each package is compiled in: Debian packages, and wheels of the image and others.

    Args:
        request: the request.
        prepared: the sources, from `prepare`.
        image: what they are compiled against.
        site: how to reach archives and indexes.
        keep: builds of the present lock; those whose surroundings are the same stay.

    Raises:
        ConflictError: a build requirement contradicts the image, or cannot be met.
        FetchError: an archive or index cannot be reached.

    """
    old = {build.component: build for build in keep if build.compiled}
    builds: list[Build] = []
    problems: list[Problem] = []
    for asked in request.compiles:
        work = _Work(asked=asked, request=request, image=image, site=site, kept=old.get(asked.component))
        try:
            builds.append(work.build(prepared[asked.component]))
        except ConflictError as error:
            problems += error.problems
    if problems:
        raise ConflictError.of(problems)
    return tuple(builds)


def _place(request: Request, asked: CompileRequest) -> str:
    names = [entry.name for entry in request.selection.recipe.compiled]
    return request.places.of("compile", names.index(asked.component))


def _prepare(asked: CompileRequest, request: Request, site: Site, kept: Build | None) -> Prepared:
    requirement = Requirement(asked.requirement)
    if kept and kept.compiled and not requirement.extras and agreement.fits(kept, asked):
        own = set(kept.compiled.requires) - set(asked.wheels)
        return Prepared(source=kept.sources[0], depends=kept.compiled.depends, requires=tuple(sorted(own)))
    target = Target(python=request.python, glibc=_ANY_GLIBC, architecture=request.architecture, site=site)
    try:
        version, file = find_sdist(f"{requirement.name}{requirement.specifier}", target)
    except UnsolvableError as error:
        raise ConflictError(
            f"{requirement.name}{requirement.specifier} has no source distribution on the package index",
            where=_place(request, asked),
            hint=str(error)[:200],
        ) from None
    with tempfile.TemporaryDirectory(prefix="imagebuilder-") as folder:
        path = Path(folder) / "source.tar.gz"
        file = _fetch(file, path, site)
        try:
            read = sdist.read(path)
        except sdist.UnsafeError as error:
            raise ConflictError(
                f"{file.name} {error}",
                where=_place(request, asked),
                hint="this source distribution cannot be compiled here; take another version",
            ) from None
    variables = agreement.environment(request.python, request.architecture)
    counted = [
        Requirement(text)
        for text in read.depends
        if any(agreement.counts(Requirement(text), variables, extra) for extra in ("", *requirement.extras))
    ]
    # The package itself may be among them, with other extras.
    named = [item for item in counted if canonicalize_name(item.name) != asked.component]
    return Prepared(
        source=Source(
            name=asked.component, version=version, file=file.name, size=file.size, sha256=file.sha256
        ),
        depends=tuple(sorted({_plain(item) for item in named})),
        requires=tuple(
            sorted(
                {
                    _plain(item)
                    for item in map(Requirement, read.requires)
                    if agreement.counts(item, variables)
                }
            )
        ),
    )


def _plain(requirement: Requirement) -> str:
    """Write a requirement without its marker, which was evaluated."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def _fetch(file: File, place: Path, site: Site) -> File:
    """Download a source to read it, and measure it."""
    digest, size = hashlib.sha256(), 0
    try:
        with place.open("wb") as out:
            for piece in _pieces(file.url, site):
                digest.update(piece)
                size += len(piece)
                if size > _LARGEST:
                    raise FetchError(f"{file.name} is larger than {_LARGEST >> 30} GiB")
                out.write(piece)
    except (OSError, ValueError) as error:
        from imagebuilder.host import http  # late: it loads requests

        raise FetchError(
            f"{file.name} cannot be fetched: {http.in_words(error)}", hint="check the network and the index"
        ) from error
    if file.sha256 and digest.hexdigest() != file.sha256:
        raise FetchError(
            f"{file.name} is not the file that the index names: its sha256 is {digest.hexdigest()}",
            hint="a mirror or a proxy may hold another file",
        )
    return File(name=file.name, url=file.url, sha256=digest.hexdigest(), size=size)


def _pieces(url: str, site: Site) -> Iterator[bytes]:
    path = local_path(url)
    if path is not None:
        with path.open("rb") as source:
            while data := source.read(_PIECE):
                yield data
        return
    with (
        site.session() as session,
        session.get(url, headers={"Accept-Encoding": "identity"}, stream=True) as answer,
    ):
        answer.raise_for_status()
        yield from answer.iter_content(_PIECE)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """One package to compile, and what there is to compile it with; `kept` is its present build."""

    asked: CompileRequest
    request: Request
    image: Image
    site: Site
    kept: Build | None

    @property
    def target(self) -> Target:
        glibc = debian.glibc(self.image.debs)
        return Target(
            python=self.request.python, glibc=glibc, architecture=self.request.architecture, site=self.site
        )

    @property
    def wheels(self) -> dict[str, Wheel]:
        """The image's wheels by name."""
        return {wheel.name: wheel for wheel in self.image.wheels}

    def build(self, prepared: Prepared) -> Build:
        """Resolve its root."""
        asked = self.asked
        requires = tuple(sorted({*prepared.requires, *asked.wheels}))
        shared, more = self._wheels(requires)
        root, archives = self._root()
        in_image = {deb.sha256 for deb in self.image.debs}
        texts = self.request.selection.patches
        return Build(
            component=asked.component,
            version=prepared.source.version,
            archives=archives,
            packages=asked.packages,
            system=tuple(deb.name for deb in root if deb.sha256 in in_image),
            debs=tuple(deb for deb in root if deb.sha256 not in in_image),
            wheels=more,
            sources=(prepared.source,),
            compiled=Compiled(
                depends=prepared.depends,
                requires=requires,
                against=shared,
                beside=self._beside(prepared.depends, shared),
                patches=tuple(LockedPatch(file=f, sha256=sha, text=texts[f]) for f, sha in asked.patches),
            ),
        )

    def _root(self) -> tuple[tuple[Deb, ...], Archives]:
        """Return the root's Debian packages: those of the present lock, if the image's are the same."""
        here, kept = {deb.name: deb for deb in self.image.debs}, self.kept
        if (
            kept
            and kept.packages == self.asked.packages
            and set(kept.system) <= set(here)
            and not {deb.name for deb in kept.debs} & set(here)
        ):
            return (*(here[name] for name in kept.system), *kept.debs), dict(kept.archives)
        return debian.resolve_root(self.request, self.asked.packages, self.image.debs, self.site)

    def _clashing(self, requires: Sequence[str]) -> frozenset[str]:
        """Return the wheels of the image that it cannot be compiled with: build tools of another version.

        Raises:
            ConflictError: one of them is what the result is for, such as torch.

        """
        image, names = self.wheels, set()
        problems = []
        for item in map(Requirement, requires):
            name = canonicalize_name(item.name)
            if name not in image or item.specifier.contains(image[name].version, prereleases=True):
                continue
            names.add(name)
            if name in self.asked.matched:
                problems.append(
                    Problem(
                        message=f"{self.asked.component} is compiled with `{item}`, and the image has "
                        f"{name} {image[name].version}",
                        where=_place(self.request, self.asked),
                        hint=f"pin a {name} that both accept, or compile another version",
                    )
                )
        if problems:
            raise ConflictError.of(problems)
        return frozenset(names)

    def _wheels(self, requires: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[Wheel, ...]]:
        """Return the wheels of the image that it is compiled with, by name, and the others."""
        image, free = self.wheels, self._clashing(requires)
        held = _exactly(wheel for name, wheel in sorted(image.items()) if name not in free)
        before = self.kept.wheels if self.kept else ()
        same = _exactly(wheel for wheel in before if wheel.name not in image)
        try:
            try:
                found = solve(SolveRequest(requirements=requires, constraints=(*held, *same)), self.target)
            except UnsolvableError:
                found = solve(SolveRequest(requirements=requires, constraints=held), self.target)
        except UnsolvableError as error:
            raise ConflictError(
                f"what {self.asked.component} is compiled with does not fit the image: {str(error)[:400]}",
                where=_place(self.request, self.asked),
                hint="change `requires` of its entry, or what the image has",
            ) from None
        shared = {name for name in found.versions if name in image and name not in free}
        named = tuple(f"{name}=={version}" for name, version in sorted(found.versions.items()))
        alone = replace(
            self.request,
            wheel_pins=(),
            requirements=named,
            pip=(),
            owners=(),
            overrides=(),
            linked=(),
            files=(),
            builds=(),
        )
        keep = (*image.values(), *before)
        chosen, _ = python.resolve_wheels(alone, self.target.glibc, self.site, keep=keep)
        return tuple(sorted(shared)), tuple(wheel for wheel in chosen if wheel.name not in shared)

    def _beside(self, depends: tuple[str, ...], shared: Collection[str]) -> tuple[str, ...]:
        """Return the image's wheels that its import needs, besides those that are there anyway."""
        if not depends:
            return ()
        held = _exactly(wheel for _, wheel in sorted(self.wheels.items()))
        own = tuple(f"{item.component} ; sys_platform == 'never'" for item in self.request.compiles)
        query = SolveRequest(requirements=depends, constraints=held, overrides=own)
        try:
            needed = set(solve(query, self.target).versions)
        except UnsolvableError:  # forced pins contradict each other
            needed = {canonicalize_name(Requirement(text).name) for text in depends}
        return tuple(sorted((needed & set(self.wheels)) - set(shared)))


def _exactly(wheels: Iterable[Wheel]) -> tuple[str, ...]:
    return tuple(f"{wheel.name}=={wheel.version}" for wheel in wheels)
