"""The kinds of layers that an image has, and their keys.

A layer's `key` is the hash of everything that determines its bytes, and of a format version. An engine looks
it up in the store before it makes the layer. It is computed once: layers are immutable.
"""

from __future__ import annotations

import base64
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
from imagebuilder.plan import backend
from imagebuilder.plan.slim import Slim

VENV = catalog.VENV
# The folder of the keys in an image with `ssh: {keys: baked}`.
BAKED_KEYS = "/etc/imagebuilder/keys"
# Marks a field that changes no byte of its layer.
_NOT_IN_KEY = MappingProxyType({"key": False})
# Marks a field that is in its layer's key only if it is set.
_IF_SET = MappingProxyType({"key": "if set"})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One path of a files layer. `kind` is `file`, `dir` or `link` (then `text` is the target)."""

    path: str
    kind: str
    mode: int
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class User:
    """The image's user: `root`, or one that is created. Its group is always 0."""

    name: str
    uid: int
    home: str


@dataclass(frozen=True, kw_only=True)
class OsLayer:
    """The installed Debian packages, the user, and the empty venv.

    `asked` are the requested packages; the others are their dependencies. It changes no byte.
    `slim` says which of the packages' files are left out.
    """

    distribution: str
    suite: str
    architecture: str
    debs: tuple[Deb, ...]
    user: User
    python: str
    venv: str = VENV
    asked: tuple[str, ...] = dataclasses.field(default=(), metadata=_NOT_IN_KEY)
    slim: Slim | None = dataclasses.field(default=None, metadata=_IF_SET)

    FORMAT = 3

    @property
    def title(self) -> str:
        return f"{self.distribution} {self.suite}, {len(self.debs)} packages"

    @property
    def sections(self) -> tuple[str, ...]:
        """Sections of the archive that hold some of the packages, besides the default ones."""
        folders = {word for deb in self.debs for word in deb.path.split("/")[1:3]}
        return tuple(sorted(folders & {"contrib", "non-free", "multiverse", "restricted"}))

    @cached_property
    def key(self) -> str:
        return _key("os", self.FORMAT, self)


@dataclass(frozen=True, kw_only=True)
class OsPart:
    """One of the layers that a system is split into: the files of some packages, or its state (all the rest).

    All parts are made at once; together they have the files of the `OsLayer`. A part's key covers the whole
    system, because one package's script may change another package's files. But usually a part's bytes, and
    so its digest, depend only on its own packages.

    Attributes:
        system: the system that it is a part of.
        name: unique among the parts of the system.
        about: title for people.
        debs: the packages whose files it has; none for the state.

    """

    system: OsLayer
    name: str
    about: str
    debs: tuple[Deb, ...]

    FORMAT = 3

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
        """A key of its own packages only. What they gave in another system is a good guess of the bytes."""
        system = self.system
        suite = [system.distribution, system.suite, system.architecture]
        own = [suite, self.name, [deb.sha256 for deb in self.debs]]
        return _key("os-part-likely", self.FORMAT, [*own, system.slim] if system.slim else own)


@dataclass(frozen=True, kw_only=True)
class ImportedLayer:
    """A layer of a base from a registry. Its bytes do not change, so registries can share it."""

    blob: BaseLayer
    title: str

    FORMAT = 1

    @cached_property
    def key(self) -> str:
        return _key("imported", self.FORMAT, self.blob)


@dataclass(frozen=True, kw_only=True)
class UpperOsLayer(OsLayer):
    """The changes that installing packages makes to a base whose layers are `below`."""

    below: tuple[BaseLayer, ...]

    FORMAT = 3

    @property
    def title(self) -> str:
        return f"{len(self.debs)} packages on top of {self.distribution} {self.suite}"

    @cached_property
    def key(self) -> str:
        return _key("os-above", self.FORMAT, self)


@dataclass(frozen=True, kw_only=True)
class WheelLayer:
    """Wheels unpacked into the venv, in this order; `component` is the pin that requires them.

    `slim` says which members of which wheels are left out, by the wheels' file names.
    """

    component: str
    wheels: tuple[Wheel, ...]
    python: str
    venv: str = VENV
    slim: tuple[tuple[str, Slim], ...] = ()

    FORMAT = 3

    @property
    def title(self) -> str:
        if len(self.wheels) == 1:
            return f"{self.wheels[0].name} {self.wheels[0].version}"
        return f"{self.component}: {len(self.wheels)} wheels"

    @cached_property
    def key(self) -> str:
        # The component is not part of the key: it changes no byte.
        wheels = [(wheel.file, wheel.sha256) for wheel in self.wheels]
        return _key("wheels", self.FORMAT, [wheels, self.python, self.venv, *self.slim])


@dataclass(frozen=True, kw_only=True)
class BytecodeLayer:
    """Wheels' modules, compiled: the files that Python would write into `__pycache__` at their first import.

    Attributes:
        component: the pin that requires the wheels.
        wheels: the wheels with the modules, in the order in which they are unpacked.
        python: Python's release, as in 3.13.
        packages: Debian's packages of the image's own Python, and the libraries that it runs on.
        below: layers of a base from a registry; they have what is not among the packages.
        architecture: architecture of the packages.
        venv: the folder that the wheels are unpacked into.
        slim: as of `WheelLayer`.

    """

    component: str
    wheels: tuple[Wheel, ...]
    python: str
    packages: tuple[Deb, ...]
    below: tuple[BaseLayer, ...]
    architecture: str
    venv: str = VENV
    slim: tuple[tuple[str, Slim], ...] = ()

    FORMAT = 3  # increase this, too, if a change in `layers/hooks/bytecode` changes bytes

    @property
    def title(self) -> str:
        if len(self.wheels) == 1:
            return f"{self.wheels[0].name} {self.wheels[0].version}: bytecode"
        return f"{self.component}: bytecode of {len(self.wheels)} wheels"

    @cached_property
    def key(self) -> str:
        wheels = [(wheel.file, wheel.sha256) for wheel in self.wheels]
        made_of = [wheels, self.python, self.venv, *self._compiler, *self.slim]
        return _key("bytecode", self.FORMAT, made_of)

    def part_key(self, sha256: str, modules: Sequence[str]) -> str:
        """Return the key of the bytecode of these modules of the wheel with this hash."""
        return _key("bytecode-part", self.FORMAT, [sha256, modules, self.python, *self._compiler])

    @property
    def _compiler(self) -> tuple[list[str], list[str]]:
        # Only Python's own packages determine the bytecode, not the libraries it is linked against, nor the
        # machine. If Python comes with a base from a registry, the base's layers identify it.
        compiler = sorted({deb.version for deb in self.packages if f"python{self.python}" in deb.name})
        return compiler, [] if compiler else [layer.digest for layer in self.below]


@dataclass(frozen=True, kw_only=True)
class FilesLayer:
    """Plain files, folders and links, owned by root."""

    name: str
    entries: tuple[Entry, ...]

    FORMAT = 3

    @property
    def title(self) -> str:
        return f"{self.name}: {len(self.entries)} files"

    @cached_property
    def key(self) -> str:
        return _key("files", self.FORMAT, self.entries)


@dataclass(frozen=True, kw_only=True)
class BuiltLayer:
    """A component compiled from its source, in a root that is thrown away afterwards.

    Attributes:
        component, version: the component and its full version.
        root: the system that it is compiled in: packages of the image, and more.
        below: compiled components that are also in that root.
        wheels: Python packages installed only while it compiles.
        sources: the source archives.
        env: variables of the steps, sorted.
        steps: shell commands.
        produces: paths that the layer consists of, without a slash at the beginning.

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

    FORMAT = 3

    @property
    def title(self) -> str:
        return f"{self.component} {self.version}, compiled"

    @property
    def folder(self) -> str:
        """The folder that the source is unpacked into. Compiled files may contain this path."""
        return f"/usr/src/{self.component}-{self.version}"

    def script(self, place: str) -> str:
        """Return all steps as one shell script: unpack, compile, install into DESTDIR.

        Args:
            place: the folder with `archives`, `python` (unpacked wheels) and `product` (DESTDIR).

        """
        variables = {
            "DESTDIR": f"{place}/product",
            "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            # Configure scripts record user and host in what they make.
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
class CompiledLayer(BuiltLayer):
    """A Python package of `compile:`: its source becomes a wheel, which is unpacked into the venv.

    Attributes:
        requirements: layers of wheels that are in the venv while it compiles: of the image, and others.
        beside: more of the image's wheels, which its import needs. They change no byte of the wheel.
        files: links and scripts of the image that compilers need.
        patches: texts of changes to the source.
        imports: modules to import at the end; none for the wheel's own top-level packages.
        gigabytes: memory of one compiler, which limits how many run at a time.

    """

    requirements: tuple[WheelLayer, ...]
    beside: tuple[WheelLayer, ...]
    files: FilesLayer
    patches: tuple[str, ...]
    imports: tuple[str, ...]
    gigabytes: int = 2

    FORMAT = 2

    venv = VENV

    @property
    def name(self) -> str:
        """The package's name."""
        return self.component

    @property
    def python(self) -> str:
        """Release of the image's Python."""
        return self.root.python

    @property
    def unpacked(self) -> tuple[WheelLayer | FilesLayer, ...]:
        """The layers that lie in the root before it compiles."""
        return (*self.requirements, *([self.files] if self.files.entries else []))

    @property
    def used(self) -> tuple[Wheel, ...]:
        """All wheels of the root."""
        return tuple(wheel for layer in (*self.requirements, *self.beside) for wheel in layer.wheels)

    def script(self, place: str) -> str:
        """Return the steps as one shell script; see `BuiltLayer.script`. It leaves `product/wheels/*.whl`."""
        variables = {
            "DESTDIR": f"{place}/product",
            "PATH": f"{VENV}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "USER": "root",
            "HOME": "/root",
            "HOSTNAME": "localhost",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "SOURCE_DATE_EPOCH": "0",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            # Compiled files have no path of the build, no debugging information, and exported symbols only.
            "CFLAGS": "-O2 -g0 -ffile-prefix-map=/build/work=.",
            "CXXFLAGS": "-O2 -g0 -ffile-prefix-map=/build/work=.",
            "LDFLAGS": "-Wl,-s",
            # Without a network, Open MPI's mpicc complains on stderr, and CMake takes that for an option.
            "OMPI_MCA_if": "^posix_ipv4",
            **dict(self.env),
        }
        archive = shlex.quote(f"{place}/archives/{self.sources[0].file}")
        modules = " ".join(self.imports)
        lines = (
            "set -eu",
            "umask 022",
            *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
            *_jobs(self.gigabytes),
            "mkdir -p /build/project",
            "cd /build/project",
            f"tar -x --strip-components=1 --no-same-owner -f {archive}",
            *(line for patch in self.patches for line in _patched(patch)),
            *_written("/build/wheel.py", backend.script("wheel.py")),
            *_written("/build/extension.py", backend.script("extension.py")),
            # A build prints pages: of one that fails, the first errors are shown, and its end.
            f"{{ code=0; {VENV}/bin/python -s /build/wheel.py 2>&1 || code=$?; echo $code >/build/code; }} |",
            "    tee /build/said >&2",
            '[ "$(cat /build/code)" = 0 ] || {',
            "    echo compiling >&2",
            "    grep -a -i -E -A 2 '(^|[^a-z])error([^a-z_]|$)' /build/said | cut -c 1-300 | head -n 7 >&2",
            "    tail -n 3 /build/said | cut -c 1-300 >&2",
            "    exit 1",
            "}",
            f"{VENV}/bin/python -s /build/extension.py {place}/beside {modules}".rstrip(),
            'mkdir -p "$DESTDIR/wheels"',
            'cp /build/wheels/*.whl "$DESTDIR/wheels/"',
        )
        return "".join(f"{line}\n" for line in lines)

    @cached_property
    def key(self) -> str:
        return _key("compiled", self.FORMAT, self.wheel_key)

    @cached_property
    def wheel_key(self) -> str:
        """Name the wheel, which the layer is made of."""
        below = [layer.key for layer in (*self.below, *self.unpacked)]
        made_of = [self.root.key, below, [source.sha256 for source in self.sources], self.script("")]
        return _key("compiled-wheel", self.FORMAT, made_of)


def _jobs(gigabytes: int) -> tuple[str, ...]:
    """Return commands that set how many compilers run: one for each core, if there is memory for them."""
    return (
        "free=0",
        "while read -r name size _; do",
        f'    [ "$name" != MemAvailable: ] || free=$((size / {gigabytes << 20}))',
        "done </proc/meminfo",
        'JOBS="$(nproc)"',
        '[ "$free" -ge "$JOBS" ] || JOBS=$free',
        '[ "$JOBS" -ge 1 ] || JOBS=1',
        'export JOBS MAX_JOBS="$JOBS" CMAKE_BUILD_PARALLEL_LEVEL="$JOBS" MAKEFLAGS="-j$JOBS"',
    )


def _written(path: str, text: str) -> tuple[str, ...]:
    """Return commands that write a text. In base64, so that nothing in it can end a heredoc."""
    encoded = base64.b64encode(text.encode()).decode()
    lines = (encoded[at : at + 100] for at in range(0, len(encoded), 100))
    return (f"base64 -d >{path} <<'TEXT'", *lines, "TEXT")


def _patched(text: str) -> tuple[str, ...]:
    return (
        *_written("/build/patch", text),
        "patch -p1 --batch --forward --no-backup-if-mismatch -i /build/patch",
    )


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
    FORMAT = 4  # increase this, too, if a change in `layers/hooks/package` or `plan/backend` changes bytes

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

    @cached_property
    def root_key(self) -> str:
        """Name the root that the backend runs in, without the package's files."""
        return _key("package-root", self.FORMAT, self._root)

    @property
    def _root(self) -> list[object]:
        system = [sorted(deb.sha256 for deb in self.packages), [layer.digest for layer in self.below]]
        return [self.requirements.key, self.python, system]

    @property
    def _made_of(self) -> list[object]:
        return [self.name, self.checksum, *self._root]


@dataclass(frozen=True, kw_only=True)
class KeysLayer:
    """A baked-in ssh key. It is random, so the plan does not contain it: a store makes one for each lock."""

    image: str
    lock: str
    folder: str = BAKED_KEYS

    FORMAT = 3

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

    FORMAT = 3

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
        tests: that of the folder of the user's own tests, which are not in the image; "" without one.
        revision: their commit, with `-dirty` where they differ from it; "" where none is known.

    """

    checksums: tuple[str, ...] = ()
    package: str = ""
    tests: str = ""
    revision: str = ""

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Project:
        """Read what an image says of itself."""
        checksums = tuple(labels.get(label_names.PROJECT, "").split())
        package = labels.get(label_names.PACKAGE, "").rpartition(" ")[2]
        revision = labels.get(label_names.REVISION, "") if checksums or package else ""
        tests = labels.get(label_names.TESTS, "")
        return cls(checksums=checksums, package=package, tests=tests, revision=revision)


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
    """Return the fields of a dataclass by name, to make a subclass of it."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _key(kind: str, version: int, content: object) -> str:
    text = json.dumps([kind, version, content], default=_plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        left_out = {
            field.name
            for field in dataclasses.fields(value)
            if field.metadata == _NOT_IN_KEY or (field.metadata == _IF_SET and not getattr(value, field.name))
        }
        return {name: item for name, item in fields(value).items() if name not in left_out}
    if isinstance(value, (BaseLayer, Deb, Wheel)):
        return value.model_dump(mode="json")
    raise TypeError(f"a layer's key cannot hold {type(value).__name__}")
