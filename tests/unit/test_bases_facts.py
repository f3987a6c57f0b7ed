"""What the system in a base is, read from its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.bases import archives, tree
from imagebuilder.bases import system as facts
from imagebuilder.bases.system import System
from imagebuilder.errors import InputError
from imagebuilder.host.site import ArchiveSite, Site
from tests.support import standin_base

RELEASE = b'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nID=ubuntu\nVERSION_CODENAME=jammy\n'
STATUS = b"""Package: dpkg
Status: install ok installed
Architecture: amd64
Version: 1.21.1ubuntu2.3

Package: libnccl2
Status: hold ok installed
Architecture: amd64
Version: 2.25.1-1+cuda12.8
Description: one line
 and more
 .
 of it

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""
BASE: dict[str, bytes | str | None] = {
    "etc/os-release": "../usr/lib/os-release",
    "usr/lib/os-release": RELEASE,
    "var/lib/dpkg/status": STATUS,
}


def system(folder: Path, files: dict[str, bytes | str | None]) -> System:
    layer = standin_base.layer(standin_base.tar_of({**BASE, **files}))
    (folder / "layer").write_bytes(layer.blob)
    return facts.of_tree(tree.read([(folder / "layer", layer.diff_id)], facts.wanted, "x:1"), "x:1")


def test_distribution_packages_and_people(tmp_path: Path) -> None:
    passwd = (
        b"root:x:0:0::/root:/bin/sh\nubuntu:x:1000:1000::/home/ubuntu:/bin/sh\nnobody:x:65534:65534::/:\n"
    )
    found = system(tmp_path, {"etc/passwd": passwd})
    assert (found.distribution, found.suite, found.architecture) == ("ubuntu", "jammy", "amd64")
    assert [(package.name, package.version) for package in found.packages] == [
        ("dpkg", "1.21.1ubuntu2.3"),
        ("libnccl2", "2.25.1-1+cuda12.8"),
    ]
    assert found.accounts == {"ubuntu": 1000}
    assert found.archives == ()


def test_other_archives_are_told_from_the_distribution_s_own_mirrors(tmp_path: Path) -> None:
    found = system(
        tmp_path,
        {
            "etc/apt/sources.list": b"deb http://mirror.example/ubuntu/ jammy main universe # ours\n"
            b"# deb http://mirror.example/ubuntu jammy-backports main\n"
            b"deb http://security.example/ubuntu jammy-security main\n",
            "etc/apt/sources.list.d/cuda-ubuntu2204-x86_64.list": b"deb [arch=amd64 "
            b"signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] "
            b"https://archive.example/repos/ubuntu2204/x86_64/ /\n",
            "usr/share/keyrings/cuda-archive-keyring.gpg": b"\x99key",
            "etc/apt/sources.list.d/team.sources": b"Types: deb deb-src\nURIs: https://team.example/apt\n"
            b"Suites: jammy\nComponents: main extra\n"
            b"Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n\n"
            b"Types: deb\nEnabled: no\nURIs: https://off.example\nSuites: /\n",
            "etc/apt/sources.list.d/ubuntu.sources": b"Types: deb\nURIs: http://mirror.example/ubuntu\n"
            b"Suites: jammy jammy-updates\nComponents: main\n",
        },
    )
    nvidia, team = found.archives
    assert (nvidia.name, nvidia.uri, nvidia.suite) == (
        "nvidia-cuda",
        "https://archive.example/repos/ubuntu2204/x86_64",
        "/",
    )
    assert nvidia.keys == b"\x99key"
    assert (team.name, team.suite, team.components) == ("team", "jammy", ("main", "extra"))
    assert team.keys == b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nabc"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"usr/lib/os-release": b"ID=fedora\nPRETTY_NAME='Fedora Linux 42'\n"}, "it holds Fedora Linux 42"),
        ({"usr/lib/os-release": b""}, "does not say which system"),
        (
            {"usr/lib/os-release": b"ID=ubuntu\nVERSION_CODENAME=focal\n"},
            "holds ubuntu focal, which is not known",
        ),
        ({"var/lib/dpkg/status": b""}, "has no dpkg"),
    ],
)
def test_what_cannot_be_a_base(files: dict[str, bytes | str | None], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        system(tmp_path, files)
    assert caught.value.problems[0].where == "base: image"
    assert caught.value.problems[0].hint


def test_the_site_moves_an_archive_switches_it_off_or_brings_one(tmp_path: Path) -> None:
    files: dict[str, bytes | str | None] = {
        "etc/apt/sources.list.d/cuda.list": b"deb [trusted=yes] https://archive.example /\n",
        "etc/apt/sources.list.d/team.list": b"deb https://team.example stable main\n",
    }
    found = system(tmp_path, files).archives
    key = tmp_path / "key.gpg"
    key.write_bytes(b"other key")
    places = (
        ("brought", ArchiveSite(url="https://brought.example", key=key)),
        ("nvidia-cuda", ArchiveSite(url="http://mirror.example/cuda")),
        ("team", ArchiveSite(url="")),
    )
    moved = archives.effective(found, Site(archives=places), {"nvidia-cuda", "brought"})
    assert [(item.name, item.uri, item.suite, item.keys) for item in moved] == [
        ("nvidia-cuda", "http://mirror.example/cuda", "/", b""),
        ("brought", "https://brought.example", "./", b"other key"),
    ]
    assert archives.effective(found, Site()) == found
