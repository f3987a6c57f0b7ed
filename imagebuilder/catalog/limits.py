"""Compare a recipe with the catalog's limits, which no package's metadata states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from imagebuilder.catalog.model import Component, Limit, matches, numbers
from imagebuilder.catalog.select import Selection
from imagebuilder.errors import ConflictError, Problem
from imagebuilder.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class _Broken:
    """A limit that a recipe breaks: the component's version, and the value outside the limit."""

    component: Component
    version: str
    limit: Limit
    value: str


def require(selection: Selection, versions: Mapping[str, str], older: Collection[str] | None = ()) -> None:
    """Refuse a recipe that breaks a limit of the catalog.

    Args:
        selection: the recipe, with its components.
        versions: full versions from a lock, for components that are not pinned; may be empty.
        older: branches of older drivers that the base's cuda-compat works with, such as `535`; None if the
            base is not known yet, so that nothing can be said about drivers.

    Raises:
        ConflictError: every limit that is broken.

    """
    if broken := problems(selection, versions, older):
        raise ConflictError.of(broken)


def problems(
    selection: Selection, versions: Mapping[str, str], older: Collection[str] | None = ()
) -> list[Problem]:
    """Return a problem for each limit that a recipe breaks; see `require`."""
    recipe = selection.recipe
    implied = {part.component.name: part.pin for part in selection.parts if part.pin}
    pins = {**implied, **versions, **recipe.pins, "python": recipe.python}
    return [
        _problem(selection, broken, older or ())
        for broken in _broken(selection, pins)
        if broken.limit.strict and not _served(broken, older)
    ]


def _served(broken: _Broken, older: Collection[str] | None) -> bool:
    """Return whether the base's cuda-compat works with the hosts' driver, or may do so."""
    return broken.limit.of == "driver" and (older is None or broken.value.partition(".")[0] in older)


def notes(selection: Selection, versions: Mapping[str, str], older: Collection[str] = ()) -> list[str]:
    """Return notes on combinations that work, but that users of the image should know about."""
    recipe = selection.recipe
    pins = {**recipe.pins, "python": recipe.python, **versions}
    found = []
    for broken in _broken(selection, pins):
        why = "" if broken.limit.strict else broken.limit.why
        if broken.limit.strict and _served(broken, older):
            why = "works by the base's cuda-compat alone, on data-center GPUs"
        if why:
            found.append(f"{broken.component.name} {broken.version}, {broken.limit.of} {broken.value}: {why}")
    return found


def _broken(selection: Selection, pins: Mapping[str, str]) -> Iterator[_Broken]:
    for name, component in selection.components.items():
        if name not in pins:
            continue
        for limit in component.limits:
            entry = selection.recipe.compiles.get(name)
            patched = limit.unless_patched and entry is not None and bool(entry.patches)
            if patched or not matches(pins[name], limit.version):
                continue
            for value in _values(selection.recipe, pins, limit.of):
                if not _within(value, limit):
                    yield _Broken(component=component, version=pins[name], limit=limit, value=value)


def _values(recipe: Recipe, pins: Mapping[str, str], of: str) -> tuple[str, ...]:
    if of == "driver":
        return (recipe.hosts.driver,) if recipe.hosts.driver else ()
    if of == "gpus":
        return recipe.hosts.gpus
    return (pins[of],) if of in pins else ()


def _problem(selection: Selection, broken: _Broken, older: Collection[str]) -> Problem:
    """Name both sides, and the values of either that would work."""
    recipe = selection.recipe
    limit, name = broken.limit, broken.component.name
    own = f'{name} "{broken.version}"'
    bounds = " to ".join(filter(None, (limit.least, limit.most)))
    words = bounds if limit.least and limit.most else f"{bounds} or {'newer' if limit.least else 'older'}"
    if limit.least == limit.most:
        words = limit.least
    label = {"driver": "the hosts' driver", "gpus": "a GPU of compute capability"}.get(limit.of, limit.of)
    keys = {"driver": ("hosts",), "gpus": ("hosts",), "python": ("python",)}
    key = keys.get(limit.of, ("pins", limit.of))
    if limit.of not in recipe.pins and limit.of not in keys:
        key = ("pins", name) if name in recipe.pins else ("devel",)
    return Problem(
        message=f'{label} "{broken.value}" clashes with {own}, which needs {words}: {limit.why}',
        where=selection.places.of(*key),
        hint=_hint(recipe, broken, older),
    )


def _hint(recipe: Recipe, broken: _Broken, older: Collection[str]) -> str:
    limit, component = broken.limit, broken.component
    nearest = limit.least if limit.least and numbers(broken.value) < numbers(limit.least) else limit.most
    ways = [f'set {limit.of}: "{nearest}"']
    if limit.of == "gpus":
        ways = ["leave that GPU out of `hosts:`"]
    elif limit.of == "driver":
        ways = [f"give the hosts driver {nearest}"]
        if older:
            branches = ", ".join(sorted(older, key=numbers))
            ways = [f"{ways[0]} or one of the branches {branches}, with which the base's cuda-compat works"]
    fitting = sorted(
        {
            other.version
            for other in component.limits
            if other.of == limit.of and other.strict and _within(broken.value, other)
        },
        key=numbers,
    )
    # The nearest one on either side.
    below = [version for version in fitting if numbers(version) < numbers(broken.version)][-1:]
    above = [version for version in fitting if numbers(version) > numbers(broken.version)][:1]
    if component.name in recipe.pins:
        ways += [f'set {component.name}: "{version}"' for version in (*below, *above)]
    # Only if it follows the other's pin; a suite may have a single version of it.
    elif component.like and matches(broken.version, recipe.pins.get(component.like, "")):
        ways += [f'set {component.like}: "{version}"' for version in (*below, *above)]
    return ", or ".join(ways)


def _within(value: str, limit: Limit) -> bool:
    """Return whether a value lies between both bounds. They are prefixes: 13.3 does not exceed 13."""
    own = numbers(value)
    least, most = numbers(limit.least), numbers(limit.most)
    return (not least or own >= least[: len(own)]) and (not most or own[: len(most)] <= most)
