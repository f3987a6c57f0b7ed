"""Certificates for one registry, from the folders of Docker and Podman.

    <folder>/HOST[:PORT]/*.crt             authorities to trust, besides the site's
    <folder>/HOST[:PORT]/NAME.cert, .key   this host's client certificate

The layout is described in https://docs.docker.com/engine/security/certificates/ and containers-certs.d(5).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import certifi

from imagebuilder.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Authorities to trust besides the site's bundle, and the client certificate.

    Attributes:
        authorities: PEM files of certificate authorities.
        client: PEM files of this host's certificate and of its key; None if it has none.

    """

    authorities: tuple[Path, ...] = ()
    client: tuple[Path, Path] | None = None


NOTHING = Trust()


def folders(home: Path) -> tuple[Path, ...]:
    """Return the folders, the user's before the host's."""
    return (
        home / ".docker" / "certs.d",
        home / ".config" / "docker" / "certs.d",
        home / ".config" / "containers" / "certs.d",
        Path("/etc/docker/certs.d"),
        Path("/etc/containers/certs.d"),
    )


def find(host: str, places: Sequence[Path]) -> Trust:
    """Find the certificates for a registry, in the first folder that has any.

    Args:
        host: host and port, as images are named.
        places: folders with one folder for each registry.

    Raises:
        InputError: a certificate there has no key.

    """
    for place in places:
        folder = place / host
        authorities = tuple(sorted(folder.glob("*.crt")))
        certificates = sorted(folder.glob("*.cert"))
        for certificate in certificates:
            key = certificate.with_suffix(".key")
            if not key.is_file():
                raise InputError(
                    "the key of this client certificate is missing",
                    where=str(certificate),
                    hint=f"put it at {key}, or take the certificate away",
                )
        if authorities or certificates:
            # Send the first if there are several: which one the server accepts is not known beforehand.
            client = (certificates[0], certificates[0].with_suffix(".key")) if certificates else None
            return Trust(authorities=authorities, client=client)
    return NOTHING


def bundle(trust: Trust, site: str) -> Path:
    """Join authorities and the site's bundle in one new file, which the caller must remove.

    Args:
        trust: with the authorities of one registry.
        site: path of the site's own bundle; empty for the public authorities.

    Raises:
        InputError: a file cannot be read.

    """
    parts = []
    for path in (*trust.authorities, Path(site or certifi.where())):
        try:
            parts.append(path.read_bytes())
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    with tempfile.NamedTemporaryFile(prefix="imagebuilder-", suffix=".pem", delete=False) as file:
        file.write(b"\n".join([*parts, b""]))
    return Path(file.name)
