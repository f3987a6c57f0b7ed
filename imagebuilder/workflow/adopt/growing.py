"""A recipe that grows key by key, and the pins of components found among installed or required packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from packaging.version import Version

from imagebuilder import catalog
from imagebuilder import recipe as recipes
from imagebuilder.bases.inventory import Distribution
from imagebuilder.catalog import Component, OwnComponent, Part, limits
from imagebuilder.core import yamlfile
from imagebuilder.debian import versions
from imagebuilder.errors import ConflictError, InputError
from imagebuilder.recipe.draft import Draft, listed

# The keys of a recipe, in the order in which people write them.
_ORDER = (
    "name",
    "base",
    "python",
    "platforms",
    "pins",
    "devel",
    "ssh",
    "requirements",
    "apt",
    "pip",
    "env",
    "workdir",
    "command",
)
# Variables in which images give the version of a component that is in none of their packages.
_VERSION_ENV = {"cuda": "CUDA_VERSION", "cudnn": "CUDNN_VERSION", "nccl": "NCCL_VERSION"}
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_ROOM = 60_000  # characters of one list: a recipe has at most 250 kB


class GrowingRecipe:
    """A recipe that grows key by key. What a recipe's own checks would refuse becomes a note instead.

    Attributes:
        known: the components that it can pin, by name.
        fields: its keys.
        notes: what was left out or changed.

    """

    def __init__(self, known: Mapping[str, Component], **fields: Any) -> None:
        self.known = known
        self.fields: dict[str, Any] = dict(fields)
        self.notes: list[str] = []

    def parts(self) -> tuple[Part, ...]:
        """Return the components of the recipe so far."""
        fields = {key: tuple(item) if isinstance(item, list) else item for key, item in self.fields.items()}
        return catalog.select(recipes.Recipe.model_validate(fields), components=self.known).parts

    def refusal(self, **changes: Any) -> str:
        """Return what would be wrong with the recipe after these changes; "" if nothing would be."""
        text = Draft(origin="", fields=_ordered({**self.fields, **changes}), notes=()).text()
        try:
            recipe, places = recipes.checked(
                yamlfile.parse(text.encode(errors="surrogatepass"), "recipe"), frozenset(self.known)
            )
            limits.require(catalog.select(recipe, places, self.known), {})
        except (InputError, ConflictError) as error:
            problem = error.problems[0]
            return problem.message
        return ""

    def offer(self, what: str, **changes: Any) -> bool:
        """Change keys if the recipe allows it; else add a note on `what`. Return whether they changed."""
        reason = self.refusal(**changes)
        if reason:
            self.notes.append(f"{what}: {reason}.")
            return False
        self.fields.update(changes)
        return True

    def offer_each(self, what: str, key: str, items: Iterable[str]) -> None:
        """Set a list to those items that a recipe can have, and note the others."""
        given = list(items)
        kept = given if not self.refusal(**{key: given}) else [i for i in given if self.alone(**{key: [i]})]
        fitting = [item for item, end in zip(kept, accumulate(map(len, kept)), strict=True) if end < _ROOM]
        self.fields[key] = fitting
        left = [item for item in given if item not in set(fitting)]
        if left:
            self.notes.append(f"{what} that a recipe cannot name, or that are too many: {listed(left)}.")

    def alone(self, **changes: Any) -> bool:
        """Return whether a recipe could have these keys alone."""
        base = {key: self.fields[key] for key in ("name", "base", "python")}
        return not GrowingRecipe(self.known, **base).refusal(**changes)

    def draft(self, origin: str) -> Draft:
        return Draft(origin=origin, fields=_ordered(self.fields), notes=tuple(self.notes))


def _ordered(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: fields[key] for key in _ORDER if key in fields}


def as_name(text: str, otherwise: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))[:100].rstrip("-") or otherwise


def pin_found(
    made: GrowingRecipe,
    wheels: Mapping[str, Distribution],
    debs: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> frozenset[str]:
    """Pin the components that are there: in packages, or by a variable or a label that names the version.

    Returns:
        The Python packages that the pins replace.

    """
    stands_for: set[str] = set()
    components = made.known
    # A component comes after those that it needs.
    for name in sorted(components, key=lambda name: (len(components[name].needs), name)):
        component = components[name]
        if component.include != "pinned":
            continue
        by_wheel = [item for item in wheels if any(_is_wheel(p.wheel, item) for p in component.providers)]
        version = _installed(component, wheels, debs or {}) or _from_variable(component, env or {})
        if isinstance(component, OwnComponent):
            version = version or (labels or {}).get(name, "")
        if version:
            stands_for.update(by_wheel)
            _offer_pin(made, component, version)
    return frozenset(stands_for)


def _is_wheel(pattern: str, name: str) -> bool:
    return bool(pattern) and catalog.names_package(pattern, name)


def _installed(component: Component, wheels: Mapping[str, Distribution], debs: Mapping[str, str]) -> str:
    """Return the version of a component's wheel, else of its Debian package, as precise as its probe's."""
    parts = component.probe.compare if component.probe else 3
    for provider in component.providers:
        for name in wheels:
            if _is_wheel(provider.wheel, name):
                return _shortened(Version(wheels[name].version).public, parts)
    for provider in component.providers:
        # Beside a wheel, `apt:` has what the wheel needs.
        pattern = provider.apt[0] if provider.apt and not provider.wheel else ""
        names = [name for name in debs if catalog.names_package(pattern, name)]
        # Of several compilers, choose the suite's default: the version of its package `gcc`.
        default = debs.get(pattern.partition("{")[0].rstrip("-"), "")
        named = catalog.fill(pattern, versions.upstream(default)) if default else ""
        chosen = named if named in names else max(names, default="")
        if chosen:
            version = versions.upstream(debs[chosen])
            # A package whose name has the major version covers all versions of that major.
            return _shortened(version, parts if provider.archive or "{" not in pattern else 1)
    return ""


def _from_variable(component: Component, env: Mapping[str, str]) -> str:
    match = _NUMBERS.match(env.get(_VERSION_ENV.get(component.name, ""), ""))
    return _shortened(match[0], component.probe.compare if component.probe else 3) if match else ""


def _shortened(version: str, parts: int) -> str:
    """Keep the first numbers of a final release; other versions stay whole.

    >>> _shortened("9.10.2.21", 3), _shortened("6.0.0rc2", 1), _shortened("2.10.0.post1", 3)
    ('9.10.2', '6.0.0rc2', '2.10.0.post1')
    """
    return ".".join(version.split(".")[:parts]) if _NUMBERS.fullmatch(version) else version


def _offer_pin(made: GrowingRecipe, component: Component, version: str) -> None:
    """Pin a version, or the nearest one that the catalog has."""
    name, pins = component.name, made.fields.get("pins", {})
    what = f"{component.summary.partition(',')[0]} ({name} {version})"
    known = [p.when[name] for p in component.providers if name in p.when]
    if not known or any(catalog.matches(version, item) for item in known):
        made.offer(what, pins={**pins, name: version})
        return
    major = int(version.partition(".")[0])
    nearest = min(known, key=lambda item: abs(int(item.partition(".")[0]) - major))
    made.fields["pins"] = {**pins, name: nearest}
    made.notes.append(
        f"{what}: the catalog has {name} {' and '.join(sorted(known))}, so {nearest} is pinned; packages "
        f"for {name} {major} are left out."
    )
