"""The user's own project in a recipe: folders that are copied, the working folder and the command."""

from __future__ import annotations

import posixpath
import re
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Rule, Strict

MOST_COPIES = 8
_LONGEST = 200
# Characters that need no quotes in a Dockerfile.
_PLAIN = re.compile(r"[A-Za-z0-9/._+@%=,-]+")
# Folders of packages, wheels, the kernel and this tool: a file copied there could replace a pinned one.
_OF_THE_SYSTEM = (
    *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr"),
    *("var", "opt/venv", "opt/imagebuilder"),
)
# Folders of the system whose modes a copy would change. Folders below them are allowed.
_ONLY_BELOW = re.compile(r"home(?:/[^/]+)?|media|mnt|opt|root|srv|tmp")
# What an editor refuses of a `from` and a `to`; `_from` and `_to` refuse more.
_FOLDER = r"(?![/~])(?!(?:\./+)*\.\./+\.\.(?:/|$))[^\\]+"
_PLACE = rf"/(?!(?:{'|'.join(_OF_THE_SYSTEM)})(?:/|$))(?!(?:{_ONLY_BELOW.pattern})/?$){_PLAIN.pattern}"


def _from(value: str) -> str:
    """Check the path of a project's folder, and normalise it: `./src/` becomes `src`."""
    shown = yamlfile.printable(value)
    if not value or len(value) > _LONGEST or not value.isprintable() or "\\" in value:
        raise yamlfile.Invalid(
            f"`{shown}` is not a folder's path",
            f"write it relative to the recipe's folder, in at most {_LONGEST} characters: ../src",
        )
    if value.startswith(("/", "~")):
        raise yamlfile.Invalid(
            f"`{shown}` is not relative to the recipe's folder",
            "the project must be beside the recipe or one folder above it: ../src",
        )
    plain = posixpath.normpath(value)
    if plain.split("/")[1:2] == [".."]:
        raise yamlfile.Invalid(
            f"`{shown}` leads more than one folder above the recipe's",
            "put recipes into a folder of the project, so that one `..` is enough: ../src",
        )
    return plain


Folder = Annotated[str, Rule(_from, _FOLDER)]


def _absolute(value: str) -> str:
    shown = yamlfile.printable(value)
    if not value.startswith("/"):
        raise yamlfile.Invalid(f"`{shown}` is not an absolute path", "write it as in /workspace")
    if len(value) > _LONGEST or not _PLAIN.fullmatch(value) or ".." in value.split("/"):
        raise yamlfile.Invalid(
            f"`{shown}` is not a plain path in the image",
            f"use letters, digits and `._+@%=,-`, no `..`, and at most {_LONGEST} characters",
        )
    return "/" + posixpath.normpath(value).strip("/")


def _to(value: str) -> str:
    path = _absolute(value).strip("/")
    shown = yamlfile.printable(value)
    for folder in _OF_THE_SYSTEM:
        if path == folder or path.startswith(f"{folder}/"):
            raise yamlfile.Invalid(
                f"`{shown}` lies in /{folder}, which is reserved for the image's own files",
                "choose a folder of your own, as in /workspace or /opt/app",
            )
    if not path or _ONLY_BELOW.fullmatch(path):
        raise yamlfile.Invalid(
            f"`{shown}` is a folder of the system", "name a folder below it, or one of your own: /workspace"
        )
    if any(part == ".ssh" or part.startswith(".wh.") for part in path.split("/")):
        raise yamlfile.Invalid(
            f"`{shown}` is not a place for a project", "choose a folder of your own, as in /workspace"
        )
    return f"/{path}"


class Copy(Strict):
    """A folder of the project, and its path in the image.

    `.dockerignore` in the folder excludes files; `.git` is always excluded. Files get the mode 0644, or 0755
    if their owner may execute them; folders get 0755. All belong to the image's user.
    """

    source: Annotated[
        Folder,
        Field(
            alias="from",
            description="The folder, relative to the recipe's: `../src`, or `..` for all of the project.",
        ),
    ]
    to: Annotated[str, Rule(_to, _PLACE), Field(description="Absolute path in the image: `/workspace`.")]


class OwnPackage(Strict):
    """Your own package: the folder with its pyproject.toml, and the extras and groups that the image needs.

    Its build backend makes a wheel without a network, and the wheel becomes a layer. Its dependencies are
    locked like the packages under `pip:`.
    """

    source: Annotated[
        Folder,
        Field(alias="from", description="The folder with pyproject.toml, relative to the recipe's: `..`."),
    ]
    extras: Annotated[tuple[str, ...], Field(description="Names of its extras.")] = ()
    groups: Annotated[tuple[str, ...], Field(description="Names of its dependency groups.")] = ()

    @property
    def file(self) -> str:
        """Path of its pyproject.toml from the recipe's folder."""
        return posixpath.normpath(f"{self.source}/pyproject.toml")


def _apart(copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
    """Refuse copies that would overlap in the image."""
    if len(copies) > MOST_COPIES:
        raise yamlfile.Invalid(
            f"lists {len(copies)} folders; the limit is {MOST_COPIES}, because each becomes a layer",
            "copy a folder that holds several of them",
        )
    for number, copy in enumerate(copies):
        for other in copies[:number]:
            first, second = sorted((other.to, copy.to))
            if first == second:
                raise yamlfile.Invalid(f"copies two folders to `{first}`", "give each a place of its own")
            if second.startswith(f"{first}/"):
                raise yamlfile.Invalid(
                    f"copies one folder to `{second}`, which is inside another copy, `{first}`",
                    "give each a place of its own",
                )
    return copies


def _kind_of_package(value: object) -> str:
    return "<package>" if isinstance(value, (dict, OwnPackage)) else "<folder>"


PackageKey = Annotated[
    Annotated[Folder, Tag("<folder>")] | Annotated[OwnPackage, Tag("<package>")],
    Discriminator(_kind_of_package),
]
Copies = Annotated[tuple[Copy, ...], AfterValidator(_apart)]
WorkFolder = Annotated[str, Rule(_absolute, f"/{_PLAIN.pattern}")]
