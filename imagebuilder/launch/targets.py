"""Read the targets' templates, and fill them for a job. A target is one file of `targets/`.

No value of a job becomes part of a language's text by itself. In shell scripts every `{{ ... }}` is one
quoted word, or several for a list. In YAML it is a number that stands for the value, which is put into the
parsed document.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Annotated, Any, Literal

import jinja2
import yaml
from pydantic import Field

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict
from imagebuilder.core.yamlfile import nearest, printable
from imagebuilder.errors import InputError
from imagebuilder.launch import commands, pods
from imagebuilder.launch.commands import Raw
from imagebuilder.launch.image import LaunchImage
from imagebuilder.launch.job import Job, available, choose_launcher
from imagebuilder.launch.manifest import dump

_FOLDER = resources.files("imagebuilder.launch").joinpath("targets")
_SECTION = re.compile(r"^=== ([a-z0-9.-]+)\n", re.MULTILINE)
# Options that not every target can follow, by the name of the job's field.
OPTIONS = {
    "accelerator": "--accelerator",
    "cpus": "--cpus",
    "deadline": "--deadline",
    "file": "--image-file",
    "host_network": "--host-network",
    "hosts": "--host",
    "hugepages": "--hugepages",
    "memory": "--memory",
    "namespace": "--namespace",
    "node_selector": "--node-selector",
    "rdma": "--rdma",
    "restarts": "--restarts",
    "tolerations": "--toleration",
    "volumes": "--volume",
}


class Header(Strict):
    """The head of a target's file, up to the first line that begins with `===`."""

    summary: Annotated[str, Field(description="What runs the job, in one line.")]
    launchers: Annotated[
        tuple[Literal["framework", "mpirun"], ...],
        Field(description="`framework`: a framework's own, such as torchrun. The first one is the default."),
    ]
    options: Annotated[
        tuple[str, ...],
        Field(description="Fields of a job that not every target has, and this one has."),
    ]
    volumes: Annotated[
        tuple[Literal["pvc", "nfs", "host"], ...], Field(description="Kinds of volumes that it can mount.")
    ] = ()
    variants: Annotated[
        tuple[str, ...], Field(description="Ways to run the image; the first one is the default.")
    ] = ()
    keys: Annotated[
        Literal["", "folder", "secret"],
        Field(description="Where mpirun's ssh keys are expected: a folder beside the files, or a Secret."),
    ] = ""
    network: Annotated[
        Literal["", "host"], Field(description="`host`: nodes always use their host's own network.")
    ] = ""
    local: Annotated[
        bool, Field(description="Whether an image can be used that no registry has, by its id.")
    ] = False
    schemas: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Kind of object, and the schema that it must fit."),
    ]
    checked: Annotated[str, Field(description="What else checks its files in the tests.")]
    run: Annotated[str, Field(description="The command that starts the job, in the folder of its files.")]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target: its name, its header, and the template of each file by the file's name."""

    name: str
    header: Header
    templates: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Script:
    """A file that is not YAML: its name and text."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A YAML file: its name, the comment above it, and its documents."""

    name: str
    comment: str
    documents: tuple[Mapping[str, Any], ...]

    @property
    def text(self) -> str:
        return self.comment + dump(self.documents)


@cache
def names() -> tuple[str, ...]:
    """List the targets: each is one file."""
    found = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".j2") for name in found if name.endswith(".j2")))


@cache
def load(name: str) -> Target:
    """Read one target.

    Raises:
        InputError: there is no such target.

    """
    if name not in names():
        raise InputError(
            f"`{printable(name)}` is not a target" if name else "is missing: it says what runs the job",
            where="--target",
            hint=nearest(name, names()) or f"choose {', '.join(names())}",
        )
    file = f"imagebuilder/launch/targets/{name}.j2"
    text = (
        resources.files("imagebuilder.launch").joinpath("targets", f"{name}.j2").read_text(encoding="utf-8")
    )
    head, *rest = _SECTION.split(text)
    header = yamlfile.validate(yamlfile.parse_own(head.encode(), file), Header)
    return Target(name=name, header=header, templates=tuple(zip(rest[::2], rest[1::2], strict=True)))


def launcher(target: Target, image: LaunchImage, asked: str) -> str:
    """Return the launcher that was asked for; for `auto`, the first of the image's that the target can start.

    Raises:
        InputError: there is none.

    """
    found = available(image)
    possible = [
        name for name in found if ("mpirun" if name == "mpirun" else "framework") in target.header.launchers
    ]
    if asked == "auto" and possible:
        return possible[0]
    return choose_launcher(image, asked)


def require_possible(target: Target, job: Job) -> None:
    """Refuse a job that the target cannot run as asked, instead of leaving something out.

    Raises:
        InputError: names the option.

    """
    header = target.header
    for field, option in OPTIONS.items():
        value = getattr(job, field)
        if value and field not in header.options and not (field == "host_network" and header.network):
            raise InputError(f"the target {target.name} cannot do this", where=option)
    for volume in job.volumes:
        if volume.medium not in header.volumes:
            raise InputError(
                f"the target {target.name} cannot mount `{volume.medium}:`",
                where="--volume",
                hint=f"it can mount {', '.join(header.volumes)}",
            )
    if job.variant not in (header.variants or ("",)):
        raise InputError(
            f"the target {target.name} has no variant `{printable(job.variant)}`",
            where="--variant",
            hint=f"choose {', '.join(header.variants)}" if header.variants else "leave it out",
        )
    kind = "mpirun" if job.uses_mpi else "framework"
    if kind not in header.launchers:
        raise InputError(
            f"the target {target.name} does not start {job.launcher}",
            where="--launcher",
            hint="choose another target, such as jobset",
        )
    if "hosts" in header.options and not job.hosts:
        raise InputError(
            f"the target {target.name} needs the name of each node's host",
            where="--host",
            hint="repeat it: --host gpu0 --host gpu1",
        )
    if not job.image.pullable and not (header.local or job.file):
        raise InputError(
            "is in no registry, so other hosts cannot pull it",
            where=job.image.reference,
            hint="push it, and name it as the registry does",
        )


def fill(target: Target, job: Job) -> tuple[Script | Manifest, ...]:
    """Fill the templates of a target.

    Raises:
        InputError: the target cannot run this job.

    """
    require_possible(target, job)
    found: list[Script | Manifest] = []
    for name, template in target.templates:
        if name.endswith(".yaml"):
            found.append(_manifest(name, template, job))
        else:
            found.append(Script(name=name, text=_render(template, job, _word)))
    return tuple(found)


def _manifest(name: str, template: str, job: Job) -> Manifest:
    values: list[Any] = []

    def stand_in(value: object) -> str:
        if isinstance(value, Raw) or type(value) is int:
            return str(value)
        values.append(value)
        return f"!value {len(values) - 1}"

    text = _render(template, job, stand_in)

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!value", lambda _, node: values[int(node.value)])
    comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("# "))
    if job.gpus:
        driver, gpus = (job.image.needs(of) for of in ("driver", "gpus"))
        comment += (
            f"# The nodes need the driver {driver}, and GPUs of compute capability {gpus}.\n"
            if driver
            else ""
        )
    documents = tuple(document for document in yaml.load_all(text, Loader) if document)
    return Manifest(name=name, comment=comment, documents=documents)


def _render(template: str, job: Job, finalize: Callable[[Any], str]) -> str:
    environment = jinja2.Environment(  # noqa: S701  # it makes no HTML; `finalize` quotes
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "job": job,
        "image": job.image,
        "node_head": partial(commands.node_head, job),
        "node_command": partial(commands.node_command, job),
        "first": partial(commands.first, job),
        "other": partial(commands.other, job),
        "mpirun": partial(commands.mpirun, job),
        "srun_rank": partial(commands.srun_rank, job),
        "raw": Raw,
        "metadata": pods.metadata(job),
        "pod": partial(pods.template, job),
        "pod_words": pods.words,
        "stay": commands.stay,
        "path": dict(job.image.env).get("PATH", ""),
        "refuse": _refuse,
        "dollars": _dollars,
        "words": _word,
        "texts": lambda items: [str(item) for item in items],
        "names": lambda stem: [f"{stem}{number}" for number in range(job.nodes)],
        "mounts": [f"{volume.source}:{volume.path}" for volume in job.volumes if volume.medium == "host"],
    }
    return environment.from_string(template).render()


def _word(value: object) -> str:
    """Quote a value for a shell; a list becomes several words."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, (str, int)):
        return shlex.quote(str(value))
    if isinstance(value, Sequence):
        return " ".join(_word(item) for item in value)
    raise TypeError(f"a {type(value).__name__} has no place in a script")


def _dollars(value: Any) -> Any:
    """Keep Compose from replacing `$NAME`, and Kubernetes `$(NAME)`, in words that are not `Raw`."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _dollars(item) for key, item in value.items()}
    return [_dollars(item) for item in value]


def _refuse(message: str, where: str, hint: str) -> str:
    raise InputError(message, where=where, hint=hint)
