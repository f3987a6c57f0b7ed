"""An archive that moved on: its packages come from its snapshots, and the message says what else helps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.errors import FetchError, InputError
from imagebuilder.fetch import download, locked, snapshots
from imagebuilder.fetch.snapshots import Snapshots
from imagebuilder.host import http
from imagebuilder.host.site import Site, ToolsSite, detect
from imagebuilder.lock.model import Build, Deb, Lock, Source
from imagebuilder.store import Store
from tests.support.fileserver import FileServer, serving
from tests.unit import samples

OLD, PATCHED = b"the old package", b"the patched package"
TIMES = {
    "trixie": "2026-09-12T07:55:41Z",
    "trixie-updates": "2026-11-20T02:10:46Z",
    "trixie-security": "2026-11-21T00:53:03Z",
}
SITE_PATTERN = "/snap/@PATH@/@SNAPSHOTID@"
RELEASE = """\
-----BEGIN PGP SIGNED MESSAGE-----
Hash: SHA256

Origin: Debian
Label: Debian{snapshots}
Suite: stable
SHA256:
 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0 Snapshots: wrong
"""


def deb(name: str, data: bytes, pool: str = "pool") -> Deb:
    made = samples.deb(name).model_copy(
        update={"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    )
    return made.model_copy(update={"path": made.path.replace("pool", pool, 1)})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSE", 0.001)
    monkeypatch.setattr(http, "_RETRY_PAUSE", 0.001)
    monkeypatch.setattr(snapshots, "_settings", lambda _site: {})


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        yield running


def site(server: FileServer, **more: str) -> Site:
    mirrors = {"apt_mirror": f"{server.url}/debian", "apt_security_mirror": f"{server.url}/security"}
    return Site(**{**mirrors, **more})  # type: ignore[arg-type]


def lock(*debs: Deb, **changes: object) -> Lock:
    return samples.lock(debs=(*debs, samples.deb("libc6", "2.41-12")), archives=TIMES, **changes)


def get(package: Deb | Source, locked_as: Lock, where: Site, store: Store) -> bytes:
    locked.fetch((package,), locked_as, store, where, advance=lambda _k, _c: None, finished=lambda _k: None)
    return store.download(package.sha256).read_bytes()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_package_that_the_archive_dropped_comes_from_the_site_s_service(
    server: FileServer, store: Store
) -> None:
    package = deb("openssl", OLD)
    # The service has the copy of the archive that it made some hours after the Release file.
    server.files[f"/snap/debian/20261120T141046Z/{package.path}"] = OLD
    where = site(server, apt_snapshots=server.url + SITE_PATTERN)
    assert get(package, lock(package), where, store) == OLD
    asked = list(dict.fromkeys(path for _, path, _ in server.seen))
    assert asked == [
        f"/debian/{package.path}",
        f"/snap/debian/20261120T021046Z/{package.path}",
        f"/snap/debian/20261120T141046Z/{package.path}",
    ]


def test_a_security_update_is_looked_for_in_the_snapshot_of_its_own_archive(
    server: FileServer, store: Store
) -> None:
    package = deb("openssl", OLD, "pool/updates")
    server.files[f"/snap/debian-security/20261121T005303Z/{package.path}"] = OLD
    where = site(server, apt_snapshots=server.url + SITE_PATTERN)
    assert get(package, lock(package), where, store) == OLD


def test_the_archive_s_own_release_file_names_its_service(server: FileServer, store: Store) -> None:
    package = deb("openssl", OLD)
    said = f"\nSnapshots: {server.url}/of-debian/@SNAPSHOTID@/"
    server.files["/debian/dists/trixie/InRelease"] = RELEASE.format(snapshots=said).encode()
    server.files[f"/of-debian/20261120T021046Z/{package.path}"] = OLD
    assert get(package, lock(package), site(server), store) == OLD


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("Override::Label::Debian", "no"),
        ("Override::Origin::Debian", "http://wrong.invalid/@SNAPSHOTID@/"),
        ("Label::Debian", ""),
        ("Origin::Debian", ""),
        ("Host::127.0.0.1", ""),
    ],
)
def test_apt_s_settings_name_a_service(
    server: FileServer, store: Store, setting: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = deb("openssl", OLD)
    named = f"\nSnapshots: {said}" if said else ""
    server.files["/debian/dists/trixie/InRelease"] = RELEASE.format(snapshots=named).encode()
    server.files[f"/apt/debian/20261120T021046Z/{package.path}"] = OLD
    known = {setting: f"{server.url}/apt/@PATH@/@SNAPSHOTID@/"}
    monkeypatch.setattr(snapshots, "_settings", lambda _site: known)
    assert get(package, lock(package), site(server), store) == OLD


def test_apt_s_own_settings_are_read_and_the_site_s_options_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    program = tmp_path / "apt-config"
    program.write_text(
        "#!/bin/sh\n[ \"$*\" = 'dump Acquire::Snapshots::URI' ] || exit 1\n"
        "echo 'Acquire::Snapshots::URI \"\";'\n"
        "echo 'Acquire::Snapshots::URI::Host::a.example \"https://a.example/@SNAPSHOTID@\";'\n"
        "echo 'Acquire::Snapshots::URI::Origin::Debian \"https://b.example/@SNAPSHOTID@\";'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    options = (("Acquire::Retries", "3"), ("Acquire::Snapshots::URI::Origin::Debian", "no"))
    found = snapshots._settings(Site(apt_options=options, tools=ToolsSite(where="host")))
    assert found == {"Host::a.example": "https://a.example/@SNAPSHOTID@", "Origin::Debian": "no"}


def test_a_package_that_nobody_has_is_named_with_its_time_and_the_ways_on(
    server: FileServer, store: Store
) -> None:
    package = deb("openssl", OLD)
    with pytest.raises(FetchError) as caught:
        get(package, lock(package), site(server), store)
    (problem,) = caught.value.problems
    url = f"{server.url}/debian/{package.path}"
    assert problem.message.partition("; gave up")[0] == (
        "openssl_1.0-1_amd64.deb is no longer in the archive, which had it at 2026-11-21T00:53:03Z, and no "
        f"snapshot service is known: 404 Not Found from {url}"
    )
    assert problem.hint == (
        "lock newer packages: imagebuilder lock --upgrade; or name a snapshot service in a file for "
        "--site, as `snapshots:` under `apt:`; or build with a store or a cache that has it"
    )
    with pytest.raises(FetchError, match="no snapshot of it has it either: 404"):
        get(package, lock(package), site(server, apt_snapshots=server.url + SITE_PATTERN), store)


def test_other_bytes_from_a_snapshot_are_refused(server: FileServer, store: Store) -> None:
    package = deb("openssl", OLD)
    for stamp in ("20261120T021046Z", "20261120T141046Z"):
        server.files[f"/snap/debian/{stamp}/{package.path}"] = b"the bad package"
    where = site(server, apt_snapshots=server.url + SITE_PATTERN)
    with pytest.raises(FetchError, match=r"openssl_1\.0-1_amd64\.deb cannot be fetched: wanted sha256"):
        get(package, lock(package), where, store)
    assert not store.download(package.sha256).exists()


def test_an_archive_that_is_there_is_not_asked_for_snapshots(server: FileServer, store: Store) -> None:
    package = deb("openssl", OLD)
    server.files[f"/debian/{package.path}"] = OLD
    assert get(package, lock(package), site(server), store) == OLD
    assert [path for _, path, _ in server.seen] == [f"/debian/{package.path}"]


@pytest.mark.parametrize(
    "said",
    [
        "no",
        "file:///etc/@SNAPSHOTID@/",
        "http://127.0.0.1:9/without-a-time/",
        "http://127.0.0.1:9/@SNAPSHOTID@/\n and more",
        "http://127.0.0.1:9/\x07@SNAPSHOTID@/",
        "http://127.0.0.1:9/" + "x" * 3000 + "@SNAPSHOTID@/",
        "http://[@SNAPSHOTID@/",
    ],
)
def test_a_hostile_release_file_leads_nowhere(server: FileServer, store: Store, said: str) -> None:
    package = deb("openssl", OLD)
    server.files["/debian/dists/trixie/InRelease"] = RELEASE.format(snapshots=f"\nSnapshots: {said}").encode()
    with pytest.raises(FetchError, match=r"openssl_1\.0-1_amd64\.deb"):
        get(package, lock(package), site(server), store)


def test_a_release_file_without_end_is_read_to_a_limit(server: FileServer) -> None:
    text = "x" * 200_000 + "\nSnapshots: http://127.0.0.1:9/@SNAPSHOTID@/\n"
    server.files["/debian/dists/trixie/InRelease"] = text.encode()
    package = deb("openssl", OLD)
    assert Snapshots(lock(package), site(server)).urls(package) == ()


def test_packages_of_a_compiled_component_have_its_own_times(server: FileServer, store: Store) -> None:
    package, source = deb("gcc", OLD), Source(
        name="openmpi", version="5.0.7-1", suite="sid", path="pool/main/o/openmpi/openmpi_5.0.7.orig.tar.xz",
        file="openmpi_5.0.7.orig.tar.xz", size=len(PATCHED), sha256=hashlib.sha256(PATCHED).hexdigest(),
    )  # fmt: skip
    build = Build(
        component="openmpi", version="5.0.7", packages=(), system=(), debs=(package,), wheels=(),
        sources=(source,), archives={"trixie": "2026-11-22T00:00:00Z", "sid": "2026-11-23T00:00:00Z"},
    )  # fmt: skip
    server.files[f"/snap/debian/20261122T000000Z/{package.path}"] = OLD
    server.files[f"/snap/debian/20261123T000000Z/{source.path}"] = PATCHED
    where = site(server, apt_snapshots=server.url + SITE_PATTERN)
    assert get(package, lock(builds=(build,)), where, store) == OLD
    assert get(source, lock(builds=(build,)), where, store) == PATCHED


def test_an_archive_of_others_and_a_lock_without_times_have_no_snapshots(server: FileServer) -> None:
    package = deb("openssl", OLD)
    where = site(server, apt_snapshots=server.url + SITE_PATTERN)
    foreign = package.model_copy(update={"archive": "nvidia-cuda"})
    assert Snapshots(lock(foreign, image=samples.base_image()), where).urls(foreign) == ()
    known = Snapshots(lock(foreign, image=samples.base_image()), where)
    (problem,) = known.missing(foreign, "x", "404").problems
    assert problem.message.startswith("x is no longer in the archive nvidia-cuda, which had it at ")
    assert problem.hint == (
        "lock newer packages: imagebuilder lock --upgrade; or name a mirror that keeps it in a file for "
        "--site, under `archives: nvidia-cuda:`; or build with a store or a cache that has it"
    )
    bare = lock(package).model_copy(update={"archives": {}})
    assert Snapshots(bare, where).urls(package) == ()
    said = Snapshots(bare, where).missing(package, "x.deb", "404").problems[0].message
    assert said == "x.deb is no longer in the archive, and no snapshot service is known: 404"


def test_the_site_s_service_has_to_say_where_the_time_goes(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("apt:\n  snapshots: https://snapshot.example/archive\n")
    with pytest.raises(InputError) as caught:
        detect(path)
    assert str(caught.value) == (
        f"{path}:2: apt.snapshots: `https://snapshot.example/archive` does not say where the time goes\n"
        "  -> write https://host/archive/@PATH@/@SNAPSHOTID@"
    )
    path.write_text("apt:\n  snapshots: https://snapshot.example/archive/@PATH@/@SNAPSHOTID@\n")
    assert detect(path).apt_snapshots == "https://snapshot.example/archive/@PATH@/@SNAPSHOTID@"
