"""The model of a catalog file: the providers, needs, limits and version probe of one component."""

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
    """One way to get a component. A recipe uses the first provider whose `when` matches.

    Texts may hold `{version}`, `{major}`, `{minor}` (major.minor) and `{dashed}` (major-minor) of the pin,
    and `{site}`, the venv's site-packages folder.
    """

    when: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Another component's pin, as a prefix: `cuda: '12'`."),
    ]
    wheel: Annotated[str, Field(description="Python distribution; the pin is its version.")] = ""
    archive: Annotated[
        str,
        Field(
            description="Package archive that has the Debian packages, if it is not the distribution's own. "
            "The base has to be from a registry, and set up for the archive."
        ),
    ] = ""
    built_for: Annotated[
        dict[str, str],
        Field(
            default_factory=dict,
            description="Ending of the Debian version, by another component's pin: `cuda: '+cuda{minor}'`.",
        ),
    ]
    wheels: Annotated[tuple[str, ...], Field(description="More Python requirements that come with it.")] = ()
    apt: Annotated[
        tuple[str, ...], Field(description="Debian packages; the pin is the version of the first.")
    ] = ()
    devel_wheels: Annotated[
        tuple[str, ...], Field(description="More Python requirements in images with `devel: true`.")
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
        Field(default_factory=dict, description="Scripts of the image, with this provider."),
    ]
    sections: Annotated[
        tuple[str, ...],
        Field(description="Sections of the archive that hold its Debian packages: `contrib`, `non-free`."),
    ] = ()
    real: Annotated[
        str,
        Field(description="Debian package whose version counts, if the first one only depends on it."),
    ] = ""


class BuildSteps(Strict):
    """How to compile a component from its source. Recipes request it with `build: [name]`.

    The steps run offline, as root, in the folder of the unpacked source. `DESTDIR` is an empty folder, `JOBS`
    the number of cores. Texts may hold the same placeholders as in a provider.
    """

    debian: Annotated[str, Field(description="Debian source package; its `.orig.tar.*` is compiled.")] = ""
    sdist: Annotated[str, Field(description="Python distribution; its sdist is compiled.")] = ""
    upstream: Annotated[
        Versions,
        Field(
            default_factory=dict,
            description="Source archives by version (`url`, `sha256`), if Debian and the index have none.",
        ),
    ]
    needs: Annotated[tuple[str, ...], Field(description="Debian packages installed only while it compiles.")]
    wheels: Annotated[
        tuple[str, ...], Field(description="Python requirements installed only while it compiles.")
    ] = ()
    apt: Annotated[
        tuple[str, ...], Field(description="Debian packages of the image that the result needs to run.")
    ] = ()
    against: Annotated[
        tuple[str, ...],
        Field(description="Components to compile against; one of them has to be pinned."),
    ] = ()
    env: Annotated[dict[str, str], Field(default_factory=dict, description="Variables of the steps.")]
    steps: Annotated[tuple[str, ...], Field(description="Shell commands, run in order.")]
    produces: Annotated[
        tuple[str, ...],
        Field(description="Files and folders of `DESTDIR` that become the layer; the rest is dropped."),
    ]


class Limit(Strict):
    """A limit that no package's metadata states: versions of another thing that this component works with.

    Both bounds are prefixes of versions, and inclusive.
    """

    version: Annotated[str, Field(description="Versions of this component with this limit, as a prefix.")]
    of: Annotated[
        str,
        Field(description="What is limited: another component, `python`, or the hosts' `driver` or `gpus`."),
    ]
    least: Annotated[str, Field(description="The lowest version that works.")] = ""
    most: Annotated[str, Field(description="The highest version that works.")] = ""
    why: Annotated[str, Field(description="What would go wrong, as the end of a sentence.")]
    unless_patched: Annotated[
        bool, Field(description="A patch of this component's entry under `compile:` lifts the limit.")
    ] = False
    strict: Annotated[bool, Field(description="False: `lock` prints a note, and it is not a conflict.")] = (
        True
    )


class Probe(Strict):
    """A command that prints, inside the image, the version that is really *loaded*."""

    command: Annotated[tuple[str, ...], Field(description="Argument list, run as the image's user.")]
    compare: Annotated[
        int, Field(ge=1, le=4, description="How many parts of the version the library reports.")
    ] = 3
    gpu: Annotated[bool, Field(description="True if the command needs a GPU and its driver.")] = False


class Launcher(Strict):
    """A program that starts the ranks of its node. One runs on every node, and they meet at one address."""

    command: Annotated[tuple[str, ...], Field(description="The program, found by the image's `PATH`.")]
    module: Annotated[
        str, Field(description="The program as a Python module, for a smoke test without containers.")
    ]
    options: Annotated[
        tuple[str, ...],
        Field(
            description="Its options; they may hold `{nodes}`, `{ranks}` (on each node), `{place}` (host and "
            "port) and `{job}` (unique to the run)."
        ),
    ]
    job: Annotated[
        tuple[str, ...],
        Field(
            description="Its options in a job, whose nodes are numbered from 0: they may hold `{nodes}`, "
            "`{ranks}`, `{node}` (the node's number), `{host}` (node 0) and `{port}`. Any program and its "
            "arguments follow them."
        ),
    ]


class Framework(Strict):
    """A library that trains on several nodes: how the smoke test uses it, and its name in the default tag."""

    module: Annotated[str, Field(description="Python module to import.")]
    tag: Annotated[str, Field(description="Its name in the default tag, with a provider's placeholders.")]
    launcher: Annotated[
        Launcher | None, Field(description="Program that starts its ranks, for the checks of a launcher.")
    ] = None
    meets: Annotated[
        str, Field(description="How its ranks meet, and what to know about that, in Markdown.")
    ] = ""
    frozen: Annotated[
        str, Field(description="Since when, and why, upstream makes no more releases; empty if it does.")
    ] = ""
    addresses: Annotated[bool, Field(description="True if each rank has to know the addresses of all.")] = (
        False
    )
    payloads: Annotated[
        dict[str, str],
        Field(description="The checks that run with it, each with its script in `smoke/payload`."),
    ]
    data: Annotated[
        tuple[Literal["digits"], ...],
        Field(description="Data that these scripts train on; `fetch` downloads it with the packages."),
    ] = ()


class Marks(Strict):
    """Where a base from a registry states its version of a component."""

    env: Annotated[str, Field(description="Variable of its config that holds the version.")] = ""
    apt: Annotated[str, Field(description="Debian packages with this version, as a pattern: `a-*`.")] = ""
    keeps: Annotated[
        tuple[str, ...], Field(description="Variables whose value in the base's config wins over `env`.")
    ] = ()


class Component(Strict):
    """One file of the catalog."""

    name: Annotated[str, Field(description="The file's name without `.yaml`, and the name of the pin.")]
    summary: Annotated[str, Field(description="One line for people.")]
    include: Annotated[
        Literal["pinned", "always", "devel"],
        Field(description="`always`: in every image, pinned or not; `devel`: in those with `devel: true`."),
    ] = "pinned"
    like: Annotated[str, Field(description="With `devel`: the component whose pin it shares.")] = ""
    fabrics: Annotated[
        tuple[Literal["ib", "efa"], ...],
        Field(description="Networks that need it: also in images whose recipe names one under `fabric`."),
    ] = ()
    excludes: Annotated[
        tuple[str, ...], Field(description="Components that cannot be in the same image.")
    ] = ()
    needs: Annotated[tuple[str, ...], Field(description="Components that have to be pinned too.")] = ()
    loads: Annotated[
        tuple[str, ...],
        Field(description="Components that its wheels load: their pins must match what its wheels require."),
    ] = ()
    providers: Annotated[
        tuple[Provider, ...],
        Field(description="Ways to get it; the first match is used. Without any, it is always compiled."),
    ] = ()
    build: Annotated[BuildSteps | None, Field(description="How to compile it from source.")] = None
    limits: Annotated[tuple[Limit, ...], Field(description="Versions of other things it works with.")] = ()
    env: Annotated[
        dict[str, str], Field(default_factory=dict, description="Variables of images that have it.")
    ]
    links: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Symbolic links of images that have it: path and target."),
    ]
    devel_links: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="More symbolic links, in images with `devel: true`."),
    ]
    below: Annotated[
        Marks | None, Field(description="Where a base states its version; the pin must not contradict it.")
    ] = None
    probe: Annotated[Probe | None, Field(description="How the smoke test finds the loaded version.")] = None
    framework: Annotated[
        Framework | None, Field(description="For a library that trains on several nodes.")
    ] = None


@cache
def load() -> dict[str, Component]:
    """Read all shipped components, once in a process; sorted by name.

    Raises:
        InputError: a catalog file is wrong.

    """
    components = {}
    for file in sorted(resources.files(_PACKAGE).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".yaml"):
            document = yamlfile.parse_own(file.read_bytes(), f"imagebuilder/catalog/{file.name}")
            component = yamlfile.validate(document, Component)
            components[component.name] = component
    return components


def names() -> frozenset[str]:
    """Return the shipped components, without reading the files: each is named after its component."""
    entries = resources.files(_PACKAGE).iterdir()
    return frozenset(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def frameworks(check: str = "") -> dict[str, Framework]:
    """Return the frameworks by component, sorted; with a check's name, those that the check can run with."""
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
    return re.sub(r"\{(version|major|minor|dashed)\}", lambda placeholder: values[placeholder[1]], text)


def matches(version: str, pin: str) -> bool:
    """Return whether a version satisfies a pin: its numbers begin with the pin's.

    >>> matches("12.8.90", "12.8"), matches("12.80", "12.8"), matches("2.13.0+cpu", "2.13.0")
    (True, False, True)
    """
    if version == pin:
        return True
    return version.startswith((f"{pin}.", f"{pin}+"))


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version, to compare versions by.

    >>> numbers("12.8.90"), numbers("5.0.7rc1")
    ((12, 8, 90), (5, 0, 7, 1))
    """
    return tuple(int(number) for number in re.findall(r"[0-9]+", version))


def kind(provider: Provider) -> str:
    """Return how a provider gives its component: `wheel` or `apt`."""
    return "wheel" if provider.wheel else "apt"


def names_package(pattern: str, package: str) -> bool:
    """Return whether a text of the catalog can give this package's name: `libcudnn{major}-cuda-12`."""
    return re.fullmatch(re.sub(r"\\{[a-z]+\\}", "[0-9.-]+", re.escape(pattern)), package) is not None
