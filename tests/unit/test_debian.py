"""Debian packages: what is asked of apt, what is read from its answer, and where packages are fetched."""

from __future__ import annotations

import dataclasses
import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagebuilder.bases.system import Archive
from imagebuilder.catalog import select
from imagebuilder.debian import suites
from imagebuilder.errors import BuildError, ConflictError, EnvironmentFault, FetchError, InputError
from imagebuilder.host import tools
from imagebuilder.host.site import Site, ToolsSite
from imagebuilder.lock.model import Deb
from imagebuilder.resolve import debian
from imagebuilder.resolve.request import Pinned, Request
from imagebuilder.resolve.request import request as make_request
from tests.unit import samples

MIRROR = "http://mirror.example/debian"
HERE = ToolsSite(where="host")
SITE = Site(apt_mirror=MIRROR, apt_security_mirror=f"{MIRROR}-security/", tools=HERE)
POOL, SECURITY_POOL = f"{MIRROR}/pool/main", f"{MIRROR}-security/pool/updates/main"
PRINTED = f"""\
'{POOL}/p/python3-defaults/python3_3.13.5-1_amd64.deb' python3_3.13.5-1_amd64.deb 28200 SHA256:{"a" * 64}
'{SECURITY_POOL}/g/g%2b%2b/g%2b%2b_14.2-1_amd64.deb' g++_4%3a14.2-1_amd64.deb 1444 SHA256:{"b" * 64}
'{POOL}/o/openmpi/openmpi-bin_5.0.7-1_amd64.deb' openmpi-bin_5.0.7-1_amd64.deb 20000 SHA256:{"c" * 64}
"""
INDEX = """\
Package: python3
Version: 3.13.5-1

Package: openmpi-bin
Version: 5.0.7-1
"""
# Stands in for apt: keeps what it was asked, and answers from files beside it.
FAKE_APT = """\
#!/bin/sh
here=$(dirname "$0")
case $1 in
update)
    cp "$APT_CONFIG" "$here/asked.conf"
    find "$(dirname "$APT_CONFIG")" -printf '%m %u /%P\\n' >"$here/asked.files"
    cat "$(dirname "$APT_CONFIG")"/etc/*.sources >"$here/asked.sources"
    cp "$here/index" "$(dirname "$APT_CONFIG")/lists/mirror_Packages"
    cp "$here"/*Release "$(dirname "$APT_CONFIG")/lists"
    cat "$here/update_says" >&2
    exit "$(cat "$here/update_code")" ;;
install)
    echo "$@" >>"$here/asked.argv"
    cat "$here/install_says"
    exit "$(cat "$here/install_code")" ;;
esac
"""
Apt = Callable[..., Path]


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    """Put a fake apt-get first on the path; called, it sets the answers and returns its folder."""
    keys = tmp_path / "keys.gpg"
    keys.touch()
    monkeypatch.setattr(suites, "keyring", lambda _distribution, _suite, _has: keys)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "apt-get"
    program.write_text(FAKE_APT)
    program.chmod(0o755)

    def answer(**changes: object) -> Path:
        answers = {"update_says": "", "update_code": 0, "install_says": PRINTED, "install_code": 0}
        for name, text in {**answers, "index": INDEX, **changes}.items():
            (tmp_path / name).write_text(str(text))
        return tmp_path

    return answer


def request(**changes: Any) -> Request:
    """What a recipe with the pin of one Debian package asks for."""
    asked = make_request(select(samples.recipe(pins={"openmpi": "5.0.7"})))
    return dataclasses.replace(asked, **{"packages": ("openmpi-bin", "python3"), **changes})


@pytest.mark.parametrize(
    ("base", "architecture", "host"),
    [
        ("debian:trixie", "arm64", "http://mirror.example"),
        ("ubuntu:noble", "amd64", "http://mirror.example"),
        ("ubuntu:noble", "arm64", "http://ports.example"),
    ],
)
def test_where_a_distribution_keeps_an_architecture(base: str, architecture: str, host: str) -> None:
    site = Site(
        apt_mirror="http://mirror.example",
        apt_security_mirror="http://mirror.example",
        apt_ports_mirror="http://ports.example/",
    )
    distribution, _, suite = base.partition(":")
    found = debian.locate_debs([deb("pool/main/o/x_1.deb")], distribution, suite, site, architecture)
    assert all(url.startswith(f"{host}/pool/") for url in found["e" * 64])


def test_the_answer_names_files_and_no_host(apt: Apt) -> None:
    apt()
    debs, _ = debian.resolve_debs(request(), SITE)
    assert [deb.name for deb in debs] == ["g++", "openmpi-bin", "python3"]
    assert debs[0] == Deb(
        name="g++",
        version="4:14.2-1",
        architecture="amd64",
        path="pool/updates/main/g/g++/g++_14.2-1_amd64.deb",
        size=1444,
        sha256="b" * 64,
    )
    assert not any("example" in deb.model_dump_json() for deb in debs)


def test_the_time_of_each_archive_is_that_of_its_release_file(apt: Apt) -> None:
    folder = apt()
    dates = {
        "mirror.example_debian_dists_trixie_InRelease": "Sat, 12 Sep 2026 07:55:41 UTC",
        "mirror.example_debian_dists_trixie-updates_Release": "Sat, 21 Nov 2026 02:10:46 UTC",
        "mirror.example_debian-security_dists_trixie-security_InRelease": "one of these days",
        "other.example_debian_dists_trixie_InRelease": "Sun, 22 Nov 2026 00:00:00 UTC",
    }
    for name, date in dates.items():
        (folder / name).write_text(f"-----BEGIN PGP SIGNED MESSAGE-----\n\nDate: {date}\nDate: never\n")
    _, archives = debian.resolve_debs(request(), SITE)
    assert archives == {"trixie": "2026-09-12T07:55:41Z", "trixie-updates": "2026-11-21T02:10:46Z"}


@pytest.mark.parametrize(
    ("suite", "folder"),
    [("./", "https://a.example/x/./"), ("/", "https://a.example/x/"), ("n", "https://a.example/x/dists/n/")],
)
def test_where_an_archive_of_others_has_its_release_file(suite: str, folder: str) -> None:
    archive = Archive(
        name="a", uri="https://a.example/x", suite=suite, components=(), keys=b"", trusted=False
    )
    assert debian._release(archive) == folder


def test_apt_is_asked_for_essential_packages_apt_itself_and_the_recipe_s(apt: Apt) -> None:
    folder = apt()
    debian.resolve_debs(request(packages=("python3", "tini=0.19.0-3")), SITE)
    asked = (folder / "asked.argv").read_text().split()
    assert {"?essential", "apt", "debian-archive-keyring", "python3", "tini=0.19.0-3"} <= set(asked)


def test_apt_runs_in_a_root_of_its_own_with_the_site_s_options(apt: Apt) -> None:
    folder = apt()
    site = Site(
        apt_mirror=MIRROR,
        apt_security_mirror=f"{MIRROR}-security",
        apt_options=(("Acquire::Retries", "5"),),
        tools=HERE,
    )
    debian.resolve_debs(request(), site)
    settings = (folder / "asked.conf").read_text()
    assert 'APT::Install-Recommends "false";' in settings
    assert 'APT::Architectures { "amd64"; };' in settings
    assert 'Acquire::Retries "5";' in settings
    assert 'Dir "/' in settings
    assert 'Dir "/";' not in settings
    sources = (folder / "asked.sources").read_text()
    assert f"URIs: {MIRROR}\nSuites: trixie trixie-updates\n" in sources
    assert f"URIs: {MIRROR}-security\nSuites: trixie-security\n" in sources


@pytest.mark.parametrize("contained", [False, True], ids=["on this host", "in a container"])
def test_nobody_else_reads_the_site_s_passwords_and_keys(
    contained: bool, apt: Apt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def opened(folder: Path, **_options: object) -> Iterator[tools.Sandbox]:
        yield tools.HostSandbox(folder=folder, contained=contained)

    monkeypatch.setattr(debian, "choose_tools", lambda _site: SimpleNamespace(open=opened))
    (tmp_path / "client.key").write_text("geheim")
    address = "http://me:geheim@proxy.example"
    options = (("Acquire::http::Proxy", address), ("Acquire::https::SslKey", str(tmp_path / "client.key")))
    folder = apt()
    debian.resolve_debs(request(), dataclasses.replace(SITE, apt_options=options))
    assert address in (folder / "asked.conf").read_text()
    rows = [line.split() for line in (folder / "asked.files").read_text().splitlines()]
    modes = {place: mode for mode, _, place in rows}
    assert modes["/"] == "700"
    secret = ["/apt.conf", "/etc/suite.sources", *(["/etc/1-client.key"] if contained else [])]
    assert {modes[place] for place in secret} == {"600"}
    assert "geheim" not in (folder / "asked.argv").read_text()
    if os.geteuid() == 0 and "_apt" in {user.pw_name for user in pwd.getpwall()}:
        # Root's apt fetches as this user, which has to get in.
        assert {owner for _, owner, _ in rows} == {"_apt"}


def test_nothing_remains_of_the_root(apt: Apt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    apt(install_code=100, install_says="")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with pytest.raises(ConflictError):
        debian.resolve_debs(request(), SITE)
    assert list(scratch.iterdir()) == []


def test_an_index_that_cannot_be_had_is_a_fetch_error_without_the_password(apt: Apt) -> None:
    apt(update_code=100, update_says="E: Failed to fetch http://me:secret@mirror.example/x 404 Not Found\n")
    with pytest.raises(FetchError) as caught:
        debian.resolve_debs(request(), SITE)
    assert "404 Not Found" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_pin_that_the_solved_packages_do_not_fulfil_is_a_conflict(apt: Apt) -> None:
    apt()
    pinned = (Pinned(pin="openmpi", value="5.0.9", package="openmpi-bin"),)
    with pytest.raises(ConflictError) as caught:
        debian.resolve_debs(request(deb_pins=pinned), SITE)
    assert str(caught.value) == (
        'sample: pins.openmpi: openmpi "5.0.9" contradicts base debian trixie, whose openmpi-bin is 5.0.7\n'
        '  -> debian trixie has `openmpi: "5.0.7"`; or choose another base'
    )


def test_every_problem_is_reported_at_once(apt: Apt) -> None:
    apt(install_code=100, install_says="")
    pinned = (Pinned(pin="openmpi", value="5.0.9", package="openmpi-bin"),)
    asked = request(deb_pins=pinned, python="3.12", packages=("openmpi-bin", "pyhton3", "python3"))
    with pytest.raises(ConflictError) as caught:
        debian.resolve_debs(asked, SITE)
    places = [problem.where for problem in caught.value.problems]
    assert places == ["sample: apt: pyhton3", "sample: pins.openmpi", "sample: python"]


def test_dependencies_that_cannot_be_fulfilled_are_told_in_apt_s_words(apt: Apt) -> None:
    apt(
        install_code=100,
        install_says="Reading package lists...\nThe following packages have unmet dependencies:\n"
        " openmpi-bin : Depends: libpmix2 (>= 5)   but it is not installable\n",
    )
    with pytest.raises(ConflictError) as caught:
        debian.resolve_debs(request(), SITE)
    assert "openmpi-bin : Depends: libpmix2 (>= 5) but it is not installable" in str(caught.value)
    assert "Reading" not in str(caught.value)


def test_a_line_that_is_not_understood_is_an_error_and_no_package_less(apt: Apt) -> None:
    apt(install_says=f"{PRINTED}'http://mirror.example/x.deb' x.deb 1 MD5Sum:00\n")
    with pytest.raises(BuildError, match="MD5Sum"):
        debian.resolve_debs(request(), SITE)


def test_without_apt_the_host_is_at_fault(apt: Apt, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = apt()
    (folder / "apt-get").unlink()
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(EnvironmentFault, match="apt-get install apt"):
        debian.resolve_debs(request(), SITE)


def test_an_unknown_suite_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(InputError, match="perhaps you meant `trixie`"):
        debian.resolve_debs(request(suite="trixy"), SITE)


def deb(path: str) -> Deb:
    return Deb(name="sample", version="1", architecture="amd64", path=path, size=1, sha256="e" * 64)


def test_a_package_is_fetched_from_the_main_archive() -> None:
    found = debian.locate_debs([deb("pool/main/g/g++/g++_1~2.deb")], "debian", "trixie", SITE)
    pool = f"{MIRROR}/pool/main/g"
    assert found == {"e" * 64: (f"{pool}/g%2B%2B/g%2B%2B_1~2.deb", f"{pool}/g++/g++_1~2.deb")}


def test_a_security_update_is_looked_for_where_a_point_release_moves_it_too() -> None:
    found = debian.locate_debs([deb("pool/updates/main/o/x_1.deb")], "debian", "trixie", SITE)
    assert found["e" * 64] == (
        f"{MIRROR}-security/pool/updates/main/o/x_1.deb",
        f"{MIRROR}/pool/main/o/x_1.deb",
    )


def test_the_c_library_is_named_as_wheel_tags_count_it() -> None:
    libc = Deb(
        name="libc6",
        version="2.41-12+deb13u2",
        architecture="amd64",
        path="pool/x",
        size=1,
        sha256="e" * 64,
    )
    assert debian.glibc((libc,)) == "2.41"
