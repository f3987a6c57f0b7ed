"""Read the settings of the host's own tools: proxies, CA bundle, index (uv's, pip's), apt's mirrors."""

from __future__ import annotations

import configparser
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from imagebuilder.core import process
from imagebuilder.debian import sources
from imagebuilder.debian.sources import AptSource
from imagebuilder.errors import ImagebuilderError

log = logging.getLogger(__name__)

_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
_UV_VARIABLES = (
    "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX",
)  # fmt: skip
_UV_KEYS = frozenset({"index", "index-url", "extra-index-url", "find-links", "no-index"})

# Where distributions keep the bundle of all CAs; the first that exists counts.
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS, Alpine
)

# Options of apt that say how to reach a mirror. Options that weaken apt's checks are not inherited, except
# the two about dates: a site's mirror may be a snapshot, whose dates get old.
_APT_OPTION = re.compile(
    r"Acquire::(?:https?::.+|Check-Valid-Until|Check-Date|Max-FutureTime|Retries|ForceIPv[46]|Queue-Mode)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Where Python packages come from; an empty `index` is the tool's own default.

    `native`: the settings are uv's own, so uv reads them itself, and completely.
    """

    index: str = ""
    extra_indexes: tuple[str, ...] = ()
    wheel_folders: tuple[str, ...] = ()
    no_index: bool = False
    native: bool = False


@dataclass(frozen=True, kw_only=True)
class AptSettings:
    mirror: str = ""
    security_mirror: str = ""
    options: tuple[tuple[str, str], ...] = field(default=())


def proxies(env: Mapping[str, str]) -> dict[str, str]:
    """Read the proxies from the environment; the lower-case name wins, as in curl."""
    values = {}
    for key in ("http", "https", "no_proxy"):
        name = key if key == "no_proxy" else f"{key}_proxy"
        value = env.get(name) or env.get(name.upper())
        if not value and key != "no_proxy":
            value = env.get("all_proxy") or env.get("ALL_PROXY")
        if value:
            values[key] = value
    return values


def ca_bundle(env: Mapping[str, str]) -> Path | None:
    """Return the bundle of CAs to trust: named by a variable or by pip's settings, else the system's."""
    named = [
        env.get(name, "") for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
    ]
    named.append(_pip_options(env).get("cert", ""))
    for name in (*named, *_SYSTEM_BUNDLES):
        if name and (path := Path(name).expanduser()).is_file():
            return path
    import ssl  # late: only hosts without any of these need it

    default = Path(ssl.get_default_verify_paths().openssl_cafile)
    return default if default.is_file() else None


def index_settings(env: Mapping[str, str]) -> IndexSettings:
    """Read where packages come from: uv's settings where there are any, else pip's."""
    return _uv_settings(env) or _pip_settings(env)


def apt_settings(distribution: str, root: Path = Path("/")) -> AptSettings:
    """Read the mirrors and the options that the host's apt uses.

    Args:
        distribution: the base's distribution; mirrors of a host with another one are ignored.
        root: the folder that holds `etc`.

    """
    release = _os_release(root)
    if release.get("ID") != distribution:
        return AptSettings()
    codename = release.get("VERSION_CODENAME", "")
    suites = {codename, "stable", "oldstable", "testing", "unstable", "sid"} - {""}
    mirror = security = ""
    for source in _apt_sources(root):
        # Third-party archives may use the same suite names, but they have their own keyrings.
        if "main" not in source.components or "-archive" not in (source.signed_by or "-archive"):
            continue
        uri = _plain_mirror(source.uri)
        if suites & set(source.suites):
            mirror = mirror or uri
        elif any(suite in {f"{name}-security" for name in suites} for suite in source.suites):
            security = security or uri
    return AptSettings(mirror=mirror, security_mirror=security, options=_apt_options())


def local_path(location: str) -> Path | None:
    """Return the path of a plain path or a file: URL; None for anything else."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        # Not `urllib.request.url2pathname`: importing that loads all of HTTP.
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(location).expanduser()


def _uv_settings(env: Mapping[str, str]) -> IndexSettings | None:
    config = _uv_config(env)
    if not config and not any(env.get(name) for name in _UV_VARIABLES):
        return None
    indexes = [entry for entry in config.get("index", ()) if isinstance(entry, dict)]
    default = next((entry["url"] for entry in indexes if entry.get("default")), config.get("index-url", ""))
    extra = [entry["url"] for entry in indexes if not entry.get("default")] + config.get(
        "extra-index-url", []
    )
    extra += f"{env.get('UV_INDEX', '')} {env.get('UV_EXTRA_INDEX_URL', '')}".split()
    folders = [
        *config.get("find-links", ()),
        *filter(None, re.split(r"[,\s]+", env.get("UV_FIND_LINKS", ""))),
    ]
    return IndexSettings(
        index=_unnamed(env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or default),
        extra_indexes=tuple(_unnamed(url) for url in extra),
        wheel_folders=tuple(folders),
        no_index=env.get("UV_NO_INDEX", "").lower() in _TRUE or bool(config.get("no-index")),
        native=True,
    )


def _unnamed(index: str) -> str:
    """Drop the name that uv allows in front of an index: `name=https://...`."""
    return re.sub(r"^[\w.-]+=(?=\w+:)", "", index)


def _uv_config(env: Mapping[str, str]) -> dict[str, Any]:
    """Read the index keys of uv's own file: the user's if it has any, else the system's."""
    if env.get("UV_NO_CONFIG"):
        return {}
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or "/nonexistent") / ".config")
    candidates = [Path(env["UV_CONFIG_FILE"])] if env.get("UV_CONFIG_FILE") else []
    candidates += [home / "uv/uv.toml", Path("/etc/uv/uv.toml")]
    for path in candidates:
        try:
            text = path.read_text(encoding="utf-8")
            import tomllib  # late: most hosts have no such file

            data = tomllib.loads(text)
        except (OSError, ValueError):
            continue
        keys = {**data, **data.get("pip", {})}
        if index_keys := {key: value for key, value in keys.items() if key in _UV_KEYS}:
            return index_keys
    return {}


def _pip_settings(env: Mapping[str, str]) -> IndexSettings:
    options = _pip_options(env)
    return IndexSettings(
        index=options.get("index-url", "").strip(),
        extra_indexes=tuple(options.get("extra-index-url", "").split()),
        wheel_folders=tuple(options.get("find-links", "").split()),
        no_index=options.get("no-index", "").lower() in _TRUE,
    )


def _pip_options(env: Mapping[str, str]) -> dict[str, str]:
    """Merge pip's settings in pip's order: system, user, venv, PIP_CONFIG_FILE, then variables."""
    options: dict[str, str] = {}
    for path in _pip_files(env):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            if path.exists():
                log.warning("%s is not read: %s", path, type(error).__name__)
            continue
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                options.update({key.replace("_", "-"): value for key, value in parser.items(section)})
    for key in ("index-url", "extra-index-url", "find-links", "no-index", "cert"):
        if value := env.get(f"PIP_{key.replace('-', '_').upper()}"):
            options[key] = value
    return options


def _pip_files(env: Mapping[str, str]) -> Iterator[Path]:
    own = env.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:  # tells pip to read no files
        return
    home = Path(env.get("HOME") or "/nonexistent")
    for folder in reversed(env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")):
        yield Path(folder) / "pip/pip.conf"
    yield Path("/etc/pip.conf")
    yield home / ".pip/pip.conf"
    yield Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    if env.get("VIRTUAL_ENV"):
        yield Path(env["VIRTUAL_ENV"]) / "pip.conf"
    if own:
        yield Path(own)


def _os_release(root: Path) -> dict[str, str]:
    try:
        text = (root / "etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value.strip("\"'") for key, _, value in pairs if key}


def _apt_sources(root: Path) -> Iterator[AptSource]:
    """Read every source, the distribution's own files first."""
    folder = root / "etc/apt/sources.list.d"
    others = sorted(folder.glob("*")) if folder.is_dir() else []
    others.sort(key=lambda path: path.name not in {"debian.sources", "ubuntu.sources"})
    for path in (root / "etc/apt/sources.list", *others):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield from sources.of_file(path.name, text)


def _plain_mirror(uri: str) -> str:
    """Return an http(s) URL: the first one of a mirror list; "" for other transports."""
    if uri.startswith("mirror+file:"):
        try:
            lines = Path(urlsplit(uri).path).read_text(encoding="utf-8").split("\n")
        except OSError:
            return ""
        uri = next((line.split()[0] for line in lines if line.startswith("http")), "")
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else ""


def _apt_options() -> tuple[tuple[str, str], ...]:
    try:
        dump = process.run(["apt-config", "dump"], timeout=10).stdout
    except ImagebuilderError:
        return ()
    return tuple(_chosen_options(dump.splitlines()))


def _chosen_options(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        option = re.fullmatch(r'(\S+) "(.+)";', line)
        if option and _APT_OPTION.fullmatch(option[1]) and not option[1].endswith("::"):
            yield option[1], option[2]
