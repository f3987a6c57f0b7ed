"""Which wheels share a layer of bytecode, and what its key depends on."""

from __future__ import annotations

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.lock.model import Deb
from imagebuilder.plan import BytecodeLayer, WheelLayer
from tests.unit import samples

PYTHON_DEBS = ("libpython3.13-minimal", "libpython3.13-stdlib", "python3.13-minimal")


def planned(**changes: object) -> list[BytecodeLayer]:
    fields: dict[str, object] = {"debs": tuple(map(samples.deb, (*PYTHON_DEBS, "libc6", "openmpi-bin")))}
    lock = samples.lock(**{**fields, **changes})
    plan = plans.plan(select(samples.recipe()), lock, ())
    assert isinstance(plan.layers[-1], plans.FilesLayer)
    return [layer for layer in plan.layers if isinstance(layer, BytecodeLayer)]


def test_each_component_has_its_bytecode_above_all_wheels() -> None:
    found = planned(wheels=(samples.wheel("a"), samples.wheel("t", component="torch"), samples.wheel("b")))
    assert [(layer.component, [wheel.name for wheel in layer.wheels]) for layer in found] == [
        ("python", ["a", "b"]),
        ("torch", ["t"]),
    ]
    assert [layer.title for layer in found] == [
        "python: bytecode of 2 wheels",
        "t 1.0: bytecode",
    ]
    assert {deb.name for deb in found[0].packages} == {*PYTHON_DEBS, "libc6"}


def test_large_wheels_of_one_component_lie_together_and_the_larger_component_below() -> None:
    """So another NCCL leaves torch and its libraries below it as they are, though some are smaller."""
    sizes = {"torch": (90, "torch"), "cufft": (10, "torch"), "cudnn": (70, "cudnn"), "nccl": (30, "nccl")}
    wheels = tuple(
        samples.wheel(name, size=size * plans.OWN_LAYER_BYTES, component=component)
        for name, (size, component) in sizes.items()
    )
    plan = plans.plan(select(samples.recipe()), samples.lock(wheels=wheels), ())
    order = [layer.wheels[0].name for layer in plan.layers if isinstance(layer, WheelLayer)]
    assert order == ["torch", "cufft", "cudnn", "nccl"]


def test_a_large_wheel_has_its_bytecode_alone_unless_it_brings_libraries_only() -> None:
    """One more small wheel does not touch the bytecode of a large one; and libraries have no empty layers."""
    large = plans.OWN_LAYER_BYTES
    library = samples.wheel("cublas", size=large + 1, component="torch")
    library = library.model_copy(update={"file": "cublas-1.0-py3-none-manylinux_2_28_x86_64.whl"})
    torch = samples.wheel("torch", size=large, component="torch")
    torch = torch.model_copy(update={"file": "torch-1.0-1-cp313-cp313-manylinux_2_28_x86_64.whl"})
    wheels = (
        library,
        samples.wheel("jax", size=large),
        samples.wheel("less", size=large - 1),
        samples.wheel("small", component="torch"),
        torch,
    )
    found = [[wheel.name for wheel in layer.wheels] for layer in planned(wheels=wheels)]
    assert found == [["torch"], ["jax"], ["less"], ["cublas", "small"]]


def test_bytecode_counts_where_layers_are_limited() -> None:
    wheels = tuple(samples.wheel(f"w{number}", size=plans.OWN_LAYER_BYTES + number) for number in range(99))
    lock = samples.lock(debs=tuple(map(samples.deb, PYTHON_DEBS)), wheels=wheels)
    layers = plans.plan(select(samples.recipe()), lock, ()).layers
    assert plans.MAX_LAYERS - 2 <= len(layers) <= plans.MAX_LAYERS
    found = [layer for layer in layers if isinstance(layer, BytecodeLayer)]
    assert sorted(wheel.name for layer in found for wheel in layer.wheels) == sorted(w.name for w in wheels)
    assert found[0].wheels[0].name == "w98"


def test_only_wheels_and_the_compiler_decide_on_the_key() -> None:
    def keys(*debs: Deb, **changes: object) -> list[str]:
        return [layer.key for layer in planned(debs=debs, **changes)]

    python = tuple(map(samples.deb, PYTHON_DEBS))
    plain = keys(*python, samples.deb("libc6"))
    assert keys(*python, samples.deb("libc6", "2.0"), samples.deb("openmpi-bin")) == plain
    assert keys(*python, samples.deb("libc6"), architecture="arm64") == plain
    newer = tuple(samples.deb(name, "3.13.99-1") for name in PYTHON_DEBS)
    assert not set(keys(*newer, samples.deb("libc6"))) & set(plain)
    one = keys(*python, samples.deb("libc6"), wheels=(samples.wheel("numpy"), samples.wheel("more")))
    assert not set(one) & set(plain)


def test_a_base_brings_what_the_packages_lack() -> None:
    assert planned(debs=(samples.deb("python3"),)) == []
    image = samples.base_image()
    (layer, _) = planned(debs=(samples.deb("python3"),), image=image)
    assert layer.below == image.layers
    (other, _) = planned(
        debs=(samples.deb("python3"),),
        image=samples.base_image(layers=(samples.base_layer("e"),)),
    )
    assert layer.key != other.key
