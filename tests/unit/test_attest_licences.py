from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from imagebuilder.core import tarstream
from imagebuilder.publish.attest import licences
from imagebuilder.publish.attest.licences import UNKNOWN, of_copyright, of_metadata
from imagebuilder.store import Store
from tests.support.proven import put_proven

TWO_CLASSIFIERS = """\
Classifier: License :: OSI Approved :: MIT License
Classifier: License :: OSI Approved :: Apache Software License"""
FORMAT = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"


@pytest.mark.parametrize(
    ("synopsis", "expression"),
    [
        ("Expat", "MIT"),
        ("GPL-2+", "GPL-2.0-or-later"),
        ("GPL-3", "GPL-3.0-only"),
        ("LGPL-2.1+", "LGPL-2.1-or-later"),
        ("BSD-3-clause", "BSD-3-Clause"),
        ("Zlib", "Zlib"),
        ("GPL-1+ or Artistic", "GPL-1.0-or-later OR Artistic-1.0-Perl"),
        ("GPL-1+ or Artistic, and Expat", "(GPL-1.0-or-later OR Artistic-1.0-Perl) AND MIT"),
        ("GPL", "LicenseRef-debian-GPL"),
        ("GPL-2+ with OpenSSL exception", "LicenseRef-debian-GPL-2-with-OpenSSL-exception"),
        ("BSD_like (Spencer)", "LicenseRef-debian-BSD-like-Spencer"),
        ("or", "LicenseRef-debian-or"),
        ("MIT, or", "MIT OR LicenseRef-debian-unnamed"),
        ("(((", "LicenseRef-debian-unnamed"),
    ],
)
def test_debian_names_become_expressions(synopsis: str, expression: str) -> None:
    found = of_copyright(f"{FORMAT}Files: *\nLicense: {synopsis}\n")
    # The reference of a name that SPDX does not know comes with that name.
    assert found.expression == expression
    assert ("LicenseRef" in expression) == bool(found.own)


def test_the_licences_of_all_files_hold() -> None:
    names = ("Expat", "GPL-2+ or Expat", "Expat")
    text = FORMAT + "\n\n".join(f"Files: {number}\nLicense: {name}" for number, name in enumerate(names))
    assert of_copyright(text).expression == "(GPL-2.0-or-later OR MIT) AND MIT"


@pytest.mark.parametrize(
    "text",
    [
        "This is free software, see /usr/share/common-licenses.",
        FORMAT,
        f"{FORMAT}License: Expat\n Text alone is no claim about files.\n",
        FORMAT + "\n\n".join(f"Files: {n}\nLicense: x{n}" for n in range(300)),
    ],
)
def test_what_is_not_clear_is_not_guessed(text: str) -> None:
    assert of_copyright(text) == UNKNOWN


@pytest.mark.parametrize(
    ("metadata", "expression"),
    [
        ("License-Expression: bsd-3-clause and mit", "BSD-3-Clause AND MIT"),
        ("License-Expression: no such licence", ""),
        ("License-Expression: LicenseRef-NVIDIA AND MIT", "LicenseRef-NVIDIA AND MIT"),
        ("License: LicenseRef-NVIDIA-Proprietary", "LicenseRef-NVIDIA-Proprietary"),
        ("License: Apache-2.0", "Apache-2.0"),
        ("License: BSD\nClassifier: License :: OSI Approved :: MIT License", "MIT"),
        ("Classifier: License :: OSI Approved :: MIT License", "MIT"),
        ("Classifier: License :: OSI Approved :: BSD License", ""),
        (TWO_CLASSIFIERS, ""),
        ("License: NVIDIA Proprietary Software", "LicenseRef-wheel-NVIDIA-Proprietary-Software"),
        ("License: UNKNOWN", ""),
        ("License: " + "word " * 100, ""),
        ("Name: nothing", ""),
    ],
)
def test_metadata_of_wheels(metadata: str, expression: str) -> None:
    assert of_metadata(f"Metadata-Version: 2.4\n{metadata}\n\nA description.\n").expression == expression


def test_debs_are_read_from_the_image_through_links(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    image, source = put_proven(store)
    _, plan = source.read()
    found = licences.of_debs(image, store, plan.system_layers)
    assert found.keys() == {"zlib1g", "zlib1g-dev"}
    assert found["zlib1g"] == found["zlib1g-dev"]
    assert found["zlib1g"].expression == (
        "((GPL-2.0-or-later OR Artistic-1.0-Perl) AND LicenseRef-debian-BSD-like) AND Zlib"
    )
    assert found["zlib1g"].own == (("LicenseRef-debian-BSD-like", "BSD-like"),)


def test_a_layer_s_copyright_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    image, source = put_proven(store)
    _, plan = source.read()
    found = licences.of_debs(image, store, plan.system_layers)
    for path in (store.root / "licences").iterdir():
        assert path.stem in {layer.record.digest.removeprefix("sha256:") for layer in image.layers}
    with monkeypatch.context() as patch:
        patch.setattr(tarstream, "open_layer", None)
        assert licences.of_debs(image, store, plan.system_layers) == found
    # What is damaged, or was read in another way, is read again.
    first, second, *_ = sorted((store.root / "licences").iterdir())
    first.write_text("{")
    second.write_text(second.read_text().replace('"reading":1', '"reading":0'))
    assert licences.of_debs(image, store, plan.system_layers) == found
    assert '"reading":1' in second.read_text()


def test_wheels_are_read_from_downloads_or_from_layers(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    image, source = put_proven(store)
    lock, _ = source.read()
    assert {one.expression for one in licences.of_wheels(image, lock, store).values()} == {"BSD-3-Clause"}
    numpy = next(wheel for wheel in lock.wheels if wheel.name == "numpy")
    place = store.download(numpy.sha256)
    place.parent.mkdir(parents=True)
    with zipfile.ZipFile(place, "w") as wheel:
        wheel.writestr(f"numpy-{numpy.version}.dist-info/METADATA", "Metadata-Version: 2.4\nLicense: MIT\n\n")
    with place.open("ab") as file:
        file.truncate(numpy.size)
    # A download that is not a whole zip file counts as none.
    assert licences.of_wheels(image, lock, store)["numpy"].expression == "BSD-3-Clause"
    with zipfile.ZipFile(place, "w") as wheel:
        wheel.writestr(f"numpy-{numpy.version}.dist-info/METADATA", "Metadata-Version: 2.4\nLicense: MIT\n\n")
    resized = lock.model_copy(update={"wheels": (numpy.model_copy(update={"size": place.stat().st_size}),)})
    assert licences.of_wheels(image, resized, store)["numpy"].expression == "MIT"
