"""List what an image holds that a recipe could name, from its files and its config. No program in it is run.

Formats: dpkg's status and apt's extended_states are deb822(5); installed Python packages are the `.dist-info`
folders of PyPA's "Recording installed projects"; conda records requested packages in `conda-meta/history`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from imagebuilder.bases import system as systems
from imagebuilder.bases.system import System
from imagebuilder.bases.tree import Tree, TreeNode
from imagebuilder.core import jsontext
from imagebuilder.core import labels as label_names
from imagebuilder.debian import sources

_KEPT = re.compile(
    r"var/lib/apt/extended_states|etc/ssh/sshd_config"
    r"|(?:.+/)?[^/]+\.dist-info/(?:METADATA|direct_url\.json)"
    r"|(?:.+/)?conda-meta/history|(?:.+/)?pkgconfig/(?:ompi|mpich)\.pc"
)
_SITE = re.compile(r"(?:.+/)?lib/python3\.[0-9]{1,2}/(?:site|dist)-packages")
# A component and its version; a label may hold anything.
_PIN = re.compile(r"[a-z0-9][a-z0-9+-]{0,62}=[A-Za-z0-9][A-Za-z0-9.+_-]{0,62}")
# conda's cache of unpacked packages, which is not an environment.
_CACHE = re.compile(r"(?:^|/)pkgs/")
_DEBIAN_SITE = "usr/lib/python3/dist-packages"
_DIST_INFO = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,199})-([0-9][A-Za-z0-9.!+_]{0,99})\.dist-info")
_EGG_INFO = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._]{0,199})-([0-9][A-Za-z0-9.!+_]{0,99}?)(?:-py3[.0-9]*)?\.egg-info"
)
# What `setup.py develop` writes in place of a metadata folder.
_EGG_LINK = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,199})\.egg-link")
_REQUIRES = re.compile(r"Requires-Dist:\s*([A-Za-z0-9][A-Za-z0-9._-]*)(.*)")
_SPECS = re.compile(r"# (?:update|install) specs: *\[(.{0,100000})\]")
_SPEC = re.compile(r"['\"](?:[A-Za-z0-9_.-]+::)?([A-Za-z0-9][A-Za-z0-9._-]*)")
_KEY = re.compile(r"etc/ssh/ssh_host_[a-z0-9]+_key|(?:.+/)?\.ssh/id_[a-z0-9_]+")
_MPI = {"bin/ompi_info": ("openmpi", "ompi"), "bin/mpichversion": ("mpich", "mpich")}
_PC_VERSION = re.compile(r"^Version:\s*([0-9][0-9.]{0,30})", re.MULTILINE)
_PORT = re.compile(r"^\s*Port\s+([0-9]{1,5})\s*$", re.MULTILINE | re.IGNORECASE)
_DEPENDENCY = re.compile(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)")
_DPKG = frozenset(
    {"package", "status", "priority", "essential", "depends", "pre-depends", "provides", "maintainer"}
)
_AUTO = frozenset({"package", "auto-installed"})
# Ordinary folders at the top: hier(7), and those that engines and container toolkits add.
_TOP = re.compile(
    r"bin|boot|dev|etc|home|lib(?:32|64|x32)?|media|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var"
)
_USR_LOCAL = re.compile(r"bin|etc|games|include|lib|man|sbin|share|src")
_NOTHING = re.compile(r"(?!)")
_TOOLS = frozenset({"pip", "setuptools", "wheel"})
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SMALL = 65_536  # bytes read of a direct_url.json or a pkg-config file
_MOST_TEXTS = 1_000
_MOST_DISTRIBUTIONS = 5_000  # in one folder; the largest images have a few hundred
_MOST_LISTED = 100


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """An installed Python package.

    Attributes:
        name: normalised.
        version: from the name of its metadata folder.
        requested: whether a person installed it by name, as far as the installer recorded that.
        origin: where it came from if not from an index: `a folder`, `a repository`, `an address`, or
            `an unknown place` if no installer is recorded; else "".

    """

    name: str
    version: str
    requested: bool = False
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The packages of one Python.

    Attributes:
        prefix: its folder, without a slash in front: `usr`, `opt/venv`.
        python: major.minor.
        conda: whether conda manages it.
        distributions: sorted by name.

    """

    prefix: str
    python: str
    conda: bool
    distributions: tuple[Distribution, ...]

    @property
    def is_empty(self) -> bool:
        """Whether it has only the packages that every new environment has."""
        return {item.name for item in self.distributions} <= _TOOLS


@dataclass(frozen=True, kw_only=True)
class Mpi:
    """An MPI that is not from a Debian package: its component, its version or "", and its folder."""

    component: str
    version: str
    prefix: str


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What an image holds.

    Attributes:
        system: distribution, suite and packages.
        manual: Debian packages that a person installed by name, as far as apt recorded that; sorted.
        recommended: Debian packages that nothing depends on, which apt installed as recommended; sorted.
        nvidia: Debian packages that NVIDIA maintains.
        debian_python: name and version of Python packages from Debian, which are in no environment.
        environments: the first one belongs to the image's `python`.
        mpi: MPIs that are not from Debian packages.
        keys: paths of private ssh keys.
        folders: folders that belong neither to the system nor to a Python environment.
        port: the port of sshd.
        env, user, workdir, entrypoint, command: from the config.
        others: names of other settings in the config.
        pins: the pins that the labels of an image of imagebuilder name.

    """

    system: System
    manual: tuple[str, ...] = ()
    recommended: tuple[str, ...] = ()
    nvidia: frozenset[str] = frozenset()
    debian_python: Mapping[str, str] = field(default_factory=dict)
    environments: tuple[Environment, ...] = ()
    mpi: tuple[Mpi, ...] = ()
    keys: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    port: int = 22
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)


def wanted(path: str) -> bool:
    """Return whether the content of a file is needed here."""
    return systems.wanted(path) or _KEPT.fullmatch(path) is not None


def of_tree(tree: Tree, config: Mapping[str, Any], image: str) -> Inventory:
    """Read what an image holds.

    Args:
        tree: the image's files, with the contents that `wanted` asks for.
        config: the `config` of its config, which is untrusted.
        image: its name, for messages.

    Raises:
        InputError: it is neither Debian nor Ubuntu, its suite is unknown, or it has no dpkg.

    """
    system = systems.of_tree(tree, image)
    env = dict(text.partition("=")[::2] for text in _texts(config.get("Env")))
    seen = _walk(tree)
    status = tuple(_packages(system))
    manual, recommended = _asked_for(status, _kept(tree.find("var/lib/apt/extended_states")))
    labels = _labels(config.get("Labels"))
    package = labels.get(label_names.PACKAGE, "")
    own = canonicalize_name(package.partition(" ")[0])
    environments = _environments(tree, seen, env.get("PATH") or _DEFAULT_PATH, own)
    return Inventory(
        system=system,
        manual=manual,
        recommended=recommended,
        nvidia=frozenset(
            item["package"] for item in status if "nvidia" in item.get("maintainer", "").lower()
        ),
        debian_python={name: version for name, version, _ in _listed(tree.find(_DEBIAN_SITE))},
        environments=environments,
        mpi=tuple(_mpi(tree, path) for path in seen.programs if not path.startswith("usr/bin/")),
        keys=seen.keys,
        folders=tuple(_folders(tree, environments)),
        port=_port(_kept(tree.find("etc/ssh/sshd_config"))),
        env=env,
        user=_text(config.get("User")),
        workdir=_text(config.get("WorkingDir")),
        entrypoint=_texts(config.get("Entrypoint")),
        command=_texts(config.get("Cmd")),
        others=tuple(name for name in ("Volumes", "Healthcheck", "OnBuild") if config.get(name)),
        pins={
            name: version
            for name, version in label_names.pins(labels).items()
            if _PIN.fullmatch(f"{name}={version}")
        },
    )


# The config


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _labels(value: object) -> dict[str, str]:
    items = value.items() if isinstance(value, dict) else ()
    return {key: _text(text) for key, text in items}


def _texts(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else []
    return tuple(item for item in items[:_MOST_TEXTS] if isinstance(item, str))


# The files


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """Paths of interest in the tree."""

    sites: tuple[str, ...]
    conda: frozenset[str]
    programs: tuple[str, ...]
    keys: tuple[str, ...]


def _walk(tree: Tree) -> _Seen:
    sites, conda, programs, keys = [], set(), [], []
    for path, node in tree.walk():
        if node.is_folder:
            if _SITE.fullmatch(path) and not _CACHE.search(path):
                sites.append(path)
            elif path.rpartition("/")[2] == "conda-meta" and not _CACHE.search(path):
                conda.add(path.rpartition("/")[0])
        elif path.endswith(tuple(_MPI)):
            programs.append(path)
        elif _KEY.fullmatch(path):
            keys.append(path)
    return _Seen(
        sites=tuple(sites[:_MOST_LISTED]),
        conda=frozenset(conda),
        programs=tuple(programs[:_MOST_LISTED]),
        keys=tuple(keys[:_MOST_LISTED]),
    )


def _kept(node: TreeNode | None) -> str:
    """Return the content of a file that was kept; "" if there is no such file or it was too large."""
    return (node.inode.data or b"").decode("utf-8", "replace") if node else ""


def _port(text: str) -> int:
    match = _PORT.search(text)
    return int(match[1]) if match else 22


def _mpi(tree: Tree, path: str) -> Mpi:
    program = next(name for name in _MPI if path.endswith(name))
    component, pc = _MPI[program]
    prefix = path.removesuffix(program).rstrip("/")
    texts = (_kept(tree.find(f"{prefix}/{lib}/pkgconfig/{pc}.pc"))[:_SMALL] for lib in ("lib", "lib64"))
    version = next((match[1] for text in texts if (match := _PC_VERSION.search(text))), "")
    return Mpi(component=component, version=version, prefix=prefix)


def _folders(tree: Tree, environments: Iterable[Environment]) -> Iterator[str]:
    """Yield folders that are not the system's: at the top, in /opt and in /usr/local."""
    known = {item.prefix for item in environments}
    for parent, ordinary in (("", _TOP), ("opt", _NOTHING), ("usr/local", _USR_LOCAL)):
        folder = tree.find(parent)
        paths = {
            f"{parent}/{name}".lstrip("/"): node
            for name, node in sorted(folder.children.items() if folder else ())
            if node.is_folder and node.children and not ordinary.fullmatch(name)
        }
        yield from [path for path in paths if path not in known][:_MOST_LISTED]


# Debian packages


def _packages(system: System) -> Iterator[dict[str, str]]:
    for block in sources.paragraphs(system.status, _DPKG):
        if block.get("status", "").split()[-1:] == ["installed"]:
            yield block


def _asked_for(status: Sequence[Mapping[str, str]], states: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find the packages that a person asked for: not marked automatic, and not a dependency of another one.

    Essential and required packages and their dependencies are left out. A base that was not made with apt has
    no marks for its packages, so dependencies are checked as well.

    Returns:
        These packages, and those that neither they nor the system depend on.

    """
    auto = {
        block.get("package", "")
        for block in sources.paragraphs(states, _AUTO)
        if block.get("auto-installed", "") == "1"
    }
    providers: dict[str, set[str]] = {}
    for block in status:
        for name in (block["package"], *_named(block, "provides")):
            providers.setdefault(name, set()).add(block["package"])
    names = {block["package"] for block in status}
    needs = {
        block["package"]: sorted(
            {
                other
                for name in (*_named(block, "depends"), *_named(block, "pre-depends"))
                for other in providers.get(name, ())
            }
        )
        for block in status
    }
    base = {
        block["package"]
        for block in status
        if block.get("essential", "") == "yes" or block.get("priority", "") == "required"
    }
    reached: set[str] = set()
    _follow(sorted(base), needs, reached)
    asked = []
    # In reverse order, a package comes before all that it depends on.
    for name in reversed(_follow(sorted(names - auto - base), needs, set())):
        if name not in reached and name not in auto:
            asked.append(name)
            _follow([name], needs, reached)
    return tuple(sorted(asked)), tuple(sorted(names - reached))


def _named(block: Mapping[str, str], key: str) -> list[str]:
    """Return all package names in a field of dependencies, without versions; alternatives are included."""
    names: list[str] = _DEPENDENCY.findall(block.get(key, "").replace("\n", " "))
    return names


def _follow(starts: Iterable[str], needs: Mapping[str, Sequence[str]], reached: set[str]) -> list[str]:
    """Add packages and all their dependencies to `reached`; return the new ones, dependencies first."""
    order = []
    for start in starts:
        if start in reached:
            continue
        reached.add(start)
        stack = [(start, iter(needs[start]))]
        while stack:
            name, rest = stack[-1]
            following = next((other for other in rest if other not in reached), None)
            if following is None:
                order.append(name)
                stack.pop()
            else:
                reached.add(following)
                stack.append((following, iter(needs[following])))
    return order


# Python packages


def _environments(tree: Tree, seen: _Seen, path: str, own: str) -> tuple[Environment, ...]:
    """Group the package folders by the Python that uses them; the Python first in `PATH` comes first.

    `own` is the package that an image of imagebuilder names in its labels: its user's.
    """
    grouped: dict[tuple[str, str], dict[str, Distribution]] = {}
    for site in seen.sites:
        prefix, _, rest = site.rpartition("lib/python")
        python, _, kind = rest.partition("/")
        # Debian's own Python has two folders of packages.
        prefix = "usr" if kind == "dist-packages" and prefix == "usr/local/" else prefix.rstrip("/")
        installed = grouped.setdefault((prefix, python), {})
        asked = _asked_of_conda(tree, prefix, seen.conda)
        for item in _distributions(tree.find(site), asked, own, conda=prefix in seen.conda):
            installed[item.name] = item
    made = [
        Environment(
            prefix=prefix,
            python=python,
            conda=prefix in seen.conda,
            distributions=tuple(installed[name] for name in sorted(installed)),
        )
        for (prefix, python), installed in grouped.items()
    ]
    folders = [folder.strip("/") for folder in path.split(":")]

    def rank(item: Environment) -> tuple[bool, int, int, str]:
        program = f"{item.prefix}/bin"
        place = folders.index(program) if program in folders else len(folders)
        return (item.is_empty, place, -len(item.distributions), item.prefix)

    return tuple(sorted(made, key=rank))


def _distributions(
    folder: TreeNode | None, asked: Collection[str], own: str, *, conda: bool
) -> Iterator[Distribution]:
    """List the packages in a folder. If none is marked as requested, mark those that no other requires.

    What a package that is on no index requires counts as requested, because the recipe leaves that one out.
    """
    installed: list[Distribution] = []
    needed: set[str] = set()
    of_own: set[str] = set()
    for name, version, node in _listed(folder):
        origin = "a folder" if name == own else _origin(node, conda=conda)
        required = set(_requires(_kept(node.children.get("METADATA")))) - {name}
        (of_own if origin else needed).update(required)
        requested = "REQUESTED" in node.children or name in asked
        installed.append(Distribution(name=name, version=version, requested=requested, origin=origin))
    is_recorded = any(item.requested for item in installed)
    for item in installed:
        requested = item.requested if is_recorded else item.name not in needed
        yield replace(item, requested=requested or item.name in of_own)
    links = map(_EGG_LINK.fullmatch, sorted(folder.children) if folder else ())
    for match in itertools.islice(filter(None, links), _MOST_DISTRIBUTIONS):
        yield Distribution(name=canonicalize_name(match[1]), version="", requested=True, origin="a folder")


def _listed(folder: TreeNode | None) -> Iterator[tuple[str, str, TreeNode]]:
    """Yield name, version and folder of each package, from the names of the metadata folders."""
    named = (
        (match, node)
        for entry, node in sorted(folder.children.items() if folder else ())
        if (match := _DIST_INFO.fullmatch(entry) or _EGG_INFO.fullmatch(entry))
    )
    for match, node in itertools.islice(named, _MOST_DISTRIBUTIONS):
        version = match[2].replace("_", "-")
        with contextlib.suppress(InvalidVersion):
            Version(version)
            yield canonicalize_name(match[1]), version, node


def _requires(metadata: str) -> Iterator[str]:
    """Yield the packages that a package always requires, without those of its extras."""
    for line in io.StringIO(metadata):
        if not line.strip():
            return  # the description follows
        match = _REQUIRES.match(line)
        if match and "extra" not in match[2]:
            yield canonicalize_name(match[1])


def _origin(info: TreeNode, *, conda: bool) -> str:
    """Return where a package came from, by its direct_url.json (PyPA, "Recording the Direct URL Origin").

    Installers that take packages from an index write their name to INSTALLER. pip's old way by setup.py wrote
    installed-files.txt. Of conda's packages, some have neither.
    """
    direct_url = _kept(info.children.get("direct_url.json"))
    if not direct_url:
        is_known = conda or not info.children.keys().isdisjoint({"INSTALLER", "installed-files.txt"})
        return "" if is_known else "an unknown place"
    try:
        document = jsontext.loads(direct_url, limit=_SMALL)
    except ValueError:
        return "an address"
    kinds = {"vcs_info": "a repository", "dir_info": "a folder"}
    return next(
        (text for key, text in kinds.items() if isinstance(document, dict) and key in document), "an address"
    )


def _asked_of_conda(tree: Tree, prefix: str, conda: Collection[str]) -> frozenset[str]:
    if prefix not in conda:
        return frozenset()
    history = _kept(tree.find(f"{prefix}/conda-meta/history"))
    specs = (match[1] for match in map(_SPECS.match, io.StringIO(history)) if match)
    return frozenset(canonicalize_name(name) for text in specs for name in _SPEC.findall(text))
