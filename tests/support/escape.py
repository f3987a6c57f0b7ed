"""A program that tries to get out of where an image's programs run, and what it would find outside."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.core import process
from imagebuilder.lock.model import Deb
from imagebuilder.plan import OsLayer
from imagebuilder.store import LayerRecord, Store

REPORT = "var/lib/escape/report"
_PROGRAM = Path(__file__).with_suffix(".pl")
# The one file in the folder; a build removes what has this name in a folder of the image.
_PRECIOUS = "aux-cache"


@dataclass(frozen=True, kw_only=True)
class Outside:
    """What is on the host: a folder, a process, and two servers; none of it is for the image's programs."""

    folder: Path
    child: subprocess.Popen[bytes]
    word: str
    name: str
    port: int

    def program(self, report: str, *, hooks: bool) -> str:
        """Give the program's text; `report` is the file that it writes, `hooks` what a build's own needs."""
        values: Mapping[str, object] = {
            "WITNESS": self.folder,
            "PROCESS": self.word,
            "SOCKET": self.name,
            "PORT": self.port,
            "REPORT": report,
            "HOOKS": "1" if hooks else "",
        }
        text = _PROGRAM.read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace(f"@{key}@", str(value))
        return text

    def assert_untouched(self) -> None:
        """Make sure that nothing came out."""
        assert [path.name for path in self.folder.iterdir()] == [_PRECIOUS]
        assert self.child.poll() is None


@contextmanager
def outside(folder: Path) -> Iterator[Outside]:
    """Set up what a program could find; the folder is empty, and anybody may write into it."""
    (folder / _PRECIOUS).touch()
    for path in (folder, folder / _PRECIOUS):
        path.chmod(0o777)
    word = f"escape-{secrets.token_hex(8)}"
    with (
        subprocess.Popen(["sh", "-c", "sleep 600; :", word], start_new_session=True) as child,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_INET) as loopback,
    ):
        abstract.bind(f"\0{word}")
        loopback.bind(("127.0.0.1", 0))
        for server in (abstract, loopback):
            server.listen()
        try:
            yield Outside(
                folder=folder, child=child, word=word, name=word, port=int(loopback.getsockname()[1])
            )
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def package(program: str, folder: Path) -> tuple[Deb, Path]:
    """Make a Debian package that runs a program when it is installed."""
    tree = folder / "escape"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / Path(REPORT).parent).mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: escape\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\n"
        "Pre-Depends: perl-base\nDescription: a maintainer script that tries to get out\n",
        encoding="utf-8",
    )
    script = tree / "DEBIAN" / "postinst"
    script.write_text(program, encoding="utf-8")
    for path in (tree, *tree.rglob("*")):
        path.chmod(0o755)
    file = folder / "escape.deb"
    process.run(["dpkg-deb", "--root-owner-group", "--build", tree, file], timeout=60)
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    deb = Deb(
        name="escape", version="1", architecture="all", path="pool/escape", size=len(data), sha256=digest
    )
    return deb, file


def parse(report: str) -> dict[str, str]:
    """Read what the program wrote."""
    return dict(line.split(": ", 1) for line in report.splitlines())


# What the program can try anywhere.
ATTEMPTS = frozenset(
    {
        "double chroot",
        "root of process 1",
        "root of any process",
        "descriptors",
        "block device",
        "mount",
        "user namespace",
        "core_pattern",
        "sysrq",
        "kernel memory",
        "signal",
        "abstract socket",
        "loopback",
    }
)
# And where a system is installed, against the build that installs it.
ON_A_BUILD = frozenset({"socket of mmdebstrap", "hooks", "folder of the hooks", "packages"})
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETFCAP.
_INSTALLING = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 31))


def hostile(
    layer: OsLayer, debs: Mapping[str, Path], program: str, folder: Path
) -> tuple[OsLayer, dict[str, Path]]:
    """Add a package with such a script to a system; gives the layer and the files of its packages."""
    deb, file = package(program, folder)
    return dataclasses.replace(layer, debs=(*layer.debs, deb)), {**debs, deb.sha256: file}


def told(record: LayerRecord, store: Store) -> dict[str, str]:
    """Read what the program wrote into the system."""
    with gzip.open(store.blob(record.digest)) as stream, tarfile.open(fileobj=stream) as tar:
        file = tar.extractfile(f"./{REPORT}")
        assert file is not None
        return parse(file.read().decode())


def assert_held(found: Mapping[str, str], attempts: Iterable[str], *, installing: bool) -> None:
    """Make sure that the program could do nothing of what it tried."""
    assert {name: found[name] for name in attempts} == dict.fromkeys(attempts, "refused")
    wanted = _INSTALLING if installing else 0
    assert (int(found["capabilities"], 16), int(found["bounding"], 16)) == (wanted, wanted)
    assert (found["no new privileges"], found["host name"]) == ("1", "localhost")
    assert set(found["devices"].split()) <= {"null", "zero", "full", "random", "urandom", "tty"}
