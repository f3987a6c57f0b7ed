"""The files that the layers of an image leave together, found without unpacking anything.

Layers are tars, each a difference to those below it (image-spec 1.1, layer.md): an entry replaces the one of
its path, `.wh.NAME` removes it, `.wh..wh..opq` removes everything that lower layers have in its folder.

Nothing is written to a file system while layers are laid over each other, so links in them lead nowhere: a
path is looked up in the tree, with its links followed inside of it.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from imagebuilder import tarstream
from imagebuilder.errors import BuildError

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MOST_LINKS = 40
_PIECE = 1 << 20
# Where an engine mounts its own things: what a layer has there is never seen, and devices cannot be made
# without privileges.
_MOUNTED = frozenset({"dev", "proc", "sys"})
_CAPABILITY = "SCHILY.xattr.security.capability"

Wanted = Callable[[str], bool]
"""Says of a path whether its content is to be kept in memory; it is told of small files only."""
KEPT_BYTES = 64 << 20


@dataclass(kw_only=True, slots=True, eq=False)
class Inode:
    """One file, whatever number of paths it has: in which layer its content is, and at which entry of it."""

    layer: int
    entry: int
    header: tarfile.TarInfo
    data: bytes | None = None


@dataclass(kw_only=True, slots=True, eq=False)
class Node:
    """One path; only a folder has children."""

    inode: Inode
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return self.inode.header.isdir()


@dataclass(kw_only=True)
class Tree:
    """All paths, below a root that is a folder."""

    root: Node = field(
        default_factory=lambda: Node(inode=Inode(layer=-1, entry=-1, header=_folder_header("")))
    )

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Give every path and its node, a folder before what is in it, sorted."""
        stack = [("", self.root)]
        while stack:
            path, node = stack.pop()
            if path:
                yield path, node
            stack += (
                (f"{path}/{name}" if path else name, node.children[name])
                for name in sorted(node.children, reverse=True)
            )

    def find(self, path: str) -> Node | None:
        """Look a path up, with links followed as a process in the image would see them."""
        return _Walker(self).lookup(path, follow=True)

    def text(self, path: str) -> str:
        """Read a file whose content was kept; "" where there is none."""
        node = self.find(path)
        return (node.inode.data or b"").decode("utf-8", "replace") if node else ""


def read(layers: Sequence[tuple[Path, str]], wanted: Wanted, where: str) -> Tree:
    """Lay layers over each other.

    Args:
        layers: blob and diffID of each, the lowest first.
        wanted: whose content to keep.
        where: what the image is called, for messages.

    Raises:
        BuildError: a layer is damaged, or its tar is not the one that the image's config names.

    """
    tree = Tree()
    for number, (path, diff_id) in enumerate(layers):
        with _opened(path, where) as stream:
            measured = _Measured(stream)
            with tarfile.open(fileobj=cast("BinaryIO", measured), mode="r|") as tar:
                _Walker(tree).apply(tar, number, wanted)
            measured.drain()
        if measured.digest != diff_id:
            raise BuildError(
                f"layer {number + 1} holds a tar with the digest {measured.digest}, not {diff_id}",
                where=where,
                hint="the image is damaged: pull another digest",
            )
    return tree


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One path of a merged tar, as JSON lines carry it: what can tell whether it was changed later."""

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
    """Write the tree as one tar, each file once, and say what is in it.

    Folders come first and symbolic links last, so that unpacking it never follows one.

    Args:
        tree: that `read` made of the same layers.
        layers: blob of each.
        out: where the tar goes; unpacked with `--numeric-owner`.
        where: what the image is called, for messages.
        skip: names at the top that are left out.

    """
    paths: dict[int, list[str]] = {}
    inodes: dict[int, Inode] = {}
    others: list[tuple[str, Node]] = []
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for path, node in tree.walk():
            if path.partition("/")[0] in skip or not _portable(node):
                continue
            if node.is_folder:
                tar.addfile(_header(node.inode, path))
                yield _seen(path, node.inode, "dir")
            elif node.inode.header.isreg():
                paths.setdefault(id(node.inode), []).append(path)
                inodes[id(node.inode)] = node.inode
            else:
                others.append((path, node))
        wanted = {(inode.layer, inode.entry): key for key, inode in inodes.items()}
        for number, blob in enumerate(layers):
            if not any(layer == number for layer, _ in wanted):
                continue
            with _opened(blob, where) as stream, tarfile.open(fileobj=stream, mode="r|") as source:
                for entry, member in enumerate(source):
                    key = wanted.get((number, entry))
                    if key is not None:
                        yield from _copy(source, member, inodes[key], paths[key], tar)
        for path, node in others:
            tar.addfile(_header(node.inode, path))
            yield _seen(path, node.inode, "link" if node.inode.header.issym() else "other")


def _copy(
    source: tarfile.TarFile, member: tarfile.TarInfo, inode: Inode, paths: list[str], tar: tarfile.TarFile
) -> Iterator[Seen]:
    """Write one file's content under its first path, and links to that under the others."""
    hashed = _Measured(cast("BinaryIO", source.extractfile(member)))
    first = _header(inode, paths[0])
    first.size = member.size
    tar.addfile(first, cast("BinaryIO", hashed))
    digest = hashed.digest.removeprefix("sha256:")
    yield _seen(paths[0], inode, "file", digest, member.size)
    for path in paths[1:]:
        link = _header(inode, path)
        link.type, link.linkname, link.size = tarfile.LNKTYPE, paths[0], 0
        tar.addfile(link)
        yield _seen(path, inode, "file", digest, member.size)


class _Walker:
    """Looks paths up in a tree, and lays one layer over it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def apply(self, tar: tarfile.TarFile, layer: int, wanted: Wanted) -> None:
        kept = 0
        for entry, member in enumerate(tar):
            parts = _parts(member.name)
            if not parts:
                continue
            folder, name = self._folder(parts[:-1], layer), parts[-1]
            if name == _OPAQUE:
                _forget(folder, layer)
            elif name.startswith(_WHITEOUT):
                _remove(folder, name.removeprefix(_WHITEOUT), layer)
            elif member.islnk():
                target = self.lookup("/".join(_parts(member.linkname)), follow=False)
                if target is None or target.is_folder:
                    raise BuildError(f"`{member.name}` is a link to `{member.linkname}`, which is not there")
                folder.children[name] = Node(inode=target.inode)
            else:
                inode = Inode(layer=layer, entry=entry, header=member)
                if member.isreg() and wanted("/".join(parts)) and kept + member.size <= KEPT_BYTES:
                    file = tar.extractfile(member)
                    inode.data = file.read() if file else b""
                    kept += member.size
                _place(folder, name, inode)

    def lookup(self, path: str, *, follow: bool) -> Node | None:
        """Find a path; links in its folders are followed, and one at its end where that is asked for."""
        todo = [part for part in path.split("/") if part not in {"", "."}][::-1]
        trail = [self._tree.root]
        links = 0
        while todo:
            name = todo.pop()
            if name == "..":
                trail = trail[:-1] or trail
                continue
            node = trail[-1].children.get(name)
            if node is None:
                return None
            if node.inode.header.issym() and (todo or follow):
                links += 1
                if links > _MOST_LINKS:
                    return None
                target = node.inode.header.linkname
                trail = [self._tree.root] if target.startswith("/") else trail
                todo += [part for part in target.split("/") if part not in {"", "."}][::-1]
                continue
            trail = [*trail, node]
        return trail[-1]

    def _folder(self, parts: Sequence[str], layer: int) -> Node:
        """Find the folder that an entry goes into; folders that no layer names are made."""
        node = self._tree.root
        for depth, name in enumerate(parts):
            child = node.children.get(name)
            if child is not None and child.inode.header.issym():
                child = self.lookup("/".join(parts[: depth + 1]), follow=True)
            if child is None or not child.is_folder:
                header = _folder_header("/".join(parts[: depth + 1]))
                child = Node(inode=Inode(layer=layer, entry=-1, header=header))
                node.children[name] = child
            node = child
        return node


class _Measured(io.RawIOBase):
    """A stream that is hashed while it is read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    def drain(self) -> None:
        """Read what is behind the tar's end, which belongs to it too."""
        while self.read(_PIECE):
            pass

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


class _opened:  # noqa: N801 used as a function, like `open`
    """A layer's tar, whose faults are told as those of the image."""

    def __init__(self, path: Path, where: str) -> None:
        self._path, self._where = path, where

    def __enter__(self) -> BinaryIO:
        self._stream = tarstream.open_layer(self._path)
        return self._stream

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stream.close()
        if isinstance(error, tarstream.errors()) and not isinstance(error, BrokenPipeError):
            raise BuildError(
                f"a layer of the base cannot be read: {error}",
                where=self._where,
                hint="run: imagebuilder cache verify --fix",
            ) from error
        if isinstance(error, BuildError) and not error.problems[0].where:
            raise BuildError(str(error), where=self._where, hint="the image is damaged") from error


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise BuildError(f"`{name}` leads out of the image")
    return parts


def _forget(folder: Node, layer: int) -> None:
    """Drop what lower layers have in a folder."""
    for name in tuple(folder.children):
        _remove(folder, name, layer)


def _remove(folder: Node, name: str, layer: int) -> None:
    """Drop a path of lower layers; what this layer itself puts there stays."""
    node = folder.children.get(name)
    if node is None or (not node.is_folder and node.inode.layer == layer):
        return
    if node.is_folder:
        _forget(node, layer)
        if node.children or node.inode.layer == layer:
            return
    del folder.children[name]


def _place(folder: Node, name: str, inode: Inode) -> None:
    before = folder.children.get(name)
    if inode.header.isdir():
        kept = before.children if before is not None else {}
        folder.children[name] = Node(inode=inode, children=kept)
    else:
        folder.children[name] = Node(inode=inode)


def _portable(node: Node) -> bool:
    """Leave out devices, which only a privileged user can make, and pipes and sockets of a past moment."""
    header = node.inode.header
    return header.isdir() or header.isreg() or header.issym()


def _folder_header(path: str) -> tarfile.TarInfo:
    header = tarfile.TarInfo(path)
    header.type, header.mode = tarfile.DIRTYPE, 0o755
    return header


def _header(inode: Inode, path: str) -> tarfile.TarInfo:
    """Make the header of a path: owners by number, and of all attributes only the one of a program."""
    old = inode.header
    new = tarfile.TarInfo(path)
    new.type = old.type if old.isdir() or old.issym() else tarfile.REGTYPE
    new.mode, new.uid, new.gid, new.mtime = old.mode & 0o7777, old.uid, old.gid, int(old.mtime)
    new.linkname = old.linkname if old.issym() else ""
    if _CAPABILITY in old.pax_headers:
        new.pax_headers = {_CAPABILITY: old.pax_headers[_CAPABILITY]}
    return new


def _seen(path: str, inode: Inode, kind: str, sha256: str = "", size: int = 0) -> Seen:
    header = inode.header
    return Seen(
        path=path,
        kind=kind,
        mode=header.mode & 0o7777,
        uid=header.uid,
        gid=header.gid,
        size=size,
        link=header.linkname if header.issym() else "",
        sha256=sha256,
    )
