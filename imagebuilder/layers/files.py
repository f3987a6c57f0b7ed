"""A layer of plain files: settings, scripts and links, owned by root.

If a layer has no entry for a folder, some engines create it with mode 0600 (moby's `archive.UnpackLayer`). If
it has one, the entry's mode replaces that of the layers below. So every folder above a file gets an entry,
with its mode in Debian's base-files or in the venv.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from io import BytesIO

from imagebuilder.core.progress import no_advance
from imagebuilder.errors import BuildError
from imagebuilder.layers import archive, stargz
from imagebuilder.plan import VENV, Entry, FilesLayer, KeysLayer
from imagebuilder.plan.sshkeys import make_pair
from imagebuilder.store import LayerRecord, Store

_KINDS = ("dir", "file", "link")
_ROOT_FOLDER = 0o755
_GROUP_FOLDER = 0o775
# Debian's folders with another mode than 0755.
_MODES = {"root": 0o700, "tmp": 0o1777, "var/tmp": 0o1777, "run/lock": 0o1777}
# Debian's folders that are links: an entry as a folder would replace the link, and break the system.
_LINKED = {
    **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")},
    "var/run": "run",
    "var/lock": "run/lock",
    f"{VENV.strip('/')}/lib64": f"{VENV.strip('/')}/lib",
}
# Folders whose owner or mode this module does not know, or that the kernel fills.
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
        layer: its entries; their paths may begin with a slash.
        store: the blob is written to it.

    Raises:
        BuildError: an entry would harm the image: a path occurs twice, goes through a link of the system, or
            is in a folder whose mode is unknown.
        StoreError: the blob cannot be written.

    """
    entries: dict[str, Entry] = {}
    for entry in layer.entries:
        path = entry.path.removeprefix("/")
        if problem := archive.path_problem(path) or _problem(path, entry):
            raise _refuse(layer, entry, problem)
        if path in entries:
            raise _refuse(layer, entry, "occurs twice")
        entries[path] = entry
    folders = _folders(layer, entries)
    tar = bytearray()
    for path in sorted({*entries, *folders}):
        tar += _member(path, entries[path]) if path in entries else archive.directory(path, folders[path])
    tar += archive.TAR_END
    return stargz.compress_tar(BytesIO(tar), store, no_advance)


def build_keys_layer(layer: KeysLayer, store: Store) -> LayerRecord:
    """Make a key pair and a layer that contains it, for `ssh: {keys: baked}`; no other file here has it.

    All nodes share this pair. If a job's secret is a single private key, the entrypoint accepts it for logins
    and also uses it as the host key. The pair is random, so this is the only layer that differs on another
    host. On this host the store keeps it, and the same lock gives the same image.

    Raises:
        EnvironmentFault: there is no ssh-keygen.
        StoreError: the blob cannot be written.

    """
    with store.work() as folder:
        private = folder / "id_ed25519"
        make_pair(private, layer.image)
        entries = (
            Entry(path=layer.folder, kind="dir", mode=0o750),
            # The image's user, whatever its id, is in group 0; nobody else may read the key.
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
    """Return the folders above the entries, without those that are entries, with their modes."""
    folders: dict[str, int] = {}
    for path, entry in entries.items():
        for folder in archive.parents(path):
            if folder in entries:
                if entries[folder].kind != "dir":
                    raise _refuse(
                        layer, entry, f"is in `/{folder}`, which is a {entries[folder].kind} in this layer"
                    )
                continue
            if folder in _LINKED:
                better = _LINKED[folder] + path.removeprefix(folder)
                raise _refuse(layer, entry, f"goes through a link of the system; write `/{better}`")
            if any(folder == name or folder.startswith(f"{name}/") for name in _FOREIGN):
                raise _refuse(layer, entry, f"is in `/{folder}`, whose owner and mode are unknown")
            folders[folder] = folder_mode(folder)
    return folders


def folder_mode(folder: str) -> int:
    """Return the mode of a folder in Debian or in the venv; its path is relative to the root."""
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
    # The path in the image to which a relative target leads.
    led = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    findings = (
        (entry.kind not in _KINDS, f"has the unknown kind {entry.kind}; known kinds: {', '.join(_KINDS)}"),
        (not 0 <= entry.mode <= 0o7777, f"has the mode {entry.mode:o}"),
        (path in _LINKED, "is a link of the system"),
        (
            entry.kind == "link" and (not target or not target.isprintable()),
            "is a link without a printable target",
        ),
        (entry.kind == "link" and led.split("/")[0] == "..", "is a link that leads out of the image"),
        (entry.kind == "dir" and target, "is a folder with content"),
    )
    return next((text for wrong, text in findings if wrong), "")


def _refuse(layer: FilesLayer, entry: Entry, reason: str) -> BuildError:
    return BuildError(f"`{entry.path}` {reason}", where=f"layer {layer.name}")
