"""The shipped recipes against the real package index, as this host reaches it."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from imagebuilder import catalog, recipe
from imagebuilder.catalog import select
from imagebuilder.errors import ConflictError
from imagebuilder.fetch.download import Download, fetch
from imagebuilder.host.site import detect
from imagebuilder.resolve.python import locate_wheels, resolve_wheels
from imagebuilder.resolve.request import Request, request
from imagebuilder.store import Store

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
GLIBC = "2.41"  # trixie's


def asked(name: str, **pins: str) -> Request:
    shipped = recipe.load(RECIPES / f"{name}.yaml", catalog.names())
    return request(select(shipped.model_copy(update={"pins": {**shipped.pins, **pins}})))


def test_the_cuda_recipe_resolves_to_what_its_pins_say() -> None:
    wanted = asked("cuda12-torch")
    wheels, overrides = resolve_wheels(wanted, GLIBC, detect())
    versions = {wheel.name: wheel.version for wheel in wheels}
    assert all(catalog.matches(versions[pin.package], pin.value) for pin in wanted.wheel_pins)
    assert overrides == ()
    torch = next(wheel for wheel in wheels if wheel.name == "torch")
    assert torch.size > 500_000_000
    assert "cp313" in torch.file
    assert resolve_wheels(wanted, GLIBC, detect(), keep=wheels)[0] == wheels


def test_a_real_conflict_names_torch_and_the_value_that_works() -> None:
    with pytest.raises(ConflictError) as error:
        resolve_wheels(asked("cuda12-torch", nccl="2.28.9"), GLIBC, detect())
    assert str(error.value) == (
        'cuda12-torch: pins.nccl: nccl "2.28.9" clashes: torch 2.10.0 requires nvidia-nccl-cu12==2.27.5\n'
        '  -> set nccl: "2.27.5", or force it with `override: [nccl]`'
    )


def test_torch_for_another_cuda_is_a_conflict() -> None:
    with pytest.raises(ConflictError, match=r"torch 2\.11\.0 loads nvidia-cuda-runtime, nvidia-cudnn-cu13"):
        resolve_wheels(asked("cuda12-torch", torch="2.11.0"), GLIBC, detect())


def test_locked_wheels_are_located_and_arrive_as_locked(tmp_path: Path) -> None:
    site = detect()
    wheels, _ = resolve_wheels(asked("cpu-mpi"), GLIBC, site)
    places = locate_wheels(wheels, "3.13", GLIBC, site)
    items = [
        Download(name=wheel.file, urls=places[wheel.sha256], size=wheel.size, sha256=wheel.sha256)
        for wheel in wheels
    ]
    received: Counter[str] = Counter()
    finished: list[str] = []
    store = Store(tmp_path)
    fetch(items, store, site, lambda sha256, count: received.update({sha256: count}), finished.append)
    assert sorted(finished) == sorted(wheel.sha256 for wheel in wheels)
    assert received == {wheel.sha256: wheel.size for wheel in wheels}
    for wheel in wheels:
        assert hashlib.sha256(store.download(wheel.sha256).read_bytes()).hexdigest() == wheel.sha256
