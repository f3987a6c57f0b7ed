"""The block `compile:` of a recipe: Python packages whose source the build compiles."""

from __future__ import annotations

import posixpath
import re
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name
from pydantic import AfterValidator, Field

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Rule, Strict

MOST_PATCH_BYTES = 1 << 20
"""The largest patch: the lock and a rendered Dockerfile have its text."""
_LONGEST = 200
_MODULE = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
# The build sets these itself, or they would make its programs load other code.
_RESERVED = re.compile(
    r"PATH|HOME|DESTDIR|TMPDIR|TZ|LC_ALL|CC|CXX|PYTHON.*|LD_.*|SOURCE_DATE_EPOCH|MAX_JOBS|MAKEFLAGS|"
    r"CMAKE_BUILD_PARALLEL_LEVEL|TORCH_CUDA_ARCH_LIST"
)


def _name(value: str) -> str:
    try:
        return canonicalize_name(value, validate=True)
    except InvalidName:
        shown = yamlfile.printable(value)
        raise yamlfile.Invalid(
            f"`{shown}` is not the name of a package", "give its name alone; its version stays under `pip:`"
        ) from None


def _requirement(value: str) -> str:
    try:
        parsed = Requirement(value)
    except InvalidRequirement:
        parsed = None
    if parsed is None or parsed.url:
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not a requirement of an index",
            'write it as in "setuptools<81"',
        )
    return value


def _file(value: str) -> str:
    plain = posixpath.normpath(value)
    if (
        not value.isprintable()
        or len(value) > _LONGEST
        or plain.startswith(("/", "~", ".."))
        or value != plain
    ):
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not a path below the recipe's folder",
            "put the patch beside the recipe: patches/name.patch",
        )
    return value


def _variables(values: dict[str, str]) -> dict[str, str]:
    for name, text in values.items():
        if not _VARIABLE.fullmatch(name):
            raise yamlfile.Invalid(
                f"`{yamlfile.printable(name)}` is not a variable's name", "use letters, digits and `_`"
            )
        if _RESERVED.fullmatch(name):
            raise yamlfile.Invalid(
                f"`{name}` is set by the build",
                "leave it out; `hosts.gpus` names GPUs, and `gcc:` a compiler",
            )
        if not text.isprintable() or len(text) > _LONGEST:
            raise yamlfile.Invalid(
                f"the value of `{name}` is not one short line", f"at most {_LONGEST} printable characters"
            )
    return values


class Patch(Strict):
    """A change to the source, as `diff -u` and `git diff` write it; it is applied with `patch -p1`."""

    file: Annotated[
        str,
        AfterValidator(_file),
        Field(description="Its path from the recipe's folder: `patches/name.patch`."),
    ]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="Checksum of the file.")]


class Compile(Strict):
    """A package that is compiled from its source distribution, against what the image has."""

    name: Annotated[
        str,
        AfterValidator(_name),
        Field(description="The package. Its version stands under `pip:`, or under `pins:`."),
    ]
    requires: Annotated[
        tuple[Annotated[str, Rule(_requirement, r"\s*[A-Za-z0-9][^@]*")], ...],
        Field(
            max_length=50,
            description="Build requirements that its `[build-system]` does not name. What the image has too, "
            "such as torch, is taken in the image's version.",
        ),
    ] = ()
    apt: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$", max_length=100)], ...],
        Field(max_length=50, description="Debian packages installed only while it compiles: `cmake`."),
    ] = ()
    env: Annotated[
        dict[str, str],
        AfterValidator(_variables),
        Field(default_factory=dict, description='Variables of its build: `HOROVOD_WITH_MPI: "1"`.'),
    ]
    patches: Annotated[
        tuple[Patch, ...], Field(max_length=20, description="Changes to its source, in this order.")
    ] = ()
    cuda: Annotated[
        bool,
        Field(
            description="Whether it has code for GPUs: nvcc and CUDA's headers are there while it compiles, "
            "for the GPUs under `hosts:`."
        ),
    ] = False
    imports: Annotated[
        tuple[Annotated[str, Field(pattern=f"^{_MODULE}$", max_length=200)], ...],
        Field(
            max_length=20,
            description="Modules that the build imports at the end, without a GPU. Without it: the wheel's "
            "top-level packages.",
        ),
    ] = ()


def each_once(values: tuple[Compile, ...]) -> tuple[Compile, ...]:
    """Refuse a package that is listed twice."""
    names = [value.name for value in values]
    for name in names:
        if names.count(name) > 1:
            raise yamlfile.Invalid(f"`{name}` is listed twice", "keep one of the two")
    return values


Compiles = Annotated[tuple[Compile, ...], AfterValidator(each_once)]
