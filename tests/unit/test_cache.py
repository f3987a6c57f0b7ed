from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagebuilder import cli
from imagebuilder.core.progress import no_advance
from imagebuilder.engines import steps
from imagebuilder.errors import InputError, StoreError
from imagebuilder.plan import WheelLayer
from imagebuilder.store import EMPTY_LAYER, ImageLayer, ImageRecord, LayerRecord, Store, cache
from imagebuilder.workflow import read_plans


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def add_layer(store: Store, number: int, size: int = 1000) -> LayerRecord:
    digest, size = store.put_bytes(bytes([number]) * size)
    record = LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")
    store.put_layer(f"{number:064x}", record)
    os.utime(store.blob(digest), (number, number))
    return record


def add_image(store: Store, name: str, *layers: LayerRecord) -> ImageRecord:
    config, manifest = (
        store.put_bytes(f"config {name}".encode()),
        store.put_bytes(f"manifest {name}".encode()),
    )
    image = ImageRecord(
        name=name,
        manifest=manifest[0],
        config=config[0],
        size=config[1] + manifest[1] + sum(layer.size for layer in layers),
        tag="tag",
        tags=("tag",),
        lock="0" * 64,
        layers=tuple(ImageLayer(record=layer, title="t", component="c") for layer in layers),
    )
    store.put_image(image)
    for path in (store.report(image.manifest), store.source(image.manifest)):
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    return image


def add_download(store: Store, number: int, size: int = 1000) -> Path:
    data = bytes([number]) * size
    digest, _ = store.put_bytes(data)
    path = store.download(digest.removeprefix("sha256:"))
    path.parent.mkdir(parents=True, exist_ok=True)
    store.blob(digest).rename(path)
    os.utime(path, (number, number))
    return path


def test_usage(store: Store) -> None:
    assert cache.usage(store).total == 0
    image = add_image(store, "demo", add_layer(store, 1))
    add_download(store, 9, size=500)
    found = cache.usage(store)
    assert (found.blob_bytes, found.blobs, found.download_bytes, found.downloads) == (image.size, 3, 500, 1)
    assert found.images == (image,)


def test_verify_finds_nothing_in_a_whole_store(store: Store) -> None:
    assert cache.verify(store, no_advance) == ()
    add_image(store, "demo", add_layer(store, 1))
    add_download(store, 9)
    counts: list[int] = []
    assert cache.verify(store, counts.append) == ()
    assert sum(counts) == cache.usage(store).total


def test_verify_names_what_rotted_and_removes_it_on_demand(store: Store) -> None:
    layer = add_layer(store, 1)
    download = add_download(store, 9)
    for path in (store.blob(layer.digest), download):
        path.chmod(0o644)
        path.write_bytes(b"!" * 1000)
    store.layer_path("f" * 64).write_text("{")
    bad = {store.blob(layer.digest), download, store.layer_path("f" * 64)}
    assert {damage.path for damage in cache.verify(store, no_advance)} == bad
    assert all(path.exists() for path in bad)
    cache.verify(store, no_advance, remove=True)
    assert not any(path.exists() for path in bad)
    assert store.layer("1".zfill(64)) is None


def test_prune_to_nothing(store: Store) -> None:
    add_image(store, "demo", add_layer(store, 1), add_layer(store, 2))
    add_download(store, 9)
    pruned = cache.prune(store)
    assert pruned.files == 5
    assert cache.usage(store).total == 0
    assert store.image_names() == ()
    assert store.layer_keys() == ()
    assert not [*(store.root / "reports").iterdir(), *(store.root / "sources").iterdir()]


def test_prune_keeps_what_is_dear(store: Store) -> None:
    orphans = [add_layer(store, number) for number in (1, 2)]
    image = add_image(store, "demo", add_layer(store, 3))
    old, new = add_download(store, 4), add_download(store, 5)
    cache.prune(store, keep_bytes=cache.usage(store).total - 1)
    assert [store.has_blob(layer.digest) for layer in orphans] == [False, True]
    cache.prune(store, keep_bytes=image.size + 1000)
    assert not store.has_blob(orphans[1].digest)
    assert (old.exists(), new.exists()) == (False, True)
    assert store.image("demo") == image
    assert store.report(image.manifest).exists()
    assert store.source(image.manifest).exists()


def test_prune_leaves_layers_that_another_image_uses(store: Store) -> None:
    shared, own = add_layer(store, 1), add_layer(store, 2)
    add_image(store, "old", shared, own)
    kept = add_image(store, "new", shared)
    os.utime(store.image_path("old"), (1, 1))
    cache.prune(store, keep_bytes=kept.size)
    assert store.image("old") is None
    assert store.image("new") == kept
    assert not store.has_blob(own.digest)


def test_prune_removes_nothing_when_there_is_room(store: Store) -> None:
    add_layer(store, 1)
    assert cache.prune(store, keep_bytes=10_000).files == 0


def test_a_dry_run_tells_what_would_go_and_leaves_it(store: Store) -> None:
    add_image(store, "demo", add_layer(store, 1), add_layer(store, 2))
    add_download(store, 9)
    before = sorted(store.root.rglob("*.json")), cache.usage(store)
    with store.in_use():
        told = cache.prune(store, dry_run=True)
    assert (sorted(store.root.rglob("*.json")), cache.usage(store)) == before
    assert cache.prune(store) == told


@pytest.mark.parametrize("words", [(), ("--all", "--keep", "1GB"), ("--keep", "1GB", "--keep-recipe", "x")])
def test_prune_asks_how_much(
    store: Store,
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_image(store, "demo", add_layer(store, 1))
    monkeypatch.setattr("sys.argv", ["imagebuilder", "cache", "prune", *words, "--store", str(store.root)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == InputError.exit_code
    assert "give --keep SIZE, e.g. --keep 20GB, or --keep-recipe RECIPE, or --all" in capsys.readouterr().err
    assert store.image("demo") is not None


def test_what_recipes_need_stays_and_nothing_else(store: Store) -> None:
    shared, own, other = (add_layer(store, number) for number in (1, 2, 3))
    kept = add_image(store, "kept", shared)
    add_image(store, "other", shared, other)
    wanted, unwanted = add_download(store, 8), add_download(store, 9)
    needed = cache.Needed(
        images=frozenset({"kept"}), layers=frozenset({f"{2:064x}"}), downloads=frozenset({wanted.name})
    )
    told = cache.prune_to(store, needed, dry_run=True)
    assert unwanted.exists()
    # The other image's layer, manifest and config, and a download.
    assert told.files == 4
    assert cache.prune_to(store, needed) == told
    assert store.image("kept") == kept
    assert store.image_names() == ("kept",)
    assert store.layer_keys() == (f"{1:064x}", f"{2:064x}")
    assert [store.has_blob(layer.digest) for layer in (shared, own, other)] == [True, True, False]
    assert (wanted.exists(), unwanted.exists()) == (True, False)
    with store.in_use(), pytest.raises(StoreError, match="in use by a running build"):
        cache.prune_to(store, needed)


def test_a_recipe_needs_the_downloads_of_layers_that_are_not_made(store: Store) -> None:
    ((lock, plan),) = read_plans(Path(__file__).parents[2] / "recipes" / "cpu-mpi.yaml")
    needed = steps.needed([plan], store)
    assert needed.images == {"cpu-mpi"}
    assert needed.downloads == {package.sha256 for package in lock.files}
    missing = next(layer for layer in plan.layers if isinstance(layer, WheelLayer))
    for layer in plan.layers:
        if layer != missing:
            store.put_layer(layer.key, EMPTY_LAYER)
    assert steps.needed([plan], store).downloads == {wheel.sha256 for wheel in missing.wheels}


def test_shares_tell_what_each_recipe_has_alone(store: Store) -> None:
    shared, own = add_layer(store, 1), add_layer(store, 2, 500)
    add_layer(store, 3, 70)
    texts = {name: len(f"config {name}manifest {name}") for name in ("a", "b")}
    add_image(store, "a", shared, own)
    add_image(store, "b", shared)
    assert cache.shares(store) == (
        (
            cache.Share(recipe="a", bytes=1500 + texts["a"], alone=500 + texts["a"]),
            cache.Share(recipe="b", bytes=1000 + texts["b"], alone=texts["b"]),
        ),
        70,
    )
    assert cache.shares(Store(store.root / "none")) == ((), 0)


def test_du_prints_recipes_the_rest_and_the_downloads(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_image(store, "a", add_layer(store, 1), add_layer(store, 2, 5000))
    add_image(store, "b", add_layer(store, 1))
    add_layer(store, 3, 70)
    add_download(store, 9)
    monkeypatch.setattr("sys.argv", ["imagebuilder", "cache", "du", "--store", str(store.root)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == (
        "a                      6.0 kB, 5.0 kB of it used by no other\n"
        "b                      1.0 kB, 18 B of it used by no other\n"
        "in no image              70 B\n"
        "downloads              1.0 kB, needed again only for layers that change\n"
    )


def test_prune_waits_for_no_build(store: Store) -> None:
    add_layer(store, 1)
    with store.in_use(), pytest.raises(StoreError, match="in use by a running build"):
        cache.prune(store)
    assert cache.usage(store).blobs == 1


def test_a_store_that_is_not_there_stays_so(store: Store) -> None:
    assert cache.prune(store).files == 0
    assert cache.verify(store, no_advance, remove=True) == ()
    assert not store.root.exists()


def test_records_of_empty_layers_need_no_file_and_are_never_pruned(store: Store) -> None:
    """Finding out again that a layer is empty would download its wheels again."""
    store.put_layer("a" * 64, EMPTY_LAYER)
    assert store.layer("a" * 64) == EMPTY_LAYER
    assert cache.verify(store, no_advance) == ()
    cache.prune(store)
    assert store.layer("a" * 64) == EMPTY_LAYER
