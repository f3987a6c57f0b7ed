import dataclasses

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.plan import Entry, FilesLayer, OsPart, WheelLayer
from tests.unit import samples

MEGABYTE = 1_000_000
PREFIX = "org.opencontainers.image."


def wheel_layers(plan: plans.Plan) -> list[WheelLayer]:
    return [layer for layer in plan.layers if isinstance(layer, WheelLayer)]


def test_the_system_comes_first_and_the_settings_last() -> None:
    plan = plans.plan(select(samples.recipe()), samples.lock(), ())
    assert isinstance(plan.layers[0], OsPart)
    assert isinstance(plan.layers[-1], FilesLayer)


def test_large_wheels_stand_alone_and_small_ones_share_a_layer_per_component() -> None:
    lock = samples.lock(
        wheels=(
            samples.wheel("big", size=500 * MEGABYTE, component="torch"),
            samples.wheel("one", component="torch"),
            samples.wheel("two", component="torch"),
            samples.wheel("three", component="python"),
        )
    )
    groups = [
        [w.name for w in layer.wheels]
        for layer in wheel_layers(plans.plan(select(samples.recipe()), lock, ()))
    ]
    assert groups == [["big"], ["three"], ["one", "two"]]


def test_an_image_never_has_more_than_sixty_layers_and_loses_no_wheel() -> None:
    many = tuple(samples.wheel(f"w{i:03}", size=(100 + i) * MEGABYTE) for i in range(150))
    plan = plans.plan(select(samples.recipe()), samples.lock(wheels=many), ())
    assert len(plan.layers) <= plans.MAX_LAYERS
    assert sorted(w.name for layer in wheel_layers(plan) for w in layer.wheels) == sorted(
        w.name for w in many
    )


def test_another_nccl_changes_the_key_of_one_wheel_layer_only() -> None:
    def keys(nccl: str) -> set[str]:
        wheels = (
            samples.wheel("nccl", nccl, size=300 * MEGABYTE, component="nccl").model_copy(
                update={"sha256": nccl * 64}
            ),
            samples.wheel("torch", size=900 * MEGABYTE, component="torch"),
        )
        plan = plans.plan(select(samples.recipe()), samples.lock(wheels=wheels), ())
        return {layer.key for layer in plan.layers}

    assert len(keys("1") - keys("2")) == 1


def test_the_key_of_a_wheel_layer_does_not_depend_on_who_asked_for_it() -> None:
    one = WheelLayer(component="torch", wheels=(samples.wheel("x"),), python="3.13")
    other = WheelLayer(component="nccl", wheels=(samples.wheel("x", component="nccl"),), python="3.13")
    assert one.key == other.key


def test_the_tag_says_what_is_inside() -> None:
    assert plans.version(select(samples.recipe()), samples.lock()) == "torch2.10.0-cu12.8-py3.13-trixie"
    assert (
        plans.version(select(samples.recipe()), samples.lock(pins={"openmpi": "5.0.7"}))
        == "openmpi5.0.7-py3.13-trixie"
    )
    assert (
        plans.version(select(samples.recipe()), samples.lock(pins={"torch": "2.13.0+cpu"}))
        == "torch2.13.0-py3.13-trixie"
    )


def test_the_config_carries_every_pin_and_the_nvidia_variables() -> None:
    recipe = samples.recipe(pins={"cuda": "12.8", "openmpi": "5.0.7"}, env={"NCCL_DEBUG": "WARN"})
    config = plans.plan(select(recipe), samples.lock(), ()).config
    env, labels = dict(config.env), dict(config.labels)
    assert labels["org.imagebuilder.pin.cuda"] == "12.8.90"
    assert env["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.8"
    assert env["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert env["NCCL_DEBUG"] == "WARN"
    assert env["PATH"].startswith("/opt/venv/bin:")


def test_the_labels_of_the_specification_are_there() -> None:
    def labels(**changes: object) -> dict[str, str]:
        found = dict(plans.plan(select(samples.recipe(**changes)), samples.lock(), ()).config.labels)
        return {name: text for name, text in found.items() if name.startswith(PREFIX)}

    made = {
        f"{PREFIX}title": "sample",
        f"{PREFIX}version": "torch2.10.0-cu12.8-py3.13-trixie",
        f"{PREFIX}created": "1970-01-01T00:00:00Z",
        f"{PREFIX}base.name": "debian:trixie",
    }
    assert labels() == made
    about = {
        **{name: name for name in ("title", "description", "version", "revision", "vendor", "authors")},
        **{name: f"https://example.org/{name}" for name in ("source", "documentation", "url")},
        "licenses": "apache-2.0 and mit",
    }
    said = {**about, "licenses": "Apache-2.0 AND MIT"}
    assert labels(about=about) == {**made, **{f"{PREFIX}{name}": text for name, text in said.items()}}


def test_another_user_than_root_gets_group_zero_and_the_recipes_port() -> None:
    recipe = samples.recipe(ssh={"port": 2222, "user": "trainer"})
    plan = plans.plan(select(recipe), samples.lock(), ())
    assert plan.config.user == "1000:0"
    assert plan.config.ports == (2222,)
    assert plan.system.user.home == "/home/trainer"


def test_links_of_the_catalog_and_files_are_sorted_into_the_settings() -> None:
    recipe = samples.recipe(pins={"gcc": "14"})
    files = (Entry(path="/etc/x", kind="file", mode=0o644, text="x"),)
    settings = plans.plan(select(recipe), samples.lock(), files).layers[-1]
    assert isinstance(settings, FilesLayer)
    paths = [entry.path for entry in settings.entries]
    assert paths == sorted(paths)
    assert {"/etc/x", "/usr/local/bin/gcc"} <= set(paths)
    assert next(e.text for e in settings.entries if e.path == "/usr/local/bin/gcc") == "/usr/bin/gcc-14"


def test_sections_that_a_base_leaves_out_are_known_by_the_packages() -> None:
    layer = plans.plan(select(samples.recipe()), samples.lock(), ()).system
    assert layer.sections == ()
    path = "pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131_amd64.deb"
    deb = samples.deb("nvidia-cuda-toolkit").model_copy(update={"path": path})
    assert dataclasses.replace(layer, debs=(*layer.debs, deb)).sections == ("non-free",)
