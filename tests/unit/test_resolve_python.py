import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from imagebuilder.catalog import select
from imagebuilder.core import process
from imagebuilder.core.process import Result
from imagebuilder.errors import FetchError
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Wheel
from imagebuilder.resolve import uv, wheelfile
from imagebuilder.resolve.python import locate_wheels, resolve_wheels
from imagebuilder.resolve.request import Request, request
from imagebuilder.resolve.uv import File, Target
from tests.support.wheelfolder import put, put_index, torch_world
from tests.unit import samples

PINS = {"cuda": "12.8", "cudnn": "9.10", "nccl": "2.27.5", "torch": "2.10.0"}
GLIBC = "2.41"


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "uv"))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    return torch_world(tmp_path / "wheels")


def site(*folders: Path) -> Site:
    return Site(no_index=True, wheel_folders=tuple(str(folder) for folder in folders))


def asked(**changes: object) -> Request:
    return request(select(samples.recipe(**{"pins": PINS, **changes})))


def versions(wheels: tuple[Wheel, ...]) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in wheels}


def test_pins_and_all_they_need_become_wheels_sorted_by_name(world: Path) -> None:
    wheels, overrides = resolve_wheels(asked(), GLIBC, site(world))
    assert versions(wheels) == {
        "filelock": "3.20.0",
        "numpy": "2.3.0",
        "nvidia-cublas-cu12": "12.8.4.1",
        "nvidia-cuda-runtime-cu12": "12.8.90",
        "nvidia-cudnn-cu12": "9.10.2.21",
        "nvidia-nccl-cu12": "2.27.5",
        "pip": "25.3",
        "torch": "2.10.0",
    }
    assert list(versions(wheels)) == sorted(versions(wheels))
    assert overrides == ()


def test_a_wheel_is_named_by_its_bytes(world: Path) -> None:
    torch = resolve_wheels(asked(), GLIBC, site(world))[0][-1]
    content = (world / "torch-2.10.0-cp313-cp313-manylinux_2_28_x86_64.whl").read_bytes()
    assert (torch.file, torch.size, torch.sha256) == (
        "torch-2.10.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        len(content),
        hashlib.sha256(content).hexdigest(),
    )


def test_a_wheel_belongs_to_the_pin_that_brings_it_in(world: Path) -> None:
    wheels, _ = resolve_wheels(asked(pip=("tensorboard",)), GLIBC, site(world))
    assert {wheel.name: wheel.component for wheel in wheels} == {
        "filelock": "torch",
        "markdown": "python",
        "numpy": "torch",
        "nvidia-cublas-cu12": "torch",  # cuDNN wants it too, but torch brings in both
        "nvidia-cuda-runtime-cu12": "cuda",
        "nvidia-cudnn-cu12": "cudnn",
        "nvidia-nccl-cu12": "nccl",
        "pip": "python",
        "tensorboard": "python",
        "torch": "torch",
    }


def test_a_lock_stays_while_the_index_moves_on(world: Path) -> None:
    first, _ = resolve_wheels(asked(), GLIBC, site(world))
    put(world, "filelock", "4.0")
    put(world, "numpy", "2.4.0")
    assert resolve_wheels(asked(), GLIBC, site(world), keep=first) == (first, ())
    moved, _ = resolve_wheels(asked(), GLIBC, site(world), keep=first, upgrade=["numpy"])
    assert versions(moved) == {**versions(first), "numpy": "2.4.0"}
    everything, _ = resolve_wheels(asked(), GLIBC, site(world), keep=first, upgrade=[])
    assert versions(everything) == {**versions(first), "numpy": "2.4.0", "filelock": "4.0"}


def test_a_locked_file_stays_where_a_better_one_of_its_version_appears(world: Path) -> None:
    first, _ = resolve_wheels(asked(), GLIBC, site(world))
    put(world, "numpy", "2.3.0", tag="cp313-cp313-manylinux_2_28_x86_64")
    assert resolve_wheels(asked(), GLIBC, site(world), keep=first)[0] == first
    fresh, _ = resolve_wheels(asked(), GLIBC, site(world))
    assert fresh[1].file == "numpy-2.3.0-cp313-cp313-manylinux_2_28_x86_64.whl"


def test_a_changed_pin_moves_no_more_than_it_must(world: Path) -> None:
    first, _ = resolve_wheels(asked(), GLIBC, site(world))
    put(world, "filelock", "4.0")
    put(world, "numpy", "2.4.0")
    pins = {**PINS, "torch": "2.9.1", "nccl": "2.26.2"}
    second, _ = resolve_wheels(asked(pins=pins), GLIBC, site(world), keep=first)
    assert versions(second) == {**versions(first), "torch": "2.9.1", "nvidia-nccl-cu12": "2.26.2"}


def test_a_new_requirement_may_move_what_it_has_to(world: Path) -> None:
    first, _ = resolve_wheels(asked(), GLIBC, site(world))
    put(world, "picky", "1.0", ["filelock<3.20"])
    second, _ = resolve_wheels(asked(pip=("picky",)), GLIBC, site(world), keep=first)
    assert versions(second) == {**versions(first), "picky": "1.0", "filelock": "3.19.1"}


def test_a_forced_pin_says_whom_it_contradicts(world: Path) -> None:
    pins = {**PINS, "nccl": "2.28.9"}
    wheels, (override,) = resolve_wheels(asked(pins=pins, override=("nccl",)), GLIBC, site(world))
    assert versions(wheels)["nvidia-nccl-cu12"] == "2.28.9"
    assert (override.pin, override.wanted, override.locked) == ("nccl", "2.28.9", "2.28.9")
    assert override.contradicts == ("torch 2.10.0 requires nvidia-nccl-cu12==2.27.5",)


def test_forcing_what_nobody_objects_to_contradicts_nothing(world: Path) -> None:
    _, (override,) = resolve_wheels(asked(override=("nccl",)), GLIBC, site(world))
    assert override.contradicts == ()


def test_a_cpu_build_in_a_wheel_folder_is_taken_where_no_cuda_is_pinned(world: Path) -> None:
    put(world, "torch", "2.10.0+cpu", ["filelock"], tag="cp313-cp313-linux_x86_64")
    wheels, _ = resolve_wheels(asked(pins={"torch": "2.10.0"}), GLIBC, site(world))
    assert versions(wheels)["torch"] == "2.10.0+cpu"


def test_a_cpu_build_is_passed_over_where_cuda_is_pinned(world: Path) -> None:
    put(world, "torch", "2.10.0+cpu", ["filelock"], tag="cp313-cp313-linux_x86_64")
    wheels, _ = resolve_wheels(asked(), GLIBC, site(world))
    assert versions(wheels)["torch"] == "2.10.0"


def test_an_index_that_cannot_be_asked_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    closed = Site(index="http://me:geheim@127.0.0.1:9/simple")
    with pytest.raises(FetchError, match="the package index cannot be asked") as error:
        resolve_wheels(asked(), GLIBC, closed)
    assert error.value.problems[0].hint
    assert "geheim" not in str(error.value)


def test_credentials_of_indexes_and_proxies_are_in_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[tuple[str, str]] = []

    def keep(argv: Sequence[object], *, env: Mapping[str, str], **_options: object) -> Result:
        asked_for.append((" ".join(map(str, argv)), " ".join(env.values())))
        raise FetchError("enough")

    uv._known_glibc_minors("x86_64")
    monkeypatch.setattr(process, "run", keep)
    address = "http://me:geheim@index.example/simple"
    here = Site(
        index=address, extra_indexes=(address,), wheel_folders=(address,), proxies=(("https", address),)
    )
    with pytest.raises(FetchError):
        resolve_wheels(asked(), GLIBC, here)
    ((line, variables),) = asked_for
    assert "geheim" not in line
    assert "geheim" in variables


def test_locked_wheels_are_found_again(world: Path) -> None:
    wheels, _ = resolve_wheels(asked(), GLIBC, site(world))
    places = locate_wheels(wheels, "3.13", GLIBC, site(world))
    assert places == {wheel.sha256: ((world / wheel.file).as_uri(),) for wheel in wheels}


def test_two_locked_versions_of_a_package_are_found_together(world: Path) -> None:
    """The image has one; what is compiled for it is built with another."""
    locked = []
    for version in ("84.2.1", "80.10.2", "79.0.1"):
        file = put(world, "setuptools", version)
        locked.append(
            samples.wheel("setuptools", version).model_copy(
                update={"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            )
        )
    places = locate_wheels(locked, "3.13", GLIBC, site(world))
    assert places == {wheel.sha256: ((world / wheel.file).as_uri(),) for wheel in locked}


def test_every_locked_wheel_that_is_gone_or_changed_is_named(world: Path) -> None:
    wheels, _ = resolve_wheels(asked(), GLIBC, site(world))
    (world / "pip-25.3-py3-none-any.whl").unlink()
    put(world, "numpy", "2.3.0", content=b"other")
    with pytest.raises(FetchError) as error:
        locate_wheels(wheels, "3.13", GLIBC, site(world))
    assert [problem.message for problem in error.value.problems] == [
        "the package index has other bytes under the name numpy-2.3.0-py3-none-any.whl",
        "the package index no longer has pip-25.3-py3-none-any.whl",
    ]
    assert all("imagebuilder lock --upgrade" in problem.hint for problem in error.value.problems)


def test_a_yanked_wheel_stays_locked_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = Site(index=put_index(tmp_path, ("numpy", "2.3.0"), ("numpy", "2.3.1")))
    page = tmp_path / "numpy" / "index.html"
    reason = "broken \x1b[31m&quot;on&quot; arm"
    page.write_text(page.read_text().replace("<a ", f'<a data-yanked="{reason}" ', 1))
    file = tmp_path / "numpy" / "numpy-2.3.0-py3-none-any.whl"
    content = file.read_bytes()
    locked = samples.wheel("numpy", "2.3.0").model_copy(
        update={"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    )
    assert locate_wheels((locked,), "3.13", GLIBC, where) == {locked.sha256: (file.as_uri(),)}
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("the package index has withdrawn numpy==2.3.0, which stays locked: broken ")
    assert said.isprintable()


def test_nothing_to_locate_asks_nobody() -> None:
    assert locate_wheels((), "3.13", GLIBC, Site(index="http://127.0.0.1:9")) == {}


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["a-1-py3-none-any", "a-1-cp313-cp313-manylinux_2_17_x86_64.manylinux2014_x86_64"], 1),
        (["a-1-cp313-cp313-manylinux_2_28_x86_64", "a-1-cp313-cp313-manylinux_2_17_x86_64"], 0),
        (["a-1-cp313-cp313-manylinux_2_42_x86_64", "a-1-cp310-abi3-manylinux1_x86_64"], 1),
        (["a-1-cp312-cp312-manylinux_2_28_x86_64", "a-1-cp313-cp313t-linux_x86_64", "a-1-py3-none-any"], 2),
        (["a-1-cp313-cp313-linux_x86_64", "a-1-3-cp313-cp313-linux_x86_64"], 1),
        (["a-1-cp313-cp313-musllinux_1_2_x86_64", "a-1-cp313-cp313-manylinux_2_28_aarch64"], None),
    ],
)
def test_the_most_specific_file_for_the_target_is_chosen(names: list[str], best: int | None) -> None:
    target = Target(python="3.13", glibc=GLIBC, architecture="amd64", site=Site())
    files = [File(name=f"{name}.whl", url="", sha256="", size=-1) for name in names]
    assert wheelfile.best(files, target) == (None if best is None else files[best])
