"""What an image's config says: variables, labels, user, and the tags of the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from imagebuilder import catalog, tags
from imagebuilder.errors import InputError
from imagebuilder.lock import Lock
from imagebuilder.lockfile import LockFile
from imagebuilder.plan.layer import VENV, User
from imagebuilder.recipe import Recipe

# Which engine made an image, where that matters; and OCI's name for the digest of a base from a registry.
ENGINE_LABEL = "org.imagebuilder.engine"
BASE_DIGEST_LABEL = "org.opencontainers.image.base.digest"
# The time of everything in an image: the same lock gives the same bytes on any day. RFC 3339.
EPOCH = "1970-01-01T00:00:00Z"
# Lists of folders: where a base from a registry has one too, its folders come after the image's own.
_LISTS = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")
# Variables of a base that speak of its own user, who is not this image's.
_OF_THE_USER = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME"})
PATH = f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the image config says; mappings are tuples of pairs, sorted by name."""

    env: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    user: str
    workdir: str
    ports: tuple[int, ...]


def config(recipe: Recipe, lock: Lock, user: User) -> Config:
    """Make the config of an image from its recipe and its lock."""
    said = {name: text for name, text in recipe.about.model_dump().items() if text}
    # A suite that is bootstrapped from its archive has a name, and no digest: the lock's says which bytes.
    known = {
        "title": recipe.name,
        "version": version(lock),
        "created": EPOCH,
        "base.name": lock.base,
        **({"base.name": lock.image.name, "base.digest": lock.image.digest} if lock.image else {}),
        **said,
    }
    labels = {
        **(lock.image.labels if lock.image else {}),
        **recipe.labels,
        **{f"org.opencontainers.image.{name}": text for name, text in known.items()},
        "org.imagebuilder.lock": lock.checksum,
        "org.imagebuilder.ssh.port": str(recipe.ssh.port),
        "org.imagebuilder.ssh.user": user.name,
        **({"org.imagebuilder.ssh.keys": "baked"} if recipe.ssh.keys == "baked" else {}),
        **{f"org.imagebuilder.pin.{name}": version for name, version in lock.pins.items()},
    }
    return Config(
        env=tuple(sorted(environment(recipe, lock).items())),
        labels=tuple(sorted(labels.items())),
        entrypoint=("/usr/bin/tini", "--", "/usr/local/bin/imagebuilder-entrypoint"),
        cmd=(),
        user="0:0" if user.uid == 0 else f"{user.uid}:0",
        workdir=user.home,
        ports=(recipe.ssh.port,),
    )


def user(recipe: Recipe, lock: Lock) -> User:
    """Choose the image's user: the one that the recipe names, with an id that the base has not given away."""
    name = recipe.ssh.user
    if name == "root":
        return User(name="root", uid=0, home="/root")
    # A base may have users of its own: Ubuntu's has one with the first number. One of this name stays.
    taken = lock.image.accounts if lock.image else {}
    free = next(number for number in count(1000) if number not in taken.values())
    return User(name=name, uid=taken.get(name, free), home=f"/home/{name}")


def environment(recipe: Recipe, lock: Lock) -> dict[str, str]:
    """All variables of the image: the base's, the venv's, the components', the recipe's own (which win)."""
    env = {"PATH": PATH, "VIRTUAL_ENV": VENV, "LANG": "C.UTF-8"}
    for part in catalog.parts(recipe):
        env |= part.env
    return _on_top(lock.image.env if lock.image else {}, {**env, **recipe.env})


def image_tags(recipe: Recipe, lock: Lock) -> tuple[str, ...]:
    """Name the tags to push under: the recipe's templates filled in, else what the image holds and its lock.

    Raises:
        InputError: a filled template is too long for a tag.

    """
    return _tags(recipe, lock, lock.checksum)


def index_tags(recipe: Recipe, file: LockFile) -> tuple[str, ...]:
    """Name the tags of what joins the platforms' images; each has to be right for every one of them.

    Raises:
        InputError: platforms have different versions of what a tag names.

    """
    made = [_tags(recipe, lock, file.checksum) for lock in file.sections]
    for tags_there in zip(*made, strict=True):
        if len(set(tags_there)) > 1:
            each = ", ".join(
                f"`{tag}` of {name}" for name, tag in zip(file.platforms, tags_there, strict=True)
            )
            raise InputError(
                f"one tag cannot be {each}",
                where=f"{recipe.name}: tags",
                hint="pin the version in full, or write `tags:` with fewer of its parts, as in {torch:2}",
            )
    return made[0]


def version(lock: Lock) -> str:
    """Make a version from what the image holds: `torch2.10.0-cu12.8-py3.13-trixie`."""
    pins = lock.pins
    words = []
    if "torch" in pins:
        words.append(f"torch{pins['torch'].partition('+')[0]}")
    if "cuda" in pins:
        words.append("cu" + ".".join(pins["cuda"].split(".")[:2]))
    if not words:
        words += [f"{name}{pins[name]}" for name in ("openmpi", "mpich") if name in pins]
    return "-".join([*words, f"py{lock.python}", lock.base.partition(":")[2]])


def _tags(recipe: Recipe, lock: Lock, checksum: str) -> tuple[str, ...]:
    digits = checksum[: tags.LOCK_DIGITS]
    if not recipe.tags:
        return version(lock), digits
    values = {**lock.pins, "name": recipe.name, "suite": lock.base.partition(":")[2], "lock": digits}
    made = tuple(dict.fromkeys(tags.fill(template, values) for template in recipe.tags))
    for tag in made:
        if not tags.TAG.fullmatch(tag):
            raise InputError(
                f"`{tag}` is no tag that a registry takes",
                where=f"{recipe.name}: tags",
                hint="at most 128 letters, digits, `.`, `_` and `-`; shorten a version with {name:2}",
            )
    return made


def _on_top(below: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Lay variables over those of the base; lists of folders are joined, each folder once."""
    made = {**{name: value for name, value in below.items() if name not in _OF_THE_USER}, **env}
    for name in _LISTS:
        if name in below and name in env:
            folders = (*env[name].split(":"), *below[name].split(":"))
            made[name] = ":".join(dict.fromkeys(filter(None, folders)))
    return made
