"""Suites: their facts, the mirrors that mmdebstrap names, and apt's sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.debian import suites
from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.host import aptmirrors

ONE_LINE = """\
I: running --setup-hook in shell: sh -c 'cat'
deb http://mirror.example/debian/ trixie main
deb [signed-by=/a/b.gpg] http://mirror.example/debian trixie-updates main
deb http://secure.example/debian-security trixie-security main
I: success
"""
DEB822 = """\
Types: deb
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main

Types: deb
URIs: http://secure.example/debian-security/
Suites: trixie-security
Components: main
"""
MIRRORS = suites.Mirrors(
    main="http://mirror.example/debian", security="http://secure.example/debian-security"
)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """The answers of mmdebstrap are kept for a process; a test wants its own."""
    aptmirrors.default.cache_clear()
    yield
    aptmirrors.default.cache_clear()


def fake_mmdebstrap(folder: Path, says: str) -> None:
    program = folder / "mmdebstrap"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}END\n")
    program.chmod(0o755)


@pytest.mark.parametrize("says", [ONE_LINE, DEB822])
def test_the_default_mirrors_are_those_that_mmdebstrap_writes(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    fake_mmdebstrap(tmp_path, says)
    assert aptmirrors.default("debian", "trixie") == MIRRORS


def test_a_suite_without_security_updates_has_one_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    fake_mmdebstrap(tmp_path, "deb http://mirror.example/debian sid main\n")
    assert aptmirrors.default("debian", "sid").security == "http://mirror.example/debian"


def test_mmdebstrap_that_names_nothing_is_the_host_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    fake_mmdebstrap(tmp_path, "I: success\n")
    with pytest.raises(EnvironmentFault, match="apt_mirror"):
        aptmirrors.default("debian", "trixie")


def test_without_mmdebstrap_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="apt-get install mmdebstrap"):
        aptmirrors.default("debian", "trixie")


def test_a_release_has_updates_and_security_and_unstable_has_neither() -> None:
    release = suites.sources("debian", "trixie", MIRRORS)
    assert release == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie trixie-updates\n"
        "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        "\n"
        "Types: deb\nURIs: http://secure.example/debian-security\nSuites: trixie-security\n"
        "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    unstable = suites.sources("debian", "sid", MIRRORS)
    assert "Suites: sid\n" in unstable
    assert "secure.example" not in unstable


def test_ubuntu_is_only_other_data() -> None:
    text = suites.sources("ubuntu", "noble", MIRRORS)
    assert "Suites: noble noble-updates\nComponents: main universe\n" in text
    assert "Suites: noble-security\n" in text
    assert text.count("Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg") == 2


@pytest.mark.parametrize(
    ("base", "hint"), [(("debain", "trixie"), "`debian`"), (("debian", "bookwurm"), "`bookworm`")]
)
def test_a_mistyped_base_gets_the_nearest_name(base: tuple[str, str], hint: str) -> None:
    with pytest.raises(InputError, match=f"perhaps you meant {hint}"):
        suites.facts(*base)


def test_missing_keys_name_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", lambda _path: False)
    with pytest.raises(EnvironmentFault, match="apt-get install debian-archive-keyring"):
        suites.keyring("debian", "trixie")
