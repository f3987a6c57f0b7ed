"""The catalog: one YAML file a component says who provides it, what it needs, and how to see what loads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from imagebuilder import yamlfile
from imagebuilder.errors import ConflictError
from imagebuilder.recipe import Recipe


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Provider(_Strict):
    """One way to get a component; the first whose `when` fits the recipe is taken.

    Texts may hold `{version}`, `{major}`, `{minor}` (major.minor) of the pin.
    """

    when: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Another component's pin, as a prefix: `cuda: '12'`."),
    ]
    wheel: Annotated[str, Field(description="Distribution whose version is the pin.")] = ""
    wheels: Annotated[
        tuple[str, ...], Field(description="More distributions that go with it, at any version that fits.")
    ] = ()
    apt: Annotated[
        tuple[str, ...], Field(description="Debian packages; the first one's version is the pin.")
    ] = ()
    real: Annotated[
        str,
        Field(description="Debian package whose version the lock names, where the first only leads to it."),
    ] = ""


class Probe(_Strict):
    """How to see, inside the image, which version is really *loaded*: a command that prints it."""

    command: Annotated[tuple[str, ...], Field(description="Argument list, run as the image's user.")]
    compare: Annotated[
        int, Field(ge=1, le=4, description="How many leading parts of the version the library reports.")
    ] = 3
    gpu: Annotated[bool, Field(description="True where the answer needs a GPU and its driver.")] = False


class Component(_Strict):
    """One file of the catalog."""

    name: Annotated[str, Field(description="The file's name without `.yaml`; what recipes pin.")]
    summary: Annotated[str, Field(description="One line for people.")]
    include: Annotated[
        Literal["pinned", "always"],
        Field(description="`always`: in every image, pinned or not."),
    ] = "pinned"
    needs: Annotated[tuple[str, ...], Field(description="Components that have to be pinned too.")] = ()
    loads: Annotated[
        tuple[str, ...],
        Field(description="Components that its wheels load: pins of these must be what it requires."),
    ] = ()
    providers: Annotated[tuple[Provider, ...], Field(description="Ways to get it, the first that fits.")]
    env: Annotated[
        dict[str, str], Field(default_factory=dict, description="Variables of the image while it is in it.")
    ]
    links: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Symbolic links of the image: path and target."),
    ]
    probe: Annotated[Probe | None, Field(description="How the smoke test sees what loads.")] = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A component as one recipe uses it: the pin (empty where none is given) and the provider chosen."""

    component: Component
    pin: str
    provider: Provider


@cache
def load() -> dict[str, Component]:
    """Read all components, once a process; sorted by name.

    Raises:
        InputError: a catalog file is wrong.

    """
    found = {}
    for file in sorted(resources.files(__name__).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".yaml"):
            document = yamlfile.parse(file.read_bytes(), f"imagebuilder/catalog/{file.name}")
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
        ConflictError: a needed component is not pinned, or no provider fits.

    """
    catalog = load()
    pins = {**recipe.pins, "python": recipe.python}
    chosen = []
    for name, component in catalog.items():
        if name not in pins and component.include != "always":
            continue
        for need in component.needs:
            if need not in pins:
                raise ConflictError(
                    f"`{name}` needs `{need}`, which is not pinned",
                    where=f"{recipe.name}: pins.{name}",
                    hint=f"add `{need}:` under `pins:`",
                )
        provider = next((p for p in component.providers if _fits(p, pins)), None)
        if provider is None:
            conditions = [pair for p in component.providers for pair in p.when.items()]
            choices = sorted({f'{key} "{value}"' for key, value in conditions})
            found = ", ".join(sorted({f'{key} "{pins[key]}"' for key, _ in conditions if key in pins}))
            raise ConflictError(
                f"nobody provides `{name}` for {found or 'this recipe'}",
                where=f"{recipe.name}: pins.{name}",
                hint=f"it exists for {', '.join(choices)}",
            )
        chosen.append(Part(component=component, pin=pins.get(name, ""), provider=provider))
    return tuple(chosen)


def fill(text: str, version: str) -> str:
    """Replace `{version}`, `{major}` and `{minor}` in a catalog text by those of a version."""
    numbers = version.split(".")
    values = {"version": version, "major": numbers[0], "minor": ".".join(numbers[:2])}
    return re.sub(r"\{(version|major|minor)\}", lambda found: values[found[1]], text)


def matches(version: str, pin: str) -> bool:
    """Tell whether a version fulfils a pin: its numbers begin with the pin's.

    >>> matches("12.8.90", "12.8"), matches("12.80", "12.8"), matches("2.13.0+cpu", "2.13.0")
    (True, False, True)
    """
    if version == pin:
        return True
    return version.startswith((f"{pin}.", f"{pin}+"))


def _fits(provider: Provider, pins: dict[str, str]) -> bool:
    return all(key in pins and matches(pins[key], value) for key, value in provider.when.items())
