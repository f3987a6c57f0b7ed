"""The plan: which layers an image has, and its config. Pure: no network, clock, environment or folder.

A layer's `key` is the hash of all that determines its bytes, with a format version, so that an engine can ask
its store whether the layer is there before it makes anything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from imagebuilder import catalog, platforms, tags
from imagebuilder.errors import InputError
from imagebuilder.lock import BaseLayer, Deb, Lock, Source, Wheel
from imagebuilder.lockfile import LockFile
from imagebuilder.recipe import Recipe

VENV = catalog.VENV
# Which engine made an image, where that matters; and OCI's name for the digest of a base from a registry.
ENGINE_LABEL = "org.imagebuilder.engine"
BASE_DIGEST_LABEL = "org.opencontainers.image.base.digest"
# The time of everything in an image: the same lock gives the same bytes on any day. RFC 3339.
EPOCH = "1970-01-01T00:00:00Z"
MAX_LAYERS = 60
# Wheels from this size on get a layer of their own; smaller ones share one per component. Chosen so that
# everything worth not pushing again stands alone: a shared layer is at worst a few of these.
OWN_LAYER_BYTES = 8_000_000
# Where the entrypoint of an image with `ssh: {keys: baked}` finds them.
BAKED_KEYS = "/etc/imagebuilder/keys"
# Lists of folders: where a base from a registry has one too, its folders come after the image's own.
_LISTS = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")
# Variables of a base that speak of its own user, who is not this image's.
_OF_THE_USER = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME"})
PATH = f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
    """The Debian packages, configured; and the user and the empty venv that need a running system to make."""

    distribution: str
    suite: str
    architecture: str
    debs: tuple[Deb, ...]
    user: User
    python: str
    venv: str = VENV

    FORMAT = 1

    @property
    def title(self) -> str:
        return f"{self.distribution} {self.suite}, {len(self.debs)} packages"

    @property
    def sections(self) -> tuple[str, ...]:
        """Sections of the archive that packages are from, and that a base's own sources leave out."""
        found = {word for deb in self.debs for word in deb.path.split("/")[1:3]}
        return tuple(sorted(found & {"contrib", "non-free", "multiverse", "restricted"}))

    @property
    def key(self) -> str:
        return _key("os", self.FORMAT, self)


@dataclass(frozen=True, kw_only=True)
class DockerOsLayer(OsLayer):
    """The same packages on the same base, as BuildKit installs them from the Dockerfile's `os` stage.

    `base_digest` is that of the registry image below them; empty where the base was bootstrapped from the
    same lock, which then says which bytes.
    """

    base_digest: str = ""

    FORMAT = 1  # also of the template's `os` stage: a change there that changes files counts this up

    @property
    def key(self) -> str:
        return _key("docker-os", self.FORMAT, self)


@dataclass(frozen=True, kw_only=True)
class ImportedLayer:
    """A layer of the base as its registry has it: no byte of it changes, so it is shared and not sent."""

    blob: BaseLayer
    title: str

    FORMAT = 1

    @property
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

    @property
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

    @property
    def key(self) -> str:
        # Only the bytes count: which component asked for a wheel changes nothing in the layer.
        wheels = [(wheel.file, wheel.sha256) for wheel in self.wheels]
        return _key("wheels", self.FORMAT, [wheels, self.python, self.venv])


@dataclass(frozen=True, kw_only=True)
class FilesLayer:
    """Plain files, folders and links, owned by root."""

    name: str
    entries: tuple[Entry, ...]

    FORMAT = 1

    @property
    def title(self) -> str:
        return f"{self.name}: {len(self.entries)} files"

    @property
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

    @property
    def key(self) -> str:
        below = [layer.key for layer in self.below]
        bytes_of = [[item.sha256 for item in items] for items in (self.wheels, self.sources)]
        how = [self.script(""), self.produces]
        return _key("built", self.FORMAT, [self.root.key, below, bytes_of, how])


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

    @property
    def key(self) -> str:
        return _key("keys", self.FORMAT, self)


Layer = ImportedLayer | OsLayer | BuiltLayer | WheelLayer | FilesLayer | KeysLayer


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the image config says; mappings are tuples of pairs, sorted by name."""

    env: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    user: str
    workdir: str
    ports: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Ordered layers (the lowest first), the config and the tags of one image; the first tag is its own.

    `siblings` are all platforms of its recipe, its own among them.
    """

    name: str
    architecture: str
    layers: tuple[Layer, ...]
    config: Config
    tags: tuple[str, ...]
    lock_checksum: str
    siblings: tuple[str, ...] = (platforms.DEFAULT,)

    @property
    def tag(self) -> str:
        return self.tags[0]

    @property
    def platform(self) -> str:
        return platforms.of(self.architecture)


def plan(recipe: Recipe, lock: Lock, files: tuple[Entry, ...]) -> Plan:
    """Lay out an image.

    Args:
        recipe: what was asked for.
        lock: what it was resolved to.
        files: the image's own files (entrypoint, ssh and shell settings), from `imagebuilder.rootfs`.

    """
    user = _user(recipe, lock)
    parts = catalog.parts(recipe)
    made = (
        *(Entry(path=p, kind="link", mode=0o777, text=t) for part in parts for p, t in part.links.items()),
        *(Entry(path=p, kind="file", mode=0o755, text=t) for part in parts for p, t in part.scripts.items()),
    )
    return Plan(
        name=recipe.name,
        architecture=lock.architecture,
        layers=(
            *_imported(lock),
            _os_layer(lock, user),
            *_built_layers(recipe, lock),
            *_wheel_layers(lock),
            # Last, and small: what changes with every recipe must not stand below gigabytes.
            FilesLayer(name="settings", entries=tuple(sorted((*files, *made), key=lambda e: e.path))),
            *([KeysLayer(image=recipe.name, lock=lock.checksum)] if recipe.ssh.keys == "baked" else []),
        ),
        config=_config(recipe, lock, user),
        tags=image_tags(recipe, lock),
        lock_checksum=lock.checksum,
        siblings=recipe.platforms,
    )


def by_docker(plan: Plan, base_digest: str = "") -> Plan:
    """Lay out the same image with the OS layer made by the docker engine; its labels say so.

    Args:
        plan: as the embedded engine builds it.
        base_digest: see `DockerOsLayer`.

    """
    # What is above a registry's image stays what it is: that image is in the plan already.
    layers = tuple(
        DockerOsLayer(**_fields(layer), base_digest=base_digest) if type(layer) is OsLayer else layer
        for layer in plan.layers
    )
    labels = {**dict(plan.config.labels), ENGINE_LABEL: "docker"}
    if base_digest:
        labels[BASE_DIGEST_LABEL] = base_digest
    config = dataclasses.replace(plan.config, labels=tuple(sorted(labels.items())))
    return dataclasses.replace(plan, layers=layers, config=config)


def as_made(plan: Plan, labels: Mapping[str, str]) -> Plan:
    """Lay out an image for the engine that made it, which its labels name; without a name it is embedded."""
    if labels.get(ENGINE_LABEL) == "docker":
        return by_docker(plan, labels.get(BASE_DIGEST_LABEL, ""))
    return plan


def environment(recipe: Recipe, lock: Lock) -> dict[str, str]:
    """All variables of the image: the base's, the venv's, the components', the recipe's own (which win)."""
    env = {"PATH": PATH, "VIRTUAL_ENV": VENV, "LANG": "C.UTF-8"}
    for part in catalog.parts(recipe):
        env |= part.env
    return _on_top(lock.image.env if lock.image else {}, {**env, **recipe.env})


def _on_top(below: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Lay variables over those of the base; lists of folders are joined, each folder once."""
    made = {**{name: value for name, value in below.items() if name not in _OF_THE_USER}, **env}
    for name in _LISTS:
        if name in below and name in env:
            folders = (*env[name].split(":"), *below[name].split(":"))
            made[name] = ":".join(dict.fromkeys(filter(None, folders)))
    return made


def image_tags(recipe: Recipe, lock: Lock) -> tuple[str, ...]:
    """Name the tags to push under: the recipe's templates filled in, else what the image holds and its lock.

    Raises:
        InputError: a filled template is too long for a tag.

    """
    return _tags(recipe, lock, lock.checksum)


def index_tags(recipe: Recipe, file: LockFile) -> tuple[str, ...]:
    """Name the tags of what joins the platforms' images; each has to be right for every one of them.

    Raises:
        InputError: platforms have different versions of what a tag names.

    """
    made = [_tags(recipe, lock, file.checksum) for lock in file.sections]
    for tags_there in zip(*made, strict=True):
        if len(set(tags_there)) > 1:
            each = ", ".join(
                f"`{tag}` of {name}" for name, tag in zip(file.platforms, tags_there, strict=True)
            )
            raise InputError(
                f"one tag cannot be {each}",
                where=f"{recipe.name}: tags",
                hint="pin the version in full, or write `tags:` with fewer of its parts, as in {torch:2}",
            )
    return made[0]


def _tags(recipe: Recipe, lock: Lock, checksum: str) -> tuple[str, ...]:
    digits = checksum[: tags.LOCK_DIGITS]
    if not recipe.tags:
        return version(lock), digits
    values = {**lock.pins, "name": recipe.name, "suite": lock.base.partition(":")[2], "lock": digits}
    made = tuple(dict.fromkeys(tags.fill(template, values) for template in recipe.tags))
    for tag in made:
        if not tags.TAG.fullmatch(tag):
            raise InputError(
                f"`{tag}` is no tag that a registry takes",
                where=f"{recipe.name}: tags",
                hint="at most 128 letters, digits, `.`, `_` and `-`; shorten a version with {name:2}",
            )
    return made


def version(lock: Lock) -> str:
    """Make a version from what the image holds: `torch2.10.0-cu12.8-py3.13-trixie`."""
    pins = lock.pins
    words = []
    if "torch" in pins:
        words.append(f"torch{pins['torch'].partition('+')[0]}")
    if "cuda" in pins:
        words.append("cu" + ".".join(pins["cuda"].split(".")[:2]))
    if not words:
        words += [f"{name}{pins[name]}" for name in ("openmpi", "mpich") if name in pins]
    return "-".join([*words, f"py{lock.python}", lock.base.partition(":")[2]])


def _user(recipe: Recipe, lock: Lock) -> User:
    name = recipe.ssh.user
    if name == "root":
        return User(name="root", uid=0, home="/root")
    # A base may have users of its own: Ubuntu's has one with the first number. One of this name stays.
    taken = lock.image.accounts if lock.image else {}
    free = next(number for number in count(1000) if number not in taken.values())
    return User(name=name, uid=taken.get(name, free), home=f"/home/{name}")


def _imported(lock: Lock) -> Iterable[ImportedLayer]:
    if lock.image:
        for number, layer in enumerate(lock.image.layers, start=1):
            title = f"{lock.image.name}, layer {number} of {len(lock.image.layers)}"
            yield ImportedLayer(blob=layer, title=title)


def _os_layer(lock: Lock, user: User) -> OsLayer:
    distribution, _, suite = lock.base.partition(":")
    system = OsLayer(
        distribution=distribution,
        suite=suite,
        architecture=lock.architecture,
        debs=lock.debs,
        user=user,
        python=lock.python,
    )
    return UpperOsLayer(**_fields(system), below=lock.image.layers) if lock.image else system


def _built_layers(recipe: Recipe, lock: Lock) -> tuple[BuiltLayer, ...]:
    """Lay out what is compiled, in the lock's order: each after those that it is compiled against."""
    parts = {part.component.name: part for part in catalog.parts(recipe)}
    image = {deb.name: deb for deb in lock.debs}
    done: dict[str, BuiltLayer] = {}
    for build in lock.builds:
        part = parts[build.component]
        if part.built is None:
            continue
        how = part.built
        compiler = catalog.fill("-{major}", parts["gcc"].pin) if "gcc" in parts else ""
        env = {
            "CC": f"gcc{compiler}",
            "CXX": f"g++{compiler}",
            **{name: catalog.fill(value, build.version) for name, value in how.env.items()},
        }
        debs = (*(image[name] for name in build.system), *build.debs)
        done[build.component] = BuiltLayer(
            component=build.component,
            version=build.version,
            root=OsLayer(
                distribution=lock.base.partition(":")[0],
                suite=lock.base.partition(":")[2],
                architecture=lock.architecture,
                debs=tuple(sorted(debs, key=lambda deb: (deb.name, deb.architecture))),
                user=User(name="root", uid=0, home="/root"),
                python=lock.python,
                venv=VENV if how.sdist else "",
            ),
            below=tuple(done[name] for name in how.against if name in done),
            wheels=build.wheels,
            sources=build.sources,
            env=tuple(sorted(env.items())),
            steps=part.filled(how.steps, build.version),
            produces=tuple(path.strip("/") for path in part.filled(how.produces, build.version)),
        )
    return tuple(done.values())


def _wheel_layers(lock: Lock) -> Iterable[WheelLayer]:
    """Large wheels alone, small ones grouped by component; the largest first, for they change least.

    With more layers than an image may have, the smallest of the large join their component's group.
    """
    below = len(lock.builds) + (len(lock.image.layers) if lock.image else 0)
    room = MAX_LAYERS - 2 - below - len({wheel.component for wheel in lock.wheels})
    ranked = sorted(lock.wheels, key=lambda wheel: (-wheel.size, wheel.name))
    alone = [wheel for wheel in ranked if wheel.size >= OWN_LAYER_BYTES][: max(room, 0)]
    for wheel in alone:
        yield WheelLayer(component=wheel.component, wheels=(wheel,), python=lock.python)
    rest = sorted(set(lock.wheels) - set(alone), key=lambda wheel: (wheel.component, wheel.name))
    for component in sorted({wheel.component for wheel in rest}):
        group = tuple(wheel for wheel in rest if wheel.component == component)
        yield WheelLayer(component=component, wheels=group, python=lock.python)


def _config(recipe: Recipe, lock: Lock, user: User) -> Config:
    said = {name: text for name, text in recipe.about.model_dump().items() if text}
    # A suite that is bootstrapped from its archive has a name, and no digest: the lock's says which bytes.
    known = {
        "title": recipe.name,
        "version": version(lock),
        "created": EPOCH,
        "base.name": lock.base,
        **({"base.name": lock.image.name, "base.digest": lock.image.digest} if lock.image else {}),
        **said,
    }
    labels = {
        **(lock.image.labels if lock.image else {}),
        **recipe.labels,
        **{f"org.opencontainers.image.{name}": text for name, text in known.items()},
        "org.imagebuilder.lock": lock.checksum,
        "org.imagebuilder.ssh.port": str(recipe.ssh.port),
        "org.imagebuilder.ssh.user": user.name,
        **({"org.imagebuilder.ssh.keys": "baked"} if recipe.ssh.keys == "baked" else {}),
        **{f"org.imagebuilder.pin.{name}": version for name, version in lock.pins.items()},
    }
    return Config(
        env=tuple(sorted(environment(recipe, lock).items())),
        labels=tuple(sorted(labels.items())),
        entrypoint=("/usr/bin/tini", "--", "/usr/local/bin/imagebuilder-entrypoint"),
        cmd=(),
        user="0:0" if user.uid == 0 else f"{user.uid}:0",
        workdir=user.home,
        ports=(recipe.ssh.port,),
    )


def _key(kind: str, version: int, content: object) -> str:
    text = json.dumps([kind, version, content], default=_plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, (BaseLayer, Deb, Wheel)):
        return value.model_dump(mode="json")
    raise TypeError(f"a layer's key cannot hold {type(value).__name__}")
