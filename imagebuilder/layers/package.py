"""The layer of a user's own package: a wheel that its backend makes, unpacked as all wheels are.

The backend runs in a root of the image's own Python, unpacked from its packages, beside the locked build
requirements in a venv of their own and a copy of the package's files: under fixed paths, without a network or
a capability, and seeing nothing of this host. Its wheel is read and checked as one from an index is.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
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
from imagebuilder.plan import PackageLayer, WheelLayer
from imagebuilder.recipe.requirements import read_package
from imagebuilder.store import LayerRecord, Store, check_bytes, explained

# What a backend gets: a project of Python takes a second or two, and an emulator a hundred times as long.
_SECONDS = 1800
# Of a wheel: what is larger is data, which does not belong into a package.
_LIMIT = 1 << 30
# What is kept of a project's wheel. No image has it: it is the first to be pruned.
_WHEEL = "application/vnd.imagebuilder.wheel"
_PRODUCT = "product.whl"
_COPY = 1 << 20
_LINES = 30  # of what the backend said, in an error
_HINT = (
    "these are the backend's own words: it has no network, no `.git`, and of packages what [build-system] "
    "requires; a version that comes from git has to be written into pyproject.toml or a module instead"
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
        layer: whose, and with what.
        source: the folder that it was planned from.
        downloads: file of every package and build requirement, by hex sha256.
        store: where the wheel and all temporary files go.
        tools: where dpkg and the backend run.

    Returns:
        The record of the wheel itself, a blob of the store.

    Raises:
        BuildError: the backend failed, made something else than this package's wheel, or the folder is not
            what was planned any more.
        InputError: the folder holds what cannot be copied.
        DamagedDownloadError: a package is not the locked one any more.
        EnvironmentFault: this host gives it no namespaces.

    """
    with store.work() as folder, tools.open(folder, network=False) as sandbox:
        sandbox.copy_in(*_hand_in(layer, source, downloads, store, folder))
        _run(layer, source, sandbox)
        sandbox.copy_out(_PRODUCT)
        product = _checked_copy(source, folder / _PRODUCT, folder / "checked.whl")
        _require_own(layer, source, product)
        with store.writer() as writer, product.open("rb") as stream:
            while data := stream.read(_COPY):
                writer.write(data)
            digest, size = writer.commit()
    return LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type=_WHEEL)


def build_package_layer(
    layer: PackageLayer, wheel: LayerRecord, store: Store, advance: Advance
) -> LayerRecord:
    """Unpack a package's wheel into a layer.

    Args:
        layer: whose.
        wheel: what `build_package_wheel` gave.
        store: that has it, and gets the layer.
        advance: told the bytes of the wheel done.

    Raises:
        BuildError: it cannot be unpacked safely; names the member.
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


def wheel_name(path: Path) -> str:
    """Name a project's wheel as wheels are called, by its metadata folder.

    Raises:
        BuildError: it is not a zip file, or has no such folder.

    """
    with opened(_PRODUCT, path) as descriptor:
        infos, _ = listed(_PRODUCT, path, descriptor)
    tops = {info.orig_filename.partition("/")[0] for info in infos}
    found = sorted(top.removesuffix(".dist-info") for top in tops if top.endswith(".dist-info"))
    if len(found) != 1:
        raise BuildError("what the backend made has no metadata folder of its own", where=_PRODUCT)
    return f"{found[0]}-py3-none-any.whl"


def _hand_in(
    layer: PackageLayer, source: Path, downloads: Mapping[str, Path], store: Store, folder: Path
) -> tuple[str, ...]:
    """Lay out all that the build needs; returns the names of it."""
    (folder / "packages").mkdir()
    (folder / "hooks").mkdir()
    hooks.hand_in("package", folder / "hooks")
    names = ["packages", "hooks", "project"]
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
    write_folder(layer, source, folder / "project")
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
    """Copy what the backend left: a link or a device there would have this host's own file read, or wait."""
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
            f"what the backend made is not called as a wheel: {printable(str(error))}", where=str(source)
        ) from None
    wanted = read_package(source, "pyproject.toml", str(source)).version
    if name != layer.name or (wanted and version != Version(wanted)):
        raise BuildError(
            f"the backend made a wheel of {name} {version}, and pyproject.toml is of "
            f"{f'{layer.name} {wanted}'.strip()}",
            where=str(source),
            hint="say the same name and version in both places",
        )
