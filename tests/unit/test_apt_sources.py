"""Apt's sources in both notations, and files of paragraphs."""

from __future__ import annotations

import pytest

from imagebuilder.debian import sources
from imagebuilder.debian.sources import AptSource

ARCHIVE = AptSource(
    uri="https://archive.example/debian",
    suites=("trixie",),
    components=("main", "contrib"),
    signed_by="/etc/apt/keyrings/a.gpg",
    trusted=True,
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.list",
            (
                "# a remark\ndeb-src https://source.example trixie main\n"
                "deb [arch=amd64 signed-by=/etc/apt/keyrings/a.gpg trusted=yes] https://archive.example/debian/"
                " trixie main contrib # mine\n"
            ),
        ),
        (
            "a.sources",
            (
                "TYPES: deb-src deb\nuris: https://archive.example/debian/\nSuites: trixie\n"
                "# a remark\nComponents:\n main\n contrib\nSigned-By: /etc/apt/keyrings/a.gpg\nTrusted: yes\n"
                "\nTypes: deb\nEnabled: no\nURIs: https://off.example\nSuites: trixie\n"
            ),
        ),
    ],
)
def test_both_notations_say_the_same(name: str, text: str) -> None:
    assert list(sources.of_file(name, text)) == [ARCHIVE]
    assert list(sources.of_file("a.save", text)) == []


def test_a_paragraph_of_several_archives_and_keys_in_it() -> None:
    text = "Types: deb\nURIs: https://one.example https://two.example\nSuites: ./\n"
    text += "Signed-By:\n -----BEGIN\n .\n x"
    found = list(sources.deb822(text))
    assert [item.uri for item in found] == ["https://one.example", "https://two.example"]
    assert {item.signed_by for item in found} == {"-----BEGIN\n\nx"}
