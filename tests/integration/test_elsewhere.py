"""The matrix of docs/explanation/reproducibility.md: all differs at once, but not the digest."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from imagebuilder.core import process
from imagebuilder.lock import model as locks
from imagebuilder.store import Store
from tests.support import elsewhere, recipes
from tests.support.answers import built_image

PROGRAM = Path(sys.executable).parent / "imagebuilder"


def test_the_same_digest_elsewhere(store: Store, tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(recipes.SMALL)
    require_same_digest(recipe, store)


# What `push --compression zstd` sends; the other place has no network to push by.
_ZSTD = """
import sys
from pathlib import Path
from imagebuilder.image import repack
from imagebuilder.store import Store
from imagebuilder.workflow import built_image
store = Store(Path(sys.argv[2]))
print(repack.repack(built_image(sys.argv[1], store), store).whole.manifest)
"""


def require_same_digest(recipe: Path, store: Store) -> None:
    """Build a recipe here and in another place; soak does it with a shipped recipe."""
    here = built_image(process.run([PROGRAM, *build(recipe, store)], timeout=3000).stdout)
    with tempfile.TemporaryDirectory(prefix="imagebuilder-elsewhere-") as name:
        # Not below pytest's folder, which is closed to other users; the recipe can be there.
        (place := Path(name) / "place").mkdir()
        copied = [Path(shutil.copy(path, name)) for path in (recipe, locks.path_for(recipe))]
        other = Store(Path(name) / "another store")
        fetch = ("fetch", recipe, "--output", other.root, "--store", store.root)
        process.run([PROGRAM, *fetch], timeout=3000)
        elsewhere.give(Path(name))
        command = elsewhere.command(place, PROGRAM, *build(copied[0], other))
        result = process.run(command, timeout=3000, cwd=place)
        made = built_image(result.stdout)
        assert made["layers_made"] == made["layers"]
        # The other place was one: files are the other user's, and its clock is ahead.
        assert other.blob(made["digest"]).stat().st_uid == elsewhere.UID
        clock = [sys.executable, "-c", "import time; print(time.time())"]
        ahead = float(process.run(elsewhere.command(place, *clock), timeout=60).stdout) - time.time()
        assert ahead > (elsewhere.DAYS - 1) * 86400
        assert made["digest"] == here["digest"]
        zstd = process.run([sys.executable, "-c", _ZSTD, recipe, store.root], timeout=600).stdout
        packing = elsewhere.command(place, sys.executable, "-c", _ZSTD, copied[0], other.root)
        assert process.run(packing, timeout=600, cwd=place).stdout == zstd != ""


def build(recipe: Path, store: Store) -> tuple[str | Path, ...]:
    return ("build", recipe, "--json", "--progress", "lines", "--store", store.root)
