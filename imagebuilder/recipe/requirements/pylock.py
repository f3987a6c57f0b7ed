"""Read pylock.toml (PEP 751): every package whose marker is true for the image, at its locked version."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.pylock import Package, Pylock, PylockUnsupportedVersionError, PylockValidationError

from imagebuilder.core.yamlfile import nearest, printable
from imagebuilder.errors import Problem
from imagebuilder.recipe.requirements.demand import Found, Wrong, counts, of_python, pinned, sha256
from imagebuilder.recipe.requirements.source import Asked, Text


def read(file: Text, asked: Asked) -> Iterator[Found]:
    """Read what the lock installs, with the extras and groups that the recipe asks for."""
    data = file.toml()
    for _ in data["packages"] if isinstance(data.get("packages"), list) else ():
        asked.look(file.at(1))
    try:
        lock = Pylock.from_dict(data)
    except PylockUnsupportedVersionError:
        shown = printable(str(data.get("lock-version")))
        message = f"is a pylock.toml of version {shown}, and only 1.0 is supported"
        raise Wrong(file.at(1), message, "lock the project as version 1.0") from None
    except (PylockValidationError, ValueError, TypeError, AttributeError, RecursionError) as error:
        message = f"is not a valid lock of PEP 751: {printable(str(error))}"
        raise Wrong(file.at(1), message, "write it again with the tool that made it") from None
    python = of_python(data.get("requires-python"), file.at(file.line_of_key("requires-python")))
    yield from [python] if python else []
    for kind, wanted, known in (
        ("extra", asked.extras, lock.extras),
        ("group", asked.groups, lock.dependency_groups),
    ):
        listed = [str(name) for name in known or ()]
        for name in sorted(wanted - set(listed)):
            there = f"there is {', '.join(sorted(listed))}" if listed else f"it has no {kind}s"
            message = f"{file.shown} has no {kind} `{printable(name)}`"
            yield Problem(message=message, where=asked.place, hint=nearest(name, listed) or there)
    if lock.environments and not any(
        counts(marker, file.at(file.line_of_key("environments")), asked.environment)
        for marker in lock.environments
    ):
        message = "was locked for other environments than the image's"
        raise Wrong(
            file.at(file.line_of_key("environments")),
            message,
            "lock the project for Linux and this Python as well",
        )
    lines = file.lines_of("[[packages]]")
    for number, package in enumerate(lock.packages):
        place = file.at(lines[number] if number < len(lines) else 1)
        try:
            if _is_wanted(package, lock, asked, place):
                yield _demand(package, place)
        except Wrong as error:
            yield error.problem


def _is_wanted(package: Package, lock: Pylock, asked: Asked, place: str) -> bool:
    if package.marker is None:
        return True
    variables: dict[str, str | frozenset[str]] = {
        **asked.environment,
        "extras": asked.extras,
        "dependency_groups": asked.groups or frozenset(lock.default_groups or ()),
    }
    try:
        return package.marker.evaluate(variables, context="lock_file")
    except (ValueError, TypeError, RecursionError, KeyError):
        message = f"the marker `{printable(str(package.marker))}` cannot be evaluated"
        raise Wrong(place, message, "see PEP 751 for what can be compared") from None


def _demand(package: Package, place: str) -> Found:
    kinds = [kind for kind in ("vcs", "directory", "archive") if getattr(package, kind)]
    if kinds or package.version is None:
        message = f"`{package.name}` comes from {'/'.join(kinds) or 'nowhere'}, not from an index"
        hint = "lock without it (`uv export --no-emit-project`), or put its wheel into a wheel folder"
        raise Wrong(place, message, hint)
    files = [item.hashes for item in package.wheels or ()]
    files += [package.sdist.hashes] if package.sdist else []
    if any("sha256" not in hashes for hashes in files):
        message = f"`{package.name}` has a file without a sha256"
        raise Wrong(place, message, "other hashes are not supported: lock with a tool that writes sha256")
    allowed = {sha256(f"sha256:{hashes['sha256']}", place) for hashes in files}
    return pinned(package.name, str(package.version), place, tuple(allowed))
