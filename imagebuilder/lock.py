"""The lock: which bytes a recipe means. Data and I/O only.

A lock names files by name, size and sha256, never by URL, host or date, so it holds behind any mirror. It is
JSON with one package a line: quick to read for the tool, and a changed package is one line of a diff.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from imagebuilder import jsontext, textfile
from imagebuilder.errors import InputError, LockError, Problem
from imagebuilder.yamlfile import printable

# 1: packages; 2: also what is compiled, or a base from a registry; 3: also what layers are known to give.
FORMAT = 3
_LIMIT = 16_000_000
# A package is some ten values: this is ten thousand of them.
_MOST_VALUES = 100_000
_SHOWN = 20

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0)]
# A file's name, never a path: what the lock says is joined to folders of the store.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+~%!-]*$", max_length=255)]
# What a lock says ends up in commands, in names of files and in front of people: so nothing that could be a
# path, an option or an escape. Debian's names, which components have as well: Policy 5.6.1 and 5.6.12.
WheelName = Annotated[str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", max_length=200)]
DebName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]*$", max_length=200)]
Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+:~!_-]*$", max_length=200)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=255)]
# What somebody else's image says of itself: one line each, for they stand in Dockerfiles too.
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=255)]
Printed = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=32_768)]
PoolPath = Annotated[str, Field(pattern=r"^[A-Za-z0-9_](?:/?[A-Za-z0-9_+~%:-][A-Za-z0-9._+~%:-]*)*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Wheel(_Strict):
    """One wheel: normalised distribution name, version, file name, size in bytes, sha256 and component.

    The component is the pin that brought the wheel in (`torch`, `cudnn`, ...), `python` for the rest.
    """

    name: WheelName
    version: Version
    file: FileName
    size: Size
    sha256: Sha256
    component: DebName


class Deb(_Strict):
    """One Debian package: `path` is where an archive keeps it, below the archive's root.

    `archive` names one besides the distribution's own, as a base from a registry may bring it.
    """

    name: DebName
    version: Version
    architecture: Word
    path: PoolPath
    size: Size
    sha256: Sha256
    archive: str = ""

    @model_serializer(mode="wrap")
    def _short(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Say nothing of an archive that is the distribution's: most locks know no other."""
        return {key: value for key, value in write(self).items() if key != "archive" or value}


class BaseLayer(_Strict):
    """One layer of the base: digest and size of its blob, digest of the tar inside, OCI's media type."""

    digest: Digest
    diff_id: Digest
    size: Size
    media_type: Word

    @property
    def sha256(self) -> str:
        """The digest as downloads are named after it: hex."""
        return self.digest.removeprefix("sha256:")


class Installed(_Strict):
    """A Debian package that the base holds already; of its file nothing is known."""

    name: Word
    version: Version
    architecture: Word


class BaseImage(_Strict):
    """The image of a registry that everything else stands on.

    Attributes:
        name: as the recipe has it, without a digest.
        digest: of this platform's manifest.
        index: of the list of platforms that it was found in; empty where there is none.
        user: that its config names, empty for root.
        env, labels: of its config.
        accounts: its users with a user id of people's (1000 on), and the id.
        archives: names of the package archives that it is set up for, besides the distribution's.
        layers: the lowest first.
        packages: sorted by name.

    """

    name: Word
    digest: Digest
    index: Digest | Literal[""] = ""
    user: Printed = ""
    env: dict[Variable, Printed]
    labels: dict[Word, Printed]
    accounts: dict[Printed, int]
    archives: tuple[Printed, ...]
    layers: Annotated[tuple[BaseLayer, ...], FailFast(), Field(min_length=1)]
    packages: Annotated[tuple[Installed, ...], FailFast()]


class Source(_Strict):
    """A source archive: a Debian source package's `.orig.tar.*`, a Python package's sdist, or upstream's own.

    Attributes:
        name, version: of the source package (with Debian's revision), the distribution, or the component.
        suite: the Debian suite whose sources have it; empty for others.
        path: where Debian's archive keeps it; empty for others.
        file: name of the file.
        upstream: whether it is upstream's own, whose address the catalog or the site knows.

    """

    name: DebName
    version: Version | Literal[""]
    suite: Word | Literal[""] = ""
    path: PoolPath | Literal[""] = ""
    file: FileName
    size: Size
    sha256: Sha256
    upstream: bool = False

    @property
    def origin(self) -> Literal["debian", "index", "upstream"]:
        """Who has it."""
        if self.upstream:
            return "upstream"
        return "debian" if self.path else "index"

    @model_serializer(mode="wrap")
    def _short(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Say nothing of what most sources are not."""
        return {key: value for key, value in write(self).items() if key != "upstream" or value}


class Build(_Strict):
    """What a component is compiled from, and in.

    Attributes:
        component: the pin.
        version: its full version.
        packages: the Debian packages that were asked for.
        system: those of the lock's `debs` that are in the root it is built in.
        debs: what is in that root, and not in the image.
        wheels: Python packages that are there only while it is built.
        sources: what is compiled.

    """

    component: DebName
    version: Version
    packages: tuple[str, ...]
    system: tuple[DebName, ...]
    debs: Annotated[tuple[Deb, ...], FailFast()]
    wheels: Annotated[tuple[Wheel, ...], FailFast()]
    sources: Annotated[tuple[Source, ...], FailFast()]


class KnownLayer(_Strict):
    """What a layer of wheels is known to give, so that nobody has to unpack it only to learn its diffID.

    Attributes:
        key: the layer's (`plan.WheelLayer.key`): it stands for the wheels and for how they are laid out.
        digest: of the compressed blob; a blob that comes out with it has this diffID.
        diff_id: digest of the tar inside.
        size, unpacked: bytes of the blob and of the tar.

    """

    key: Sha256
    digest: Digest
    diff_id: Digest
    size: Size
    unpacked: Size


class Override(_Strict):
    """A pin that was forced: what the package's dependents ask for, and what the lock has instead."""

    pin: str
    wanted: str
    locked: str
    contradicts: tuple[str, ...]


class Lock(_Strict):
    """All that a build needs to know about bytes.

    Attributes:
        format: version of this file's layout.
        inputs: checksum of the recipe, and of what the catalog made of it.
        recipe: its name.
        base: distribution and suite.
        image: the base, where it comes from a registry; then `debs` are only those on top of its own.
        architecture: Debian's name of it.
        python: major.minor.
        pins: component and full version, of every component in the image.
        packages: the Debian packages that were asked for; `debs` are these and what they need.
        overrides: pins forced against metadata.
        wheels, debs: sorted by name.
        builds: components that are compiled, each after those that it is compiled against.
        layers: what is known of layers that were made before; no part of what the lock means.

    """

    format: Literal[1, 2, 3] = 1
    inputs: Sha256
    recipe: Word
    base: Word
    image: BaseImage | None = None
    architecture: Word
    python: Version
    pins: dict[DebName, Version]
    packages: tuple[str, ...]
    overrides: tuple[Override, ...] = ()
    wheels: Annotated[tuple[Wheel, ...], FailFast()]
    debs: Annotated[tuple[Deb, ...], FailFast()]
    builds: Annotated[tuple[Build, ...], FailFast()] = ()
    layers: Annotated[tuple[KnownLayer, ...], FailFast()] = ()

    @property
    def files(self) -> tuple[Deb | Wheel | Source, ...]:
        """Everything that a build of the image needs, each file once."""
        found: list[Deb | Wheel | Source] = [*self.debs, *self.wheels]
        for build in self.builds:
            found += (*build.debs, *build.wheels, *build.sources)
        return tuple({item.sha256: item for item in found}.values())

    @property
    def sources(self) -> tuple[Source, ...]:
        """What the image's compiled components were compiled from."""
        return tuple(source for build in self.builds for source in build.sources)

    @property
    def installed(self) -> tuple[Deb | Installed, ...]:
        """All Debian packages of the image: those added, and those of the base that they do not replace."""
        added = {(deb.name, deb.architecture) for deb in self.debs}
        names = {deb.name for deb in self.debs}
        below = self.image.packages if self.image else ()
        # A package may change from `all` to an architecture, but two of one name are two architectures'.
        kept = (
            package
            for package in below
            if (package.name, package.architecture) not in added
            and not (package.name in names and package.architecture in {"all", self.architecture})
        )
        return (*self.debs, *kept)

    @cached_property
    def checksum(self) -> str:
        """Hash of the lock's content: hex sha256; its first 12 digits make the tag.

        What layers are known to give is left out, for it follows from the rest.
        """
        return hashlib.sha256(dumps(self.knowing(())).encode()).hexdigest()

    def __copy__(self) -> Lock:
        """Copy without the checksum: copies are made to say something else."""
        copied = super().__copy__()
        copied.__dict__.pop("checksum", None)
        return copied

    def knowing(self, layers: tuple[KnownLayer, ...]) -> Lock:
        """Give the same lock with these layers known, and no others."""
        if layers == self.layers:
            return self
        plain = 2 if self.builds or self.image else 1
        return self.model_copy(update={"layers": layers, "format": FORMAT if layers else plain})


def path_for(recipe: Path) -> Path:
    """Name the lock that stands beside a recipe: `x.yaml` has `x.lock`."""
    return recipe.parent / f"{recipe.stem}.lock"


def dumps(lock: Lock) -> str:
    """Write a lock as text: keys in the order of the model, a package a line, a newline at the end."""
    parts = []
    for key, value in lock.model_dump(mode="json").items():
        if key in ("builds", "image", "layers") and not value:
            continue  # as every lock of format 1
        if key == "builds":
            rows = ",\n".join(f"  {_dump_build(row)}" for row in value)
            parts.append(f' "{key}": [\n{rows}\n ]')
        else:
            parts.append(f' "{key}": {_dump(value, " ")}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _dump(value: Any, indent: str) -> str:
    """Write lists and mappings a row a line, what is inside of a row on that line; mappings in order."""
    inner = f"{indent} "
    if isinstance(value, list) and value:
        rows = [json.dumps(row) for row in value]
        return "[\n" + ",\n".join(f"{inner}{row}" for row in rows) + f"\n{indent}]"
    if isinstance(value, dict) and value:
        rows = [f"{json.dumps(key)}: {_dump(item, inner)}" for key, item in sorted(value.items())]
        return "{\n" + ",\n".join(f"{inner}{row}" for row in rows) + f"\n{indent}}}"
    return json.dumps(value)


def _dump_build(build: dict[str, Any]) -> str:
    """Write one build: its own keys on a line each, its packages as elsewhere in the lock."""
    parts = []
    for key, value in build.items():
        if value and key in ("debs", "wheels", "sources"):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            parts.append(f'   "{key}": [\n{rows}\n   ]')
        else:
            parts.append(f'   "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n  }"


def loads(text: str, where: str) -> Lock:
    """Read a lock from text.

    Raises:
        InputError: it is not a lock, or was changed by hand so that it no longer is one.

    """
    data = parse(text, where)
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        raise LockError(
            f"was written by a newer imagebuilder (format {data['format']})",
            where=where,
            hint="upgrade imagebuilder, or lock again",
        )
    try:
        # JSON mode: there a list is what a tuple looks like.
        return Lock.model_validate_json(text)
    except ValidationError as error:
        problems = [
            Problem(
                message=item["msg"],
                where=": ".join(filter(None, (where, printable(".".join(map(str, item["loc"])))))),
                hint=again(where),
            )
            for item in error.errors()[:_SHOWN]
        ]
        raise InputError.of(problems) from None


def parse(text: str, where: str) -> Any:
    """Read the JSON of a lock, whatever its format.

    Raises:
        InputError: it is not JSON, or says something twice.

    """
    try:
        return jsontext.loads(text, limit=_LIMIT, most=_MOST_VALUES, unique=True)
    except ValueError as error:
        raise InputError(f"is not a lock: it {error}", where=where, hint=again(where)) from None


def read(path: Path) -> Lock:
    """Read the lock of a recipe for a single platform.

    Raises:
        LockError: there is none.
        InputError: it is damaged.

    """
    return loads(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Read a lock file as text.

    Raises:
        LockError: there is none.
        InputError: it cannot be read.

    """
    try:
        # Not by its size: a device has none, and never ends.
        with path.open("rb") as file:
            raw = file.read(_LIMIT + 1)
        if len(raw) > _LIMIT:
            raise InputError("is far too large for a lock", where=str(path), hint=again(str(path)))
        return raw.decode("utf-8")
    except FileNotFoundError:
        raise LockError("there is no lock", where=str(path), hint=again(str(path))) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), hint=again(str(path))) from None


def write(lock: Lock, path: Path) -> None:
    """Write a lock file in one step."""
    textfile.write(path, dumps(lock))


def require_in_step(lock: Lock, inputs: str, recipe: Path) -> None:
    """Refuse a lock that was made from another recipe, or an older state of it.

    Raises:
        LockError: with the command that mends it.

    """
    if lock.inputs != inputs:
        raise LockError(
            "the lock is out of step with its recipe",
            where=str(path_for(recipe)),
            hint=f"run: imagebuilder lock {recipe}",
        )


def again(where: str) -> str:
    """Say how to make a lock anew: a sentence for a hint."""
    return f"run: imagebuilder lock {where.partition(': ')[0].removesuffix('.lock')}.yaml"
