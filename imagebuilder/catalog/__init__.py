"""The catalog: one YAML file a component says who provides it, what it needs, and how to see what loads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field

from imagebuilder import yamlfile
from imagebuilder.errors import ConflictError, Problem
from imagebuilder.recipe import Recipe
from imagebuilder.upstream import Versions

VENV = "/opt/venv"
_SITE = VENV + "/lib/python{python}/site-packages"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Provider(_Strict):
    """One way to get a component; the first whose `when` fits the recipe is taken.

    Texts may hold `{version}`, `{major}`, `{minor}` (major.minor), `{dashed}` (major-minor) of the pin, and
    `{site}`, the folder of the venv's packages.
    """

    when: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Another component's pin, as a prefix: `cuda: '12'`."),
    ]
    wheel: Annotated[str, Field(description="Distribution whose version is the pin.")] = ""
    archive: Annotated[
        str,
        Field(
            description="Package archive, besides the distribution's own, that has the Debian packages; "
            "a base from a registry is set up for it."
        ),
    ] = ""
    built_for: Annotated[
        dict[str, str],
        Field(
            default_factory=dict,
            description="How the Debian version ends for another component's pin: `cuda: '+cuda{minor}'`.",
        ),
    ]
    wheels: Annotated[
        tuple[str, ...], Field(description="More distributions that go with it, at any version that fits.")
    ] = ()
    apt: Annotated[
        tuple[str, ...], Field(description="Debian packages; the first one's version is the pin.")
    ] = ()
    devel_wheels: Annotated[
        tuple[str, ...], Field(description="More of them in images with `devel: true`.")
    ] = ()
    devel_apt: Annotated[
        tuple[str, ...], Field(description="More Debian packages in images with `devel: true`.")
    ] = ()
    env: Annotated[
        dict[str, str], Field(default_factory=dict, description="Variables of the image, with this provider.")
    ]
    links: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Symbolic links of the image, with this provider."),
    ]
    scripts: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Small programs of the image, with this provider."),
    ]
    sections: Annotated[
        tuple[str, ...],
        Field(description="Sections of the archive that its Debian packages are in: `contrib`, `non-free`."),
    ] = ()
    real: Annotated[
        str,
        Field(description="Debian package whose version the lock names, where the first only leads to it."),
    ] = ""


class Build(_Strict):
    """How to compile a component from its source; recipes ask for it with `build: [name]`.

    The steps run offline, as root, in the folder of the unpacked source. `DESTDIR` is an empty folder, `JOBS`
    the number of cores. Texts may hold the placeholders of a provider.
    """

    debian: Annotated[str, Field(description="Debian source package whose `.orig.tar.*` is compiled.")] = ""
    sdist: Annotated[str, Field(description="Python distribution whose sdist is compiled.")] = ""
    upstream: Annotated[
        Versions,
        Field(
            default_factory=dict,
            description="Archives by version, where neither Debian nor the index has it: `url`, `sha256`.",
        ),
    ]
    needs: Annotated[tuple[str, ...], Field(description="Debian packages that are there only meanwhile.")]
    wheels: Annotated[
        tuple[str, ...], Field(description="Python requirements that are there only meanwhile.")
    ] = ()
    apt: Annotated[
        tuple[str, ...], Field(description="Debian packages of the image that the result needs to run.")
    ] = ()
    against: Annotated[
        tuple[str, ...],
        Field(description="Components, one of which has to be pinned too, and is there meanwhile."),
    ] = ()
    env: Annotated[dict[str, str], Field(default_factory=dict, description="Variables of the steps.")]
    steps: Annotated[tuple[str, ...], Field(description="Commands of the shell, one after the other.")]
    produces: Annotated[
        tuple[str, ...],
        Field(description="What of `DESTDIR` becomes the layer: files and folders; the rest is dropped."),
    ]


class Limit(_Strict):
    """A fact that is in no package's metadata: what one version of this component takes of another thing.

    Both ends are prefixes of versions, and included.
    """

    version: Annotated[str, Field(description="Versions of this component that it holds for, as a prefix.")]
    of: Annotated[str, Field(description="Another component, `python`, or of the hosts `driver` and `gpus`.")]
    least: Annotated[str, Field(description="The lowest that it takes.")] = ""
    most: Annotated[str, Field(description="The highest that it takes.")] = ""
    why: Annotated[str, Field(description="What would go wrong, as the end of a sentence.")]
    strict: Annotated[bool, Field(description="False: said when it is locked, and no conflict.")] = True


class Probe(_Strict):
    """How to see, inside the image, which version is really *loaded*: a command that prints it."""

    command: Annotated[tuple[str, ...], Field(description="Argument list, run as the image's user.")]
    compare: Annotated[
        int, Field(ge=1, le=4, description="How many leading parts of the version the library reports.")
    ] = 3
    gpu: Annotated[bool, Field(description="True where the answer needs a GPU and its driver.")] = False


class Marks(_Strict):
    """How a base from a registry shows which version of a component it was made with."""

    env: Annotated[str, Field(description="Variable of its config that holds the version.")] = ""
    apt: Annotated[str, Field(description="Debian packages that have the version: a pattern, `a-*`.")] = ""


class Component(_Strict):
    """One file of the catalog."""

    name: Annotated[str, Field(description="The file's name without `.yaml`; what recipes pin.")]
    summary: Annotated[str, Field(description="One line for people.")]
    include: Annotated[
        Literal["pinned", "always", "devel"],
        Field(description="`always`: in every image, pinned or not; `devel`: in those with `devel: true`."),
    ] = "pinned"
    like: Annotated[str, Field(description="With `devel`: the component whose pin is also this one's.")] = ""
    excludes: Annotated[
        tuple[str, ...], Field(description="Components that cannot be in one image with it.")
    ] = ()
    needs: Annotated[tuple[str, ...], Field(description="Components that have to be pinned too.")] = ()
    loads: Annotated[
        tuple[str, ...],
        Field(description="Components that its wheels load: pins of these must be what it requires."),
    ] = ()
    providers: Annotated[tuple[Provider, ...], Field(description="Ways to get it, the first that fits.")]
    build: Annotated[Build | None, Field(description="How to compile it from source.")] = None
    limits: Annotated[tuple[Limit, ...], Field(description="What its versions take of other things.")] = ()
    env: Annotated[
        dict[str, str], Field(default_factory=dict, description="Variables of the image while it is in it.")
    ]
    links: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Symbolic links of the image: path and target."),
    ]
    devel_links: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="More of them, in images with `devel: true`."),
    ]
    below: Annotated[
        Marks | None, Field(description="How a base shows its version, which the pin must not contradict.")
    ] = None
    probe: Annotated[Probe | None, Field(description="How the smoke test sees what loads.")] = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A component as one recipe uses it.

    Attributes:
        component: the catalog's.
        pin: the recipe's, empty where none is given.
        provider: the one chosen; for a component that is compiled, what its result needs to run.
        built: how it is compiled; None where it comes as a package.
        devel: whether the image is one to compile in.
        site: the folder of the venv's packages, for `{site}`.

    """

    component: Component
    pin: str
    provider: Provider
    built: Build | None
    devel: bool
    site: str

    @property
    def apt(self) -> tuple[str, ...]:
        """Debian packages of the image."""
        return self.filled((*self.provider.apt, *(self.provider.devel_apt if self.devel else ())))

    @property
    def wheels(self) -> tuple[str, ...]:
        """Python requirements besides the pinned one."""
        return self.filled((*self.provider.wheels, *(self.provider.devel_wheels if self.devel else ())))

    @property
    def env(self) -> dict[str, str]:
        """Variables of the image."""
        found = {**self.component.env, **self.provider.env}
        return dict(zip(found, self.filled(tuple(found.values())), strict=True))

    @property
    def links(self) -> dict[str, str]:
        """Symbolic links of the image: path and target."""
        found = {**self.component.links, **self.provider.links}
        found |= self.component.devel_links if self.devel else {}
        return dict(zip(self.filled(tuple(found)), self.filled(tuple(found.values())), strict=True))

    @property
    def scripts(self) -> dict[str, str]:
        """Small programs of the image: path and text."""
        found = self.provider.scripts
        return dict(zip(self.filled(tuple(found)), self.filled(tuple(found.values())), strict=True))

    def filled(self, texts: tuple[str, ...], version: str = "") -> tuple[str, ...]:
        """Replace the placeholders in texts, by a full version where the pin is not enough."""
        return tuple(fill(text, version or self.pin).replace("{site}", self.site) for text in texts)


@cache
def load() -> dict[str, Component]:
    """Read all components, once a process; sorted by name.

    Raises:
        InputError: a catalog file is wrong.

    """
    found = {}
    for file in sorted(resources.files(__name__).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".yaml"):
            document = yamlfile.parse_own(file.read_bytes(), f"imagebuilder/catalog/{file.name}")
            component = yamlfile.validate(document, Component)
            found[component.name] = component
    return found


def names() -> frozenset[str]:
    """Name what a recipe can pin, without reading the files: one component a file, named like it."""
    entries = resources.files(__name__).iterdir()
    return frozenset(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def parts(recipe: Recipe) -> tuple[Part, ...]:
    """Choose a provider for every component of the recipe, sorted by name.

    Raises:
        ConflictError: components that are needed and not pinned, that nobody provides or that cannot be in
            one image; all of them.

    """
    pins = {**recipe.pins, "python": recipe.python}
    problems: list[Problem] = []
    chosen = []
    missing: set[str] = set()
    for name, component in load().items():
        included = component.include == "always" or (
            component.include == "devel" and recipe.devel and component.like in pins
        )
        if name not in pins and not included:
            continue
        found = [*_needs_problems(recipe, component, pins), *_build_problems(recipe, component, pins)]
        provider = next((p for p in _allowed(component, recipe) if _fits(p, pins)), None)
        if provider is None:
            # What is provided for another one that nobody provides is no problem of its own.
            for_others = {key for choice in component.providers for key in choice.when} - {name}
            nobody = _not_provided if name in recipe.providers else _nobody
            found += [] if found or for_others & missing else [nobody(recipe, component, pins)]
            missing.add(name)
        problems += found
        if provider is not None:
            built = component.build if name in recipe.build else None
            chosen.append(
                Part(
                    component=component,
                    pin=pins.get(name, "") or _implied(component, provider, pins),
                    provider=_of_build(built) if built else provider,
                    built=built,
                    devel=recipe.devel,
                    site=_SITE.format(python=recipe.python_minor),
                )
            )
    if problems:
        raise ConflictError.of(problems)
    return tuple(chosen)


def fill(text: str, version: str) -> str:
    """Replace `{version}`, `{major}`, `{minor}` and `{dashed}` in a catalog text by those of a version."""
    numbers = version.split(".")
    values = {"version": version, "major": numbers[0], "minor": ".".join(numbers[:2])}
    values["dashed"] = "-".join(numbers[:2])
    return re.sub(r"\{(version|major|minor|dashed)\}", lambda found: values[found[1]], text)


def matches(version: str, pin: str) -> bool:
    """Tell whether a version fulfils a pin: its numbers begin with the pin's.

    >>> matches("12.8.90", "12.8"), matches("12.80", "12.8"), matches("2.13.0+cpu", "2.13.0")
    (True, False, True)
    """
    if version == pin:
        return True
    return version.startswith((f"{pin}.", f"{pin}+"))


def kind(provider: Provider) -> str:
    """Say how a provider gives its component: as a `wheel`, or by `apt`."""
    return "wheel" if provider.wheel else "apt"


def wheels_of(name: str, recipe: Recipe) -> tuple[str, ...]:
    """Name the wheels that provide a component for this recipe's other pins, wherever it takes it from."""
    return tuple(
        fill(provider.wheel, recipe.pins.get(name, ""))
        for provider in load()[name].providers
        if provider.wheel and _fits(provider, recipe.pins)
    )


def names_package(pattern: str, package: str) -> bool:
    """Tell whether a catalog's text can stand for a package: `libcudnn{major}-cuda-12` for each major."""
    return re.fullmatch(re.sub(r"\\{[a-z]+\\}", "[0-9.-]+", re.escape(pattern)), package) is not None


def _allowed(component: Component, recipe: Recipe) -> tuple[Provider, ...]:
    """List the providers that a recipe can use, the one to prefer first.

    Packages of another archive need a base that knows it. There they come first, unless something that is
    pinned loads the component: that looks for the wheels which it was built with.
    """
    known = [p for p in component.providers if recipe.image is not None or not p.archive]
    chosen = recipe.providers.get(component.name)
    if chosen:
        return tuple(p for p in known if kind(p) == chosen)
    loaded = any(component.name in other.loads for name, other in load().items() if name in recipe.pins)
    return tuple(sorted(known, key=lambda p: bool(p.archive) if loaded else not p.archive))


def _not_provided(recipe: Recipe, component: Component, _pins: dict[str, str]) -> Problem:
    chosen = recipe.providers[component.name]
    there = [p for p in component.providers if kind(p) == chosen]
    where = f"{recipe.name}: providers.{component.name}"
    if there and there[0].archive and recipe.image is None:
        return Problem(
            message=f"the {chosen} packages of `{component.name}` are in the archive {there[0].archive}, "
            f"which {recipe.base} is not set up for",
            where=where,
            hint="choose a base that is, such as NVIDIA's images, or leave it to the wheels",
        )
    kinds = sorted({kind(p) for p in component.providers})
    return Problem(
        message=f"nobody provides `{component.name}` as {chosen}",
        where=where,
        hint=f"it comes as {' or '.join(kinds)}",
    )


def _fits(provider: Provider, pins: dict[str, str]) -> bool:
    return all(key in pins and matches(pins[key], value) for key, value in provider.when.items())


def _of_build(build: Build) -> Provider:
    """See what a compiled component needs to run as its provider."""
    return Provider(apt=build.apt, when={}, built_for={}, env={}, links={}, scripts={})


def _implied(component: Component, provider: Provider, pins: dict[str, str]) -> str:
    """Take the pin of a tool from what it is for; not where a suite has one version of it and no other."""
    pin = pins.get(component.like, "") if provider.wheel else ""
    return ".".join(pin.split(".")[:2])


def _needs_problems(recipe: Recipe, component: Component, pins: dict[str, str]) -> Iterator[Problem]:
    name = component.name
    where = f"{recipe.name}: pins.{name}" if name in pins else f"{recipe.name}: devel"
    for need in component.needs:
        if need not in pins:
            yield Problem(
                message=f"`{name}` needs `{need}`, which is not pinned",
                where=where,
                hint=f"add `{need}:` under `pins:`",
            )
    if component.like and component.name not in pins and "." not in pins.get(component.like, ""):
        like, value = component.like, pins.get(component.like, "")
        yield Problem(
            message=f'`{name}` comes in the version of `{like}`, and {like} "{value}" leaves its minor open',
            where=where,
            hint=f'write the minor too, as in {like}: "{value}.0"',
        )
    for other in component.excludes:
        if other in pins and name in pins and name < other:  # told once, of both
            yield Problem(
                message=f'{name} "{pins[name]}" and {other} "{pins[other]}" cannot be in one image: each is '
                "its `mpirun` and its libmpi",
                where=where,
                hint=f"drop `{name}:` or `{other}:`",
            )


def _build_problems(recipe: Recipe, component: Component, pins: dict[str, str]) -> Iterator[Problem]:
    """Find why a component cannot be compiled as the recipe asks."""
    name, build = component.name, component.build
    if name not in recipe.build:
        return
    where = f"{recipe.name}: build[{recipe.build.index(name)}]"
    if build is None:
        able = ", ".join(other for other, found in load().items() if found.build)
        yield Problem(
            message=f"`{name}` cannot be compiled here",
            where=where,
            hint=f"leave it out of `build:`, which can take {able}",
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
                message=f"`{text}` would be there twice: as a wheel, and compiled by `build:`",
                where=f"{recipe.name}: pip[{index}]",
                hint=f"leave it out of `pip:`; pins.{name} says the version",
            )


def _nobody(recipe: Recipe, component: Component, pins: dict[str, str]) -> Problem:
    conditions = [pair for provider in component.providers for pair in provider.when.items()]
    choices = sorted({f'{key} "{value}"' for key, value in conditions})
    found = ", ".join(sorted({f'{key} "{pins[key]}"' for key, _ in conditions if key in pins}))
    return Problem(
        message=f"nobody provides `{component.name}` for {found or 'this recipe'}",
        where=f"{recipe.name}: pins.{component.name}",
        hint=f"it exists for {', '.join(choices)}",
    )
