"""Merge the files of an image's layers, without unpacking anything.

Each layer is a tar with changes to the layers below (image-spec 1.1, layer.md). An entry replaces the entry
with the same path. `.wh.NAME` removes NAME. `.wh..wh..opq` removes everything that lower layers have in its
folder.

Merging writes nothing to a file system, so links in layers cannot lead out of the image: paths and links are
looked up in the tree.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from imagebuilder.core import tarstream
from imagebuilder.core.streams import HashedReader
from imagebuilder.core.tarstream import TarEntry
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import BuildError, InputError

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MOST_LINKS = 40
_PIECE = 1 << 20
# Limits for untrusted layers. The largest images have half a million files, some twenty folders deep. A
# million files take 600 MB of memory here.
_MOST_PATHS = 1_000_000
_DEEPEST = 200
_MOST_STEPS = 100_000_000
# A list of three thousand packages has five megabytes, and every layer that adds a package has its own list.
_LARGEST_KEPT = 16 << 20
_MOST_KEPT = 128 << 20
# Engines mount their own file systems here, which hide a layer's files. Also, making devices needs
# privileges.
_MOUNTED = frozenset({"dev", "proc", "sys"})
_CAPABILITY = "SCHILY.xattr.security.capability"

Wanted = Callable[[str], bool]
"""Returns whether to keep the content of the file with this path in memory."""


@dataclass(kw_only=True, slots=True, eq=False)
class Inode:
    """One file, which may have several paths: its layer, and its entry there with the entry's number."""

    layer: int
    number: int
    entry: TarEntry
    data: bytes | None = None


@dataclass(kw_only=True, slots=True, eq=False)
class TreeNode:
    """One path; only a folder has children."""

    inode: Inode
    depth: int = 0
    children: dict[str, TreeNode] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return self.inode.entry.is_folder


@dataclass(kw_only=True)
class Tree:
    """All paths of an image; `name` is the image's name in messages."""

    name: str = ""
    root: TreeNode = field(default_factory=lambda: TreeNode(inode=_implied(-1, "")))

    def walk(self) -> Iterator[tuple[str, TreeNode]]:
        """Yield every path and its node, sorted, each folder before its content."""
        stack = [("", self.root)]
        while stack:
            path, node = stack.pop()
            if path:
                yield path, node
            stack += (
                (f"{path}/{name}" if path else name, node.children[name])
                for name in sorted(node.children, reverse=True)
            )

    def find(self, path: str) -> TreeNode | None:
        """Look up a path, and follow links as a process in the image would."""
        return _Walker(self).lookup(path, follow=True)

    def text(self, path: str) -> str:
        """Return the text of a file whose content was kept; "" for a missing file or a broken link.

        Raises:
            InputError: it is a folder or a device, or its content was not kept.

        """
        node = self.find(path)
        if node is None:
            return ""
        entry, data = node.inode.entry, node.inode.data
        if not entry.is_file or data is None:
            wrong = (
                f"has {entry.size} bytes, or is a link to an unexpected place"
                if entry.is_file
                else "is not a file"
            )
            raise InputError(
                f"{self.name} is broken: its `{path}` {wrong}, so it cannot be read",
                where="base: image",
                hint="choose another image",
            )
        return data.decode("utf-8", "replace")


def read(layers: Sequence[tuple[Path, str]], wanted: Wanted, where: str) -> Tree:
    """Merge layers.

    Args:
        layers: blob and diffID of each, the lowest first.
        wanted: selects the files whose content is kept.
        where: the image's name in messages.

    Raises:
        BuildError: a layer is damaged, or does not have its diffID.

    """
    tree = Tree(name=where)
    walker = _Walker(tree)
    for number, (path, diff_id) in enumerate(layers):
        with _opened(path, where, number) as stream:
            measured = HashedReader(stream)
            buffered = io.BufferedReader(measured, _PIECE)
            walker.apply(cast("BinaryIO", buffered), number, wanted)
            # The diffID also covers bytes after the tar's end mark.
            while buffered.read(_PIECE):
                pass
        if measured.digest != diff_id:
            raise BuildError(
                f"layer {number + 1} holds a tar with the digest {measured.digest}, not {diff_id}",
                where=where,
                hint="the image is damaged: pull another digest",
            )
    return tree


def read_stream(stream: BinaryIO, wanted: Wanted, where: str) -> Tree:
    """Read all files of an image from one tar, as an engine exports them.

    Args:
        stream: the tar, read once from its start to its end.
        wanted: whose content to keep.
        where: what the image is called, for messages.

    Raises:
        BuildError: it has what layers may not have: see the limits above.
        tarfile.TarError: it is damaged; so are the other `tarstream.errors()`.

    """
    tree = Tree(name=where)
    _Walker(tree).apply(stream, 0, wanted)
    return tree


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One path of a merged tar, with everything that shows whether it was changed later."""

    path: str
    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    link: str
    sha256: str

    def line(self) -> str:
        return json.dumps(
            [self.path, self.kind, self.mode, self.uid, self.gid, self.size, self.link, self.sha256]
        )


def write(
    tree: Tree, layers: Sequence[Path], out: BinaryIO, where: str, skip: frozenset[str] = _MOUNTED
) -> Iterator[Seen]:
    """Write the tree as one tar, each file once, and yield its paths.

    Folders come first and symbolic links last, so that unpacking never follows one.

    Args:
        tree: made by `read` from the same layers.
        layers: blob of each.
        out: receives the tar; unpack it with `--numeric-owner`.
        where: the image's name in messages.
        skip: names at the top that are left out.

    """
    paths: dict[int, list[str]] = {}
    inodes: dict[int, Inode] = {}
    others: list[tuple[str, TreeNode]] = []
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for path, node in tree.walk():
            if path.partition("/")[0] in skip or not _portable(node):
                continue
            if node.is_folder:
                tar.addfile(_header(node.inode, path))
                yield _seen(path, node.inode, "dir")
            elif node.inode.entry.is_file:
                paths.setdefault(id(node.inode), []).append(path)
                inodes[id(node.inode)] = node.inode
            else:
                others.append((path, node))
        wanted = {(inode.layer, inode.number): key for key, inode in inodes.items()}
        for number, blob in enumerate(layers):
            if not any(layer == number for layer, _ in wanted):
                continue
            with _opened(blob, where, number) as stream:
                for position, (_, content) in enumerate(tarstream.entries(stream)):
                    key = wanted.get((number, position))
                    if key is not None:
                        yield from _copy(content, inodes[key], paths[key], tar)
        # GNU's long names, because mksquashfs takes the first slash off a target in a pax header.
        tar.format = tarfile.GNU_FORMAT
        for path, node in others:
            tar.addfile(_header(node.inode, path))
            yield _seen(path, node.inode, "link" if node.inode.entry.is_symlink else "other")


def _copy(content: BinaryIO, inode: Inode, paths: list[str], tar: tarfile.TarFile) -> Iterator[Seen]:
    """Write one file's content under its first path, and hard links under the others."""
    hashed = HashedReader(content)
    size = inode.entry.size
    first = _header(inode, paths[0])
    first.size = size
    tar.addfile(first, cast("BinaryIO", io.BufferedReader(hashed, _PIECE)))
    digest = hashed.digest.removeprefix("sha256:")
    yield _seen(paths[0], inode, "file", digest, size)
    for path in paths[1:]:
        link = _header(inode, path)
        link.type, link.linkname, link.size = tarfile.LNKTYPE, paths[0], 0
        tar.addfile(link)
        yield _seen(path, inode, "file", digest, size)


class _Walker:
    """Looks up paths in a tree and applies layers to it, within limits on paths, steps and memory."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._paths = self._steps = self._kept = 0

    def apply(self, stream: BinaryIO, layer: int, wanted: Wanted) -> None:
        """Apply one layer to the tree."""
        for number, (entry, content) in enumerate(tarstream.entries(stream)):
            parts = _parts(entry.path)
            if not parts:
                continue
            folder, name = self._folder(parts[:-1], layer), parts[-1]
            if name == _OPAQUE:
                self._forget(folder, layer)
            elif name.startswith(_WHITEOUT):
                self._remove(folder, name.removeprefix(_WHITEOUT), layer)
            elif entry.is_hardlink:
                self._put(folder, name, self._linked(entry))
            else:
                inode = Inode(layer=layer, number=number, entry=entry)
                if entry.is_file and wanted("/".join(parts)):
                    inode.data = self._content(entry, content)
                self._put(folder, name, inode)

    def lookup(self, path: str, *, follow: bool) -> TreeNode | None:
        """Look up a path. Links in its folders are followed; a link at its end only with `follow`."""
        todo = [part for part in path.split("/") if part not in {"", "."}][::-1]
        trail = [self._tree.root]
        links = 0
        while todo:
            self._step()
            name = todo.pop()
            if name == "..":
                del trail[max(len(trail) - 1, 1) :]
                continue
            node = trail[-1].children.get(name)
            if node is None:
                return None
            if node.inode.entry.is_symlink and (todo or follow):
                links += 1
                if links > _MOST_LINKS:
                    return None
                target = node.inode.entry.link
                del trail[1 if target.startswith("/") else len(trail) :]
                todo += [part for part in target.split("/") if part not in {"", "."}][::-1]
                continue
            trail.append(node)
        return trail[-1]

    def _folder(self, parts: Sequence[str], layer: int) -> TreeNode:
        """Return the folder for an entry; folders without an entry of their own are created."""
        node = self._tree.root
        for depth, name in enumerate(parts):
            self._step()
            child = node.children.get(name)
            if child is not None and child.inode.entry.is_symlink:
                child = self.lookup("/".join(parts[: depth + 1]), follow=True)
            if child is None or not child.is_folder:
                child = self._put(node, name, _implied(layer, name))
            node = child
        return node

    def _put(self, folder: TreeNode, name: str, inode: Inode) -> TreeNode:
        self._paths += 1
        if self._paths > _MOST_PATHS or folder.depth >= _DEEPEST:
            raise BuildError(
                f"`{printable(name)}` exceeds a limit: {_MOST_PATHS} files and folders, and folders nested "
                f"{_DEEPEST} deep"
            )
        before = folder.children.get(name)
        kept = before.children if before is not None and inode.entry.is_folder else {}
        node = folder.children[name] = TreeNode(inode=inode, depth=folder.depth + 1, children=kept)
        return node

    def _forget(self, folder: TreeNode, layer: int) -> None:
        """Remove everything that lower layers have in a folder."""
        for name in tuple(folder.children):
            self._remove(folder, name, layer)

    def _remove(self, folder: TreeNode, name: str, layer: int) -> None:
        """Remove a path of lower layers; entries of this layer itself stay."""
        self._step()
        node = folder.children.get(name)
        if node is None or (not node.is_folder and node.inode.layer == layer):
            return
        if node.is_folder:
            self._forget(node, layer)
            if node.children or node.inode.layer == layer:
                return
        del folder.children[name]

    def _linked(self, entry: TarEntry) -> Inode:
        """Return the file that a hard link points to."""
        target = self.lookup("/".join(_parts(entry.link)), follow=False)
        if target is None or target.is_folder:
            raise BuildError(
                f"`{printable(entry.path)}` is a link to `{printable(entry.link)}`, which does not exist"
            )
        return target.inode

    def _content(self, entry: TarEntry, content: BinaryIO) -> bytes | None:
        if entry.size > min(_LARGEST_KEPT, _MOST_KEPT - self._kept):
            return None
        self._kept += entry.size
        return content.read()

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise BuildError("looking up its links takes too many steps")


class _opened:  # noqa: N801 used as a function, like `open`
    """Opens a layer's tar, and adds the layer and the image to its errors."""

    def __init__(self, path: Path, where: str, number: int) -> None:
        self._path, self._where, self._layer = path, where, f"layer {number + 1}"

    def __enter__(self) -> BinaryIO:
        self._stream = tarstream.open_layer(self._path)
        return self._stream

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stream.close()
        if isinstance(error, tarstream.errors()) and not isinstance(error, BrokenPipeError):
            raise BuildError(
                f"{self._layer} of the base cannot be read: {printable(str(error))}",
                where=self._where,
                hint="run: imagebuilder cache verify --fix; if that finds nothing, choose another image",
            ) from error
        if isinstance(error, BuildError) and not error.problems[0].where:
            raise BuildError(
                f"{self._layer} of the base: {error}",
                where=self._where,
                hint="the image is damaged: choose another",
            ) from error


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise BuildError(f"`{printable(name)}` leads out of the image")
    return parts


def _portable(node: TreeNode) -> bool:
    """Return whether a node can be unpacked: not devices, which need privileges, nor pipes and sockets."""
    entry = node.inode.entry
    return entry.is_folder or entry.is_file or entry.is_symlink


def _implied(layer: int, path: str) -> Inode:
    """Return a folder that a layer has no entry for, although it has entries inside it."""
    return Inode(layer=layer, number=-1, entry=TarEntry(path=path, kind=tarfile.DIRTYPE))


def _header(inode: Inode, path: str) -> tarfile.TarInfo:
    """Make the header of a path: owners by number, and of extended attributes only capabilities."""
    old = inode.entry
    new = tarfile.TarInfo(path)
    new.type = tarfile.REGTYPE if old.is_file else old.kind
    new.mode, new.uid, new.gid, new.mtime = old.mode, old.uid, old.gid, old.mtime
    new.linkname = old.link if old.is_symlink else ""
    if old.capability:
        new.pax_headers = {_CAPABILITY: old.capability.decode("utf-8", "surrogateescape")}
    return new


def _seen(path: str, inode: Inode, kind: str, sha256: str = "", size: int = 0) -> Seen:
    entry = inode.entry
    return Seen(
        path=path,
        kind=kind,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        size=size,
        link=entry.link if entry.is_symlink else "",
        sha256=sha256,
    )
