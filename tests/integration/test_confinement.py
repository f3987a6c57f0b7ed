"""Programs of an image that try to get out of where they run, as root in there: none gets anywhere.

The container of the tools has its own such test, in `test_tools`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.core.progress import no_advance
from imagebuilder.layers.system.install import build_os_layer
from imagebuilder.store import Store
from tests.integration.conftest import SmallOs
from tests.support import elsewhere, escape
from tests.support.escape import ATTEMPTS, ON_A_BUILD, Outside

CONFINE = resources.files("imagebuilder.layers.hooks").joinpath("shared", "confine.pl")
BUILD = """
import pickle, sys
from pathlib import Path
from imagebuilder.layers.system.install import build_os_layer
from imagebuilder.core.progress import no_advance
from imagebuilder.store import Store
layer, debs, root = pickle.loads(Path(sys.argv[1]).read_bytes())
record = build_os_layer(layer, debs, Store(root), no_advance)
Path(sys.argv[2]).write_bytes(pickle.dumps(record))
"""


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    folder = tmp_path / "outside"
    folder.mkdir()
    # Anybody finds the way there: what keeps them out is not this host's root's home.
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.geteuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)
    with escape.outside(folder) as found:
        yield found


def test_a_package_s_script_does_not_get_out_where_root_builds(
    small_os: SmallOs, outside: Outside, tmp_path: Path
) -> None:
    assert os.geteuid() == 0, "this is about root; run it as root"
    program = outside.program(f"/{escape.REPORT}", hooks=True)
    layer, debs = escape.hostile(small_os.layer, small_os.debs, program, tmp_path)
    store = Store(tmp_path / "store")
    found = escape.told(build_os_layer(layer, debs, store, no_advance), store)
    outside.assert_untouched()
    escape.assert_held(found, ATTEMPTS | ON_A_BUILD, installing=True)
    assert int(found["root is"]) >= 1 << 16


def test_a_package_s_script_does_not_get_out_where_a_user_builds(
    small_os: SmallOs, outside: Outside, tmp_path: Path
) -> None:
    program = outside.program(f"/{escape.REPORT}", hooks=True)
    (work := tmp_path / "work").mkdir()
    layer, debs = escape.hostile(small_os.layer, small_os.debs, program, work)
    store = Store(work / "store")
    (work / "asked").write_bytes(pickle.dumps((layer, debs, store.root)))
    (home := tmp_path / "elsewhere").mkdir()
    command = elsewhere.command(home, sys.executable, "-c", BUILD, work / "asked", work / "made")
    elsewhere.give(work)
    process.run(command, timeout=600)
    found = escape.told(pickle.loads((work / "made").read_bytes()), store)  # noqa: S301  (written above)
    outside.assert_untouched()
    escape.assert_held(found, ATTEMPTS | ON_A_BUILD, installing=True)
    assert int(found["root is"]) >= 1 << 16


@pytest.mark.parametrize("who", ["root", "user"])
@pytest.mark.parametrize("how", ["bare", "alone"])
def test_the_image_s_own_python_does_not_get_out(
    how: str, who: str, small_os: SmallOs, outside: Outside, tmp_path: Path
) -> None:
    """As `hooks/bytecode` and `hooks/package` run it; Perl stands in, as a base could have it for Python."""
    folder = tmp_path / "work"
    root = folder / "root"
    for name in ("bin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for deb in small_os.layer.debs:
        if deb.name in {"perl-base", "libc6", "libcrypt1"}:
            tar = folder / "package.tar"
            command = f"dpkg-deb --fsys-tarfile {small_os.debs[deb.sha256]} >{tar}"
            process.run(["sh", "-c", command], timeout=60)
            process.run(["tar", "-x", "-C", root, "--keep-directory-symlink", "-f", tar], timeout=60)
    place = folder if how == "bare" else root
    inside = "" if how == "alone" else str(folder)
    (place / "escape.pl").write_text(outside.program(f"{inside}/report", hooks=False), encoding="utf-8")
    (confine := folder / "confine.pl").write_bytes(CONFINE.read_bytes())
    (library,) = (root / "usr/lib").glob("*-linux-gnu*")
    (loader,) = library.glob("ld-linux*.so.*")
    perl: list[str | Path] = ["/usr/bin/perl"]
    if how == "bare":
        perl = [loader, "--library-path", library, root / "usr/bin/perl", f"-I{library}/perl-base"]
    words = ["perl", confine, how, place, *perl, f"{inside}/escape.pl"]
    if who == "user":
        (home := tmp_path / "elsewhere").mkdir()
        words = elsewhere.command(home, *words)
        elsewhere.give(folder)
    process.run(words, timeout=120)
    found = escape.parse((place / "report").read_text())
    outside.assert_untouched()
    escape.assert_held(found, ATTEMPTS, installing=False)
    as_root = int(found["root is"])
    assert as_root == elsewhere.UID if who == "user" else as_root >= 1 << 16
