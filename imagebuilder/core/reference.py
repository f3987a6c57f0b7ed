"""The name of an image in a registry: `host[:port]/path[:tag][@digest]`.

The grammar is that of the OCI distribution specification (https://github.com/opencontainers/distribution-spec,
"Pulling manifests"), with Docker's reading of names without a host: `team/torch` lives on Docker Hub.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from imagebuilder.core.yamlfile import RECIPE_ENDINGS, printable
from imagebuilder.errors import InputError

# What a registry accepts: OCI distribution specification, "Pulling manifests".
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DOMAIN = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_DOMAIN}(?:\.{_DOMAIN})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_PATH = 255
_LARGEST_PORT = 65535

DOCKER_HUB = "docker.io"
# Names of Docker Hub's images have one host, and another host serves them.
_ENDPOINTS = {DOCKER_HUB: "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A checked name; `tag` and `digest` are empty if the text does not have them."""

    host: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """The repository: host and path, without tag and digest."""
        return f"{self.host}/{self.path}"

    @property
    def endpoint(self) -> str:
        """The host and port that serve this registry."""
        return _ENDPOINTS.get(self.host, self.host)

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this host, where plain HTTP is as safe as TLS."""
        return is_loopback(self.endpoint)

    def with_tag(self, tag: str) -> Reference:
        return Reference(host=self.host, path=self.path, tag=check_tag(tag))

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> Reference:
    """Read an image's name.

    Raises:
        InputError: it is not valid; the message names the wrong part and the correct form.

    """
    if "://" in text:
        raise InputError(
            f"`{printable(text)}` is not an image name: it holds a scheme",
            hint=f"write `{printable(text.partition('://')[2])}`",
        )
    rest, _, digest = text.partition("@")
    if "@" in text and not _DIGEST.fullmatch(digest):
        raise InputError(
            f"`{printable(digest)}` is not a digest",
            where=printable(text),
            hint="a digest is `sha256:` and 64 hexadecimal digits",
        )
    head, slash, tail = rest.partition("/")
    # Docker's rule: the first part is a host if it cannot be anything else.
    if slash and (any(char in head for char in ".:[") or head == "localhost" or head != head.lower()):
        host, path_tag = _check_host(head, text), tail
    else:
        host, path_tag = DOCKER_HUB, rest
    path, colon, tag = path_tag.partition(":")
    if colon:
        check_tag(tag, where=text)
    if host == DOCKER_HUB and path and "/" not in path:
        path = f"library/{path}"
    return Reference(host=host, path=_check_path(path, text), tag=tag, digest=digest)


def parse_image(text: str) -> Reference:
    """Read the name of one image: it has a tag or a digest.

    Raises:
        InputError: it has neither, or is not valid.

    """
    reference = parse(text)
    if reference.tag or reference.digest:
        return reference
    shown = printable(text)
    if text.endswith(RECIPE_ENDINGS):
        raise InputError(
            "is a file, not an image in a registry", where=shown, hint="give the name that `push` printed"
        )
    raise InputError("names a repository, not an image", where=shown, hint=f"add a tag: {shown}:TAG")


def check_tag(tag: str, *, where: str = "") -> str:
    """Return the tag.

    Raises:
        InputError: no registry would accept it.

    """
    if not TAG.fullmatch(tag):
        raise InputError(
            f"`{printable(tag)}` is not a tag",
            where=printable(where),
            hint="at most 128 letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`",
        )
    return tag


def is_loopback(host: str) -> bool:
    """Whether `host[:port]` names this host's loopback interface."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _check_host(host: str, text: str) -> str:
    port = host.rpartition(":")[2] if not host.endswith("]") and ":" in host else "1"
    if not _HOST.fullmatch(host) or not 1 <= int(port) <= _LARGEST_PORT:
        raise InputError(
            f"`{printable(host)}` is not a registry's host",
            where=printable(text),
            hint="write it as in `registry.example.org:5000/team/torch`",
        )
    return host.lower()


def _check_path(path: str, text: str) -> str:
    if _PATH.fullmatch(path.lower()) and path != path.lower():
        raise InputError(
            f"`{printable(path)}` is not a repository's name: it has upper-case letters",
            where=printable(text),
            hint=f"write {printable(text.replace(path, path.lower(), 1))}",
        )
    if not _PATH.fullmatch(path) or len(path) > _LONGEST_PATH:
        raise InputError(
            f"`{printable(path)}` is not a repository's name",
            where=printable(text),
            hint="lower-case letters and digits, parts joined by `/`, words by `.`, `_` or `-`, "
            "as in `registry.example.org/team/torch`",
        )
    return path
