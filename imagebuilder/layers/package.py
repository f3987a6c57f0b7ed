"""The layer of the user's own package: its build backend makes a wheel, which is unpacked like all others.

The backend runs in a root that holds only the image's Python, a venv with the locked build requirements, and
a copy of the package's files, all under fixed paths. It has no network and no capabilities, and sees nothing
of this host. Its wheel is checked like a wheel from an index.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from imagebuilder.core.process import CommandError
from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import BuildError
from imagebuilder.host.tools import HOST, Sandbox, Tools
from imagebuilder.layers import hooks
from imagebuilder.layers.bytecode.interpreter import write_base
from imagebuilder.layers.project import write_folder
from imagebuilder.layers.wheels.layer import build_wheel_layer
from imagebuilder.layers.wheels.members import listed, opened
from imagebuilder.lock.model import Wheel
from imagebuilder.plan import CompiledLayer, Layer, PackageLayer, WheelLayer, backend
from imagebuilder.recipe.requirements import read_package
from imagebuilder.store import LayerRecord, Store, check_bytes, explained

# Time limit of a backend. For pure Python it takes a second or two, in an emulator a hundred times as long.
_SECONDS = 1800
# Bytes of a wheel. A larger one holds data, which should not be in a package.
_LIMIT = 1 << 30
# Media type of the wheel in the store. No image refers to the wheel, so it is pruned first.
WHEEL = "application/vnd.imagebuilder.wheel"
# The same for the root that backends run in, without a project.
_ROOT = "application/vnd.imagebuilder.package-root"
_ROOT_TAR = "root.tar"
_PRODUCT = "product.whl"
_COPY = 1 << 20
_LINES = 30  # of the backend's output, in an error
_HINT = (
    "this is the backend's own output: it has no network, no `.git`, and only the packages that "
    "[build-system] requires; write a version that comes from git into pyproject.toml or a module instead"
)


def build_package_wheel(
    layer: PackageLayer,
    source: Path,
    downloads: Mapping[str, Path],
    store: Store,
    *,
    tools: Tools = HOST,
) -> LayerRecord:
    """Have a package's backend make its wheel.

    Args:
        layer: names the package and its build requirements.
        source: the folder that the layer was planned from.
        downloads: the file of every package and build requirement, by hex sha256.
        store: gets the wheel and all temporary files.
        tools: where dpkg and the backend run.

    Returns:
        The record of the wheel itself, a blob of the store.

    Raises:
        BuildError: the backend failed or made another package's wheel, or the folder has changed since it
            was planned.
        InputError: the folder has files that cannot be copied.
        DamagedDownloadError: a downloaded package is no longer the locked one.
        EnvironmentFault: this host does not allow the namespaces that the backend needs.

    """
    with store.work() as folder, tools.open(folder, network=False) as sandbox:
        root = store.layer(layer.root_key)
        sandbox.copy_in(*_hand_in(layer, source, downloads, store, folder, root=root))
        _run(layer, source, sandbox)
        if root is None:
            sandbox.copy_out(_ROOT_TAR)
            store.put_layer(layer.root_key, keep(folder / _ROOT_TAR, _ROOT, store))
        sandbox.copy_out(_PRODUCT)
        product = _checked_copy(source, folder / _PRODUCT, folder / "checked.whl")
        _require_own(layer, source, product)
        return keep(product, WHEEL, store)


def keep(file: Path, media_type: str, store: Store) -> LayerRecord:
    """Write a file to the store as a blob that no image refers to; returns its record."""
    with store.writer() as writer, file.open("rb") as stream:
        while data := stream.read(_COPY):
            writer.write(data)
        digest, size = writer.commit()
    return LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type=media_type)


def build_package_layer(
    layer: PackageLayer | CompiledLayer, wheel: LayerRecord, store: Store, advance: Advance
) -> LayerRecord:
    """Unpack a package's wheel into a layer.

    Args:
        layer: the package's layer.
        wheel: the record from `build_package_wheel`, or from `compiled.build_compiled_wheel`.
        store: has the wheel, and gets the layer.
        advance: called with the number of the wheel's bytes done.

    Raises:
        BuildError: the wheel cannot be unpacked safely; names the member.
        StoreError: the blob cannot be written.

    """
    place = store.blob(wheel.digest)
    file = wheel_name(place)
    name, version, _, _ = parse_wheel_filename(file)
    item = Wheel(
        name=name,
        version=str(version),
        file=file,
        size=wheel.size,
        sha256=wheel.digest.removeprefix("sha256:"),
        component=layer.component,
    )
    planned = WheelLayer(component=layer.component, wheels=(item,), python=layer.python, venv=layer.venv)
    return build_wheel_layer(planned, {item.sha256: place}, store, advance)


def copy_wheels(layers: Iterable[Layer], store: Store, target: Store) -> None:
    """Copy the wheels that were compiled for these layers, as far as a store has them, to another store."""
    for layer in layers:
        if isinstance(layer, CompiledLayer) and (record := store.layer(layer.wheel_key)):
            with target.writer() as writer, store.blob(record.digest).open("rb") as stream:
                while data := stream.read(_COPY):
                    writer.write(data)
                writer.commit()
            target.put_layer(layer.wheel_key, record)


def wheel_name(path: Path) -> str:
    """Return the wheel's file name, made from the name of its metadata folder.

    Raises:
        BuildError: it is not a zip file, or has no metadata folder or several.

    """
    with opened(_PRODUCT, path) as descriptor:
        infos, _ = listed(_PRODUCT, path, descriptor)
    tops = {info.orig_filename.partition("/")[0] for info in infos}
    names = sorted(top.removesuffix(".dist-info") for top in tops if top.endswith(".dist-info"))
    if len(names) != 1:
        raise BuildError("the backend's wheel does not have exactly one `.dist-info` folder", where=_PRODUCT)
    return f"{names[0]}-py3-none-any.whl"


def _hand_in(
    layer: PackageLayer,
    source: Path,
    downloads: Mapping[str, Path],
    store: Store,
    folder: Path,
    *,
    root: LayerRecord | None,
) -> tuple[str, ...]:
    """Write all that the build needs to a folder; return the names. `root` is that of an earlier build."""
    (folder / "hooks").mkdir()
    hooks.hand_in("package", folder / "hooks")
    for name in backend.NAMES:
        with explained(folder):
            (folder / "hooks" / name).write_text(backend.script(name), encoding="utf-8")
    write_folder(layer, source, folder / "project")
    if root is not None:
        with explained(folder):
            shutil.copyfile(store.blob(root.digest), folder / _ROOT_TAR)
        return ("hooks", "project", _ROOT_TAR)
    names = ["packages", "hooks", "project"]
    (folder / "packages").mkdir()
    for deb in layer.packages:
        check_bytes(downloads[deb.sha256], deb.sha256, Path(deb.path).name)
        with explained(folder):
            shutil.copyfile(downloads[deb.sha256], folder / "packages" / f"{deb.name}.deb")
    if layer.below:
        names.append("python.tar")
        write_base(layer.below, layer.title, store, folder / "python.tar")
    if layer.requirements.wheels:
        names.append("requirements.tar.gz")
        record = _requirements(layer.requirements, downloads, store)
        with explained(folder):
            shutil.copyfile(store.blob(record.digest), folder / "requirements.tar.gz")
    return tuple(names)


def _requirements(layer: WheelLayer, downloads: Mapping[str, Path], store: Store) -> LayerRecord:
    """Unpack the build requirements once: they stay the same while a project changes."""
    record = store.layer(layer.key)
    if record is None:
        record = build_wheel_layer(layer, downloads, store, no_advance)
        store.put_layer(layer.key, record)
    return record


def _run(layer: PackageLayer, source: Path, sandbox: Sandbox) -> None:
    try:
        sandbox.run(["sh", "hooks/build.sh", layer.python], timeout=_SECONDS, cwd=sandbox.folder)
    except CommandError as error:
        said = "\n".join(map(printable, error.result.stderr.splitlines()[-_LINES:]))
        raise hooks.refused(error, layer.title) or BuildError(
            f"the build backend of {layer.name} made no wheel:\n{said or error}",
            where=str(source),
            hint=_HINT,
        ) from error


def _checked_copy(source: Path, product: Path, place: Path) -> Path:
    """Copy the backend's wheel. Refuse a link, which could lead to a file of this host, and a pipe."""
    refused = BuildError(f"the backend left no wheel of at most {_LIMIT >> 30} GiB", where=str(source))
    try:
        descriptor = os.open(product, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        stream = open(descriptor, "rb")  # noqa: PTH123, SIM115  (a folder fails here)
    except OSError as error:
        raise refused from error
    with stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LIMIT:
            raise refused
        with explained(place), place.open("xb") as out:
            shutil.copyfileobj(stream, out, _COPY)
    return place


def _require_own(layer: PackageLayer, source: Path, wheel: Path) -> None:
    """Refuse the wheel of another package, or of another version than pyproject.toml says."""
    file = wheel_name(wheel)
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        raise BuildError(
            f"the backend's wheel has an invalid name: {printable(str(error))}", where=str(source)
        ) from None
    wanted = read_package(source, "pyproject.toml", str(source)).version
    if name != layer.name or (wanted and version != Version(wanted)):
        raise BuildError(
            f"the backend made a wheel of {name} {version}, but pyproject.toml is of "
            f"{f'{layer.name} {wanted}'.strip()}",
            where=str(source),
            hint="say the same name and version in both places",
        )
