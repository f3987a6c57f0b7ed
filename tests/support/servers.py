"""Real servers for tests, each in a folder of its own: registries, and engines of other kinds."""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests

from imagebuilder.core.process import run

USER, PASSWORD = "alice", "correct horse"
# bcrypt, the only kind that the registry takes; made with htpasswd -B -C 5.
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuHNbAKRhpaujgo33bRWs.NLUTJO3lOy2\n"
_SECONDS = 60.0
# What Podman's service lowers its own limit to.
_PROCESSES = 32768


class RegistryServer:
    """A `docker-registry` on a free port of 127.0.0.1 that can be killed and started again.

    Attributes:
        host: host and port.
        folder: where it keeps its data.
        ca: certificate authority to trust, where it speaks TLS.

    """

    def __init__(
        self,
        folder: Path,
        *,
        secure: bool = False,
        clients: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Write its settings.

        Args:
            folder: where all of it goes.
            secure: speak TLS with an authority of its own, and ask for a password.
            clients: ask for a client certificate of that authority too: `folder/client.crt`, `client.key`.
            extra: more of its settings.

        """
        self.folder = folder
        self.host = f"127.0.0.1:{free_port()}"
        self.ca = folder / "trust" / "ca.crt" if secure else None
        http: dict[str, object] = {"addr": self.host, "secret": secrets.token_hex(16)}
        config: dict[str, object] = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
            "http": http,
            **(extra or {}),
        }
        if secure:
            make_certificate(folder)
            (folder / "htpasswd").write_text(HTPASSWD)
            tls: dict[str, object] = {
                "certificate": str(folder / "server.crt"),
                "key": str(folder / "server.key"),
            }
            if clients:
                tls["clientcas"] = [str(folder / "trust" / "ca.crt")]
            http["tls"] = tls
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
        (folder / "config.yml").write_text(json.dumps(config))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.ca else 'http'}://{self.host}"

    @property
    def pid(self) -> int:
        """Its process; 0 while it does not run."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        command = ["docker-registry", "serve", str(self.folder / "config.yml")]
        self._process = start(command, self.folder / "log", self._answers)

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self.kill()

    def _answers(self) -> bool:
        try:
            verify = str(self.ca) if self.ca else True
            own = (str(self.folder / "client.crt"), str(self.folder / "client.key")) if self.ca else None
            reply = requests.get(f"{self.url}/v2/", timeout=5, verify=verify, cert=own)
        except requests.RequestException:
            return False
        return reply.status_code in {200, 401}


@contextmanager
def registry_server(folder: Path, *, secure: bool = False) -> Iterator[RegistryServer]:
    server = RegistryServer(folder, secure=secure)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def classic_docker(folder: Path, cdi: Path | None = None) -> Iterator[str]:
    """Another Docker with the classic image store, on its own bridge; `cdi`: folder of CDI specifications.

    With `--bridge none` it would remove `docker0`, and with it the network of the engine that is there.
    """
    address = folder / "docker.sock"
    # Both kinds may run at the same time.
    bridge, subnet = ("ib-cdi0", "172.30.254") if cdi else ("ib-classic0", "172.30.255")
    run(["ip", "link", "delete", bridge], timeout=10, check=False)
    run(["ip", "link", "add", bridge, "type", "bridge"], timeout=10)
    run(["ip", "address", "add", f"{subnet}.1/24", "dev", bridge], timeout=10)
    settings: dict[str, object] = {"features": {"containerd-snapshotter": False, "cdi": cdi is not None}}
    if cdi:
        settings["cdi-spec-dirs"] = [str(cdi)]
    (folder / "daemon.json").write_text(json.dumps(settings))
    command = [
        "dockerd", "--config-file", str(folder / "daemon.json"), "--data-root", str(folder / "data"),
        "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "docker.pid"),
        "--host", f"unix://{address}", "--bridge", bridge, "--iptables=false", "--ip6tables=false",
    ]  # fmt: skip
    try:
        with _engine(command, folder, address) as found:
            yield found
    finally:
        run(["ip", "link", "delete", bridge], timeout=10, check=False)


@contextmanager
def podman(folder: Path) -> Iterator[str]:
    """Podman's service, with images and state of its own.

    Where limits may not be raised it cannot start containers with its own defaults: it gets this process's.
    Its default network has no names of containers on Debian 12; netavark with aardvark-dns has.
    """
    address = folder / "podman.sock"
    files, processes = (
        resource.getrlimit(which)[1] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    limits = {"nofile": files, "nproc": processes if 0 <= processes < _PROCESSES else _PROCESSES}
    (folder / "containers.conf").write_text(
        "[containers]\ndefault_ulimits = "
        + json.dumps([f"{name}={value}:{value}" for name, value in limits.items() if value >= 0])
        + '\n[network]\nnetwork_backend = "netavark"\n'
    )
    command = [
        "env", f"CONTAINERS_CONF={folder / 'containers.conf'}",
        "podman", "--root", str(folder / "root"), "--runroot", str(folder / "run"),
        "system", "service", "--time=0", f"unix://{address}",
    ]  # fmt: skip
    with _engine(command, folder, address) as found:
        yield found


def make_certificate(folder: Path) -> None:
    """Make an authority of the test's own, and certificates signed by it: of 127.0.0.1, and of a client."""
    trust = folder / "trust"  # alone: what skopeo takes for a folder of authorities may hold nothing else
    trust.mkdir()
    new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    authority = ("-x509", "-subj", "/CN=test authority", "-addext", "basicConstraints=critical,CA:TRUE")
    run([*new, *authority, "-keyout", folder / "ca.key", "-out", trust / "ca.crt"], timeout=60)
    signing = ("-CA", trust / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "2")
    extensions = {
        "server": "subjectAltName=IP:127.0.0.1,DNS:localhost\n",
        "client": "extendedKeyUsage=clientAuth\n",
    }
    for name, text in extensions.items():
        files = ("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr")
        run([*new, "-subj", f"/CN={name}", *files], timeout=60)
        (folder / "names").write_text(text)
        files = ("-in", folder / f"{name}.csr", "-out", folder / f"{name}.crt")
        run(["openssl", "x509", "-req", *signing, *files, "-extfile", folder / "names"], timeout=60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(command: list[str], log: Path, answers: Callable[[], bool]) -> subprocess.Popen[bytes]:
    """Start a server and wait until it answers; what it says when it does not is in the error."""
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    deadline = time.monotonic() + _SECONDS
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"{command[0]} does not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)
    return process


@contextmanager
def _engine(command: list[str], folder: Path, address: Path) -> Iterator[str]:
    process = start(command, folder / "log", lambda: _pings(address))
    try:
        yield f"unix://{address}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        _unmount(folder)


def _pings(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(address))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
        except OSError:
            return False


def _unmount(folder: Path) -> None:
    """Undo the mounts that engines leave behind, so that the folder can be removed."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed(mounts):
        if place.startswith(f"{os.path.realpath(folder)}/"):
            run(["umount", "--lazy", place], timeout=60, check=False)
