"""The lock: the exact bytes for a recipe on one platform. `lock.file` reads and writes it.

A lock names files by name, size and sha256, never by URL or host, so it holds behind any mirror. It also says
which state of each package archive the packages are from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from imagebuilder.core import times
from imagebuilder.core.model import Strict
from imagebuilder.errors import LockError

# The first line of the text that a lock's checksum hashes. It stays when the file's format changes, because
# tags and labels contain the checksum: the same bytes must keep the same checksum.
_HASHED = ' "format": 1'


def _time(value: str) -> str:
    if times.normal(times.seconds(value)) != value:
        raise ValueError("is not a time as in 2026-11-21T00:53:03Z")
    return value


# Fields that a lock leaves out if they are empty: most have none of them.
_OPTIONAL = ("archives", "builds", "catalog", "image", "layers", "project", "requirements")

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0)]
# A file's name, never a path: it gets joined to folders of the store.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+~%!-]*$", max_length=255)]
# These texts end up in commands, file names and terminals, so none of them can be a path, an option or an
# escape. Names of components follow those of Debian packages: Policy 5.6.1 and 5.6.12.
WheelName = Annotated[str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", max_length=200)]
# The name of a component, and of its file beside a recipe.
OwnName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+-]{0,62}$")]
DebName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]*$", max_length=200)]
Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+:~!_-]*$", max_length=200)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=255)]
# Texts from a base image: each is one line, because they also go into Dockerfiles.
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=255)]
Printed = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=32_768)]
# Of the user's own package: they go to uv, a line each.
Requirement = Annotated[str, Field(pattern=r"^[A-Za-z0-9][^\x00-\x1f\x7f#@\\]*$", max_length=500)]
# When the Release file of each archive was written, by suite, or by name for an archive of others.
Archives = dict[
    Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=255)],
    Annotated[str, AfterValidator(_time)],
]
PoolPath = Annotated[str, Field(pattern=r"^[A-Za-z0-9_](?:/?[A-Za-z0-9_+~%:-][A-Za-z0-9._+~%:-]*)*$")]


class Wheel(Strict):
    """One wheel: normalised distribution name, version, file name, size in bytes, sha256 and component.

    The component is the pin that requires the wheel (`torch`, `cudnn`, ...), or `python` for other wheels.
    """

    name: WheelName
    version: Version
    file: FileName
    size: Size
    sha256: Sha256
    component: DebName


class Deb(Strict):
    """One Debian package. `path` is its path below the archive's root.

    `archive` is the archive's name, or "" for the distribution's own. Bases from registries may have others.
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
        """Leave `archive` out if it is empty."""
        return {key: value for key, value in write(self).items() if key != "archive" or value}


class BaseLayer(Strict):
    """One layer of the base: digest and size of its blob, digest of the tar inside, OCI's media type."""

    digest: Digest
    diff_id: Digest
    size: Size
    media_type: Word

    @property
    def sha256(self) -> str:
        """The digest in hex, as the store names downloads."""
        return self.digest.removeprefix("sha256:")


class Installed(Strict):
    """A Debian package that the base already has. The lock does not know its file."""

    name: Word
    version: Version
    architecture: Word


class BaseImage(Strict):
    """The base image, from a registry. All other layers are put on top of it.

    Attributes:
        name: its name in the recipe, without a digest.
        digest: digest of this platform's manifest.
        index: digest of the image index that listed it; "" for an image without an index.
        created: the time in its config; "" if it states none.
        user: the user in its config; "" for root.
        env, labels: variables and labels in its config.
        accounts: its users with ids from 1000 on, and their ids.
        archives: names of the package archives that it is set up for, besides the distribution's own.
        layers: its layers, the lowest first.
        packages: its Debian packages, sorted by name.

    """

    name: Word
    digest: Digest
    index: Digest | Literal[""] = ""
    created: Annotated[str, AfterValidator(_time)] | Literal[""] = ""
    user: Printed = ""
    env: dict[Variable, Printed]
    labels: dict[Word, Printed]
    accounts: dict[Printed, int]
    archives: tuple[Printed, ...]
    layers: Annotated[tuple[BaseLayer, ...], FailFast(), Field(min_length=1)]
    packages: Annotated[tuple[Installed, ...], FailFast()]


class Source(Strict):
    """A source archive: a Debian source package's `.orig.tar.*`, a Python package's sdist, or upstream's own.

    Attributes:
        name, version: of the source package (with Debian's revision), the distribution, or the component.
        suite: the Debian suite that has it; "" for sources that are not Debian's.
        path: its path in Debian's archive; "" for sources that are not Debian's.
        file: name of the file.
        upstream: whether it is upstream's own archive; the catalog or the site has its URL.

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
        """The kind of place that it comes from."""
        if self.upstream:
            return "upstream"
        return "debian" if self.path else "index"

    @model_serializer(mode="wrap")
    def _short(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `upstream` out if it is false."""
        return {key: value for key, value in write(self).items() if key != "upstream" or value}


class LockedPatch(Strict):
    """A patch of the recipe: its file there, its checksum, and its text."""

    file: Printed
    sha256: Sha256
    text: Annotated[str, Field(max_length=1 << 20)]


class Compiled(Strict):
    """What makes a build one of `compile:`: a Python package's source becomes a wheel.

    Attributes:
        depends: what the installed package requires on this platform, as its source says, without markers.
        requires: its build requirements, those of the recipe included.
        against: wheels of the image that it is compiled with, by name; `wheels` of the build are the others.
        beside: more wheels of the image, which it needs when it is imported.
        patches: changes to its source, in this order.

    """

    depends: tuple[Requirement, ...]
    requires: tuple[Requirement, ...]
    against: tuple[WheelName, ...]
    beside: tuple[WheelName, ...]
    patches: tuple[LockedPatch, ...] = ()


class Build(Strict):
    """How a component is compiled: its sources, and the root file system for the compiler.

    Attributes:
        component: the pin.
        version: its full version.
        archives: as in `Lock`, for `debs` and for Debian's sources.
        packages: the requested Debian packages, without their dependencies.
        system: packages of the root that the image has too, by their names in the lock's `debs`.
        debs: packages of the root that the image does not have.
        wheels: Python packages installed only while it compiles.
        sources: the source archives.
        compiled: for a package of `compile:`, whose `component` is its name.

    """

    component: DebName
    version: Version
    archives: Archives = Field(default_factory=dict)
    packages: tuple[str, ...]
    system: tuple[DebName, ...]
    debs: Annotated[tuple[Deb, ...], FailFast()]
    wheels: Annotated[tuple[Wheel, ...], FailFast()]
    sources: Annotated[tuple[Source, ...], FailFast()]
    compiled: Compiled | None = None

    @model_serializer(mode="wrap")
    def _short(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `compiled` out if there is none."""
        return {key: value for key, value in write(self).items() if key != "compiled" or value}


class ProjectBuild(Strict):
    """What the wheel of the user's project is made with. None of it is in the image.

    Attributes:
        name: of the project, whose own files and version are not in the lock.
        requires: what its [build-system] asks for, sorted.
        wheels: that, and what it brings in.

    """

    name: WheelName
    requires: tuple[Requirement, ...]
    wheels: Annotated[tuple[Wheel, ...], FailFast()]


class KnownLayer(Strict):
    """Digest, diffID and sizes of a layer that an earlier build made. An empty layer has the size 0.

    Attributes:
        key: the key of the plan's layer: a hash of everything that determines its bytes.
        digest: of the compressed blob.
        diff_id: digest of the tar inside.
        size, unpacked: bytes of the blob and of the tar.
        toc: digest of the blob's table of contents, by which engines fetch single files; "" without one.

    """

    key: Sha256
    digest: Digest
    diff_id: Digest
    size: Size
    unpacked: Size
    toc: Digest | Literal[""] = ""

    @model_serializer(mode="wrap")
    def _short(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `toc` out if it is empty."""
        return {key: value for key, value in write(self).items() if key != "toc" or value}


class Override(Strict):
    """A forced pin: what other packages require, and what the lock has instead."""

    pin: str
    wanted: str
    locked: str
    contradicts: tuple[str, ...]


class RequirementSet(Strict):
    """What one requirement file of the recipe asked for when it was locked.

    Attributes:
        file: as the recipe names it.
        asked: requirements that count on this platform, sorted, without markers.
        limits: hash of its constraints and of the file hashes that it allows; empty where it has none.

    """

    file: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=1000)]
    asked: Annotated[tuple[Annotated[str, Field(max_length=2000)], ...], FailFast()]
    limits: Sha256 | Literal[""] = ""


class Lock(Strict):
    """The bytes that a build for one platform needs.

    Attributes:
        inputs: checksum of the recipe, and of what the catalog requires for it.
        recipe: the recipe's name.
        base: distribution and suite.
        image: the base if it comes from a registry, else None. `debs` are then only the added packages.
        architecture: its Debian name.
        python: major.minor.
        pins: component and full version, of every component in the image.
        packages: the requested Debian packages; `debs` are these and their dependencies.
        archives: the state of the package archives that has `debs`.
        requirements: what the recipe's requirement files asked for.
        overrides: pins forced against metadata.
        wheels, debs: sorted by name.
        builds: components to compile, each after those that it is compiled against.
        project: what the user's own package is built with, if the recipe has one.
        catalog: the components that the recipe's own folder describes, each with its file's content.
        layers: the layers that recipe and lock give, as an earlier build made them. They follow from the
            rest, so the checksum leaves them out.

    """

    inputs: Sha256
    recipe: Word
    base: Word
    image: BaseImage | None = None
    architecture: Word
    python: Version
    pins: dict[DebName, Version]
    packages: tuple[str, ...]
    archives: Archives = Field(default_factory=dict)
    requirements: Annotated[tuple[RequirementSet, ...], FailFast()] = ()
    overrides: tuple[Override, ...] = ()
    wheels: Annotated[tuple[Wheel, ...], FailFast()]
    debs: Annotated[tuple[Deb, ...], FailFast()]
    builds: Annotated[tuple[Build, ...], FailFast()] = ()
    project: ProjectBuild | None = None
    catalog: dict[OwnName, dict[str, Any]] = Field(default_factory=dict)
    layers: Annotated[tuple[KnownLayer, ...], FailFast()] = ()

    @property
    def files(self) -> tuple[Deb | Wheel | Source, ...]:
        """Everything that a build of the image needs, each file once."""
        files: list[Deb | Wheel | Source] = [*self.debs, *self.wheels]
        for build in self.builds:
            files += (*build.debs, *build.wheels, *build.sources)
        files += self.project.wheels if self.project else ()
        return tuple({item.sha256: item for item in files}.values())

    @property
    def created(self) -> str:
        """The newest time that the lock records, which is the image's; the epoch if it records none."""
        states = (self.archives, *(build.archives for build in self.builds))
        stated = [time for state in states for time in state.values()]
        return max((times.EPOCH, *stated, *([self.image.created] if self.image else [])))

    @property
    def compiled(self) -> dict[str, Build]:
        """The packages that are compiled to wheels, by name."""
        return {build.component: build for build in self.builds if build.compiled}

    @property
    def depends(self) -> tuple[str, ...]:
        """What these packages require of the image's wheels."""
        return tuple(text for build in self.builds if build.compiled for text in build.compiled.depends)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the image's compiled components."""
        return tuple(source for build in self.builds for source in build.sources)

    @property
    def installed(self) -> tuple[Deb | Installed, ...]:
        """All Debian packages of the image: the added ones, and those of the base that stay."""
        added = {(deb.name, deb.architecture) for deb in self.debs}
        names = {deb.name for deb in self.debs}
        below = self.image.packages if self.image else ()
        # An added package replaces one of the same name and architecture. It may also change a package from
        # `all` to an architecture, or back. Packages of foreign architectures stay.
        kept = (
            package
            for package in below
            if (package.name, package.architecture) not in added
            and not (package.name in names and package.architecture in {"all", self.architecture})
        )
        return (*self.debs, *kept)

    @cached_property
    def checksum(self) -> str:
        """Hex sha256 of the lock's content, without `layers`; its first 12 digits are a tag."""
        text = braced([_HASHED, *rows(self.knowing(()))])
        return hashlib.sha256(f"{text}\n".encode()).hexdigest()

    def __copy__(self) -> Lock:
        """Copy without the cached checksum, because the copy will be changed."""
        copied = super().__copy__()
        copied.__dict__.pop("checksum", None)
        return copied

    def knowing(self, layers: tuple[KnownLayer, ...]) -> Lock:
        """Return the same lock with these `layers` instead of its own."""
        if layers == self.layers:
            return self
        return self.model_copy(update={"layers": layers})


def path_for(recipe: Path) -> Path:
    """Return the path of a recipe's lock: `x.lock` beside `x.yaml`."""
    return recipe.parent / f"{recipe.stem}.lock"


def rows(lock: Lock, *, leave_out: Collection[str] = ()) -> list[str]:
    """Write each field of a lock as `"key": value`, in the order of the model, one package a line.

    Those of `_OPTIONAL` are left out if they are empty.
    """
    written = []
    for key, value in lock.model_dump(mode="json", exclude=set(leave_out)).items():
        if key in _OPTIONAL and not value:
            continue
        if key == "builds":
            builds = ",\n".join(f"  {_dump_build(row)}" for row in value)
            written.append(f' "{key}": [\n{builds}\n ]')
        else:
            written.append(f' "{key}": {_dump(value, " ")}')
    return written


def braced(written: Iterable[str]) -> str:
    """Join rows to a JSON object."""
    return "{\n" + ",\n".join(written) + "\n}"


def _dump(value: Any, indent: str) -> str:
    """Write a list or mapping with one row a line; mappings sorted by key."""
    inner = f"{indent} "
    if isinstance(value, list) and value:
        rows = [json.dumps(row) for row in value]
        return "[\n" + ",\n".join(f"{inner}{row}" for row in rows) + f"\n{indent}]"
    if isinstance(value, dict) and value:
        rows = [f"{json.dumps(key)}: {_dump(item, inner)}" for key, item in sorted(value.items())]
        return "{\n" + ",\n".join(f"{inner}{row}" for row in rows) + f"\n{indent}}}"
    return json.dumps(value)


def _dump_build(build: dict[str, Any]) -> str:
    """Write one build with one key a line, and one package a line."""
    parts = []
    for key, value in build.items():
        if value and key in ("debs", "wheels", "sources"):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            parts.append(f'   "{key}": [\n{rows}\n   ]')
        else:
            parts.append(f'   "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n  }"


def require_in_step(lock: Lock, inputs: str, recipe: Path) -> None:
    """Refuse a lock that was made from another recipe, or an older state of it.

    Raises:
        LockError: names the command that writes the lock again.

    """
    if lock.inputs != inputs:
        raise LockError(
            "the lock is out of step with its recipe",
            where=str(path_for(recipe)),
            hint=f"run: imagebuilder lock {recipe}",
        )


def again(where: str) -> str:
    """Return the command that writes a lock again, as a hint."""
    return f"run: imagebuilder lock {where.partition(': ')[0].removesuffix('.lock')}.yaml"
