"""Writes an image as one squashfs file, which enroot, Apptainer and the kernel mount without unpacking it.

The file holds the files of all layers, and a few that say how to start the image: squashfs has no place for
an image's config. Nothing is unpacked on this host, so owners need no root.

Formats: enroot's doc/image-format.md (`/etc/rc`, `/etc/environment`, `/etc/fstab`), and what
`apptainer build` itself writes for an OCI image (`/.singularity.d`).
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from imagebuilder.bases import tree
from imagebuilder.core import documents, process
from imagebuilder.errors import EnvironmentFault, InputError, StoreError
from imagebuilder.image import layout
from imagebuilder.layers import archive
from imagebuilder.store import ImageRecord, Store

_PROGRAM = "mksquashfs"
_PACKAGE = "squashfs-tools"
_SECONDS = 7200.0
_LATEST = 2**32 - 1  # the last time that squashfs can hold
# Kernels from 4.14 on, squashfuse, enroot and Apptainer read zstd. The tar has no entry for the root.
_OPTIONS = (
    *("-comp", "zstd", "-Xcompression-level", "3", "-reproducible"),
    *("-root-uid", "0", "-root-gid", "0", "-root-mode", "755"),
    *("-exit-on-error", "-quiet", "-no-progress"),
)
# enroot and Apptainer mount these, but can make no folder in a file system that is read-only.
_MOUNT_POINTS = ("dev", "proc", "sys", "tmp")


def require_possible(destination: Path, platforms: Sequence[str], *, embedded: bool = True) -> None:
    """Check what `export` needs, before a build that may take minutes.

    Args:
        destination: where the file will be.
        platforms: those of the image.
        embedded: whether our own engine builds it, into the store.

    Raises:
        EnvironmentFault: squashfs-tools is not installed.
        InputError: the image is for several platforms, or in no store.

    """
    if not embedded:
        raise InputError(
            "only images of the embedded engine are written as squashfs",
            where=f"--output {destination}",
            hint="leave out --engine docker, or name a file that ends in .tar",
        )
    if len(platforms) > 1:
        raise InputError(
            f"squashfs holds one image, but the recipe has {len(platforms)}: {', '.join(platforms)}",
            where=f"--output {destination}",
            hint=f"name one with --platform, as in --platform {platforms[0]}",
        )
    if not shutil.which(_PROGRAM):
        raise EnvironmentFault(
            f"`{_PROGRAM}` is not installed, which writes squashfs",
            where=f"--output {destination}",
            hint=f"apt-get install {_PACKAGE} (4.5 or newer), or name a file that ends in .tar",
        )


def export(image: ImageRecord, store: Store, destination: Path) -> None:
    """Write an image as a squashfs file. It appears in one step.

    The same image gives the same bytes with the same version of squashfs-tools and libzstd.

    Raises:
        BuildError: a layer in the store is damaged.
        CommandError: mksquashfs failed.
        InputError: the destination is a folder.
        StoreError: a blob is missing, or the disk is full.

    """
    name = f"{image.name}:{image.tag}"
    for digest in layout.blobs(image):
        if not store.has_blob(digest):
            raise StoreError("is missing from the store", where=digest, hint="build the image again")
    config = json.loads(store.blob(image.config).read_bytes())
    with layout.replacing(destination) as draft:
        top = draft.parent / "start.tar"
        diff_id = _write_top(top, start_files(config["config"], f"{name} {image.manifest}"))
        layers = [(store.blob(layer.record.digest), layer.record.diff_id) for layer in image.layers]
        layers.append((top, diff_id))
        files = tree.read(layers, lambda _path: False, name)

        def write(out: BinaryIO) -> None:
            for _ in tree.write(files, [path for path, _ in layers], out, name, skip=frozenset()):
                pass

        # Later times become this one: that of the root, which is the clock's, and of the file system. Unlike
        # `-root-time`, it works in mksquashfs 4.5 with a tar.
        newest = max(node.inode.entry.mtime for _, node in files.walk())
        env = {"SOURCE_DATE_EPOCH": str(min(max(newest, 0), _LATEST))}
        command = (_PROGRAM, "-", draft, "-tar", *_OPTIONS)
        try:
            process.feed(command, write, timeout=_SECONDS, env=env)
        except process.CommandError as error:
            if "No space left" in error.result.stderr:
                raise StoreError("the disk is full", where=str(destination)) from error
            raise


def start_files(config: Mapping[str, Any], title: str) -> dict[str, str]:
    """Return the files that say how enroot and Apptainer start an image, by path.

    Args:
        config: the part `config` of the image's config.
        title: names the image in a comment.

    """
    variables = [variable.partition("=")[::2] for variable in config.get("Env", ())]
    start = _start(config.get("Entrypoint", ()), config.get("Cmd", ()))
    folder = shlex.quote(config.get("WorkingDir") or "/")
    return {
        # enroot: the command's words are the script's arguments, and a site may bring an /etc/rc.local.
        "etc/rc": f"# {title}\ncd {folder} && unset OLDPWD || exit 1\n"
        f"if [ -s /etc/rc.local ]; then\n    . /etc/rc.local\nfi\n{start}",
        "etc/environment": "".join(f"{key}={value}\n" for key, value in variables),
        "etc/fstab": "",
        # Apptainer: the user's variables come before the image's, as in an image that it converts itself.
        ".singularity.d/env/10-docker2singularity.sh": "#!/bin/sh\n"
        + "".join(_variable(key, value) for key, value in variables),
        ".singularity.d/runscript": f"#!/bin/sh\n# {title}\n{start}",
    }


def _start(entrypoint: Sequence[str], command: Sequence[str]) -> str:
    first = shlex.join(entrypoint)
    default = shlex.join([*entrypoint, *command]) or "/bin/sh"
    return f'if [ $# -gt 0 ]; then\n    exec {first} "$@"\nelse\n    exec {default}\nfi\n'


def _variable(key: str, value: str) -> str:
    line = f"export {key}={shlex.quote(value)}\n"
    return line if key == "PATH" else f'[ -n "${{{key}-}}" ] || {line}'


def _write_top(place: Path, files: Mapping[str, str]) -> str:
    """Write a layer of these files and the mount points; returns its diffID."""
    with place.open("xb") as out:
        for folder in _MOUNT_POINTS:
            out.write(archive.directory(folder, 0o1777 if folder == "tmp" else 0o755))
        for path, text in sorted(files.items()):
            data = text.encode()
            mode = 0o755 if text.startswith("#!") else 0o644
            out.write(archive.regular(path, mode, len(data)) + data + archive.padding(len(data)))
        out.write(archive.TAR_END)
    return documents.digest_of(place.read_bytes())
