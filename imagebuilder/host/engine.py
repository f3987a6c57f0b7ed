"""Connect to the container engine: Docker, or Podman through its socket."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import docker
import requests
from docker.errors import APIError, DockerException

from imagebuilder.errors import EnvironmentFault
from imagebuilder.host import cgroups

if TYPE_CHECKING:
    from docker import DockerClient

log = logging.getLogger(__name__)

_TIMEOUT = 60


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that answers: its client, its kind and version, and what it reports of its host.

    Attributes:
        limits_processes, limits_memory: a rootless engine can limit these only if it has their cgroup
            controllers.
        filters_internal: the host's firewall filters packets within a bridge, and this engine makes no rule
            that lets those of an internal network pass.

    """

    client: DockerClient
    kind: Literal["docker", "podman"]
    version: str
    cores: int
    memory_bytes: int
    offers_gpus: bool
    limits_processes: bool = False
    limits_memory: bool = False
    filters_internal: bool = False


@contextlib.contextmanager
def connect(runtime: str) -> Iterator[Engine]:
    """Open the first engine that answers.

    Args:
        runtime: `docker`, `podman`, or `auto` for either.

    If DOCKER_HOST (or CONTAINER_HOST, Podman's) is set, only that address is tried.

    Raises:
        EnvironmentFault: none answers.

    """
    tried = []
    for address in _addresses(runtime):
        try:
            client = _open(address)
        except (DockerException, requests.RequestException, ValueError, FileNotFoundError) as error:
            log.debug("%s does not answer: %s", address, error)
            tried.append(address)
            continue
        with contextlib.closing(client):
            engine = _describe(client)
            if runtime in ("auto", engine.kind):
                yield engine
                return
        tried.append(f"{address}, which is {engine.kind}'s")
    raise EnvironmentFault(
        f"no {'container engine' if runtime == 'auto' else runtime} answers (tried {'; '.join(tried)})",
        hint="start Docker (`systemctl start docker`) or Podman's service (`systemctl start podman.socket`), "
        "or set DOCKER_HOST; `smoke-test --runtime process` needs no engine",
    )


@contextlib.contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn the engine's errors into ours.

    Raises:
        EnvironmentFault: names what was being done, and the engine's message.

    """
    try:
        yield
    except APIError as error:
        raise EnvironmentFault(
            f"{doing} failed: {error.explanation or error}", hint=_hint(str(error))
        ) from error
    except (DockerException, requests.RequestException) as error:
        raise EnvironmentFault(
            f"{doing} failed: {error}", hint="does the container engine still run?"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Executed:
    """The result of a command in a container; `code` is None if the engine does not know it."""

    code: int | None
    stdout: str
    stderr: str


def execute(
    api: Any, container: str, argv: Sequence[str], *, keep: int = sys.maxsize, **settings: object
) -> Executed:
    """Run a command in a container, and read both its streams to their ends.

    Args:
        api: the low-level API of the engine's client.
        container: its id.
        argv: the command.
        keep: how many bytes to keep of each stream, from its end.
        settings: arguments of the SDK's `exec_create`, such as `environment` and `workdir`.

    """
    handle = api.exec_create(container, list(argv), **settings)["Id"]
    chunks = api.exec_start(handle, stream=True, demux=True)
    out, err = bytearray(), bytearray()
    # The SDK leaves the socket open at the stream's end, and its own `close` fails then.
    with contextlib.closing(chunks._response):  # noqa: SLF001
        for some, other in chunks:
            out += some or b""
            err += other or b""
            del out[:-keep], err[:-keep]
    return Executed(
        code=api.exec_inspect(handle)["ExitCode"],
        stdout=out.decode(errors="replace"),
        stderr=err.decode(errors="replace"),
    )


def _hint(said: str) -> str:
    if cgroups.COMPLAINT in said:
        return cgroups.ADVICE
    if "all predefined address pools" in said:
        return "the engine is out of networks; see `docker network ls` and `docker network prune`"
    if "rlimit" in said:
        return "this host may not raise limits; for Podman give smaller `default_ulimits` in containers.conf"
    if "no space left" in said:
        return "free some disk space where the engine keeps its data"
    return ""


def _open(address: str) -> DockerClient:
    path = address.removeprefix("unix://")
    if path != address and not Path(path).exists():
        raise FileNotFoundError(path)
    # Certificates and TLS settings for tcp:// addresses come from the environment as well.
    return docker.DockerClient.from_env(timeout=_TIMEOUT, environment={**os.environ, "DOCKER_HOST": address})


def _describe(client: DockerClient) -> Engine:
    version, info = client.version(), client.info()
    names = {str(component.get("Name", "")) for component in version.get("Components") or ()}
    podman = any("podman" in name.lower() for name in names)
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    rootless = any("name=rootless" in option for option in info.get("SecurityOptions") or ())
    offers = "nvidia" in (info.get("Runtimes") or {}) or any(d.startswith("nvidia.com/gpu") for d in devices)
    return Engine(
        client=client,
        kind="podman" if podman else "docker",
        version=str(version.get("Version", "")),
        cores=int(info.get("NCPU") or 0),
        memory_bytes=int(info.get("MemTotal") or 0),
        offers_gpus=offers,
        limits_processes=bool(info.get("PidsLimit")),
        limits_memory=bool(info.get("MemoryLimit")),
        # Docker loads br_netfilter and drops packets without a rule. Podman's netavark makes no rule for
        # internal networks. A rootless engine's network is in a namespace with its own firewall.
        filters_internal=podman and not rootless and bool(info.get("BridgeNfIptables")),
    )


def _addresses(runtime: str) -> tuple[str, ...]:
    named = [os.environ.get(name, "") for name in ("DOCKER_HOST", "CONTAINER_HOST")]
    if runtime == "podman":
        named.reverse()
    given = next((address for address in named if address), "")
    if given:
        return (given,)
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    dockers = (
        "/var/run/docker.sock",
        f"{runtime_dir}/docker.sock",
        str(Path("~/.docker/run/docker.sock").expanduser()),
    )
    podmans = ("/run/podman/podman.sock", f"{runtime_dir}/podman/podman.sock")
    sockets = {"docker": dockers, "podman": podmans}.get(runtime, dockers + podmans)
    return tuple(f"unix://{path}" for path in sockets)
