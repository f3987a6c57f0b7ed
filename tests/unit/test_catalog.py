"""The catalog's files, and how a recipe's components are chosen from them."""

from __future__ import annotations

import re
import shutil
import types
from pathlib import Path

import pytest

from imagebuilder import catalog
from imagebuilder.catalog import model
from imagebuilder.errors import ConflictError, InputError
from imagebuilder.recipe import Recipe

FOLDER = Path(catalog.__file__).parent
COMPONENTS = sorted(catalog.load().values(), key=lambda component: component.name)


def recipe(**pins: str) -> Recipe:
    return Recipe.model_validate({"name": "x", "base": "debian:trixie", "python": "3.13", "pins": pins})


def chosen(**pins: str) -> dict[str, catalog.Part]:
    return {part.component.name: part for part in catalog.select(recipe(**pins)).parts}


def test_names_are_those_of_the_files() -> None:
    assert catalog.names() == {component.name for component in COMPONENTS}
    assert catalog.names() == {path.stem for path in FOLDER.glob("*.yaml")}


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.name)
def test_a_component_is_complete(component: catalog.Component) -> None:
    assert component.summary
    assert component.providers
    assert set(component.needs) <= catalog.names()
    for provider in component.providers:
        assert provider.wheel or provider.wheels or provider.apt
        assert set(provider.when) <= catalog.names()
    assert set(component.excludes) <= catalog.names()
    for name in component.excludes:
        assert component.name in catalog.load()[name].excludes, "both sides say so"
    assert (component.include == "devel") == bool(component.like)
    links = [component.links, component.devel_links, *(provider.links for provider in component.providers)]
    assert all(path.startswith(("/", "{site}/")) for found in links for path in found)
    if component.build:
        assert bool(component.build.debian) != bool(component.build.sdist)
        assert component.build.steps
        assert all(path.startswith(("/", "{site}/")) for path in component.build.produces)
    assert component.probe is not None, "every component says how to see which version is loaded"
    assert component.probe.command


@pytest.mark.parametrize(
    ("fabric", "brought"),
    [
        ((), set()),
        (("ib",), {"rdma", "ucx"}),
        (("efa",), {"libfabric", "rdma"}),
        (("ib", "efa"), {"libfabric", "rdma", "ucx"}),
    ],
)
def test_a_fabric_brings_what_it_needs(fabric: tuple[str, ...], brought: set[str]) -> None:
    plain = recipe(openmpi="5.0.7")
    asked = plain.model_copy(update={"fabric": fabric})
    names = [{part.component.name for part in catalog.select(each).parts} for each in (plain, asked)]
    assert names[1] - names[0] == brought
    assert (asked.checksum() == plain.checksum()) == (not fabric)


@pytest.mark.parametrize(
    ("cuda", "target"),
    [
        ("12.8", "{site}/nvidia/cuda_runtime/lib/libcudart.so.12"),
        ("13.0", "{site}/nvidia/cu13/lib/libcudart.so.13"),
        ("", ""),
    ],
)
def test_efa_gives_plugins_a_libcudart_without_a_version(cuda: str, target: str) -> None:
    asked = recipe(**({"cuda": cuda} if cuda else {})).model_copy(update={"fabric": ("efa",)})
    (part,) = (part for part in catalog.select(asked).parts if part.component.name == "libfabric")
    assert part.links.get("/usr/lib/libcudart.so", "") == target.replace("{site}", part.site)
    assert part.links["/usr/lib/libnccl-net.so"] == "/opt/amazon/ofi-nccl/lib/libnccl-net.so"


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.name)
def test_only_known_placeholders_stand_in_a_component(component: catalog.Component) -> None:
    text = component.model_dump_json(exclude={"framework": {"launcher"}})
    used = set(re.findall(r"\{([^}]*)\}", text.replace("{}", "")))
    assert {name for name in used if re.fullmatch(r"\w+", name)} <= {"version", "major", "minor", "site"}


def test_what_is_always_there_needs_no_pin() -> None:
    assert set(chosen()) == {"python", "ssh"}


def test_the_provider_follows_the_other_pin() -> None:
    assert chosen(cuda="12.8", cudnn="9.10")["cudnn"].provider.wheel == "nvidia-cudnn-cu12"
    assert chosen(cuda="13.0", cudnn="9.19")["cudnn"].provider.wheel == "nvidia-cudnn-cu13"


def test_a_missing_companion_is_named() -> None:
    with pytest.raises(ConflictError) as caught:
        chosen(nccl="2.27.5")
    assert (
        str(caught.value)
        == "x: pins.nccl: `nccl` needs `cuda`, which is not pinned\n  -> add `cuda:` under `pins:`"
    )


def test_a_combination_that_nobody_provides_says_which_exist() -> None:
    with pytest.raises(ConflictError) as caught:
        chosen(cuda="10.2", cudnn="7.6")
    assert str(caught.value) == (
        'x: pins.cuda: cuda "10.2" is not available: the catalog has CUDA 11 and 12 and 13\n'
        '  -> set cuda: "11" or "12" or "13"'
    )


def test_a_component_for_another_one_says_for_which_versions_it_exists() -> None:
    with pytest.raises(ConflictError) as caught:
        of(pins={"cuda": "10.2", "cudnn": "7.6"}, base={"image": "nvidia/cuda:10.2-base"})
    assert str(caught.value) == (
        'x: pins.cudnn: cudnn "7.6" is not available for cuda "10.2": the catalog has it for '
        "CUDA 11 and 12 and 13\n"
        '  -> set cuda: "11" or "12" or "13"'
    )


def test_what_a_missing_pin_would_bring_and_miss_is_reported_with_it() -> None:
    with pytest.raises(ConflictError) as caught:
        of(pins={"nccl": "2.27.5"}, devel=True)
    assert str(caught.value).splitlines()[::2] == [
        "x: pins.nccl: `nccl` needs `cuda`, which is not pinned",
        "x: devel: `nvcc` needs `gcc`, which is not pinned",
    ]
    with pytest.raises(ConflictError) as caught:
        of(pins={"nccl": "2.27.5", "gcc": "14"}, devel=True)
    assert len(caught.value.problems) == 1


def test_a_version_that_the_chosen_provider_does_not_have_is_the_problem() -> None:
    with pytest.raises(
        ConflictError, match=r'pins\.cuda: cuda "10\.2" is not available: the catalog has CUDA'
    ):
        of(pins={"cuda": "10.2"}, providers={"cuda": "wheel"})


@pytest.mark.parametrize(
    ("version", "pin", "answer"),
    [
        ("12.8.90", "12.8", True),
        ("12.80", "12.8", False),
        ("12.8", "12.8.90", False),
        ("2.13.0+cpu", "2.13.0", True),
        ("9.10.2.21", "9", True),
    ],
)
def test_a_pin_is_a_prefix_of_numbers(version: str, pin: str, *, answer: bool) -> None:
    assert catalog.matches(version, pin) is answer


def test_placeholders_are_filled_and_other_braces_stay() -> None:
    assert (
        catalog.fill("{version} {major} {minor} {other} {{major}}", "12.8.90")
        == "12.8.90 12 12.8 {other} {12}"
    )
    assert catalog.fill("gcc-{major}", "14") == "gcc-14"


def test_a_wrong_catalog_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(FOLDER / "cuda.yaml", tmp_path)
    (tmp_path / "broken.yaml").write_text("name: broken\nsumary: x\nproviders: []\n", encoding="utf-8")
    monkeypatch.setattr(model, "resources", types.SimpleNamespace(files=lambda _name: tmp_path))
    with pytest.raises(InputError, match=r"imagebuilder/catalog/broken\.yaml:2: sumary: .*\n.*`summary`"):
        catalog.load.__wrapped__()


def of(**changes: object) -> dict[str, catalog.Part]:
    fields = {"name": "x", "base": "debian:trixie", "python": "3.13", **changes}
    return {part.component.name: part for part in catalog.select(Recipe.model_validate(fields)).parts}


def test_a_compiled_component_brings_only_what_it_needs_to_run() -> None:
    plain = of(pins={"openmpi": "5.0.7"})["openmpi"]
    compiled = of(pins={"openmpi": "5.0.7"}, build=("openmpi",))["openmpi"]
    assert plain.built is None
    assert "openmpi-bin" in plain.apt
    assert compiled.built is not None
    assert compiled.apt == ("libucx0",)
    assert compiled.env() == plain.env()


def test_devel_brings_the_compiler_headers_and_link_names() -> None:
    pins = {"cuda": "13.0", "gcc": "14", "nccl": "2.28.9", "cudnn": "9.19"}
    parts = of(pins=pins, devel=True)
    site = "/opt/venv/lib/python3.13/site-packages"
    assert parts["nvcc"].pin == "13.0"
    assert "nvidia-nvvm==13.0.*" in parts["nvcc"].wheels
    assert parts["nvcc"].links["/usr/local/cuda"] == f"{site}/nvidia/cu13"
    assert parts["nvcc"].env() == {"CUDA_HOME": "/usr/local/cuda"}
    assert parts["nccl"].links["/usr/local/lib/libnccl.so"] == f"{site}/nvidia/nccl/lib/libnccl.so.2"
    assert "/usr/local/include/cudnn.h" in parts["cudnn"].links
    assert "python3-dev" in parts["python"].apt
    without = of(pins=pins)
    assert "nvcc" not in without
    assert not without["nccl"].links


def test_for_cuda_12_the_compiler_is_the_suite_s_at_its_own_version() -> None:
    part = of(pins={"cuda": "12.8", "gcc": "13"}, devel=True)["nvcc"]
    assert part.pin == ""
    assert part.apt == ("nvidia-cuda-toolkit",)
    assert "non-free" in part.provider.sections


def test_all_that_does_not_go_together_is_told_at_once() -> None:
    with pytest.raises(ConflictError) as caught:
        of(pins={"openmpi": "5.0.7", "mpich": "4.2", "nccl": "2.27.5"}, build=("nccl",))
    assert [problem.where for problem in caught.value.problems] == [
        "x: pins.mpich",
        "x: pins.nccl",
        "x: build[0]",
    ]
