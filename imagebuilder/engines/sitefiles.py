"""Passes the site's settings to a build: as secrets that single steps mount, and as arguments for proxies.

Neither becomes a part of a layer or of the image's history (docs.docker.com: "Build secrets", "Predefined
ARGs").
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
    """Write the files of the Dockerfile's secrets, for the settings that the site has.

    Args:
        site: the settings.
        layer: names the suite and the sections of the archive.
        folder: the files are written to a subfolder that others cannot read, because an index's address may
            contain a password.

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
    """Return the proxies as build arguments, in lower and upper case: tools read one or the other."""
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
        # A build cannot read folders of this host.
        if reached := [place for place in places if settings.local_path(place) is None]:
            lines.append(f"{name} =\n" + "\n".join(f"    {place}" for place in reached))
    if site.no_index:
        lines.append("no-index = true")
    return "\n".join(["[global]", *lines, ""]) if lines else ""


def _apt(site: Site) -> str:
    # This path is only valid on this host; the Dockerfile has its own.
    options = [pair for pair in site.apt_options if pair[0] != "Acquire::https::CaInfo"]
    return apt_conf(options)


def _sources(site: Site, layer: OsLayer) -> str:
    """Return apt's sources with the site's mirrors; "" without mirrors, to use the base's own sources."""
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
