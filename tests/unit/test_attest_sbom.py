"""Bills of materials: complete, the same again, and what the formats' own checkers take."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.lock.model import Lock, ProjectBuild
from imagebuilder.plan import Project
from imagebuilder.publish.attest import sbom
from imagebuilder.publish.attest.licences import Licence
from imagebuilder.publish.attest.sbom import Material
from imagebuilder.recipe.requirements import Package
from tests.unit import samples

LOCK = samples.lock(
    wheels=(samples.wheel("numpy"), samples.wheel("torch", "2.10.0+cu128", component="torch")),
    debs=(samples.deb("g++", "4:14.2.0-1"), samples.deb("zlib1g", "1:1.3.dfsg+really1.3.1-1+b1")),
)
ODD = Licence(expression="LicenseRef-debian-odd AND MIT", own=(("LicenseRef-debian-odd", "odd <&>"),))
MATERIAL = Material(
    name="sample",
    digest=f"sha256:{'a' * 64}",
    tag="torch2-py3.13",
    lock=LOCK,
    debs={"zlib1g": Licence(expression="Zlib"), "g++": ODD},
    wheels={"numpy": Licence(expression="BSD-3-Clause AND MIT")},
)


def spdx(material: Material = MATERIAL) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.spdx(material))
    return found


def cyclonedx(material: Material = MATERIAL) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.cyclonedx(material))
    return found


def test_cyclonedx_is_valid() -> None:
    require_valid_cyclonedx(MATERIAL)


def require_valid_cyclonedx(material: Material) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(sbom.cyclonedx(material).decode()) is None
    assert validator.validate_str(sbom.cyclonedx(material).decode().replace("SHA-256", "SHA-257"))


def test_spdx_is_valid(tmp_path: Path) -> None:
    require_valid_spdx(tmp_path, MATERIAL)


def require_valid_spdx(tmp_path: Path, material: Material) -> None:
    with warnings.catch_warnings():
        # Its parser generator is as old as it says.
        warnings.simplefilter("ignore")
        from spdx_tools.spdx.parser.parse_anything import parse_file
        from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

        path = tmp_path / "sbom.spdx.json"
        path.write_bytes(sbom.spdx(material))
        document = parse_file(str(path))
        assert validate_full_spdx_document(document) == []
        document.packages[1].spdx_id = "not an id"
        assert validate_full_spdx_document(document)


def test_every_package_is_in_both() -> None:
    wanted = {(deb.name, deb.version, deb.sha256) for deb in LOCK.debs}
    wanted |= {(wheel.name, wheel.version, wheel.sha256) for wheel in LOCK.wheels}
    rows = [part for part in spdx()["packages"] if part["primaryPackagePurpose"] != "CONTAINER"]
    assert {(r["name"], r["versionInfo"], r["checksums"][0]["checksumValue"]) for r in rows} == wanted
    parts = cyclonedx()["components"]
    assert {(p["name"], p["version"], p["hashes"][0]["content"]) for p in parts} == wanted
    assert sbom.contents(spdx()) == sbom.contents(cyclonedx()) == sbom.expected(LOCK)
    assert sbom.subject(spdx()) == sbom.subject(cyclonedx()) == MATERIAL.digest


def test_sizes_files_and_components_are_told() -> None:
    torch = next(part for part in cyclonedx()["components"] if part["name"] == "torch")
    assert {row["name"]: row["value"] for row in torch["properties"]} == {
        "imagebuilder:component": "torch",
        "imagebuilder:file": "torch-2.10.0+cu128-py3-none-any.whl",
        "imagebuilder:size": "1000",
    }
    row = next(part for part in spdx()["packages"] if part["name"] == "torch")
    assert (row["packageFileName"], row["comment"]) == (
        "torch-2.10.0+cu128-py3-none-any.whl",
        "1000 bytes; component torch",
    )


def test_the_user_s_own_files_are_listed_as_what_they_are(tmp_path: Path) -> None:
    digests = [f"sha256:{letter * 64}" for letter in "cde"]
    recipe = samples.recipe(project="..", copy=({"from": "src", "to": "/home/t/work"},))
    package = Package(name="trainer", requires=())
    selection = dataclasses.replace(select(recipe), package=package)
    lock = samples.lock(project=ProjectBuild(name="trainer", requires=(), wheels=()))
    project = Project(checksums=("1" * 64,), package="2" * 64, revision="3f9c-dirty")
    plan = plans.plan(selection, lock, (), project)
    layers = [(digests[0], 1)] * (len(plan.layers) - 2) + [(digests[1], 20), (digests[2], 30)]
    own = sbom.own_parts(plan, layers, "1.0+x")
    material = dataclasses.replace(MATERIAL, own=own)
    rows = {part["name"]: part for part in spdx(material)["packages"]}
    parts = {part["name"]: part for part in cyclonedx(material)["components"]}
    files = "pkg:generic/sample/home/t/work@3f9c-dirty"
    for name, purl, version, digest, kinds in (
        ("trainer", "pkg:generic/trainer@1.0%2Bx", "1.0+x", digests[1], ("APPLICATION", "application")),
        ("/home/t/work", files, "3f9c-dirty", digests[2], ("SOURCE", "file")),
    ):
        row, part = rows[name], parts[name]
        assert row["externalRefs"][0]["referenceLocator"] == part["purl"] == purl
        assert PackageURL.from_string(purl).to_string() == purl
        assert row["versionInfo"] == part["version"] == version
        assert (row["primaryPackagePurpose"], part["type"]) == kinds
        assert f"sha256:{row['checksums'][0]['checksumValue']}" == digest
        assert row["comment"].endswith("component project; the checksum is that of the layer with its files")
        assert {"name": "imagebuilder:layer", "value": digest} in part["properties"]
    assert sbom.contents(spdx(material)) == sbom.contents(cyclonedx(material)) == sbom.expected(LOCK, own)
    assert sbom.expected(LOCK, own) != sbom.expected(LOCK)
    # Whoever verifies does not know the package's version.
    assert sbom.expected(LOCK, sbom.own_parts(plan, layers, "")) == sbom.expected(LOCK, own)
    require_valid_cyclonedx(material)
    require_valid_spdx(tmp_path, material)


@pytest.mark.parametrize("purl", sorted(purl for purl, _ in sbom.expected(LOCK)))
def test_purls_are_canonical(purl: str) -> None:
    assert PackageURL.from_string(purl).to_string() == purl


def test_purls_carry_epochs_and_local_versions() -> None:
    purls = {purl for purl, _ in sbom.expected(LOCK)}
    assert "pkg:pypi/torch@2.10.0%2Bcu128" in purls
    assert "pkg:deb/debian/g%2B%2B@4:14.2.0-1?arch=amd64&distro=trixie" in purls


def test_licences_where_they_are_known() -> None:
    declared = {part["name"]: part["licenseDeclared"] for part in spdx()["packages"]}
    assert declared["zlib1g"] == "Zlib"
    assert declared["torch"] == "NOASSERTION"
    assert {row["licenseId"] for row in spdx()["hasExtractedLicensingInfos"]} == {"LicenseRef-debian-odd"}
    stated = {part["name"]: part.get("licenses") for part in cyclonedx()["components"]}
    assert stated["numpy"] == [{"expression": "BSD-3-Clause AND MIT"}]
    assert stated["torch"] is None


def test_the_same_again_and_another_for_another_image() -> None:
    again = Material(**vars(MATERIAL))
    assert (sbom.spdx(again), sbom.cyclonedx(again)) == (sbom.spdx(MATERIAL), sbom.cyclonedx(MATERIAL))
    other = Material(**{**vars(MATERIAL), "digest": f"sha256:{'b' * 64}"})
    assert spdx(other)["documentNamespace"] != spdx()["documentNamespace"]
    assert cyclonedx(other)["serialNumber"] != cyclonedx()["serialNumber"]
    assert spdx()["creationInfo"]["created"] == cyclonedx()["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    later = Material(**{**vars(MATERIAL), "created": 1_700_000_000})
    assert spdx(later)["creationInfo"]["created"] == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize("document", [{}, {"packages": 1}, {"packages": [{}]}, {"bomFormat": "CycloneDX"}])
def test_documents_of_others_are_told_apart(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bill of materials"):
        sbom.contents(document)
    assert sbom.subject(document) == ""


def test_an_empty_lock() -> None:
    empty: Lock = samples.lock(wheels=(), debs=())
    material = Material(**{**vars(MATERIAL), "lock": empty})
    assert sbom.contents(spdx(material)) == sbom.contents(cyclonedx(material)) == frozenset()
