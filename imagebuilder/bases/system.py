"""Read the system in a base from its files: distribution and suite, packages, archives, users.

Formats: os-release(5), passwd(5), and dpkg's status, which is deb822(5).
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from imagebuilder.bases.tree import Tree
from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict, Table
from imagebuilder.debian import sources, suites
from imagebuilder.debian.sources import AptSource
from imagebuilder.errors import InputError
from imagebuilder.lock.model import Installed

log = logging.getLogger(__name__)

_ARCHIVES = "archives.yaml"
_STATUS = "var/lib/dpkg/status"
_RELEASE = frozenset({"ID", "PRETTY_NAME", "VERSION_CODENAME"})
_SOURCES = "etc/apt/sources.list.d"
_WANTED = re.compile(
    r"(?:usr/lib|etc)/os-release|var/lib/dpkg/status|etc/passwd"
    r"|etc/apt/sources\.list|etc/apt/sources\.list\.d/[^/]+\.(?:list|sources)"
    r"|(?:usr/share/keyrings|etc/apt/(?:keyrings|trusted\.gpg\.d))/[^/]+\.(?:gpg|asc|pgp)"
)
_FIELDS = frozenset({"package", "status", "version", "architecture"})
# The files in which distributions list their own archives.
_OWN_FILES = frozenset({"sources", "debian", "ubuntu"})
_PEOPLE = range(1000, 60000)
_ID = re.compile(r"[0-9]{1,10}")
# apt ignores files with other names: sources.list(5).
_SOURCE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}\.(?:list|sources)")
# Accepted ways to fetch an archive's index; others of apt's methods read this host's disks, or run ssh.
_SCHEMES = frozenset({"http", "https"})
_WORD = re.compile(r"[!-~]{1,2000}")
# More than any image has, and few enough to be written to a lock.
_MOST_PACKAGES = 10_000
_MOST_ACCOUNTS = 1_000
_MOST_ARCHIVES = 200


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A package archive, other than the distribution's own, that the base is set up for.

    Attributes:
        name: its name in locks and site files.
        uri, suite, components: as in sources.list(5); a suite that ends in a slash has no components.
        keys: the public keys that sign it; empty if the base names none.
        trusted: true if its signature is not checked.

    """

    name: str
    uri: str
    suite: str
    components: tuple[str, ...]
    keys: bytes
    trusted: bool


@dataclass(frozen=True, kw_only=True)
class System:
    """The system in a base; `status` is the text of dpkg's own list of packages."""

    distribution: str
    suite: str
    architecture: str
    status: str
    packages: tuple[Installed, ...]
    archives: tuple[Archive, ...]
    accounts: Mapping[str, int]


def wanted(path: str) -> bool:
    """Return whether the content of a file is needed here."""
    return _WANTED.fullmatch(path) is not None


def of_tree(tree: Tree, image: str) -> System:
    """Read the system from a base's files.

    Args:
        tree: the base's files, with the contents that `wanted` selects.
        image: the base's name in messages.

    Raises:
        InputError: it is neither Debian nor Ubuntu, has an unknown suite, or no dpkg.

    """
    release = _release(tree.text("etc/os-release"))
    distribution = release.get("ID", "")
    if distribution not in suites.known():
        name = release.get("PRETTY_NAME") or distribution
        raise InputError(
            f"{image} is not a base that packages can be added to: "
            + (f"it holds {yamlfile.printable(name)}" if name else "it does not say which system it holds"),
            where="base: image",
            hint=f"choose an image of {' or '.join(sorted(suites.known()))}",
        )
    suite = release.get("VERSION_CODENAME", "")
    if suite not in suites.known()[distribution].suites:
        raise InputError(
            f"{image} holds {distribution} {yamlfile.printable(suite) or '(no suite)'}, "
            "which is not known here",
            where="base: image",
            hint=f"known: {', '.join(sorted(suites.known()[distribution].suites))}",
        )
    status = tree.text(_STATUS)
    packages = _installed(status, image)
    architecture = next((package.architecture for package in packages if package.name == "dpkg"), "")
    if not architecture:
        raise InputError(
            f"{image} has no dpkg, so nothing can be installed in it",
            where="base: image",
            hint="images without a package manager (`distroless`, `chiselled`) cannot be a base",
        )
    return System(
        distribution=distribution,
        suite=suite,
        architecture=architecture,
        status=status,
        packages=packages,
        archives=_archives(tree),
        accounts=_accounts(tree.text("etc/passwd"), image),
    )


def _broken(image: str, path: str, what: str) -> InputError:
    return InputError(
        f"{image} is broken: its `{path}` {what}", where="base: image", hint="choose another image"
    )


def _release(text: str) -> dict[str, str]:
    """Read os-release: NAME=value, with shell quotes around values."""
    values = {}
    for line in io.StringIO(text):
        name, equals, value = line.partition("=")
        if equals and name.strip() in _RELEASE:
            values[name.strip()] = value.strip().strip("\"'")
    return values


def _installed(status: str, image: str) -> tuple[Installed, ...]:
    """Read dpkg's list of installed packages."""
    packages: dict[tuple[str, str], Installed] = {}
    for block in sources.paragraphs(status, _FIELDS):
        if block.get("status", "").split()[-1:] != ["installed"]:
            continue
        fields = {name: block.get(name, "") for name in ("package", "version", "architecture")}
        name = yamlfile.printable(fields["package"])
        try:
            package = Installed(name=fields.pop("package"), **fields)
        except ValidationError as error:
            wrong = " and ".join(str(item["loc"][0]) for item in error.errors())
            what = f"has a package `{name}` without a usable {wrong}"
            raise _broken(image, _STATUS, what) from None
        if (package.name, package.architecture) in packages:
            raise _broken(image, _STATUS, f"has the package `{name}` twice")
        packages[package.name, package.architecture] = package
        if len(packages) > _MOST_PACKAGES:
            raise _broken(image, _STATUS, f"has more than {_MOST_PACKAGES} packages")
    return tuple(packages[key] for key in sorted(packages))


def _accounts(passwd: str, image: str) -> dict[str, int]:
    ids: dict[str, int] = {}
    for line in io.StringIO(passwd):
        fields = line.split(":", 3)
        if len(fields) < 4 or not _ID.fullmatch(fields[2]) or int(fields[2]) not in _PEOPLE:
            continue
        if not _WORD.fullmatch(fields[0]) or len(ids) >= _MOST_ACCOUNTS:
            name = yamlfile.printable(fields[0])
            raise _broken(
                image, "etc/passwd", f"has an unusable user `{name}`, or more than {_MOST_ACCOUNTS}"
            )
        ids[fields[0]] = int(fields[2])
    return ids


def _archives(tree: Tree) -> tuple[Archive, ...]:
    folder = tree.find(_SOURCES)
    names = sorted(name for name in folder.children if _SOURCE_NAME.fullmatch(name)) if folder else []
    archives: dict[tuple[str, str, str], Archive] = {}
    for path in ("etc/apt/sources.list", *(f"{_SOURCES}/{name}" for name in names)):
        node = tree.find(path)
        # apt ignores what is not a file, too.
        if node is None or not node.inode.entry.is_file:
            continue
        for source in sources.of_file(path, tree.text(path)):
            for archive in _of_source(source, PurePosixPath(path).stem, tree):
                archives.setdefault((archive.name, archive.uri, archive.suite), archive)
                if len(archives) > _MOST_ARCHIVES:
                    raise _broken(tree.name, path, f"brings it to more than {_MOST_ARCHIVES} archives")
    return tuple(archives.values())


def _of_source(source: AptSource, stem: str, tree: Tree) -> Iterator[Archive]:
    if not _is_remote(source.uri):
        shown = yamlfile.printable(source.uri)
        log.warning("the base's package archive %s is left out: not http or https", shown)
        return
    if stem in _OWN_FILES and _is_own(source.uri):
        return
    key = source.signed_by
    for suite in source.suites:
        if not all(map(_WORD.fullmatch, (source.uri, suite, *source.components))):
            raise _broken(tree.name, f"{_SOURCES}/{stem}", "names an archive in unusual characters")
        yield Archive(
            name=_name(stem),
            uri=source.uri,
            suite=suite,
            components=source.components,
            keys=key.encode() if "BEGIN PGP" in key else _key(tree, key),
            trusted=source.trusted,
        )


def _key(tree: Tree, path: str) -> bytes:
    node = tree.find(path) if path else None
    return (node.inode.data or b"") if node else b""


def _is_remote(uri: str) -> bool:
    try:
        return urlsplit(uri).scheme in _SCHEMES
    except ValueError:  # brackets without an address between them
        return False


def _is_own(uri: str) -> bool:
    """Return whether a URL is of a mirror of the distribution: their last folders have the same names."""
    last = PurePosixPath(urlsplit(uri).path).name
    return last.removesuffix("-security").removesuffix("-ports") in suites.known()


def _name(stem: str) -> str:
    """Return an archive's name in the catalog, or else the name of its file in the base."""
    known = (name for name, item in _known().items() if any(fnmatch(stem, glob) for glob in item.files))
    return next(known, stem)


class _Known(Strict):
    files: Annotated[
        tuple[str, ...], Field(description="Names of its file in sources.list.d, without the ending.")
    ]


@cache
def _known() -> dict[str, _Known]:
    raw = resources.files(__package__).joinpath(_ARCHIVES).read_bytes()
    return yamlfile.validate(yamlfile.parse_own(raw, f"imagebuilder/bases/{_ARCHIVES}"), Table[_Known]).root
