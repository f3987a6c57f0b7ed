"""Credentials of registries, as `docker login` and `podman login` store them: in files and helpers.

The formats are described in https://docs.docker.com/reference/cli/docker/login/ (`auths`, `credsStore`,
`credHelpers`) and in containers-auth.json(5). Nothing is ever written, and no secret gets into a message or a
log line. The docker SDK's `docker.auth` does part of this, but waits for a helper without a limit, reads no
entries for a part of a registry, and one malformed entry hides all others.
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
from imagebuilder.host import clients

log = logging.getLogger(__name__)

_LIMIT = 100_000
# A registry's key as some tools write it: `https://host`, `http://host/v2/`, `host/v1/`.
_OLD = re.compile(r"(?:https?://[^/]+(?:/.*)?|[^/]+/(?:v[12]/?)?)")
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


def find(host: str, environment: Mapping[str, str] = os.environ, path: str = "") -> Credentials:
    """Return this user's credentials for a repository: Docker's, or else Podman's.

    Within a file the order is: the host's helper, the store, the plain entry. REGISTRY_AUTH_FILE, which names
    a file of Podman's, comes before Docker's.

    Args:
        host: host and port, as images are named (`docker.io` for Docker Hub).
        environment: where the files' places are taken from.
        path: the repository there: Podman may have credentials for a part of a registry.

    Raises:
        InputError: a file is malformed.
        EnvironmentFault: it names a helper that is not installed.

    """
    files = [clients.docker_folder(environment) / "config.json", *clients.podman_logins(environment)]
    if environment.get("REGISTRY_AUTH_FILE"):
        files.reverse()
    return next((known for file in files if (known := _in_file(file, host, path))), ANONYMOUS)


def _in_file(path: Path, host: str, repository: str) -> Credentials:
    config = clients.read_object(path)
    key = _HUB_KEY if host == DOCKER_HUB else host
    helpers = _mapping(config, "credHelpers", path)
    helper = helpers.get(host) or helpers.get(key) or config.get("credsStore")
    if helper:
        credentials = _ask_helper(helper, key, path)
        if credentials:
            return credentials
    auths = _mapping(config, "auths", path)
    for name in (*_narrowest_first(host, repository), key):
        if name in auths:
            return _entry(auths[name], name, path)
    for name, entry in auths.items():
        if _OLD.fullmatch(name) and _host_of(name) == host:
            return _entry(entry, name, path)
    return ANONYMOUS


def _narrowest_first(host: str, repository: str) -> list[str]:
    """Return the names under which Podman may keep credentials.

    >>> _narrowest_first("quay.io", "team/torch")
    ['quay.io/team/torch', 'quay.io/team', 'quay.io']
    """
    parts = [host, *(part for part in repository.split("/") if part)]
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


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
