"""The recipe as a model: its keys, their types, and the checksum of what it requests."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from imagebuilder.core import platforms as known_platforms
from imagebuilder.core import yamlfile
from imagebuilder.core.model import Rule, Strict
from imagebuilder.core.reference import parse
from imagebuilder.errors import InputError
from imagebuilder.recipe import runtimes, tags
from imagebuilder.recipe.annotations import About, Text
from imagebuilder.recipe.checks import Checks
from imagebuilder.recipe.compiled import Compile, Compiles
from imagebuilder.recipe.jobsettings import AllowedVariable
from imagebuilder.recipe.project import Copies, OwnPackage, PackageKey, WorkFolder
from imagebuilder.recipe.proof import ProofPolicy

_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(?:=[A-Za-z0-9.+:~-]+)?")
# `packaging` also accepts spaces around a version and a `v` before it: a pin has neither.
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]*")
# A name, extras in brackets, then versions or a marker (PEP 508); only a requirement by URL has an `@`.
_REQUIREMENT = r"\s*[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[^@\]]*\]\s*)?(?:(?:[<>]|[=!~<>]=|\(|;)[^@]*)?"
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PYTHON = re.compile(r"3\.[0-9]{1,2}(?:\.[0-9]{1,2})?")
_SUITE = re.compile(r"(debian|ubuntu):([a-z]+)")
# Releases by their numbers, as people write them, and their suites.
_RELEASES = {
    "debian:12": "debian:bookworm",
    "debian:13": "debian:trixie",
    "ubuntu:22.04": "ubuntu:jammy",
    "ubuntu:24.04": "ubuntu:noble",
}
_DRIVER = re.compile(r"[0-9]{3}(?:\.[0-9]{1,3}){1,2}")
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_RUNTIME = re.compile(rf"(?:{'|'.join(runtimes.NAMES)}) [0-9]{{1,4}}(?:\.[0-9]{{1,4}}){{0,3}}")
_RUNTIME_HINT = f'write it as in "docker 20.10"; known are {", ".join(runtimes.NAMES)}'
_RUNTIMES = (
    "Container runtimes that pull the image, with their oldest versions: `docker 20.10`. `push` warns if one "
    f"of them cannot read the layers. Known are {', '.join(f'`{name}`' for name in runtimes.NAMES)}."
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_PATH = 1_000
# The first port on which users other than root may listen.
FIRST_FREE_PORT = 1024
# Keys that change nothing in a lock.
_NOT_RESOLVED = (
    *("about", "tags", "hosts", "platforms", "not_secret", "copies", "workdir", "command"),
    *("checks", "proof"),
    *("allow_env", "compression", "slim"),
)


def _must_match(pattern: re.Pattern[str], what: str, hint: str) -> Rule:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise yamlfile.Invalid(f"`{yamlfile.printable(value)}` is not {what}", hint)
        return value

    return Rule(check, pattern.pattern)


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        better = re.sub(r"[^a-z0-9]+", "-", value[:_LONGEST_PATH].lower()).strip("-")
        written = f": `{better}`" if better else ""
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not a name",
            f"use lower-case letters, digits and single dashes{written}",
        )
    return value


def _is_version(value: str) -> bool:
    try:
        Version(value)
    except InvalidVersion:
        return False
    return bool(_VERSION.fullmatch(value))


def _pin(value: str) -> str:
    if not _is_version(value):
        bare = re.sub(r"^\s*(?:[=<>~!]*|v)\s*|(?:\.\*)?\s*$", "", value)
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not a version",
            f'write "{bare}": a pin is one version or the beginning of one, not a range'
            if _is_version(bare)
            else 'give digits and dots, as in "12.8"; `imagebuilder update` moves pins to newer versions',
        )
    return value


def requirement_problem(value: str) -> tuple[str, str] | None:
    """Return message and hint about a text that is not a requirement on a package of an index, else None."""
    try:
        parsed = Requirement(value)
    except InvalidRequirement:
        return f"`{yamlfile.printable(value)}` is not a requirement", _instead_of_requirement(value.strip())
    if parsed.url:
        hint = (
            "give a version instead: locks name files by checksum, never by URL (put a wheel of your own "
            "into a folder that `wheel_folders:` in a file for --site names)"
        )
        return f"`{parsed.name}` is requested by URL", hint
    return None


def _requirement(value: str) -> str:
    if problem := requirement_problem(value):
        raise yamlfile.Invalid(*problem)
    return value


def _instead_of_requirement(value: str) -> str:
    """Say how to write what pip takes on its command line, but a list of requirements does not."""
    if file := re.fullmatch(r"(?:-r|--requirement)[ =](\S+)", value):
        return f'name the file under another key: `requirements: ["{yamlfile.printable(file[1])}"]`'
    if value.startswith("-"):
        return "options of pip do not work here; `extra_indexes:` in a file for --site names another index"
    if value.startswith((".", "/", "git+", "http:", "https:")):
        return "`project:` installs a package of your own; files are named by checksum, never by path or URL"
    if equal := re.fullmatch(r"([A-Za-z0-9._-]+)\s*=\s*([0-9][^=]*)", value):
        return f'write two `=`: "{equal[1]}=={yamlfile.printable(equal[2])}"'
    return 'write it as in "mpi4py==4.1.1"'


def kind_of_file(path: str) -> str:
    """Tell the format of a requirement file by its name, as the format's usual name; "" for any other."""
    name = path.rpartition("/")[2]
    if name in {"pyproject.toml", "uv.lock"}:
        return name
    if re.fullmatch(r"pylock(?:\.[^.]+)?\.toml", name):  # PEP 751, "File Name"
        return "pylock.toml"
    return "requirements.txt" if name.endswith((".txt", ".in")) else ""


def _requirement_path(value: str) -> str:
    shown = yamlfile.printable(value)
    if value.startswith(("/", "~")) or "\0" in value or not value.isprintable() or len(value) > _LONGEST_PATH:
        raise yamlfile.Invalid(
            f"`{shown}` is not a relative path",
            'write it relative to the recipe\'s folder: "../pyproject.toml"',
        )
    if not kind_of_file(value):
        raise yamlfile.Invalid(
            f"`{shown}` is not named like a requirement file",
            "requirements.txt (or another NAME.txt, NAME.in), pyproject.toml, uv.lock or pylock.toml; "
            "other tools can export one of these; a package itself goes under `pip:`",
        )
    return value


def _base(value: str) -> str:
    if not _SUITE.fullmatch(value):
        shown = yamlfile.printable(value)
        if release := _RELEASES.get(value):
            hint = f'write "{release}"; or, for the image of that name, {{image: "{shown}"}}'
        elif {"/", "@"} & set(value) or re.search(r":[0-9]", value):
            hint = f'for an image from a registry write {{image: "{shown}"}}'
        else:
            hint = 'write a distribution and its suite, as in "debian:trixie" or "ubuntu:noble"'
        raise yamlfile.Invalid(f"`{shown}` is not a base", hint)
    return value


def _image(value: str) -> str:

    try:
        reference = parse(value)
    except InputError as error:
        problem = error.problems[0]
        raise yamlfile.Invalid(problem.message, problem.hint) from None
    if not (reference.tag or reference.digest):
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` names a repository, not an image",
            f"add a tag: `{yamlfile.printable(value)}:TAG`",
        )
    return value


def _platform(value: str) -> str:
    if value not in known_platforms.KNOWN:
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not a platform that images are made for",
            known_platforms.meant(value),
        )
    return value


def _sorted(values: tuple[str, ...]) -> tuple[str, ...]:
    """Sort platforms: their order in a recipe has no meaning."""
    if not values:
        raise yamlfile.Invalid("lists no platform", f"leave the key out for {known_platforms.DEFAULT}")
    return tuple(sorted(values))


Name = Annotated[str, Rule(_name, _NAME.pattern)]
Pin = Annotated[str, Rule(_pin, _VERSION.pattern)]
Package = Annotated[
    str, _must_match(_PACKAGE, "a Debian package", 'write its name, or name=version, as in "rdma-core"')
]
TagTemplate = Annotated[str, AfterValidator(tags.check)]


class Ssh(Strict):
    """How nodes reach each other. Port 2222 and another user than root suit clusters that refuse root."""

    # As `reading` does: under another user than root, sshd needs a port that is free to all.
    model_config = ConfigDict(
        json_schema_extra={
            "if": {"required": ["user"], "properties": {"user": {"not": {"const": "root"}}}},
            "then": {"required": ["port"], "properties": {"port": {"minimum": FIRST_FREE_PORT}}},
        }
    )

    port: Annotated[int, Field(ge=1, le=65535, description="Port that sshd listens on.")] = 22
    user: Annotated[
        str,
        _must_match(_USER, "a user name", "use lower-case letters, digits, `-` and `_`"),
        Field(description="User that the container runs as and that nodes log in as."),
    ] = "root"
    keys: Annotated[
        Literal["mounted", "baked"],
        Field(
            description="`mounted`: a job brings its keys. `baked`: one key is made at the build and is in a "
            "layer, for closed networks; whoever can pull the image can log in to its nodes."
        ),
    ] = "mounted"


class Hosts(Strict):
    """Where the image will run. `check` then compares these hosts with what CUDA requires."""

    driver: Annotated[
        str,
        _must_match(_DRIVER, "a driver's version", 'write it as `nvidia-smi` shows it, as in "570.86"'),
        Field(description="The oldest NVIDIA driver among the hosts, quoted."),
    ] = ""
    gpus: Annotated[
        tuple[
            Annotated[
                str, _must_match(_CAPABILITY, "a compute capability", 'write it as in "9.0" (an H100)')
            ],
            ...,
        ],
        Field(description="Compute capabilities of the hosts' GPUs, quoted: `9.0` is an H100."),
    ] = ()
    runtimes: Annotated[
        tuple[
            Annotated[str, _must_match(_RUNTIME, "a container runtime with its version", _RUNTIME_HINT)], ...
        ],
        Field(max_length=100, description=_RUNTIMES),
    ] = ()


class NotSecret(Strict):
    """A reviewed file: the search for secrets before a push reports it, but it holds none."""

    path: Annotated[
        str, Field(min_length=1, max_length=4096, description="The file's path, as `push` prints it.")
    ]
    sha256: Annotated[
        str,
        _must_match(_SHA256, "a sha256", "64 hexadecimal digits, as the finding prints them"),
        Field(description="Checksum of the whole file: if the content changes, it is reported again."),
    ]
    reason: Annotated[
        str,
        Field(
            min_length=8, max_length=500, description="Why it is not secret, for those who pull the image."
        ),
    ]


class RegistryImage(Strict):
    """A base from a registry. Its layers stay unchanged, and the recipe's layers come on top."""

    image: Annotated[
        str,
        AfterValidator(_image),
        Field(
            description="Name and tag, as `docker pull` takes them: `nvidia/cuda:12.8.1-devel-ubuntu22.04`; "
            "or with the digest: `name:tag@sha256:...`."
        ),
    ]
    digest: Annotated[
        str,
        _must_match(_DIGEST, "a digest", "a digest is `sha256:` and 64 hexadecimal digits"),
        Field(
            description="Digest of its manifest, or of its list of platforms. "
            "Without it, `lock` looks the tag up and records the digest."
        ),
    ] = ""

    @model_validator(mode="after")
    def _one_digest(self) -> RegistryImage:
        inside = self.image.partition("@")[2]
        if self.digest and inside not in {"", self.digest}:
            raise yamlfile.Invalid("gives two different digests", "keep one of the two")
        return self

    @property
    def name(self) -> str:
        """The name without a digest."""
        return self.image.partition("@")[0]

    @property
    def pinned(self) -> str:
        """The digest that the recipe gives, in either place; "" if it leaves the choice to the lock."""
        return self.digest or self.image.partition("@")[2]


def _kind_of_base(value: object) -> str:
    return "<image>" if isinstance(value, (dict, RegistryImage)) else "<suite>"


RequirementPath = Annotated[
    str,
    Rule(
        _requirement_path,
        r"(?![/~])(?:.*/)?(?:pyproject\.toml|uv\.lock|pylock(?:\.[^./]+)?\.toml|[^/]*\.(?:txt|in))",
    ),
]


class RequirementFile(Strict):
    """A file that says what a project requires, with the extras and groups of it that the image needs."""

    file: Annotated[RequirementPath, Field(description="Its path from the recipe's folder.")]
    extras: Annotated[tuple[str, ...], Field(description="Names of the project's extras.")] = ()
    groups: Annotated[tuple[str, ...], Field(description="Names of its dependency groups.")] = ()

    @model_validator(mode="after")
    def _has_extras(self) -> RequirementFile:
        if (self.extras or self.groups) and kind_of_file(self.file) == "requirements.txt":
            raise yamlfile.Invalid(
                f"`{yamlfile.printable(self.file)}` has no extras or groups",
                "name it alone; pyproject.toml, uv.lock and pylock.toml can have them",
            )
        return self


def _kind_of_entry(value: object) -> str:
    return "<file>" if isinstance(value, (dict, RequirementFile)) else "<path>"


def _each_once(
    values: tuple[str | RequirementFile, ...],
) -> tuple[str | RequirementFile, ...]:
    files = [value if isinstance(value, str) else value.file for value in values]
    for file in files:
        if files.count(file) > 1:
            raise yamlfile.Invalid(
                f"`{yamlfile.printable(file)}` is listed twice", "keep one, with all extras and groups"
            )
    return values


class Recipe(Strict):
    """One image: a base, a Python, pinned components, and other packages and settings."""

    name: Annotated[Name, Field(description="Name of the image.", examples=["my-training"])]
    base: Annotated[
        Annotated[str, Rule(_base, _SUITE.pattern), Tag("<suite>")]
        | Annotated[RegistryImage, Tag("<image>")],
        Discriminator(_kind_of_base),
        Field(
            description="Distribution and suite, bootstrapped from its archive: `debian:` bookworm, trixie "
            "or sid; `ubuntu:` jammy or noble. Or an image from a registry that is built on one of these: "
            "`{image: ..., digest: ...}`.",
            examples=["debian:trixie"],
        ),
    ]
    python: Annotated[
        str,
        _must_match(_PYTHON, "a Python version", 'write it as in "3.13"'),
        Field(description="Python of the image: major.minor, quoted.", examples=["3.13"]),
    ]
    platforms: Annotated[
        tuple[Annotated[str, Rule(_platform, "|".join(known_platforms.KNOWN))], ...],
        AfterValidator(_sorted),
        Field(
            description="Platforms to build for: `linux/amd64`, `linux/arm64` or both. "
            "For several, an index lists the image of each.",
            json_schema_extra={"minItems": 1},
        ),
    ] = (known_platforms.DEFAULT,)
    pins: Annotated[
        dict[str, Pin],
        Field(
            default_factory=dict,
            description="Components and versions, quoted; a prefix (`9.10`) leaves the rest to the lock.",
        ),
    ]
    override: Annotated[
        tuple[str, ...],
        Field(
            description="Pins to force although the metadata of other packages forbids them; "
            "the smoke test has to show that they work.",
        ),
    ] = ()
    build: Annotated[
        tuple[str, ...],
        Field(description="Pins to compile from source instead of taking them as packages."),
    ] = ()
    devel: Annotated[
        bool,
        Field(description="Whether to include nvcc, the headers of CUDA's libraries and their link names."),
    ] = False
    slim: Annotated[
        bool,
        Field(
            description="Whether to leave out what nobody misses when a job runs: documentation, the ROCm "
            "and LLVM that UCX brings, static libraries and tests in wheels. Not with `devel: true`."
        ),
    ] = False
    fabric: Annotated[
        tuple[Literal["ib", "efa"], ...],
        Field(
            description="Networks of the hosts beside Ethernet: `ib` (InfiniBand and RoCE) and `efa` (AWS). "
            "Brings what NCCL and MPI need for them."
        ),
    ] = ()
    hosts: Annotated[Hosts, Field(description="Where the image will run.")] = Hosts()
    providers: Annotated[
        dict[str, Literal["apt", "wheel"]],
        Field(
            default_factory=dict,
            description="For a component with several providers, the one to use: `wheel`, or `apt` for "
            "NVIDIA's packages on a base from a registry. Without it: wheels if another pinned component "
            "loads them, else the base's packages.",
        ),
    ]
    ssh: Annotated[Ssh, Field(default_factory=Ssh, description="The ssh contract of the image.")]
    apt: Annotated[
        tuple[Package, ...], Field(description="More Debian packages: name, or name=version.")
    ] = ()
    pip: Annotated[
        tuple[Annotated[str, Rule(_requirement, _REQUIREMENT)], ...],
        Field(description="More Python packages, as requirements."),
    ] = ()
    compiled: Annotated[
        Compiles,
        Field(
            alias="compile",
            max_length=20,
            description="Packages of `pip:` or `pins:` that the build compiles from their source "
            "distributions, against the image's own torch, CUDA, MPI and Python.",
        ),
    ] = ()
    requirements: Annotated[
        tuple[
            Annotated[
                Annotated[RequirementPath, Tag("<path>")] | Annotated[RequirementFile, Tag("<file>")],
                Discriminator(_kind_of_entry),
            ],
            ...,
        ],
        AfterValidator(_each_once),
        Field(
            max_length=50,
            description="Files that say what a project requires, by path from the recipe's folder: "
            "requirements.txt, pyproject.toml, uv.lock or pylock.toml. Or `{file: ..., extras: [...], "
            "groups: [...]}`. The versions and hashes in them hold.",
        ),
    ] = ()
    env: Annotated[
        dict[str, Text],
        Field(default_factory=dict, description="Variables of every process in the image. Never a secret."),
    ]
    allow_env: Annotated[
        tuple[AllowedVariable, ...],
        Field(
            max_length=50,
            description="Variables that belong to a job or a host (`NCCL_*`, `MASTER_ADDR`, ...) and that "
            "this image sets on purpose, in `env:` or by its base: `{name: .., reason: ..}`. Without this "
            "entry, `check` and the smoke test refuse them.",
        ),
    ] = ()
    copies: Annotated[
        Copies,
        Field(
            alias="copy",
            description="Folders of your own project, which become the last layers of the image. "
            "The lock says nothing of their content.",
        ),
    ] = ()
    project: Annotated[
        PackageKey | None,
        Field(
            description="A package of your own, built into a wheel that becomes a layer: the folder with its "
            "pyproject.toml, or `{from: .., extras: [train]}`."
        ),
    ] = None
    workdir: Annotated[
        WorkFolder | None,
        Field(description="Folder in which the image's commands start. Without it: the user's home."),
    ] = None
    command: Annotated[
        tuple[Text, ...],
        Field(
            description="What `docker run` starts where no other command is given: `[python, train.py]`. "
            "Without it: sshd, as a node of a job."
        ),
    ] = ()
    checks: Annotated[Checks, Field(description="What the smoke test runs of yours.")] = Checks()
    proof: Annotated[ProofPolicy, Field(description="What counts as a proof of this image.")] = ProofPolicy()
    not_secret: Annotated[
        tuple[NotSecret, ...],
        Field(
            description="Reviewed files that the search for secrets reports although they hold none. "
            "`push` prints the lines to add here."
        ),
    ] = ()
    labels: Annotated[
        dict[str, Text], Field(default_factory=dict, description="More OCI labels of the image.")
    ]
    about: Annotated[
        About, Field(default_factory=About, description="The image's title, licences, sources and so on.")
    ]
    tags: Annotated[
        tuple[TagTemplate, ...],
        Field(
            description="Tags to push, filled with the versions in the lock: `torch{torch}-cu{cuda:2}`. "
            "Fields: the pins, `python`, `suite`, `name`, `lock`; `:2` takes the first two parts. "
            "Without it there are two: one made of the pins, with the recipe's name in front if the "
            "repository is named differently, and the first twelve digits of the lock's checksum.",
        ),
    ] = ()

    compression: Annotated[
        Literal["gzip", "zstd"],
        Field(
            description="How `push` packs the layers. `gzip` costs nothing, because wheels bring it, and "
            "every runtime reads it. `zstd` is smaller, pulls faster, and is packed once, at the push; old "
            "runtimes do not read it."
        ),
    ] = "gzip"

    @model_validator(mode="after")
    def _package_once(self) -> Recipe:
        files = {posixpath.normpath(entry.file) for entry in self.requirement_files[: len(self.requirements)]}
        if self.package and self.package.file in files:
            raise yamlfile.Invalid(
                f"`{self.package.file}` is under `requirements:`, and is read for `project:` in any case",
                "remove it from `requirements:`; its extras and groups go under `project:`",
            )
        return self

    @property
    def compiles(self) -> dict[str, Compile]:
        """The entries of `compile:` by the names of their packages."""
        return {entry.name: entry for entry in self.compiled}

    @property
    def distribution(self) -> str:
        """The base's distribution; "" for an image from a registry, where only the lock knows it."""
        return self.base.partition(":")[0] if isinstance(self.base, str) else ""

    @property
    def suite(self) -> str:
        return self.base.partition(":")[2] if isinstance(self.base, str) else ""

    @property
    def image(self) -> RegistryImage | None:
        """The base if it comes from a registry, else None."""
        return None if isinstance(self.base, str) else self.base

    @property
    def requirement_files(self) -> tuple[RequirementFile, ...]:
        """The entries of `requirements:`, each with its extras and groups; last the package's own file."""
        package = self.package
        return (
            *(
                RequirementFile(file=entry) if isinstance(entry, str) else entry
                for entry in self.requirements
            ),
            *(
                [RequirementFile(file=package.file, extras=package.extras, groups=package.groups)]
                if package
                else []
            ),
        )

    @property
    def python_minor(self) -> str:
        """Python's major.minor, as in file paths and wheel tags."""
        return ".".join(self.python.split(".")[:2])

    @property
    def package(self) -> OwnPackage | None:
        """The user's own package, however the recipe writes it."""
        return (
            OwnPackage.model_validate({"from": self.project})
            if isinstance(self.project, str)
            else self.project
        )

    def checksum(self) -> str:
        """Return the hex sha256 of what the recipe requests. A lock with another checksum is stale.

        Comments, the order of keys and quoting do not count. Neither do keys that no resolver reads: names,
        tags, hosts, where ssh keys come from, reviewed files, what a
        proof is, the user's own files and how they are started. Nor do the platforms: the lock has a section
        for each, and adding one leaves the others valid.
        """
        asked = self.model_dump(
            mode="json",
            exclude={
                **dict.fromkeys(_NOT_RESOLVED, True),
                "ssh": {"keys"},
            },
        )
        # Keys that most recipes do not use count only if they are used.
        for key in ("build", "devel", "fabric", "providers", "requirements", "project", "compiled"):
            if not asked[key]:
                del asked[key]
        canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def is_name(text: str) -> bool:
    """Return whether a text is a valid name of a recipe."""
    return _NAME.fullmatch(text) is not None
