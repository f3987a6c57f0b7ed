"""Pins whose Debian packages are in another archive, such as NVIDIA's: choose versions, explain failures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from imagebuilder import catalog
from imagebuilder.debian import versions as debversion
from imagebuilder.errors import Problem
from imagebuilder.lock.model import Deb, Installed
from imagebuilder.resolve.debpins import Index
from imagebuilder.resolve.request import ArchivePin, Request


def pins(request: Request) -> tuple[ArchivePin, ...]:
    """Return these pins of a request."""
    return tuple(pinned for pinned in request.deb_pins if isinstance(pinned, ArchivePin))


def refined(request: Request, locked: Mapping[str, str]) -> Request:
    """Set pins of components that are also loaded from wheels to the wheels' versions, which must match.

    Args:
        request: the request.
        locked: normalised name and version of every wheel.

    """
    exact = {
        linked.wheel.pin: locked[name]
        for linked in request.linked
        if (name := canonicalize_name(linked.wheel.package)) in locked
    }
    return replace(
        request,
        deb_pins=tuple(
            replace(pinned, value=exact[pinned.pin])
            if isinstance(pinned, ArchivePin) and pinned.pin in exact
            else pinned
            for pinned in request.deb_pins
        ),
    )


def choose(request: Request, index: Index, installed: Mapping[str, str]) -> dict[str, str]:
    """Choose a version for each pin's package: the base's if it fits, else the newest that fits."""
    chosen = {}
    for pinned in pins(request):
        here = installed.get(pinned.package, "")
        fitting = [version for version in index.get(pinned.package, ()) if _fits(pinned, version)]
        if here and _fits(pinned, here):
            chosen[pinned.package] = here
        elif fitting:
            chosen[pinned.package] = debversion.newest(fitting)
    return chosen


def are_met(request: Request, packages: Sequence[Deb | Installed]) -> bool:
    """Return whether packages satisfy all these pins."""
    versions = {package.name: package.version for package in packages}
    return all(
        pinned.package in versions and _fits(pinned, versions[pinned.package]) for pinned in pins(request)
    )


def problems(
    request: Request, index: Index, installed: Mapping[str, str], archives: Collection[str]
) -> list[Problem]:
    """Explain pins that no package satisfies, with values that would work."""
    unmet = []
    chosen = choose(request, index, installed)
    for pinned in pins(request):
        if pinned.package in chosen:
            continue
        where = request.places.of("pins", pinned.pin)
        wheel = f"or take it from wheels: `providers: {{{pinned.pin}: wheel}}`"
        if pinned.archive not in archives:
            unmet.append(
                Problem(
                    message=f'{pinned.pin} "{pinned.value}" comes from the archive {pinned.archive}, '
                    "which the base is not set up for",
                    where=where,
                    hint=f"choose a base that is, {wheel}; "
                    f"or give its URL and key in the site file: `apt: archives: {pinned.archive}:`",
                )
            )
            continue
        offered = index.get(pinned.package, ())
        values = _values(pinned, offered)
        built = f" built for {pinned.ending.lstrip('+')}" if pinned.ending else ""
        has = f"whose {pinned.package}{built} is {' or '.join(values)}" if values else "which has none"
        unmet.append(
            Problem(
                message=f'{pinned.pin} "{pinned.value}" contradicts the archive {pinned.archive}, '
                + (has if offered else f"which has no {pinned.package}"),
                where=where,
                hint=f'set {pinned.pin}: "{values[-1]}", {wheel}' if values else f"choose another, {wheel}",
            )
        )
    return unmet


def _values(pinned: ArchivePin, offered: Sequence[str]) -> list[str]:
    """Return the archive's versions for this pin, the newest last, at most five."""
    fitting = {version for version in offered if version.endswith(pinned.ending)}
    ordered: list[str] = []
    while fitting:
        fitting -= {last := debversion.newest(fitting)}
        ordered.append(debversion.upstream(last))
    return list(dict.fromkeys(ordered))[:5][::-1]


def _fits(pinned: ArchivePin, version: str) -> bool:
    # A wheel's version may have more parts than the pin or the package.
    return catalog.matches(debversion.upstream(version), pinned.value) and version.endswith(pinned.ending)
