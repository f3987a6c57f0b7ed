"""Compare pins and package names with a Debian archive: report what does not fit, and what would."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence

from imagebuilder import catalog
from imagebuilder.debian.versions import upstream
from imagebuilder.errors import Problem
from imagebuilder.lock.model import Deb, Installed
from imagebuilder.resolve.request import ArchivePin, Pinned, Request

Index = Mapping[str, tuple[str, ...]]
"""Names and versions of an archive's packages; names that other packages only provide have no version."""

_REASONS = 10  # lines of apt's explanation that an error shows


def all_pins(request: Request) -> tuple[Pinned, ...]:
    """Return the pins on Debian packages. Python's version is one, although it has its own key."""
    python = Pinned(pin="python", value=request.python, package="python3")
    return (*(pinned for pinned in request.deb_pins if pinned.pin != "python"), python)


def pin_problems(request: Request, debs: Sequence[Deb | Installed]) -> tuple[Problem, ...]:
    """Return a problem for each pin that these packages do not satisfy."""
    return tuple(unmet_pins(request, versions(debs), {}))


def versions(debs: Sequence[Deb | Installed]) -> dict[str, tuple[str, ...]]:
    """Return the index of an archive that has only these packages."""
    return {deb.name: (deb.version,) for deb in debs}


def unknown_packages(request: Request, index: Index) -> list[Problem]:
    """Report packages that the recipe requests by name (and version), and that the archive lacks."""
    problems = []
    base = f"{request.distribution} {request.suite}"
    # Packages that belong to a pin are reported once, as that pin: gcc-15 also covers g++-15.
    missing = [pinned for pinned in all_pins(request) if pinned.package not in index]
    reported = tuple(f"-{pinned.value.partition('.')[0]}" for pinned in missing if _stem(pinned))
    for package in request.packages:
        name, _, version = package.partition("=")
        where = request.places.of_package(name)
        if name not in index and name not in {pinned.package for pinned in missing}:
            if not name.endswith(reported):
                problems.append(
                    Problem(
                        message=f"{base} has no package `{name}`",
                        where=where,
                        hint=_similar(name, index) or "is it in another section, or renamed?",
                    )
                )
        elif version and version not in index.get(name, ()):
            problems.append(
                Problem(
                    message=f"{base} has no version {version} of `{name}`",
                    where=where,
                    hint=f"it has {', '.join(sorted(set(index[name])))}; or leave the version to the lock",
                )
            )
    return problems


def unmet_pins(request: Request, chosen: Index, index: Index) -> list[Problem]:
    """Report pins that the chosen packages do not satisfy; `index` has the values that would work."""
    problems = []
    base = f"{request.distribution} {request.suite}"
    for pinned in all_pins(request):
        if isinstance(pinned, ArchivePin):
            continue  # from another archive: see `archivepins`
        present = sorted({upstream(version) for version in chosen.get(pinned.package, ())})
        if any(catalog.matches(version, pinned.value) for version in present):
            continue
        has = f"which has no {pinned.package}"
        if present:
            has = f"whose {pinned.package} is {' or '.join(present)}"
        working = _working_values(pinned, index)
        key = ("python",) if pinned.pin == "python" else ("pins", pinned.pin)
        values = " or ".join(f'`{pinned.pin}: "{value}"`' for value in working)
        problems.append(
            Problem(
                message=f'{pinned.pin} "{pinned.value}" contradicts base {base}, {has}',
                where=request.places.of(*key),
                hint=f"{base} has {values}; or choose another base"
                if values
                else "choose another base, or drop the pin",
            )
        )
    return problems


def unsolvable(request: Request, stdout: str, stderr: str) -> Problem:
    """Report what apt cannot solve: its packages with unmet dependencies, or its error lines."""
    unmet = stdout.partition("The following packages have unmet dependencies:\n")[2]
    lines = [" ".join(line.split()) for line in unmet.splitlines() if line.startswith(" ")]
    text = "\n".join(lines[:_REASONS]) if lines else condense(stderr)
    return Problem(
        message=f"{request.distribution} {request.suite} cannot have these packages together:\n{text}",
        where=request.places.of("apt"),
        hint="drop one of them, or leave the versions under `apt:` to the lock",
    )


def condense(stderr: str) -> str:
    """Return the lines of apt's output that say what went wrong."""
    lines = [line for line in stderr.splitlines() if line.startswith(("E:", "Err:", "W:"))]
    return "\n".join(dict.fromkeys(lines[:_REASONS])) or stderr.strip()[-500:]


def _working_values(pinned: Pinned, index: Index) -> tuple[str, ...]:
    """Return the values of a pin that would work on this suite.

    Some packages have the major version in their names (gcc-14): then every such package counts.
    """
    names = [pinned.package]
    if stem := _stem(pinned):
        names = [name for name in index if re.fullmatch(rf"{re.escape(stem)}[0-9]+", name)]
    values = {upstream(version) for name in names for version in index.get(name, ())}
    if pinned.pin == "python":
        values = {".".join(version.split(".")[:2]) for version in values}
    return tuple(sorted(values, key=catalog.numbers))


def _stem(pinned: Pinned) -> str:
    """Return the part of a package's name before its major version: `gcc-` of gcc-14; "" without one."""
    major = pinned.value.partition(".")[0]
    stem = pinned.package.removesuffix(major)
    return stem if stem != pinned.package and stem.endswith("-") else ""


def _similar(name: str, index: Collection[str]) -> str:
    # Comparing with all 60,000 names takes seconds. Most mistyped names have the right first letter.
    near = difflib.get_close_matches(name, sorted(n for n in index if n[0] == name[0]), n=3, cutoff=0.75)
    return f"perhaps you meant {' or '.join(f'`{n}`' for n in near)}" if near else ""
