"""Resolve compiled components: their source, and the packages of the root that they are compiled in."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder import catalog
from imagebuilder.catalog import Component, OwnComponent, upstream
from imagebuilder.catalog.upstream import Upstream
from imagebuilder.debian import suites, versions
from imagebuilder.errors import ConflictError, FetchError, Problem
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Archives, Build, Deb, Lock, Source
from imagebuilder.resolve import debian, python, wheelfile
from imagebuilder.resolve.request import BuildRequest, CompileRequest, Request
from imagebuilder.resolve.uv import File, Target, UnsolvableError, sdist

log = logging.getLogger(__name__)


def resolve_builds(
    request: Request,
    debs: Sequence[Deb],
    site: Site,
    keep: Sequence[Build] = (),
    upgrade: Collection[str] | None = None,
) -> tuple[Build, ...]:
    """Resolve the sources and the root of every component to compile.

    Args:
        request: the request.
        debs: the image's Debian packages.
        site: how to reach archives and indexes.
        keep: builds of the present lock; kept if they still fit.
        upgrade: None keeps all, an empty collection moves all, and names move these components.

    Raises:
        ConflictError: no source has a version that fits, or the packages cannot be installed.
        FetchError: an archive or index cannot be reached.

    """
    kept = {build.component: build for build in keep}
    problems: list[Problem] = []
    builds = []
    for asked in request.builds:
        if isinstance(asked, CompileRequest):
            continue
        old = kept.get(asked.component)
        moves = upgrade is not None and (not upgrade or asked.component in upgrade)
        if old and not moves and _fits(old, asked, debs):
            builds.append(old)
            continue
        try:
            builds.append(_resolve(asked, request, debs, site))
        except ConflictError as error:
            problems += error.problems
    if problems:
        raise ConflictError.of(problems)
    return tuple(builds)


def locate_sdists(
    sources: Sequence[Source], python_version: str, glibc: str, site: Site, architecture: str = "amd64"
) -> dict[str, tuple[str, ...]]:
    """Return the current URLs of locked sdists, by sha256.

    Raises:
        FetchError: the index cannot be reached, or does not have them any more.

    """
    target = Target(python=python_version, glibc=glibc, architecture=architecture, site=site)
    urls: dict[str, tuple[str, ...]] = {}
    for source in sources:
        try:
            _, file = sdist(f"{source.name}=={source.version}", target)
        except UnsolvableError:
            file = None
        if file is None or (file.sha256 and file.sha256 != source.sha256):
            raise FetchError(
                f"the package index no longer has {source.file}, or has other bytes under that name",
                hint=python.GONE,
            )
        urls[source.sha256] = (file.url,)
    return urls


def locate_upstream(sources: Sequence[Source], lock: Lock, site: Site) -> dict[str, tuple[str, ...]]:
    """Return the URLs of upstream's own archives by sha256, the site's first. Makes no requests.

    The catalog's come from the shipped files, and from those of the recipe's folder that the lock records.

    Raises:
        FetchError: neither the catalog nor the site file has a URL for one.

    """
    own = {name: OwnComponent.model_validate_json(json.dumps(each)) for name, each in lock.catalog.items()}
    known = [*site.sources, *_upstreams({**catalog.load(), **own})]
    urls = {
        source.sha256: tuple(
            dict.fromkeys(place.url for _, _, place in known if place.sha256 == source.sha256)
        )
        for source in sources
    }
    for source in sources:
        if not urls[source.sha256]:
            raise FetchError(
                f"no URL is known for {source.file}, the source of {source.name} {source.version}",
                hint=f"give one with this sha256 under `sources: {source.name}:` in a file for --site: "
                f"{source.sha256}",
            )
    return urls


def _upstreams(components: Mapping[str, Component]) -> Iterator[tuple[str, str, Upstream]]:
    """Yield component, version and URL of each source archive in the catalog."""
    for name, component in components.items():
        for version, place in component.build.upstream.items() if component.build else ():
            yield name, version, place


def _fits(build: Build, asked: BuildRequest, debs: Sequence[Deb]) -> bool:
    """Return whether a lock's build may stay: its root is the same, and its version still fits."""
    wheels = {wheel.name: wheel.version for wheel in build.wheels}
    wanted = [Requirement(text) for text in asked.wheels]
    return (
        build.packages == asked.packages
        and catalog.matches(build.version, asked.value)
        and set(build.system) <= {deb.name for deb in debs}
        and not {deb.name for deb in build.debs} & {deb.name for deb in debs}
        and all(
            (name := canonicalize_name(item.name)) in wheels and item.specifier.contains(wheels[name])
            for item in wanted
        )
    )


def _resolve(asked: BuildRequest, request: Request, debs: Sequence[Deb], site: Site) -> Build:
    glibc = debian.glibc(debs)
    version, source, source_archives = _source(asked, request, glibc, site)
    root, archives = debian.resolve_root(request, asked.packages, debs, site)
    image = {deb.sha256 for deb in debs}
    alone = replace(
        request, wheel_pins=(), requirements=asked.wheels, pip=(), owners=(), overrides=(), builds=()
    )
    wheels = python.resolve_wheels(alone, glibc, site)[0] if asked.wheels else ()
    return Build(
        component=asked.component,
        version=version,
        archives=dict(sorted({**source_archives, **archives}.items())),
        packages=asked.packages,
        system=tuple(deb.name for deb in root if deb.sha256 in image),
        debs=tuple(deb for deb in root if deb.sha256 not in image),
        wheels=wheels,
        sources=(source,),
    )


def _source(asked: BuildRequest, request: Request, glibc: str, site: Site) -> tuple[str, Source, Archives]:
    """Return the source from Debian or the index; upstream's own archive if these have none that fits.

    For a source of Debian's, also return the times of the archives that have it.
    """
    try:
        return _packaged_source(asked, request, glibc, site)
    except ConflictError:
        own = _upstream_source(asked, request, site)
        if own is None:
            raise
        return *own, {}


def _packaged_source(
    asked: BuildRequest, request: Request, glibc: str, site: Site
) -> tuple[str, Source, Archives]:
    if asked.debian:
        return _debian_source(asked, request, site)
    if asked.sdist:
        return *_sdist_source(asked, request, glibc, site), {}
    there = sorted((version for version, _ in _offered(asked, request, site)), key=catalog.numbers)
    quoted = [f'"{version}"' for version in there]
    raise ConflictError(
        f'no source of {asked.component} "{asked.value}" is known',
        where=request.places.of("pins", asked.component),
        hint=f"there is {' or '.join(quoted)}"
        if quoted
        else f"give its URL under `sources: {asked.component}:` in a file for --site",
    )


def _upstream_source(asked: BuildRequest, request: Request, site: Site) -> tuple[str, Source] | None:
    """Return the newest archive of the site or the catalog that fits the pin; None if there is none.

    Downloads the whole archive once to measure it, because locks contain only measured sizes and hashes.
    """
    fitting = [item for item in _offered(asked, request, site) if catalog.matches(item[0], asked.value)]
    if not fitting:
        return None
    version, place = max(fitting, key=lambda item: catalog.numbers(item[0]))
    name = upstream.file_of(place.url)
    with site.session() as session:
        measured = wheelfile.measure(File(name=name, url=place.url, sha256="", size=-1), session)
    if measured.sha256 != place.sha256:
        raise FetchError(
            f"{name} is not the expected source: wanted sha256 {place.sha256}, "
            f"got {measured.sha256} from {place.url}",
            where=request.places.of("pins", asked.component),
            hint="compare both with what upstream publishes; a mirror or a proxy may hold another file",
        )
    return version, Source(
        name=asked.component,
        version=version,
        file=name,
        size=measured.size,
        sha256=measured.sha256,
        upstream=True,
    )


def _offered(asked: BuildRequest, request: Request, site: Site) -> list[tuple[str, Upstream]]:
    """Return a component's archives with their versions; the site's replace the catalog's."""
    places = (*_upstreams(request.selection.components), *site.sources)
    known = {version: place for name, version, place in places if name == asked.component}
    return list(known.items())


def _debian_source(asked: BuildRequest, request: Request, site: Site) -> tuple[str, Source, Archives]:
    """Return the newest source that fits the pin, from the base's own suite, or else from another one.

    The source is upstream's release, so another suite's also compiles with the base's own packages.
    """
    known = list(suites.facts(request.distribution, request.suite).suites)
    offered: dict[str, tuple[Source, ...]] = {}
    for suite in (request.suite, *(name for name in known if name != request.suite)):
        try:
            offered[suite], archives = debian.source_packages(request, asked.debian, suite, site)
        except FetchError as error:
            if suite == request.suite:
                raise
            log.info("%s", error)
            continue
        fitting = [source for source in offered[suite] if catalog.matches(_upstream(source), asked.value)]
        if fitting:
            best = max(fitting, key=lambda source: catalog.numbers(_upstream(source)))
            return _upstream(best), best, archives
    there = [f'"{_upstream(source)}" ({suite})' for suite, sources in offered.items() for source in sources]
    raise ConflictError(
        f'no suite of {request.distribution} has the source of {asked.component} "{asked.value}"',
        where=request.places.of("pins", asked.component),
        hint=f"there is {' or '.join(dict.fromkeys(there))}" if there else "leave it out of `build:`",
    )


def _sdist_source(asked: BuildRequest, request: Request, glibc: str, site: Site) -> tuple[str, Source]:
    target = Target(python=request.python, glibc=glibc, architecture=request.architecture, site=site)
    prefix = f"{asked.sdist}=={asked.value}" + ("" if Version(asked.value).is_prerelease else ".*")
    try:
        version, file = sdist(prefix, target)
    except UnsolvableError:
        near = _near(asked, target)
        raise ConflictError(
            f"{asked.sdist} {asked.value} has no source on the package index",
            where=request.places.of("pins", asked.component),
            hint=f"the nearest is {near}" if near else "leave it out of `build:`",
        ) from None
    with site.session() as session:
        measured: File = wheelfile.measure(file, session)
    return version, Source(
        name=asked.sdist,
        version=version,
        file=measured.name,
        size=measured.size,
        sha256=measured.sha256,
    )


def _near(asked: BuildRequest, target: Target) -> str:
    """Name the newest version below a pin that has a source, and the newest of all."""
    near = []
    for requirement in (f"{asked.sdist}<{asked.value}", asked.sdist):
        try:
            near.append(f'"{sdist(requirement, target)[0]}"')
        except UnsolvableError:
            continue
    return " or ".join(dict.fromkeys(near))


def _upstream(source: Source) -> str:
    return versions.upstream(source.version)
