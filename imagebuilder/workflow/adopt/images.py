"""Write a recipe for an existing image."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from packaging.version import Version

from imagebuilder import plan as plans
from imagebuilder.bases import images
from imagebuilder.bases.images import Image
from imagebuilder.bases.inventory import Environment, Inventory, Mpi
from imagebuilder.catalog import own
from imagebuilder.core import platforms
from imagebuilder.debian import suites, versions
from imagebuilder.host.site import detect, redact
from imagebuilder.recipe.draft import Draft, listed
from imagebuilder.store import Store
from imagebuilder.workflow.adopt.growing import GrowingRecipe, as_name, pin_found

_TOOLS = frozenset({"pip", "setuptools", "wheel"})
# Debian packages that every image has, or replaces.
_OWN_PACKAGES = re.compile(
    r"python3(?:\.[0-9]+)?(?:-minimal|-venv|-pip|-distutils|-setuptools|-wheel)?|apt|passwd|tini|dumb-init"
    r"|(?:debian-archive|ubuntu|cuda)-keyring|openssh-(?:server|client|sftp-server)|ssh"
)
# Variables that installers and bases set for themselves, or that catalog components set.
_OWN_ENV = re.compile(
    r"PATH|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|HOME|USER|SHELL|HOSTNAME|PWD|VIRTUAL_ENV|DEBIAN_FRONTEND|LANG"
    r"|NV_\w+|NVIDIA_\w+|CUDA_(?:VERSION|HOME|PATH)|(?:NCCL|CUDNN)_VERSION|GPG_KEY|CONDA_\w+|PIP_\w+|UV_\w+"
    r"|PYTHON_(?:VERSION|SHA256|PIP_VERSION|GET_PIP_\w+|SETUPTOOLS_VERSION)"
    r"|(?:OMPI|PRTE)_ALLOW_RUN_AS_ROOT\w*"
)
# Packages whose versions exist in one suite only.
_OF_THE_SUITE = re.compile(r"gcc-[0-9]+|openmpi-bin|mpich")
# The default commands of common base images.
_SHELLS = (("bash",), ("/bin/bash",), ("sh",), ("python3",))
_COMPILERS = re.compile(r"cuda-nvcc-[0-9-]+|nvidia-cuda-toolkit|nvidia-cuda-nvcc(?:-cu[0-9]+)?")
# What to do with packages that are on no index.
_OWN_CODE = (
    "If it is your own, get its folder: `project: FOLDER` installs the package, and `copy:` copies the files "
    "into the image. A wheel of it can also be put into a folder that "
    "`wheel_folders:` in a file for --site names."
)
_SSH_PORT, _FREE_PORT = 22, 2222
_MOST_VARIABLES = 50
_LONGEST_VALUE = 500
_LATEST = ("debian", "trixie")


def name_of_image(asked: str) -> str:
    """Make a recipe's name from an image's: its last part.

    >>> name_of_image("registry.example:5000/team/Train_GPU:1.2"), name_of_image("sha256:0a1b2c")
    ('train-gpu', 'image')
    """
    if asked.startswith("sha256:"):
        return "image"
    return as_name(asked.partition("@")[0].rpartition("/")[2].partition(":")[0], "image")


def read_image(asked: str, path: Path, platform: str, site: Path | None, store: Store) -> Draft:
    """Read an image, and write down what it holds as a recipe; see `images.read`.

    Args:
        asked: what the image is called.
        path: of the recipe; components described beside it can be pinned.
        platform: which platform of the image to read; "" for the default of `images.read`.
        site: the site file.
        store: keeps the layers that a registry sends.

    """
    wanted = platforms.check(platform) if platform else ""
    found = detect(site)
    return of_image(images.read(asked, wanted, found, store), path, asked, found.catalog)


def of_image(source: Image, path: Path, asked: str, folder: Path | None = None) -> Draft:
    """Write down what an image holds as a recipe; see `read_image`."""
    contents = source.contents
    main = contents.environments[0] if contents.environments else None
    base, python, note = _system(contents, main)
    known, strange = own.offered(path, folder)
    made = GrowingRecipe(known, name=path.stem, base=base, python=python)
    made.notes += [*strange, note] if note else strange
    if source.platform != platforms.DEFAULT:
        made.fields["platforms"] = [source.platform]
    pinned = _pin(made, contents, main)
    by_debian = _apt(made, contents)
    _pip(made, main, pinned, by_debian)
    _environments(made, contents)
    _config(made, contents)
    _rest(made, contents)
    return made.draft(
        f"the image {asked} ({source.place}): its files were read, and no program in it was run"
    )


# Python and components


def _system(contents: Inventory, main: Environment | None) -> tuple[str, str, str]:
    """Choose base and Python. Returns a note, too, if the image's own base has another Python."""
    system = contents.system
    known = suites.known()
    base = f"{system.distribution}:{system.suite}"
    installed = next((item.version for item in system.packages if item.name == "python3"), "")
    own = ".".join(versions.upstream(installed).split(".")[:2])
    own = own or known[system.distribution].suites[system.suite].has.get("python", "")
    python = main.python if main and not main.is_empty else own
    if python == own or not own:
        return base, python or known[_LATEST[0]].suites[_LATEST[1]].has["python"], ""
    others = [
        f"{distribution}:{suite}"
        for distribution, facts in known.items()
        for suite, facts_of_suite in facts.suites.items()
        if facts_of_suite.has.get("python") == python
    ]
    if others and not any(_OF_THE_SUITE.fullmatch(item.name) for item in system.packages):
        note = (
            f"{base} has Python {own}. The base is {others[0]}, because it has the image's Python {python}."
        )
        return others[0], python, note
    elsewhere = f" {' and '.join(others)} has Python {python}." if others else ""
    return base, own, f"Python {python}: {base} has Python {own}, and a recipe takes its suite's.{elsewhere}"


def _pin(made: GrowingRecipe, contents: Inventory, main: Environment | None) -> frozenset[str]:
    """Pin the catalog's components that the image has; return the Python packages that the pins replace."""
    wheels = {item.name: item for item in main.distributions} if main else {}
    debs = {item.name: item.version for item in contents.system.packages}
    stands_for = pin_found(made, wheels, debs, contents.env, contents.pins)
    if missing := [
        f"{name} {contents.pins[name]}" for name in sorted(contents.pins.keys() - made.known.keys())
    ]:
        made.notes.append(
            f"The image's labels pin {listed(missing)}, which no catalog file describes. Put the file, "
            "NAME.yaml, into the folder `catalog` beside the recipe, and run `init --force` again."
        )
    for mpi in contents.mpi:
        _offer_mpi(made, mpi)
    if any(map(_COMPILERS.fullmatch, (*wheels, *debs))):
        made.offer("nvcc and CUDA's headers (`devel: true`)", devel=True)
    return stands_for


def _offer_mpi(made: GrowingRecipe, mpi: Mpi) -> None:
    """Pin the suite's version of an MPI that is in the image without a Debian package."""
    pins = made.fields.get("pins", {})
    base = made.fields["base"]
    distribution, _, suite = base.partition(":")
    what = f"{mpi.component} {mpi.version or 'of an unknown version'} in /{mpi.prefix}"
    version = suites.known()[distribution].suites[suite].has.get(mpi.component, "")
    if mpi.component in pins or not version:
        made.notes.append(f"{what}: it is not from a Debian package, and a recipe cannot install it.")
    elif made.offer(what, pins={**pins, mpi.component: version}):
        made.notes.append(
            f"{what}: pinned is {version}, the version of {base}; `build: [{mpi.component}]` compiles it."
        )


# Packages


def _apt(made: GrowingRecipe, contents: Inventory) -> dict[str, str]:
    """List the Debian packages that were installed on purpose and that no pin installs.

    Returns:
        Name and version of Python packages that came as Debian packages: the image's venv does not see those.

    """
    brought = {package for part in made.parts() for package in part.apt}
    # `gcc` depends on the suite's `gcc-14`.
    brought |= {name.rpartition("-")[0] for name in brought} | contents.nvidia
    asked = [name for name in contents.manual if name not in brought and not _OWN_PACKAGES.fullmatch(name)]
    by_debian = {
        name: name.removeprefix("python3-")
        for name in asked
        if name.startswith("python3-") and name.removeprefix("python3-") in contents.debian_python
    }
    made.offer_each("Debian packages", "apt", [name for name in asked if name not in by_debian])
    if by_debian:
        made.notes.append(
            f"Debian's Python packages ({listed(list(by_debian))}) are not seen by the image's own Python: "
            "they are under `pip:`."
        )
    recommended = [name for name in contents.recommended if name not in brought]
    if recommended:
        made.notes.append(
            f"Packages installed because others recommend them: {listed(recommended)}. A recipe installs no "
            "recommended packages; name under `apt:` those that you need."
        )
    of_nvidia = sorted(contents.nvidia.intersection(contents.manual))
    if of_nvidia:
        made.notes.append(
            f"Packages of NVIDIA's archive ({listed(of_nvidia)}): the pins bring CUDA's runtime, cuDNN and "
            "NCCL, torch's wheels bring the other libraries, and `devel: true` brings nvcc and headers."
        )
    archives = sorted({archive.name for archive in contents.system.archives} - {"nvidia-cuda"})
    if archives:
        made.notes.append(
            f"The package archives {listed(archives)}: a recipe on a suite has the distribution's own. "
            "`base: {image: ...}` keeps those of an image."
        )
    return {name: contents.debian_python[name] for name in by_debian.values()}


def _pip(
    made: GrowingRecipe, main: Environment | None, pinned: frozenset[str], by_debian: Mapping[str, str]
) -> None:
    """List the Python packages that were installed on purpose, in their installed versions."""
    installed = main.distributions if main else ()
    asked = [
        item for item in installed if (item.requested or item.origin) and item.name not in pinned | _TOOLS
    ]
    wanted = {**by_debian, **{item.name: item.version for item in asked if not item.origin}}
    exact = [f"{name}=={Version(wanted[name]).public}" for name in sorted(wanted)]
    made.offer_each("Python packages", "pip", exact)
    for origin in sorted({item.origin for item in asked if item.origin}):
        names = [f"{item.name} {item.version}".strip() for item in asked if item.origin == origin]
        made.notes.append(f"Installed from {origin}, so perhaps on no index: {listed(names)}. {_OWN_CODE}")
    own = [f"{item.name} {item.version}" for item in installed if "+" in item.version]
    if own:
        made.notes.append(
            f"Builds that the usual index does not have: {listed(own)}. The version is kept without what "
            "follows `+`; for the same build, name its index in a site file."
        )


def _environments(made: GrowingRecipe, contents: Inventory) -> None:
    """Add notes on environments besides the main one, and on conda."""
    others = [
        f"/{item.prefix} (Python {item.python}, {len(item.distributions)} packages)"
        for item in contents.environments[1:]
        if not item.is_empty
    ]
    if others:
        made.notes.append(f"Other environments of Python: {listed(others)}. An image has one, /opt/venv.")
    conda = [f"/{item.prefix}" for item in contents.environments if item.conda]
    if conda:
        made.notes.append(
            f"What conda put into {listed(conda)}: Python packages come as wheels of the index; compilers, "
            "libraries and programs have to come by a pin or by `apt:`."
        )


# Settings


def _config(made: GrowingRecipe, contents: Inventory) -> None:
    """Carry over the user and the variables; note settings that a recipe has no key for."""
    user = contents.user.partition(":")[0]
    names = {str(number): name for name, number in contents.system.accounts.items()}
    user = "root" if user in {"", "0"} else names.get(user, user)
    port = _FREE_PORT if user != "root" and contents.port == _SSH_PORT else contents.port
    if (user, port) != ("root", _SSH_PORT):
        made.offer(f"USER {user}, sshd on port {port}", ssh={"port": port, "user": user})
    brought = {name for part in made.parts() for name in part.env()}
    own = {
        name: text
        for name, text in contents.env.items()
        if name not in brought and not _OWN_ENV.fullmatch(name)
    }
    allowed = plans.inherited_env(own)
    kept = {
        name: text
        for name, text in list(allowed.items())[:_MOST_VARIABLES]
        if len(text) <= _LONGEST_VALUE and redact(text) == text and made.alone(env={name: text})
    }
    made.fields["env"] = kept
    if left := sorted(allowed.keys() - kept.keys()):
        made.notes.append(
            f"Variables that look like secrets, are not plain text or too long: {listed(left)}. "
            "Give them to the container when it starts."
        )
    if loading := sorted(own.keys() - allowed.keys()):
        made.notes.append(
            f"Variables that make programs load or run something: {listed(loading)}. "
            "Set them under `env:` if that is meant."
        )
    _start(made, contents, home="/root" if user == "root" else f"/home/{user}")
    if contents.others:
        made.notes.append(f"{listed(contents.others)} of the image's config: a recipe has no key for it.")


def _start(made: GrowingRecipe, contents: Inventory, home: str) -> None:
    """Carry over the working folder and the command."""
    if contents.workdir not in {"", "/", home}:
        made.offer(f"WORKDIR {contents.workdir}", workdir=contents.workdir)
    entrypoint, command = contents.entrypoint, contents.command
    if any("imagebuilder-entrypoint" in text for text in entrypoint):
        entrypoint = ()
    started = f"ENTRYPOINT {json.dumps(entrypoint)} with CMD {json.dumps(command)}"
    if entrypoint:
        made.notes.append(
            f"{started}: an image has an entrypoint of its own, which starts sshd or `command:`. "
            "Put what it ran there into `command:`."
        )
    elif command and command not in _SHELLS and not any(text.endswith("sshd") for text in command):
        made.offer(f"CMD {json.dumps(command)}", command=list(command))


def _rest(made: GrowingRecipe, contents: Inventory) -> None:
    """Add notes on files that a recipe cannot hold."""
    if contents.keys:
        made.notes.append(
            f"Private ssh keys ({listed(contents.keys, 4)}): no layer holds one. Host keys are made when a "
            "container starts, and `imagebuilder keys` makes those of a job."
        )
    if contents.folders:
        made.notes.append(
            f"Folders that no package accounts for: {listed([f'/{path}' for path in contents.folders])}. "
            "`copy:` puts folders of your project into the image."
        )
