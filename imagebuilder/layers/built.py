"""A built layer: a component that is compiled offline in a separate root, of which only the product is kept.

The root is made in the same way as the OS layer (`layers.system`): dpkg installs the locked packages. So
compilers and configure scripts record the same surroundings on every host: no network, the host name
`localhost`, the user root, the source in /usr/src, and SOURCE_DATE_EPOCH in place of the clock.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import BinaryIO, cast

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagebuilder.core.progress import Advance
from imagebuilder.errors import BuildError
from imagebuilder.host.tools import HOST, Tools
from imagebuilder.layers import archive, stargz
from imagebuilder.layers.files import folder_mode
from imagebuilder.layers.package import WHEEL, keep, wheel_name
from imagebuilder.layers.system.install import HANDED, hand_in, run_in_root
from imagebuilder.plan import VENV, BuiltLayer, CompiledLayer
from imagebuilder.resolve import sdist
from imagebuilder.store import LayerRecord, Store, check_bytes

log = logging.getLogger(__name__)

_COPY = 1 << 20
# Estimates, to choose whether a root is made in memory: a layer unpacks to four times its size, twice in all
# with its copy; a source and what is compiled of it take two gigabytes.
_UNPACKED, _BUILD = 5, 2 << 30
_LARGEST_WHEEL = 4 << 30
_OTHER_SDIST = "this source distribution cannot be compiled here; take another version"
_PLACE = f"/{HANDED}"
_PRODUCT = "product.tar"
# The line that compile.sh prints before the first step. Without it in the output, the packages may have
# failed.
_BEGINS = "compiling"
_SYSTEM, _ROOT = "making the system failed", "compiling failed, or making the root for it"


def build_built_layer(
    layer: BuiltLayer,
    downloads: Mapping[str, Path],
    below: tuple[Path, ...],
    store: Store,
    advance: Advance,
    *,
    tools: Tools = HOST,
) -> LayerRecord:
    """Compile a component.

    Args:
        layer: the component and its steps.
        downloads: the file of every package, wheel and source, by hex sha256.
        below: blobs of the built layers that it is compiled against.
        store: the blob and all temporary files are written to it.
        advance: called with the bytes of the layer's tar, at the end.
        tools: run mmdebstrap and dpkg.

    Raises:
        DamagedDownloadError: a download is no longer the locked file.
        BuildError: a step failed, or did not make the files that the catalog names.
        EnvironmentFault: mmdebstrap is missing, or this user may not create namespaces.

    """
    with store.work() as folder:
        product = _compile(layer, downloads, below, folder, tools)
        tar = folder / "layer.tar"
        with tarfile.open(product) as made, tar.open("wb") as out:
            _write(layer, made, out)
        product.unlink()
        with tar.open("rb") as stream:
            return stargz.compress_tar(stream, store, advance)


def build_compiled_wheel(
    layer: CompiledLayer,
    downloads: Mapping[str, Path],
    below: tuple[Path, ...],
    store: Store,
    *,
    tools: Tools = HOST,
) -> LayerRecord:
    """Compile a Python package, and test that the result loads.

    Args:
        layer: the package, and what it is compiled with.
        downloads: the file of every package, wheel and source, by hex sha256.
        below: blobs of the layers that lie in its root: `layer.below` and `layer.unpacked`.
        store: gets the wheel and all temporary files.
        tools: run mmdebstrap and dpkg.

    Returns:
        The record of the wheel itself, a blob of the store.

    Raises:
        BuildError: the source cannot be unpacked safely, a step failed, a library or a symbol is missing, or
            the result is another package's wheel.
        DamagedDownloadError: a download is no longer the locked file.
        EnvironmentFault: mmdebstrap is missing, or this user may not create namespaces.

    """
    for source in layer.sources:
        check_bytes(downloads[source.sha256], source.sha256, source.file)
        try:
            sdist.read(downloads[source.sha256])
        except sdist.UnsafeError as error:
            raise BuildError(f"{source.file} {error}", where=layer.title, hint=_OTHER_SDIST) from None
    with store.work() as folder:
        product = _compile(layer, downloads, below, folder, tools)
        with tarfile.open(product) as made:
            wheel = _only_wheel(layer, made, folder / "checked.whl")
        file = wheel_name(wheel)
        name, version = parse_wheel_filename(file)[:2]
        if (name, version) != (layer.name, Version(layer.version)):
            raise BuildError(
                f"the source of {layer.name} {layer.version} made a wheel of {name} {version}",
                where=layer.title,
                hint="a variable or a patch of its entry under `compile:` may change that",
            )
        return keep(wheel, WHEEL, store)


def _only_wheel(layer: CompiledLayer, made: tarfile.TarFile, place: Path) -> Path:
    """Take the wheel out of what was made; nothing else there is looked at."""
    found = [member for member in made if member.name.endswith(".whl")]
    if len(found) != 1 or not found[0].isreg() or found[0].size > _LARGEST_WHEEL:
        raise BuildError(
            f"the backend left no wheel of at most {_LARGEST_WHEEL >> 30} GiB", where=layer.title
        )
    content = made.extractfile(found[0])
    with place.open("xb") as out:
        shutil.copyfileobj(cast("BinaryIO", content), out, _COPY)
    return place


def _compile(
    layer: BuiltLayer, downloads: Mapping[str, Path], below: tuple[Path, ...], folder: Path, tools: Tools
) -> Path:
    """Make the root, and run the steps in it; returns the tar of what they made."""
    with tools.open(folder, network=False) as sandbox:
        needed = hand_in(layer.root, downloads, folder, sandbox, tools)
        parts = _hand_in_sources(layer, downloads, below, folder / HANDED)
        sandbox.copy_in(*(f"{HANDED}/{part}" for part in parts))
        hooks = (
            '--customize-hook=sh "$1/imagebuilder/hooks/compile.sh" "$1"',
            f"--customize-hook=download {_PLACE}/{_PRODUCT} {shlex.quote(str(sandbox.folder / _PRODUCT))}",
        )
        try:
            needed += _UNPACKED * sum(blob.stat().st_size for blob in below) + _BUILD
            run_in_root(layer.root, sandbox, hooks, memory=needed)
        except BuildError as error:
            raise _explained(error, layer) from error
        shutil.rmtree(folder / HANDED)
        sandbox.copy_out(_PRODUCT)
        return folder / _PRODUCT


def _hand_in_sources(
    layer: BuiltLayer, downloads: Mapping[str, Path], below: tuple[Path, ...], handed: Path
) -> tuple[str, ...]:
    """Write the files that the steps need into a folder; returns their names there."""
    for part in ("archives", "python", "beside", "below"):
        (handed / part).mkdir()
    hooks = resources.files("imagebuilder.layers.hooks").joinpath("built")
    (handed / "hooks/compile.sh").write_bytes(hooks.joinpath("compile.sh").read_bytes())
    for source in layer.sources:
        check_bytes(downloads[source.sha256], source.sha256, source.file)
        shutil.copyfile(downloads[source.sha256], handed / "archives" / source.file)
    # The wheels of a compiled package are in the venv, and those that only its import needs are beside it.
    unpacked, place = layer.wheels, handed / "python"
    if isinstance(layer, CompiledLayer):
        unpacked, place = tuple(wheel for part in layer.beside for wheel in part.wheels), handed / "beside"
    for wheel in unpacked:
        check_bytes(downloads[wheel.sha256], wheel.sha256, wheel.file)
        # Steps use only modules of these wheels, as `python -m`; so unpacking them is enough.
        with zipfile.ZipFile(downloads[wheel.sha256]) as file:
            file.extractall(place)  # noqa: S202  (zipfile keeps members inside)
    for number, blob in enumerate(below):
        shutil.copyfile(blob, handed / "below" / f"{number:02}.tar.gz")
    (handed / "build.sh").write_text(layer.script(_PLACE), encoding="utf-8")
    return "archives", "python", "beside", "below", "build.sh", "hooks/compile.sh"


def _write(layer: BuiltLayer, made: tarfile.TarFile, out: BinaryIO) -> None:
    """Write the layer's tar: sorted, owned by root, with time 0, and with the modes of Debian's packages."""
    members = dict(_kept(layer, made))
    folders = {folder for path in members for folder in archive.parents(path)} - set(members)
    for path in sorted({*members, *folders}):
        member = members.get(path)
        if member is None or member.isdir():
            out.write(archive.directory(path, folder_mode(path)))
        elif member.issym():
            out.write(archive.symlink(path, member.linkname))
        else:
            source = made.extractfile(member)
            if source is None:
                raise BuildError(f"`/{path}` is neither file, folder nor link", where=layer.title)
            out.write(archive.regular(path, _mode(path, member.mode), member.size))
            shutil.copyfileobj(source, out, _COPY)
            out.write(archive.padding(member.size))
    out.write(archive.TAR_END)


def _kept(layer: BuiltLayer, made: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Yield the files that the catalog names as the component's product.

    Raises:
        BuildError: the steps did not make one of them, or made something that a layer cannot contain.

    """
    missing = set(layer.produces)
    for member in made:
        path = member.name.removeprefix("./").rstrip("/")
        homes = {home for home in layer.produces if path == home or path.startswith(f"{home}/")}
        if not homes:
            continue
        missing -= homes
        if problem := archive.path_problem(path):
            raise BuildError(f"`/{path}` {problem}", where=layer.title)
        # A hard link becomes a separate file with the content of its target.
        if not (member.isfile() or member.islnk() or member.issym() or member.isdir()):
            raise BuildError(f"`/{path}` is neither file, folder nor link", where=layer.title)
        if member.islnk():
            member.size = made.getmember(member.linkname).size
        yield path, member
    if missing:
        raise BuildError(
            f"nothing was made at {', '.join(f'/{path}' for path in sorted(missing))}",
            where=layer.title,
            hint="the catalog's `build:` of this component is wrong for this version",
        )


def _mode(path: str, mode: int) -> int:
    wanted = 0o755 if mode & 0o111 else 0o644
    # In the venv the group has the permissions of the owner, as in the layers of wheels.
    return wanted | (wanted & 0o700) >> 3 if path.startswith(f"{VENV.strip('/')}/") else wanted


def _explained(error: BuildError, layer: BuiltLayer) -> BuildError:
    """Return the error without the output of the packages before the first step."""
    message = error.problems[0].message
    # A package's build prints the line again before its errors.
    begin, *rest = message.split(f"\n{_BEGINS}\n")
    said = rest[-1] if rest else ""
    hint = "the last lines are from the compiler or the configure script; " + (
        "change `env`, `apt`, `requires` or `patches` of its entry under `compile:`"
        if isinstance(layer, CompiledLayer)
        else "to use the suite's package, remove the component from `build:`"
    )
    return BuildError(
        f"compiling {layer.component} failed:\n{said}" if said else begin.replace(_SYSTEM, _ROOT),
        where=f"{layer.component} {layer.version}",
        hint=hint,
    )
