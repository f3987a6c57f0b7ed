"""The whole Dockerfile by BuildKit alone, from archive and index: the same files as the embedded engine's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from imagebuilder.store import ImageRecord, Store
from tests.integration.test_engines import Shop, embedded, shop, side
from tests.support import sameness
from tests.support.sameness import Side

__all__ = ["embedded", "shop"]


def test_buildkit_alone_gives_the_same_files(
    store: Store, shop: Shop, embedded: ImageRecord, tmp_path: Path
) -> None:
    place = tmp_path / "pure"
    told = shop.build("--engine", "docker", "--pure", "--output", place)
    blobs = place / "blobs" / "sha256"

    def blob(digest: str) -> Path:
        return blobs / digest.removeprefix("sha256:")

    manifest = json.loads(blob(told["digest"]).read_bytes())
    pure = Side(blobs=[blob(layer["digest"]) for layer in manifest["layers"]])
    wrong, used = sameness.differences(side(embedded, store), pure, pure=True)
    assert wrong == []
    # What nothing needs any more is no longer allowed.
    assert used == {rule.paths for rule in sameness.ALLOWED}
    config = json.loads(blob(manifest["config"]["digest"]).read_bytes())["config"]
    ours = json.loads(store.blob(embedded.config).read_bytes())["config"]
    assert config["Labels"].pop("org.imagebuilder.engine") == "docker"
    for key in ("Entrypoint", "User", "WorkingDir", "ExposedPorts", "Labels"):
        assert config[key] == ours[key]
    assert sorted(config["Env"]) == sorted(ours["Env"])
    assert not config.get("Cmd")
    shutil.rmtree(place)
