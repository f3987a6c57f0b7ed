"""What the system in a base is: distribution and suite, packages, archives, users. Read from its files.

Formats: os-release(5), deb822(5), sources.list(5), passwd(5); dpkg's status is deb822 as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, RootModel

from imagebuilder import suites, yamlfile
from imagebuilder.bases.tree import Tree
from imagebuilder.errors import InputError
from imagebuilder.lock import Installed

_ARCHIVES = "archives.yaml"
_STATUS = "var/lib/dpkg/status"
_SOURCES = "etc/apt/sources.list.d"
_WANTED = re.compile(
    r"(?:usr/lib|etc)/os-release|var/lib/dpkg/status|etc/passwd"
    r"|etc/apt/sources\.list|etc/apt/sources\.list\.d/[^/]+\.(?:list|sources)"
    r"|(?:usr/share/keyrings|etc/apt/(?:keyrings|trusted\.gpg\.d))/[^/]+\.(?:gpg|asc|pgp)"
)
# The files that distributions keep their own archives in; what else such a line names is somebody's mirror.
_OWN_FILES = frozenset({"sources", "debian", "ubuntu"})
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>[^#]*)")
_PEOPLE = range(1000, 60000)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A package archive besides the distribution's own, as the base is set up for it.

    Attributes:
        name: that locks and site files call it by.
        uri, suite, components: as sources.list(5) has them; a suite that ends in a slash has no components.
        keys: the public keys that it is signed with; empty where the base trusts it without.
        trusted: true where its signature does not count.

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
    """Say whether a file's content is needed here."""
    return _WANTED.fullmatch(path) is not None


def of_tree(tree: Tree, image: str) -> System:
    """Read what the system is.

    Args:
        tree: of the base, with the contents that `wanted` asks for.
        image: what the base is called, for messages.

    Raises:
        InputError: it is neither Debian nor Ubuntu, a suite that is not known here, or has no dpkg.

    """
    release = _fields(tree.text("etc/os-release"))
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
    packages, architecture = _installed(status)
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
        accounts=_accounts(tree.text("etc/passwd")),
    )


def _fields(text: str) -> dict[str, str]:
    """Read os-release: NAME=value, with shell quotes around values."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            found[name.strip()] = value.strip().strip("\"'")
    return found


def _installed(status: str) -> tuple[tuple[Installed, ...], str]:
    """Read dpkg's list: what is installed, and the architecture of dpkg itself, which is the system's."""
    packages, own = [], ""
    for block in deb822(status):
        state = block.get("Status", "").split()
        if state[-1:] != ["installed"]:
            continue
        package = Installed(
            name=block.get("Package", ""),
            version=block.get("Version", ""),
            architecture=block.get("Architecture", ""),
        )
        packages.append(package)
        if package.name == "dpkg":
            own = package.architecture
    return tuple(sorted(packages, key=lambda item: (item.name, item.architecture))), own


def _accounts(passwd: str) -> dict[str, int]:
    found = {}
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdigit() and int(fields[2]) in _PEOPLE:
            found[fields[0]] = int(fields[2])
    return found


def _archives(tree: Tree) -> tuple[Archive, ...]:
    folder = tree.find(_SOURCES)
    names = sorted(folder.children) if folder is not None else []
    found: dict[tuple[str, str, str], Archive] = {}
    for path in ("etc/apt/sources.list", *(f"{_SOURCES}/{name}" for name in names)):
        stem = PurePosixPath(path).stem
        text = tree.text(path)
        blocks = deb822(text) if path.endswith(".sources") else _one_line(text)
        for block in blocks:
            for archive in _of_block(block, stem, tree):
                found.setdefault((archive.name, archive.uri, archive.suite), archive)
    return tuple(found.values())


def _of_block(block: Mapping[str, str], stem: str, tree: Tree) -> Iterator[Archive]:
    if "deb" not in block.get("Types", "").split() or block.get("Enabled", "").lower() in {"no", "false"}:
        return
    key = block.get("Signed-By", "")
    for uri in block.get("URIs", "").split():
        if stem in _OWN_FILES and _is_own(uri):
            continue
        for suite in block.get("Suites", "").split():
            yield Archive(
                name=_name(stem),
                uri=uri.rstrip("/"),
                suite=suite,
                components=tuple(block.get("Components", "").split()),
                keys=key.strip().encode() if "BEGIN PGP" in key else _key(tree, key),
                trusted=block.get("Trusted", "").lower() == "yes",
            )


def _key(tree: Tree, path: str) -> bytes:
    node = tree.find(path) if path else None
    return (node.inode.data or b"") if node else b""


def _one_line(text: str) -> Iterator[dict[str, str]]:
    """Read `deb [signed-by=FILE] URI SUITE COMPONENTS` as the fields that deb822 has."""
    for line in text.splitlines():
        if found := _ONE_LINE.match(line.strip()):
            options = dict(
                option.split("=", 1) for option in (found["options"] or "").split() if "=" in option
            )
            yield {
                "Types": "deb",
                "URIs": found["uri"],
                "Suites": found["suite"],
                "Components": found["rest"],
                "Signed-By": options.get("signed-by", ""),
                "Trusted": options.get("trusted", ""),
            }


def _is_own(uri: str) -> bool:
    """Tell a mirror of the distribution from another archive in the same file: mirrors are laid out alike."""
    last = PurePosixPath(urlsplit(uri).path).name
    return last.removesuffix("-security").removesuffix("-ports") in suites.known()


def _name(stem: str) -> str:
    """Call an archive as the catalog does, else as the base's file of it is called."""
    known = (name for name, item in _known().items() if any(fnmatch(stem, glob) for glob in item.files))
    return next(known, stem)


def deb822(text: str) -> Iterator[dict[str, str]]:
    """Read paragraphs of `Field: value`; lines that go on are joined, a lone dot stands for an empty one."""
    block: dict[str, str] = {}
    last = ""
    for line in (*text.splitlines(), ""):
        if not line.strip():
            if block:
                yield block
            block, last = {}, ""
        elif line[0] in " \t":
            if last:
                block[last] += "\n" + ("" if line.strip() == "." else line.strip())
        elif not line.startswith("#"):
            last, _, value = line.partition(":")
            block[last] = value.strip()


class _Known(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    files: Annotated[
        tuple[str, ...], Field(description="How its file in sources.list.d is called, without the ending.")
    ]


class _KnownArchives(RootModel[dict[str, _Known]]):
    model_config = ConfigDict(frozen=True, strict=True)


@cache
def _known() -> dict[str, _Known]:
    raw = resources.files(__package__).joinpath(_ARCHIVES).read_bytes()
    return yamlfile.validate(yamlfile.parse_own(raw, f"imagebuilder/bases/{_ARCHIVES}"), _KnownArchives).root
