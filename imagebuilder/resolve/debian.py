"""Resolve the Debian packages of a recipe, with apt in a private root that uses only the site's settings."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote, unquote, urlsplit

from imagebuilder import catalog
from imagebuilder.bases.archives import effective
from imagebuilder.bases.system import Archive, System
from imagebuilder.core import process, times, wheeltags
from imagebuilder.debian import sources, suites, versions
from imagebuilder.errors import BuildError, ConflictError, EnvironmentFault, FetchError, LockError
from imagebuilder.host import aptmirrors
from imagebuilder.host.site import Site, apt_conf, redact
from imagebuilder.host.tools import Sandbox, choose_tools
from imagebuilder.lock.model import Archives, Deb, Installed, Source
from imagebuilder.resolve import archivepins, debpins
from imagebuilder.resolve.request import Request

log = logging.getLogger(__name__)

_UPDATE_LIMIT = 900.0  # seconds: the index of a suite is some 10 MB, and the network may be slow
_SOLVE_LIMIT = 120.0
_PRIVATE = 0o600
# Packages of a base may be replaced, even if they are on hold, but not removed.
_INSTALL = (
    *("apt-get", "install", "--yes", "--no-remove"),
    *("--allow-downgrades", "--allow-change-held-packages"),
)

# Characters that apt quotes in the names of its lists.
_QUOTED = frozenset('\\|{}[]<>"^~_=!@#$%^&*')
_PRINTED = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>[0-9]+) SHA256:(?P<sha256>[0-9a-f]{64})")


def resolve_debs(
    request: Request, site: Site, below: System | None = None
) -> tuple[tuple[Deb, ...], Archives]:
    """Choose every Debian package of an image: the essential ones, apt, and those of the recipe.

    Args:
        request: the request.
        site: how to reach the archives.
        below: the system in a base from a registry; its packages stay unless the request needs other
        versions.

    Returns:
        The packages and their dependencies, without recommendations, sorted by name; on a base from a
        registry only new or changed packages. And the time of each archive, if there are packages.

    Raises:
        ConflictError: the suite lacks pins or packages (every one is reported), or dependencies cannot be met
            (quotes apt).
        FetchError: the archive's index could not be downloaded.
        EnvironmentFault: apt, mmdebstrap or the archive's keys are missing on this host.
        InputError: the suite is unknown.

    """
    facts = suites.facts(request.distribution, request.suite)
    with _private_root(request, site, below) as root:
        wanted = ["?essential", *sorted({*facts.packages, *request.packages})]
        if below is not None:
            wanted = _on_top(request, below, root, facts.packages)
            if not wanted:
                return (), {}
        result = root.run(*_INSTALL, "-qq", "--print-uris", *wanted, timeout=_SOLVE_LIMIT)
        if result.code != 0:
            index = root.index()
            problems = debpins.unknown_packages(request, index) + debpins.unmet_pins(request, index, index)
            if not problems:
                # Quiet output gives no reasons: run it once more, less quietly.
                told = root.run(*_INSTALL, "--simulate", "-q", *wanted, timeout=_SOLVE_LIMIT)
                problems = [debpins.unsolvable(request, told.stdout, told.stderr)]
            raise ConflictError.of(problems)
        debs = _parse_uris(result.stdout, root.places)
        # The index is read only if something does not fit, to say what would.
        chosen = {**debpins.versions(below.packages if below else ()), **debpins.versions(debs)}
        if debpins.unmet_pins(request, chosen, {}):
            raise ConflictError.of(debpins.unmet_pins(request, chosen, root.index()))
        return debs, root.times()


def _on_top(request: Request, below: System, root: _Root, always: Iterable[str]) -> list[str]:
    """Return the packages to install on a base: those that it lacks, or has in a version that does not fit.

    Raises:
        ConflictError: an archive cannot satisfy a pin.

    """
    installed = {package.name: package.version for package in below.packages}
    exact: dict[str, str] = {}
    if archivepins.pins(request):
        index = root.index()
        names = {archive.name for archive in root.archives}
        if problems := archivepins.problems(request, index, installed, names):
            raise ConflictError.of(problems)
        exact = archivepins.choose(request, index, installed)
    unmet = {
        pinned.package
        for pinned in debpins.all_pins(request)
        if pinned.package in installed
        and not catalog.matches(versions.upstream(installed[pinned.package]), pinned.value)
    }
    wanted = []
    for package in sorted({*always, *request.packages}):
        name, _, version = package.partition("=")
        version = version or exact.get(name, "")
        if name not in installed or (version and version != installed[name]):
            wanted.append(f"{name}={version}" if version else name)
        elif name in unmet and not version:
            wanted.append(name)
    return wanted


def resolve_root(
    request: Request, packages: Sequence[str], image: Sequence[Deb], site: Site
) -> tuple[tuple[Deb, ...], Archives]:
    """Choose the packages of a root to compile in; packages of the image get the same versions.

    Returns the time of each archive too.

    Raises:
        ConflictError: the suite lacks packages, or they conflict with the image's.
        FetchError: the archive's index could not be downloaded.

    """
    facts = suites.facts(request.distribution, request.suite)
    # A priority above 1000 also allows downgrades: apt_preferences(5).
    preferences = "\n".join(
        f"Package: {deb.name}\nPin: version {deb.version}\nPin-Priority: 1001\n" for deb in image
    )
    with _private_root(request, site) as root:
        (root.folder / "etc/preferences.d/image").write_text(preferences, encoding="utf-8")
        wanted = ["?essential", *sorted({*facts.packages, *packages})]
        result = root.run("apt-get", "install", "--yes", "-qq", "--print-uris", *wanted, timeout=_SOLVE_LIMIT)
        if result.code != 0:
            asked = replace(request, packages=tuple(packages), deb_pins=())
            problems = debpins.unknown_packages(asked, root.index())
            if not problems:
                told = root.run("apt-get", "install", "--simulate", "-q", *wanted, timeout=_SOLVE_LIMIT)
                problems = [debpins.unsolvable(asked, told.stdout, told.stderr)]
            raise ConflictError.of([replace(item, where=request.places.of("build")) for item in problems])
        return _parse_uris(result.stdout, root.places), root.times()


def source_packages(
    request: Request, name: str, suite: str, site: Site
) -> tuple[tuple[Source, ...], Archives]:
    """Return the `.orig.tar.*` of every version of a source package in a suite of the distribution.

    Returns the time of each of the suite's archives too.

    Raises:
        FetchError: the archive's index could not be downloaded.

    """
    elsewhere = replace(request, suite=suite, sections=())
    with _private_root(elsewhere, site, types="deb-src") as root:
        said = root.run("apt-cache", "showsrc", "--only-source", name, timeout=_SOLVE_LIMIT)
        return _parse_sources(said.stdout, suite), root.times()


def glibc(debs: Sequence[Deb | Installed]) -> str:
    """Return the C library's version as in wheel tags: major.minor.

    Raises:
        LockError: it is not among the packages, or its version is malformed.

    """
    version = next((versions.upstream(deb.version) for deb in debs if deb.name == "libc6"), "")
    if not wheeltags.is_glibc(".".join(version.split(".")[:2])):
        raise LockError(
            f"libc6 is {version}, which is not a version of the C library"
            if version
            else "there is no libc6 among the packages",
            where="debs",
            hint="lock again",
        )
    return ".".join(version.split(".")[:2])


def locate_debs(
    debs: Sequence[Deb | Source],
    distribution: str,
    suite: str,
    site: Site,
    architecture: str = "amd64",
    *,
    archives: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, tuple[str, ...]]:
    """Return the URLs of each file by sha256, the most likely first. Makes no requests.

    `archives` has the URLs of archives other than the distribution's own. Files of an unknown one get no URL.

    When a point release takes over a security update, the file moves to the main archive's pool, so the
    result has both URLs.
    """
    facts = suites.facts(distribution, suite)
    mirrors = aptmirrors.of_site(site, distribution, suite, architecture)
    urls: dict[str, tuple[str, ...]] = {}
    for deb in debs:
        if isinstance(deb, Deb) and deb.archive:
            place = archives.get(deb.archive)
            urls[deb.sha256] = _urls(place, deb.path) if place else ()
            continue
        places = [(mirrors.main, deb.path)]
        if deb.path.startswith(facts.security_pool):
            moved = "pool/" + deb.path.removeprefix(facts.security_pool)
            places = [(mirrors.security, deb.path), (mirrors.main, moved)]
        urls[deb.sha256] = tuple(url for mirror, path in places for url in _urls(mirror, path))
    return urls


def _urls(place: str, path: str) -> tuple[str, ...]:
    """Return the URLs of a path in an archive: with `+` escaped, then without.

    apt escapes it, because object stores read a bare `+` as a space. Some servers know only the bare one.
    """
    return tuple(dict.fromkeys(f"{place}/{quote(path, safe=safe)}" for safe in ("/~:%", "/+~:%")))


@dataclass(frozen=True, kw_only=True)
class _Root:
    """A folder that apt uses as a whole system, and the URLs of its archives; `releases` have their times."""

    folder: Path
    sandbox: Sandbox
    mirrors: suites.Mirrors
    releases: tuple[tuple[str, str], ...]
    archives: tuple[Archive, ...]
    env: Mapping[str, str]

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """URL and name of every archive; the distribution's own have the name ""."""
        others = ((archive.uri, archive.name) for archive in self.archives)
        return ((self.mirrors.security, ""), (self.mirrors.main, ""), *others)

    def run(self, *argv: str, timeout: float) -> process.Result:
        return self.sandbox.run(argv, timeout=timeout, env=self.env, check=False)

    def times(self) -> Archives:
        """Read when each archive wrote its Release file, from the lists of `apt-get update`."""
        said = self.run("grep", "-m1", "^Date:", "-r", "lists", "--include=*Release", timeout=_SOLVE_LIMIT)
        lines = (line.removeprefix("lists/").partition("Release:Date:") for line in said.stdout.splitlines())
        dates = {name.removesuffix("In"): times.normal(times.mail_seconds(text)) for name, _, text in lines}
        found: Archives = {}
        for name, url in self.releases:
            if time := dates.get(_list_name(url)):
                found[name] = max(time, found.get(name, ""))
        return dict(sorted(found.items()))

    def index(self) -> dict[str, tuple[str, ...]]:
        """Read the names and versions of all packages from the lists of `apt-get update`.

        Names that other packages only provide have no version.
        """
        index: dict[str, tuple[str, ...]] = {}
        self.sandbox.copy_out("lists")
        for file in sorted((self.folder / "lists").glob("*_Packages")):
            name = ""
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    if line.startswith("Package: "):
                        name = line[9:].rstrip("\n")
                    elif line.startswith("Version: "):
                        index[name] = (*index.get(name, ()), line[9:].rstrip("\n"))
                    elif line.startswith("Provides: "):
                        for provided in line[10:].split(","):
                            index.setdefault(provided.split()[0], ())
        return index


@contextmanager
def _private_root(
    request: Request, site: Site, below: System | None = None, types: str = "deb"
) -> Iterator[_Root]:
    mirrors = aptmirrors.of_site(site, request.distribution, request.suite, request.architecture)
    tools = choose_tools(site)
    needed = {pinned.archive for pinned in archivepins.pins(request)}
    archives = effective(below.archives, site, needed) if below else ()
    with (
        tempfile.TemporaryDirectory(prefix="imagebuilder-apt-") as name,
        tools.open(Path(name), network=True, shares=_local(mirrors)) as sandbox,
    ):
        folder = Path(name)
        keys = suites.keyring(request.distribution, request.suite, sandbox.has)
        for part in ("etc/apt.conf.d", "etc/preferences.d", "lists/partial", "cache/archives/partial", "log"):
            (folder / part).mkdir(parents=True)
        (folder / "status").write_text(below.status if below else "", encoding="utf-8")
        written = suites.sources(
            request.distribution, request.suite, mirrors, types=types, sections=request.sections
        )
        _write(folder / "etc/suite.sources", written)
        options = _options(site, folder, sandbox)
        config = _configuration(sandbox.folder, request.architecture, keys, options)
        _write(folder / "apt.conf", config)
        _add_archives(folder, sandbox.folder, archives)
        sandbox.copy_in()
        if sandbox.is_root:
            # Root's apt downloads as the user _apt, or as root if there is no such user.
            with suppress(EnvironmentFault):
                sandbox.run(["chown", "-R", "_apt", sandbox.folder], timeout=60, check=False)
        env = {
            **site.proxy_environment(),
            "APT_CONFIG": str(sandbox.folder / "apt.conf"),
            "LC_ALL": "C.UTF-8",
            "LANGUAGE": "C",
        }
        own = suites.releases(request.distribution, request.suite, mirrors)
        releases = (*own, *((archive.name, _release(archive)) for archive in archives))
        root = _Root(
            folder=folder, sandbox=sandbox, mirrors=mirrors, releases=releases, archives=archives, env=env
        )
        _update(root, request)
        yield root


def _release(archive: Archive) -> str:
    """Return the folder of an archive's Release file; flat archives have it beside the packages."""
    if archive.suite.endswith("/"):
        return f"{archive.uri}/{archive.suite.lstrip('/')}"
    return f"{archive.uri}/dists/{archive.suite}/"


def _list_name(folder: str) -> str:
    """Return how apt begins the name of a folder's Release file in its lists (URItoFileName in strutl.cc).

    >>> _list_name("https://me:secret@host.example:81/a~b/dists/trixie/")
    'host.example:81_a%7eb_dists_trixie_'
    """
    place = urlsplit(folder)
    text = f"{place.netloc.rpartition('@')[2]}{place.path}"
    return "".join(
        f"%{ord(char):02x}" if char in _QUOTED or not "!" <= char <= "~" else char for char in text
    ).replace("/", "_")


def _local(mirrors: suites.Mirrors) -> tuple[Path, ...]:
    """Return the folders of mirrors that are on this host's disk."""
    uris = {mirrors.main, mirrors.security}
    return tuple(
        sorted(Path(unquote(uri.removeprefix("file://"))) for uri in uris if uri.startswith("file:"))
    )


def _options(site: Site, folder: Path, sandbox: Sandbox) -> Iterator[tuple[str, str]]:
    """Yield the site's options for apt; copies the files that they name (a CA, a key) for a container."""
    for number, (name, value) in enumerate(site.apt_options):
        path = Path(value)
        if sandbox.contained and path.is_absolute() and path.is_file():
            own = f"etc/{number}-{path.name}"
            (folder / own).touch(_PRIVATE)
            shutil.copyfile(path, folder / own)
            yield name, str(sandbox.folder / own)
        else:
            yield name, value


def _add_archives(folder: Path, seen: Path, archives: Iterable[Archive]) -> None:
    """Write sources and keys; `seen` is the folder's name where apt runs."""
    for number, archive in enumerate(archives):
        lines = [
            "Types: deb",
            f"URIs: {archive.uri}",
            f"Suites: {archive.suite}",
            *([f"Components: {' '.join(archive.components)}"] if archive.components else []),
            *(["Trusted: yes"] if archive.trusted else []),
        ]
        if archive.keys:
            armoured = archive.keys.startswith(b"-----BEGIN")
            key = folder / "etc" / f"archive-{number}{'.asc' if armoured else '.gpg'}"
            key.write_bytes(archive.keys)
            lines.append(f"Signed-By: {seen / 'etc' / key.name}")
        _write(folder / "etc" / f"archive-{number}.sources", "\n".join([*lines, ""]))


def _write(path: Path, text: str) -> None:
    """Write a private file: a URL or an option in it may contain a password."""
    path.touch(_PRIVATE)
    path.write_text(text, encoding="utf-8")


def _configuration(folder: Path, architecture: str, keys: Path, options: Iterable[tuple[str, str]]) -> str:
    """Return apt's configuration for the private root; apt reads APT_CONFIG before the host's files."""
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
        # The lists are read once and deleted, so do not compress them again.
        ("Acquire::GzipIndexes", "false"),
        *options,
        # `--print-uris` shows MD5 unless told which hash to use.
        ("Acquire::ForceHash", "SHA256"),
    ]
    return apt_conf((name, str(value)) for name, value in settings) + (
        f'APT::Architectures {{ "{architecture}"; }};\n'
    )


def _update(root: _Root, request: Request) -> None:
    try:
        result = root.run("apt-get", "update", "-qq", "--error-on=any", timeout=_UPDATE_LIMIT)
    except EnvironmentFault as error:
        raise EnvironmentFault(str(error), hint=suites.INSTALL_HINT.format("apt")) from error
    if result.code != 0:
        raise FetchError(
            f"the package index of {request.distribution} {request.suite} could not be fetched:\n"
            + redact(debpins.condense(result.stderr)),
            where=request.places.of("base"),
            hint="check the network, the proxy and the mirror (`imagebuilder doctor`); "
            "a mirror goes into the site file as `apt: mirror:`"
            + "".join(f", the URL of {archive.name} as `apt: archives:`" for archive in root.archives[:1]),
        )


def _parse_uris(text: str, places: Sequence[tuple[str, str]]) -> tuple[Deb, ...]:
    """Read `apt-get --print-uris`: each line has URL, name_version_architecture.deb, size and hash."""
    debs = []
    for line in filter(None, text.splitlines()):
        printed = _PRINTED.fullmatch(line)
        if not printed:
            raise BuildError(f"apt printed an unexpected line: {line}", hint="is this apt older than 2.0?")
        name, version, rest = printed["file"].split("_", 2)
        path, archive = _below(printed["uri"], places)
        debs.append(
            Deb(
                name=unquote(name),
                version=unquote(version),
                architecture=rest.removesuffix(".deb"),
                path=unquote(path),
                size=int(printed["size"]),
                sha256=printed["sha256"],
                archive=archive,
            )
        )
    return tuple(sorted(debs, key=lambda deb: (deb.name, deb.architecture)))


def _parse_sources(text: str, suite: str) -> tuple[Source, ...]:
    """Read `apt-cache showsrc`: paragraphs as in a .dsc file, with several lists of files each."""
    found = []
    for fields in sources.paragraphs(text, {"package", "version", "directory", "checksums-sha256"}):
        # Sources with several archives (`.orig-part.tar`) are not supported; no component has one.
        sums = fields.pop("checksums-sha256", "")
        line = re.search(r"^([0-9a-f]{64}) ([0-9]+) (\S+\.orig\.tar\.[a-z0-9]+)$", sums, re.MULTILINE)
        if line and fields.keys() == {"package", "version", "directory"}:
            found.append(
                Source(
                    name=fields["package"],
                    version=fields["version"],
                    suite=suite,
                    path=f"{fields['directory']}/{line[3]}",
                    file=line[3],
                    size=int(line[2]),
                    sha256=line[1],
                )
            )
    return tuple(found)


def _below(uri: str, places: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Split a URL: return the path below an archive's URL, and the archive's name."""
    # The longest first, because one URL may begin with another: /debian and /debian-security.
    for root, name in sorted(places, key=lambda place: len(place[0]), reverse=True):
        if uri.startswith(f"{root}/"):
            # A flat archive has its files beside its index, as `./name.deb`.
            return uri.removeprefix(f"{root}/").removeprefix("./"), name
    # apt removed the password from the URL, or wrote its host differently.
    return uri[uri.index("/pool/") + 1 :], ""
