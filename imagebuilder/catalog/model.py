"""One file of the catalog: who provides a component, what it needs, and how to see what loads."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import Field

from imagebuilder.catalog.upstream import Versions
from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict

_PACKAGE = "imagebuilder.catalog"


class Provider(Strict):
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


class Build(Strict):
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


class Limit(Strict):
    """A fact that is in no package's metadata: what one version of this component takes of another thing.

    Both ends are prefixes of versions, and included.
    """

    version: Annotated[str, Field(description="Versions of this component that it holds for, as a prefix.")]
    of: Annotated[str, Field(description="Another component, `python`, or of the hosts `driver` and `gpus`.")]
    least: Annotated[str, Field(description="The lowest that it takes.")] = ""
    most: Annotated[str, Field(description="The highest that it takes.")] = ""
    why: Annotated[str, Field(description="What would go wrong, as the end of a sentence.")]
    strict: Annotated[bool, Field(description="False: said when it is locked, and no conflict.")] = True


class Probe(Strict):
    """How to see, inside the image, which version is really *loaded*: a command that prints it."""

    command: Annotated[tuple[str, ...], Field(description="Argument list, run as the image's user.")]
    compare: Annotated[
        int, Field(ge=1, le=4, description="How many leading parts of the version the library reports.")
    ] = 3
    gpu: Annotated[bool, Field(description="True where the answer needs a GPU and its driver.")] = False


class Launcher(Strict):
    """A program that starts the ranks of its node; one runs on every node, and they meet at one place."""

    command: Annotated[tuple[str, ...], Field(description="The program, as the image's `PATH` finds it.")]
    module: Annotated[
        str, Field(description="The same as a Python module, where the smoke test runs without containers.")
    ]
    options: Annotated[
        tuple[str, ...],
        Field(
            description="Its options; they may hold `{nodes}`, `{ranks}` (on each node), `{place}` (host and "
            "port) and `{job}` (a word that no other run has)."
        ),
    ]


class Framework(Strict):
    """A library that trains on several nodes: how the smoke test uses it, and what it is called in a tag."""

    module: Annotated[str, Field(description="Python module that an image with it has.")]
    tag: Annotated[str, Field(description="Its word in the default tag, with a provider's placeholders.")]
    launcher: Annotated[
        Launcher | None, Field(description="What starts its ranks, for the checks that test a launcher.")
    ] = None
    payloads: Annotated[
        dict[str, str],
        Field(description="The checks that run with it, and for each the script of `smoke/payload` it runs."),
    ]
    data: Annotated[
        tuple[Literal["digits"], ...],
        Field(description="What these scripts train on; `fetch` downloads it with the image's packages."),
    ] = ()


class Marks(Strict):
    """How a base from a registry shows which version of a component it was made with."""

    env: Annotated[str, Field(description="Variable of its config that holds the version.")] = ""
    apt: Annotated[str, Field(description="Debian packages that have the version: a pattern, `a-*`.")] = ""


class Component(Strict):
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
    framework: Annotated[
        Framework | None, Field(description="What makes it a library that trains on several nodes.")
    ] = None


@cache
def load() -> dict[str, Component]:
    """Read all components, once a process; sorted by name.

    Raises:
        InputError: a catalog file is wrong.

    """
    found = {}
    for file in sorted(resources.files(_PACKAGE).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".yaml"):
            document = yamlfile.parse_own(file.read_bytes(), f"imagebuilder/catalog/{file.name}")
            component = yamlfile.validate(document, Component)
            found[component.name] = component
    return found


def names() -> frozenset[str]:
    """Name what a recipe can pin, without reading the files: one component a file, named like it."""
    entries = resources.files(_PACKAGE).iterdir()
    return frozenset(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def frameworks(check: str = "") -> dict[str, Framework]:
    """Select the frameworks, by component and sorted; given a check's name, those that it can run with."""
    return {
        name: component.framework
        for name, component in load().items()
        if component.framework and (not check or check in component.framework.payloads)
    }


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


def names_package(pattern: str, package: str) -> bool:
    """Tell whether a catalog's text can stand for a package: `libcudnn{major}-cuda-12` for each major."""
    return re.fullmatch(re.sub(r"\\{[a-z]+\\}", "[0-9.-]+", re.escape(pattern)), package) is not None
