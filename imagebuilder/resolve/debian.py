"""Debian packages of a recipe, solved by apt itself in a private root: no host setting but the site's counts."""

from __future__ import annotations

import difflib
import logging
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from imagebuilder import catalog, process, suites
from imagebuilder.errors import BuildError, ConflictError, EnvironmentFault, FetchError, Problem
from imagebuilder.lock import Deb
from imagebuilder.resolve.request import Pinned, Request
from imagebuilder.site import Site, redact

log = logging.getLogger(__name__)

_UPDATE_LIMIT = 900.0  # seconds: the index of a suite is some 10 MB, behind whatever line there is
_SOLVE_LIMIT = 120.0

# What Debian adds to an upstream version whose source it had to change: 1.2+dfsg, 1.2~ds1, 1.2+repack.
_REPACKED = re.compile(r"[+~.](?:dfsg|ds|repack|debian)[0-9.]*.*")
# OpenSSH's portable release, 10.0p1, is version 10.0 of OpenSSH.
_PORTABLE = re.compile(r"(?<=[0-9])p[0-9]+$")
_PRINTED = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>[0-9]+) SHA256:(?P<sha256>[0-9a-f]{64})")


def resolve_debs(request: Request, site: Site) -> tuple[Deb, ...]:
    """Choose every Debian package of an image: the essential ones, apt, and what the recipe asks for.

    Returns:
        The packages with their dependencies but without recommendations, sorted by name. No host is named.

    Raises:
        ConflictError: pins or packages that this suite does not have, every one of them; or dependencies
            that cannot be fulfilled, in apt's words.
        FetchError: the archive's index could not be had.
        EnvironmentFault: apt, mmdebstrap or the archive's keys are not on this host.
        InputError: the suite is not known.

    """
    facts = suites.facts(request.distribution, request.suite)
    with _private_root(request, site) as root:
        wanted = ["?essential", *sorted({*facts.packages, *request.packages})]
        result = root.run("apt-get", "install", "--yes", "-qq", "--print-uris", *wanted, timeout=_SOLVE_LIMIT)
        if result.code != 0:
            index = root.index()
            problems = _unknown_packages(request, index) + _unmet_pins(request, index, index)
            if not problems:
                # The quiet answer holds no reasons: ask once more.
                told = root.run("apt-get", "install", "--simulate", "-q", *wanted, timeout=_SOLVE_LIMIT)
                problems = [_unsolvable(request, told.stdout, told.stderr)]
            raise ConflictError.of(problems)
        debs = _parse_uris(result.stdout, root.mirrors)
        # The index is read only where something does not fit: it is for saying what would.
        if pin_problems(request, debs):
            raise ConflictError.of(_unmet_pins(request, _versions(debs), root.index()))
    return debs


def pin_problems(request: Request, debs: Sequence[Deb]) -> tuple[Problem, ...]:
    """Find the pins that these packages do not fulfil: whether an older lock's packages may stay."""
    return tuple(_unmet_pins(request, _versions(debs), {}))


def deb_pin_versions(request: Request, debs: Sequence[Deb]) -> dict[str, str]:
    """Give the full upstream version of every pin that a Debian package fulfils, Python's too."""
    versions = {deb.name: upstream_version(deb.version) for deb in debs}
    found = {pinned.pin: versions[pinned.package] for pinned in _all_pins(request)}
    return dict(sorted(found.items()))


def glibc(debs: Sequence[Deb]) -> str:
    """Give the C library's version as wheel tags count it: major.minor."""
    version = next(upstream_version(deb.version) for deb in debs if deb.name == "libc6")
    return ".".join(version.split(".")[:2])


def upstream_version(version: str) -> str:
    """Take the packaging away from a Debian version: epoch, revision, repacking marks.

    >>> upstream_version("1:10.0p1-7+deb13u4"), upstream_version("3.2.1+dfsg-1"), upstream_version("6.0.0~rc2-1")
    ('10.0', '3.2.1', '6.0.0rc2')
    """
    text = version.partition(":")[2] or version
    text = text.rpartition("-")[0] or text
    text = text.rpartition("+really")[2]
    text = _PORTABLE.sub("", _REPACKED.sub("", text))
    return text.replace("~", "")


def locate_debs(
    debs: Sequence[Deb], distribution: str, suite: str, site: Site
) -> dict[str, tuple[str, ...]]:
    """Say where each package may be fetched, most likely place first: sha256 -> URLs. Nothing is asked.

    A security update keeps its name and bytes when a point release takes it over, but moves to the main
    archive's pool; both places are given.
    """
    facts = suites.facts(distribution, suite)
    mirrors = _mirrors(distribution, suite, site)
    found = {}
    for deb in debs:
        places = [(mirrors.main, deb.path)]
        if deb.path.startswith(facts.security_pool):
            moved = "pool/" + deb.path.removeprefix(facts.security_pool)
            places = [(mirrors.security, deb.path), (mirrors.main, moved)]
        found[deb.sha256] = tuple(f"{mirror}/{quote(path, safe='/+~:%')}" for mirror, path in places)
    return found


@dataclass(frozen=True, kw_only=True)
class _Root:
    """A folder that apt takes for a whole system, and where its mirrors are."""

    folder: Path
    mirrors: suites.Mirrors
    env: Mapping[str, str]

    def run(self, *argv: str, timeout: float) -> process.Result:
        return process.run(argv, timeout=timeout, env=self.env, cwd=self.folder, check=False)

    def index(self) -> dict[str, tuple[str, ...]]:
        """Read the names and versions of all packages, from the lists that `apt-get update` fetched.

        A name that is only provided by others has no version of its own.
        """
        found: dict[str, tuple[str, ...]] = {}
        for file in sorted((self.folder / "lists").glob("*_Packages")):
            name = ""
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    if line.startswith("Package: "):
                        name = line[9:].rstrip("\n")
                    elif line.startswith("Version: "):
                        found[name] = (*found.get(name, ()), line[9:].rstrip("\n"))
                    elif line.startswith("Provides: "):
                        for provided in line[10:].split(","):
                            found.setdefault(provided.split()[0], ())
        return found


@contextmanager
def _private_root(request: Request, site: Site) -> Iterator[_Root]:
    keys = suites.keyring(request.distribution, request.suite)
    mirrors = _mirrors(request.distribution, request.suite, site)
    with tempfile.TemporaryDirectory(prefix="imagebuilder-apt-") as name:
        folder = Path(name)
        # apt fetches as a user of its own, who has to get in; there is nothing secret in here but what
        # a mirror's URL may hold, and that file stays closed.
        folder.chmod(0o755)
        for part in ("etc/apt.conf.d", "etc/preferences.d", "lists/partial", "cache/archives/partial", "log"):
            (folder / part).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "etc/suite.sources").write_text(
            suites.sources(request.distribution, request.suite, mirrors), encoding="utf-8"
        )
        (folder / "etc/suite.sources").chmod(0o600)
        config = folder / "apt.conf"
        config.write_text(_configuration(folder, request.architecture, keys, site), encoding="utf-8")
        env = {**site.environment(), "APT_CONFIG": str(config), "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}
        root = _Root(folder=folder, mirrors=mirrors, env=env)
        _update(root, request)
        yield root


def _configuration(folder: Path, architecture: str, keys: Path, site: Site) -> str:
    """Write apt's configuration; the file in APT_CONFIG is read first, and sends apt away from the host's."""
    settings = [
        ("Dir", folder),
        ("Dir::Etc", folder / "etc"),
        ("Dir::Etc::SourceList", "/dev/null"),
        ("Dir::Etc::SourceParts", folder / "etc"),
        ("Dir::Etc::Trusted", keys),
        ("Dir::Etc::TrustedParts", "/dev/null"),
        ("Dir::State", folder),
        ("Dir::State::Lists", folder / "lists"),
        ("Dir::State::Status", folder / "status"),
        ("Dir::Cache", folder / "cache"),
        ("Dir::Log", folder / "log"),
        ("APT::Architecture", architecture),
        ("APT::Install-Recommends", "false"),
        ("APT::Install-Suggests", "false"),
        ("APT::Get::Assume-Yes", "true"),
        ("Acquire::Languages", "none"),
        # Read once and thrown away: packing the lists again would only take time.
        ("Acquire::GzipIndexes", "false"),
        *site.apt_options,
        # `--print-uris` shows MD5 unless told which hash to use.
        ("Acquire::ForceHash", "SHA256"),
    ]
    lines = [f'{name} "{value}";' for name, value in settings]
    return "\n".join([*lines, f'APT::Architectures {{ "{architecture}"; }};', ""])


def _update(root: _Root, request: Request) -> None:
    try:
        result = root.run("apt-get", "update", "-qq", "--error-on=any", timeout=_UPDATE_LIMIT)
    except EnvironmentFault as error:
        raise EnvironmentFault(str(error), hint=suites.INSTALL_HINT.format("apt")) from error
    if result.code != 0:
        raise FetchError(
            f"the package index of {request.distribution} {request.suite} could not be had:\n"
            + redact(_condense(result.stderr)),
            where=f"{request.recipe}: base",
            hint="check the network, the proxy and the mirror (`imagebuilder doctor`); "
            "a mirror goes into the site file as `apt_mirror:`",
        )


def _mirrors(distribution: str, suite: str, site: Site) -> suites.Mirrors:
    """Take the site's mirrors, and the distribution's own where the site names none."""
    if site.apt_mirror and site.apt_security_mirror:
        main, security = site.apt_mirror, site.apt_security_mirror
    else:
        default = suites.default_mirrors(distribution, suite)
        main = site.apt_mirror or default.main
        security = site.apt_security_mirror or default.security
    return suites.Mirrors(main=main.rstrip("/"), security=security.rstrip("/"))


def _parse_uris(text: str, mirrors: suites.Mirrors) -> tuple[Deb, ...]:
    """Read `apt-get --print-uris`: URL, file name (name_version_architecture.deb), size and hash in a line."""
    debs = []
    for line in filter(None, text.splitlines()):
        found = _PRINTED.fullmatch(line)
        if not found:
            raise BuildError(
                f"apt printed a line that is not understood: {line}", hint="is this apt older than 2.0?"
            )
        name, version, rest = found["file"].split("_", 2)
        debs.append(
            Deb(
                name=unquote(name),
                version=unquote(version),
                architecture=rest.removesuffix(".deb"),
                path=unquote(_below(found["uri"], (mirrors.security, mirrors.main))),
                size=int(found["size"]),
                sha256=found["sha256"],
            )
        )
    return tuple(sorted(debs, key=lambda deb: (deb.name, deb.architecture)))


def _below(uri: str, roots: Iterable[str]) -> str:
    # The longest first: one mirror may be below the other, as in /debian and /debian-security.
    for root in sorted(roots, key=len, reverse=True):
        if uri.startswith(f"{root}/"):
            return uri.removeprefix(f"{root}/")
    # apt took the password out of the URL, or wrote its host in another way.
    return uri[uri.index("/pool/") + 1 :]


def _versions(debs: Sequence[Deb]) -> dict[str, tuple[str, ...]]:
    return {deb.name: (deb.version,) for deb in debs}


def _all_pins(request: Request) -> tuple[Pinned, ...]:
    """List the pins that Debian packages fulfil: Python is one, though it has a key of its own."""
    python = Pinned(pin="python", value=request.python, package="python3")
    return (*(pinned for pinned in request.deb_pins if pinned.pin != "python"), python)


def _unknown_packages(request: Request, index: Mapping[str, tuple[str, ...]]) -> list[Problem]:
    """Find what the recipe asks for by name, or by name and version, and the archive does not have."""
    problems = []
    base = f"{request.distribution} {request.suite}"
    # What a pin brings in is reported as that pin, once: gcc-15 also stands for its g++-15.
    missing = [pinned for pinned in _all_pins(request) if pinned.package not in index]
    reported = tuple(f"-{pinned.value.partition('.')[0]}" for pinned in missing if _stem(pinned))
    for package in request.packages:
        name, _, version = package.partition("=")
        where = f"{request.recipe}: apt: {name}"
        if name not in index and name not in {pinned.package for pinned in missing}:
            if not name.endswith(reported):
                problems.append(
                    Problem(
                        message=f"{base} has no package `{name}`", where=where,
                        hint=_similar(name, index) or "is it in another component of the archive, or renamed?",
                    )
                )
        elif version and version not in index[name]:
            problems.append(
                Problem(
                    message=f"{base} has no version {version} of `{name}`", where=where,
                    hint=f"it has {', '.join(sorted(set(index[name])))}; or leave the version to the lock",
                )
            )
    return problems


def _unmet_pins(
    request: Request, chosen: Mapping[str, tuple[str, ...]], index: Mapping[str, tuple[str, ...]]
) -> list[Problem]:
    """Find pins that the chosen packages do not fulfil; `index` says which values would."""
    problems = []
    base = f"{request.distribution} {request.suite}"
    for pinned in _all_pins(request):
        versions = sorted({upstream_version(version) for version in chosen.get(pinned.package, ())})
        if any(catalog.matches(version, pinned.value) for version in versions):
            continue
        has = f"whose {pinned.package} is {' or '.join(versions)}" if versions else (
            f"which has no {pinned.package}"
        )
        working = _working_values(pinned, index)
        key = "python" if pinned.pin == "python" else f"pins.{pinned.pin}"
        values = " or ".join(f'`{pinned.pin}: "{value}"`' for value in working)
        problems.append(
            Problem(
                message=f'{pinned.pin} "{pinned.value}" contradicts base {base}, {has}',
                where=f"{request.recipe}: {key}",
                hint=f"{base} has {values}; or choose another base"
                if values
                else "choose another base, or drop the pin",
            )
        )
    return problems


def _working_values(pinned: Pinned, index: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """List the values of a pin that this suite could fulfil.

    Some packages carry the major version in their names (gcc-14): then every such package counts.
    """
    names = [pinned.package]
    if stem := _stem(pinned):
        names = [name for name in index if re.fullmatch(rf"{re.escape(stem)}[0-9]+", name)]
    versions = {upstream_version(version) for name in names for version in index.get(name, ())}
    if pinned.pin == "python":
        versions = {".".join(version.split(".")[:2]) for version in versions}
    return tuple(sorted(versions, key=_numbers))


def _stem(pinned: Pinned) -> str:
    """Give what stands before the major version in a package's name: `gcc-` of gcc-14, else nothing."""
    major = pinned.value.partition(".")[0]
    stem = pinned.package.removesuffix(major)
    return stem if stem != pinned.package and stem.endswith("-") else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version))


def _similar(name: str, index: Collection[str]) -> str:
    # Comparing with all 60 000 names takes seconds; who mistypes a name mostly gets its first letter right.
    near = difflib.get_close_matches(name, sorted(n for n in index if n[0] == name[0]), n=3, cutoff=0.75)
    return f"perhaps you meant {' or '.join(f'`{n}`' for n in near)}" if near else ""


def _unsolvable(request: Request, stdout: str, stderr: str) -> Problem:
    """Condense apt's explanation: the packages with unmet dependencies, or its error lines."""
    _, found, unmet = stdout.partition("The following packages have unmet dependencies:\n")
    lines = [" ".join(line.split()) for line in unmet.splitlines() if line.startswith(" ")]
    text = "\n".join(lines[:10]) if found and lines else _condense(stderr)
    return Problem(
        message=f"the packages cannot be installed together on {request.distribution} {request.suite}:\n{text}",
        where=f"{request.recipe}: apt",
        hint="drop one of them, or leave the versions under `apt:` to the lock",
    )


def _condense(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith(("E:", "Err:", "W:"))]
    return "\n".join(dict.fromkeys(lines[:8])) or stderr.strip()[-500:]
