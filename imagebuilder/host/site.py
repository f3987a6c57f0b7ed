"""The site: how this host reaches the outside. Only for fetching: no layer and no lock depends on it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from imagebuilder.catalog.upstream import Upstream, Versions
from imagebuilder.core import yamlfile
from imagebuilder.core.model import Rule, Strict
from imagebuilder.core.reference import parse
from imagebuilder.errors import InputError, Problem
from imagebuilder.host import settings

if TYPE_CHECKING:
    import requests

log = logging.getLogger(__name__)

_USERINFO = re.compile(r"(?<=://)[^/\s]*@")
_IMAGE = re.compile(r"[a-z0-9][a-zA-Z0-9._:/@-]*")
_TOOLS_IMAGE = "debian:trixie-slim"
IndexStrategy = Literal["first-index", "unsafe-first-match", "unsafe-best-match"]
_Where = Literal["auto", "host", "container"]
_REGISTRY_PLACE = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[a-z0-9._-]+)*")
_APT_NAME = re.compile(r"Acquire::[A-Za-z0-9:._/-]+")


def redact(text: str) -> str:
    """Mask user names and passwords in every URL of a text.

    >>> redact("see https://me:secret@mirror.example/simple")
    'see https://***@mirror.example/simple'
    """
    return _USERINFO.sub("***@", text)


def apt_conf(options: Iterable[tuple[str, str]]) -> str:
    """Write options in the format of apt.conf(5). They go into a file, because all users see arguments."""
    return "".join(f'{name} "{value}";\n' for name, value in options)


@dataclass(frozen=True, kw_only=True)
class RegistrySite:
    """How this site reaches one registry.

    Attributes:
        ca: file with CA certificates to trust for it, besides the site's.
        client: files with this host's client certificate and its key.
        plain_http: true if it speaks plain HTTP and the network is trusted.
        mirror: registry to read its images from, `host[:port][/folder]`; their digests are checked.

    """

    ca: Path | None = None
    client: tuple[Path, Path] | None = None
    plain_http: bool = False
    mirror: str = ""


@dataclass(frozen=True, kw_only=True)
class ArchiveSite:
    """The site's mirror of a package archive other than the distribution's own.

    Attributes:
        url: URL of the archive; "" disables it.
        key: file with the keys that sign it; None for the keys in the base.

    """

    url: str
    key: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ToolsSite:
    """Where apt, dpkg and mmdebstrap run.

    Attributes:
        where: `host`, `container`, or `auto`: a container if this host lacks one of them.
        image: image of the container. It has the tools, or is Debian: then they are installed.

    """

    where: _Where = "auto"
    image: str = _TOOLS_IMAGE


@dataclass(frozen=True, kw_only=True, repr=False)
class Site:
    """The settings of this site. An empty string means the tool's own default.

    Attributes:
        proxies: pairs; the keys are `http`, `https` and `no_proxy`.
        ca_bundle: file with the certificates of every CA to trust.
        index, extra_indexes: URLs of package indexes (PEP 503).
        wheel_folders: folders or pages that hold wheels.
        own_wheel_folders: those that the site file names.
        index_strategy: uv's setting of this name, for packages that several indexes have.
        no_index: true to use only the wheel folders.
        apt_mirror, apt_security_mirror: URLs of the archive and of its security updates.
        apt_ports_mirror: URL of the separate archive for other architectures, where the distribution has one.
        apt_snapshots: URL of a snapshot service; `@SNAPSHOTID@` is for the time, `@PATH@` for the archive.
        apt_options: names and values as in apt's `-o`.
        archives: mirrors of other package archives, by their names in locks.
        registries: settings of single registries, by host and port.
        sources: source archives of components to compile: component, version, URL and checksum.
        tools: where apt, dpkg and mmdebstrap run.
        native_index: true if the index settings are uv's own, which uv reads itself.
        cache: repository that shares layers and packages between hosts, `host/path`; "" for none.
        cache_signers: files with the public keys of hosts whose search for secrets counts here too.
        catalog: folder with catalog files, which `lock` copies beside a recipe that pins their components.

    """

    proxies: tuple[tuple[str, str], ...] = ()
    ca_bundle: Path | None = None
    index: str = ""
    extra_indexes: tuple[str, ...] = ()
    wheel_folders: tuple[str, ...] = ()
    own_wheel_folders: tuple[str, ...] = ()
    index_strategy: IndexStrategy = "first-index"
    no_index: bool = False
    apt_mirror: str = ""
    apt_security_mirror: str = ""
    apt_ports_mirror: str = ""
    apt_snapshots: str = ""
    apt_options: tuple[tuple[str, str], ...] = ()
    archives: tuple[tuple[str, ArchiveSite], ...] = ()
    registries: tuple[tuple[str, RegistrySite], ...] = ()
    sources: tuple[tuple[str, str, Upstream], ...] = ()
    tools: ToolsSite = ToolsSite()
    native_index: bool = False
    cache: str = ""
    cache_signers: tuple[Path, ...] = ()
    catalog: Path | None = None

    def __repr__(self) -> str:
        """Show the settings without passwords."""
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return redact(f"Site({shown})")

    def session(self, *, retries: bool = True) -> requests.Session:
        """Open an HTTP session with these proxies, this CA bundle, retries, time limits and credentials.

        Credentials come from the index's URL or from ~/.netrc, and are sent only to that host. Callers with
        their own retry loop pass `retries=False`, because nested loops multiply.
        """
        from imagebuilder.host import http  # late: loads requests, which most commands do not need

        indexes = (self.index, *self.extra_indexes, *self.wheel_folders)
        return http.session(dict(self.proxies), self.ca_bundle, indexes, retries=retries)

    def proxy_environment(self) -> dict[str, str]:
        """Return the variables for the proxies: they mean the same on this host and in a container."""
        env = {}
        for key, value in self.proxies:
            name = key if key == "no_proxy" else f"{key}_proxy"
            env.update({name: value, name.upper(): value})
        return env

    def environment(self) -> dict[str, str]:
        """Return the variables that apply these settings to uv, apt, pip and curl.

        Index settings are variables, not arguments: arguments show in logs and in the list of processes.
        """
        env = self.proxy_environment()
        if self.ca_bundle:
            names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
            env.update(dict.fromkeys(names, str(self.ca_bundle)))
        if not self.native_index:
            env.update(
                UV_NO_CONFIG="1",
                UV_INDEX="",
                UV_INDEX_URL="",
                UV_DEFAULT_INDEX=self.index,
                UV_EXTRA_INDEX_URL=" ".join(self.extra_indexes),
                UV_FIND_LINKS=",".join(self.wheel_folders),
                UV_NO_INDEX="1" if self.no_index else "",
                # uv searches the extra indexes before the default index.
                UV_INDEX_STRATEGY=self.index_strategy,
            )
        return env


def detect(
    site_file: Path | None = None, *, distribution: str = "debian", tools: str = "", cache: str = ""
) -> Site:
    """Read the host's settings. Keys of a site file override them.

    Args:
        site_file: the file given with `--site`.
        distribution: the base's distribution; the host's apt mirrors count only if it has the same one.
        tools: `auto`, `host` or `container`; overrides the file's `tools: {where: ...}`.
        cache: repository of the cache; overrides the file's `cache:`, which overrides IMAGEBUILDER_CACHE.

    Raises:
        InputError: the file is wrong; every problem with its line.

    """
    given = _read(site_file) if site_file else _SiteFile.model_validate({})
    host = settings.index_settings(os.environ)
    apt = settings.apt_settings(distribution)
    pairs = {**settings.proxies(os.environ), **given.proxies.model_dump(exclude_unset=True)}
    bundle = Path(given.ca) if given.ca else settings.ca_bundle(os.environ)
    options = {**dict(apt.options), **given.apt.options}
    if bundle:
        options.setdefault("Acquire::https::CaInfo", str(bundle))
    if tools and tools not in get_args(_Where):
        raise InputError(f"`{yamlfile.printable(tools)}` is none of auto, host, container", where="--tools")
    set_here = given.model_fields_set
    extra = given.extra_indexes if "extra_indexes" in set_here else host.extra_indexes
    own = _existing(given.wheel_folders, "wheel folder")
    # Extra indexes from pip's settings were made for pip, which treats all indexes as one: most are partial.
    as_pip = bool(host.extra_indexes) and not host.native and "extra_indexes" not in set_here
    return Site(
        proxies=tuple(sorted((key, value) for key, value in pairs.items() if value)),
        ca_bundle=bundle,
        index=given.index if "index" in set_here else host.index,
        extra_indexes=_existing(extra, "index"),
        wheel_folders=own if "wheel_folders" in set_here else _existing(host.wheel_folders, "wheel folder"),
        own_wheel_folders=own,
        index_strategy=given.index_strategy or ("unsafe-best-match" if as_pip else "first-index"),
        no_index=given.no_index if "no_index" in set_here else host.no_index,
        apt_mirror=given.apt.mirror or apt.mirror,
        apt_security_mirror=given.apt.security_mirror or apt.security_mirror,
        apt_ports_mirror=given.apt.ports_mirror,
        apt_snapshots=given.apt.snapshots,
        apt_options=tuple(sorted(options.items())),
        archives=tuple((name, _archive(item)) for name, item in sorted(given.apt.archives.items())),
        registries=tuple((name, _registry(item)) for name, item in sorted(given.registries.items())),
        sources=tuple(
            (name, version, upstream)
            for name, versions in sorted(given.sources.items())
            for version, upstream in sorted(versions.items())
        ),
        tools=ToolsSite(where=cast("_Where", tools or given.tools.where), image=given.tools.image),
        native_index=host.native and not set_here & _INDEX_KEYS,
        cache=_cache(cache, given.cache),
        cache_signers=tuple(Path(name) for name in given.cache_signers),
        catalog=Path(given.catalog) if given.catalog else None,
    )


def _existing(locations: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Drop local folders that do not exist, as pip does, and make the others absolute."""
    kept = []
    for location in locations:
        path = settings.local_path(location)
        there = path is not None and _is(path, Path.exists)
        if path is None or (there and "://" in location and path.is_dir()):
            kept.append(location)
        elif there:
            kept.append(str(path.resolve()))
        else:
            log.warning("%s %s does not exist and is ignored", what, redact(location))
    return tuple(kept)


def _cache(option: str, in_file: str) -> str:
    """Choose the cache, and check that it names a repository."""
    environment = os.environ.get("IMAGEBUILDER_CACHE", "")
    for text, where in ((option, "--cache"), (in_file, "cache"), (environment, "IMAGEBUILDER_CACHE")):
        if text:
            return _repository(text, where)
    return ""


def _repository(text: str, where: str) -> str:
    try:
        found = parse(text)
    except InputError as error:
        raise InputError.of([replace(problem, where=where) for problem in error.problems]) from None
    if found.tag or found.digest:
        raise InputError(
            f"`{yamlfile.printable(text)}` names an image", where=where, hint=f"write `{found.name}`"
        )
    return found.name


def _url(value: str) -> str:
    if not value:  # overrides the host's setting
        return value
    parts = urlsplit(value)
    try:
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid and not (parts.scheme == "file" and parts.path.startswith("/")):
        raise yamlfile.Invalid(
            f"`{redact(yamlfile.printable(value))}` is not a URL", "write https://host/path"
        )
    if any(char.isspace() or not char.isprintable() for char in value):
        raise yamlfile.Invalid("holds white space or control characters", "write them as %20 and the like")
    return value


def _folder(value: str) -> str:
    if "://" in value:
        return _url(value)
    if not value or not value.isprintable() or "," in value:
        raise yamlfile.Invalid("is not the path of a folder", "write /path/to/wheels")
    return value


def _image(value: str) -> str:
    if not _IMAGE.fullmatch(value):
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not an image's name", "write it as in debian:trixie-slim"
        )
    return value


def _apt_options(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _APT_NAME.fullmatch(name) or not text.isprintable() or '"' in text:
            raise yamlfile.Invalid(
                f"`{yamlfile.printable(name)}` is not an option that can be set here",
                'only options that begin with Acquire:: can be set, as in Acquire::Retries: "3"',
            )
    return value


def _registry_place(value: str) -> str:
    if value and not _REGISTRY_PLACE.fullmatch(value):
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not a registry", "write host[:port] or host[:port]/folder"
        )
    return value


_Url = Annotated[str, Rule(_url, r"(?:(?:https?|file)://\S*)?")]


def _snapshots(value: str) -> str:
    if value and "@SNAPSHOTID@" not in value:
        raise yamlfile.Invalid(
            f"`{redact(yamlfile.printable(value))}` does not say where the time goes",
            "write https://host/archive/@PATH@/@SNAPSHOTID@",
        )
    return value


class _Proxies(Strict):
    """Proxies, as in the variables `http_proxy`, `https_proxy` and `no_proxy`."""

    http: _Url = ""
    https: _Url = ""
    no_proxy: str = ""


class _Archive(Strict):
    """Mirror of another package archive of a base from a registry."""

    url: Annotated[_Url, Field(description="URL of the mirror.")]
    key: Annotated[str, Field(description="File with the archive's public keys, if the base has none.")] = ""


class _Apt(Strict):
    """How apt reaches the distribution's archives."""

    mirror: Annotated[_Url, Field(description="Mirror of the distribution's archive.")] = ""
    security_mirror: Annotated[_Url, Field(description="Mirror of its security updates.")] = ""
    ports_mirror: Annotated[_Url, Field(description="Mirror of Ubuntu's archive for other processors.")] = ""
    snapshots: Annotated[
        _Url,
        AfterValidator(_snapshots),
        Field(description="Snapshot service: `@SNAPSHOTID@` stands for the time, `@PATH@` for the archive."),
    ] = ""
    archives: Annotated[
        dict[str, _Archive],
        Field(default_factory=dict, description="Mirrors of other archives, by their names in locks."),
    ]
    options: Annotated[
        dict[str, str],
        AfterValidator(_apt_options),
        Field(
            default_factory=dict,
            description="Options of apt's `Acquire::` group.",
            json_schema_extra={"propertyNames": {"pattern": f"^{_APT_NAME.pattern}$"}},
        ),
    ]


class _Registry(Strict):
    """How to reach one registry."""

    ca: Annotated[str, Field(description="PEM file with CA certificates to trust for it.")] = ""
    client_cert: Annotated[str, Field(description="PEM file with this host's certificate.")] = ""
    client_key: Annotated[str, Field(description="PEM file with the certificate's key.")] = ""
    plain_http: Annotated[bool, Field(description="Whether it speaks HTTP without TLS.")] = False
    mirror: Annotated[
        str,
        Rule(_registry_place, f"(?:{_REGISTRY_PLACE.pattern})?"),
        Field(description="Registry to read its images from: `host[:port][/folder]`."),
    ] = ""


class _Tools(Strict):
    """Where apt, dpkg and mmdebstrap run."""

    where: Annotated[_Where, Field(description="`auto`: in a container if this host lacks one of them.")] = (
        "auto"
    )
    image: Annotated[str, Rule(_image, _IMAGE.pattern), Field(description="Image of that container.")] = (
        _TOOLS_IMAGE
    )


class _SiteFile(Strict):
    """The keys of a site file. A key that is left out keeps the host's setting."""

    proxies: Annotated[_Proxies, Field(default_factory=_Proxies, description="Proxies to the outside.")]
    ca: Annotated[str, Field(description="PEM file with the certificates of every CA to trust.")] = ""
    index: Annotated[_Url, Field(description="URL of the package index.")] = ""
    extra_indexes: Annotated[tuple[_Url, ...], Field(description="URLs of more package indexes.")] = ()
    wheel_folders: Annotated[
        tuple[Annotated[str, AfterValidator(_folder)], ...],
        Field(description="Folders with wheels, or pages with links to wheels."),
    ] = ()
    index_strategy: Annotated[
        IndexStrategy | None, Field(description="uv's setting for packages that several indexes have.")
    ] = None
    no_index: Annotated[bool, Field(description="Whether to use the wheel folders only.")] = False
    apt: Annotated[_Apt, Field(default_factory=_Apt, description="The distribution's archives.")]
    registries: Annotated[
        dict[str, _Registry], Field(default_factory=dict, description="Registries, by host and port.")
    ]
    sources: Annotated[
        dict[str, Versions],
        Field(
            default_factory=dict,
            description="Source archives to compile, by component and version: `url` and `sha256`.",
        ),
    ]
    tools: Annotated[_Tools, Field(default_factory=_Tools, description="Where apt and its kin run.")]
    cache: Annotated[
        str, Field(description="Repository that shares layers and packages between hosts: `host/path`.")
    ] = ""
    cache_signers: Annotated[
        tuple[str, ...],
        Field(description="PEM files with the keys of hosts whose search for secrets is believed."),
    ] = ()
    catalog: Annotated[
        str,
        Field(description="Folder with catalog files: `lock` copies beside a recipe those that it pins."),
    ] = ""


def schema() -> dict[str, Any]:
    """Describe a site file as JSON Schema."""
    return _SiteFile.model_json_schema()


_INDEX_KEYS = frozenset({"index", "extra_indexes", "wheel_folders", "no_index", "index_strategy"})
# Keys of a registry's settings whose values are paths of files.
_REGISTRY_FILES = {
    "ca": "the CA's certificates",
    "client_cert": "this host's certificate",
    "client_key": "the certificate's key",
}
_RENAMES = {
    "proxy": "proxies", "ca_bundle": "ca", "cert": "ca", "index_url": "index", "find_links": "wheel_folders",
    "extra_index_url": "extra_indexes", "mirror": "apt", "mirrors": "apt",
}  # fmt: skip


def _read(path: Path) -> _SiteFile:
    """Read a site file; relative paths in it start at its own folder."""
    document = yamlfile.read(path)
    given = yamlfile.validate(document, _SiteFile, {name: f"use `{key}`" for name, key in _RENAMES.items()})
    problems: list[Problem] = []
    changes: dict[str, object] = {"catalog": _catalog_folder(given.catalog, path, document, problems)}

    def file(name: str, keys: tuple[str | int, ...], what: str) -> str:
        """Make a path absolute, and report it if there is no such file."""
        place = _resolved(path.parent, name)
        if not _is(place, Path.is_file):
            message = f"there is no file {yamlfile.printable(str(place))}"
            hint = f"name a PEM file with {what}"
            problems.append(Problem(message=message, where=document.where(keys), hint=hint))
        return str(place)

    if given.ca:
        changes["ca"] = file(given.ca, ("ca",), "the CA's certificates")
    registries = {}
    for host, item in given.registries.items():
        named = {
            key: file(text, ("registries", host, key), what)
            for key, what in _REGISTRY_FILES.items()
            if (text := getattr(item, key))
        }
        if bool(item.client_cert) != bool(item.client_key):
            problems.append(
                Problem(
                    message="a client certificate and its key go together",
                    where=document.where(("registries", host)),
                    hint="give both client_cert and client_key",
                )
            )
        registries[host] = item.model_copy(update=named)
    if registries:
        changes["registries"] = registries
    if given.apt.archives:
        archives = {
            name: item.model_copy(
                update={"key": file(item.key, ("apt", "archives", name, "key"), "the archive's public keys")}
                if item.key
                else {}
            )
            for name, item in given.apt.archives.items()
        }
        changes["apt"] = given.apt.model_copy(update={"archives": archives})
    lists = {
        "cache_signers": tuple(
            file(name, ("cache_signers", number), "a public key")
            for number, name in enumerate(given.cache_signers)
        ),
        "wheel_folders": tuple(
            folder if "://" in folder else str(_resolved(path.parent, folder))
            for folder in given.wheel_folders
        ),
    }
    changes |= {key: names for key, names in lists.items() if names}
    if problems:
        raise InputError.of(problems)
    return given.model_copy(update=changes)


def _catalog_folder(name: str, path: Path, document: yamlfile.Document, problems: list[Problem]) -> str:
    """Make the folder's path absolute, and report it if there is no such folder."""
    folder = _resolved(path.parent, name) if name else None
    if folder is not None and not _is(folder, Path.is_dir):
        message = f"there is no folder {yamlfile.printable(str(folder))}"
        hint = "name a folder with catalog files, NAME.yaml"
        problems.append(Problem(message=message, where=document.where(("catalog",)), hint=hint))
    return str(folder or "")


def _resolved(folder: Path, name: str) -> Path:
    """Make a path absolute. One that no file can have stays unchanged; the caller reports it as missing."""
    try:
        return (folder / Path(name).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError):
        return folder / name


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    """Apply `Path.is_file` or the like; False for a path that no file can have."""
    try:
        return kind(path)
    except (OSError, ValueError):
        return False


def _archive(given: _Archive) -> ArchiveSite:
    return ArchiveSite(url=given.url.rstrip("/"), key=Path(given.key) if given.key else None)


def _registry(given: _Registry) -> RegistrySite:
    return RegistrySite(
        ca=Path(given.ca) if given.ca else None,
        client=(Path(given.client_cert), Path(given.client_key)) if given.client_cert else None,
        plain_http=given.plain_http,
        mirror=given.mirror.rstrip("/"),
    )
