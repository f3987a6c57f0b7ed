"""Sources that neither Debian nor the index has: addresses for them, the lock's bytes, what goes wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder import catalog
from imagebuilder import plan as plans
from imagebuilder.catalog import Selection, select
from imagebuilder.catalog.upstream import Upstream, file_of
from imagebuilder.core import files
from imagebuilder.errors import ConflictError, FetchError, InputError
from imagebuilder.fetch import locked
from imagebuilder.host import http
from imagebuilder.host.site import Site, detect
from imagebuilder.lock import file as lockfile
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Build, Source
from imagebuilder.plan.render import render
from imagebuilder.resolve import debian
from imagebuilder.resolve.builds import resolve_builds
from imagebuilder.resolve.request import request
from imagebuilder.store import Store
from tests.support.fileserver import FileServer, serving
from tests.unit import samples

PATH = "/v5/openmpi-5.0.99%2Bfix.tar.gz"
FILE = "openmpi-5.0.99+fix.tar.gz"
IMAGE = (samples.deb("apt"), samples.deb("libc6", "2.41-12"), samples.deb("python3"))
RECIPE = samples.recipe(pins={"openmpi": "5.0.99"}, build=("openmpi",))


def archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("openmpi-5.0.99/configure"))
    return buffer.getvalue()


DATA = archive()
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def _debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's archive has one version, and that is too old."""
    old = Source(
        name="openmpi", version="5.0.7-1", suite="trixie", path="pool/o/x.orig.tar.xz", file="x.orig.tar.xz",
        size=1, sha256="1" * 64,
    )  # fmt: skip
    monkeypatch.setattr(debian, "source_packages", lambda *_: ((old,), {}))
    monkeypatch.setattr(debian, "resolve_root", lambda *_: (IMAGE, {}))


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        running.files[PATH] = DATA
        yield running


def site(folder: Path, url: str, sha256: str = SHA256, version: str = "5.0.99") -> Site:
    path = folder / "site.yaml"
    path.write_text(f'sources:\n  openmpi:\n    "{version}": {{url: "{url}", sha256: "{sha256}"}}\n')
    return detect(path)


def resolve(where: Site, selection: Selection | None = None) -> Build:
    return resolve_builds(request(selection or select(RECIPE)), IMAGE, where)[0]


def fetch(build: Build, store: Store, where: Site) -> None:
    lock = samples.lock(debs=IMAGE, builds=(build,))
    missing = locked.absent(build.sources, store)
    locked.fetch(missing, lock, store, where, advance=lambda _k, _c: None, finished=lambda _k: None)


def test_the_lock_has_the_bytes_and_no_address(server: FileServer, tmp_path: Path) -> None:
    where = site(tmp_path, server.url + PATH)
    build = resolve(where)
    assert build.version == "5.0.99"
    (source,) = build.sources
    assert (source.file, source.size, source.sha256, source.origin) == (FILE, len(DATA), SHA256, "upstream")
    lock = samples.lock(debs=IMAGE, builds=(build,))
    text = lockfile.dumps(LockFile(sections=(lock,)))
    assert lockfile.loads(text, "x").sections[0] == lock
    assert "127.0.0.1" not in text
    assert "://" not in text
    store = Store(tmp_path / "store")
    fetch(build, store, where)
    assert store.download(SHA256).read_bytes() == DATA
    # From now on nobody has to know the address.
    fetch(build, store, Site())


def test_debian_s_own_version_needs_no_address_and_is_preferred(server: FileServer, tmp_path: Path) -> None:
    recipe = samples.recipe(pins={"openmpi": "5.0"}, build=("openmpi",))
    build = resolve_builds(request(select(recipe)), IMAGE, site(tmp_path, server.url + PATH))[0]
    assert (build.version, build.sources[0].origin) == ("5.0.7", "debian")
    assert server.seen == []


def test_an_archive_in_a_folder_of_this_host(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(DATA)
    where = site(tmp_path, f"file://{tmp_path}/{FILE.replace('+', '%2B')}")
    build = resolve(where)
    store = Store(tmp_path / "store")
    fetch(build, store, where)
    assert store.download(build.sources[0].sha256).read_bytes() == DATA


def test_other_bytes_are_refused_while_locking(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(FetchError) as caught:
        resolve(site(tmp_path, server.url + PATH, sha256="0" * 64))
    said = str(caught.value)
    assert said.startswith(f"sample: pins.openmpi: {FILE} is not the expected source: wanted sha256 0000")
    assert SHA256 in said
    assert "\n  -> compare both" in said


def test_other_bytes_are_refused_while_fetching(server: FileServer, tmp_path: Path) -> None:
    where = site(tmp_path, server.url + PATH)
    build = resolve(where)
    server.files[PATH] = DATA[:-1] + b"x"
    store = Store(tmp_path / "store")
    with pytest.raises(FetchError, match=f"wanted sha256 {SHA256}, got"):
        fetch(build, store, where)
    assert not store.download(SHA256).exists()


@pytest.mark.parametrize("path", ["/gone-1.0.tar.gz", None])
def test_an_address_that_does_not_answer(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    monkeypatch.setattr(http, "_RETRY_PAUSE", 0.05)
    url = f"http://127.0.0.1:9{PATH}" if path is None else server.url + path
    with pytest.raises(FetchError, match="cannot be fetched: ") as caught:
        resolve(site(tmp_path, url))
    assert caught.value.problems[0].hint


def test_a_source_whose_address_nobody_knows(server: FileServer, tmp_path: Path) -> None:
    build = resolve(site(tmp_path, server.url + PATH))
    with pytest.raises(FetchError) as caught:
        fetch(build, Store(tmp_path / "store"), Site())
    assert str(caught.value) == (
        f"no URL is known for {FILE}, the source of openmpi 5.0.99\n"
        f"  -> give one with this sha256 under `sources: openmpi:` in a file for --site: {SHA256}"
    )


def test_another_version_does_not_fit(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match=r'has the source of openmpi "5\.0\.99"'):
        resolve(site(tmp_path, server.url + PATH, version="5.0.98"))
    assert server.seen == []


def test_a_component_that_only_upstream_has(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the catalog would have one: with an address, or none yet."""
    known = catalog.load()
    build = known["openmpi"].build
    assert build is not None

    def with_upstream(places: dict[str, Upstream]) -> Selection:
        own = build.model_copy(update={"debian": "", "upstream": places})
        changed = {**known, "openmpi": known["openmpi"].model_copy(update={"build": own})}
        monkeypatch.setattr(catalog, "load", lambda: changed)
        return dataclasses.replace(select(RECIPE), components=changed).with_pins(RECIPE.pins)

    with pytest.raises(ConflictError, match=r'no source of openmpi "5\.0\.99" is known\n  -> give its URL'):
        resolve(Site(), with_upstream({}))
    place = Upstream(url=server.url + PATH, sha256=SHA256)
    with pytest.raises(ConflictError, match=r'-> there is "5\.0\.98"'):
        resolve(Site(), with_upstream({"5.0.98": place}))
    built = resolve(Site(), with_upstream({"5.0.99": place}))
    assert built.sources[0].sha256 == SHA256
    fetch(built, Store(tmp_path / "store"), Site())


@pytest.mark.parametrize(
    ("url", "message", "hint"),
    [
        ("http://host.example/x-1.tar.gz", "is not encrypted", "write https://"),
        ("ftp://host.example/x-1.tar.gz", "is not a URL", "https://host/path"),
        ("x-1.tar.gz", "is not a URL", "https://host/path"),
        ("https://host.example:port/x-1.tar.gz", "is not a URL", "https://host/path"),
        ("https://me:secret@host.example/x-1.tar.gz", "holds a user name or a password", "netrc"),
        ("https://host.example/x-1.zip", "`x-1.zip` is not the name of a tar archive", "tar.xz"),
        ("https://host.example/", "`` is not the name of a tar archive", "tar.xz"),
        ("https://host.example/-x.tar", "is not the name of a tar archive", "tar.xz"),
        ("https://host.example/a%27b.tar", "is not the name of a tar archive", "tar.xz"),
        ("https://host.example/x y.tar", "white space", "%20"),
    ],
)
def test_addresses_that_are_none(url: str, message: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        site(tmp_path, url)
    said = str(caught.value)
    assert "site.yaml:3: sources.openmpi.5.0.99.url: " in said.replace('"', "")
    assert message in said
    assert hint in said
    assert "secret" not in said


@pytest.mark.parametrize("sha256", ["", "abc", "Z" * 64])
def test_hashes_that_are_none(sha256: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sha256"):
        site(tmp_path, "https://host.example/x-1.tar.gz", sha256=sha256)


def test_this_host_needs_no_https() -> None:
    for host in ("localhost", "127.0.0.1:8080", "[::1]"):
        assert Upstream(url=f"http://{host}/x-1.tar.gz", sha256="0" * 64).url


def test_the_file_of_an_address() -> None:
    assert file_of("https://host.example/v1/name-1.0%2Bb.tar.gz?download=1") == "name-1.0+b.tar.gz"


def test_the_dockerfile_is_given_the_archive(server: FileServer, tmp_path: Path) -> None:
    build = resolve(site(tmp_path, server.url + PATH))
    lock = samples.lock(debs=IMAGE, builds=(build,))
    text = render(plans.plan(select(RECIPE), lock, ()), files.template("Dockerfile.j2"))
    assert "FROM scratch AS sources\n" in text
    assert f"#   --build-context sources=FOLDER                           {FILE}\n" in text
    assert f"echo '{SHA256}  /imagebuilder/archives/{FILE}' >/tmp/sums" in text
    assert "apt-get source" not in text
    assert "127.0.0.1" not in text
    plain = samples.recipe()
    assert "sources=FOLDER" not in render(
        plans.plan(select(plain), samples.lock(), ()), files.template("Dockerfile.j2")
    )
