"""The site's settings as a build takes them: secrets that single steps mount, and arguments for proxies.

Neither ends in a layer or in the image's history (docs.docker.com: "Build secrets", "Predefined ARGs").
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from imagebuilder.debian import suites
from imagebuilder.host import aptmirrors, settings
from imagebuilder.host.site import Site, apt_conf
from imagebuilder.host.tools import choose_tools
from imagebuilder.plan import OsLayer

_PRIVATE = 0o600


def write(site: Site, layer: OsLayer, folder: Path) -> tuple[tuple[str, Path], ...]:
    """Write the files that the Dockerfile's secrets stand for; only those that the site has something for.

    Args:
        site: what to write.
        layer: says of which suite, and which sections of the archive.
        folder: where to; not readable by others, for an index's address may hold a password.

    Returns:
        Ids and files.

    """
    texts = {
        "pip": _pip(site),
        "apt": _apt(site),
        "sources": _sources(site, layer),
    }
    place = folder / "secrets"
    place.mkdir(mode=0o700)
    secrets = [("ca", site.ca_bundle)] if site.ca_bundle else []
    for name, text in texts.items():
        if text:
            file = place / name
            file.touch(_PRIVATE)
            file.write_text(text, encoding="utf-8")
            secrets.append((name, file))
    return tuple(secrets)


def arguments(site: Site) -> tuple[tuple[str, str], ...]:
    """Name the proxies as build arguments: tools of both spellings are among those that a step runs."""
    pairs = []
    for key, value in site.proxies:
        name = key if key == "no_proxy" else f"{key}_proxy"
        pairs += [(name, value), (name.upper(), value)]
    return tuple(sorted(pairs))


def network(site: Site) -> tuple[str, ...]:
    """Let steps reach a proxy that listens on this host's own loopback address."""
    hosts = {urlsplit(value).hostname for key, value in site.proxies if key != "no_proxy"}
    return ("--network=host",) if hosts & {"localhost", "127.0.0.1", "::1"} else ()


def _pip(site: Site) -> str:
    lines = []
    if site.index:
        lines.append(f"index-url = {site.index}")
    for name, places in (("extra-index-url", site.extra_indexes), ("find-links", site.wheel_folders)):
        # A folder of this host is none inside of a build.
        if reached := [place for place in places if settings.local_path(place) is None]:
            lines.append(f"{name} =\n" + "\n".join(f"    {place}" for place in reached))
    if site.no_index:
        lines.append("no-index = true")
    return "\n".join(["[global]", *lines, ""]) if lines else ""


def _apt(site: Site) -> str:
    # The bundle's path is this host's; the Dockerfile names its own.
    options = [pair for pair in site.apt_options if pair[0] != "Acquire::https::CaInfo"]
    return apt_conf(options)


def _sources(site: Site, layer: OsLayer) -> str:
    """Write the site's mirrors; without any the base's own sources count."""
    if not site.apt_mirror and not site.apt_security_mirror:
        return ""
    if site.apt_mirror and site.apt_security_mirror:
        mirrors = suites.Mirrors(main=site.apt_mirror, security=site.apt_security_mirror)
    else:
        default = aptmirrors.default(layer.distribution, layer.suite, layer.architecture, choose_tools(site))
        mirrors = suites.Mirrors(
            main=site.apt_mirror or default.main, security=site.apt_security_mirror or default.security
        )
    return suites.sources(layer.distribution, layer.suite, mirrors, sections=layer.sections)
