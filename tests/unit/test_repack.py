"""Layers packed with zstd: the same bytes everywhere, the same image, and the proofs that go with it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from imagebuilder.cli import app
from imagebuilder.core import tarstream
from imagebuilder.errors import EnvironmentFault, InputError, StoreError
from imagebuilder.image import repack
from imagebuilder.publish.attest import published
from imagebuilder.publish.verify import rebuild_check
from imagebuilder.registry import Client, Options, parse, reader
from imagebuilder.registry.credentials import ANONYMOUS
from imagebuilder.smoke import report as reports
from imagebuilder.smoke import verdict
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import labels
from imagebuilder.workflow import source as sources
from imagebuilder.workflow.rebuild import Rebuilt
from tests.support.fake_registry import FakeRegistry, serve
from tests.support.images import noise, put_image
from tests.support.proven import RECIPE, put_both, put_proven, report_of

# Larger than a job of libzstd's threads, which take 32 MiB each with this window.
LARGE = (bytes(range(256)) * 64 + noise(5, 4096)) * 3500
ZSTD = tarstream.zstd()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serve(FakeRegistry()) as running:
        yield running


def test_the_bytes_depend_on_neither_threads_nor_machines(store: Store) -> None:
    image = put_image(store, [{"large": LARGE}])
    (layer,) = image.layers
    made = [repack.compress(layer.record, store, workers) for workers in (1, 2, 7)]
    assert len({record.digest for record in made}) == 1
    # Written down: whatever changes this changes the digest of every image that was pushed.
    assert made[0].digest == "sha256:cf617b10934102e4d5143f75e98ce94f32289a9db0b0cc520c9807bacebca408"
    assert tarstream.digests(store.blob(made[0].digest)) == (
        made[0].digest,
        layer.record.diff_id,
        layer.record.unpacked,
    )


def test_the_image_stays_what_it_is(store: Store) -> None:
    image = put_image(store, [{"a": b"a" * 90_000}, {"b": noise(3, 5000)}])
    done: list[int] = []
    packed = repack.repack(image, store, done.append)
    sent = packed.images[image.manifest]
    assert packed.whole is sent
    assert (sent.config, sent.name, sent.tags) == (image.config, image.name, image.tags)
    assert sent.manifest != image.manifest
    manifest = json.loads(store.blob(sent.manifest).read_bytes())
    assert {layer["mediaType"] for layer in manifest["layers"]} == {repack.MEDIA_TYPE}
    assert [layer["digest"] for layer in manifest["layers"]] == [row.record.digest for row in sent.layers]
    assert [row.record.diff_id for row in sent.layers] == [row.record.diff_id for row in image.layers]
    assert sum(done) == sum(row.record.size for row in image.layers)
    assert sent.size == len(store.blob(sent.manifest).read_bytes()) + manifest["config"]["size"] + sum(
        layer["size"] for layer in manifest["layers"]
    )
    assert store.image(image.name) == image  # the store's own image is still the one that was built
    assert repack.repack(sent, store).whole == sent  # nothing is packed twice


def test_a_layer_is_packed_once_and_never_read_again(store: Store) -> None:
    image = put_image(store, [{"a": noise(1, 5000)}, {"b": noise(2, 5000)}])
    first = repack.repack(image, store).whole
    for layer in image.layers:
        store.blob(layer.record.digest).unlink()
    assert repack.repack(image, store).whole == first
    # Another layer in its place: only that one is packed.
    changed = put_image(store, [{"a": noise(1, 5000)}, {"b": noise(9, 5000)}], label="two")
    done: list[int] = []
    repack.repack(changed, store, done.append)
    assert done == [changed.layers[1].record.size]


def test_another_libzstd_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    image = put_image(store, [{"a": b"a"}])
    monkeypatch.setattr(ZSTD, "zstd_version", "1.5.8")
    with pytest.raises(EnvironmentFault) as caught:
        repack.repack(image, store)
    assert "this Python has libzstd 1.5.8, and layers are packed with 1.5.7" in str(caught.value)
    assert "--compression gzip" in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_damaged_layer_is_refused(store: Store, damage: str) -> None:
    image = put_image(store, [{"a": noise(1, 50_000)}])
    record = image.layers[0].record
    place = store.blob(record.digest)
    other = put_image(store, [{"a": noise(2, 50_000)}]).layers[0].record
    data = place.read_bytes()[:-30_000] if damage == "cut" else store.blob(other.digest).read_bytes()
    place.unlink()
    place.write_bytes(data)
    before = set(store.blob(record.digest).parent.iterdir())
    with pytest.raises(StoreError, match="the layer is damaged"):
        repack.repack(image, store)
    assert store.layer(repack.key(record.diff_id)) is None
    assert set(store.blob(record.digest).parent.iterdir()) == before


def test_hostile_frames_are_bounded(tmp_path: Path) -> None:
    """A frame may ask for a window of gigabytes, or unpack to a thousand times its size."""
    bomb, window = tmp_path / "bomb", tmp_path / "window"
    parameter = ZSTD.CompressionParameter
    bomb.write_bytes(ZSTD.compress(bytes(1 << 20)) * 3000)
    wide = ZSTD.ZstdCompressor(options={parameter.window_log: 30})
    window.write_bytes(wide.compress(noise(1, 300_000)) + wide.flush())
    for path in (bomb, window):
        digest, diff_id, size = tarstream.digests(path)
        assert (digest, diff_id, size) == (f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}", "", 0)


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout or result.stderr


def remembered(store: Store) -> ImageRecord:
    image, source = put_proven(store)
    sources.remember(store, image.manifest, source)
    return image


def layer_types(registry: FakeRegistry, name: str, tag: str) -> set[str]:
    client = Client(parse(f"{registry.host}/{name}:{tag}"), Options(credentials=ANONYMOUS))
    return {layer.media_type for layer in reader.image_manifest(client, tag)[1].layers}


@pytest.mark.slow
def test_a_push_with_zstd_is_proven_verified_and_promoted(
    store: Store, registry: FakeRegistry, tmp_path: Path
) -> None:
    image = remembered(store)
    place, own = f"{registry.host}/team/cpu", ("--store", store.root)
    found = json.loads(run("push", RECIPE, f"{place}:one", "--compression", "zstd", "--json", *own))["result"]
    sent = repack.repack(image, store).whole
    assert found["digest"] == sent.manifest != image.manifest
    assert layer_types(registry, "team/cpu", "one") == {repack.MEDIA_TYPE}
    out = run("verify", f"{place}:one", *own)
    assert out.splitlines()[-1] == "verified"
    assert "12 of them are what this host's store made itself" in out
    (shown,) = json.loads(run("inspect", f"{place}:one", "--json", *own))["result"]["images"]
    assert (shown["verdict"], shown["digest"]) == ("passed", sent.manifest)
    assert "tags " in run("promote", f"{place}:one", "--tag", "proven")
    # The same image in gzip stands beside it, with the same config; a second push of either sends nothing.
    run("push", RECIPE, f"{place}:two", "--move", *own)
    again = json.loads(
        run("push", "cpu-mpi", f"{place}:one", "--move", "--compression", "zstd", "--json", *own)
    )["result"]
    assert (again["digest"], again["pushed_blobs"]) == (sent.manifest, 0)
    # A report that is made elsewhere of the gzip image proves this one too, by the name of either.
    report = tmp_path / "report.json"
    report.write_text(reports.dumps(report_of(image)), encoding="utf-8")
    assert sent.manifest in run("report", report, "--attach", f"{place}:one")
    assert image.manifest in run("report", report, "--attach", place)


@pytest.mark.slow
def test_a_recipe_says_how_its_layers_are_packed(
    store: Store, registry: FakeRegistry, tmp_path: Path
) -> None:
    recipe = tmp_path / "cpu-mpi.yaml"
    more = 'compression: zstd\nhosts: {runtimes: ["docker 20.10", "podman 5.4"]}\n'
    recipe.write_text(RECIPE.read_text(encoding="utf-8") + more, encoding="utf-8")
    recipe.with_suffix(".lock").write_bytes(RECIPE.with_suffix(".lock").read_bytes())
    remembered(store)
    own = ("--store", store.root)
    words = ["push", str(recipe), f"{registry.host}/a/b:x", "--store", str(store.root)]
    pushed = CliRunner().invoke(app, words, catch_exceptions=False)  # the lock is not stale
    assert [line for line in pushed.stderr.splitlines() if line.startswith("warning:")] == [
        "warning: docker 20.10 cannot pull layers packed with zstd (23.0 can): push with --compression gzip"
    ]
    assert layer_types(registry, "a/b", "x") == {repack.MEDIA_TYPE}
    run("push", recipe, f"{registry.host}/a/b:y", "--compression", "gzip", "--move", *own)
    assert layer_types(registry, "a/b", "y") == {"application/vnd.oci.image.layer.v1.tar+gzip"}
    with pytest.raises(InputError, match="`lzma` is unknown: choose gzip or zstd"):
        run("push", recipe, f"{registry.host}/a/b:y", "--compression", "lzma", *own)


@pytest.mark.slow
def test_an_index_joins_images_with_zstd(store: Store, registry: FakeRegistry, tmp_path: Path) -> None:
    recipe = put_both(tmp_path, store)
    place = f"{registry.host}/team/both"
    run("push", recipe, f"{place}:all", "--compression", "zstd", "--store", store.root)
    client = Client(parse(f"{place}:all"), Options(credentials=ANONYMOUS))
    index = reader.image_index(client, "all")
    assert index is not None
    digests = [entry.digest for entry in index[1].manifests]
    assert digests == [repack.repack(image, store).whole.manifest for image in store.images("both")]
    assert run("verify", f"{place}:all", "--store", store.root).splitlines()[-1] == "verified"
    joined = run("join", *(f"{place}@{digest}" for digest in digests), "--tag", "joined")
    assert index[0].digest in joined
    (first, _) = store.images("both")
    run("push", recipe, f"{place}:one", "--platform", first.platform, "--compression", "zstd", "--move",
        "--store", store.root)  # fmt: skip


@pytest.mark.slow
def test_a_report_counts_for_every_packing_of_its_image_and_for_no_other(
    store: Store, registry: FakeRegistry
) -> None:
    image = remembered(store)
    place, own = f"{registry.host}/team/cpu", ("--store", store.root)
    made = report_of(image)

    def verdict_of(**changes: Any) -> str:
        registry.manifests.clear()
        reports.write(made.model_copy(update=changes), store.report(image.manifest))
        run("push", RECIPE, f"{place}:one", "--compression", "zstd", "--untested", *own)
        read = published.read(published.open_image(f"{place}:one", Options(credentials=ANONYMOUS)))
        from imagebuilder.publish.attest import reports as attached

        return attached.attached(read)[0].verdict

    assert verdict_of() == "passed"
    # Who reads it believes no other config, and no report of before that names none.
    read = published.read(published.open_image(f"{place}:one", Options(credentials=ANONYMOUS)))
    from imagebuilder.publish import proof

    for config in (f"sha256:{'0' * 64}", ""):
        data = reports.dumps(made.model_copy(update={"config": config})).encode()
        assert not proof.judge(data, read.content).is_about_image
        assert verdict.read(data).digest == image.manifest
    with pytest.raises(InputError, match="does not name the image's config"):
        verdict_of(config="")
    assert labels(image, store)  # the store's own image is untouched


def test_results_of_an_image_hold_for_its_other_packing(store: Store) -> None:
    """What only counts below the user's own files is the config: it has the diffIDs."""
    from imagebuilder.smoke import reuse

    image, _ = put_proven(store)
    sent = repack.repack(image, store).whole
    one, two = reuse.stored(image.manifest, store), reuse.stored(sent.manifest, store)
    assert one is not None
    assert two is not None
    assert (one.below, one.config_digest) == (two.below, two.config_digest)
    assert one.layers != two.layers
    assert dataclasses.replace(one, layers=two.layers, digest=two.digest) == two


@pytest.mark.slow
def test_a_rebuild_of_what_zstd_packed_packs_it_again(store: Store, registry: FakeRegistry) -> None:
    image = remembered(store)
    place = f"{registry.host}/team/cpu"
    run("push", RECIPE, f"{place}:one", "--compression", "zstd", "--store", store.root)
    read = published.read(published.open_image(f"{place}:one", Options(credentials=ANONYMOUS)))
    asked: list[bool] = []

    def rebuild(*words: Any) -> Rebuilt:
        asked.append(words[-1])
        sent = repack.repack(image, store).images[image.manifest] if words[-1] else image
        layers = tuple(layer.record.digest for layer in sent.layers)
        return Rebuilt(digest=sent.manifest, layers=layers, seconds=1.0)

    check = rebuild_check(sources.recall(store, image), read, rebuild)
    assert (check.status, asked) == ("passed", [True])


@pytest.mark.slow
def test_a_job_names_what_the_push_sends(store: Store, registry: FakeRegistry, tmp_path: Path) -> None:
    recipe = tmp_path / "cpu-mpi.yaml"
    recipe.write_text(RECIPE.read_text(encoding="utf-8") + "compression: zstd\n", encoding="utf-8")
    recipe.with_suffix(".lock").write_bytes(RECIPE.with_suffix(".lock").read_bytes())
    image, own = remembered(store), ("--store", store.root)
    place = f"{registry.host}/team/cpu"
    job = ("--target", "jobset", "--repository", place, "--output", tmp_path / "job", *own, "--", "true")
    with pytest.raises(StoreError, match="its layers are not packed with zstd yet"):
        run("launch", recipe, *job)
    run("push", recipe, f"{place}:x", *own)
    run("launch", recipe, *job)
    made = (tmp_path / "job" / "job.yaml").read_text(encoding="utf-8")
    assert repack.packed(image, store).manifest in made
    assert image.manifest not in made
