"""Components of a recipe's own folder, for real: one from the docs, and NCCL's plugin from a site's source.

These tests do not download the plugin's own source. A stand-in for it has a configure script that takes the
same options, and compiles against libfabric and CUDA's headers.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.smoke.engine import Engine
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, remove_images

PROGRAM = (Path(sys.executable).parent / "imagebuilder",)
RECIPE = """\
name: own-catalog
base: debian:trixie
python: "3.13"
pins:
  aws-ofi-nccl: "1.14.0"
  hwmap: "2.12"
fabric: [efa]
"""
CONFIGURE = r"""#!/bin/sh
set -eu
for word; do
    case $word in
    CPPFLAGS=*) flags=${word#*=} ;;
    --prefix=*) prefix=${word#*=} ;;
    --with-cuda=*) cuda=${word#*=} ;;
    --enable-platform-aws|--disable-static|--disable-tests) ;;
    *) echo "unknown: $word" >&2; exit 2 ;;
    esac
done
cat >Makefile <<END
all:
	\$(CC) \$(CFLAGS) $flags -I$cuda/include -shared -fPIC -Wl,-soname,libnccl-net.so -o libnccl-net.so plugin.c -lfabric
install-strip: all
	install -s -D libnccl-net.so \$(DESTDIR)$prefix/lib/libnccl-net.so
END
test -e "$cuda/lib/libcudart.so"
"""  # noqa: E501
PLUGIN = r"""
#include <cuda_runtime.h>
#include <rdma/fabric.h>
const char *said = "NET/OFI Initializing aws-ofi-nccl 1.14.0";
const int cuda = CUDART_VERSION;
struct { const char *name; unsigned int (*version)(void); } ncclNetPlugin_v8 = {"Libfabric", fi_version};
"""


def source(folder: Path) -> Path:
    """Write the archive that the site has."""
    archive = folder / "aws-ofi-nccl-1.14.0.tar.gz"
    unpacked = io.BytesIO()
    with tarfile.open(fileobj=unpacked, mode="w") as tar:
        for name, text, mode in (("configure", CONFIGURE, 0o755), ("plugin.c", PLUGIN, 0o644)):
            member = tarfile.TarInfo(f"aws-ofi-nccl-1.14.0/{name}")
            member.size, member.mode = len(text), mode
            tar.addfile(member, io.BytesIO(text.encode()))
    archive.write_bytes(gzip.compress(unpacked.getvalue(), mtime=0))
    return archive


def from_the_docs() -> str:
    """Return the worked example of the how-to."""
    page = (ROOT / "docs" / "how-to" / "catalog.md").read_text(encoding="utf-8")
    return page.partition("```yaml\n# recipes/catalog/hwmap.yaml\n")[2].partition("```")[0]


def prepare(folder: Path) -> Path:
    """Write the site's file with its catalog and source, and a recipe that pins both components."""
    archive = source(folder)
    place = folder / "site-catalog"
    place.mkdir()
    (place / "hwmap.yaml").write_text(from_the_docs(), encoding="utf-8")
    shutil.copy(ROOT / "examples" / "catalog" / "aws-ofi-nccl.yaml", place)
    site = {
        "catalog": str(place),
        "sources": {
            "aws-ofi-nccl": {
                "1.14.0": {
                    "url": archive.as_uri(),
                    "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                }
            }
        },
    }
    (folder / "site.yaml").write_text(json.dumps(site), encoding="utf-8")
    recipe = folder / "own-catalog.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    return recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return prepare(tmp_path)


def run(*words: str | Path) -> str:
    return process.run([*PROGRAM, *words], timeout=1800).stdout


def test_the_site_s_plugin_is_compiled_and_opened(recipe: Path, connected: Engine, store: Store) -> None:
    folder, in_store = recipe.parent, ("--store", store.root)
    try:
        run("build", recipe, "--site", folder / "site.yaml", *in_store)
        # From here on the recipe's folder is enough.
        assert {path.name for path in (folder / "catalog").iterdir()} == {"aws-ofi-nccl.yaml", "hwmap.yaml"}
        assert "locked" in run("check", recipe)
        checks = ("--check", "pins", "--check", "fabric")
        # A run with single checks proves nothing, and so ends with 1.
        said = process.run(
            [*PROGRAM, "smoke-test", recipe, *checks, "--json", *in_store], check=False, timeout=600
        )
        report = json.loads(said.stdout)["result"]
        found = {check["name"]: check for check in report["checks"] if check["status"] == "passed"}
        assert set(found) == {"pins", "fabric"}
        assert found["pins"]["evidence"]["aws-ofi-nccl"]["found"] == "1.14.0"
        assert found["pins"]["evidence"]["hwmap"]["found"].startswith("2.12")
        (plugin,) = found["fabric"]["evidence"]["plugins"]
        assert (plugin["error"], plugin["has"]) == ("", [8])
        assert plugin["path"].endswith("/libnccl-net.so")
    finally:
        remove_images(connected.client, "own-catalog")


def test_the_example_of_the_docs_is_tried_by_itself(tmp_path: Path, connected: Engine, store: Store) -> None:
    (tmp_path / "hwmap.yaml").write_text(from_the_docs(), encoding="utf-8")
    said = run("catalog", "test", "hwmap=2.12", "--catalog", tmp_path, "--store", store.root)
    assert said.splitlines() == [
        "node0: 2.12.0",
        "node1: 2.12.0",
        "hwmap: its probe prints a version that begins with the pinned 2.12.0",
    ]
    assert not connected.client.images.list(all=True, filters={"label": "org.imagebuilder.recipe=try-hwmap"})


def test_a_probe_that_prints_another_version_fails(tmp_path: Path, connected: Engine, store: Store) -> None:
    text = from_the_docs().partition("probe:")[0] + 'probe: {command: [echo, "hwloc 2.12.0"]}\n'
    (tmp_path / "hwmap.yaml").write_text(text, encoding="utf-8")
    assert connected.client.ping()
    words = ("catalog", "test", "hwmap=2.12", "--catalog", tmp_path, "--store", store.root)
    result = process.run([*PROGRAM, *words], timeout=1800, check=False)
    assert result.code == 1
    assert "hwmap is pinned to 2.12.0" in result.stderr
