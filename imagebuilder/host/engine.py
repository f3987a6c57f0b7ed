"""Connect to the container engine: Docker, or Podman through its socket.

The engine is the one that the `docker` command uses, which also builds (buildx): that of DOCKER_HOST, else of
the context. Without either, it is the first one that answers at the usual sockets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import docker
import requests
from docker.errors import APIError, DockerException
from docker.tls import TLSConfig
from docker.utils import kwargs_from_env

from imagebuilder.core import installation
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import EnvironmentFault
from imagebuilder.host import cgroups, clients

if TYPE_CHECKING:
    from docker import DockerClient

log = logging.getLogger(__name__)

_TIMEOUT = 60
# Until then, Podman's service ignores the CDI devices of a request (Podman's release notes, 5.4.0).
_PODMAN_WITH_CDI = (5, 4)
# CDI devices (Container Device Interface), or requests that NVIDIA's runtime answers.
GpuRoute = Literal["cdi", "request"]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that answers: its client, its kind and version, and what it reports of its host.

    Attributes:
        gpu_routes: how containers may get GPUs, the best way first; empty if there is none. An engine that
            knows CDI need not have a specification of a GPU.
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
    gpu_routes: tuple[GpuRoute, ...] = ()
    limits_processes: bool = False
    limits_memory: bool = False
    filters_internal: bool = False


@contextlib.contextmanager
def connect(runtime: str) -> Iterator[Engine]:
    """Open the first engine that answers.

    Args:
        runtime: `docker`, `podman`, or `auto` for either.

    If DOCKER_HOST (or CONTAINER_HOST, Podman's) is set, only that address is tried. Else, if Docker has a
    context, only its engine is; for `podman`, also Podman's usual sockets.

    Raises:
        EnvironmentFault: none answers, or Docker's context does not exist.
        InputError: Docker's settings are not JSON.

    """
    tried = []
    for address in _addresses(runtime):
        try:
            client = _open(address)
        except (DockerException, requests.RequestException, ValueError, OSError) as error:
            log.debug("%s does not answer: %s", address, error)
            if "paramiko" in str(error):
                # The words of the SDK where its extra is not installed.
                raise EnvironmentFault(
                    "an engine behind ssh needs the package `paramiko`, which is not installed",
                    where=str(address),
                    hint=f"run: {installation.install('ssh')}",
                ) from error
            tried.append(f"{address}, permission denied" if _closed_socket(address) else str(address))
            continue
        with contextlib.closing(client):
            engine = _describe(client)
            if runtime in ("auto", engine.kind):
                yield engine
                return
        tried.append(f"{address}, which is {engine.kind}'s")
    raise EnvironmentFault(
        f"no {'container engine' if runtime == 'auto' else runtime} answers (tried {'; '.join(tried)})",
        hint=_remedy(tried),
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
    api: Any,
    container: str,
    argv: Sequence[str],
    *,
    keep: int = sys.maxsize,
    heard: Callable[[str], None] | None = None,
    **settings: object,
) -> Executed:
    """Run a command in a container, and read both its streams to their ends.

    Args:
        api: the low-level API of the engine's client.
        container: its id.
        argv: the command.
        keep: how many bytes to keep of each stream, from its end.
        heard: called with each line while the command runs, of whichever stream.
        settings: arguments of the SDK's `exec_create`, such as `environment` and `workdir`.

    """
    handle = api.exec_create(container, list(argv), **settings)["Id"]
    chunks = api.exec_start(handle, stream=True, demux=True)
    out, err, rest = bytearray(), bytearray(), b""
    # The SDK leaves the socket open at the stream's end, and its own `close` fails then.
    with contextlib.closing(chunks._response):  # noqa: SLF001
        for some, other in chunks:
            out += some or b""
            err += other or b""
            del out[:-keep], err[:-keep]
            if heard:
                *lines, rest = (rest + (some or b"") + (other or b"")).split(b"\n")
                for line in lines:
                    heard(line.decode(errors="replace"))
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
    if "unresolvable CDI devices" in said:
        return (
            "a CDI specification on the engine's host has to name them: run there `nvidia-ctk cdi generate "
            "--output=/etc/cdi/nvidia.yaml`"
        )
    if "rlimit" in said:
        return "this host may not raise limits; for Podman give smaller `default_ulimits` in containers.conf"
    if "no space left" in said:
        return "free some disk space where the engine keeps its data"
    return ""


def _open(address: _Address) -> DockerClient:
    path = address.url.removeprefix("unix://")
    if path != address.url and not Path(path).exists():
        raise FileNotFoundError(path)
    if address.context is None:
        # Certificates and TLS settings for tcp:// addresses come from the environment as well.
        given: Any = kwargs_from_env(environment={**os.environ, "DOCKER_HOST": address.url})
    else:
        given = {"base_url": address.url, **_tls(address.context)}
    # The ssh program, as for `docker`: its config, agent, known hosts and jumps hold.
    return docker.DockerClient(**given, timeout=_TIMEOUT, use_ssh_client=True)


def _tls(context: clients.DockerContext) -> dict[str, TLSConfig]:
    pair = (context.certificate, context.key)
    if not any((context.ca, *pair)):
        return {}
    tls = TLSConfig(
        ca_cert=str(context.ca) if context.ca else None,
        client_cert=(str(pair[0]), str(pair[1])) if all(pair) else None,
        verify=context.verify,
    )
    return {"tls": tls}


def _describe(client: DockerClient) -> Engine:
    version, info = client.version(), client.info()
    names = {str(component.get("Name", "")) for component in version.get("Components") or ()}
    podman = any("podman" in name.lower() for name in names)
    rootless = any("name=rootless" in option for option in info.get("SecurityOptions") or ())
    return Engine(
        client=client,
        kind="podman" if podman else "docker",
        version=str(version.get("Version", "")),
        cores=int(info.get("NCPU") or 0),
        memory_bytes=int(info.get("MemTotal") or 0),
        gpu_routes=_gpu_routes("podman" if podman else "docker", str(version.get("Version", "")), info),
        limits_processes=bool(info.get("PidsLimit")),
        limits_memory=bool(info.get("MemoryLimit")),
        # Docker loads br_netfilter and drops packets without a rule. Podman's netavark makes no rule for
        # internal networks. A rootless engine's network is in a namespace with its own firewall.
        filters_internal=podman and not rootless and bool(info.get("BridgeNfIptables")),
    )


@dataclass(frozen=True, kw_only=True)
class _Address:
    url: str
    context: clients.DockerContext | None = None

    def __str__(self) -> str:
        return f"{self.url} of the context {printable(self.context.name)}" if self.context else self.url


def _closed_socket(address: _Address) -> bool:
    path = address.url.removeprefix("unix://")
    return path != address.url and os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK)  # noqa: PTH110


def _remedy(tried: Sequence[str]) -> str:
    if any(text.endswith("permission denied") for text in tried):
        return (
            "let your user use the socket: `sudo usermod --append --groups docker $USER`, then log in again "
            "(that group is as powerful as root); or start a rootless engine"
        )
    for name in ("DOCKER_HOST", "CONTAINER_HOST"):
        address = os.environ.get(name, "")
        if address and "://" not in address:
            start = "unix://" if address.startswith("/") else "tcp://"
            return f"an address begins with its kind: {name}={start}{printable(address)}"
        if address:
            return f"start the engine that {name} names, or unset {name}"
    if clients.current_context():
        chosen = "unset DOCKER_CONTEXT" if os.environ.get("DOCKER_CONTEXT") else "docker context use default"
        return f"start the engine of this context, or go back to the default engine: {chosen}"
    return (
        "start Docker (`systemctl start docker`) or Podman's service (`systemctl start podman.socket`), "
        "or set DOCKER_HOST"
    )


def _gpu_routes(kind: str, version: str, info: Mapping[str, Any]) -> tuple[GpuRoute, ...]:
    if kind == "podman":
        numbers = tuple(int(number) for number in re.findall(r"[0-9]+", version)[:2])
        return ("cdi",) if numbers >= _PODMAN_WITH_CDI else ()
    # Docker before 28.2 does not list the devices, only where it would look for their specifications.
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    cdi = any(name.startswith("nvidia.com/gpu=") for name in devices) if devices else info.get("CDISpecDirs")
    routes: tuple[tuple[GpuRoute, Any], ...] = (
        ("cdi", cdi),
        ("request", "nvidia" in (info.get("Runtimes") or {})),
    )
    return tuple(route for route, offered in routes if offered)


def _addresses(runtime: str) -> tuple[_Address, ...]:
    named = [os.environ.get(name, "") for name in ("DOCKER_HOST", "CONTAINER_HOST")]
    if runtime == "podman":
        named.reverse()
    given = next((address for address in named if address), "")
    if given:
        return (_Address(url=given),)
    context = clients.current_context()
    chosen = (_Address(url=context.address, context=context),) if context else ()
    if chosen and runtime != "podman":
        return chosen
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    dockers = (
        "/var/run/docker.sock",
        f"{runtime_dir}/docker.sock",
        str(Path("~/.docker/run/docker.sock").expanduser()),
    )
    podmans = ("/run/podman/podman.sock", f"{runtime_dir}/podman/podman.sock")
    sockets = {"docker": dockers, "podman": podmans}.get(runtime, dockers + podmans)
    return (*(_Address(url=f"unix://{path}") for path in sockets), *chosen)
