"""Building again: the same digest is said, and a planted difference is found and named, file by file."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.core.progress import LineProgress, no_advance
from imagebuilder.engines import embedded
from imagebuilder.engines.embedded import BuildContext
from imagebuilder.fetch import locked
from imagebuilder.host.site import Site
from imagebuilder.image import oci
from imagebuilder.layers.stargz import compress_tar
from imagebuilder.store import Store
from imagebuilder.workflow import reproduce
from tests.support import wheelimage

PLANTED = "part1/data.bin"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    wheelimage.make_wheels(tmp_path / "wheels", count=3, size=2000)
    return tmp_path / "wheels"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def prepared(wheels: Path, store: Store) -> tuple[Any, BuildContext]:
    plan, lock = wheelimage.plan(tuple(wheels.iterdir()))
    site = Site(no_index=True, wheel_folders=(str(wheels),))
    return plan, BuildContext(lock=lock, store=store, site=site, progress=LineProgress(io.StringIO()))


def test_an_image_that_comes_out_the_same_is_said_to(wheels: Path, store: Store) -> None:
    plan, context = prepared(wheels, store)
    first = embedded.build(plan, context)
    verdict = reproduce.verify(plan, first.image, context)
    assert verdict.same
    assert (verdict.layers, verdict.config) == ((), ())
    assert list(reproduce.lines(verdict)) == [
        f"again   the same digest from a fresh store, in {verdict.seconds:.1f} s"
    ]


def test_layers_are_made_anew_and_downloads_are_not_fetched_again(
    wheels: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, context = prepared(wheels, store)
    first = embedded.build(plan, context)
    built = []
    real = embedded.build

    def watched(*words: Any) -> Any:
        built.append(real(*words))
        return built[0]

    monkeypatch.setattr(embedded, "build", watched)
    reproduce.verify(plan, first.image, context)
    assert (built[0].made, built[0].reused, built[0].fetched) == (4, 0, 0)


def test_nothing_remains_of_the_second_store(wheels: Path, store: Store) -> None:
    plan, context = prepared(wheels, store)
    first = embedded.build(plan, context)
    before = {path for path in store.root.rglob("*") if "locks" not in path.parts}
    reproduce.verify(plan, first.image, context)
    assert {path for path in store.root.rglob("*") if "locks" not in path.parts} == before


def plant(store: Store, plan: Any, change: Callable[[tarfile.TarInfo, bytes], bytes | None]) -> Any:
    """Put another layer in the place of one that was made, as if its maker had not been reproducible."""
    for layer in plan.layers:
        record = store.layer(layer.key)
        assert record is not None
        with gzip.open(store.blob(record.digest)) as stream, tarfile.open(fileobj=stream) as tar:
            members = [(m, file.read() if (file := tar.extractfile(m)) else b"") for m in tar]
        if not any(member.name.endswith(PLANTED) for member, _ in members):
            continue
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for member, content in members:
                changed = change(member, content) if member.name.endswith(PLANTED) else content
                if changed is not None:
                    member.size = len(changed) if member.isreg() else 0
                    tar.addfile(member, io.BytesIO(changed))
        buffer.seek(0)
        store.put_layer(layer.key, compress_tar(buffer, store, no_advance))
        records = [found for each in plan.layers if (found := store.layer(each.key))]
        return oci.write_image(plan, records, store)
    raise AssertionError(PLANTED)


def other_content(_: tarfile.TarInfo, content: bytes) -> bytes:
    return b"planted" + content[7:]


def other_mode(member: tarfile.TarInfo, content: bytes) -> bytes:
    member.mode ^= 0o111
    return content


def no_file(_: tarfile.TarInfo, __: bytes) -> None:
    return None


@pytest.mark.parametrize(
    ("change", "what"), [(other_content, "content"), (other_mode, "mode"), (no_file, "missing")]
)
def test_a_planted_difference_is_found_and_named(
    change: Callable[[tarfile.TarInfo, bytes], bytes | None], what: str, wheels: Path, store: Store
) -> None:
    plan, context = prepared(wheels, store)
    embedded.build(plan, context)
    planted = plant(store, plan, change)
    verdict = reproduce.verify(plan, planted, context)
    assert not verdict.same
    (layer,) = verdict.layers
    files = layer.difference.files
    assert [(file.path.endswith(PLANTED), file.what) for file in files] == [(True, (what,))]
    told = "\n".join(reproduce.lines(verdict))
    assert PLANTED in told
    assert f"{what}: " in told
    assert "1 file differs" in told


def test_the_order_in_which_downloads_arrive_does_not_count(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    real = locked.fetch
    for turn in range(3):

        def in_turn(packages: Sequence[Any], *words: Any, turn: int = turn, **more: Any) -> None:
            for package in (*packages[turn:], *packages[:turn])[:: -1 if turn % 2 else 1]:
                real([package], *words, **more)

        monkeypatch.setattr(locked, "fetch", in_turn)
        digests.add(wheelimage.build(wheels, Store(tmp_path / f"store{turn}")).image.manifest)
    assert len(digests) == 1


def test_a_layer_that_only_one_build_has_is_named(wheels: Path, store: Store) -> None:
    """A module at the compiler's limits may compile on one host and not on another."""
    plan, context = prepared(wheels, store)
    first = embedded.build(plan, context).image
    gone, more = first.layers[0], replace(first.layers[0], title="more")
    shorter = replace(first, manifest=first.config, layers=first.layers[1:])
    longer = replace(first, manifest=first.config, layers=(*first.layers, more))
    for image, layer, whose in ((shorter, gone, "second"), (longer, more, "first")):
        verdict = reproduce.verify(plan, image, context)
        assert not verdict.same
        digests = {"first": "", "second": "", whose: layer.record.digest}
        assert [(one.title, one.first, one.second) for one in verdict.layers] == [
            (layer.title, digests["first"], digests["second"])
        ]
        assert f"layer   {layer.title}: only the {whose} build has this layer" in list(
            reproduce.lines(verdict)
        )
