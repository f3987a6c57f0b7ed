"""Read requirements.txt as pip does, but refuse URLs, paths, variables and options for how to install.

pip's documentation describes the format under "Requirements File Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.recipe.requirements.demand import Demand, Found, Wrong, demand, sha256
from imagebuilder.recipe.requirements.source import Asked, Text

_COMMENT = re.compile(r"(?:^|(?<!\s)\s++)#.*$")  # possessive: else blanks take quadratic time
_OPTIONS = re.compile(r"(?<!\s)\s++(?=--?[A-Za-z])")
_OPTION = re.compile(r"(--[A-Za-z][A-Za-z0-9-]*|-[A-Za-z])(?:\s*=\s*|\s+|)(.*)")
_HASH = re.compile(r"--hash(?:=|\s+)(\S+)(?:\s+|$)")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_INCLUDES = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
# Limits for files that include others: levels, and files in all.
_DEEPEST = 10
_MOST_FILES = 50

_SITE = "remove it: indexes and hosts belong to pip's or uv's settings, or to a file for --site"
_HINTS = {
    **dict.fromkeys(
        ("-i", "--index-url", "--pypi-url", "--extra-index-url", "--no-index", "-f", "--find-links",
         "--trusted-host"),
        _SITE,
    ),
    **dict.fromkeys(
        ("-e", "--editable"), "remove it: name what the project requires (`uv export --no-emit-project`)"
    ),
    "--pre": "remove it, and name the pre-release: package==1.0rc1",
    **dict.fromkeys(
        ("--no-binary", "--only-binary", "--prefer-binary"), "remove it: only wheels are installed"
    ),
    "--require-hashes": "remove it: hashes in the file are always checked",
}  # fmt: skip


def read(file: Text, asked: Asked) -> Iterator[Found]:
    """Read a file and the files that it includes."""
    yield from _File(asked=asked).read(file, (), constraint=False)


class _File:
    def __init__(self, *, asked: Asked) -> None:
        self._asked = asked
        self._opened = 1

    def read(self, file: Text, above: tuple[str, ...], *, constraint: bool) -> Iterator[Found]:
        """Read one file; `above` are the files that include it."""
        for number, line in _joined(file.text.splitlines()):
            text = _COMMENT.sub("", line).strip()
            if not text:
                continue
            place = file.at(number)
            option = _OPTION.match(text)
            try:
                if option and option[1] in _INCLUDES:
                    inner = self._included(file, option[2], place, above)
                    only = constraint or _INCLUDES[option[1]]
                    yield from self.read(inner, (*above, file.shown), constraint=only)
                else:
                    parsed = _demand(text, place, self._asked, constraint=constraint)
                    yield from [parsed] if parsed else []
            except Wrong as error:
                yield error.problem
            except InputError as error:
                yield from error.problems

    def _included(self, file: Text, path: str, place: str, above: tuple[str, ...]) -> Text:
        path = path.strip("\"'")
        if "://" in path:
            raise Wrong(place, "a file is named by URL", "keep it in the project")
        if not path or path.startswith(("/", "~")) or not path.isprintable():
            raise Wrong(
                place, f"`{printable(path)}` is not a relative path", "write it relative to this file"
            )
        if not path.endswith((".txt", ".in")):
            raise Wrong(
                place,
                f"`{printable(path)}` is not named like a requirements file",
                "rename it to NAME.txt or NAME.in",
            )
        self._opened += 1
        inner = file.beside(path, place)
        if inner.shown in {*above, file.shown}:
            raise Wrong(place, f"{inner.shown} includes itself", "remove one of the lines `-r` or `-c`")
        if len(above) >= _DEEPEST or self._opened > _MOST_FILES:
            raise Wrong(place, "too many files include each other", "put them into one file")
        return inner


def _joined(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Join lines that end with a backslash, as pip does; yield each with the number of its first line."""
    held: list[str] = []
    first = 0
    for number, line in enumerate(lines, 1):
        comment = _COMMENT.match(line) is not None
        if line.endswith("\\") and not comment:
            first = first if held else number
            held.append(line.strip("\\"))
            continue
        if held:
            yield first, "".join([*held, f" {line}" if comment else line])
            held = []
        else:
            yield number, line
    if held:
        yield first, "".join(held)


def _demand(text: str, place: str, asked: Asked, *, constraint: bool) -> Demand | None:
    asked.look(place)
    if _VARIABLE.search(text):
        raise Wrong(place, "variables (`${NAME}`) are not supported", "write the value")
    if option := _OPTION.match(text):
        raise _refused(option[1], place)
    requirement, *options = _OPTIONS.split(text, maxsplit=1)
    hashes = []
    rest, position = options[0] if options else "", 0
    while position < len(rest):
        match = _HASH.match(rest, position)
        if not match:
            name, *_ = re.split(r"[=\s]", rest[position:], maxsplit=1)
            raise _refused(name, place)
        hashes.append(sha256(match[1], place))
        position = match.end()
    return demand(requirement, place, asked.environment, constraint=constraint, hashes=tuple(hashes))


def _refused(option: str, place: str) -> Wrong:
    hint = _HINTS.get(option, "remove it")
    return Wrong(place, f"the option `{printable(option)}` is not accepted here", hint)
