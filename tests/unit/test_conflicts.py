from pathlib import Path

import pytest

from imagebuilder.catalog import select
from imagebuilder.errors import ConflictError
from imagebuilder.host.site import Site
from imagebuilder.resolve.python import resolve_wheels
from imagebuilder.resolve.request import request
from imagebuilder.store import Store
from imagebuilder.workflow.locking import update_lock
from tests.support.wheelfolder import put, torch_world
from tests.unit import samples

PINS = {"cuda": "12.8", "cudnn": "9.10", "nccl": "2.27.5", "torch": "2.10.0"}


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "uv"))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    return torch_world(tmp_path / "wheels")


def conflict(world: Path, pins: dict[str, str] | None = None, **changes: object) -> str:
    """Resolve with some pins changed, and give what the user reads."""
    asked = request(select(samples.recipe(**{"pins": {**PINS, **(pins or {})}, **changes})))
    with pytest.raises(ConflictError) as error:
        resolve_wheels(asked, "2.41", Site(no_index=True, wheel_folders=(str(world),)))
    return str(error.value)


def test_both_parties_and_the_ways_out_are_named(world: Path) -> None:
    assert conflict(world, {"nccl": "2.28.9"}) == (
        'sample: pins.nccl: nccl "2.28.9" clashes: torch 2.10.0 requires nvidia-nccl-cu12==2.27.5\n'
        '  -> set nccl: "2.27.5", or force it with `override: [nccl]`'
    )


def test_the_other_party_s_value_is_offered_where_there_is_one(world: Path) -> None:
    assert conflict(world, {"nccl": "2.26.2"}) == (
        'sample: pins.nccl: nccl "2.26.2" clashes: torch 2.10.0 requires nvidia-nccl-cu12==2.27.5\n'
        '  -> set nccl: "2.27.5", or torch: "2.9.1", which needs nvidia-nccl-cu12 2.26.2, '
        "or force it with `override: [nccl]`"
    )


def test_a_newer_value_of_the_other_party_is_found_too(world: Path) -> None:
    text = conflict(world, {"torch": "2.9.1"})
    assert 'set nccl: "2.26.2", or torch: "2.10.0", which needs nvidia-nccl-cu12 2.27.5' in text


def test_all_conflicts_are_told_at_once(world: Path) -> None:
    assert conflict(world, {"cuda": "12.9", "cudnn": "9.9", "nccl": "2.28.9"}).splitlines() == [
        'sample: pins.cuda: cuda "12.9" clashes: torch 2.10.0 requires nvidia-cuda-runtime-cu12==12.8.90',
        '  -> set cuda: "12.8", or force it with `override: [cuda]`',
        'sample: pins.cudnn: cudnn "9.9" clashes: torch 2.10.0 requires nvidia-cudnn-cu12==9.10.2.21',
        '  -> set cudnn: "9.10", or force it with `override: [cudnn]`',
        'sample: pins.nccl: nccl "2.28.9" clashes: torch 2.10.0 requires nvidia-nccl-cu12==2.27.5',
        '  -> set nccl: "2.27.5", or force it with `override: [nccl]`',
    ]


def test_a_pin_that_is_forced_leaves_the_other_conflicts(world: Path) -> None:
    text = conflict(world, {"cudnn": "9.9", "nccl": "2.28.9"}, override=("nccl",))
    assert "pins.cudnn" in text
    assert "pins.nccl" not in text


def test_a_value_that_does_not_exist_comes_with_its_neighbours(world: Path) -> None:
    assert conflict(world, {"torch": "9.9.9"}) == (
        'sample: pins.torch: torch 9.9.9 does not exist\n  -> the nearest is "2.11.0"'
    )
    assert 'the nearest is "9.10" or "9.24"' in conflict(world, {"cudnn": "9.12"})


def test_pins_that_nobody_would_load_are_a_conflict(world: Path) -> None:
    assert conflict(world, {"torch": "2.11.0"}) == (
        "sample: pins.torch: torch 2.11.0 loads nvidia-cuda-runtime, nvidia-cudnn-cu13, nvidia-nccl-cu13, "
        'so these pins would never be loaded: cuda "12.8" (nvidia-cuda-runtime-cu12), '
        'cudnn "9.10" (nvidia-cudnn-cu12), nccl "2.27.5" (nvidia-nccl-cu12)\n'
        '  -> with torch 2.11.0 set cuda: "13.0", cudnn: "9.19", nccl: "2.28.9"; '
        'or keep these pins and set torch: "2.10.0"'
    )


def test_a_build_that_loads_none_of_the_pins_is_a_conflict(world: Path) -> None:
    put(world, "torch", "2.12.0+cpu", ["filelock"], tag="cp313-cp313-linux_x86_64")
    text = conflict(world, {"torch": "2.12.0"})
    assert "torch 2.12.0+cpu loads none of them, so these pins would never be loaded" in text
    assert 'keep these pins and set torch: "2.10.0"' in text


def test_idle_pins_are_told_beside_other_conflicts(world: Path) -> None:
    text = conflict(world, {"torch": "2.11.0", "nccl": "2.99"})
    assert "pins.nccl: nvidia-nccl-cu12 2.99 does not exist" in text
    assert "torch 2.11.0 loads nvidia-cuda-runtime, nvidia-cudnn-cu13, so these pins" in text


def test_a_python_without_wheels_is_told_which_would_work(world: Path) -> None:
    assert conflict(world, {"torch": "2.1.2"}) == (
        "sample: pins.torch: torch 2.1.2 has no wheel for Python 3.13 and glibc 2.41 on amd64\n"
        '  -> it has some for Python 3.11; for Python 3.13 there is "2.9.1"'
    )


def test_a_c_library_that_is_too_old_is_told(world: Path) -> None:
    put(world, "new", "1.0", tag="cp313-cp313-manylinux_2_45_x86_64")
    assert "pip[0]: new 1.0 has no wheel that runs on glibc 2.41, amd64" in conflict(world, pip=("new==1.0",))


def test_an_unknown_distribution_is_named_with_its_place(world: Path) -> None:
    assert conflict(world, pip=("tensorboard", "pandsa")) == (
        "sample: pip[1]: the package index has no `pandsa`\n  -> perhaps you meant `pandas`"
    )
    assert conflict(world, pip=("our-own-things",)) == (
        "sample: pip[0]: the package index has no `our-own-things`\n  -> check the spelling"
    )


@pytest.mark.parametrize(
    ("pins", "pip", "key"),
    [({"torch": "2.10.0+cpu"}, (), "pins.torch"), ({}, ("torch==2.10.0+cpu",), "pip[0]")],
)
def test_a_local_version_is_explained(
    pins: dict[str, str], pip: tuple[str, ...], key: str, world: Path
) -> None:
    assert conflict(world, pins, pip=pip) == (
        f"sample: {key}: torch 2.10.0+cpu does not exist\n"
        "  -> `+cpu` is a local version, and only an index of its own has such builds: name it under "
        "`extra_indexes:` of the site file (--site), or write 2.10.0"
    )


def test_another_cuda_comes_with_a_whole_set_that_works(world: Path) -> None:
    put(world, "nvidia-nccl-cu13", "0.0.0")  # a name that was only registered
    lines = conflict(world, {"cuda": "13.0"}).splitlines()
    assert lines[:4] == [
        "sample: pins.cudnn: nvidia-cudnn-cu13 9.10 does not exist",
        '  -> the nearest is "9.19"',
        "sample: pins.nccl: nvidia-nccl-cu13 2.27.5 does not exist",
        '  -> the nearest is "2.28.9"',
    ]
    assert lines[-1].startswith(
        '  -> change all at once: cudnn: "9.19", nccl: "2.28.9", torch: "2.11.0"; or '
    )
    whole = {"cuda": "13.0", "cudnn": "9.19", "nccl": "2.28.9", "torch": "2.11.0"}
    asked = request(select(samples.recipe(pins=whole)))
    assert resolve_wheels(asked, "2.41", Site(no_index=True, wheel_folders=(str(world),)))[0]


def test_a_requirement_that_contradicts_a_pin_names_the_pin(world: Path) -> None:
    assert conflict(world, pip=("tensorboard", "nvidia-nccl-cu12==2.28.9")) == (
        "sample: pip[1]: `nvidia-nccl-cu12==2.28.9` clashes: pins.nccl asks for nvidia-nccl-cu12==2.27.5.*; "
        "torch 2.10.0 requires nvidia-nccl-cu12==2.27.5\n"
        "  -> nvidia-nccl-cu12 2.27.5 would work"
    )


def test_a_requirement_whose_own_needs_clash_tells_the_solver_s_reason(world: Path) -> None:
    put(world, "stubborn", "1.0", ["filelock<3"])
    put(world, "torch", "2.10.0", ["filelock>=3", "nvidia-nccl-cu12==2.27.5"], tag="cp313-cp313-linux_x86_64")
    text = conflict(world, pip=("stubborn",))
    assert "sample: pip[0]: `stubborn` does not fit with the rest" in text
    assert "filelock" in text


def test_a_pin_whose_own_needs_cannot_be_had_is_told(world: Path) -> None:
    put(world, "torch", "3.0", ["does-not-exist"], tag="cp313-cp313-linux_x86_64")
    text = conflict(world, {"torch": "3.0"})
    assert 'sample: pins.torch: torch "3.0"' in text
    assert "does-not-exist" in text


def test_a_missing_pin_does_not_hide_that_others_clash(world: Path, tmp_path: Path) -> None:
    path, site = tmp_path / "x.yaml", tmp_path / "site.yaml"
    site.write_text(f"no_index: true\nwheel_folders: [{world}]\n")
    text = 'name: x\nbase: debian:trixie\npython: "3.13"\npins:\n  nccl: "2.28.9"\n  torch: "2.10.0"\n'
    path.write_text(text)
    with pytest.raises(ConflictError) as caught:
        update_lock(path, site, None, Store(tmp_path / "store"), tools="host")
    assert str(caught.value).splitlines() == [
        f"{path}:5: pins.nccl: `nccl` needs `cuda`, which is not pinned",
        "  -> add `cuda:` under `pins:`",
        f'{path}:5: pins.nccl: nccl "2.28.9" clashes: torch 2.10.0 requires nvidia-nccl-cu12==2.27.5',
        '  -> set nccl: "2.27.5", or force it with `override: [nccl]`',
    ]
    path.write_text(text.replace("2.28.9", "2.27.5"))
    with pytest.raises(ConflictError) as caught:
        update_lock(path, site, None, Store(tmp_path / "store"), tools="host")
    assert len(caught.value.problems) == 1


def test_a_problem_beside_a_missing_pin_is_reported_once(world: Path, tmp_path: Path) -> None:
    path, site = tmp_path / "x.yaml", tmp_path / "site.yaml"
    site.write_text(f"no_index: true\nwheel_folders: [{world}]\n")
    path.write_text(
        'name: x\nbase: debian:trixie\npython: "3.13"\n'
        'pins:\n  mpich: "4.2.1"\n  nccl: "2.27.5"\n  openmpi: "5.0.7"\n'
    )
    with pytest.raises(ConflictError) as caught:
        update_lock(path, site, None, Store(tmp_path / "store"), tools="host")
    assert [problem.where for problem in caught.value.problems] == [
        f"{path}:5: pins.mpich",
        f"{path}:6: pins.nccl",
    ]
