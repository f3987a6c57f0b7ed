"""Bills of materials of an image, made from its lock: SPDX 2.3 and CycloneDX 1.6, both as JSON. Pure.

https://spdx.github.io/spdx-spec/v2.3/ and https://cyclonedx.org/docs/1.6/json/. Packages are named by purls
(https://github.com/package-url/purl-spec). The same image gives the same bytes: ids come from its digest, and
the time is an argument.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from packageurl import PackageURL

from imagebuilder import __version__
from imagebuilder.core import labels as label_names
from imagebuilder.core import times
from imagebuilder.lock.model import Deb, Installed, Lock, Source, Wheel
from imagebuilder.plan import PackageLayer, Plan, ProjectLayer
from imagebuilder.publish.attest.licences import UNKNOWN, Licence

_NONE = "NOASSERTION"
# The comment on a package of a base from a registry, which has no file and no hash.
_BELOW = "component base"
_PURPOSES = {
    "deb": "INSTALL",
    "wheel": "LIBRARY",
    "source": "SOURCE",
    "package": "APPLICATION",
    "files": "SOURCE",
}
# The user's own package and copied folders. No index has them, so scanners must not look for them there.
_OWN = "pkg:generic/"
_OWN_COMPONENT = "project"
_TYPES = {"package": "application", "files": "file"}  # in CycloneDX


@dataclass(frozen=True, kw_only=True)
class Material:
    """The content of a bill of materials.

    Attributes:
        name, digest, tag: of the image; the digest is its manifest's.
        lock: the packages in it.
        debs, wheels: licences by package name; the others are unknown.
        own: the user's own package and copied folders.
        created: the time in the document, in seconds since 1970.

    """

    name: str
    digest: str
    tag: str
    lock: Lock
    debs: Mapping[str, Licence]
    wheels: Mapping[str, Licence]
    own: tuple[OwnPart, ...] = ()
    created: int = 0


@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """The user's own package, or a folder that the recipe copies.

    Attributes:
        kind: `package` or `files`.
        name: of the package, or the folder's path in the image.
        version: of the package, or the commit of the files; "" if unknown.
        purl: without a version.
        layer: digest of the layer that holds its files.
        size: of that layer, in bytes.

    """

    kind: str
    name: str
    version: str
    purl: str
    layer: str
    size: int


@dataclass(frozen=True, kw_only=True)
class _Package:
    kind: str
    name: str
    version: str
    file: str
    sha256: str
    size: int
    purl: str
    component: str
    licence: Licence


def spdx(material: Material) -> bytes:
    """Write the SPDX document: the image, and a package for each deb, wheel and compiled source in it."""
    packages = tuple(_packages(material))
    own = dict(pair for package in packages for pair in package.licence.own)
    root = "SPDXRef-image"
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{material.name}-{material.tag}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{material.name}-{_uuid(material)}",
        "creationInfo": {"created": _time(material), "creators": [f"Tool: imagebuilder-{__version__}"]},
        "packages": [
            {
                "SPDXID": root,
                "name": material.name,
                "versionInfo": material.tag,
                "primaryPackagePurpose": "CONTAINER",
                "checksums": [
                    {"algorithm": "SHA256", "checksumValue": material.digest.removeprefix("sha256:")}
                ],
                "externalRefs": [_purl_reference(image_purl(material.name, material.digest, material.tag))],
                **_unsaid(UNKNOWN),
            },
            *(_spdx_package(package) for package in packages),
        ],
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": root,
            },
            *(
                {
                    "spdxElementId": root,
                    "relationshipType": "CONTAINS",
                    "relatedSpdxElement": _spdx_id(package),
                }
                for package in packages
            ),
        ],
        "hasExtractedLicensingInfos": [
            {"licenseId": reference, "name": name, "extractedText": _explained(reference, name)}
            for reference, name in sorted(own.items())
        ],
    }
    return _json(document)


def cyclonedx(material: Material) -> bytes:
    """Write the CycloneDX document: the image, and a component for each deb, wheel and source."""
    packages = tuple(_packages(material))
    root = image_purl(material.name, material.digest, material.tag)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{_uuid(material)}",
        "version": 1,
        "metadata": {
            "timestamp": _time(material),
            "tools": {
                "components": [{"type": "application", "name": "imagebuilder", "version": __version__}]
            },
            "component": {
                "type": "container",
                "bom-ref": root,
                "name": material.name,
                "version": material.tag,
                "hashes": [{"alg": "SHA-256", "content": material.digest.removeprefix("sha256:")}],
                "purl": root,
            },
        },
        "components": [_cyclonedx_component(package) for package in packages],
        "dependencies": [{"ref": root, "dependsOn": [package.purl for package in packages]}],
    }
    return _json(document)


def purl(file: Deb | Wheel | Source, base: str) -> str:
    """Return the purl of a file in a lock."""
    match file:
        case Deb():
            return deb_purl(file, base)
        case Wheel():
            return wheel_purl(file)
        case Source():
            return source_purl(file, base)


def deb_purl(deb: Deb | Installed, base: str) -> str:
    """Return the purl of a Debian package: `pkg:deb/debian/zlib1g@1:1.3?arch=amd64&distro=trixie`."""
    distribution, _, suite = base.partition(":")
    qualifiers = {"arch": deb.architecture, "distro": suite}
    return PackageURL("deb", distribution, deb.name, deb.version, qualifiers).to_string()


def wheel_purl(wheel: Wheel) -> str:
    """Return the purl of a wheel: `pkg:pypi/torch@2.10.0`."""
    return PackageURL("pypi", None, wheel.name, wheel.version).to_string()


def source_purl(source: Source, base: str) -> str:
    """Return the purl of a compiled component's source: a Debian source package, or a Python distribution."""
    if not source.path:
        qualifiers = {"file_name": source.file}
        return PackageURL("pypi", None, source.name, source.version, qualifiers).to_string()
    qualifiers = {"arch": "source", "distro": source.suite}
    return PackageURL("deb", base.partition(":")[0], source.name, source.version, qualifiers).to_string()


def image_purl(name: str, digest: str, tag: str = "") -> str:
    """Return the purl of an image, by the last part of its path: `pkg:oci/cuda@sha256:0123...?tag=12.8`."""
    return PackageURL("oci", None, name, digest, {"tag": tag}).to_string()


def own_parts(plan: Plan, layers: Sequence[tuple[str, int]], version: str) -> tuple[OwnPart, ...]:
    """List the user's own package and copied folders in an image.

    Args:
        plan: of the image.
        layers: digest and size of each layer.
        version: of the user's package; "" if unknown.

    """
    revision = dict(plan.config.labels).get(label_names.REVISION, "")
    parts = []
    for layer, (digest, size) in zip(plan.layers, layers, strict=False):
        if isinstance(layer, PackageLayer):
            purl = PackageURL("generic", None, layer.name).to_string()
            part = OwnPart(
                kind="package", name=layer.name, version=version, purl=purl, layer=digest, size=size
            )
        elif isinstance(layer, ProjectLayer):
            purl = PackageURL("generic", plan.name, layer.target.strip("/")).to_string()
            part = OwnPart(
                kind="files", name=layer.target, version=revision, purl=purl, layer=digest, size=size
            )
        else:
            continue
        parts.append(part)
    return tuple(parts)


def contents(document: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Read purl and hex sha256 of every package from a document of either format.

    Purls of the user's own files have no version here: it is in no lock.

    Raises:
        ValueError: it has neither format, or a package has no purl.

    """
    try:
        if document.get("bomFormat") == "CycloneDX":
            return frozenset(
                (
                    _comparable(str(part["purl"])),
                    "" if _is_below(part) else _only(part["hashes"], "alg", "SHA-256", "content"),
                )
                for part in document["components"]
            )
        return frozenset(
            (
                _comparable(_only(part["externalRefs"], "referenceType", "purl", "referenceLocator")),
                ""
                if part.get("comment") == _BELOW
                else _only(part["checksums"], "algorithm", "SHA256", "checksumValue"),
            )
            for part in document["packages"]
            if part.get("primaryPackagePurpose") != "CONTAINER"
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is not a bill of materials by imagebuilder: {error}") from None


def subject(document: Mapping[str, Any]) -> str:
    """Read the digest of the image that a document of either format describes; "" if it has none."""
    try:
        if document.get("bomFormat") == "CycloneDX":
            return "sha256:" + _only(document["metadata"]["component"]["hashes"], "alg", "SHA-256", "content")
        root = next(part for part in document["packages"] if part["SPDXID"] == "SPDXRef-image")
        return "sha256:" + _only(root["checksums"], "algorithm", "SHA256", "checksumValue")
    except (KeyError, TypeError, AttributeError, StopIteration):
        return ""


def is_own(purl: str) -> bool:
    """Return whether a purl names the user's own package or files."""
    return purl.startswith(_OWN)


def _comparable(purl: str) -> str:
    return purl.partition("@")[0] if is_own(purl) else purl


def expected(lock: Lock, own: Sequence[OwnPart] = ()) -> frozenset[tuple[str, str]]:
    """Return what the bill of materials of an image must contain, in the form of `contents`."""
    debs = ((deb_purl(deb, lock.base), getattr(deb, "sha256", "")) for deb in lock.installed)
    wheels = ((wheel_purl(wheel), wheel.sha256) for wheel in lock.wheels)
    sources = ((source_purl(source, lock.base), source.sha256) for source in lock.sources)
    files = ((part.purl, part.layer.removeprefix("sha256:")) for part in own)
    return frozenset((*debs, *wheels, *sources, *files))


def _packages(material: Material) -> Iterator[_Package]:
    lock = material.lock
    for deb in lock.installed:
        added = deb if isinstance(deb, Deb) else None
        yield _Package(
            kind="deb",
            name=deb.name,
            version=deb.version,
            # The file of a package in the base is not known.
            file=added.path.rpartition("/")[2] if added else "",
            sha256=added.sha256 if added else "",
            size=added.size if added else 0,
            purl=deb_purl(deb, lock.base),
            component=lock.base.partition(":")[0] if added else "base",
            licence=material.debs.get(deb.name, UNKNOWN),
        )
    for wheel in lock.wheels:
        yield _Package(
            kind="wheel",
            name=wheel.name,
            version=wheel.version,
            file=wheel.file,
            sha256=wheel.sha256,
            size=wheel.size,
            purl=wheel_purl(wheel),
            component=wheel.component,
            licence=material.wheels.get(wheel.name, UNKNOWN),
        )
    for source in lock.sources:
        yield _Package(
            kind="source",
            name=source.name,
            version=source.version,
            file=source.file,
            sha256=source.sha256,
            size=source.size,
            purl=source_purl(source, lock.base),
            component=source.name,
            licence=UNKNOWN,
        )
    for part in material.own:
        yield _Package(
            kind=part.kind,
            name=part.name,
            version=part.version,
            file="",
            sha256=part.layer.removeprefix("sha256:"),
            size=part.size,
            purl=f"{part.purl}@{quote(part.version, safe='')}" if part.version else part.purl,
            component=_OWN_COMPONENT,
            licence=UNKNOWN,
        )


def _spdx_package(package: _Package) -> dict[str, Any]:
    return {
        "SPDXID": _spdx_id(package),
        "name": package.name,
        **({"versionInfo": package.version} if package.version else {}),
        "primaryPackagePurpose": _PURPOSES[package.kind],
        **_spdx_file(package),
        "externalRefs": [_purl_reference(package.purl)],
        # SPDX has no field for a size.
        "comment": (f"{package.size} bytes; " if package.sha256 else "")
        + f"component {package.component}"
        + ("; the checksum is that of the layer with its files" if is_own(package.purl) else ""),
        **_unsaid(package.licence),
    }


def _spdx_file(package: _Package) -> dict[str, Any]:
    if not package.sha256:
        return {}
    return {
        **({"packageFileName": package.file} if package.file else {}),
        "checksums": [{"algorithm": "SHA256", "checksumValue": package.sha256}],
    }


def _unsaid(licence: Licence) -> dict[str, Any]:
    """Return the fields that SPDX requires and that have no value here, as a lock has no URLs."""
    return {
        "downloadLocation": _NONE,
        "filesAnalyzed": False,
        "supplier": _NONE,
        "copyrightText": _NONE,
        "licenseConcluded": _NONE,
        "licenseDeclared": licence.expression or _NONE,
    }


def _cyclonedx_component(package: _Package) -> dict[str, Any]:
    licence = package.licence
    return {
        "type": _TYPES.get(package.kind, "library"),
        "bom-ref": package.purl,
        "name": package.name,
        **({"version": package.version} if package.version else {}),
        **({"hashes": [{"alg": "SHA-256", "content": package.sha256}]} if package.sha256 else {}),
        "purl": package.purl,
        **({"licenses": [{"expression": licence.expression}]} if licence.expression else {}),
        "properties": [
            {"name": "imagebuilder:component", "value": package.component},
            *([{"name": "imagebuilder:file", "value": package.file}] if package.file else []),
            *(
                [{"name": "imagebuilder:layer", "value": f"sha256:{package.sha256}"}]
                if is_own(package.purl)
                else []
            ),
            *([{"name": "imagebuilder:size", "value": str(package.size)}] if package.sha256 else []),
        ],
    }


def _spdx_id(package: _Package) -> str:
    # Only letters, digits, `.` and `-`; the hash distinguishes names that become equal (`g++` and `g--`).
    unique = package.sha256 or hashlib.sha256(package.purl.encode()).hexdigest()
    return f"SPDXRef-{package.kind}-{re.sub(r'[^A-Za-z0-9.-]', '-', package.name)}-{unique[:12]}"


def _purl_reference(purl: str) -> dict[str, str]:
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}


def _explained(reference: str, name: str) -> str:
    if reference.startswith("LicenseRef-debian-"):
        return (
            f"The licence that Debian's copyright files call `{name}`. "
            "Its text is in the image, in /usr/share/doc/*/copyright of the packages that declare it."
        )
    return f"The licence that the wheels' metadata call `{name}`. Its text, if there is one, is in the image."


def _uuid(material: Material) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"oci:{material.digest}:{material.created}")


def _time(material: Material) -> str:
    return times.of_seconds(material.created)


def _is_below(part: Any) -> bool:
    """Return True for a package of the base, whose file is unknown."""
    return "hashes" not in part and {"name": "imagebuilder:component", "value": "base"} in part["properties"]


def _only(rows: Any, key: str, value: str, wanted: str) -> str:
    found = [str(row[wanted]) for row in rows if row[key] == value]
    if len(found) != 1:
        raise KeyError(wanted)
    return found[0]


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
