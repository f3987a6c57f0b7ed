"""Debian packages of a recipe, solved by apt itself in a root of its own: only the site's settings count."""

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
from urllib.parse import quote, unquote

from imagebuilder import catalog
from imagebuilder.bases.archives import effective
from imagebuilder.bases.system import Archive, System
from imagebuilder.core import process, wheeltags
from imagebuilder.debian import sources, suites, versions
from imagebuilder.errors import BuildError, ConflictError, EnvironmentFault, FetchError, LockError
from imagebuilder.host import aptmirrors
from imagebuilder.host.site import Site, apt_conf, redact
from imagebuilder.host.tools import Sandbox, choose_tools
from imagebuilder.lock.model import Deb, Installed, Source
from imagebuilder.resolve import archivepins, debpins
from imagebuilder.resolve.request import Request

log = logging.getLogger(__name__)

_UPDATE_LIMIT = 900.0  # seconds: the index of a suite is some 10 MB, behind whatever line there is
_SOLVE_LIMIT = 120.0
_PRIVATE = 0o600
# What a base has may be replaced, also where its maker put a hold on it; nothing of it may be removed.
_INSTALL = (
    *("apt-get", "install", "--yes", "--no-remove"),
    *("--allow-downgrades", "--allow-change-held-packages"),
)

_PRINTED = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>[0-9]+) SHA256:(?P<sha256>[0-9a-f]{64})")


def resolve_debs(request: Request, site: Site, below: System | None = None) -> tuple[Deb, ...]:
    """Choose every Debian package of an image: the essential ones, apt, and what the recipe asks for.

    Args:
        request: what is asked for.
        site: where the archives are.
        below: the system in a base from a registry; what it has and nothing contradicts stays as it is.

    Returns:
        The packages with their dependencies but without recommendations, sorted by name; on a base only those
        that are new or change. No host is named.

    Raises:
        ConflictError: pins or packages that this suite does not have, every one of them; or dependencies
            that cannot be fulfilled, in apt's words.
        FetchError: the archive's index could not be fetched.
        EnvironmentFault: apt, mmdebstrap or the archive's keys are not on this host.
        InputError: the suite is not known.

    """
    facts = suites.facts(request.distribution, request.suite)
    with _private_root(request, site, below) as root:
        wanted = ["?essential", *sorted({*facts.packages, *request.packages})]
        if below is not None:
            wanted = _on_top(request, below, root, facts.packages)
            if not wanted:
                return ()
        result = root.run(*_INSTALL, "-qq", "--print-uris", *wanted, timeout=_SOLVE_LIMIT)
        if result.code != 0:
            index = root.index()
            problems = debpins.unknown_packages(request, index) + debpins.unmet_pins(request, index, index)
            if not problems:
                # The quiet answer holds no reasons: ask once more.
                told = root.run(*_INSTALL, "--simulate", "-q", *wanted, timeout=_SOLVE_LIMIT)
                problems = [debpins.unsolvable(request, told.stdout, told.stderr)]
            raise ConflictError.of(problems)
        debs = _parse_uris(result.stdout, root.places)
        # The index is read only where something does not fit: it is for saying what would.
        chosen = {**debpins.versions(below.packages if below else ()), **debpins.versions(debs)}
        if debpins.unmet_pins(request, chosen, {}):
            raise ConflictError.of(debpins.unmet_pins(request, chosen, root.index()))
    return debs


def _on_top(request: Request, below: System, root: _Root, always: Iterable[str]) -> list[str]:
    """Say what apt is to install on a base: what it lacks, and what it has in a version that does not fit.

    Raises:
        ConflictError: a pin on another archive that this one cannot fulfil.

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
) -> tuple[Deb, ...]:
    """Choose the packages of a root in which a component is compiled: of what the image has too, the same.

    Raises:
        ConflictError: packages that this suite does not have, or not together with the image's.
        FetchError: the archive's index could not be fetched.

    """
    facts = suites.facts(request.distribution, request.suite)
    # Above 1000 even an older version is taken: apt_preferences(5).
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
        return _parse_uris(result.stdout, root.places)


def source_packages(request: Request, name: str, suite: str, site: Site) -> tuple[Source, ...]:
    """List the `.orig.tar.*` of every version of a source package in one suite, the request's or another.

    Raises:
        FetchError: the archive's index could not be fetched.

    """
    elsewhere = replace(request, suite=suite, sections=())
    with _private_root(elsewhere, site, types="deb-src") as root:
        said = root.run("apt-cache", "showsrc", "--only-source", name, timeout=_SOLVE_LIMIT)
    return _parse_sources(said.stdout, suite)


def glibc(debs: Sequence[Deb | Installed]) -> str:
    """Give the C library's version as wheel tags count it: major.minor.

    Raises:
        LockError: it is not among the packages, or its version is not one.

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
    """Say where each file may be fetched, most likely place first: sha256 -> URLs. Nothing is asked.

    `archives` has the places of those besides the distribution's own; of one that is not there, nothing is.

    A security update keeps its name and bytes when a point release takes it over, but moves to the main
    archive's pool; both places are given.
    """
    facts = suites.facts(distribution, suite)
    mirrors = aptmirrors.of_site(site, distribution, suite, architecture)
    found: dict[str, tuple[str, ...]] = {}
    for deb in debs:
        if isinstance(deb, Deb) and deb.archive:
            place = archives.get(deb.archive)
            found[deb.sha256] = _urls(place, deb.path) if place else ()
            continue
        places = [(mirrors.main, deb.path)]
        if deb.path.startswith(facts.security_pool):
            moved = "pool/" + deb.path.removeprefix(facts.security_pool)
            places = [(mirrors.security, deb.path), (mirrors.main, moved)]
        found[deb.sha256] = tuple(url for mirror, path in places for url in _urls(mirror, path))
    return found


def _urls(place: str, path: str) -> tuple[str, ...]:
    """Write a path below an archive's root, as apt does first: object stores take a bare `+` for a space.

    A server that knows only the bare one comes second.
    """
    return tuple(dict.fromkeys(f"{place}/{quote(path, safe=safe)}" for safe in ("/~:%", "/+~:%")))


@dataclass(frozen=True, kw_only=True)
class _Root:
    """A folder that apt takes for a whole system, and where its mirrors are."""

    folder: Path
    sandbox: Sandbox
    mirrors: suites.Mirrors
    archives: tuple[Archive, ...]
    env: Mapping[str, str]

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Roots of all archives, and the name of each; the distribution's have none."""
        others = ((archive.uri, archive.name) for archive in self.archives)
        return ((self.mirrors.security, ""), (self.mirrors.main, ""), *others)

    def run(self, *argv: str, timeout: float) -> process.Result:
        return self.sandbox.run(argv, timeout=timeout, env=self.env, check=False)

    def index(self) -> dict[str, tuple[str, ...]]:
        """Read the names and versions of all packages, from the lists that `apt-get update` fetched.

        A name that is only provided by others has no version of its own.
        """
        found: dict[str, tuple[str, ...]] = {}
        self.sandbox.copy_out("lists")
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
            # Root's apt fetches as a user of its own. Where there is no such user, it stays root.
            with suppress(EnvironmentFault):
                sandbox.run(["chown", "-R", "_apt", sandbox.folder], timeout=60, check=False)
        env = {
            **site.proxy_environment(),
            "APT_CONFIG": str(sandbox.folder / "apt.conf"),
            "LC_ALL": "C.UTF-8",
            "LANGUAGE": "C",
        }
        root = _Root(folder=folder, sandbox=sandbox, mirrors=mirrors, archives=archives, env=env)
        _update(root, request)
        yield root


def _local(mirrors: suites.Mirrors) -> tuple[Path, ...]:
    """Name the folders that mirrors on this host's own disk are in."""
    uris = {mirrors.main, mirrors.security}
    return tuple(
        sorted(Path(unquote(uri.removeprefix("file://"))) for uri in uris if uri.startswith("file:"))
    )


def _options(site: Site, folder: Path, sandbox: Sandbox) -> Iterator[tuple[str, str]]:
    """Give the site's options for apt; a container gets the files that they name (a CA, a certificate)."""
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
    """Write sources and keys; `seen` is the folder as apt sees it."""
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
    """Write a file that may hold a password, in an address or an option."""
    path.touch(_PRIVATE)
    path.write_text(text, encoding="utf-8")


def _configuration(folder: Path, architecture: str, keys: Path, options: Iterable[tuple[str, str]]) -> str:
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
            + "".join(f", the place of {archive.name} as `apt: archives:`" for archive in root.archives[:1]),
        )


def _parse_uris(text: str, places: Sequence[tuple[str, str]]) -> tuple[Deb, ...]:
    """Read `apt-get --print-uris`: a line has URL, name_version_architecture.deb, size and hash."""
    debs = []
    for line in filter(None, text.splitlines()):
        found = _PRINTED.fullmatch(line)
        if not found:
            raise BuildError(
                f"apt printed a line that is not understood: {line}", hint="is this apt older than 2.0?"
            )
        name, version, rest = found["file"].split("_", 2)
        path, archive = _below(found["uri"], places)
        debs.append(
            Deb(
                name=unquote(name),
                version=unquote(version),
                architecture=rest.removesuffix(".deb"),
                path=unquote(path),
                size=int(found["size"]),
                sha256=found["sha256"],
                archive=archive,
            )
        )
    return tuple(sorted(debs, key=lambda deb: (deb.name, deb.architecture)))


def _parse_sources(text: str, suite: str) -> tuple[Source, ...]:
    """Read `apt-cache showsrc`: paragraphs as in deb-src-control, of which one has several file lists."""
    found = []
    for fields in sources.paragraphs(text, {"package", "version", "directory", "checksums-sha256"}):
        # One archive in the usual way; those with more (`.orig-part.tar`) are of no component here.
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
    """Part a URL into the path below an archive's root, and the archive's name."""
    # The longest first: one mirror may be below the other, as in /debian and /debian-security.
    for root, name in sorted(places, key=lambda place: len(place[0]), reverse=True):
        if uri.startswith(f"{root}/"):
            # An archive without suites has its files beside its index, as `./name.deb`.
            return uri.removeprefix(f"{root}/").removeprefix("./"), name
    # apt took the password out of the URL, or wrote its host in another way.
    return uri[uri.index("/pool/") + 1 :], ""
