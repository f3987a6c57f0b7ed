"""Debian packages of a recipe, solved by apt itself in a root of its own: only the site's settings count."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

from imagebuilder import process, suites, toolbox
from imagebuilder.errors import BuildError, ConflictError, EnvironmentFault, FetchError
from imagebuilder.lock import Deb, Source
from imagebuilder.resolve import debpins
from imagebuilder.resolve.request import Request
from imagebuilder.site import Site, redact
from imagebuilder.toolbox import Desk

log = logging.getLogger(__name__)

_UPDATE_LIMIT = 900.0  # seconds: the index of a suite is some 10 MB, behind whatever line there is
_SOLVE_LIMIT = 120.0

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
            problems = debpins.unknown_packages(request, index) + debpins.unmet_pins(request, index, index)
            if not problems:
                # The quiet answer holds no reasons: ask once more.
                told = root.run("apt-get", "install", "--simulate", "-q", *wanted, timeout=_SOLVE_LIMIT)
                problems = [debpins.unsolvable(request, told.stdout, told.stderr)]
            raise ConflictError.of(problems)
        debs = _parse_uris(result.stdout, root.mirrors)
        # The index is read only where something does not fit: it is for saying what would.
        if debpins.pin_problems(request, debs):
            raise ConflictError.of(debpins.unmet_pins(request, debpins.versions(debs), root.index()))
    return debs


def resolve_root(
    request: Request, packages: Sequence[str], image: Sequence[Deb], site: Site
) -> tuple[Deb, ...]:
    """Choose the packages of a root in which a component is compiled: of what the image has too, the same.

    Raises:
        ConflictError: packages that this suite does not have, or not together with the image's.
        FetchError: the archive's index could not be had.

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
            raise ConflictError.of([replace(item, where=f"{request.recipe}: build") for item in problems])
        return _parse_uris(result.stdout, root.mirrors)


def source_packages(request: Request, name: str, suite: str, site: Site) -> tuple[Source, ...]:
    """List the `.orig.tar.*` of every version of a source package in one suite, the request's or another.

    Raises:
        FetchError: the archive's index could not be had.

    """
    elsewhere = replace(request, suite=suite, sections=())
    with _private_root(elsewhere, site, types="deb-src") as root:
        said = root.run("apt-cache", "showsrc", "--only-source", name, timeout=_SOLVE_LIMIT)
    return _parse_sources(said.stdout, suite)


def glibc(debs: Sequence[Deb]) -> str:
    """Give the C library's version as wheel tags count it: major.minor."""
    version = next(debpins.upstream_version(deb.version) for deb in debs if deb.name == "libc6")
    return ".".join(version.split(".")[:2])


def locate_debs(
    debs: Sequence[Deb | Source], distribution: str, suite: str, site: Site, architecture: str = "amd64"
) -> dict[str, tuple[str, ...]]:
    """Say where each file may be fetched, most likely place first: sha256 -> URLs. Nothing is asked.

    A security update keeps its name and bytes when a point release takes it over, but moves to the main
    archive's pool; both places are given.
    """
    facts = suites.facts(distribution, suite)
    mirrors = _mirrors(distribution, suite, architecture, site)
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
    desk: Desk
    mirrors: suites.Mirrors
    env: Mapping[str, str]

    def run(self, *argv: str, timeout: float) -> process.Result:
        return self.desk.run(argv, timeout=timeout, env=self.env, check=False)

    def index(self) -> dict[str, tuple[str, ...]]:
        """Read the names and versions of all packages, from the lists that `apt-get update` fetched.

        A name that is only provided by others has no version of its own.
        """
        found: dict[str, tuple[str, ...]] = {}
        self.desk.bring("lists")
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
def _private_root(request: Request, site: Site, types: str = "deb") -> Iterator[_Root]:
    mirrors = _mirrors(request.distribution, request.suite, request.architecture, site)
    tools = toolbox.choose(site)
    with (
        tempfile.TemporaryDirectory(prefix="imagebuilder-apt-") as name,
        tools.open(Path(name), network=True, shares=_local(mirrors)) as desk,
    ):
        folder = Path(name)
        keys = suites.keyring(request.distribution, request.suite, desk.has)
        # apt fetches as a user of its own, who has to get in; there is nothing secret in here but what
        # a mirror's URL may hold, and that file stays closed.
        folder.chmod(0o755)
        for part in ("etc/apt.conf.d", "etc/preferences.d", "lists/partial", "cache/archives/partial", "log"):
            (folder / part).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "etc/suite.sources").write_text(
            suites.sources(
                request.distribution, request.suite, mirrors, types=types, sections=request.sections
            ),
            encoding="utf-8",
        )
        (folder / "etc/suite.sources").chmod(0o600)
        options = _options(site, folder, desk)
        config = _configuration(desk.folder, request.architecture, keys, options)
        (folder / "apt.conf").write_text(config, encoding="utf-8")
        desk.send()
        env = {
            **site.proxy_environment(),
            "APT_CONFIG": str(desk.folder / "apt.conf"),
            "LC_ALL": "C.UTF-8",
            "LANGUAGE": "C",
        }
        root = _Root(folder=folder, desk=desk, mirrors=mirrors, env=env)
        _update(root, request)
        yield root


def _local(mirrors: suites.Mirrors) -> tuple[Path, ...]:
    """Name the folders that mirrors on this host's own disk are in."""
    uris = {mirrors.main, mirrors.security}
    return tuple(
        sorted(Path(unquote(uri.removeprefix("file://"))) for uri in uris if uri.startswith("file:"))
    )


def _options(site: Site, folder: Path, desk: Desk) -> Iterator[tuple[str, str]]:
    """Give the site's options for apt; a container gets the files that they name (a CA, a certificate)."""
    for number, (name, value) in enumerate(site.apt_options):
        path = Path(value)
        if desk.contained and path.is_absolute() and path.is_file():
            own = f"etc/{number}-{path.name}"
            shutil.copyfile(path, folder / own)
            # Its reader in there is apt's own user.
            (folder / own).chmod(0o644)
            yield name, str(desk.folder / own)
        else:
            yield name, value


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
            + redact(debpins.condense(result.stderr)),
            where=f"{request.recipe}: base",
            hint="check the network, the proxy and the mirror (`imagebuilder doctor`); "
            "a mirror goes into the site file as `apt_mirror:`",
        )


def _mirrors(distribution: str, suite: str, architecture: str, site: Site) -> suites.Mirrors:
    """Take the site's mirrors, and the distribution's own where the site names none."""
    main, security = site.apt_mirror, site.apt_security_mirror
    if architecture in suites.facts(distribution, suite).ports:
        main = security = site.apt_ports_mirror
    if not (main and security):
        default = suites.default_mirrors(distribution, suite, architecture, toolbox.choose(site))
        main, security = main or default.main, security or default.security
    return suites.Mirrors(main=main.rstrip("/"), security=security.rstrip("/"))


def _parse_uris(text: str, mirrors: suites.Mirrors) -> tuple[Deb, ...]:
    """Read `apt-get --print-uris`: a line has URL, name_version_architecture.deb, size and hash."""
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


def _parse_sources(text: str, suite: str) -> tuple[Source, ...]:
    """Read `apt-cache showsrc`: paragraphs as in deb-src-control, of which one has several file lists."""
    found = []
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Directory): (\S+)$", paragraph, re.MULTILINE))
        _, _, sums = paragraph.partition("\nChecksums-Sha256:")
        # One archive in the usual way; those with more (`.orig-part.tar`) are of no component here.
        line = re.search(r"^ ([0-9a-f]{64}) ([0-9]+) (\S+\.orig\.tar\.[a-z0-9]+)$", sums, re.MULTILINE)
        if line and fields.keys() >= {"Package", "Version", "Directory"}:
            found.append(
                Source(
                    name=fields["Package"],
                    version=fields["Version"],
                    suite=suite,
                    path=f"{fields['Directory']}/{line[3]}",
                    file=line[3],
                    size=int(line[2]),
                    sha256=line[1],
                )
            )
    return tuple(found)


def _below(uri: str, roots: Iterable[str]) -> str:
    # The longest first: one mirror may be below the other, as in /debian and /debian-security.
    for root in sorted(roots, key=len, reverse=True):
        if uri.startswith(f"{root}/"):
            return uri.removeprefix(f"{root}/")
    # apt took the password out of the URL, or wrote its host in another way.
    return uri[uri.index("/pool/") + 1 :]
