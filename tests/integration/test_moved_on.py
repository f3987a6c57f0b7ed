"""An archive that replaced a package: a stand-in passes on the real index, and refuses single files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from imagebuilder.core.process import Result, run
from imagebuilder.fetch import locked
from imagebuilder.host import aptmirrors
from imagebuilder.host.site import detect
from imagebuilder.lock import file as lockfile
from imagebuilder.store import Store
from tests.support import recipes
from tests.support.fileserver import FileServer, serving

PROGRAM = Path(sys.executable).parent / "imagebuilder"


@dataclass
class Forwarded(dict[str, bytes]):
    """Files by path: those that were put here, and those of the real archives, but for some."""

    places: dict[str, str]
    session: requests.Session
    dropped: set[str] = field(default_factory=set)

    def __contains__(self, path: object) -> bool:
        if super().__contains__(path):
            return True
        name = str(path)
        prefix = next((prefix for prefix in self.places if name.startswith(prefix)), "")
        if not prefix or name in self.dropped:
            return False
        answer = self.session.get(self.places[prefix] + name.removeprefix(prefix), timeout=60)
        if answer.status_code == requests.codes.ok:
            self[name] = answer.content
        return super().__contains__(name)


@pytest.fixture
def server() -> Iterator[FileServer]:
    site = detect()
    mirrors = aptmirrors.of_site(site, "debian", "trixie", "amd64")
    places = {"/debian/": f"{mirrors.main}/", "/security/": f"{mirrors.security}/"}
    with serving() as running, site.session() as session:
        running.files = Forwarded(places=places, session=session)
        yield running


def test_a_lock_builds_on_after_the_archive_has_replaced_a_package(
    server: FileServer, store: Store, tmp_path: Path
) -> None:
    recipe, site = tmp_path / "small.yaml", tmp_path / "site.yaml"
    recipe.write_text(recipes.SMALL)
    mirrors = f"mirror: {server.url}/debian, security_mirror: {server.url}/security"
    site.write_text(f"apt: {{{mirrors}}}\n")

    def imagebuilder(*words: str | Path, check: bool = True) -> Result:
        return run([PROGRAM, *words, "--site", site], timeout=300, check=check)

    imagebuilder("lock", recipe)
    lock = lockfile.read(recipe.with_suffix(".lock")).sections[0]
    assert {"trixie", "trixie-updates", "trixie-security"} == lock.archives.keys()
    # All but one package are here already.
    fresh = Store(tmp_path / "fresh")
    gone = next(deb for deb in lock.debs if deb.name == "hostname")
    here = [item for item in lock.files if store.has_download(item.sha256, item.size) and item != gone]
    locked.copy(here, store, fresh)
    kept = requests.get(f"{server.url}/debian/{gone.path}", timeout=60).content
    files = server.files
    assert isinstance(files, Forwarded)
    files.clear()
    files.dropped.add(f"/debian/{gone.path}")
    refused = imagebuilder("fetch", recipe, "--store", fresh.root, check=False)
    assert refused.code == 6
    said = " ".join(refused.stderr.split())
    assert f"is no longer in the archive, which had it at {lock.created}, and no snapshot" in said
    assert "lock newer packages: imagebuilder lock --upgrade; or name a snapshot service" in said
    # The archive's own Release file names a service now, as apt 3 expects it.
    release = f"Origin: Debian\nSnapshots: {server.url}/snap/@SNAPSHOTID@/\n"
    files["/debian/dists/trixie/InRelease"] = release.encode()
    stamp = max(lock.archives["trixie"], lock.archives["trixie-updates"]).translate({45: None, 58: None})
    files[f"/snap/{stamp}/{gone.path}"] = kept
    imagebuilder("fetch", recipe, "--store", fresh.root)
    assert locked.absent(lock.files, fresh) == ()
