"""Reading a recipe, with every problem of the file at once; and writing other pins into it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from imagebuilder.core import labels as label_names
from imagebuilder.core import yamlfile
from imagebuilder.errors import InputError
from imagebuilder.recipe import jobsettings, tags
from imagebuilder.recipe.model import FIRST_FREE_PORT, Recipe
from imagebuilder.recipe.places import Places

# Variables that the image owns: setting them in a recipe would break ssh, mpirun or the venv, or put a
# secret into the config for everyone to read.
RESERVED_ENV = frozenset({"PATH", "HOME", "USER", "SHELL", "HOSTNAME", "PWD", "VIRTUAL_ENV", "LD_PRELOAD"})
_SECRET_ENV = re.compile(r"(?i)(passw|secret|token|api_?key|credential)")

# How similar a misspelt component is to the right one, as difflib counts: more than torchvision to torch
# (0.63), at most cuad to cuda (0.75).
_MISSPELT = 0.7

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LABEL = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
# Keys that people bring from other tools.
_RENAMES = {
    "apt_packages": "apt",
    "packages": "apt",
    "pip_packages": "pip",
    "environment": "env",
    "versions": "pins",
    "components": "pins",
    "image": "base",
    "from": "base",
    "os": "base",
    "overrides": "override",
    "builds": "build",
    "from_source": "build",
    "development": "devel",
    "dev": "devel",
    "python_version": "python",
    "provider": "providers",
    "sshd": "ssh",
    "tag": "tags",
    "platform": "platforms",
    "architecture": "platforms",
    "architectures": "platforms",
    "metadata": "about",
    "annotations": "about",
    "secrets": "not_secret",
    "waivers": "not_secret",
    "cmd": "command",
    "files": "copy",
    "compiled": "compile",
    "extensions": "compile",
    "copies": "copy",
    "working_dir": "workdir",
}


# Names that people write under `pip:`, and what they mean by them. The packages that the index has under
# these names are empty, abandoned or somebody else's.
_PACKAGES = {
    "pytorch": "torch",
    "sklearn": "scikit-learn",
    "tensorflow-gpu": "tensorflow",
    "cv2": "opencv-python-headless",
    "pil": "pillow",
}


def load(path: Path, components: frozenset[str]) -> Recipe:
    """Read and check one recipe; `read` also returns the places of its keys."""
    return read(path, components)[0]


def read(path: Path, components: frozenset[str]) -> tuple[Recipe, Places]:
    """Read and check one recipe.

    Args:
        path: the YAML file.
        components: what the catalog can pin.

    Returns:
        The recipe, and the places of its keys.

    Raises:
        InputError: every problem in the file, each with line, key and remedy.

    """
    return checked(yamlfile.read(path), components)


def checked(document: yamlfile.Document, components: frozenset[str]) -> tuple[Recipe, Places]:
    """Check a recipe whose YAML was read; see `read`."""
    if not isinstance(document.data, dict) or not document.data:
        message = "is empty" if document.data == {} else "is not a mapping of keys"
        raise InputError(message, where=document.where(()), hint="`imagebuilder init` writes a recipe")
    # Rules that involve several keys are checked on the raw data: so they are reported even where the model
    # refuses a value.
    hints = dict.fromkeys(components - {"python"}, "it belongs under `pins:`; put two spaces before it")
    hints |= {name: f"use `{key}`" for name, key in _RENAMES.items()}
    recipe = yamlfile.validate(document, Recipe, hints, also=_cross_checks(document, components))
    return recipe, Places(recipe=recipe.name, document=document)


def with_pins(path: Path, moved: Mapping[str, tuple[str, str]]) -> str:
    """Return a recipe's text with new values for some pins; everything else stays as a person wrote it.

    Args:
        path: a valid recipe.
        moved: for each pin its present value and the new one.

    Raises:
        InputError: a pin is not written on one line with its value in quotes.

    """
    document = yamlfile.read(path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for name, (old, new) in moved.items():
        number = document.line(("pins", name)) - 1
        # The quotes distinguish the value from a comment that mentions it.
        pattern = rf"""(\b{re.escape(name)}["']?\s*:\s*["']){re.escape(old)}(["'])"""
        lines[number], count = re.subn(pattern, rf"\g<1>{new}\g<2>", lines[number], count=1)
        if not count:
            raise InputError(
                f"`{name}` cannot be edited here",
                where=document.where(("pins", name)),
                hint=f'write it on one line, as in {name}: "{old}"',
            )
    return "".join(lines)


def _cross_checks(document: yamlfile.Document, components: frozenset[str]) -> Iterator[yamlfile.KeyProblem]:
    yield from _pin_problems(document, components)
    yield from _repeated(document)
    if document.data.get("slim") is True and document.data.get("devel") is True:
        problem = "is for images that run jobs, and `devel: true` for those that compile"
        yield document.problem(("slim",), problem, "keep one of the two")
    yield from _renamed_packages(document, components)
    yield from _env_problems(document)
    yield from _allowed_problems(document)
    yield from _tag_problems(document)
    yield from _reviewed_twice(document)
    yield from _compile_problems(document)
    for name in _mapping(document, "labels"):
        if not LABEL.fullmatch(name) or name.startswith((label_names.OWN, label_names.OCI)):
            yield document.problem(
                ("labels", name),
                f"`{name}` cannot be a label here",
                "use a reverse domain of your own, in lower case (`about:` sets org.opencontainers.image.*)",
            )
    ssh = _mapping(document, "ssh")
    user, port = ssh.get("user", "root"), ssh.get("port", 22)
    if isinstance(user, str) and user != "root" and isinstance(port, int) and 0 < port < FIRST_FREE_PORT:
        yield document.problem(
            ("ssh", "port"),
            f"user `{yamlfile.printable(user)}` cannot listen on port {port}",
            "ports under 1024 need root; write `port: 2222`",
        )


def _pin_problems(document: yamlfile.Document, components: frozenset[str]) -> Iterator[yamlfile.KeyProblem]:
    pins = _mapping(document, "pins")
    for name in pins:
        if name == "python":
            yield document.problem(
                ("pins", name), "python is not pinned here", "it has its own key: `python:`"
            )
        elif name not in components:
            names = ", ".join(sorted(components - {"python"}))
            known = f"a Python package goes under `pip:`, a Debian package under `apt:`; components: {names}"
            # torchvision is a package of its own, and not a misspelt torch.
            meant = yamlfile.nearest(name, components, cutoff=_MISSPELT)
            yield document.problem(
                ("pins", name), f"`{name}` is not a component that can be pinned", meant or known
            )
    for name in _mapping(document, "providers"):
        if name not in pins:
            yield document.problem(
                ("providers", name),
                f"`{yamlfile.printable(name)}` is given a provider but not pinned",
                "add it under `pins:`, or drop it here",
            )
    if _sequence(document, "build") and isinstance(document.data.get("base"), dict):
        yield document.problem(
            ("build",),
            "components are compiled in a root of a suite's packages, so the base has to be a suite",
            "write `base: debian:trixie`, or take the component as a package",
        )
    for key, done in (("override", "overridden"), ("build", "to be built")):
        for i, name in enumerate(_sequence(document, key)):
            if isinstance(name, str) and name not in pins:
                yield document.problem(
                    (key, i),
                    f"`{yamlfile.printable(name)}` is {done} but not pinned",
                    "add it under `pins:`, or drop it here",
                )


def _compile_problems(document: yamlfile.Document) -> Iterator[yamlfile.KeyProblem]:
    entries = _sequence(document, "compile")
    if entries and isinstance(document.data.get("base"), dict):
        yield document.problem(
            ("compile",),
            "packages are compiled in a root of a suite's packages, so the base has to be a suite",
            "write `base: debian:trixie`, or put a wheel into a folder under `wheel_folders:` of a site file",
        )
    asked = {_package_of(item) for item in _sequence(document, "pip") if isinstance(item, str)}
    for i, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or canonicalize_name(name) in asked | set(_mapping(document, "pins")):
            continue
        yield document.problem(
            ("compile", i, "name"),
            f"`{yamlfile.printable(name)}` is compiled, and nothing asks for it",
            "add it under `pip:`, with its version",
        )


def _package_of(requirement: str) -> str:
    return canonicalize_name(re.split(r"[=<>!~\[; ]", requirement.strip(), maxsplit=1)[0])


def _repeated(document: yamlfile.Document) -> Iterator[yamlfile.KeyProblem]:
    for key in ("apt", "pip", "override", "build", "tags", "platforms"):
        seen: dict[str, int] = {}
        for i, item in enumerate(_sequence(document, key)):
            if not isinstance(item, str):
                continue
            word = re.split(r"[=<>!~\[; ]", item.strip(), maxsplit=1)[0].lower()
            word = canonicalize_name(word) if key == "pip" else word
            if word in seen:
                yield document.problem(
                    (key, i),
                    f"`{yamlfile.printable(word)}` is listed twice (also {key}[{seen[word]}])",
                    "keep one of the two",
                )
            seen.setdefault(word, i)


def _renamed_packages(
    document: yamlfile.Document, components: frozenset[str]
) -> Iterator[yamlfile.KeyProblem]:
    for i, item in enumerate(_sequence(document, "pip")):
        word = (
            canonicalize_name(re.split(r"[=<>!~\[; ]", item.strip(), maxsplit=1)[0])
            if isinstance(item, str)
            else ""
        )
        if meant := _PACKAGES.get(word):
            hint = f"pin `{meant}` under `pins:`" if meant in components else f"write `{meant}`"
            yield document.problem(("pip", i), f"`{word}` is not the package that is meant", hint)


def _env_problems(document: yamlfile.Document) -> Iterator[yamlfile.KeyProblem]:
    allowed = _allowed(document)
    for name, value in _mapping(document, "env").items():
        if problem := env_problem(name, is_allowed=name in allowed, is_empty=value == ""):
            yield document.problem(("env", name), *problem)


def env_problem(name: str, *, is_allowed: bool = False, is_empty: bool = False) -> tuple[str, str] | None:
    """Return message and hint about a variable that an image must not set; None if it may.

    Args:
        name: the variable's name.
        is_allowed: whether the recipe gives a reason for setting what belongs to a job or a host.
        is_empty: whether its value is empty.

    """
    if not _ENV_NAME.fullmatch(name):
        return f"`{name}` is not a variable's name", "use letters, digits and `_`"
    if name in RESERVED_ENV:
        return f"`{name}` belongs to the image", "leave it out of the recipe"
    if _SECRET_ENV.search(name):
        return (
            f"`{name}` looks like a secret, and everyone who pulls the image can read `env`",
            "give it to the container when it starts",
        )
    why = "" if is_allowed else jobsettings.reason(name, is_empty=is_empty)
    if why:
        return (
            f"`{name}` belongs to a job or a host, not to an image: {why}",
            f"give it to the job, or allow it: `allow_env: [{{name: {name}, reason: ...}}]`",
        )
    return None


def _allowed_problems(document: yamlfile.Document) -> Iterator[yamlfile.KeyProblem]:
    for i, name in enumerate(_allowed(document)):
        if name and not jobsettings.reason(name):
            yield document.problem(
                ("allow_env", i),
                f"`{yamlfile.printable(name)}` needs no permission: images may set it",
                "remove it here; names are written in full, without `*`",
            )


def _allowed(document: yamlfile.Document) -> tuple[str, ...]:
    names = (item.get("name") if isinstance(item, dict) else "" for item in _sequence(document, "allow_env"))
    return tuple(name if isinstance(name, str) else "" for name in names)


def _reviewed_twice(document: yamlfile.Document) -> Iterator[yamlfile.KeyProblem]:
    seen: set[tuple[object, object]] = set()
    for i, item in enumerate(_sequence(document, "not_secret")):
        key = (item.get("path"), item.get("sha256")) if isinstance(item, dict) else (None, i)
        if key in seen:
            yield document.problem(("not_secret", i), "the same file is listed twice", "keep one of the two")
        seen.add(key)


def _tag_problems(document: yamlfile.Document) -> Iterator[yamlfile.KeyProblem]:
    known = tags.FIELDS | frozenset(_mapping(document, "pins"))
    for i, template in enumerate(_sequence(document, "tags")):
        if isinstance(template, str) and (problem := tags.unknown(template, known)):
            yield document.problem(("tags", i), *problem)


def _mapping(document: yamlfile.Document, key: str) -> dict[str, Any]:
    value = document.data.get(key)
    return value if isinstance(value, dict) else {}


def _sequence(document: yamlfile.Document, key: str) -> tuple[Any, ...]:
    value = document.data.get(key)
    return value if isinstance(value, tuple) else ()
