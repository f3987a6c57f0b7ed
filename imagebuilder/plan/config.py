"""Make an image's config (variables, labels, user) and its tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from imagebuilder import catalog
from imagebuilder.catalog import Selection
from imagebuilder.core import labels as label_names
from imagebuilder.core import times
from imagebuilder.core.reference import TAG
from imagebuilder.errors import InputError
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock
from imagebuilder.plan.layer import VENV, Project, User
from imagebuilder.recipe import Recipe, tags

# Lists of folders. The folders of a base from a registry come after the image's own.
_LISTS = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")
# Variables that describe the base's user; the image may have another one.
_OF_THE_USER = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME"})
# Variables that make programs load or run what they name: glibc's loader (ld.so(8)), Python, bash, sh, Perl,
# Node.js, Java, Ruby, git and ssh. LD_LIBRARY_PATH stays: images of CUDA find the driver through it.
_LOADING = re.compile(
    r"LD_(?!LIBRARY_PATH$)\w+|GCONV_PATH|GLIBC_TUNABLES"
    r"|PYTHON(?:PATH|HOME|STARTUP|USERBASE|BREAKPOINT|INSPECT|EXECUTABLE|PYCACHEPREFIX|WARNINGS|PLATLIBDIR)"
    r"|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|PROMPT_COMMAND|PS4"
    r"|PERL5?LIB|PERL5(?:OPT|DB)|NODE_(?:OPTIONS|PATH)|(?:JDK_|_)JAVA_OPTIONS|JAVA_TOOL_OPTIONS|RUBY(?:OPT|LIB)"
    r"|GIT_(?:SSH|SSH_COMMAND|EXEC_PATH|ASKPASS)|SSH_ASKPASS"
)
# The number of the image's user, unless it is root, or the base has that number.
FIRST_UID = 1000
PATH = f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The image's config; mappings are tuples of pairs, sorted by name. `created` is the lock's time."""

    env: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    user: str
    workdir: str
    ports: tuple[int, ...]
    created: str = times.EPOCH

    @property
    def epoch(self) -> int:
        """`created` in seconds since 1970, as SOURCE_DATE_EPOCH has it."""
        return int(times.seconds(self.created))


def config(selection: Selection, lock: Lock, user: User, project: Project) -> Config:
    """Make the config of an image from its recipe, its lock and what is known of the user's own files."""
    recipe = selection.recipe
    training = recipe.checks.own_training
    said = {name: text for name, text in recipe.about.model_dump().items() if text}
    # A suite that is bootstrapped from its archive has a name but no digest: the lock's checksum identifies
    # it.
    known = {
        "title": recipe.name,
        "version": version(selection, lock),
        "created": lock.created,
        "base.name": lock.base,
        **({"revision": project.revision} if project.revision else {}),
        **({"base.name": lock.image.name, "base.digest": lock.image.digest} if lock.image else {}),
        **said,
    }
    labels = {
        **(inherited_labels(lock.image.labels) if lock.image else {}),
        **recipe.labels,
        **{f"{label_names.OCI_IMAGE}{name}": text for name, text in known.items()},
        label_names.LOCK: lock.checksum,
        label_names.RECIPE: recipe.name,
        label_names.SSH_PORT: str(recipe.ssh.port),
        label_names.SSH_USER: user.name,
        **({label_names.PROJECT: " ".join(project.checksums)} if project.checksums else {}),
        **(
            {label_names.PACKAGE: f"{lock.project.name} {project.package}"}
            if lock.project and project.package
            else {}
        ),
        **({label_names.TRAINING: training.model_dump_json(exclude_defaults=True)} if training else {}),
        **({label_names.TESTS: project.tests} if project.tests else {}),
        **({label_names.PROOF: demands} if (demands := recipe.proof.label()) else {}),
        **({label_names.SSH_KEYS: "baked"} if recipe.ssh.keys == "baked" else {}),
        **{f"{label_names.ALLOWED_ENV}{entry.name}": entry.reason for entry in recipe.allow_env},
        **{f"{label_names.PIN}{name}": version for name, version in lock.pins.items()},
        **{
            f"{label_names.PROBE}{name}": component.probe.model_dump_json(exclude_defaults=True)
            for name, component in selection.own.items()
            if component.probe
        },
    }
    return Config(
        env=tuple(sorted(environment(selection, lock).items())),
        labels=tuple(sorted(labels.items())),
        entrypoint=("/usr/bin/tini", "--", "/usr/local/bin/imagebuilder-entrypoint"),
        cmd=recipe.command,
        user="0:0" if user.uid == 0 else f"{user.uid}:0",
        workdir=recipe.workdir or user.home,
        ports=(recipe.ssh.port,),
        created=lock.created,
    )


def user(recipe: Recipe, lock: Lock) -> User:
    """Return the image's user: named by the recipe, with an id that no user of the base has."""
    name = recipe.ssh.user
    if name == "root":
        return User(name="root", uid=0, home="/root")
    # Bases may have users: Ubuntu's has one with id 1000. A user with the recipe's name keeps its id.
    taken = lock.image.accounts if lock.image else {}
    free = next(number for number in count(FIRST_UID) if number not in taken.values())
    return User(name=name, uid=taken.get(name, free), home=f"/home/{name}")


def environment(selection: Selection, lock: Lock) -> dict[str, str]:
    """Return all variables of the image. The recipe's win, then components', the venv's and the base's."""
    below = inherited_env(lock.image.env) if lock.image else {}
    env = {"PATH": PATH, "VIRTUAL_ENV": VENV, "LANG": "C.UTF-8"}
    for part in selection.parts:
        env |= part.env(lock.pins.get(part.component.name, ""))
        # An override may have chosen another version than the base's.
        if (marks := part.component.below) and part.component.name not in selection.recipe.override:
            env |= {name: below[name] for name in marks.keeps if name in below}
    return _on_top(below, {**env, **selection.recipe.env})


def inherited_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a base, except those that look like this tool's own."""
    return {name: text for name, text in labels.items() if not name.lower().startswith(label_names.OWN)}


def inherited_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a base, except those that make programs load or run something."""
    return {name: text for name, text in env.items() if not _LOADING.fullmatch(name)}


def image_tags(selection: Selection, lock: Lock) -> tuple[str, ...]:
    """Return the tags to push: the recipe's filled templates, or the default tags.

    Raises:
        InputError: a filled template is too long for a tag.

    """
    return _tags(selection, lock, lock.checksum)


def index_tags(selection: Selection, file: LockFile) -> tuple[str, ...]:
    """Return the tags of an image index. Each has to be true for the images of all platforms.

    Raises:
        InputError: a tag contains a version that differs between platforms.

    """
    made = [_tags(selection, lock, file.checksum) for lock in file.sections]
    for tags_there in zip(*made, strict=True):
        if len(set(tags_there)) > 1:
            each = ", ".join(
                f"`{tag}` of {name}" for name, tag in zip(file.platforms, tags_there, strict=True)
            )
            raise InputError(
                f"one tag cannot be {each}",
                where=selection.places.of("tags"),
                hint="pin the version in full, or write `tags:` with fewer of its parts, as in {torch:2}",
            )
    return made[0]


def version(selection: Selection, lock: Lock) -> str:
    """Make the image's version from the main pins: `torch2.10.0-cu12.8-py3.13-trixie`."""
    pins = lock.pins
    words = [
        catalog.fill(component.framework.tag, pins[name].partition("+")[0])
        for name, component in selection.components.items()
        if component.framework and name in pins
    ]
    if "cuda" in pins:
        words.append("cu" + ".".join(pins["cuda"].split(".")[:2]))
    if not words:
        words += [f"{name}{pins[name]}" for name in ("openmpi", "mpich") if name in pins]
    return "-".join([*words, f"py{lock.python}", lock.base.partition(":")[2]])


def _tags(selection: Selection, lock: Lock, checksum: str) -> tuple[str, ...]:
    recipe = selection.recipe
    digits = checksum[: tags.LOCK_DIGITS]
    if not recipe.tags:
        return version(selection, lock), digits
    values = {**lock.pins, "name": recipe.name, "suite": lock.base.partition(":")[2], "lock": digits}
    made = tuple(dict.fromkeys(tags.fill(template, values) for template in recipe.tags))
    for tag in made:
        if not TAG.fullmatch(tag):
            raise InputError(
                f"`{tag}` is not a valid tag",
                where=selection.places.of("tags"),
                hint="at most 128 letters, digits, `.`, `_` and `-`; shorten a version with {name:2}",
            )
    return made


def _on_top(below: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Merge variables with those of the base; lists of folders are joined, each folder once."""
    made = {**{name: value for name, value in below.items() if name not in _OF_THE_USER}, **env}
    for name in _LISTS:
        if name in below and name in env:
            folders = (*env[name].split(":"), *below[name].split(":"))
            made[name] = ":".join(dict.fromkeys(filter(None, folders)))
    return made
