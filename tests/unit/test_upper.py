"""Packages on top of a base: what a base may not bring along."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from imagebuilder.errors import BuildError
from imagebuilder.layers.system import incremental
from imagebuilder.lock.model import BaseLayer
from imagebuilder.plan import UpperOsLayer, User
from imagebuilder.store import Store
from tests.support import standin_base


def above(store: Store, *names: str) -> UpperOsLayer:
    """Stand on a base of one layer, which the store has."""
    made = standin_base.layer(standin_base.tar_of(dict.fromkeys(names, b"echo\n")))
    digest = hashlib.sha256(made.blob).hexdigest()
    place = store.download(digest)
    place.parent.mkdir(parents=True)
    place.write_bytes(made.blob)
    blob = BaseLayer(
        digest=f"sha256:{digest}",
        diff_id=made.diff_id,
        size=len(made.blob),
        media_type="application/vnd.oci.image.layer.v1.tar+gzip",
    )
    return UpperOsLayer(
        distribution="debian",
        suite="trixie",
        architecture="amd64",
        debs=(),
        user=User(name="root", uid=0, home="/root"),
        python="3.13",
        below=(blob,),
    )


def handed(folder: Path) -> Path:
    (place := folder / "imagebuilder").mkdir()
    return place


@pytest.mark.parametrize("path", ["imagebuilder/hooks/inside.sh", "./imagebuilder", "imagebuilder/x"])
def test_a_base_that_would_replace_the_build_s_own_programs_is_refused(path: str, tmp_path: Path) -> None:
    layer = above(store := Store(tmp_path / "store"), "usr/bin/sh", path)
    with pytest.raises(BuildError, match="the base has a folder or a file `/imagebuilder`"):
        incremental.lay_out(layer, store, tmp_path, handed(tmp_path))
    assert not (tmp_path / "base.tar").exists()


def test_another_base_becomes_one_tar_and_a_list(tmp_path: Path) -> None:
    layer = above(store := Store(tmp_path / "store"), "usr/bin/sh", "opt/imagebuilder/x")
    assert incremental.lay_out(layer, store, tmp_path, handed(tmp_path)) == (
        "base.tar",
        "imagebuilder/before",
    )
    assert (tmp_path / "base.tar").stat().st_size > 0
