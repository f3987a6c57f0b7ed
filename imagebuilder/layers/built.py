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
from typing import BinaryIO

from imagebuilder.core.progress import Advance
from imagebuilder.errors import BuildError
from imagebuilder.host.tools import HOST, Tools
from imagebuilder.layers import archive
from imagebuilder.layers.files import folder_mode
from imagebuilder.layers.system.install import HANDED, hand_in, run_in_root
from imagebuilder.plan import VENV, BuiltLayer
from imagebuilder.store import LayerRecord, Store, check_bytes

log = logging.getLogger(__name__)

_COPY = 1 << 20
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
    with store.work() as folder, tools.open(folder, network=False) as sandbox:
        hand_in(layer.root, downloads, folder, sandbox, tools)
        parts = _hand_in_sources(layer, downloads, below, folder / HANDED)
        sandbox.copy_in(*(f"{HANDED}/{part}" for part in parts))
        hooks = (
            '--customize-hook=sh "$1/imagebuilder/hooks/compile.sh" "$1"',
            f"--customize-hook=download {_PLACE}/{_PRODUCT} {shlex.quote(str(sandbox.folder / _PRODUCT))}",
        )
        try:
            run_in_root(layer.root, sandbox, hooks)
        except BuildError as error:
            raise _explained(error, layer) from error
        shutil.rmtree(folder / HANDED)
        sandbox.copy_out(_PRODUCT)
        tar = folder / "layer.tar"
        with tarfile.open(folder / _PRODUCT) as made, tar.open("wb") as out:
            _write(layer, made, out)
        (folder / _PRODUCT).unlink()
        with tar.open("rb") as stream:
            return archive.compress_tar(stream, store, advance)


def _hand_in_sources(
    layer: BuiltLayer, downloads: Mapping[str, Path], below: tuple[Path, ...], handed: Path
) -> tuple[str, ...]:
    """Write the files that the steps need into a folder; returns their names there."""
    for part in ("archives", "python", "below"):
        (handed / part).mkdir()
    hooks = resources.files("imagebuilder.layers.hooks").joinpath("built")
    (handed / "hooks/compile.sh").write_bytes(hooks.joinpath("compile.sh").read_bytes())
    for source in layer.sources:
        check_bytes(downloads[source.sha256], source.sha256, source.file)
        shutil.copyfile(downloads[source.sha256], handed / "archives" / source.file)
    for wheel in layer.wheels:
        check_bytes(downloads[wheel.sha256], wheel.sha256, wheel.file)
        # Steps use only modules of these wheels, as `python -m`; so unpacking them is enough.
        with zipfile.ZipFile(downloads[wheel.sha256]) as file:
            file.extractall(handed / "python")  # noqa: S202  (zipfile keeps members inside)
    for number, blob in enumerate(below):
        shutil.copyfile(blob, handed / "below" / f"{number:02}.tar.gz")
    (handed / "build.sh").write_text(layer.script(_PLACE), encoding="utf-8")
    return "archives", "python", "below", "build.sh", "hooks/compile.sh"


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
    begin, _, said = message.partition(f"\n{_BEGINS}\n")
    return BuildError(
        f"compiling {layer.component} failed:\n{said}" if said else begin.replace(_SYSTEM, _ROOT),
        where=f"{layer.component} {layer.version}",
        hint="the last lines are from the compiler or the configure script; "
        "to use the suite's package, remove the component from `build:`",
    )
