"""The settings files of the `docker` and `podman` commands: where they are, and the engine that they choose.

The docker SDK reads contexts too, but looks for them in the current directory if there is no config.json,
and ignores a CA without a client certificate.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuilder.core import jsontext
from imagebuilder.core.yamlfile import nearest, printable
from imagebuilder.errors import EnvironmentFault, InputError

_LIMIT = 4_000_000
_MOST_CONTEXTS = 100
# The context that stands for the default socket; it has no file.
_NO_CONTEXT = "default"


@dataclass(frozen=True, kw_only=True)
class DockerContext:
    """A context of `docker context ls`: an engine's address, and how to trust it.

    Attributes:
        name: its name.
        address: `unix://`, `tcp://` or `ssh://`.
        ca, certificate, key: PEM files for TLS; None where the context has none.
        verify: whether the engine's certificate is checked.

    """

    name: str
    address: str
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    verify: bool = True


def docker_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of Docker's settings: DOCKER_CONFIG, or `.docker` in the home."""
    return Path(environment.get("DOCKER_CONFIG") or _home(environment) / ".docker")


def podman_logins(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the files in which `podman login` keeps credentials, the first one first."""
    if given := environment.get("REGISTRY_AUTH_FILE"):
        return (Path(given),)
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}"
    config = environment.get("XDG_CONFIG_HOME") or _home(environment) / ".config"
    return tuple(Path(folder) / "containers/auth.json" for folder in (runtime, config))


def current_context(environment: Mapping[str, str] = os.environ) -> DockerContext | None:
    """Return the context that `docker` uses: DOCKER_CONTEXT, else that of `docker context use`.

    DOCKER_HOST comes before both; the caller has looked at it. None means the default socket.

    Raises:
        EnvironmentFault: there is no such context, or its file names no engine.
        InputError: a file is not JSON.

    """
    folder = docker_folder(environment)
    config = folder / "config.json"
    name = environment.get("DOCKER_CONTEXT") or read_object(config).get("currentContext") or _NO_CONTEXT
    if name == _NO_CONTEXT:
        return None
    source = "DOCKER_CONTEXT" if environment.get("DOCKER_CONTEXT") else f"{config}: currentContext"
    word = hashlib.sha256(str(name).encode()).hexdigest()
    path = folder / "contexts/meta" / word / "meta.json"
    if not path.is_file():
        raise EnvironmentFault(
            f"there is no context `{printable(str(name))}`",
            where=source,
            hint=_other_context(str(name), folder, by_variable=bool(environment.get("DOCKER_CONTEXT"))),
        )
    try:
        endpoint = read_object(path)["Endpoints"]["docker"]
        address, verify = endpoint["Host"] + "", not endpoint.get("SkipTLSVerify")
    except (KeyError, TypeError, AttributeError):
        raise EnvironmentFault(
            "is not a context of Docker: it has no `Endpoints.docker.Host`", where=str(path)
        ) from None
    files = [folder / "contexts/tls" / word / "docker" / f"{file}.pem" for file in ("ca", "cert", "key")]
    ca, certificate, key = (file if file.is_file() else None for file in files)
    return DockerContext(
        name=str(name), address=address, ca=ca, certificate=certificate, key=key, verify=verify
    )


def _other_context(name: str, folder: Path, *, by_variable: bool) -> str:
    known = []
    for path in sorted((folder / "contexts/meta").glob("*/meta.json"))[:_MOST_CONTEXTS]:
        with contextlib.suppress(InputError):
            known.append(str(read_object(path).get("Name", "")))
    back = "unset DOCKER_CONTEXT" if by_variable else "docker context use default"
    meant = nearest(name, {_NO_CONTEXT, *filter(None, known)})
    return f"{f'{meant}; ' if meant else ''}`docker context ls` lists them; for the default engine: {back}"


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no such file.

    Raises:
        InputError: it cannot be read, or is not a JSON object.

    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    try:
        data = jsontext.loads(raw, limit=_LIMIT)
    except ValueError as error:
        raise InputError(
            "is not JSON", where=str(path), hint="repair it, or replace it with `docker login`"
        ) from error
    if not isinstance(data, dict):
        raise InputError("is not a JSON object", where=str(path))
    return data


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or Path.home())
