"""The licences that packages declare, as SPDX expressions. An unclear declaration is not guessed at.

Wheels: the core metadata (PEP 639's `License-Expression`, else `License` and the classifiers if they name one
licence). Debian packages: the machine-readable copyright file, format 1.0, in the image (https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/).
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import BinaryIO

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from imagebuilder.core import tarstream
from imagebuilder.errors import StoreError
from imagebuilder.lock.model import Lock, Wheel
from imagebuilder.store import ImageRecord, Store, explained

_DOC = re.compile(r"(?:\./)?usr/share/doc/([a-z0-9][a-z0-9+.-]+)(/copyright)?")
_METADATA = re.compile(r"(?:.*/)?([^/]+)-[^/-]+\.dist-info/METADATA")
_FORMAT = re.compile(r"^Format:.*copyright-format/1\.0", re.IGNORECASE | re.MULTILINE)
# Copyright files of a megabyte exist, and so do `License` fields with the text of the licence.
_LIMIT = 16_000_000
_LONGEST_NAME = 100
_REFERENCE = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_MOST_LICENCES = 200
# Counted up with every change of what is read from a layer.
_READING = 1

# Debian's short names that SPDX spells differently; a rule handles the versions of the GPL family.
_DEBIAN_NAMES = {
    "apache-2": "Apache-2.0",
    "artistic": "Artistic-1.0-Perl",
    "artistic-2": "Artistic-2.0",
    "bsl": "BSL-1.0",
    "cc0": "CC0-1.0",
    "expat": "MIT",
    "psf-2": "PSF-2.0",
    "python": "Python-2.0",
    "x11": "X11",
    "zlib": "Zlib",
}
_GNU = re.compile(r"(GPL|LGPL|AGPL|GFDL)(?:-(\d(?:\.\d)?))?(\+|-only|-or-later)?", re.IGNORECASE)
# Classifiers that mean exactly one licence; `BSD License`, for example, may mean several.
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}


@dataclass(frozen=True, kw_only=True)
class Licence:
    """An SPDX expression, empty if unknown; `own` has the licences without an SPDX id.

    Attributes:
        expression: uses `LicenseRef-...` for licences that SPDX does not list.
        own: each such reference, and the name that the package uses for the licence, sorted.

    """

    expression: str = ""
    own: tuple[tuple[str, str], ...] = ()


UNKNOWN = Licence()


@checked_dataclass(frozen=True, kw_only=True)
class LayerLicences:
    """What a layer's copyright files and wheels say, as `<store>/licences/<hex>.json` keeps it.

    Attributes:
        reading: which way of reading them gave it.
        licences: by the package's name.
        links: packages whose copyright file is another package's.
        wheels: by the distribution's name.

    """

    reading: int
    licences: dict[str, Licence]
    links: dict[str, str]
    wheels: dict[str, Licence]


KEPT = TypeAdapter(LayerLicences)


def of_debs(image: ImageRecord, store: Store, count: int) -> Mapping[str, Licence]:
    """Read the copyright files in an image: licence by package name, without unclear ones.

    Args:
        image: the image to read.
        store: has its layers.
        count: number of layers with Debian packages, from the lowest.

    Raises:
        StoreError: a layer cannot be read.

    """
    licences: dict[str, Licence] = {}
    links: dict[str, str] = {}
    for layer in image.layers[:count]:
        found = of_layer(store, layer.record.digest)
        licences |= found.licences
        links |= found.links
    for name in links:
        target = name
        for _ in range(8):
            target = links.get(target, target)
        licences.setdefault(name, licences.get(target, UNKNOWN))
    return {name: licence for name, licence in licences.items() if licence.expression}


def of_layer(store: Store, digest: str) -> LayerLicences:
    """Read the licences in a layer, or what the store has kept of them.

    Raises:
        StoreError: the layer cannot be read.

    """
    if kept := recall(store, digest):
        return kept
    made = LayerLicences(reading=_READING, licences={}, links={}, wheels={})
    with _entries(store, digest) as members:
        for member, content in members:
            readable = member.is_file and member.size <= _LIMIT
            if found := _DOC.fullmatch(member.path):
                if found[2] and readable:
                    made.licences[found[1]] = of_copyright(content.read().decode(errors="replace"))
                elif member.is_symlink:
                    # The folder, or the file in it, may be a link to those of a package of the same source.
                    made.links[found[1]] = member.link.removesuffix("/copyright").rpartition("/")[2]
            elif readable and (match := _METADATA.fullmatch(member.path)):
                name = str(canonicalize_name(match[1]))
                made.wheels[name] = of_metadata(content.read().decode(errors="replace"))
    remember(store, digest, made)
    return made


def recall(store: Store, digest: str) -> LayerLicences | None:
    """Return what the store has kept of a layer's licences; None if it was not read yet."""
    try:
        kept = KEPT.validate_json(_path(store, digest).read_bytes())
    except (OSError, ValidationError):
        return None
    return kept if kept.reading == _READING else None


def remember(store: Store, digest: str, licences: LayerLicences) -> None:
    """Keep the licences of a layer.

    Raises:
        StoreError: the store is full or not writable.

    """
    path = _path(store, digest)
    with store.work() as folder, explained(path):
        draft = folder / path.name
        draft.write_bytes(KEPT.dump_json(licences))
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(path)


def _path(store: Store, digest: str) -> Path:
    return store.root / "licences" / f"{store.blob(digest).name}.json"


def of_wheels(image: ImageRecord, lock: Lock, store: Store) -> Mapping[str, Licence]:
    """Read the wheels' metadata: licence by distribution name, without those whose licence is unclear.

    Reads the wheels in the store, or the image's layer if a wheel was pruned.

    Raises:
        StoreError: a layer cannot be read.

    """
    found: dict[str, Licence] = {}
    gone = []
    for wheel in lock.wheels:
        path = store.download(wheel.sha256)
        text = _metadata_of(path) if store.has_download(wheel.sha256, wheel.size) else None
        if text is None:
            gone.append(wheel)
        else:
            found[wheel.name] = of_metadata(text)
    if gone:
        found |= _from_layers(image, gone, store)
    return {name: licence for name, licence in found.items() if licence.expression}


def of_copyright(text: str) -> Licence:
    """Combine the licences of all files in a copyright file; unknown if it is free text."""
    if not _FORMAT.search(text[:4000]):
        return UNKNOWN
    names = []
    for paragraph in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^(Files|License):[ \t]*(.*)$", paragraph, re.IGNORECASE | re.MULTILINE))
        fields = {key.lower(): value.strip() for key, value in fields.items()}
        if "files" in fields and fields.get("license"):
            names.append(fields["license"])
    return _joined(_debian(name) for name in dict.fromkeys(names))


def of_metadata(text: str) -> Licence:
    """Read the licence in a wheel's METADATA; unknown if it has none, or several unclear ones."""
    message: Message = HeaderParser().parsestr(text)
    stated = str(message.get("License-Expression", "")).strip()
    if stated:
        return _stated(stated)
    classifiers = {str(value).rpartition(" :: ")[2] for value in message.get_all("Classifier", [])}
    known = {_CLASSIFIERS[word] for word in classifiers if word in _CLASSIFIERS}
    free = str(message.get("License", "")).strip()
    if free and (licence := _stated(free)).expression:
        return licence
    if len(known) == 1:
        return Licence(expression=known.pop())
    if free and free != "UNKNOWN" and len(free) <= _LONGEST_NAME and "\n" not in free:
        reference = _reference("wheel", free)
        return _checked(reference, {reference: free})
    return UNKNOWN


def _stated(expression: str) -> Licence:
    """Convert a wheel's expression; its references are the wheel's own names for licences."""
    return _checked(expression, {reference: reference for reference in _REFERENCE.findall(expression)})


def _debian(name: str) -> Licence:
    """Translate a synopsis, such as `GPL-2+ or Artistic, and BSD-3-clause`; a comma binds least."""
    own: dict[str, str] = {}
    groups: list[tuple[str, str]] = []
    parts = re.split(r",\s*", name)
    for part in parts:
        words = re.split(r"\s+", part.strip())
        joint = words.pop(0) if words[0].lower() in {"and", "or"} and groups else ""
        terms = re.split(r"\s+(and|or)\s+", " ".join(words), flags=re.IGNORECASE)
        inner = " ".join(
            _debian_id(term, own) if number % 2 == 0 else term.upper() for number, term in enumerate(terms)
        )
        groups.append((joint.upper() or "AND", f"({inner})" if len(terms) > 1 < len(parts) else inner))
    text = groups[0][1] + "".join(f" {joint} {group}" for joint, group in groups[1:])
    return _checked(text, own)


def _debian_id(name: str, own: dict[str, str]) -> str:
    gnu = _GNU.fullmatch(name)
    if gnu and gnu[2]:
        version = gnu[2] if "." in gnu[2] else f"{gnu[2]}.0"
        # Ids of the FDL have no patch level, but the same endings.
        later = "-or-later" if gnu[3] in {"+", "-or-later"} else "-only"
        candidate = f"{gnu[1].upper()}-{version}{later}"
    else:
        candidate = _DEBIAN_NAMES.get(name.lower(), name)
    if _checked(candidate, {}).expression:
        return candidate
    reference = _reference("debian", name)
    own[reference] = name
    return reference


def _reference(origin: str, name: str) -> str:
    return f"LicenseRef-{origin}-" + (re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "unnamed")


def _checked(expression: str, own: Mapping[str, str]) -> Licence:
    """Check an expression against SPDX's grammar and list; unknown if it is invalid."""
    try:
        text = str(canonicalize_license_expression(expression))
    except (InvalidLicenseExpression, RecursionError):
        return UNKNOWN
    # An expression with unexplained references says nothing.
    used = set(_REFERENCE.findall(text))
    if not used <= set(own):
        return UNKNOWN
    return Licence(expression=text, own=tuple(sorted((key, own[key]) for key in used)))


def _joined(licences: Iterable[Licence]) -> Licence:
    """Combine licences that all apply; unknown if one of them is."""
    parts = tuple(licences)
    if not parts or len(parts) > _MOST_LICENCES or not all(part.expression for part in parts):
        return UNKNOWN
    texts = sorted({part.expression for part in parts})
    if len(texts) > 1:
        texts = [f"({text})" if " " in text else text for text in texts]
    own = dict(pair for part in parts for pair in part.own)
    return Licence(expression=" AND ".join(texts), own=tuple(sorted(own.items())))


def _metadata_of(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if (
                    name.count("/") == 1
                    and _METADATA.fullmatch(name)
                    and wheel.getinfo(name).file_size <= _LIMIT
                ):
                    return wheel.read(name).decode(errors="replace")
    # zipfile raises all of these for a damaged wheel.
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error):
        return None
    return None


def _from_layers(image: ImageRecord, wheels: Iterable[Wheel], store: Store) -> dict[str, Licence]:
    wanted = {wheel.name for wheel in wheels}
    found: dict[str, Licence] = {}
    for layer in image.layers[1:]:
        own = of_layer(store, layer.record.digest).wheels
        found |= {name: own[name] for name in wanted & own.keys()}
        if wanted <= found.keys():
            break
    return found


@contextmanager
def _entries(store: Store, digest: str) -> Iterator[Iterator[tuple[tarstream.TarEntry, BinaryIO]]]:
    """Open a layer; what is wrong with it may show only when the body reads an entry's content."""
    path = store.blob(digest)
    try:
        with tarstream.open_layer(path) as stream:
            yield tarstream.entries(stream)
    except tarstream.errors() as error:
        raise StoreError(
            f"a layer cannot be read: {error}", where=str(path), hint="run: imagebuilder cache verify --fix"
        ) from error
