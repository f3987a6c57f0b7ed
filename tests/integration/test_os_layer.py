"""A small OS layer from the real archive: what is in it and what is not."""

from __future__ import annotations

import dataclasses
import gzip
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, cast

import pytest
from docker import DockerClient

from imagebuilder import plan
from imagebuilder.core import tarstream
from imagebuilder.debian import suites
from imagebuilder.errors import ConflictError
from imagebuilder.host import aptmirrors
from imagebuilder.host.site import Site, detect
from imagebuilder.layers.system.split import split
from imagebuilder.resolve import debian
from imagebuilder.resolve.request import Request
from imagebuilder.store import Store
from tests.integration.conftest import SmallOs
from tests.support import oslayer
from tests.support.parts import entries_of, union_of


@pytest.fixture(scope="module")
def site() -> Site:
    return detect()


@pytest.fixture(scope="module")
def asked() -> Request:
    return oslayer.asked()


@pytest.fixture(scope="module")
def tar(small_os: SmallOs, store: Store) -> Iterator[tarfile.TarFile]:
    with gzip.open(store.blob(small_os.record.digest)) as stream, tarfile.open(fileobj=stream) as opened:
        opened.getmembers()
        yield opened


def text(tar: tarfile.TarFile, path: str) -> str:
    file = tar.extractfile(f"./{path}")
    assert file is not None
    return file.read().decode()


def test_nothing_secret_of_this_host_or_of_this_moment_is_in_it(tar: tarfile.TarFile) -> None:
    names = {name.removeprefix("./") for name in tar.getnames()}
    for path in ("etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/fstab", "imagebuilder", "dev/null"):
        assert path not in names
    below = (
        "etc/ssh/ssh_host_",
        "var/lib/apt/lists/",
        "var/cache/apt/",
        "var/cache/ldconfig/",
        "tmp/",
        "dev/",
    )
    assert [name for name in names if name.startswith(below)] == []
    assert [
        name for name in names if name.startswith("var/log/") and tar.getmember(f"./{name}").isfile()
    ] == []
    assert [name for name in names if name.startswith("var/lib/dpkg/") and name.endswith("-old")] == []


def test_every_entry_has_the_epoch_and_a_number_for_an_owner(tar: tarfile.TarFile) -> None:
    assert {member.mtime for member in tar} == {0}
    assert {member.uname for member in tar} | {member.gname for member in tar} == {""}
    assert not any(member.isdev() for member in tar)
    attributes = {key for member in tar for key in member.pax_headers if key.startswith("SCHILY.")}
    assert attributes <= {"SCHILY.xattr.security.capability"}


def test_apt_s_sources_are_the_distribution_s_own_and_not_the_site_s(
    tar: tarfile.TarFile, asked: Request
) -> None:
    names = [name for name in tar.getnames() if name.startswith("./etc/apt/sources.list")]
    assert names == ["./etc/apt/sources.list.d", "./etc/apt/sources.list.d/debian.sources"]
    mirrors = aptmirrors.default(asked.distribution, asked.suite)
    assert text(tar, "etc/apt/sources.list.d/debian.sources") == suites.sources(
        asked.distribution, asked.suite, mirrors
    )


def test_the_user_can_log_in_by_key_and_nobody_by_password(tar: tarfile.TarFile) -> None:
    users = dict(line.split(":", 1) for line in text(tar, "etc/passwd").splitlines())
    assert users["trainer"] == "x:1000:0::/home/trainer:/bin/bash"
    shadow = dict(line.split(":", 1) for line in text(tar, "etc/shadow").splitlines())
    assert shadow["root"].startswith("*::")
    assert shadow["trainer"].startswith("*::")
    assert all(entry.startswith(("*:", "!*:")) for entry in shadow.values())
    home = tar.getmember("./home/trainer")
    assert (home.uid, home.gid, home.mode) == (1000, 0, 0o770)


def test_the_venv_is_empty_and_group_0_may_write_to_it(tar: tarfile.TarFile) -> None:
    site_packages = f".{plan.VENV}/lib/python3.13/site-packages"
    assert [name for name in tar.getnames() if name.startswith(f"{site_packages}/")] == []
    for path in (f".{plan.VENV}", f".{plan.VENV}/bin", site_packages):
        member = tar.getmember(path)
        assert (member.uid, member.gid, member.mode) == (0, 0, 0o775)


def test_its_parts_are_the_same_files_and_little_of_it_is_state(small_os: SmallOs, store: Store) -> None:
    parts = plan.parts(small_os.layer)
    homes = {deb.name: part.name for part in parts for deb in part.debs}
    with tempfile.TemporaryFile() as tar:
        with tarstream.open_layer(store.blob(small_os.record.digest)) as stream:
            shutil.copyfileobj(stream, tar, 1 << 20)
        found = {
            name: entries_of(cast("BinaryIO", part))
            for name, part in split(cast("BinaryIO", tar), homes).items()
        }
        tar.seek(0)
        assert union_of(found.values()) == entries_of(cast("BinaryIO", tar))
    assert list(found) == [part.name for part in parts]
    state = found[plan.STATE]
    files = [name for name, entry in state.items() if entry[0] == tarfile.REGTYPE]
    assert {"./var/lib/dpkg/status", "./etc/passwd", f".{plan.VENV}/pyvenv.cfg"} <= set(files)
    # What was compiled to bytecode is with its module, and dpkg's lists are with their packages.
    assert not [name for name in files if name.endswith((".pyc", ".list", ".so"))]
    assert len(files) < 500


def test_it_works_as_a_system(small_os: SmallOs, store: Store, engine: DockerClient) -> None:
    name = f"imagebuilder-test-os-{os.getpid()}"
    engine.api.import_image_from_file(str(store.blob(small_os.record.digest)), repository=name)
    script = (
        "set -e; python3 -c 'import ssl, sqlite3'; ssh-keygen -A; mkdir -p /run/sshd; "
        '/usr/sbin/sshd -t; test -z "$(dpkg --audit)"; apt-get check; id trainer'
    )
    try:
        said = engine.containers.run(name, ["sh", "-c", script], remove=True, stderr=True).decode()
    finally:
        engine.images.remove(name, force=True)
    assert "uid=1000(trainer) gid=0(root)" in said


def test_conflicts_with_the_real_archive_name_what_it_has(asked: Request, site: Site) -> None:
    wrong = dataclasses.replace(
        asked,
        python="3.12",
        packages=(*asked.packages, "gcc-99", "rdma-cor"),
        deb_pins=(
            dataclasses.replace(asked.deb_pins[0], value="4.0"),
            dataclasses.replace(asked.deb_pins[0], pin="gcc", value="99", package="gcc-99"),
        ),
    )
    with pytest.raises(ConflictError) as caught:
        debian.resolve_debs(wrong, site)
    said = {problem.where: problem.hint for problem in caught.value.problems}
    assert list(said) == [
        "cpu-mpi: apt: rdma-cor",
        "cpu-mpi: pins.openmpi",
        "cpu-mpi: pins.gcc",
        "cpu-mpi: python",
    ]
    assert "`rdma-core`" in said["cpu-mpi: apt: rdma-cor"]
    assert '`openmpi: "5.0.7"`' in said["cpu-mpi: pins.openmpi"]
    assert '`gcc: "14.2.0"`' in said["cpu-mpi: pins.gcc"]
    assert '`python: "3.13"`' in said["cpu-mpi: python"]


def test_an_older_release_resolves(asked: Request, site: Site) -> None:
    debs, archives = debian.resolve_debs(
        dataclasses.replace(asked, suite="bookworm", deb_pins=(), python="3.11"), site
    )
    assert {"apt", "bash", "libc6", "openmpi-bin", "python3"} <= {deb.name for deb in debs}
    assert debian.glibc(debs) == "2.36"
    assert archives.keys() == {"bookworm", "bookworm-security", "bookworm-updates"}
    assert max(archives.values()) > "2026-01-01"


def test_unstable_moves_and_the_conflict_says_where_it_is(asked: Request, site: Site) -> None:
    old = dataclasses.replace(asked, suite="sid", deb_pins=(), python="3.0")
    with pytest.raises(ConflictError, match="contradicts base debian sid") as caught:
        debian.resolve_debs(old, site)
    python = str(caught.value).split('`python: "')[1].partition('"')[0]
    assert debian.resolve_debs(dataclasses.replace(old, python=python), site)
