"""A recipe folder's own components: the files of `catalog/` beside a recipe, which need no fork.

A recipe uses the files of the components that it pins; no other file of that folder is read. They come from
outside, like the recipe: each value that reaches a shell, a Dockerfile, apt or uv has a narrow form.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from imagebuilder.catalog import model
from imagebuilder.catalog.model import Component
from imagebuilder.core import files, yamlfile
from imagebuilder.errors import InputError
from imagebuilder.recipe.model import requirement_problem
from imagebuilder.recipe.reading import env_problem

FOLDER = "catalog"

_MOST_FILES = 1_000  # entries of the folder that are looked at
_LARGEST = 64_000
_LONGEST_TEXT = 4_000
_MOST_ITEMS = 200
_NAME = re.compile(r"[a-z0-9][a-z0-9+-]{0,62}")
_PLACEHOLDER = re.compile(r"\{(?:version|major|minor|dashed)\}")
_PATH = re.compile(r"(?:\{site\})?(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._+-]+)+")
_TARGET = re.compile(r"(?:\{site\})?/?[A-Za-z0-9._+-]+(?:/[A-Za-z0-9._+-]+)*")
_DEB = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_WHEEL = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_WORD = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
# A single line: the rendered Dockerfile has each step as one, and ends its scripts with a word of capitals.
_STEP = re.compile(r"(?![A-Z_]+$)[^\n]+")
# What only components of imagebuilder itself can have, and why.
_SHIPPED_ONLY = {
    "include": "a recipe names all components of its folder that it uses",
    "like": "it is for components that others bring",
    "fabrics": "a recipe names all components of its folder that it uses: pin it beside `fabric:`",
    "below": "it is for components that a base from a registry states",
    "framework": "its payloads are part of imagebuilder's smoke test",
}
_Key = tuple[str | int, ...]


class OwnComponent(Component):
    """A component that does not come with imagebuilder."""

    @property
    def recorded(self) -> dict[str, Any]:
        """The file's content as a lock records it."""
        found: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True)
        return found


def place(recipe: Path, name: str) -> Path:
    """Return where a recipe's own component is described."""
    return recipe.parent / FOLDER / f"{name}.yaml"


def names(recipe: Path, site: Path | None = None) -> frozenset[str]:
    """Return what a recipe at this path can pin, without reading a file.

    Args:
        recipe: the recipe's file.
        site: the site's folder of catalog files, for a recipe that is about to be locked.

    """
    return model.names() | _there(recipe.parent / FOLDER) | (_there(site) if site else frozenset())


def load(recipe: Path, pins: Iterable[str]) -> dict[str, Component]:
    """Read the shipped components, and those of the recipe's folder that it pins.

    Args:
        recipe: the recipe's file.
        pins: the names that it pins.

    Returns:
        All components by name, sorted.

    Raises:
        InputError: a file is wrong (every problem, with its line), or has the name of a shipped component.

    """
    shipped = model.load()
    own = sorted(_there(recipe.parent / FOLDER) & set(pins))
    made = {name: read(place(recipe, name), shipped.keys() | set(pins)) for name in own}
    return dict(sorted({**shipped, **made}.items()))


def offered(recipe: Path, site: Path | None = None) -> tuple[dict[str, Component], tuple[str, ...]]:
    """Read all components that a recipe at this path could pin.

    Args:
        recipe: the recipe's file, which need not exist.
        site: the site's folder of catalog files; the recipe's own come first.

    Returns:
        The shipped components and those of both folders; a note on each file that describes none.

    """
    found, notes = dict[str, Component](), list[str]()
    for folder in filter(None, (site, recipe.parent / FOLDER)):
        there = _there(folder)
        for name in sorted(there):
            try:
                found[name] = read(folder / f"{name}.yaml", there)
            except InputError as error:
                problem = error.problems[0]
                notes.append(f"Not taken for a component: {problem.where}: {problem.message}.")
    return dict(sorted({**model.load(), **found}.items())), tuple(notes)


def all_of(folder: Path) -> dict[str, Component]:
    """Read the shipped components, and all that a folder describes; see `load`."""
    if not folder.is_dir():
        raise InputError("is not a folder", where=str(folder), hint="name one with catalog files, NAME.yaml")
    names_there = _there(folder)
    own = {name: read(folder / f"{name}.yaml", names_there) for name in names_there}
    return dict(sorted({**model.load(), **own}.items()))


def read(path: Path, known: Iterable[str] = ()) -> OwnComponent:
    """Read one file.

    Args:
        path: of the file.
        known: the components that it can name besides the shipped ones.

    Raises:
        InputError: every problem with its line; or it would replace a shipped component.

    """
    name, shipped = path.stem, model.names()
    if name in shipped:
        raise InputError(
            f"would replace `{name}` of imagebuilder (imagebuilder/catalog/{name}.yaml)",
            where=str(path),
            hint="give the component another name, and list the shipped one under `excludes:`",
        )
    if not path.is_file() or path.stat().st_size > _LARGEST:
        raise InputError(f"is not a file of at most {_LARGEST} bytes", where=str(path))
    document = yamlfile.read(path)
    found = tuple(_problems(document, name, {*known, *shipped, name}))
    return yamlfile.validate(document, OwnComponent, also=found)


def write(recipe: Path, recorded: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the components that a lock records beside its recipe, as JSON, which YAML includes.

    Raises:
        InputError: the folder is not writable.

    """
    for name, content in recorded.items():
        files.write(place(recipe, name), json.dumps(content, ensure_ascii=False, indent=1) + "\n")


@contextmanager
def borrowed(recipe: Path, folder: Path | None) -> Iterator[tuple[str, ...]]:
    """Copy the site's files of components that a recipe pins and its own folder lacks.

    They stay if the body succeeds: so whoever has the recipe's folder needs no site file for them.

    Args:
        recipe: the recipe's file.
        folder: the site's catalog files, or None.

    Yields:
        A note on each copy, and on each file of the site that differs from the recipe's own.

    Raises:
        InputError: a file of the site is wrong.

    """
    notes: list[str] = []
    copied: list[Path] = []
    try:
        for source in _offered(recipe, folder) if folder else ():
            target = place(recipe, source.stem)
            text = source.read_text(encoding="utf-8")
            if not target.exists():
                files.write(target, text)
                copied.append(target)
                notes.append(f"{target} is a copy of the site's {source}; keep it beside the recipe")
            elif target.read_text(encoding="utf-8") != text:
                notes.append(f"{target} differs from the site's {source}; remove it to take the site's")
        yield tuple(notes)
    except BaseException:
        for target in copied:
            target.unlink(missing_ok=True)
        raise


def _offered(recipe: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of a folder for the components that a recipe pins, each read and found right."""
    data = yamlfile.read(recipe).data
    pins = data.get("pins") if isinstance(data, dict) else None
    pins = pins if isinstance(pins, dict) else {}
    for name in sorted(_there(folder) & pins.keys()):
        source = folder / f"{name}.yaml"
        read(source, pins)
        yield source


def _there(folder: Path) -> frozenset[str]:
    """Name the components that a folder describes, by the names of its files."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in islice(entries, _MOST_FILES)]
    except OSError:
        return frozenset()
    stems = (name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))
    return frozenset(stem for stem in stems if _NAME.fullmatch(stem))


def _problems(document: yamlfile.Document, name: str, known: set[str]) -> Iterator[yamlfile.KeyProblem]:
    """Yield what the model of the shipped files would accept, and a file from outside must not have."""
    data = document.data if isinstance(document.data, dict) else {}
    if data.get("name") not in {name, None}:
        yield document.problem(
            ("name",), f"is not the file's name, `{name}`", f"write `name: {name}`, or rename the file"
        )
    for key, why in _SHIPPED_ONLY.items():
        if key in data:
            yield document.problem(
                (key,), f"`{key}` is only for components of imagebuilder: {why}", "drop it"
            )
    if not data.get("providers") and not data.get("build"):
        yield document.problem((), "has neither `providers:` nor `build:`", "say where the component is from")
    for key in ("needs", "excludes", "loads"):
        yield from _unknown(document, (key,), data.get(key), known)
    yield from _shaped(document, (), data, _RULES)
    yield from _sizes(document, (), data)


def _unknown(
    document: yamlfile.Document, key: _Key, listed: object, known: set[str]
) -> Iterator[yamlfile.KeyProblem]:
    for number, other in enumerate(listed if isinstance(listed, tuple) else ()):
        if isinstance(other, str) and other not in known:
            hint = yamlfile.nearest(other, known) or f"components: {', '.join(sorted(known))}"
            yield document.problem((*key, number), f"`{yamlfile.printable(other)}` is not a component", hint)


def _matching(pattern: re.Pattern[str], what: str, text: str) -> tuple[str, str] | None:
    if pattern.fullmatch(_PLACEHOLDER.sub("1", text)):
        return None
    return f"`{yamlfile.printable(text)}` is not {what}", "the page `catalog` of the how-to has examples"


def _no_file(text: str) -> tuple[str, str] | None:
    if not text.startswith("file:"):
        return None
    return "names a file of one host", "put the address under `sources:` of a site file"


_Check = Callable[[str], tuple[str, str] | None]
_paths = partial(_matching, _PATH, "the absolute path of a file")
_targets = partial(_matching, _TARGET, "what a link can point to")
_debs = partial(_matching, _DEB, "a Debian package's name")
_wheels = partial(_matching, _WHEEL, "a Python distribution's name")
_words = partial(_matching, _WORD, "a name")
_steps = partial(_matching, _STEP, "one line of shell")
_variables = partial(_matching, _VARIABLE, "a variable's name")


def _requirement(text: str) -> tuple[str, str] | None:
    return requirement_problem(_PLACEHOLDER.sub("1", text))


def _image_variable(name: str) -> tuple[str, str] | None:
    problem = env_problem(name)
    return (
        (problem[0], "leave it out; a recipe can set variables of its own under `env:`") if problem else None
    )


def _refused(_text: str) -> tuple[str, str] | None:
    return "is not for components of a recipe's folder", "put the file into a package, or use `copy:`"


# The form of each key's texts; for a mapping the keys' form is under "<key>", and `*` is any key or item.
_LINKS: Mapping[str, Any] = {"<key>": _paths, "*": _targets}
_RULES: Mapping[str, Any] = {
    "env": {"<key>": _image_variable},
    "links": _LINKS,
    "devel_links": _LINKS,
    "providers": {
        "*": {
            "wheel": _wheels,
            "archive": _words,
            "real": _debs,
            "wheels": {"*": _requirement},
            "devel_wheels": {"*": _requirement},
            "apt": {"*": _debs},
            "devel_apt": {"*": _debs},
            "sections": {"*": _words},
            "env": {"<key>": _image_variable},
            "links": _LINKS,
            "scripts": {"<key>": _refused},
        }
    },
    "build": {
        "debian": _debs,
        "sdist": _wheels,
        "upstream": {"*": {"url": _no_file}},
        "needs": {"*": _debs},
        "apt": {"*": _debs},
        "wheels": {"*": _requirement},
        "env": {"<key>": _variables},
        "steps": {"*": _steps},
        "produces": {"*": _paths},
    },
}


def _shaped(
    document: yamlfile.Document, key: _Key, value: object, rule: Mapping[str, Any] | _Check
) -> Iterator[yamlfile.KeyProblem]:
    """Yield the texts below a key that do not have the form that its rule wants."""
    if callable(rule):
        if isinstance(value, str) and value and (problem := rule(value)):
            yield document.problem(key, *problem)
        return
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
    for step, item in rows:
        if "<key>" in rule and (problem := rule["<key>"](str(step))):
            yield document.problem((*key, step), *problem)
        inner = rule.get(str(step), rule.get("*"))
        if inner is not None:
            yield from _shaped(document, (*key, step), item, inner)


def _sizes(document: yamlfile.Document, key: _Key, value: object) -> Iterator[yamlfile.KeyProblem]:
    """Yield texts that are too long or hold control characters, and lists that are too long."""
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT or not value.rstrip("\n").isprintable():
            message = f"is longer than {_LONGEST_TEXT} characters, or holds control characters or line ends"
            yield document.problem(key, message, "write one line of plain text")
        return
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
    if isinstance(value, (dict, tuple)) and len(value) > _MOST_ITEMS:
        yield document.problem(key, f"has more than {_MOST_ITEMS} items", "is this the right file?")
        return
    for step, item in rows:
        yield from _sizes(document, (*key, step), item)
