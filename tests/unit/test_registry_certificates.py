"""Certificates for one registry: found where Docker and Podman keep them, and joined with the site's."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.errors import InputError
from imagebuilder.registry import certificates
from imagebuilder.registry.certificates import Trust

HOST = "registry.example.org:5000"


def folder(root: Path, *names: str) -> Path:
    made = root / HOST
    made.mkdir(parents=True)
    for name in names:
        (made / name).write_text(name)
    return made


def test_nothing_is_there(tmp_path: Path) -> None:
    folder(tmp_path / "a")
    assert certificates.find(HOST, (tmp_path / "a", tmp_path / "b")) == Trust()
    assert certificates.find("other.example.org", (tmp_path / "a",)) == Trust()


def test_the_layout_of_docker(tmp_path: Path) -> None:
    place = folder(tmp_path, "ca.crt", "more.crt", "client.cert", "client.key", "readme")
    assert certificates.find(HOST, (tmp_path,)) == Trust(
        authorities=(place / "ca.crt", place / "more.crt"),
        client=(place / "client.cert", place / "client.key"),
    )


def test_the_first_place_with_anything_counts(tmp_path: Path) -> None:
    folder(tmp_path / "empty")
    first = folder(tmp_path / "first", "a.crt")
    folder(tmp_path / "second", "b.crt")
    places = tuple(tmp_path / name for name in ("empty", "first", "second"))
    assert certificates.find(HOST, places).authorities == (first / "a.crt",)


def test_a_certificate_without_its_key(tmp_path: Path) -> None:
    folder(tmp_path, "client.cert")
    with pytest.raises(InputError, match="key of this client certificate is missing"):
        certificates.find(HOST, (tmp_path,))


def test_the_sites_authorities_count_besides(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("own")
    (tmp_path / "site").write_text("site")
    joined = certificates.bundle(Trust(authorities=(tmp_path / "own",)), str(tmp_path / "site"))
    assert joined.read_text() == "own\nsite\n"
    joined.unlink()


def test_an_authority_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        certificates.bundle(Trust(authorities=(tmp_path,)), "")


def test_the_users_places_come_before_the_hosts(tmp_path: Path) -> None:
    places = certificates.folders(tmp_path)
    assert places[0] == tmp_path / ".docker" / "certs.d"
    assert places[-2:] == (Path("/etc/docker/certs.d"), Path("/etc/containers/certs.d"))
