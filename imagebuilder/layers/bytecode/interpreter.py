"""The image's own Python, run on this host: unpacked from its locked packages, and from a base's layers.

Neither root nor a system are needed: its own loader runs it from a folder, in namespaces in which that
folder is all there is. Unpacking takes as long as compiling a few hundred modules, so all layers of a build
share one.
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

# What a run gets: it takes a second or two, and an emulator a hundred times as long.
_SECONDS = 1800
# Of a base: Python, and the libraries that it is linked against.
_SHARED = re.compile(
    r"(usr/)?lib/[^/]*-linux-gnu[^/]*/(ld-[^/]+|lib(c|dl|expat|m|pthread|util|z)[-.][^/]*)"
    r"|usr/bin/python3[^/]*|usr/lib/python3\.[^/]*/.*"
)


class Interpreter:
    """One Python, ready to run.

    Attributes:
        folder: on this host; what the Python is to read has to be in it.

    """

    def __init__(self, sandbox: Sandbox, folder: Path, release: str, title: str) -> None:
        self.folder = folder
        self._sandbox = sandbox
        self._release = release
        self._title = title
        # A run takes all cores for itself.
        self._guard = threading.Lock()

    def run(self, script: str, reads: str, writes: str) -> None:
        """Run a script of `hooks/bytecode` with the name of a file to read, one to write, and the release.

        Args:
            script: its file name.
            reads: name of a file in the folder.
            writes: name of a file that is in the folder afterwards.

        Raises:
            BuildError: it ended with an error.
            EnvironmentFault: this host gives it no namespaces.

        """
        with self._guard:
            self._sandbox.copy_in(reads)
            arguments = (f"hooks/{script}", reads, writes, self._release)
            _run(self._sandbox, self._title, "hooks/python.sh", f"python{self._release}", *arguments)
            self._sandbox.copy_out(writes)


class Interpreters:
    """The Pythons of one build, each unpacked when a layer needs it for the first time; a context manager."""

    def __init__(self, store: Store, tools: Tools = HOST) -> None:
        """Prepare; nothing is unpacked or started yet.

        Args:
            store: where temporary files go, and where the layers of a base are.
            tools: where dpkg and the Pythons run.

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
        """Remove what was unpacked."""
        self._open.close()

    def of(self, layer: BytecodeLayer, downloads: Mapping[str, Path]) -> Interpreter:
        """Give the Python of a layer.

        Args:
            layer: whose.
            downloads: file of every package, by hex sha256.

        Raises:
            BuildError: it cannot be unpacked.
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
    """Write what a base has of Python, and what Python runs on, as a tar; `title` is for messages."""
    blobs = [(store.download(item.sha256), item.diff_id) for item in below]
    found = tree.read(blobs, lambda _path: False, title)
    _keep(found.root, "")
    with explained(place), place.open("xb") as out:
        for _ in tree.write(found, [path for path, _ in blobs], out, title):
            pass


def _keep(folder: tree.Node, path: str) -> None:
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
            hint="the packages of that Python have to run here: `imagebuilder doctor` looks into it",
        ) from error
