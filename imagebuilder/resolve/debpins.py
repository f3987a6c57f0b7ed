"""Pins and names against a Debian archive: what does not fit, and which values would."""

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
"""Names and versions of an archive's packages; a name that others only provide has no version."""

_REASONS = 10  # lines of apt's explanation that an error shows


def all_pins(request: Request) -> tuple[Pinned, ...]:
    """List the pins that Debian packages fulfil: Python is one, though it has a key of its own."""
    python = Pinned(pin="python", value=request.python, package="python3")
    return (*(pinned for pinned in request.deb_pins if pinned.pin != "python"), python)


def pin_problems(request: Request, debs: Sequence[Deb | Installed]) -> tuple[Problem, ...]:
    """Find the pins that these packages do not fulfil: whether an older lock's packages may stay."""
    return tuple(unmet_pins(request, versions(debs), {}))


def versions(debs: Sequence[Deb | Installed]) -> dict[str, tuple[str, ...]]:
    """See packages as the index of an archive that has nothing else."""
    return {deb.name: (deb.version,) for deb in debs}


def unknown_packages(request: Request, index: Index) -> list[Problem]:
    """Find what the recipe asks for by name, or by name and version, and the archive does not have."""
    problems = []
    base = f"{request.distribution} {request.suite}"
    # What a pin brings in is reported as that pin, once: gcc-15 also stands for its g++-15.
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
                        hint=_similar(name, index) or "is it in another component, or renamed?",
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
    """Find pins that the chosen packages do not fulfil; `index` says which values would."""
    problems = []
    base = f"{request.distribution} {request.suite}"
    for pinned in all_pins(request):
        if isinstance(pinned, ArchivePin):
            continue  # another archive's, which `archivepins` answers for
        found = sorted({upstream(version) for version in chosen.get(pinned.package, ())})
        if any(catalog.matches(version, pinned.value) for version in found):
            continue
        has = f"which has no {pinned.package}"
        if found:
            has = f"whose {pinned.package} is {' or '.join(found)}"
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
    _, found, unmet = stdout.partition("The following packages have unmet dependencies:\n")
    lines = [" ".join(line.split()) for line in unmet.splitlines() if line.startswith(" ")]
    text = "\n".join(lines[:_REASONS]) if found and lines else condense(stderr)
    return Problem(
        message=f"{request.distribution} {request.suite} cannot have these packages together:\n{text}",
        where=request.places.of("apt"),
        hint="drop one of them, or leave the versions under `apt:` to the lock",
    )


def condense(stderr: str) -> str:
    """Keep the lines of apt's output that say what went wrong."""
    lines = [line for line in stderr.splitlines() if line.startswith(("E:", "Err:", "W:"))]
    return "\n".join(dict.fromkeys(lines[:_REASONS])) or stderr.strip()[-500:]


def _working_values(pinned: Pinned, index: Index) -> tuple[str, ...]:
    """List the values of a pin that this suite could fulfil.

    Some packages carry the major version in their names (gcc-14): then every such package counts.
    """
    names = [pinned.package]
    if stem := _stem(pinned):
        names = [name for name in index if re.fullmatch(rf"{re.escape(stem)}[0-9]+", name)]
    found = {upstream(version) for name in names for version in index.get(name, ())}
    if pinned.pin == "python":
        found = {".".join(version.split(".")[:2]) for version in found}
    return tuple(sorted(found, key=catalog.numbers))


def _stem(pinned: Pinned) -> str:
    """Give what stands before the major version in a package's name: `gcc-` of gcc-14, else nothing."""
    major = pinned.value.partition(".")[0]
    stem = pinned.package.removesuffix(major)
    return stem if stem != pinned.package and stem.endswith("-") else ""


def _similar(name: str, index: Collection[str]) -> str:
    # Comparing with all 60 000 names takes seconds; who mistypes a name mostly gets its first letter right.
    near = difflib.get_close_matches(name, sorted(n for n in index if n[0] == name[0]), n=3, cutoff=0.75)
    return f"perhaps you meant {' or '.join(f'`{n}`' for n in near)}" if near else ""
