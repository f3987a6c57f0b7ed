"""Templates of tags, and what they become."""

from __future__ import annotations

import pytest

from imagebuilder import plan
from imagebuilder.catalog import select
from imagebuilder.core.reference import TAG
from imagebuilder.core.yamlfile import Invalid
from imagebuilder.errors import InputError
from imagebuilder.recipe import tags
from tests.unit import samples

VALUES = {"torch": "2.10.0+cu128", "cuda": "12.8.90", "ssh": "1:10.0~p1", "name": "demo"}


@pytest.mark.parametrize(
    ("template", "tag"),
    [
        ("latest", "latest"),
        ("torch{torch}", "torch2.10.0"),
        ("torch{torch:1}-cu{cuda:2}", "torch2-cu12.8"),
        ("cu{cuda:9}", "cu12.8.90"),
        ("{name}-ssh{ssh}", "demo-ssh1-10.0-p1"),
    ],
)
def test_versions_fill_a_template(template: str, tag: str) -> None:
    assert tags.fill(tags.check(template), VALUES) == tag


@pytest.mark.parametrize(
    "template", ["{torch", "torch}", "{}", "{torch:0}", "{torch:22}", "{Torch}", "{a.b}"]
)
def test_what_is_no_template_is_refused(template: str) -> None:
    with pytest.raises(Invalid, match="is not a tag template"):
        tags.check(template)


@pytest.mark.parametrize("template", ["", "-x", ".x", "a b", "a/b", "x:y", "{torch}+cpu", "x" * 129])
def test_what_no_registry_takes_is_refused(template: str) -> None:
    with pytest.raises(Invalid, match="does not give a valid tag"):
        tags.check(template)


def test_a_recipe_names_its_tags_once_each_and_in_order() -> None:
    recipe = samples.recipe(tags=("cu{cuda:1}", "torch{torch}-{suite}-{lock}", "cu{cuda:1}"))
    lock = samples.lock()
    assert plan.image_tags(select(recipe), lock) == ("cu12", f"torch2.10.0-trixie-{lock.checksum[:12]}")


def test_without_templates_the_pins_and_the_lock_make_the_tags() -> None:
    lock = samples.lock()
    assert plan.image_tags(select(samples.recipe()), lock) == (
        "torch2.10.0-cu12.8-py3.13-trixie",
        lock.checksum[:12],
    )


def test_recipes_of_the_same_versions_have_tags_of_their_own_in_one_repository() -> None:
    lock = samples.lock()
    made = []
    for name, changes in (("one", {}), ("two", {"pip": ("einops",)}), ("three", {"apt": ("rdma-core",)})):
        recipe = samples.recipe(name=name, **changes)
        given = plan.image_tags(select(recipe), lock)
        made.append(
            tags.in_repository(given, plan.version(select(recipe), lock), recipe.name, "team/images")[0]
        )
    assert made == [f"{name}-torch2.10.0-cu12.8-py3.13-trixie" for name in ("one", "two", "three")]


def test_a_repository_of_the_recipe_s_name_needs_no_name_in_tags() -> None:
    given = ("py3.13-trixie", "0123456789ab", "latest")
    assert tags.in_repository(given, "py3.13-trixie", "demo", "team/demo") == given
    assert tags.in_repository(given, "py3.13-trixie", "demo", "demo") == given
    assert tags.in_repository(given, "py3.13-trixie", "demo", "demo/team")[1:] == given[1:]


def test_a_recipe_s_name_leaves_a_tag_that_registries_take() -> None:
    (tag,) = tags.in_repository(["torch2.10.0"], "torch2.10.0", "n" * 125, "team/images")
    assert TAG.fullmatch(tag)
    assert TAG.fullmatch(tags.of_platform(tag, "linux/arm64"))


def test_a_tag_that_gets_too_long_is_refused() -> None:
    with pytest.raises(InputError, match="is not a valid tag"):
        plan.image_tags(select(samples.recipe(tags=("x" * 120 + "{torch}{torch}",))), samples.lock())


def test_tags_and_descriptions_leave_the_lock_in_step() -> None:
    plain = samples.recipe()
    named = samples.recipe(tags=("latest",), about={"description": "for training"})
    assert named.checksum() == plain.checksum()
