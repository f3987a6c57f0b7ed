"""Write a recipe for an existing image, or for a project's requirement file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from packaging.version import Version

from imagebuilder import catalog
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.bases import images
from imagebuilder.bases.images import Image
from imagebuilder.bases.inventory import Distribution, Environment, Inventory, Mpi
from imagebuilder.catalog import Component, Part, limits
from imagebuilder.core import files, platforms, yamlfile
from imagebuilder.debian import suites, versions
from imagebuilder.errors import ConflictError, InputError
from imagebuilder.host.site import detect, redact
from imagebuilder.recipe import Places, requirements
from imagebuilder.recipe.draft import Draft, listed
from imagebuilder.recipe.model import kind_of_file
from imagebuilder.recipe.requirements import Demand
from imagebuilder.resolve.agreement import environment
from imagebuilder.store import Store

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
# Variables in which images give the version of a component that is in none of their packages.
_VERSION_ENV = {"cuda": "CUDA_VERSION", "cudnn": "CUDNN_VERSION", "nccl": "NCCL_VERSION"}
# The default commands of common base images.
_SHELLS = (("bash",), ("/bin/bash",), ("sh",), ("python3",))
_COMPILERS = re.compile(r"cuda-nvcc-[0-9-]+|nvidia-cuda-toolkit|nvidia-cuda-nvcc(?:-cu[0-9]+)?")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_SSH_PORT, _FREE_PORT = 22, 2222
_ROOM = 60_000  # characters of one list: a recipe has at most 250 kB
_MOST_VARIABLES = 50
_LONGEST_VALUE = 500
_LATEST = ("debian", "trixie")


class _Recipe:
    """A recipe that grows key by key. What a recipe's own checks would refuse becomes a note instead."""

    def __init__(self, **fields: Any) -> None:
        self.fields: dict[str, Any] = dict(fields)
        self.notes: list[str] = []

    def parts(self) -> tuple[Part, ...]:
        """Return the components of the recipe so far."""
        fields = {key: tuple(item) if isinstance(item, list) else item for key, item in self.fields.items()}
        return catalog.select(recipes.Recipe.model_validate(fields)).parts

    def refusal(self, **changes: Any) -> str:
        """Return what would be wrong with the recipe after these changes; "" if nothing would be."""
        text = Draft(origin="", fields=_ordered({**self.fields, **changes}), notes=()).text()
        try:
            recipe, places = recipes.checked(
                yamlfile.parse(text.encode(errors="surrogatepass"), "recipe"), catalog.names()
            )
            limits.require(catalog.select(recipe, places), {})
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
        return not _Recipe(**{key: self.fields[key] for key in ("name", "base", "python")}).refusal(**changes)

    def draft(self, origin: str) -> Draft:
        return Draft(origin=origin, fields=_ordered(self.fields), notes=tuple(self.notes))


def _ordered(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: fields[key] for key in _ORDER if key in fields}


def name_of_image(asked: str) -> str:
    """Make a recipe's name from an image's: its last part.

    >>> name_of_image("registry.example:5000/team/Train_GPU:1.2"), name_of_image("sha256:0a1b2c")
    ('train-gpu', 'image')
    """
    if asked.startswith("sha256:"):
        return "image"
    return _as_name(asked.partition("@")[0].rpartition("/")[2].partition(":")[0], "image")


def _as_name(text: str, otherwise: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))[:100].rstrip("-") or otherwise


def image(asked: str, name: str, platform: str, site: Path | None, store: Store) -> Draft:
    """Read an image, and write down what it holds as a recipe; see `images.read`.

    Args:
        asked: what the image is called.
        name: of the recipe.
        platform: which platform of the image to read; "" for the default of `images.read`.
        site: the site file.
        store: keeps the layers that a registry sends.

    """
    wanted = platforms.check(platform) if platform else ""
    return of_image(images.read(asked, wanted, detect(site), store), name, asked)


def of_image(source: Image, name: str, asked: str) -> Draft:
    """Write down what an image holds as a recipe; see `image`."""
    contents = source.contents
    main = contents.environments[0] if contents.environments else None
    base, python, note = _system(contents, main)
    made = _Recipe(name=name, base=base, python=python)
    made.notes += [note] if note else []
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


def name_of_file(file: Path) -> str:
    """Make a recipe's name from the name of the folder that holds a requirement file."""
    return _as_name(file.absolute().parent.name, "project")


def of_requirements(file: Path, folder: Path, name: str) -> Draft:
    """Write a recipe that takes its Python packages from a requirement file, and pins the components in it.

    Args:
        file: requirements.txt, pyproject.toml, uv.lock or pylock.toml; the recipe refers to it.
        folder: the recipe's folder.
        name: the recipe's name.

    Raises:
        InputError: it is not such a file, or cannot be read.
        ConflictError: it requires a Python that no suite has.

    """
    base, python, demands = _suite_for(file, name)
    entry = os.path.relpath(file.absolute(), folder.absolute())
    made = _Recipe(name=name, base=base, python=python, requirements=[entry])
    exact: dict[str, Version] = {item.name: item.exact for item in demands if item.exact is not None}
    wheels = {item: Distribution(name=item, version=str(version)) for item, version in exact.items()}
    _pin_found(made, wheels, {}, {})
    pins = made.fields.get("pins", {})
    if "torch" in pins and "cuda" not in pins and exact["torch"].local is None:
        _pin_beside_torch(made)
    if own := [f"{item} {version}" for item, version in sorted(exact.items()) if version.local]:
        made.notes.append(
            f"Builds that the usual index does not have: {listed(own)}. Name their index in a site file."
        )
    return made.draft(f"the packages that {entry} names, on the newest suite whose Python they take")


def _suite_for(file: Path, name: str) -> tuple[str, str, list[Demand]]:
    """Choose the newest Python that a requirement file accepts. Returns base, Python, and the demands."""
    if not kind_of_file(file.name):
        raise InputError(
            "is not named like a requirement file",
            where=yamlfile.printable(str(file)),
            hint="requirements.txt (or another NAME.txt, NAME.in), pyproject.toml, uv.lock or pylock.toml",
        )
    known = {
        facts.has["python"]: f"{distribution}:{suite}"
        for distribution, of_distribution in suites.known().items()
        for suite, facts in of_distribution.suites.items()
        if "python" in facts.has
    }
    refusals = []
    for python in sorted(known, key=Version, reverse=True):
        fields = {"name": name, "base": known[python], "python": python, "requirements": (file.name,)}
        recipe = recipes.Recipe.model_validate(fields)
        variables = environment(python, platforms.architecture(platforms.DEFAULT))
        try:
            read = requirements.read(recipe, file.absolute().parent, Places(recipe=str(file)), variables)
        except ConflictError as error:
            refusals.append(error)
            continue
        return known[python], python, [demand for item in read for demand in item.demands]
    raise refusals[0]


def _pin_beside_torch(made: _Recipe) -> None:
    """Pin the CUDA, cuDNN and NCCL that torch's wheels need, if a shipped recipe has this torch."""
    torch = made.fields["pins"]["torch"]
    for path in sorted(files.resources("recipes").glob("*.yaml")):
        shipped = recipes.load(path, catalog.names())
        if shipped.pins.get("torch") == torch and not shipped.devel:
            beside = {
                name: shipped.pins[name] for name in catalog.load()["torch"].loads if name in shipped.pins
            }
            made.offer(f"what torch {torch} loads", pins={**made.fields["pins"], **beside})
            return
    made.notes.append(
        f"CUDA, cuDNN and NCCL: which ones the wheels of torch {torch} take is not known offline. "
        "`imagebuilder lock` finds them; pin them then, so that the smoke test checks them."
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


def _pin(made: _Recipe, contents: Inventory, main: Environment | None) -> frozenset[str]:
    """Pin the catalog's components that the image has; return the Python packages that the pins replace."""
    wheels = {item.name: item for item in main.distributions} if main else {}
    debs = {item.name: item.version for item in contents.system.packages}
    stands_for = _pin_found(made, wheels, debs, contents.env)
    for mpi in contents.mpi:
        _offer_mpi(made, mpi)
    if any(map(_COMPILERS.fullmatch, (*wheels, *debs))):
        made.offer("nvcc and CUDA's headers (`devel: true`)", devel=True)
    return stands_for


def _pin_found(
    made: _Recipe, wheels: Mapping[str, Distribution], debs: Mapping[str, str], env: Mapping[str, str]
) -> frozenset[str]:
    stands_for: set[str] = set()
    components = catalog.load()
    # A component comes after those that it needs.
    for name in sorted(components, key=lambda name: (len(components[name].needs), name)):
        component = components[name]
        if component.include != "pinned":
            continue
        by_wheel = [item for item in wheels if any(_is_wheel(p.wheel, item) for p in component.providers)]
        version = _installed(component, wheels, debs) or _from_variable(name, env)
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
        pattern = provider.apt[0] if provider.apt else ""
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


def _from_variable(name: str, env: Mapping[str, str]) -> str:
    match = _NUMBERS.match(env.get(_VERSION_ENV.get(name, ""), ""))
    component = catalog.load()[name]
    return _shortened(match[0], component.probe.compare if component.probe else 3) if match else ""


def _shortened(version: str, parts: int) -> str:
    """Keep the first numbers of a final release; other versions stay whole.

    >>> _shortened("9.10.2.21", 3), _shortened("6.0.0rc2", 1), _shortened("2.10.0.post1", 3)
    ('9.10.2', '6.0.0rc2', '2.10.0.post1')
    """
    return ".".join(version.split(".")[:parts]) if _NUMBERS.fullmatch(version) else version


def _offer_pin(made: _Recipe, component: Component, version: str) -> None:
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


def _offer_mpi(made: _Recipe, mpi: Mpi) -> None:
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


def _apt(made: _Recipe, contents: Inventory) -> dict[str, str]:
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
    made: _Recipe, main: Environment | None, pinned: frozenset[str], by_debian: Mapping[str, str]
) -> None:
    """List the Python packages that were installed on purpose, in their installed versions."""
    installed = main.distributions if main else ()
    asked = [item for item in installed if item.requested and item.name not in pinned | _TOOLS]
    wanted = {**by_debian, **{item.name: item.version for item in asked if not item.origin}}
    exact = [f"{name}=={Version(wanted[name]).public}" for name in sorted(wanted)]
    made.offer_each("Python packages", "pip", exact)
    for origin in sorted({item.origin for item in asked if item.origin}):
        names = [f"{item.name} {item.version}" for item in asked if item.origin == origin]
        made.notes.append(
            f"Installed from {origin}, and on no index: {listed(names)}. "
            "Put a wheel of it into a wheel folder (docs/how-to/site.md)."
        )
    own = [f"{item.name} {item.version}" for item in installed if "+" in item.version]
    if own:
        made.notes.append(
            f"Builds that the usual index does not have: {listed(own)}. The version is kept without what "
            "follows `+`; for the same build, name its index in a site file."
        )


def _environments(made: _Recipe, contents: Inventory) -> None:
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


def _config(made: _Recipe, contents: Inventory) -> None:
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


def _start(made: _Recipe, contents: Inventory, home: str) -> None:
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


def _rest(made: _Recipe, contents: Inventory) -> None:
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
