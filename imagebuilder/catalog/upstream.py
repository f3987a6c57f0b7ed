"""Source archives that neither Debian nor the package index has: their URL and checksum.

The catalog or a site file names them, by a component's version. A lock has the checksum only.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field

from imagebuilder.core.model import Strict
from imagebuilder.core.yamlfile import Invalid, printable

_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+~-]*\.(?:tar|tar\.(?:gz|bz2|xz)|tgz|tbz2|txz)")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+~_-]*")


def _address(value: str) -> str:
    if not value.isprintable() or " " in value:
        raise Invalid("holds white space or control characters", "write them as %20 and the like")
    parts = urlsplit(value)
    try:
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    local = parts.scheme == "file" and parts.path.startswith("/")
    if not local and not (parts.scheme in {"http", "https"} and host):
        raise Invalid(f"`{printable(value)}` is not a URL", "write https://host/path/name-1.0.tar.gz")
    if parts.username or parts.password:
        raise Invalid("holds a user name or a password", "put them into ~/.netrc")
    if parts.scheme == "http" and not _is_loopback(host):
        raise Invalid(
            f"`{printable(value)}` is not encrypted", "write https://; http:// is accepted only for this host"
        )
    name = file_of(value)
    if not _FILE.fullmatch(name):
        raise Invalid(
            f"`{printable(name)}` is not the name of a tar archive",
            "the address ends in name-1.0.tar.gz, .tar.bz2 or .tar.xz",
        )
    return value


def _version(value: str) -> str:
    if not _VERSION.fullmatch(value):
        raise Invalid(f"`{printable(value)}` is not a version", 'write the whole version: "5.0.8"')
    return value


class Upstream(Strict):
    """One source archive."""

    url: Annotated[
        str,
        AfterValidator(_address),
        Field(description="URL of the archive: https, file, or http on this host."),
    ]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="Its checksum, 64 digits of 0-9a-f.")]


Versions = dict[Annotated[str, AfterValidator(_version)], Upstream]
"""Archives of one component by version."""


def file_of(url: str) -> str:
    """Return the file name at the end of a URL.

    >>> file_of("https://host.example/v1/name-1.0%2Bb.tar.gz?download=1")
    'name-1.0+b.tar.gz'
    """
    return PurePosixPath(unquote(urlsplit(url).path)).name


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
