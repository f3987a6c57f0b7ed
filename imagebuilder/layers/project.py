"""The layer of a user's project: a wheel that the project's own backend makes, unpacked as all wheels are.

The backend runs in a root of the image's own Python, unpacked from its packages, beside the locked build
requirements in a venv of their own and a copy of the project's files: under fixed paths, without a network or
a capability, and seeing nothing of this host. Its wheel is read and checked as one from an index is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from imagebuilder.core.process import CommandError
from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import BuildError
from imagebuilder.host.tools import HOST, Sandbox, Tools
from imagebuilder.layers import archive, hooks
from imagebuilder.layers.bytecode.interpreter import write_base
from imagebuilder.layers.wheels.file import listed, opened
from imagebuilder.layers.wheels.layer import build_wheel_layer
from imagebuilder.lock.model import Wheel
from imagebuilder.plan import Project, ProjectFile, ProjectLayer, WheelLayer
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
_NO_GIT = (
    "`.git` is not in the build, so no version can come from it: write `version` under [project], or have "
    "the backend read it from a module"
)


def build_project_wheel(
    layer: ProjectLayer,
    downloads: Mapping[str, Path],
    store: Store,
    *,
    tools: Tools = HOST,
) -> LayerRecord:
    """Have a project's backend make its wheel.

    Args:
        layer: whose, and with what.
        downloads: file of every package and build requirement, by hex sha256.
        store: where the wheel and all temporary files go.
        tools: where dpkg and the backend run.

    Returns:
        The record of the wheel itself, a blob of the store.

    Raises:
        BuildError: the backend failed, or made something else than this project's wheel.
        DamagedDownloadError: a package is not the locked one any more.
        EnvironmentFault: this host gives it no namespaces.

    """
    with store.work() as folder, tools.open(folder, network=False) as sandbox:
        sandbox.copy_in(*_hand_in(layer, downloads, store, folder))
        _run(layer, sandbox)
        sandbox.copy_out(_PRODUCT)
        product = _checked_copy(layer, folder / _PRODUCT, folder / "checked.whl")
        _require_own(layer.project, product)
        with store.writer() as writer, product.open("rb") as stream:
            while data := stream.read(_COPY):
                writer.write(data)
            digest, size = writer.commit()
    return LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type=_WHEEL)


def build_project_layer(
    layer: ProjectLayer, wheel: LayerRecord, store: Store, advance: Advance
) -> LayerRecord:
    """Unpack a project's wheel into a layer.

    Args:
        layer: whose.
        wheel: what `build_project_wheel` gave.
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
    layer: ProjectLayer, downloads: Mapping[str, Path], store: Store, folder: Path
) -> tuple[str, ...]:
    """Lay out all that the build needs; returns the names of it."""
    (folder / "packages").mkdir()
    (folder / "hooks").mkdir()
    hooks.hand_in("project", folder / "hooks")
    names = ["packages", "hooks", "project.tar"]
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
    with explained(folder), (folder / "project.tar").open("xb") as out:
        for data in _tar(layer.project):
            out.write(data)
    return tuple(names)


def _requirements(layer: WheelLayer, downloads: Mapping[str, Path], store: Store) -> LayerRecord:
    """Unpack the build requirements once: they stay the same while a project changes."""
    record = store.layer(layer.key)
    if record is None:
        record = build_wheel_layer(layer, downloads, store, no_advance)
        store.put_layer(layer.key, record)
    return record


def _tar(project: Project) -> Iterator[bytes]:
    """Write the files as they were when the plan was made; of a changed one the layer's key would lie."""
    folders = {folder for file in project.files for folder in archive.parents(file.path)}
    by_path = {file.path: file for file in project.files}
    for path in sorted({*folders, *by_path}):
        file = by_path.get(path)
        if file is None:
            yield archive.directory(path, 0o755)
        elif file.target:
            yield archive.symlink(path, file.target)
        else:
            data = _content(project, file)
            yield archive.regular(path, file.mode, len(data)) + data + archive.padding(len(data))
    yield archive.TAR_END


def _content(project: Project, file: ProjectFile) -> bytes:
    place = Path(project.folder) / file.path
    try:
        data = place.read_bytes()
    except OSError as error:
        raise BuildError(f"cannot be read: {error.strerror}", where=str(place)) from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise BuildError("was changed while the image was being built", where=str(place), hint="build again")
    return data


def _run(layer: ProjectLayer, sandbox: Sandbox) -> None:
    try:
        sandbox.run(["sh", "hooks/build.sh", layer.python], timeout=_SECONDS, cwd=sandbox.folder)
    except CommandError as error:
        said = "\n".join(map(printable, error.result.stderr.splitlines()[-_LINES:]))
        hint = "these are the backend's own words: it has no network, and only what [build-system] requires"
        raise hooks.refused(error, layer.title) or BuildError(
            f"the project's backend made no wheel:\n{said or error}",
            where=layer.project.folder,
            hint=hint if layer.project.version else f"{hint}; {_NO_GIT}",
        ) from error


def _checked_copy(layer: ProjectLayer, product: Path, place: Path) -> Path:
    """Copy what the backend left: a link or a device there would have this host's own file read, or wait."""
    refused = BuildError(
        f"the backend left no wheel of at most {_LIMIT >> 30} GiB", where=layer.project.folder
    )
    try:
        descriptor = os.open(product, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise refused from error
    with os.fdopen(descriptor, "rb") as source:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LIMIT:
            raise refused
        with explained(place), place.open("xb") as out:
            shutil.copyfileobj(source, out, _COPY)
    return place


def _require_own(project: Project, wheel: Path) -> None:
    """Refuse the wheel of another package: it would take that one's place, or that of another version."""
    file = wheel_name(wheel)
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        raise BuildError(
            f"what the backend made is not called as a wheel: {printable(str(error))}", where=project.folder
        ) from None
    wanted = f"{project.name} {project.version}".strip()
    if name != project.name or (project.version and version != Version(project.version)):
        raise BuildError(
            f"the backend made a wheel of {name} {version}, and pyproject.toml is of {wanted}",
            where=project.folder,
            hint="say the same name and version in both places",
        )
