"""Check that pins fit a base from a registry, which states its own version of CUDA and others."""

from __future__ import annotations

import re
from fnmatch import fnmatch

from imagebuilder.catalog import Component, Selection
from imagebuilder.debian import versions
from imagebuilder.errors import Problem
from imagebuilder.lock.model import BaseImage, Override

_REQUIRED = "NVIDIA_REQUIRE_CUDA"
_COMPAT = "cuda-compat-*"


def problems(selection: Selection, image: BaseImage) -> list[Problem]:
    """Report pins that contradict the base's versions, and are not forced."""
    recipe, clashes = selection.recipe, []
    for name, version, sign in _contradicted(selection, image):
        if name in recipe.override:
            continue
        value = ".".join(version.split(".")[: len(recipe.pins[name].split("."))])
        clashes.append(
            Problem(
                message=f'{name} "{recipe.pins[name]}" contradicts the base {image.name}, '
                f"which was made with {name} {version} ({sign})",
                where=selection.places.of("pins", name),
                hint=f'set {name}: "{value}", choose a base made with {name} {recipe.pins[name]}, '
                f"or force it with `override: [{name}]`",
            )
        )
    return clashes


def overrides(selection: Selection, image: BaseImage) -> tuple[Override, ...]:
    """Return the pins that are forced against the base."""
    recipe = selection.recipe
    return tuple(
        Override(
            pin=name,
            wanted=recipe.pins[name],
            locked=recipe.pins[name],
            contradicts=(f"{image.name} was made with {name} {version} ({sign})",),
        )
        for name, version, sign in _contradicted(selection, image)
        if name in recipe.override
    )


def older_drivers(selection: Selection, image: BaseImage | None) -> frozenset[str] | None:
    """Return the branches of older drivers that the image's cuda-compat works with.

    NVIDIA_REQUIRE_CUDA lists them, as `driver>=535,driver<536`: that of the recipe, which may copy
    cuda-compat, or that of a base which has it. None for a base from a registry that was not read yet.
    """
    recipe = selection.recipe
    text = recipe.env.get(_REQUIRED, "")
    if not text and recipe.image is not None:
        if image is None:
            return None
        if "cuda" not in recipe.override and any(fnmatch(each.name, _COMPAT) for each in image.packages):
            text = image.env.get(_REQUIRED, "")
    return frozenset(re.findall(r"driver>=([0-9]+)", text))


def _contradicted(selection: Selection, image: BaseImage) -> list[tuple[str, str, str]]:
    """Return pin, the base's version and its source, for each pin that differs from the base."""
    rows = []
    components = selection.components
    for name, pin in selection.recipe.pins.items():
        version, sign = _below(components[name], image)
        probe = components[name].probe
        parts = min(probe.compare if probe else 3, len(pin.split(".")), len(version.split(".")))
        if version and pin.split(".")[:parts] != version.split(".")[:parts]:
            rows.append((name, version, sign))
    return rows


def _below(component: Component, image: BaseImage) -> tuple[str, str]:
    """Return the version of a component that a base states, and the variable or package that states it."""
    marks = component.below
    if marks is None:
        return "", ""
    if marks.env and image.env.get(marks.env):
        return image.env[marks.env], f"{marks.env}={image.env[marks.env]}"
    for package in image.packages:
        if marks.apt and fnmatch(package.name, marks.apt):
            return versions.upstream(package.version), f"{package.name} {package.version}"
    return "", ""
