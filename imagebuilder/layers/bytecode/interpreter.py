"""Runs the image's Python on this host, unpacked from its locked packages and from the layers of a base.

This needs neither root nor an installed system: Python runs from a folder with its own loader, in namespaces
that contain only that folder. Unpacking takes as long as compiling a few hundred modules, so all layers of a
build share one interpreter.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from imagebuilder.bases import tree
from imagebuilder.core.process import CommandError
from imagebuilder.errors import BuildError
from imagebuilder.host.tools import HOST, Sandbox, Tools
from imagebuilder.layers import hooks
from imagebuilder.lock.model import BaseLayer
from imagebuilder.plan import BytecodeLayer
from imagebuilder.store import Store, check_bytes, explained

# The time limit of a run, which takes about two seconds, and in an emulator a hundred times as long.
_SECONDS = 1800
# Paths in a base: Python, and the libraries that it is linked against.
_SHARED = re.compile(
    r"(usr/)?lib/[^/]*-linux-gnu[^/]*/(ld-[^/]+|lib(c|dl|expat|m|pthread|util|z)[-.][^/]*)"
    r"|usr/bin/python3[^/]*|usr/lib/python3\.[^/]*/.*"
)


class Interpreter:
    """One Python, ready to run.

    Attributes:
        folder: on this host; files that the Python reads must be in it.

    """

    def __init__(self, sandbox: Sandbox, folder: Path, release: str, title: str) -> None:
        self.folder = folder
        self._sandbox = sandbox
        self._release = release
        self._title = title
        # One run at a time, because each uses all cores.
        self._guard = threading.Lock()

    def run(self, script: str, reads: str, writes: str) -> None:
        """Run a script of `hooks/bytecode` with the name of a file to read, one to write, and the release.

        Args:
            script: its file name.
            reads: name of a file in the folder.
            writes: name of the file that the script writes into the folder.

        Raises:
            BuildError: the script failed.
            EnvironmentFault: this host does not allow namespaces.

        """
        with self._guard:
            self._sandbox.copy_in(reads)
            arguments = (f"hooks/{script}", reads, writes, self._release)
            _run(self._sandbox, self._title, "hooks/python.sh", f"python{self._release}", *arguments)
            self._sandbox.copy_out(writes)


class Interpreters:
    """The Pythons of one build, each unpacked when a layer first needs it; a context manager."""

    def __init__(self, store: Store, tools: Tools = HOST) -> None:
        """Remember the arguments; nothing is unpacked or started yet.

        Args:
            store: has the layers of a base, and temporary files are written to it.
            tools: run dpkg and the Pythons.

        """
        self._store = store
        self._tools = tools
        self._open = contextlib.ExitStack()
        self._guard = threading.Lock()
        self._ready: dict[object, Interpreter] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the unpacked Pythons."""
        self._open.close()

    def of(self, layer: BytecodeLayer, downloads: Mapping[str, Path]) -> Interpreter:
        """Return the Python of a layer.

        Args:
            layer: the layer.
            downloads: the file of every package, by hex sha256.

        Raises:
            BuildError: the Python cannot be unpacked.
            DamagedDownloadError: a package is not the locked one.
            StoreError: the store is full or not writable.

        """
        key = (layer.python, layer.packages, layer.below)
        with self._guard:
            if key not in self._ready:
                folder = self._open.enter_context(self._store.work())
                sandbox = self._open.enter_context(self._tools.open(folder, network=False))
                _unpack(layer, downloads, self._store, sandbox, folder)
                self._ready[key] = Interpreter(sandbox, folder, layer.python, layer.title)
            return self._ready[key]


def _unpack(
    layer: BytecodeLayer, downloads: Mapping[str, Path], store: Store, sandbox: Sandbox, folder: Path
) -> None:
    names = ["packages", "hooks"]
    for name in names:
        (folder / name).mkdir()
    hooks.hand_in("bytecode", folder / "hooks")
    for deb in layer.packages:
        check_bytes(downloads[deb.sha256], deb.sha256, Path(deb.path).name)
        with explained(folder):
            shutil.copyfile(downloads[deb.sha256], folder / "packages" / f"{deb.name}.deb")
    if layer.below:
        names.append("base.tar")
        write_base(layer.below, layer.title, store, folder / "base.tar")
    sandbox.copy_in(*names)
    _run(sandbox, layer.title, "hooks/unpack.sh")


def write_base(below: Sequence[BaseLayer], title: str, store: Store, place: Path) -> None:
    """Write a base's Python, and the libraries that it needs, as a tar; `title` is for messages."""
    blobs = [(store.download(item.sha256), item.diff_id) for item in below]
    base = tree.read(blobs, lambda _path: False, title)
    _keep(base.root, "")
    with explained(place), place.open("xb") as out:
        for _ in tree.write(base, [path for path, _ in blobs], out, title):
            pass


def _keep(folder: tree.TreeNode, path: str) -> None:
    for name, node in list(folder.children.items()):
        inside = f"{path}/{name}" if path else name
        _keep(node, inside)
        if not node.children and not _SHARED.fullmatch(inside):
            del folder.children[name]


def _run(sandbox: Sandbox, title: str, *words: str) -> None:
    try:
        sandbox.run(["sh", *words], timeout=_SECONDS, cwd=sandbox.folder)
    except CommandError as error:
        raise hooks.refused(error, title) or BuildError(
            f"compiling modules with the image's own Python failed:\n{error}",
            where=title,
            hint="this host must be able to run that Python: `imagebuilder doctor` checks it",
        ) from error
