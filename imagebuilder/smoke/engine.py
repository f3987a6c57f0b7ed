"""Ask the container engine about an image, and about the GPUs that its containers can use."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import docker
import requests
from docker.errors import DockerException, ImageNotFound

from imagebuilder.core import labels as label_names
from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.host.engine import Engine, connect, explained
from imagebuilder.smoke.gpus import QUERY, Gpus, parse
from imagebuilder.smoke.target import SmokeTarget, from_labels

if TYPE_CHECKING:
    from docker.models.images import Image

__all__ = ["Engine", "connect", "explained", "gpus", "look_up", "require_image", "require_same", "user_of"]

log = logging.getLogger(__name__)


def look_up(engine: Engine, reference: str) -> SmokeTarget:
    """Read the labels of an image in the engine.

    Raises:
        InputError: there is no such image, or it lacks the labels.

    """
    image = require_image(engine, reference)
    digests = sorted({entry.rpartition("@")[2] for entry in image.attrs.get("RepoDigests") or ()})
    # Several manifests may share one config. Then it is unknown which one was tested, so none is reported.
    digest = digests[0] if len(digests) == 1 else ""
    return from_labels(reference, image.labels, digest=digest)


def require_same(engine: Engine, target: SmokeTarget) -> dict[str, str]:
    """Check that the engine's image under this reference is the target; return its environment.

    Raises:
        InputError: it is another image, or cannot be shown to be this one.

    """
    image = require_image(engine, target.reference)
    found = from_labels(target.reference, image.labels)
    again = "load it again: imagebuilder build --load"
    if found.lock != target.lock:
        raise InputError(
            f"the engine's image was made from another lock ({label_names.LOCK}={found.lock[:12]}, "
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
    """Return the numeric user and group that an image runs as; 0 if it names them instead."""
    user, _, group = str(require_image(engine, reference).attrs["Config"].get("User") or "0").partition(":")
    return _number(user), _number(group)


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) else 0


def gpus(engine: Engine, reference: str) -> Gpus:
    """Return the GPUs that a container of this image can use, by starting one.

    The engine may run on another machine, so a tool on this host would not help.
    """
    if not engine.offers_gpus:
        return Gpus()
    try:
        said = engine.client.containers.run(
            reference,
            entrypoint=["nvidia-smi"],
            command=list(QUERY),
            device_requests=[docker.types.DeviceRequest(count=-1, capabilities=[["gpu", "utility"]])],
            remove=True,
            network_disabled=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
        )
    except DockerException as error:
        log.warning("the engine offers GPUs, but a container with them does not start: %s", error)
        return Gpus()
    return parse(said.decode(errors="replace"))


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
