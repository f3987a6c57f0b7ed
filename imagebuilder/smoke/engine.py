"""Ask the container engine about an image, and about the GPUs that its containers can use."""

from __future__ import annotations

import dataclasses
import io
import itertools
import logging
import re
import tarfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import docker
import requests
from docker.errors import DockerException, ImageNotFound

from imagebuilder.core import labels as label_names
from imagebuilder.core.reference import parse as parse_name
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.host.engine import Engine, GpuRoute, connect, explained
from imagebuilder.image.oci import CREATED_BY
from imagebuilder.registry import credentials
from imagebuilder.smoke.gpus import QUERY, Gpus, parse
from imagebuilder.smoke.target import SmokeTarget, from_image

if TYPE_CHECKING:
    from docker.models.containers import Container
    from docker.models.images import Image

__all__ = [
    "Engine",
    "connect",
    "device_request",
    "explained",
    "gpus",
    "has",
    "look_up",
    "pull",
    "require_image",
    "require_same",
    "user_of",
]

log = logging.getLogger(__name__)

_MOST_STEPS = 200
_DIGITS = 10
_PULL_SECONDS = 7200
# Of /etc/passwd: pieces of up to 2 MiB, and bytes.
_MOST_PIECES = 4
_LARGEST = 1 << 20
_NO_DEVICE = (
    "no CDI specification on the engine's host names nvidia.com/gpu devices: run there `nvidia-ctk cdi "
    "generate --output=/etc/cdi/nvidia.yaml`"
)
_NO_ROUTE = {
    "docker": "Docker takes CDI devices since version 28.2, and since 25 with `features: {cdi: true}` in its "
    "daemon.json; or install NVIDIA's runtime: `nvidia-ctk runtime configure`",
    "podman": "Podman's service takes CDI devices since version 5.4",
}


def look_up(engine: Engine, reference: str, digest: str = "") -> SmokeTarget:
    """Read what an image in the engine is: its labels, and whether somebody built on top of it.

    Args:
        engine: has the image.
        reference: its name there.
        digest: of its manifest, if a registry has said it.

    Raises:
        InputError: there is no such image, or a label of imagebuilder is damaged.

    """
    image = require_image(engine, reference)
    digests = sorted(_digests(image))
    # Several manifests may share one config. Then it is unknown which one was tested, so none is reported.
    digest = digest or (digests[0] if len(digests) == 1 else "")
    target = from_image(reference, image.labels, digest=digest, entrypoint=_entrypoint(image))
    on_top = () if target.origin == "foreign" else _on_top(image)
    if not on_top:
        return target
    base = _base(engine, image, target.lock)
    return dataclasses.replace(target, origin="derived", recipe="", base=base, on_top=on_top)


def require_same(engine: Engine, target: SmokeTarget) -> dict[str, str]:
    """Check that the engine's image under this reference is the target; return its environment.

    Raises:
        InputError: it is another image, or cannot be shown to be this one.

    """
    image = require_image(engine, target.reference)
    lock = image.labels.get(label_names.LOCK, "")
    again = "load it again: imagebuilder build --load"
    if lock != target.lock:
        raise InputError(
            f"the engine's image was made from another lock ({label_names.LOCK}={lock[:12]}, "
            f"wanted {target.lock[:12]})",
            where=target.reference,
            hint=again,
        )
    known = {*_digests(image), image.attrs.get("Digest", ""), str(image.id)}
    if target.digest and target.digest not in known and (not target.config or target.config not in known):
        raise InputError(
            f"the engine's image cannot be shown to be {target.digest}, so a report on it would prove "
            "nothing",
            where=target.reference,
            hint=again,
        )
    pairs = (entry.partition("=") for entry in image.attrs["Config"].get("Env") or ())
    return {name: value for name, _, value in pairs}


def _digests(image: Image) -> set[str]:
    return {entry.rpartition("@")[2] for entry in image.attrs.get("RepoDigests") or ()}


def _entrypoint(image: Image) -> tuple[str, ...]:
    return tuple(map(str, (image.attrs.get("Config") or {}).get("Entrypoint") or ()))


def _on_top(image: Image) -> tuple[str, ...]:
    """Return the steps of other builders on top of an image of imagebuilder, whose own name it."""
    with explained("reading the history of the image"):
        history = image.history()
    steps = []
    for entry in history[:_MOST_STEPS]:
        said = str(entry.get("CreatedBy") or "")
        if said.startswith(CREATED_BY):
            break
        steps.append(_step(said))
    return tuple(reversed(steps))


def _step(said: str) -> str:
    """Shorten a step as builders write it into the history.

    >>> _step("/bin/sh -c #(nop)  USER root"), _step("RUN /bin/sh -c pip install x # buildkit")
    ('USER root', 'RUN pip install x')
    """
    text = said.removesuffix("# buildkit").replace("/bin/sh -c #(nop) ", "").replace("/bin/sh -c ", "")
    return textwrap.shorten(printable(text), 100, placeholder=" ...")


def _base(engine: Engine, image: Image, lock: str) -> str:
    """Name the image of imagebuilder that a derived image begins with, by digest if the engine has it."""
    layers = (image.attrs.get("RootFS") or {}).get("Layers") or []
    with explained("looking for the image's base"):
        candidates = engine.client.images.list(filters={"label": f"{label_names.LOCK}={lock}"})
    # Several configs may have the same layers: the one with a name is the one that a Dockerfile named.
    for candidate in sorted(candidates, key=lambda found: (not found.tags, str(found.id))):
        below = (candidate.attrs.get("RootFS") or {}).get("Layers") or []
        if candidate.id != image.id and below and below == layers[: len(below)] and not _on_top(candidate):
            known = sorted(_digests(candidate))
            name = image.labels.get(label_names.RECIPE, "")
            return f"{printable(name)}@{known[0] if known else candidate.id}"
    return f"{printable(image.labels.get(label_names.RECIPE, ''))} (lock {printable(lock[:12])})"


def user_of(engine: Engine, reference: str, container: Container) -> tuple[int, int]:
    """Return the numeric user and group that an image runs as.

    Args:
        engine: has the image.
        reference: the image.
        container: a container of it, whose /etc/passwd says the number of a user that the image names.

    """
    user, _, group = str(require_image(engine, reference).attrs["Config"].get("User") or "0").partition(":")
    if user.isascii() and user.isdigit() and len(user) <= _DIGITS:
        own = 0
    else:
        user, own = next(_accounts(container, user), ("0", 0))
    named = group.isascii() and group.isdigit() and len(group) <= _DIGITS
    return int(user), int(group) if named else own


def _accounts(container: Container, name: str) -> Iterator[tuple[str, int]]:
    """Yield user and group of an account in the container's /etc/passwd."""
    try:
        pieces, _ = container.get_archive("/etc/passwd")
        data = b"".join(itertools.islice(pieces, _MOST_PIECES))
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            file = tar.extractfile("passwd")
            text = file.read(_LARGEST).decode(errors="replace") if file else ""
    except (DockerException, requests.RequestException, tarfile.TarError, KeyError, EOFError):
        return
    for line in text.splitlines():
        fields = line.split(":")
        if (
            fields[0] == name
            and len(fields) > 3
            and all(re.fullmatch(r"[0-9]{1,10}", f) for f in fields[2:4])
        ):
            yield fields[2], int(fields[3])


def has(engine: Engine, reference: str) -> bool:
    """Return whether the engine has an image.

    Raises:
        EnvironmentFault: the engine does not answer.

    """
    try:
        require_image(engine, reference)
    except InputError:
        return False
    return True


def pull(engine: Engine, repository: str, digest: str) -> None:
    """Let the engine pull one manifest, with this user's credentials for the registry.

    Raises:
        EnvironmentFault: the engine cannot pull it.

    """
    name = parse_name(repository)
    found = credentials.find(name.host, path=name.path)
    login = {"username": found.user, "password": found.password, "identitytoken": found.identity_token}
    until = time.monotonic() + _PULL_SECONDS
    with explained(f"pulling {repository}@{digest}"):
        given = {key: value for key, value in login.items() if value}
        api: Any = engine.client.api
        for event in api.pull(repository, tag=digest, stream=True, decode=True, auth_config=given):
            if isinstance(event, dict) and (said := event.get("error")):
                raise EnvironmentFault(
                    f"{engine.kind} cannot pull it: {printable(str(said))[:500]}",
                    where=f"{repository}@{digest}",
                    hint=f"the engine has its own settings for registries: does `{engine.kind} pull` work?",
                )
            if time.monotonic() > until:
                raise EnvironmentFault(
                    f"{engine.kind} did not pull it within {_PULL_SECONDS // 60} minutes",
                    where=f"{repository}@{digest}",
                )


def gpus(engine: Engine, reference: str) -> tuple[Gpus, GpuRoute]:
    """Return the GPUs that containers of this image can use, and how they get them, by starting one with all.

    The engine may run on another machine, so a tool on this host would not help.
    """
    lacking = _NO_ROUTE[engine.kind]
    for route in engine.gpu_routes:
        try:
            said = engine.client.containers.run(
                reference,
                entrypoint=["nvidia-smi"],
                command=list(QUERY),
                device_requests=[device_request(route)],
                remove=True,
                network_disabled=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
            )
        except DockerException as error:
            if "unresolvable CDI devices" in str(error):
                lacking = _NO_DEVICE
                continue
            log.warning("the engine offers GPUs, but a container with them does not start: %s", error)
            lacking = printable(str(error))[:500]
            continue
        if (found := parse(said.decode(errors="replace"))).gpus:
            return found, route
        lacking = "nvidia-smi lists none in a container"
    return Gpus(lacking=lacking), "request"


def device_request(route: GpuRoute, ids: Sequence[str] = ()) -> docker.types.DeviceRequest:
    """Ask for GPUs by their ids; for all without any."""
    if route == "cdi":
        return docker.types.DeviceRequest(
            driver="cdi", device_ids=[f"nvidia.com/gpu={name}" for name in ids or ("all",)]
        )
    return docker.types.DeviceRequest(
        count=0 if ids else -1, device_ids=list(ids), capabilities=[["gpu", "compute", "utility"]]
    )


def require_image(engine: Engine, reference: str) -> Image:
    """Find an image in the engine.

    Raises:
        InputError: there is no such image.
        EnvironmentFault: the engine does not answer.

    """
    try:
        return engine.client.images.get(reference)
    except ImageNotFound:
        raise InputError(
            f"{engine.kind} has no such image",
            where=reference,
            hint="put it there with `imagebuilder build --load`, or pull it",
        ) from None
    except (DockerException, requests.RequestException) as error:
        raise EnvironmentFault(f"{engine.kind} did not answer what `{reference}` is: {error}") from error
