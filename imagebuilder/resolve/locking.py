"""From a recipe to its lock: both resolvers, what may stay as it was, and the version of every pin."""

from __future__ import annotations

import logging
from collections.abc import Collection

from packaging.utils import canonicalize_name

from imagebuilder import catalog
from imagebuilder.errors import ConflictError, Problem
from imagebuilder.lock import Build, Deb, Lock, Override, Wheel
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import builds as build_sources
from imagebuilder.resolve import debian, debpins, facts, python
from imagebuilder.resolve.request import Request, request
from imagebuilder.site import Site

log = logging.getLogger(__name__)


def make_lock(recipe: Recipe, site: Site, previous: Lock | None, upgrade: Collection[str] | None) -> Lock:
    """Resolve a recipe.

    Args:
        recipe: what to resolve.
        site: where indexes, archives and proxies are.
        previous: the lock there is; what still fits stays as it is.
        upgrade: None keeps all that fits, an empty collection moves everything, names move these pins
            or packages.

    Raises:
        ConflictError: pins that cannot hold together; all of them at once.
        FetchError: an index or an archive could not be asked.

    """
    wanted = request(recipe)
    inputs = wanted.checksum(recipe)
    if previous is not None and previous.inputs == inputs and upgrade is None:
        facts.require(recipe, previous.pins)
        return previous
    _check_names(wanted, recipe, previous, upgrade)
    problems: list[Problem] = facts.problems(recipe, {})
    debs: tuple[Deb, ...] = ()
    wheels: tuple[Wheel, ...] = ()
    overrides: tuple[Override, ...] = ()
    try:
        debs = _debs(wanted, site, previous, upgrade)
    except ConflictError as error:
        problems.extend(error.problems)
    # Wheels are resolved even when a Debian pin failed: people want to hear of everything at once. They
    # need the suite's C library, which a failed solve does not tell: then the newest there is stands in.
    glibc = debian.glibc(debs) if debs else "2.40"
    kept = previous.wheels if previous is not None and previous.python == wanted.python else ()
    try:
        wheels, overrides = python.resolve_wheels(wanted, glibc, site, keep=kept, upgrade=upgrade)
    except ConflictError as error:
        problems.extend(error.problems)
    builds: tuple[Build, ...] = ()
    if debs:
        try:
            old = previous.builds if previous is not None and previous.debs == debs else ()
            builds = build_sources.resolve_builds(wanted, debs, site, keep=old, upgrade=upgrade)
            problems += _twice(recipe, builds, wheels)
        except ConflictError as error:
            problems.extend(error.problems)
    if problems:
        raise ConflictError.of(problems)
    pins = _pin_versions(recipe, debs, wheels, builds)
    facts.require(recipe, pins)
    return Lock(
        format=2 if builds else 1,
        inputs=inputs,
        recipe=recipe.name,
        base=recipe.base,
        architecture=wanted.architecture,
        python=wanted.python,
        pins=pins,
        packages=wanted.packages,
        overrides=overrides,
        wheels=wheels,
        debs=debs,
        builds=builds,
    )


def _twice(recipe: Recipe, builds: tuple[Build, ...], wheels: tuple[Wheel, ...]) -> list[Problem]:
    """Find what is compiled, and also comes as a wheel because something else requires it."""
    names = {source.name for build in builds for source in build.sources if not source.path}
    return [
        Problem(
            message=f"`{wheel.name}` would be there twice: compiled, and as the wheel {wheel.file}, which "
            "another package requires",
            where=f"{recipe.name}: pins.{wheel.name}",
            hint=f"leave `{wheel.name}` out of `build:`",
        )
        for wheel in wheels
        if wheel.name in names
    ]


def _debs(
    wanted: Request, site: Site, previous: Lock | None, upgrade: Collection[str] | None
) -> tuple[Deb, ...]:
    """Keep the previous packages when the same ones are asked for: an archive moves on every day."""
    if (
        previous is not None
        and previous.packages == wanted.packages
        and previous.base == f"{wanted.distribution}:{wanted.suite}"
        and previous.architecture == wanted.architecture
        and not _moves_debs(wanted, previous, upgrade)
        and not debpins.pin_problems(wanted, previous.debs)
    ):
        return previous.debs
    return debian.resolve_debs(wanted, site)


def _moves_debs(wanted: Request, previous: Lock, upgrade: Collection[str] | None) -> bool:
    if upgrade is None:
        return False
    names = {pinned.pin for pinned in wanted.deb_pins} | {deb.name for deb in previous.debs}
    return not upgrade or bool(names & set(upgrade))


def _check_names(
    wanted: Request, recipe: Recipe, previous: Lock | None, upgrade: Collection[str] | None
) -> None:
    """Refuse to upgrade what is not there: a mistyped name would look like «already the newest»."""
    known = {pinned.pin for pinned in (*wanted.wheel_pins, *wanted.deb_pins)} | set(wanted.packages)
    known |= {package for package, _ in wanted.owners} | {build.component for build in wanted.builds}
    if previous is not None:
        known |= {wheel.name for wheel in previous.wheels} | {deb.name for deb in previous.debs}
    unknown = sorted(set(upgrade or ()) - known)
    if unknown:
        raise ConflictError.of(
            [
                Problem(
                    message=f"`{name}` cannot be upgraded: the recipe holds nothing of that name",
                    where=recipe.name,
                    hint=f"pins: {', '.join(sorted(recipe.pins))}",
                )
                for name in unknown
            ]
        )


def _pin_versions(
    recipe: Recipe, debs: tuple[Deb, ...], wheels: tuple[Wheel, ...], builds: tuple[Build, ...]
) -> dict[str, str]:
    """Find the full version of every component in the image, pinned or always there."""
    deb_versions = {deb.name: debpins.upstream_version(deb.version) for deb in debs}
    wheel_versions = {wheel.name: wheel.version for wheel in wheels}
    versions = {build.component: build.version for build in builds}
    for part in catalog.parts(recipe):
        provider = part.provider
        if part.built:
            continue
        if provider.wheel:
            versions[part.component.name] = wheel_versions[
                canonicalize_name(catalog.fill(provider.wheel, part.pin))
            ]
        else:
            package = catalog.fill(provider.real, part.pin) or part.apt[0]
            versions[part.component.name] = deb_versions[package]
    return versions
