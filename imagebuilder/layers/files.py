"""Plain files as a layer: settings, scripts and links, owned by root.

A layer that leaves a folder out makes some engines invent it, mode 0600 (moby's `archive.UnpackLayer`), and
one that lists it sets its mode for good, over what the layers below say. So every folder above a file is
listed, with the mode that Debian's package base-files gives it, or that the venv has.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from io import BytesIO

from imagebuilder.core.progress import no_advance
from imagebuilder.errors import BuildError
from imagebuilder.layers import archive
from imagebuilder.plan import VENV, Entry, FilesLayer, KeysLayer
from imagebuilder.plan.sshkeys import make_pair
from imagebuilder.store import LayerRecord, Store

_KINDS = ("dir", "file", "link")
_ROOT_FOLDER = 0o755
_GROUP_FOLDER = 0o775
# Folders of Debian that are not 0755.
_MODES = {"root": 0o700, "tmp": 0o1777, "var/tmp": 0o1777, "run/lock": 0o1777}
# Folders of Debian that are links: listing one as a folder would replace the link, and break the system.
_LINKED = {
    **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")},
    "var/run": "run",
    "var/lock": "run/lock",
    f"{VENV.strip('/')}/lib64": f"{VENV.strip('/')}/lib",
}
# Folders whose owner or mode is not known here, or that the kernel fills.
_FOREIGN = (
    "home",
    "proc",
    "sys",
    "dev",
    "etc/ssl/private",
    "var/mail",
    "var/local",
    "var/spool/cron",
    "var/log",
)


def build_files_layer(layer: FilesLayer, store: Store) -> LayerRecord:
    """Make a layer of plain files.

    Args:
        layer: the entries; a path may begin with a slash or not.
        store: where the blob goes.

    Raises:
        BuildError: an entry that would harm the image: two of one path, a path through a link of the system,
            or in a folder whose mode is not known.
        StoreError: the blob cannot be written.

    """
    entries: dict[str, Entry] = {}
    for entry in layer.entries:
        path = entry.path.removeprefix("/")
        if problem := archive.path_problem(path) or _problem(path, entry):
            raise _refuse(layer, entry, problem)
        if path in entries:
            raise _refuse(layer, entry, "is there twice")
        entries[path] = entry
    folders = _folders(layer, entries)
    tar = bytearray()
    for path in sorted({*entries, *folders}):
        tar += _member(path, entries[path]) if path in entries else archive.directory(path, folders[path])
    tar += archive.TAR_END
    return archive.compress_tar(BytesIO(tar), store, no_advance)


def build_keys_layer(layer: KeysLayer, store: Store) -> LayerRecord:
    """Make a key pair, and a layer of it, for `ssh: {keys: baked}`; on this host it is nowhere else.

    All nodes have this one pair: the entrypoint takes a lone private key for a job's whole secret, lets in
    whoever has it and makes it the host key too. It is random, so this is the one layer that another host
    makes differently; here the store keeps it under the layer's key, and the same lock gives the same image.

    Raises:
        EnvironmentFault: there is no ssh-keygen.
        StoreError: the blob cannot be written.

    """
    with store.work() as folder:
        private = folder / "id_ed25519"
        make_pair(private, layer.image)
        entries = (
            Entry(path=layer.folder, kind="dir", mode=0o750),
            # The image's user has the group 0, whoever it is; nobody else may read it.
            Entry(path=f"{layer.folder}/{private.name}", kind="file", mode=0o640, text=private.read_text()),
            Entry(
                path=f"{layer.folder}/{private.name}.pub",
                kind="file",
                mode=0o644,
                text=private.with_suffix(".pub").read_text(),
            ),
        )
    return build_files_layer(FilesLayer(name=layer.title, entries=entries), store)


def _folders(layer: FilesLayer, entries: Mapping[str, Entry]) -> dict[str, int]:
    """Find the folders above the entries that are no entries themselves, with their modes."""
    folders: dict[str, int] = {}
    for path, entry in entries.items():
        for folder in archive.parents(path):
            if folder in entries:
                if entries[folder].kind != "dir":
                    raise _refuse(
                        layer, entry, f"lies in `/{folder}`, which is a {entries[folder].kind} here"
                    )
                continue
            if folder in _LINKED:
                better = _LINKED[folder] + path.removeprefix(folder)
                raise _refuse(layer, entry, f"goes through a link of the system; write `/{better}`")
            if any(folder == name or folder.startswith(f"{name}/") for name in _FOREIGN):
                raise _refuse(layer, entry, f"lies in `/{folder}`, whose owner and mode are not known here")
            folders[folder] = folder_mode(folder)
    return folders


def folder_mode(folder: str) -> int:
    """Give the mode that Debian, or the venv, has for a folder; its path is relative to the root."""
    venv = VENV.strip("/")
    inside = folder == venv or folder.startswith(f"{venv}/")
    return _MODES.get(folder, _GROUP_FOLDER if inside else _ROOT_FOLDER)


def _member(path: str, entry: Entry) -> bytes:
    match entry.kind:
        case "dir":
            return archive.directory(path, entry.mode)
        case "link":
            return archive.symlink(path, entry.text)
        case _:
            data = entry.text.encode()
            return archive.regular(path, entry.mode, len(data)) + data + archive.padding(len(data))


def _problem(path: str, entry: Entry) -> str:
    target = entry.text
    # Where a relative target leads, seen from the image's root.
    led = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    findings = (
        (entry.kind not in _KINDS, f"is a {entry.kind}; known are {', '.join(_KINDS)}"),
        (not 0 <= entry.mode <= 0o7777, f"has the mode {entry.mode:o}"),
        (path in _LINKED, "is a link of the system"),
        (entry.kind == "link" and (not target or not target.isprintable()), "is a link to no proper path"),
        (entry.kind == "link" and led.split("/")[0] == "..", "is a link that leads out of the image"),
        (entry.kind == "dir" and target, "is a folder with content"),
    )
    return next((text for wrong, text in findings if wrong), "")


def _refuse(layer: FilesLayer, entry: Entry, reason: str) -> BuildError:
    return BuildError(f"`{entry.path}` {reason}", where=f"layer {layer.name}")
