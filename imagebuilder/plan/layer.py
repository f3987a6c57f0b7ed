"""The kinds of layers that an image has, and their keys.

A layer's `key` is the hash of all that determines its bytes, with a format version, so that an engine can ask
its store whether the layer is there before it makes anything. It is computed once: layers do not change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from imagebuilder import catalog
from imagebuilder.core import labels as label_names
from imagebuilder.lock.model import BaseLayer, Deb, Source, Wheel

VENV = catalog.VENV
# Where the entrypoint of an image with `ssh: {keys: baked}` finds them.
BAKED_KEYS = "/etc/imagebuilder/keys"
# Of a field that changes no byte of its layer.
_NOT_IN_KEY = MappingProxyType({"key": False})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One path of a files layer. `kind` is `file`, `dir` or `link` (then `text` is the target)."""

    path: str
    kind: str
    mode: int
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class User:
    """The image's user; `name` is `root` where no other is made. `uid` is numeric, the group is always 0."""

    name: str
    uid: int
    home: str


@dataclass(frozen=True, kw_only=True)
class OsLayer:
    """The Debian packages, configured; and the user and the empty venv that need a running system to make.

    `asked` are the packages that were asked for, of which all others are dependencies. They change no byte.
    """

    distribution: str
    suite: str
    architecture: str
    debs: tuple[Deb, ...]
    user: User
    python: str
    venv: str = VENV
    asked: tuple[str, ...] = dataclasses.field(default=(), metadata=_NOT_IN_KEY)

    FORMAT = 1

    @property
    def title(self) -> str:
        return f"{self.distribution} {self.suite}, {len(self.debs)} packages"

    @property
    def sections(self) -> tuple[str, ...]:
        """Sections of the archive that packages are from, and that a base's own sources leave out."""
        found = {word for deb in self.debs for word in deb.path.split("/")[1:3]}
        return tuple(sorted(found & {"contrib", "non-free", "multiverse", "restricted"}))

    @cached_property
    def key(self) -> str:
        return _key("os", self.FORMAT, self)


@dataclass(frozen=True, kw_only=True)
class OsPart:
    """A layer of the system: what some of its packages brought, or its state, which is all the rest.

    All parts of a system are made at once, and together are the files of its `OsLayer`. A part's key is of
    the whole system, for a script of one package may change what another brought; but as a rule its bytes,
    and with them its digest, depend on its own packages alone.

    Attributes:
        system: that it is a part of.
        name: one of its kind in the system.
        about: what people call what is in it.
        debs: whose files it has; none for the state.

    """

    system: OsLayer
    name: str
    about: str
    debs: tuple[Deb, ...]

    FORMAT = 1

    @property
    def title(self) -> str:
        count = f", {len(self.debs)} packages" if self.debs else ""
        return f"{self.system.distribution} {self.system.suite}: {self.about}{count}"

    @cached_property
    def key(self) -> str:
        names = [deb.name for deb in self.debs]
        return _key("os-part", self.FORMAT, [self.system.key, self.name, names])

    @property
    def likely(self) -> str:
        """A key of its own packages alone: what they gave in another system is a good guess of the bytes."""
        system = self.system
        where = [system.distribution, system.suite, system.architecture]
        return _key("os-part-likely", self.FORMAT, [where, self.name, [deb.sha256 for deb in self.debs]])


@dataclass(frozen=True, kw_only=True)
class ImportedLayer:
    """A layer of the base as its registry has it: no byte of it changes, so it is shared and not sent."""

    blob: BaseLayer
    title: str

    FORMAT = 1

    @cached_property
    def key(self) -> str:
        return _key("imported", self.FORMAT, self.blob)


@dataclass(frozen=True, kw_only=True)
class UpperOsLayer(OsLayer):
    """What installing the packages changes in the base whose layers are `below`: the difference alone."""

    below: tuple[BaseLayer, ...]

    FORMAT = 1

    @property
    def title(self) -> str:
        return f"{len(self.debs)} packages on top of {self.distribution} {self.suite}"

    @cached_property
    def key(self) -> str:
        return _key("os-above", self.FORMAT, self)


@dataclass(frozen=True, kw_only=True)
class WheelLayer:
    """Wheels unpacked into the venv, in this order; `component` is the pin that they belong to."""

    component: str
    wheels: tuple[Wheel, ...]
    python: str
    venv: str = VENV

    FORMAT = 1

    @property
    def title(self) -> str:
        if len(self.wheels) == 1:
            return f"{self.wheels[0].name} {self.wheels[0].version}"
        return f"{self.component}: {len(self.wheels)} wheels"

    @cached_property
    def key(self) -> str:
        # Only the bytes count: which component asked for a wheel changes nothing in the layer.
        wheels = [(wheel.file, wheel.sha256) for wheel in self.wheels]
        return _key("wheels", self.FORMAT, [wheels, self.python, self.venv])


@dataclass(frozen=True, kw_only=True)
class BytecodeLayer:
    """Wheels' modules, compiled: what Python would write into `__pycache__` at the first import of each.

    Attributes:
        component: the pin that the wheels belong to.
        wheels: whose modules; in the order in which they are unpacked.
        python: its release, as in 3.13.
        packages: Debian's packages of that Python, which has to be the image's very own, and what it runs on.
        below: layers of a base from a registry, which then has what is not among the packages.
        architecture: of the packages.
        venv: where the wheels are.

    """

    component: str
    wheels: tuple[Wheel, ...]
    python: str
    packages: tuple[Deb, ...]
    below: tuple[BaseLayer, ...]
    architecture: str
    venv: str = VENV

    FORMAT = 3  # also of `layers/hooks/bytecode`: a change there that changes bytes counts this up

    @property
    def title(self) -> str:
        if len(self.wheels) == 1:
            return f"{self.wheels[0].name} {self.wheels[0].version}: bytecode"
        return f"{self.component}: bytecode of {len(self.wheels)} wheels"

    @cached_property
    def key(self) -> str:
        wheels = [(wheel.file, wheel.sha256) for wheel in self.wheels]
        return _key("bytecode", self.FORMAT, [wheels, self.python, self.venv, *self._compiler])

    def part_key(self, sha256: str, modules: Sequence[str]) -> str:
        """Name what a wheel's modules give: those of these paths, of the wheel with this hash."""
        return _key("bytecode-part", self.FORMAT, [sha256, modules, self.python, *self._compiler])

    @property
    def _compiler(self) -> tuple[list[str], list[str]]:
        # The compiler is a part of Python: what that is linked against changes nothing in what it writes, and
        # another machine's gives the same. A base's Python is known by the base alone.
        compiler = sorted({deb.version for deb in self.packages if f"python{self.python}" in deb.name})
        return compiler, [] if compiler else [layer.digest for layer in self.below]


@dataclass(frozen=True, kw_only=True)
class FilesLayer:
    """Plain files, folders and links, owned by root."""

    name: str
    entries: tuple[Entry, ...]

    FORMAT = 1

    @property
    def title(self) -> str:
        return f"{self.name}: {len(self.entries)} files"

    @cached_property
    def key(self) -> str:
        return _key("files", self.FORMAT, self.entries)


@dataclass(frozen=True, kw_only=True)
class BuiltLayer:
    """A component compiled from its source, in a root of its own of which nothing else is kept.

    Attributes:
        component, version: what it is.
        root: the Debian packages that it is compiled in; those of the image, and more.
        below: compiled components that are in that root too.
        wheels: Python packages that are there only meanwhile.
        sources: what is compiled.
        env: variables of the steps, sorted.
        steps: commands of the shell.
        produces: paths of which the layer is made, without the slash at their beginning.

    """

    component: str
    version: str
    root: OsLayer
    below: tuple[BuiltLayer, ...]
    wheels: tuple[Wheel, ...]
    sources: tuple[Source, ...]
    env: tuple[tuple[str, str], ...]
    steps: tuple[str, ...]
    produces: tuple[str, ...]

    FORMAT = 1

    @property
    def title(self) -> str:
        return f"{self.component} {self.version}, compiled"

    @property
    def folder(self) -> str:
        """Where the source is unpacked; a plain place, for it stands in what the compiler makes."""
        return f"/usr/src/{self.component}-{self.version}"

    def script(self, place: str) -> str:
        """Write all steps as one script of the shell: unpack, compile, install into DESTDIR.

        Args:
            place: the folder with `archives`, `python` (unpacked wheels) and `product` (DESTDIR).

        """
        variables = {
            "DESTDIR": f"{place}/product",
            "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            # What a configure script writes down of whom and where it ran for.
            "USER": "root",
            "HOME": "/root",
            "HOSTNAME": "localhost",
            "SOURCE_DATE_EPOCH": "0",
            **({"PYTHONPATH": f"{place}/python", "PYTHONDONTWRITEBYTECODE": "1"} if self.wheels else {}),
            **dict(self.env),
        }
        archives = (shlex.quote(f"{place}/archives/{source.file}") for source in self.sources)
        lines = (
            "set -eu",
            "umask 022",
            *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
            'JOBS="$(nproc)"',
            "export JOBS",
            f"mkdir -p {self.folder}",
            f"cd {self.folder}",
            *(f"tar -x --strip-components=1 --no-same-owner -f {archive}" for archive in archives),
            *self.steps,
        )
        return "".join(f"{line}\n" for line in lines)

    @cached_property
    def key(self) -> str:
        below = [layer.key for layer in self.below]
        bytes_of = [[item.sha256 for item in items] for items in (self.wheels, self.sources)]
        how = [self.script(""), self.produces]
        return _key("built", self.FORMAT, [self.root.key, below, bytes_of, how])


@dataclass(frozen=True, kw_only=True)
class PackageLayer:
    """The user's own package: a wheel that its backend makes of files of this host, unpacked into the venv.

    Attributes:
        name: of the package, as indexes write it.
        source: its folder, relative to the recipe's.
        checksum: of its files: names, kinds, modes and contents. Hex sha256.
        requirements: what its backend needs, in a venv of which nothing is kept.
        python: release of the image's Python, as in 3.13.
        packages: Debian's packages of what runs the backend: that Python and its libraries, or, where the
            image can compile modules, all of the image's.
        below: layers of a base from a registry, which then has what is not among the packages.
        architecture: of the packages.
        venv: where the wheel goes.

    """

    name: str
    source: str
    checksum: str
    requirements: WheelLayer
    python: str
    packages: tuple[Deb, ...]
    below: tuple[BaseLayer, ...]
    architecture: str
    venv: str = VENV

    component = "project"
    FORMAT = 1  # also of `layers/hooks/package`: a change there that changes bytes counts this up

    @property
    def title(self) -> str:
        return f"your package: {self.name}"

    @cached_property
    def key(self) -> str:
        return _key("package", self.FORMAT, [*self._made_of, self.venv])

    @cached_property
    def wheel_key(self) -> str:
        """Name the wheel, which the layer is made of."""
        return _key("package-wheel", self.FORMAT, self._made_of)

    @property
    def _made_of(self) -> list[object]:
        system = [sorted(deb.sha256 for deb in self.packages), [layer.digest for layer in self.below]]
        return [self.name, self.checksum, self.requirements.key, self.python, system]


@dataclass(frozen=True, kw_only=True)
class KeysLayer:
    """An ssh key that is baked in. It is random, and so in no plan: a store makes it once for each lock."""

    image: str
    lock: str
    folder: str = BAKED_KEYS

    FORMAT = 1

    @property
    def title(self) -> str:
        return "ssh key, baked in"

    @cached_property
    def key(self) -> str:
        return _key("keys", self.FORMAT, self)


@dataclass(frozen=True, kw_only=True)
class ProjectLayer:
    """A folder of the user's own project; its files are on this host, and in no lock.

    Attributes:
        source: the folder, relative to the recipe's.
        target: where the image has it, absolute.
        checksum: of everything that is copied: names, kinds, modes and contents. Hex sha256.
        user: who owns the files.

    """

    source: str
    target: str
    checksum: str
    user: User

    FORMAT = 1

    @property
    def title(self) -> str:
        return f"your files: {self.source} -> {self.target}"

    @cached_property
    def key(self) -> str:
        return _key("project", self.FORMAT, [self.target, self.checksum, self.user])


@dataclass(frozen=True, kw_only=True)
class Project:
    """What a plan has to know of the user's own files: all of it also stands in the image's labels.

    Attributes:
        checksums: one for each folder that the recipe copies, in its order.
        package: one for the folder of the user's package; "" where the recipe has none.
        revision: their commit, with `-dirty` where they differ from it; "" where none is known.

    """

    checksums: tuple[str, ...] = ()
    package: str = ""
    revision: str = ""

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Project:
        """Read what an image says of itself."""
        checksums = tuple(labels.get(label_names.PROJECT, "").split())
        package = labels.get(label_names.PACKAGE, "")
        revision = labels.get(label_names.REVISION, "") if checksums or package else ""
        return cls(checksums=checksums, package=package, revision=revision)


NO_PROJECT = Project()


Layer = (
    ImportedLayer
    | OsLayer
    | OsPart
    | BuiltLayer
    | WheelLayer
    | BytecodeLayer
    | FilesLayer
    | PackageLayer
    | KeysLayer
    | ProjectLayer
)


def fields(value: Any) -> dict[str, Any]:
    """Give the fields of a dataclass by name, to make another kind of it."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _key(kind: str, version: int, content: object) -> str:
    text = json.dumps([kind, version, content], default=_plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        left_out = {field.name for field in dataclasses.fields(value) if field.metadata == _NOT_IN_KEY}
        return {name: item for name, item in fields(value).items() if name not in left_out}
    if isinstance(value, (BaseLayer, Deb, Wheel)):
        return value.model_dump(mode="json")
    raise TypeError(f"a layer's key cannot hold {type(value).__name__}")
