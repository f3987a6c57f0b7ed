"""The layout of an image: its layers, the lowest first. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from imagebuilder import catalog
from imagebuilder.catalog import Selection
from imagebuilder.core import platforms
from imagebuilder.errors import InputError
from imagebuilder.lock.model import Build, Compiled, Deb, Lock, Wheel
from imagebuilder.plan import groups, slim
from imagebuilder.plan.config import Config, config, image_tags, user
from imagebuilder.plan.layer import (
    NO_PROJECT,
    VENV,
    BuiltLayer,
    BytecodeLayer,
    CompiledLayer,
    Entry,
    FilesLayer,
    ImportedLayer,
    KeysLayer,
    Layer,
    OsLayer,
    OsPart,
    PackageLayer,
    Project,
    ProjectLayer,
    UpperOsLayer,
    User,
    WheelLayer,
    fields,
)

MAX_LAYERS = 60
# Wheels from this size on get their own layer; smaller ones share one for each component. So a changed pin
# rebuilds and pushes little else.
OWN_LAYER_BYTES = 8_000_000
# The name of the part that belongs to no package; see `parts`.
STATE = "state"
# Debian's packages with the compiler for modules, as text before and after `python3.13`; and the packages
# that they are linked against.
_PYTHON_PARTS = (("", "-minimal"), ("lib", "-minimal"), ("lib", "-stdlib"))
_PYTHON_RUNS_ON = frozenset({"libc6", "libexpat1", "zlib1g"})
# What more a project's backend may load or run: libraries of Python's own modules, and a shell.
_BACKENDS_RUN_ON = re.compile(
    r"libgcc-s1|libssl3.*|libbz2-1\.0|liblzma5|libffi[0-9]+|libsqlite3-0|libuuid1|dash"
)
# Components that packages of `compile:` find in their root if they are compiled, too.
_MPIS = frozenset({"openmpi", "mpich"})
# Where a project's build requirements are while it is built.
_BUILD_VENV = "/build/venv"
_OfWheels = TypeVar("_OfWheels", WheelLayer, BytecodeLayer)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Ordered layers (the lowest first), the config and the tags of one image; the first tag is the main one.

    `siblings` are all platforms of its recipe, including its own.
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

    @property
    def locked(self) -> tuple[Layer, ...]:
        """The layers of `locked_layers`: all but the user's own files, and baked keys."""
        own = PackageLayer | KeysLayer | ProjectLayer
        return tuple(layer for layer in self.layers if not isinstance(layer, own))

    @property
    def system(self) -> OsLayer:
        """The system of Debian packages, whether it is one layer or split into parts."""
        layers = (layer.system if isinstance(layer, OsPart) else layer for layer in self.layers)
        return next(layer for layer in layers if isinstance(layer, OsLayer))

    @property
    def system_layers(self) -> int:
        """How many of the lowest layers hold Debian packages: the base's layers, and the system's."""
        return sum(isinstance(layer, ImportedLayer | OsLayer | OsPart) for layer in self.layers)

    def of_image(self, titles: Collection[str]) -> Plan:
        """Leave out the bytecode layers that an image does not have, because nothing had to be compiled.

        A plan cannot tell which bytecode layers come out empty: that depends on the content of the wheels.

        Args:
            titles: of the image's layers.

        """
        return replace(
            self,
            layers=tuple(
                layer
                for layer in self.layers
                if layer.title in titles or not isinstance(layer, BytecodeLayer)
            ),
        )


def plan(selection: Selection, lock: Lock, files: tuple[Entry, ...], project: Project = NO_PROJECT) -> Plan:
    """Lay out an image.

    Args:
        selection: the recipe, with its components.
        lock: its lock.
        files: the image's own files (entrypoint, ssh and shell settings), from `imagebuilder.plan.rootfs`.
        project: the user's own files.

    Raises:
        InputError: these are the files of another recipe.

    """
    recipe = selection.recipe
    account = user(recipe, lock)
    return Plan(
        name=recipe.name,
        architecture=lock.architecture,
        layers=(
            *locked_layers(selection, lock, files),
            *_package_layers(selection, lock, project.package),
            *([KeysLayer(image=recipe.name, lock=lock.checksum)] if recipe.ssh.keys == "baked" else []),
            # What changes every day.
            *_project_layers(selection, project, account),
        ),
        config=config(selection, lock, account, project),
        tags=image_tags(selection, lock),
        lock_checksum=lock.checksum,
        siblings=recipe.platforms,
    )


def parts(system: OsLayer) -> tuple[OsPart, ...]:
    """Split a system into layers by purpose. The state comes last, because it changes with every package.

    A system on top of a base from a registry is not split.
    """
    if isinstance(system, UpperOsLayer):
        return ()
    grouped = groups.of(system.debs)
    return (
        *(OsPart(system=system, name=each.name, about=each.title, debs=each.debs) for each in grouped),
        OsPart(system=system, name=STATE, about="settings and state", debs=()),
    )


def locked_layers(selection: Selection, lock: Lock, files: tuple[Entry, ...]) -> tuple[Layer, ...]:
    """Return the layers that recipe and lock alone determine: they are the same on every host.

    The other layers of an image hold the user's own files, or a random key. See `plan` for the arguments.
    """
    parts = selection.parts
    made = (
        *(Entry(path=p, kind="link", mode=0o777, text=t) for part in parts for p, t in part.links.items()),
        *(Entry(path=p, kind="file", mode=0o755, text=t) for part in parts for p, t in part.scripts.items()),
    )
    return (
        *_imported(lock),
        *_system_layers(selection, lock),
        *_built_layers(selection, lock),
        *_slim(_wheel_layers(lock), selection),
        *_slim(_bytecode_layers(lock), selection),
        # Small, and last: it differs between recipes, and must not lie below shared gigabytes.
        FilesLayer(name="settings", entries=tuple(sorted((*files, *made), key=lambda e: e.path))),
    )


def _project_layers(selection: Selection, project: Project, user: User) -> Iterable[ProjectLayer]:
    copies = selection.recipe.copies
    if len(copies) != len(project.checksums):
        raise InputError(
            f"copies {len(copies)} folders, and checksums of {len(project.checksums)} are given",
            where=selection.places.of("copy"),
            hint="build the image again",
        )
    for copy, checksum in zip(copies, project.checksums, strict=True):
        yield ProjectLayer(source=copy.source, target=copy.to, checksum=checksum, user=user)


def _imported(lock: Lock) -> Iterable[ImportedLayer]:
    if lock.image:
        for number, layer in enumerate(lock.image.layers, start=1):
            title = f"{lock.image.name}, layer {number} of {len(lock.image.layers)}"
            yield ImportedLayer(blob=layer, title=title)


def _system_layers(selection: Selection, lock: Lock) -> tuple[OsLayer | OsPart, ...]:
    if selection.recipe.slim:
        _refuse_needed(selection, lock)
    distribution, _, suite = lock.base.partition(":")
    system = OsLayer(
        distribution=distribution,
        suite=suite,
        architecture=lock.architecture,
        debs=lock.debs,
        user=user(selection.recipe, lock),
        python=lock.python,
        asked=lock.packages,
        slim=slim.debian() if selection.recipe.slim else None,
    )
    if lock.image:
        return (UpperOsLayer(**fields(system), below=lock.image.layers),)
    return parts(system)


def _refuse_needed(selection: Selection, lock: Lock) -> None:
    """Refuse to leave out libraries of packages that the recipe itself asks for."""
    names, _ = slim.libraries(lock.debs)
    if needed := sorted(names.intersection(package.partition("=")[0] for package in lock.packages)):
        raise InputError(
            f"{needed[0]} is asked for, and `slim: true` leaves out its libraries",
            where=selection.places.of_package(needed[0]),
            hint="leave it out of `apt:`, or remove `slim: true`",
        )


def _slim(layers: Iterable[_OfWheels], selection: Selection) -> Iterable[_OfWheels]:
    """Add what a slim image leaves out of the wheels. Most layers stay as those of other images."""
    for layer in layers:
        yield replace(layer, slim=slim.of_wheels(layer.wheels)) if selection.recipe.slim else layer


def _built_layers(selection: Selection, lock: Lock) -> tuple[BuiltLayer, ...]:
    """Return compiled components in the lock's order: each after those that it is compiled against."""
    parts = selection.by_name
    done: dict[str, BuiltLayer] = {}
    for build in lock.builds:
        if build.compiled:
            done[build.component] = _compiled_layer(selection, lock, build, build.compiled, done)
            continue
        part = parts.get(build.component)
        if part is None or part.built is None:
            continue
        how = part.built
        env = {
            **_compilers(selection),
            **{name: catalog.fill(value, build.version) for name, value in how.env.items()},
        }
        done[build.component] = BuiltLayer(
            component=build.component,
            version=build.version,
            root=_root(lock, build, VENV if how.sdist or how.wheels else ""),
            below=tuple(done[name] for name in how.against if name in done),
            wheels=build.wheels,
            sources=build.sources,
            env=tuple(sorted(env.items())),
            steps=part.filled(how.steps, build.version),
            produces=tuple(path.strip("/") for path in part.filled(how.produces, build.version)),
        )
    return tuple(done.values())


def _root(lock: Lock, build: Build, venv: str) -> OsLayer:
    """Return the system that something is compiled in."""
    image = {deb.name: deb for deb in lock.debs}
    debs = (*(image[name] for name in build.system if name in image), *build.debs)
    return OsLayer(
        distribution=lock.base.partition(":")[0],
        suite=lock.base.partition(":")[2],
        architecture=lock.architecture,
        debs=tuple(sorted(debs, key=lambda deb: (deb.name, deb.architecture))),
        user=User(name="root", uid=0, home="/root"),
        python=lock.python,
        venv=venv,
        asked=build.packages,
    )


def _compilers(selection: Selection) -> dict[str, str]:
    gcc = selection.by_name.get("gcc")
    version = catalog.fill("-{major}", gcc.pin) if gcc else ""
    return {"CC": f"gcc{version}", "CXX": f"g++{version}"}


def _compiled_layer(
    selection: Selection, lock: Lock, build: Build, compiled: Compiled, done: Mapping[str, BuiltLayer]
) -> CompiledLayer:
    """Plan a package of `compile:`, in a root with the image's own compiler, MPI, Python and wheels."""
    entry = selection.recipe.compiles[build.component]
    wheels = {wheel.name: wheel for wheel in lock.wheels}
    parts = selection.with_devel().parts if entry.cuda else ()
    env = _compilers(selection)
    for part in parts:
        env |= part.env(lock.pins.get(part.component.name, "")) if part.component.name == "nvcc" else {}
    if entry.cuda:
        gpus = sorted(selection.recipe.hosts.gpus, key=catalog.numbers)
        plain = [gpu.replace(".", "") for gpu in gpus]
        env["TORCH_CUDA_ARCH_LIST"] = ";".join(gpus)
        env |= {"CUDAARCHS": ";".join(plain), "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(plain)}
    made = (
        *(Entry(path=p, kind="link", mode=0o777, text=t) for part in parts for p, t in part.links.items()),
        *(Entry(path=p, kind="file", mode=0o755, text=t) for part in parts for p, t in part.scripts.items()),
    )
    return CompiledLayer(
        component=build.component,
        version=build.version,
        root=_root(lock, build, VENV),
        below=tuple(layer for name, layer in done.items() if name in _MPIS),
        wheels=build.wheels,
        sources=build.sources,
        env=tuple(sorted({**env, **entry.env}.items())),
        steps=(),
        produces=("wheels",),
        requirements=_in_root((*(wheels[name] for name in compiled.against), *build.wheels), lock.python),
        beside=_in_root(tuple(wheels[name] for name in compiled.beside), lock.python),
        files=FilesLayer(name="links", entries=tuple(sorted(made, key=lambda item: item.path))),
        patches=tuple(patch.text for patch in compiled.patches),
        imports=entry.imports,
        gigabytes=4 if entry.cuda else 2,
    )


def _in_root(wheels: tuple[Wheel, ...], python: str) -> tuple[WheelLayer, ...]:
    """Return layers of wheels: large ones alone, as in the image, so that each is made once."""
    large = sorted((w for w in wheels if w.size >= OWN_LAYER_BYTES), key=lambda w: w.name)
    small = tuple(sorted((w for w in wheels if w.size < OWN_LAYER_BYTES), key=lambda w: w.name))
    return (
        *(WheelLayer(component=wheel.component, wheels=(wheel,), python=python) for wheel in large),
        *([WheelLayer(component="build", wheels=small, python=python)] if small else []),
    )


def _wheel_layers(lock: Lock) -> Iterable[WheelLayer]:
    """Yield the layers of wheels: one for each large wheel, and one for each component's small wheels.

    If that makes more layers than an image may have, the smallest large wheels join their component's layer.
    """
    alone = _alone(lock)
    for wheel in alone:
        yield WheelLayer(component=wheel.component, wheels=(wheel,), python=lock.python)
    rest = sorted(set(lock.wheels) - set(alone), key=lambda wheel: (wheel.component, wheel.name))
    for component in sorted({wheel.component for wheel in rest}):
        group = tuple(wheel for wheel in rest if wheel.component == component)
        yield WheelLayer(component=component, wheels=group, python=lock.python)


def _package_layers(selection: Selection, lock: Lock, checksum: str) -> Iterable[PackageLayer]:
    asked = selection.recipe.package
    if asked is None or lock.project is None:
        return
    names = {deb.name for deb in lock.debs}
    if not lock.image and {"gcc", f"python{lock.python}-dev"} <= names:
        packages = lock.debs  # a compiler and Python's headers: the package may have modules in C
    else:
        own = _interpreter(lock)
        packages = tuple(deb for deb in lock.debs if deb in own or _BACKENDS_RUN_ON.fullmatch(deb.name))
    wheels = lock.project.wheels
    yield PackageLayer(
        name=lock.project.name,
        source=asked.source,
        checksum=checksum,
        requirements=WheelLayer(component="build", wheels=wheels, python=lock.python, venv=_BUILD_VENV),
        python=lock.python,
        packages=packages,
        below=lock.image.layers if lock.image else (),
        architecture=lock.architecture,
    )


def _interpreter(lock: Lock) -> tuple[Deb, ...]:
    """Choose the packages of the image's Python, and of what that is linked against."""
    names = {f"{before}python{lock.python}{after}" for before, after in _PYTHON_PARTS} | _PYTHON_RUNS_ON
    return tuple(deb for deb in lock.debs if deb.name in names)


def _alone(lock: Lock) -> tuple[Wheel, ...]:
    """Return the wheels that have their own layer: those of one component together, the largest first.

    Engines unpack everything above a layer that changed once more, and Docker's classic store even fetches it
    again. So what changes together lies together, and the larger below: another NCCL leaves torch as it is.
    """
    system = len(lock.image.layers) if lock.image else len(groups.of(lock.debs))
    below = len(lock.builds) + system
    # Each component may have a layer of small wheels, and one of bytecode.
    room = MAX_LAYERS - 2 - below - 2 * len({wheel.component for wheel in lock.wheels})
    alone: list[Wheel] = []
    for wheel in sorted(lock.wheels, key=lambda wheel: (-wheel.size, wheel.name)):
        room -= 2 if _has_modules(wheel) else 1
        if wheel.size < OWN_LAYER_BYTES or room < 0:
            break
        alone.append(wheel)
    weights = Counter[str]()
    for wheel in alone:
        weights[wheel.component] += wheel.size
    return tuple(sorted(alone, key=lambda wheel: (-weights[wheel.component], wheel.component)))


def _has_modules(wheel: Wheel) -> bool:
    """Guess from its file name whether a wheel has Python modules, because plans read no wheels.

    A wheel for one platform and any Python (`py3-none-manylinux_2_28_x86_64`), such as NVIDIA's, has C
    libraries and programs. A wheel for one Python, or for any platform, has modules. A wrong guess only moves
    bytecode to a shared layer: modules are compiled in any case, and without modules there is no layer.
    """
    _, abi, platform = wheel.file.removesuffix(".whl").rsplit("-", 3)[-3:]
    return abi != "none" or platform == "any"


def _bytecode_layers(lock: Lock) -> Iterable[BytecodeLayer]:
    """Yield the layers of bytecode, in the order in which their wheels are unpacked.

    Each large wheel with modules has its own layer; the others share one for each component.
    """
    interpreter = tuple(f"{before}python{lock.python}{after}" for before, after in _PYTHON_PARTS)
    packages = _interpreter(lock)
    if not lock.image and not any(deb.name in interpreter for deb in packages):
        return  # not a Python of Debian's: modules are compiled when they are imported
    own = tuple(wheel for wheel in _alone(lock) if _has_modules(wheel))
    shared: dict[str, tuple[Wheel, ...]] = {}
    for layer in _wheel_layers(lock):
        if rest := tuple(wheel for wheel in layer.wheels if wheel not in own):
            shared[layer.component] = (*shared.get(layer.component, ()), *rest)
    for wheels in (*((wheel,) for wheel in own), *(shared[component] for component in sorted(shared))):
        yield BytecodeLayer(
            component=wheels[0].component,
            wheels=wheels,
            python=lock.python,
            packages=packages,
            below=lock.image.layers if lock.image else (),
            architecture=lock.architecture,
        )
