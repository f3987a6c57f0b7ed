"""Run the tools in a container. Files are copied as tar, because the engine may share no folder with us.

The container's first process reads standard input until its end, and this process holds the other end. So
when this process ends, even if it is killed, the container ends too and the engine removes it. After errors
and Ctrl-C it is removed at once.
"""

from __future__ import annotations

import contextlib
import io
import logging
import secrets
import shutil
import signal
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import requests
from docker.errors import APIError, DockerException

from imagebuilder.core import process
from imagebuilder.core.streams import IterReader
from imagebuilder.core.tarstream import without_filler
from imagebuilder.errors import BuildError, EnvironmentFault
from imagebuilder.host import engine as engines
from imagebuilder.host import leftovers
from imagebuilder.host.engine import Engine, explained
from imagebuilder.host.tools import image as images

if TYPE_CHECKING:
    from imagebuilder.host.site import Site

log = logging.getLogger(__name__)

FOLDER = Path("/srv/imagebuilder")
PLATFORM = "linux/amd64"
# Seconds after which a container ends by itself, if its engine does not notice that we are gone.
_LONGEST = 4 * 3600
_BLOCK = 1 << 20
# HTTP status for a container that does not exist (any more) or does not run: a time limit ended it.
_GONE = frozenset({404, 409})
_NOT_FOUND = ("executable file not found", "no such file or directory")

# The only capabilities of a container without a network: enough to give a folder to a user namespace. Inside
# the namespace, root has all capabilities that it needs.
_POWERS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID", "SETFCAP")
# The engine's default profiles forbid namespaces, mounts and pivot_root without SYS_ADMIN. Without them, the
# engine still masks parts of /proc and /sys.
_UNFILTERED = ("apparmor=unconfined", "seccomp=unconfined", "label=disable")


@contextlib.contextmanager
def open_container(
    site: Site, folder: Path, *, network: bool, shares: Sequence[Path] = ()
) -> Iterator[ContainerSandbox]:
    """Start a container with the tools, and remove it at the end; see `Tools.open`."""
    with _engine() as engine:
        leftovers.sweep(engine)
        base = images.find(engine, site.tools.image, PLATFORM)
        made = images.made_from(engine, base)
        with contextlib.ExitStack() as stack:
            sandbox = None
            if made is None:
                sandbox = stack.enter_context(_started(engine, base, folder, network=network, shares=shares))
                if images.lacks(sandbox):
                    stack.close()
                    with _started(engine, base, folder, network=True, shares=()) as fresh:
                        made = images.make(base, fresh, site)
                    sandbox = None
            if sandbox is None:
                sandbox = stack.enter_context(
                    _started(engine, str(made), folder, network=network, shares=shares)
                )
            yield sandbox


@contextlib.contextmanager
def _engine() -> Iterator[Engine]:
    with contextlib.ExitStack() as stack:
        try:
            engine = stack.enter_context(engines.connect("auto"))
        except EnvironmentFault as error:
            raise EnvironmentFault(
                "apt, dpkg and mmdebstrap are to run in a container, but " + error.problems[0].message,
                hint="start Docker or Podman, or install the tools (Debian: apt-get install mmdebstrap); "
                "`imagebuilder doctor` looks into it",
            ) from error
        yield engine


@contextlib.contextmanager
def _started(
    engine: Engine, image: str, folder: Path, *, network: bool, shares: Sequence[Path]
) -> Iterator[ContainerSandbox]:
    run_id = f"tools-{secrets.token_hex(6)}"
    api: Any = engine.client.api
    powers = (
        {} if network else {"cap_drop": ["ALL"], "cap_add": list(_POWERS), "security_opt": list(_UNFILTERED)}
    )
    try:
        with explained("starting a container for apt and mmdebstrap"):
            settings = api.create_host_config(
                # The host's own network: a proxy or a mirror may listen only on this host.
                network_mode="host" if network else "none",
                auto_remove=True,
                binds={str(share): {"bind": str(share), "mode": "ro"} for share in shares},
                **powers,
            )
            container = api.create_container(
                image,
                entrypoint=["timeout", "--signal=KILL", str(_LONGEST), "cat"],
                command=[],
                user="0:0",
                working_dir="/",
                stdin_open=True,
                host_config=settings,
                name=leftovers.name(run_id),
                labels=leftovers.labels(run_id, _LONGEST / 3600),
                platform=PLATFORM,
            )["Id"]
            # The container's standard input closes with this connection.
            held = api.attach_socket(container, params={"stdin": 1, "stream": 1})
            api.start(container)
        # The SDK keeps the connection in the response: closing the socket's file would leave it open.
        with contextlib.closing(held._response):  # noqa: SLF001
            sandbox = ContainerSandbox(engine=engine, container=container, source=folder)
            sandbox.run(["mkdir", "-p", FOLDER], timeout=60, cwd=Path("/"))
            yield sandbox
    finally:
        leftovers.remove(engine, run_id)


@dataclass(frozen=True, kw_only=True)
class ContainerSandbox:
    """Runs commands in a container; `source` is the folder on this host, `folder` its copy in there."""

    engine: Engine
    container: str
    source: Path
    folder: Path = FOLDER
    is_root: bool = True
    contained: bool = True
    heard: Callable[[str], None] | None = None
    _expired: threading.Event = field(default_factory=threading.Event)

    def copy_in(self, *names: str) -> None:
        """Copy files and folders into the container; root owns them there."""
        api: Any = self.engine.client.api
        with explained("copying files into the container of the tools"):
            api.put_archive(self.container, str(self.folder), _packed(self.source, names or ("",)))

    def copy_out(self, name: str) -> None:
        """Copy a file or a folder out of the container; it replaces existing files."""
        api: Any = self.engine.client.api
        place = self.source / name
        with explained(f"copying {name} out of the container of the tools"):
            stream, _ = api.get_archive(self.container, str(self.folder / name), chunk_size=_BLOCK)
            with tarfile.open(fileobj=cast("BinaryIO", IterReader(stream)), mode="r|") as tar:
                _unpack(tar, place)

    def has(self, path: Path) -> bool:
        """Return True if the container has the file."""
        return self.run(["test", "-f", path], timeout=60, check=False).code == 0

    def put(self, place: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file into the container, at an absolute path; root owns it."""
        member = tarfile.TarInfo(place.lstrip("/"))
        member.size, member.mode = len(data), mode
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.addfile(member, io.BytesIO(data))
        with explained("copying a file into the container of the tools"):
            archive = without_filler(tar, buffer.getvalue())
            self.engine.client.api.put_archive(self.container, "/", archive)

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        cwd: Path | None = None,
    ) -> process.Result:
        """Run a command in the container, in its copy of the folder."""
        words = tuple(str(word) for word in argv)
        log.debug("in the container: %s", " ".join(words))
        timer = threading.Timer(timeout, self._end)
        timer.daemon = True
        timer.start()
        try:
            result = self._exec(words, dict(env or {}), cwd or self.folder)
        except (APIError, requests.RequestException, OSError):
            if not self._expired.is_set():
                raise
            result = process.Result(argv=words, code=-signal.SIGKILL, stdout="", stderr="")
        finally:
            timer.cancel()
        if self._expired.is_set():
            raise process.CommandError(result, f"did not end within {timeout:g} s")
        if result.code in (126, 127) and any(text in result.stdout.lower() for text in _NOT_FOUND):
            raise EnvironmentFault(
                f"`{words[0]}` is not in the image of the tools", hint="name another as `tools: {image: ...}`"
            )
        if check and result.code != 0:
            raise process.CommandError(result, f"ended with {result.code}")
        return result

    def _exec(self, words: tuple[str, ...], env: dict[str, str], cwd: Path) -> process.Result:
        api = self.engine.client.api
        with explained(f"running {words[0]} in a container"):
            ended = engines.execute(
                api, self.container, words, heard=self.heard, environment=env, workdir=str(cwd)
            )
        code = -signal.SIGKILL if ended.code is None else ended.code
        return process.Result(argv=words, code=code, stdout=ended.stdout, stderr=ended.stderr)

    def _end(self) -> None:
        """Kill the container and everything in it: a command has exceeded its time limit."""
        self._expired.set()
        with contextlib.suppress(DockerException, requests.RequestException):
            self.engine.client.api.kill(self.container)


def _packed(folder: Path, names: Sequence[str]) -> Iterator[bytes]:
    """Write files below a folder as a tar, file by file."""
    buffer = io.BytesIO()
    sent = 0

    def taken() -> bytes:
        nonlocal sent
        data = buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        sent += len(data)
        return data

    with tarfile.open(fileobj=buffer, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_BLOCK) as tar:
        for name in names:
            top = folder / name
            parents = [folder / parent for parent in PurePosixPath(name).parents if str(parent) != "."]
            below = sorted(top.rglob("*")) if top.is_dir() else []
            for path in [*reversed(parents), top, *below]:
                tar.add(path, str(path.relative_to(folder)), recursive=False, filter=_of_root)
                yield taken()
    yield without_filler(tar, buffer.getvalue(), before=sent)


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _unpack(tar: tarfile.TarFile, place: Path) -> None:
    """Unpack the files and folders of an archive at `place`, without the first part of their names."""
    for member in tar:
        parts = PurePosixPath(member.name).parts[1:]
        if ".." in parts:
            raise BuildError(f"the container's archive has an entry {member.name}")
        path = place.joinpath(*parts)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif member.isreg():
            with path.open("wb") as file:
                shutil.copyfileobj(cast("IO[bytes]", tar.extractfile(member)), file, _BLOCK)
