"""The container engine: Docker, or Podman through its socket; who answers, and what it says of an image."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound

from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.smoke.target import LOCK_LABEL, RuntimeChoice, Target, from_labels

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

log = logging.getLogger(__name__)

_TIMEOUT = 60


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that answers: its client, what it is, and its own account of the host."""

    client: DockerClient
    kind: Literal["docker", "podman"]
    version: str
    cores: int
    memory_bytes: int
    offers_gpus: bool


@contextlib.contextmanager
def connect(runtime: RuntimeChoice) -> Iterator[Engine]:
    """Open the first engine that answers.

    An address in DOCKER_HOST (or CONTAINER_HOST, Podman's) is taken at its word: nothing else is tried then.

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
        "set DOCKER_HOST, or run the ranks without containers: --runtime process",
    )


def look_up(engine: Engine, reference: str) -> Target:
    """Read what an image in the engine promises.

    Raises:
        InputError: there is no such image, or it lacks the labels.

    """
    image = _image(engine, reference)
    digests = sorted({entry.rpartition("@")[2] for entry in image.attrs.get("RepoDigests") or ()})
    # Several names may point to several manifests of the same config; then none can be vouched for.
    digest = digests[0] if len(digests) == 1 else ""
    return from_labels(reference, image.labels, digest=digest)


def require_same(engine: Engine, target: Target) -> dict[str, str]:
    """Make sure that what the engine has under this reference is the target; give its variables.

    Raises:
        InputError: it is another image, or cannot be shown to be this one.

    """
    image = _image(engine, target.reference)
    found = from_labels(target.reference, image.labels)
    again = "load it again: imagebuilder build --load"
    if found.lock != target.lock:
        raise InputError(
            f"the engine's image was made from another lock ({LOCK_LABEL}={found.lock[:12]}, "
            f"wanted {target.lock[:12]})",
            where=target.reference,
            hint=again,
        )
    known = {entry.rpartition("@")[2] for entry in image.attrs.get("RepoDigests") or ()}
    known |= {image.attrs.get("Digest", ""), str(image.id)}
    if target.digest and target.digest not in known and (not target.config or target.config not in known):
        raise InputError(
            f"the engine's image cannot be shown to be {target.digest}, so a report on it would prove "
            "nothing",
            where=target.reference,
            hint=again,
        )
    pairs = (entry.partition("=") for entry in image.attrs["Config"].get("Env") or ())
    return {name: value for name, _, value in pairs}


def user_of(engine: Engine, reference: str) -> tuple[int, int]:
    """Give the numeric user and group that an image runs as; 0 where it names them by word."""
    user, _, group = str(_image(engine, reference).attrs["Config"].get("User") or "0").partition(":")
    return (int(user) if user.isdigit() else 0), (int(group) if group.isdigit() else 0)


def gpus(engine: Engine, reference: str) -> tuple[str, ...]:
    """Name the GPUs that a container of this image can be given, by starting one; empty where it cannot.

    The engine's host may be another machine than this one, so asking a tool here would prove nothing.
    """
    if not engine.offers_gpus:
        return ()
    try:
        said = engine.client.containers.run(
            reference,
            entrypoint=["nvidia-smi"],
            command=["--query-gpu=name", "--format=csv,noheader"],
            device_requests=[docker.types.DeviceRequest(count=-1, capabilities=[["gpu", "utility"]])],
            remove=True,
            network_disabled=True,
        )
    except DockerException as error:
        log.warning("the engine offers GPUs, but a container with them does not start: %s", error)
        return ()
    return tuple(line.strip() for line in said.decode(errors="replace").splitlines() if line.strip())


@contextlib.contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn the engine's errors into ours.

    Raises:
        EnvironmentFault: what the engine said, and what was being done.

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


def _hint(said: str) -> str:
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


def _image(engine: Engine, reference: str) -> Image:
    try:
        return engine.client.images.get(reference)
    except ImageNotFound:
        raise InputError(
            f"{engine.kind} has no such image",
            where=reference,
            hint="put it there with `imagebuilder build --load`, or pull it",
        ) from None
    except (DockerException, requests.RequestException) as error:
        raise EnvironmentFault(f"{engine.kind} cannot say what `{reference}` is: {error}") from error


def _describe(client: DockerClient) -> Engine:
    version, info = client.version(), client.info()
    names = {str(component.get("Name", "")) for component in version.get("Components") or ()}
    podman = any("podman" in name.lower() for name in names)
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    offers = "nvidia" in (info.get("Runtimes") or {}) or any(d.startswith("nvidia.com/gpu") for d in devices)
    return Engine(
        client=client,
        kind="podman" if podman else "docker",
        version=str(version.get("Version", "")),
        cores=int(info.get("NCPU") or 0),
        memory_bytes=int(info.get("MemTotal") or 0),
        offers_gpus=offers,
    )


def _addresses(runtime: RuntimeChoice) -> tuple[str, ...]:
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
