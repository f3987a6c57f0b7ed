"""Data of this host that must not be in an image: its paths, the site's certificates, passwords."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from imagebuilder.host.site import Site

log = logging.getLogger(__name__)

# Folders that every image has too: as the home of a builder they reveal nothing.
_COMMON = frozenset({"/", "/root", "/home", "/tmp", "/nonexistent", "/build"})  # noqa: S108  only compared
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----")
# Where Debian and similar distributions keep the public CAs.
_PUBLIC = Path("/usr/share/ca-certificates")
_SHORTEST_PATH = 6
_SHORTEST_PASSWORD = 8
_LINE = 64


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Bytes that would reveal where an image was built, and a description; the bytes are never shown."""

    kind: str
    about: str
    hint: str
    data: bytes = field(repr=False)


def marks(site: Site, home: Path, store: Path) -> tuple[Mark, ...]:
    """Collect the marks of this host.

    Args:
        site: the site's settings, with proxies, indexes and the CA bundle.
        home: home folder of the user who builds.
        store: the store's folder.

    """
    found = (*_paths(home, store), *_authorities(site), *_passwords(site))
    return tuple({mark.data: mark for mark in found}.values())


def version(given: Iterable[Mark]) -> str:
    """Return a hash of the marks (hex sha256): results for other marks do not apply."""
    digests = sorted(hashlib.sha256(mark.kind.encode() + b"\0" + mark.data).digest() for mark in given)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _paths(home: Path, store: Path) -> Iterator[Mark]:
    for path, about in ((home, "home folder of the builder"), (store, "path of the store")):
        text = str(path)
        if text not in _COMMON and len(text) >= _SHORTEST_PATH:
            yield Mark(kind="host-path", about=about, hint=text, data=text.encode())


def _authorities(site: Site) -> Iterator[Mark]:
    """Mark certificates that only this host trusts, by their last bytes, which are the signature."""
    if site.ca_bundle is None:
        return
    import certifi

    public = set(_certificates(Path(certifi.where())))
    for path in sorted(_PUBLIC.rglob("*.crt")) if _PUBLIC.is_dir() else ():
        public |= set(_certificates(path))
    for data in _certificates(site.ca_bundle):
        if data in public:
            continue
        about = "certificate of a CA that only this site trusts"
        hint = f"sha256 {hashlib.sha256(data).hexdigest()[:16]}"
        text = base64.b64encode(data)
        # A whole line of PEM and the last bytes of DER: part of the signature, which is unique.
        line = text[len(text) // _LINE * _LINE - _LINE :][:_LINE]
        yield Mark(kind="site-authority", about=about, hint=hint, data=line)
        yield Mark(kind="site-authority", about=about, hint=hint, data=data[-32:])


def _certificates(path: Path) -> Iterator[bytes]:
    """Read the certificates of a PEM file, as DER."""
    try:
        text = path.read_bytes()
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error.strerror)
        return
    for found in _CERTIFICATE.finditer(text):
        with contextlib.suppress(ValueError):
            yield base64.b64decode(re.sub(rb"\s", b"", found[1]), validate=True)


def _passwords(site: Site) -> Iterator[Mark]:
    """Mark the passwords in the URLs of proxies, indexes and mirrors, both encoded and decoded."""
    proxies = [url for name, url in site.proxies if name != "no_proxy"]
    options = [value for _, value in site.apt_options]
    urls = (
        *proxies, site.index, *site.extra_indexes, *site.wheel_folders, site.apt_mirror,
        site.apt_security_mirror, site.apt_ports_mirror, *options,
    )  # fmt: skip
    for url in urls:
        try:
            password = urlsplit(url).password or ""
        except ValueError:
            continue
        for text in {password, unquote(password)}:
            if len(text) >= _SHORTEST_PASSWORD:
                about, hint = "password of a proxy, index or mirror of this site", f"{len(text)} characters"
                yield Mark(kind="site-password", about=about, hint=hint, data=text.encode())
