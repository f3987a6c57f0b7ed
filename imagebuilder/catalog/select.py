"""Choose what a recipe uses of the catalog: once, as a value that is passed on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder.catalog.model import BuildSteps, Component, Provider, fill, kind, load, matches
from imagebuilder.catalog.own import OwnComponent
from imagebuilder.errors import ConflictError, Problem
from imagebuilder.recipe import Places, Recipe

if TYPE_CHECKING:
    from imagebuilder.recipe.requirements import FileDemands, Package

VENV = "/opt/venv"
_SITE = VENV + "/lib/python{python}/site-packages"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A component as one recipe uses it.

    Attributes:
        component: its file in the catalog.
        pin: its version in the recipe; "" if the recipe does not pin it.
        provider: the chosen provider. For a compiled component: the packages that the result needs to run.
        built: how it is compiled; None if it comes as a package.
        devel: whether the recipe has `devel: true`.
        site: the venv's site-packages folder, for `{site}`.

    """

    component: Component
    pin: str
    provider: Provider
    built: BuildSteps | None
    devel: bool
    site: str

    @property
    def apt(self) -> tuple[str, ...]:
        """Debian packages of the image."""
        return self.filled((*self.provider.apt, *(self.provider.devel_apt if self.devel else ())))

    @property
    def wheels(self) -> tuple[str, ...]:
        """Python requirements that come with the pinned one."""
        return self.filled((*self.provider.wheels, *(self.provider.devel_wheels if self.devel else ())))

    def env(self, version: str = "") -> dict[str, str]:
        """Return variables of the image; a version is the locked one, by default the pin."""
        env = {**self.component.env, **self.provider.env}
        return dict(zip(env, self.filled(tuple(env.values()), version), strict=True))

    @property
    def links(self) -> dict[str, str]:
        """Symbolic links of the image: path and target."""
        links = {**self.component.links, **self.provider.links}
        links |= self.component.devel_links if self.devel else {}
        return dict(zip(self.filled(tuple(links)), self.filled(tuple(links.values())), strict=True))

    @property
    def scripts(self) -> dict[str, str]:
        """Scripts of the image: path and text."""
        scripts = self.provider.scripts
        return dict(zip(self.filled(tuple(scripts)), self.filled(tuple(scripts.values())), strict=True))

    def filled(self, texts: tuple[str, ...], version: str = "") -> tuple[str, ...]:
        """Replace the placeholders in texts with parts of a version, by default the pin."""
        return tuple(fill(text, version or self.pin).replace("{site}", self.site) for text in texts)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A recipe and its components: made once, and passed to the request, the plan and the checks of a lock.

    Attributes:
        recipe: the recipe.
        components: the shipped catalog and the recipe's own components, by name.
        parts: the components of the image, each with its chosen provider; sorted by name.
        places: the places of the recipe's keys, for messages.
        demands: what the recipe's requirement files ask for, by platform.
        package: the name and the build requirements of the user's own package, where the recipe has one.
        patches: the texts of the recipe's patches, by file.

    """

    recipe: Recipe
    components: Mapping[str, Component]
    parts: tuple[Part, ...]
    places: Places
    demands: Mapping[str, tuple[FileDemands, ...]] = field(default_factory=dict)
    package: Package | None = None
    patches: Mapping[str, str] = field(default_factory=dict)

    @property
    def own(self) -> dict[str, OwnComponent]:
        """The components of the image that its recipe's folder describes, by name."""
        parts = self.by_name
        return {
            name: each
            for name, each in self.components.items()
            if name in parts and isinstance(each, OwnComponent)
        }

    @property
    def recorded(self) -> dict[str, Any]:
        """The content of these components' files, as a lock has it."""
        return {name: component.recorded for name, component in self.own.items()}

    @property
    def by_name(self) -> dict[str, Part]:
        """The parts by the names of their components."""
        return {part.component.name: part for part in self.parts}

    def wheels_of(self, name: str) -> tuple[str, ...]:
        """Return the wheels that could provide a component for the recipe's pins, chosen or not."""
        pins = self.recipe.pins
        return tuple(
            fill(provider.wheel, pins.get(name, ""))
            for provider in self.components[name].providers
            if provider.wheel and _fits(provider, pins)
        )

    def with_pins(self, pins: Mapping[str, str]) -> Selection:
        """Choose again, for the same recipe with other pins.

        Raises:
            ConflictError: as `select` does.

        """
        recipe = self.recipe.model_copy(update={"pins": dict(pins)})
        return _chosen(replace(self, recipe=recipe, parts=()))

    def with_devel(self) -> Selection:
        """Choose again with `devel: true`, for what is compiled for GPUs.

        Raises:
            ConflictError: as `select` does.

        """
        return _chosen(replace(self, recipe=self.recipe.model_copy(update={"devel": True}), parts=()))


def select(
    recipe: Recipe,
    places: Places | None = None,
    components: Mapping[str, Component] | None = None,
) -> Selection:
    """Choose a provider for every component of the recipe.

    Args:
        recipe: the recipe.
        places: the places of its keys; None for a recipe that was not read from a file.
        components: the shipped ones and the recipe's own, as `own.load` returns them; None for the shipped.

    Raises:
        ConflictError: some components are needed but not pinned, not available, or exclude each other. All
            are reported.

    """
    places = places or Places(recipe=recipe.name)
    known = load() if components is None else components
    return _chosen(Selection(recipe=recipe, components=known, parts=(), places=places))


def _chosen(asked: Selection) -> Selection:
    recipe = asked.recipe
    pins = {**recipe.pins, "python": recipe.python}
    problems: list[Problem] = []
    chosen = []
    known = recipe.pins.keys() & asked.components.keys()
    needed = {need for name in known for need in asked.components[name].needs}
    missing = needed - pins.keys()
    for name, component in asked.components.items():
        # Missing pins count here: components that they would include may lack further pins.
        included = (
            component.include == "always"
            or (component.include == "devel" and recipe.devel and component.like in {*pins, *needed})
            or bool(set(component.fabrics) & set(recipe.fabric))
        )
        if name not in pins and not included:
            continue
        own = [*_needs_problems(asked, component, pins), *_build_problems(asked, component, pins)]
        built = component.build if name in recipe.build or not component.providers else None
        provider = next((p for p in _allowed(asked, component) if _fits(p, pins)), None)
        if built and (provider or not component.providers):
            provider = _of_build(built)
        if provider is None:
            # If all its providers depend on a missing component, report only that component.
            for_others = {key for choice in component.providers for key in choice.when} - {name}
            explain = _not_provided if name in recipe.providers else _not_available
            own += [] if own or for_others & missing else [explain(asked, component, pins)]
            missing.add(name)
        problems += own
        if provider is not None:
            chosen.append(
                Part(
                    component=component,
                    pin=pins.get(name, "") or _implied(component, provider, pins),
                    provider=provider,
                    built=built,
                    devel=recipe.devel,
                    site=_SITE.format(python=recipe.python_minor),
                )
            )
    problems += _compile_problems(asked, pins)
    if problems:
        raise ConflictError.of(problems)
    return replace(asked, parts=tuple(chosen))


def _compile_problems(asked: Selection, pins: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the reasons why a package cannot be compiled for GPUs."""
    recipe = asked.recipe
    for index, entry in enumerate(recipe.compiled):
        if not entry.cuda:
            continue
        where = asked.places.of("compile", index)
        for name, there in (("cuda", "cuda" in pins), ("gcc", "gcc" in pins)):
            if not there:
                yield Problem(
                    message=f"`{entry.name}` is compiled for GPUs, and `{name}` is not pinned",
                    where=where,
                    hint=f"add `{name}:` under `pins:`",
                )
        if not recipe.hosts.gpus:
            yield Problem(
                message=f"`{entry.name}` is compiled for GPUs, and the recipe does not say for which",
                where=where,
                hint='name them, as in hosts: {gpus: ["9.0"]}',
            )
        nvcc = next((p for p in asked.components["nvcc"].providers if _fits(p, dict(pins))), None)
        if "cuda" in pins and not recipe.devel and not (nvcc and nvcc.wheel):
            yield Problem(
                message=f'`{entry.name}` is compiled for GPUs, and the wheels of cuda "{pins["cuda"]}" hold '
                "no nvcc",
                where=where,
                hint='set cuda: "13.0", or `devel: true` for the nvcc of the suite',
            )


def _allowed(asked: Selection, component: Component) -> tuple[Provider, ...]:
    """Return the providers that a recipe can use, the preferred one first.

    Packages from an archive other than the distribution's need a base that is set up for it. On such a base
    they are preferred, unless a pinned component loads this one: it needs the wheels it was built with.
    """
    recipe = asked.recipe
    known = [p for p in component.providers if recipe.image is not None or not p.archive]
    chosen = recipe.providers.get(component.name)
    if chosen:
        return tuple(p for p in known if kind(p) == chosen)
    pinned = (other for name, other in asked.components.items() if name in recipe.pins)
    loaded = any(component.name in other.loads for other in pinned)
    return tuple(sorted(known, key=lambda p: bool(p.archive) if loaded else not p.archive))


def _not_provided(asked: Selection, component: Component, pins: dict[str, str]) -> Problem:
    recipe, chosen = asked.recipe, asked.recipe.providers[component.name]
    there = [p for p in component.providers if kind(p) == chosen]
    where = asked.places.of("providers", component.name)
    if there and there[0].archive and recipe.image is None:
        return Problem(
            message=f"the {chosen} packages of `{component.name}` are in the archive {there[0].archive}, "
            f"which {recipe.base} is not set up for",
            where=where,
            hint="choose a base that is, such as NVIDIA's images, or use the wheels",
        )
    if there:
        return _not_available(asked, component, pins)
    (other,) = {kind(p) for p in component.providers}
    return Problem(
        message=f"`{component.name}` is not available as {chosen}: the catalog has it as {other}",
        where=where,
        hint=f"leave `{component.name}` out of `providers:`",
    )


def _fits(provider: Provider, pins: dict[str, str]) -> bool:
    return all(key in pins and matches(pins[key], value) for key, value in provider.when.items())


def _of_build(build: BuildSteps) -> Provider:
    """Return a provider with the packages that a compiled component needs to run."""
    return Provider(apt=build.apt, when={}, built_for={}, env={}, links={}, scripts={})


def _implied(component: Component, provider: Provider, pins: dict[str, str]) -> str:
    """Return the minor version of the component that a tool belongs to; "" for a suite's single version."""
    pin = pins.get(component.like, "") if provider.wheel else ""
    return ".".join(pin.split(".")[:2])


def _needs_problems(asked: Selection, component: Component, pins: dict[str, str]) -> Iterator[Problem]:
    name = component.name
    where = asked.places.of("pins", name) if name in pins else asked.places.of("devel")
    for need in component.needs:
        # If a tool's own component is missing, the component that needs it reports that.
        if need not in pins and (need != component.like or name in pins):
            yield Problem(
                message=f"`{name}` needs `{need}`, which is not pinned",
                where=where,
                hint=f"add `{need}:` under `pins:`",
            )
    if component.like in pins and component.name not in pins and "." not in pins[component.like]:
        like, value = component.like, pins[component.like]
        yield Problem(
            message=f'`{name}` has the version of `{like}`, and {like} "{value}" does not say which minor',
            where=where,
            hint=f'write the minor too, as in {like}: "{value}.0"',
        )
    for other in component.excludes:
        both = name in asked.components[other].excludes if other in asked.components else False
        if other in pins and name in pins and (name < other or not both):  # report each pair once
            why = "both bring `mpirun` and libmpi" if both else f"the catalog file of `{name}` excludes it"
            yield Problem(
                message=f'{name} "{pins[name]}" and {other} "{pins[other]}" cannot be in one image: {why}',
                where=where,
                hint=f"drop `{name}:` or `{other}:`",
            )


def _build_problems(asked: Selection, component: Component, pins: dict[str, str]) -> Iterator[Problem]:
    """Yield the reasons why a component cannot be compiled as the recipe requests."""
    recipe, name, build = asked.recipe, component.name, component.build
    if name in recipe.build:
        where = asked.places.of("build", recipe.build.index(name))
    elif not component.providers:
        where = asked.places.of("pins", name)
    else:
        return
    if recipe.image is not None and name not in recipe.build:
        yield Problem(
            message=f"`{name}` is compiled, in a root of a suite's packages: the base has to be a suite",
            where=where,
            hint="write `base: debian:trixie`",
        )
    if build is None:
        able = ", ".join(other for other, entry in asked.components.items() if entry.build)
        yield Problem(
            message=f"`{name}` cannot be compiled here",
            where=where,
            hint=f"leave it out of `build:`, which can have {able}",
        )
        return
    if build.against and not set(build.against) & set(pins):
        yield Problem(
            message=f"`{name}` is compiled against {' or '.join(build.against)}, and none is pinned",
            where=where,
            hint=f"add `{build.against[0]}:` under `pins:`, or leave `{name}` out of `build:`",
        )
    for index, text in enumerate(recipe.pip):
        if build.sdist and canonicalize_name(Requirement(text).name) == build.sdist:
            yield Problem(
                message=f"`{text}` would be installed twice: as a wheel, and compiled by `build:`",
                where=asked.places.of("pip", index),
                hint=f"leave it out of `pip:`; pins.{name} says the version",
            )


def _not_available(asked: Selection, component: Component, pins: dict[str, str]) -> Problem:
    """List the versions in the catalog: of the component, or of the one that its providers depend on."""
    name = component.name
    conditions = {pair for provider in component.providers for pair in provider.when.items()}
    key = next((key for key, _ in sorted(conditions)), name)
    values = sorted((value for other, value in conditions if other == key), key=Version)
    own = f'{name} "{pins[name]}"' if name in pins else name
    listed = " and ".join(values)
    there = f"{_called(asked.components[key])} {listed}" if values else "none for such an image"
    beside, of = ("", "") if key == name else (f' for {key} "{pins.get(key, "")}"', "it for ")
    return Problem(
        message=f"{own} is not available{beside}: the catalog has {of}{there}",
        where=asked.places.of("pins", name) if name in pins else asked.places.of("devel"),
        hint=f"set {key}: " + " or ".join(f'"{value}"' for value in values) if values else f"drop `{name}:`",
    )


def _called(component: Component) -> str:
    """Return a component's name as its summary spells it: CUDA."""
    words = re.findall(r"[A-Za-z0-9]+", component.summary)
    return next((word for word in words if word.casefold() == component.name), component.name)
