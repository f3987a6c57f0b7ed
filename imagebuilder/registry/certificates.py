"""Certificates for one registry, where Docker and Podman look for them too.

    <folder>/HOST[:PORT]/*.crt             authorities to trust, besides the site's
    <folder>/HOST[:PORT]/NAME.cert, .key   what this host proves itself with

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
    """Whom to trust, and what to prove oneself with; the site's bundle counts besides.

    Attributes:
        authorities: PEM files of certificate authorities.
        client: PEM files of this host's certificate and of its key; None where it has none.

    """

    authorities: tuple[Path, ...] = ()
    client: tuple[Path, Path] | None = None


NOTHING = Trust()


def folders(home: Path) -> tuple[Path, ...]:
    """Name the places, the user's own before the host's."""
    return (
        home / ".docker" / "certs.d",
        home / ".config" / "docker" / "certs.d",
        home / ".config" / "containers" / "certs.d",
        Path("/etc/docker/certs.d"),
        Path("/etc/containers/certs.d"),
    )


def find(host: str, places: Sequence[Path]) -> Trust:
    """Look up what is there for a registry; the first place that has anything counts.

    Args:
        host: host and port, as images are named.
        places: folders with one folder for each registry.

    Raises:
        InputError: a certificate stands there without its key.

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
            # A server that takes several is shown the first: which one it likes is not known beforehand.
            client = (certificates[0], certificates[0].with_suffix(".key")) if certificates else None
            return Trust(authorities=authorities, client=client)
    return NOTHING


def bundle(trust: Trust, site: str) -> Path:
    """Join authorities and the site's bundle in one new file; whoever asks for it removes it.

    Args:
        trust: with the authorities of one registry.
        site: path of the site's own bundle; empty for the world's.

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
