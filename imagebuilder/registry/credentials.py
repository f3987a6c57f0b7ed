"""Credentials of registries, as `docker login` stores them: in the config file and in credential helpers.

The format is described in https://docs.docker.com/reference/cli/docker/login/ (`auths`, `credsStore`,
`credHelpers`). Nothing is ever written, and no secret gets into a message or a log line.
"""

from __future__ import annotations

import base64
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuilder.core import jsontext
from imagebuilder.core.process import run
from imagebuilder.core.reference import DOCKER_HUB
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import EnvironmentFault, InputError

log = logging.getLogger(__name__)

_LIMIT = 4_000_000
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Docker Hub's entry has the address of an old service.
_HUB_KEY = "https://index.docker.io/v1/"
# The user name with which a helper marks its secret as an identity token.
_TOKEN_USER = "<token>"  # noqa: S105  a marker of the protocol, no secret
_HELPER_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """A user's password, or an identity token in its place; all empty for an anonymous user."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.user or self.identity_token)


ANONYMOUS = Credentials()


def find(host: str, environment: Mapping[str, str] = os.environ) -> Credentials:
    """Return this user's credentials for a registry, in Docker's order: host's helper, store, plain entry.

    Args:
        host: host and port, as images are named (`docker.io` for Docker Hub).
        environment: where `DOCKER_CONFIG` and `HOME` are taken from.

    Raises:
        InputError: the config file is malformed.
        EnvironmentFault: it names a helper that is not installed.

    """
    folder = environment.get("DOCKER_CONFIG") or str(Path(environment.get("HOME") or Path.home()) / ".docker")
    path = Path(folder) / "config.json"
    config = _read(path)
    key = _HUB_KEY if host == DOCKER_HUB else host
    helpers = _mapping(config, "credHelpers", path)
    helper = helpers.get(host) or helpers.get(key) or config.get("credsStore")
    if helper:
        credentials = _ask_helper(helper, key, path)
        if credentials:
            return credentials
    for name, entry in _mapping(config, "auths", path).items():
        if name == key or _host_of(name) == host:
            return _entry(entry, name, path)
    return ANONYMOUS


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT + 1)
    except FileNotFoundError:
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


def _mapping(config: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError("is not a JSON object", where=f"{path}: {name}")
    return value


def _host_of(name: str) -> str:
    """Reduce a key of `auths` to its host: some tools write `https://host/v1/`."""
    return name.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _entry(entry: Any, name: str, path: Path) -> Credentials:
    if not isinstance(entry, dict):
        raise InputError("is not a JSON object", where=f"{path}: auths[{printable(name)}]")
    if token := entry.get("identitytoken"):
        return Credentials(identity_token=str(token))
    if auth := entry.get("auth"):
        try:
            user, colon, password = base64.b64decode(str(auth)).decode().partition(":")
        except ValueError:  # not base64, not ASCII, or not UTF-8 inside
            user = colon = password = ""
        if not colon:
            raise InputError(
                "`auth` is not the base64 of user:password",
                where=f"{path}: auths[{printable(name)}]",
                hint=f"sign in again: docker login {printable(_host_of(name))}",
            )
        return Credentials(user=user, password=password.rstrip("\0"))
    return Credentials(user=str(entry.get("username") or ""), password=str(entry.get("password") or ""))


def _ask_helper(helper: Any, key: str, path: Path) -> Credentials:
    """Run `docker-credential-<helper> get`: the host on its input, JSON on its output."""
    if not isinstance(helper, str) or not _HELPER.fullmatch(helper):
        raise InputError(f"`{printable(str(helper))}` is not a credential helper's name", where=str(path))
    command = f"docker-credential-{helper}"
    result = run([command, "get"], stdin=key, timeout=_HELPER_SECONDS, check=False)
    if result.code != 0:
        # A helper without credentials says so on its standard output. Any other output may be secret.
        log.debug("%s has nothing for %s (it ended with %d)", command, printable(key), result.code)
        return ANONYMOUS
    try:
        data = jsontext.loads(result.stdout, limit=_LIMIT)
        user, secret = data["Username"] + "", data["Secret"] + ""
    except (ValueError, KeyError, TypeError):
        raise EnvironmentFault(
            f"`{command}` printed something other than credentials",
            where=str(path),
            hint=f"sign in again: docker login {printable(_host_of(key))}",
        ) from None
    if user == _TOKEN_USER:
        return Credentials(identity_token=secret)
    return Credentials(user=user, password=secret)
