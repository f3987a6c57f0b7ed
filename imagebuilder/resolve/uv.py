"""Run uv: solve requirements for versions, and look up the files of given versions."""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import uv
from packaging.utils import canonicalize_name

from imagebuilder.core import platforms, process
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import FetchError, ImagebuilderError
from imagebuilder.host.site import Site, redact

log = logging.getLogger(__name__)

# A first run fetches the index pages and the metadata of every package; a minute on a slow line.
_TIMEOUT = 600.0
_UNSOLVABLE = "No solution found"
_YANKED = re.compile(r'`([^`]{1,300})` is yanked(?: \(reason: "(.{0,300}?)"\))?')
_LINE = re.compile(r"([a-z0-9][a-z0-9-]*)==([^\s;]+)[^#]*(?:# via (.*))?")


class UnsolvableError(Exception):
    """No set of versions satisfies the requirements; the text is uv's explanation on one line."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The environment to solve for: the image's Python and C library; and how to reach an index."""

    python: str
    glibc: str
    architecture: str
    site: Site

    @property
    def machine(self) -> str:
        return platforms.MACHINES[platforms.of(self.architecture)]


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """The input of one solver run.

    Attributes:
        requirements: the requirements.
        overrides: requirements that replace all others on the same package.
        constraints: limits on versions of packages that get installed anyway.
        lowest: prefer the oldest versions for `requirements`, instead of the newest.
        dependencies: also solve for dependencies.

    """

    requirements: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    lowest: bool = False
    dependencies: bool = True


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The version of every package, and which packages require it, by its normalised name."""

    versions: Mapping[str, str]
    parents: Mapping[str, frozenset[str]]

    def tree(self, root: str) -> frozenset[str]:
        """Return the names of a package and of everything that it requires."""
        names = {root} & set(self.versions)
        new = set(names)
        while new:
            new = {name for name, parents in self.parents.items() if parents & new} - names
            names |= new
        return frozenset(names)


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of an index. The index may not state sha256 and size (then "" and -1)."""

    name: str
    url: str
    sha256: str
    size: int


def solve(query: SolveRequest, target: Target) -> Solution:
    """Find versions of wheels for the target.

    Raises:
        UnsolvableError: there are none.
        FetchError: the index cannot be reached.

    """
    with tempfile.TemporaryDirectory(prefix="imagebuilder-") as folder:
        output = Path(folder) / "solution.txt"
        options = ["--no-header", "--annotation-style", "line", "--output-file", str(output)]
        for option, lines in (("--override", query.overrides), ("--constraint", query.constraints)):
            if lines:
                file = Path(folder) / f"{option.strip('-')}.txt"
                file.write_text("".join(f"{line}\n" for line in lines))
                options += [option, str(file)]
        if query.lowest:
            options += ["--resolution", "lowest-direct"]
        if not query.dependencies:
            options.append("--no-deps")
        _compile(query.requirements, options, target, Path(folder))
        return _parse(output.read_text())


def files(versions: Iterable[tuple[str, str]], target: Target) -> dict[str, tuple[File, ...]]:
    """Look up the wheels of exactly these versions, by normalised name.

    Raises:
        UnsolvableError: the index does not have a version.
        FetchError: the index cannot be reached.

    """
    requirements = [f"{name}=={version}" for name, version in versions]
    with tempfile.TemporaryDirectory(prefix="imagebuilder-") as folder:
        output = Path(folder) / "pylock.toml"
        options = ["--no-deps", "--format", "pylock.toml", "--output-file", str(output)]
        said = _compile(requirements, options, target, Path(folder), quiet=False)
        data = tomllib.loads(output.read_text())
    for name, reason in _YANKED.findall(said):
        log.warning("the package index has withdrawn %s, which stays locked: %s", name, printable(reason))
    return {
        canonicalize_name(package["name"]): tuple(_file(item, output.parent) for item in package["wheels"])
        for package in data.get("packages", ())
    }


def sdist(requirement: str, target: Target) -> tuple[str, File]:
    """Find the newest version of a distribution that satisfies a requirement, and its sdist.

    uv reads the metadata from a wheel of the same version if there is one, and then executes nothing.

    Raises:
        UnsolvableError: there is no such version, or it has no sdist.
        FetchError: the index cannot be reached.

    """
    with tempfile.TemporaryDirectory(prefix="imagebuilder-") as folder:
        output = Path(folder) / "pylock.toml"
        options = ["--no-deps", "--format", "pylock.toml", "--output-file", str(output)]
        _compile([requirement], options, target, Path(folder), binary=False)
        package = tomllib.loads(output.read_text())["packages"][0]
    if "sdist" not in package:
        raise UnsolvableError(f"{package['name']} {package['version']} has no sdist")
    return package["version"], _file(package["sdist"], output.parent)


def _compile(
    requirements: Sequence[str],
    options: Sequence[str],
    target: Target,
    folder: Path,
    *,
    binary: bool = True,
    quiet: bool = True,
) -> str:
    """Run `uv pip compile`; return its messages on one line."""
    # In a folder of its own, uv does not find a pyproject.toml in the current directory.
    argv = [
        uv.find_uv_bin(), "pip", "compile", "-", *(["--quiet"] if quiet else []),
        "--python", sys.executable,  # otherwise uv would look for the target's Python, and download it
        "--python-version", target.python,
        "--python-platform", _platform(target.machine, target.glibc),
        *(["--only-binary", ":all:"] if binary else []),
        *(["--no-index"] if target.site.no_index else []),
        *options,
    ]  # fmt: skip
    env = {**target.site.environment(), "NO_COLOR": "1"}
    text = "".join(f"{requirement}\n" for requirement in requirements)
    result = process.run(argv, timeout=_TIMEOUT, env=env, cwd=folder, stdin=text, check=False)
    reason = redact(" ".join(result.stderr.split()))
    if result.code == 0:
        return reason
    if _UNSOLVABLE in reason:
        raise UnsolvableError(reason)
    log.debug("%s", redact(result.stderr))
    raise FetchError(
        f"the package index cannot be asked: {_first_cause(result.stderr)}", hint=_network_hint(reason)
    )


def _parse(text: str) -> Solution:
    versions: dict[str, str] = {}
    parents: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        entry = _LINE.match(line)
        if entry:
            versions[entry[1]] = entry[2]
            askers = (asker.strip() for asker in (entry[3] or "").split(","))
            # Names that begin with a dash are our own input.
            parents[entry[1]] = frozenset(asker for asker in askers if asker and not asker.startswith("-"))
    return Solution(versions=versions, parents=parents)


def _file(item: Mapping[str, Any], folder: Path) -> File:
    url = item.get("url") or (folder / item["path"]).resolve().as_uri()
    name = item.get("name") or unquote(urlsplit(url).path.rpartition("/")[2])
    return File(
        name=name, url=url, sha256=item.get("hashes", {}).get("sha256", ""), size=item.get("size", -1)
    )


def _platform(machine: str, glibc: str) -> str:
    """Return the newest of uv's platforms whose wheels run on this C library."""
    minor = int(glibc.split(".")[1])
    fitting = [known for known in _known_glibc_minors(machine) if known <= minor]
    if not fitting:
        raise ImagebuilderError(f"uv knows no platform for {machine} with glibc {glibc}")
    return f"{machine}-manylinux_2_{max(fitting)}"


@cache
def _known_glibc_minors(machine: str) -> tuple[int, ...]:
    text = process.run([uv.find_uv_bin(), "pip", "compile", "--help"], timeout=30).stdout
    return tuple(sorted({int(minor) for minor in re.findall(rf"\b{machine}-manylinux_2_(\d+)\b", text)}))


def _first_cause(stderr: str) -> str:
    """Return the line that says what failed, and the innermost cause."""
    lines = [
        redact(line.strip().removeprefix("cause:").strip())
        for line in stderr.splitlines()
        if line.strip() and not line.startswith("warning:")
    ]
    lines = [line.removeprefix("error:").strip() for line in lines]
    if len(lines) < 3:
        return "; ".join(lines) or "uv gave no reason"
    return f"{lines[1]}: {lines[-1]}"


def _network_hint(reason: str) -> str:
    low = reason.lower()
    if "certificate" in low or "unknownissuer" in low:
        return "a CA is missing: set SSL_CERT_FILE, or `ca:` in a file for --site"
    if "401" in low or "403" in low:
        return "the index wants credentials: put them into ~/.netrc"
    if "tunnel" in low or "proxy" in low:
        return "the proxy refuses or is unreachable: check https_proxy, no_proxy, or `proxies:` for --site"
    return "check the network, the proxy (https_proxy) and the index (pip's or uv's settings, or --site FILE)"
