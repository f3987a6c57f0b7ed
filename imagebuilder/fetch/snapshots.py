"""Where a distribution keeps packages that its archive has replaced: its snapshot service.

A snapshot service has an archive as it was at any time. apt 3 knows such services: by its setting
`Acquire::Snapshots::URI`, or the field `Snapshots` in an archive's Release file. A site file may name one.
The lock says the time. What comes from there is believed only if it has the lock's sha256.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import requests
import urllib3

from imagebuilder.core import times
from imagebuilder.core.yamlfile import printable
from imagebuilder.debian import sources, suites
from imagebuilder.errors import FetchError, ImagebuilderError
from imagebuilder.host import aptmirrors
from imagebuilder.host.settings import local_path
from imagebuilder.host.site import Site
from imagebuilder.host.tools import choose_tools
from imagebuilder.lock.model import Archives, Deb, Lock, Source

# Bytes of a Release file that are read: its fields come before its lists of files.
_HEAD = 65_536
_SECONDS = 60.0
_FIELDS = frozenset({"origin", "label", "snapshots"})
_PATTERN = re.compile(r"https?://[!-~]{1,2000}")
_SETTING = re.compile(r'Acquire::Snapshots::URI::(\S+) "(.*)";')
# A Release file is written some hours before a service copies the archive: it answers a question for the very
# time with the copy before it.
_LATER = 12 * 3600


@dataclass(frozen=True, kw_only=True)
class _Archive:
    """One of the distribution's archives: its URL, its path in `@PATH@`, and the suites that it has."""

    url: str
    path: str
    suites: tuple[str, ...]


class Snapshots:
    """The snapshots of a lock's archives. Nothing is asked before the first package is looked for."""

    def __init__(self, lock: Lock, site: Site) -> None:
        """Prepare.

        Args:
            lock: says when each archive had which packages.
            site: how to reach archives, and which snapshot service to use.

        """
        self._lock, self._site = lock, site
        self._guard = threading.Lock()
        self._patterns: dict[_Archive, str] = {}
        self._settings: Mapping[str, str] | None = None
        distribution, _, suite = lock.base.partition(":")
        self._base = distribution, suite
        self._times: dict[str, tuple[str, Archives]] = {
            item.sha256: (suite, lock.archives) for item in lock.debs
        }
        for build in lock.builds:
            for deb in build.debs:
                self._times[deb.sha256] = suite, build.archives
            for source in build.sources:
                self._times[source.sha256] = source.suite or suite, build.archives

    def since(self, package: Deb | Source) -> str:
        """Return when the archives last had a package for sure; "" if the lock does not say."""
        suite, archives = self._times.get(package.sha256, ("", {}))
        return max((archives.get(name, "") for name in _pockets(suite)), default="")

    def urls(self, package: Deb | Source) -> tuple[str, ...]:
        """Return the URLs of a package in the snapshots of its archives; empty if no service is known."""
        if (isinstance(package, Deb) and package.archive) or not self.since(package):
            return ()
        with self._guard:
            return tuple(dict.fromkeys(self._urls(package)))

    def missing(self, package: Deb | Source, name: str, reason: str) -> FetchError:
        """Return the error for a package that nobody has any more."""
        since = self.since(package)
        had = f", which had it at {since}" if since else ""
        place = package.archive if isinstance(package, Deb) else ""
        which = f"archive {printable(place)}" if place else "archive"
        keeps = "name a snapshot service in a file for --site, as `snapshots:` under `apt:`"
        if place:
            keeps = f"name a mirror that keeps it in a file for --site, under `archives: {printable(place)}:`"
        asked = "no snapshot of it has it either" if self.urls(package) else "no snapshot service is known"
        return FetchError(
            f"{name} is no longer in the {which}{had}, and {asked}: {reason}",
            hint=f"lock newer packages: imagebuilder lock --upgrade; or {keeps}; or build with a store or a "
            "cache that has it",
        )

    def _urls(self, package: Deb | Source) -> Iterator[str]:
        suite, archives = self._times[package.sha256]
        mirrors = aptmirrors.of_site(self._site, *self._base, self._lock.architecture)
        facts = suites.facts(*self._base)
        (main, security), pool, moved = facts.paths, facts.security_pool, package.path
        if moved.startswith(pool):
            moved = "pool/" + moved.removeprefix(pool)
            place = _Archive(url=mirrors.security, path=security, suites=(f"{suite}-security",))
            yield from self._at(place, package.path, archives)
        place = _Archive(url=mirrors.main, path=main, suites=(suite, f"{suite}-updates"))
        yield from self._at(place, moved, archives)

    def _at(self, archive: _Archive, path: str, archives: Archives) -> Iterator[str]:
        time = max(archives.get(name, "") for name in archive.suites)
        if not time:
            return
        if archive not in self._patterns:
            self._patterns[archive] = self._pattern(archive)
        if pattern := self._patterns[archive]:
            for seconds in (times.seconds(time), times.seconds(time) + _LATER):
                stamp = re.sub("[-:]", "", times.of_seconds(seconds))
                place = pattern.replace("@PATH@", archive.path).replace("@SNAPSHOTID@", stamp)
                yield f"{place.rstrip('/')}/{quote(path, safe='/~:%')}"

    def _pattern(self, archive: _Archive) -> str:
        """Return the URL of an archive's snapshots; "" if there are none. The order is apt's own."""
        if self._site.apt_snapshots:
            return self._site.apt_snapshots
        release = self._release(archive)
        origin, label, host = release["origin"], release["label"], urlsplit(archive.url).hostname or ""
        domains = [f".{host.split('.', number)[number]}" for number in range(1, host.count(".") + 1)]
        if self._settings is None:
            self._settings = _settings(self._site)
        named = self._settings
        for found in (
            *(named.get(f"Override::{key}") for key in (f"Label::{label}", f"Origin::{origin}")),
            release["snapshots"],
            *(named.get(key) for key in (f"Label::{label}", f"Origin::{origin}", f"Host::{host}")),
            *(named.get(f"Host::{domain}") for domain in domains),
        ):
            if found:
                return found if _is_usable(found) else ""
        return ""

    def _release(self, archive: _Archive) -> dict[str, str]:
        """Read the first fields of an archive's Release file; empty if it cannot be read."""
        fields = dict.fromkeys(_FIELDS, "")
        for suite in archive.suites:
            for name in ("InRelease", "Release"):
                text = _head(f"{archive.url}/dists/{suite}/{name}", self._site)
                for block in sources.paragraphs(text, _FIELDS):
                    return {**fields, **block}
        return fields


def _is_usable(pattern: str) -> bool:
    """Return whether an archive or apt names a service, and does not say `no` or something odd."""
    try:
        return (
            "@SNAPSHOTID@" in pattern
            and _PATTERN.fullmatch(pattern) is not None
            and bool(urlsplit(pattern).hostname)
        )
    except ValueError:  # brackets without an address between them
        return False


def _pockets(suite: str) -> tuple[str, ...]:
    return suite, f"{suite}-updates", f"{suite}-security"


def _head(url: str, site: Site) -> str:
    path = local_path(url)
    data = b""
    if path is not None:
        with suppress(OSError), path.open("rb") as file:
            data = file.read(_HEAD)
    else:
        with (
            suppress(requests.RequestException, urllib3.exceptions.HTTPError, ValueError),
            site.session() as session,
            session.get(url, stream=True) as answer,
        ):
            if answer.status_code == requests.codes.ok:
                data = answer.raw.read(_HEAD, decode_content=True)
    return data.decode("utf-8", "replace")


def _settings(site: Site) -> dict[str, str]:
    """Return the snapshot services that apt knows, with its own defaults, by what they are for."""
    named = dict(site.apt_options)
    with suppress(ImagebuilderError), tempfile.TemporaryDirectory(prefix="imagebuilder-apt-") as folder:
        with choose_tools(site).open(Path(folder), network=False) as sandbox:
            said = sandbox.run(
                ["apt-config", "dump", "Acquire::Snapshots::URI"], timeout=_SECONDS, check=False
            )
        own = {match[1]: match[2] for line in said.stdout.splitlines() if (match := _SETTING.fullmatch(line))}
        start = "Acquire::Snapshots::URI::"
        return {
            **own,
            **{key.removeprefix(start): text for key, text in named.items() if key.startswith(start)},
        }
    return {}
