"""One job: what to run, on how many nodes, and what each node gets. Every value is checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.launch.image import LaunchImage

# A DNS label that may begin the name of a Service, short enough for the endings that operators append.
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")
_DNS = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:]{2,39}")
_QUANTITY = re.compile(r"[1-9][0-9]{0,8}(?:Mi|Gi|Ti)")
_UNITS = {"Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_ACCELERATOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_CPUS = re.compile(r"[1-9][0-9]{0,3}")
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_KEY = rf"(?P<key>(?:{_DNS}/)?{_WORD})"
_RESOURCE = re.compile(rf"(?P<name>{_DNS}/{_WORD})(?:=(?P<count>[1-9][0-9]?))?")
_HUGEPAGES = re.compile(r"(?P<page>2Mi|1Gi|64Ki|32Mi|512Mi|16Gi)=(?P<size>[1-9][0-9]{0,8}(?:Mi|Gi|Ti))")
_LABEL = re.compile(rf"{_KEY}=(?P<value>(?:{_WORD})?)")
_TOLERATION = re.compile(
    rf"{_KEY}(?:=(?P<value>(?:{_WORD})?))?(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)
_ENV = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]{0,254})=(?P<value>.*)", re.DOTALL)
_PERIOD = re.compile(r"(?P<count>[1-9][0-9]{0,7})(?P<unit>[smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
# Shells, YAML and apptainer's --bind give these characters a meaning of their own.
_PATH = re.compile(r"/[A-Za-z0-9._/@+-]{0,1023}")
_MOST_WORDS = 10_000
# Linux refuses a command line with a word of 128 KiB, and a Kubernetes object may have 1 MiB.
_LONGEST_WORD = 120_000
_MOST_BYTES = 400_000
_MOST_ENTRIES = 200

Medium = Literal["pvc", "nfs", "host"]


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A shared folder: `source` is a claim's name, a folder of a host, or a folder that `server` exports."""

    medium: Medium
    source: str
    path: str
    server: str = ""


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """A taint that the job's pods tolerate; without a value any, without an effect all."""

    key: str
    value: str | None
    effect: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job on several nodes, each of which runs one container of the image.

    Attributes:
        name: also the beginning of the names of its objects.
        image: what the nodes run.
        nodes, ranks: number of nodes, and of processes on each.
        launcher: the program that starts the ranks: torchrun, mpirun.
        command: what each rank runs; its words reach the rank unchanged.
        gpus: of each node.
        accelerator: the kind of GPU, as the target names it.
        shm: size of each node's /dev/shm.
        port: where the ranks meet.
        hosts: names of the nodes, for targets that have no scheduler.
        variant: how Slurm runs the image.
        file: the image as a file on every node, for Slurm.
        namespace: of the objects on Kubernetes; empty for the user's own.
        host_network: use the nodes' own network.
        rdma, rdma_count: the resource that stands for an RDMA device, and how many of them.
        hugepages: size of a page, and how much of them.
        cpus, memory: of each node; empty for no request.
        deadline: seconds after which the job is ended; 0 for none.
        restarts: how often the scheduler starts the job again.

    """

    name: str
    image: LaunchImage
    nodes: int
    ranks: int
    launcher: str
    command: tuple[str, ...]
    gpus: int = 0
    shm: str = "8Gi"
    port: int = 29500
    hosts: tuple[str, ...] = ()
    variant: str = ""
    file: str = ""
    namespace: str = ""
    host_network: bool = False
    rdma: str = ""
    rdma_count: int = 1
    hugepages: tuple[str, str] | None = None
    accelerator: str = ""
    cpus: str = ""
    memory: str = ""
    volumes: tuple[Volume, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    deadline: int = 0
    restarts: int = 0
    env: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that no target can have.

        Raises:
            InputError: names the option.

        """
        if not _NAME.fullmatch(self.name):
            raise InputError(
                f"`{printable(self.name)}` is not a job's name",
                where="--name",
                hint="up to 40 lower-case letters, digits and `-`, beginning with a letter",
            )
        if self.namespace and not _NAME.fullmatch(self.namespace):
            raise InputError(f"`{printable(self.namespace)}` is not a namespace", where="--namespace")
        self._check_numbers()
        self._check_texts()
        self._check_hosts()
        _check_command(self.command)
        if self.launcher not in available(self.image):
            raise _no_launcher(self.image, self.launcher)

    def _check_numbers(self) -> None:
        for option, value, least, most in (
            ("--nodes", self.nodes, 1, 1024),
            ("--nproc-per-node", self.ranks, 1, 256),
            ("--gpus", self.gpus, 0, 64),
            ("--port", self.port, 1024, 65535),
            ("--restarts", self.restarts, 0, 100),
        ):
            if not least <= value <= most:
                raise InputError(f"{value}: choose {least} to {most}", where=option)
        if self.port == self.ssh_port:
            raise InputError(
                f"{self.port} is the port of the nodes' sshd",
                where="--port",
                hint="choose another one for the ranks, such as 29500",
            )

    def _check_texts(self) -> None:
        for option, text, pattern, hint in (
            ("--shm", self.shm, _QUANTITY, "write it as in 8Gi"),
            ("--memory", self.memory or "1Gi", _QUANTITY, "write it as in 64Gi"),
            ("--accelerator", self.accelerator or "A", _ACCELERATOR, "write it as in H100 or A100-80GB"),
            ("--cpus", self.cpus or "1", _CPUS, "write a whole number"),
            ("--image-file", self.file or "/", _PATH, "give an absolute path without spaces"),
        ):
            if not pattern.fullmatch(text):
                raise InputError(f"`{printable(text)}` is not understood", where=option, hint=hint)

    def _check_hosts(self) -> None:
        if self.hosts and len(self.hosts) != self.nodes:
            raise InputError(f"{len(self.hosts)} hosts are named for {self.nodes} nodes", where="--host")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise InputError(f"`{printable(host)}` is not a host's name or address", where="--host")
        if len(set(self.hosts)) != len(self.hosts):
            raise InputError("a host is named twice", where="--host")

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks

    @property
    def uses_mpi(self) -> bool:
        return self.launcher == "mpirun"

    @property
    def ssh_port(self) -> int:
        """Where the nodes' sshd listens. On the hosts' own network, port 22 may be the host's own sshd's."""
        return 2222 if self.host_network and self.image.port < 1024 else self.image.port

    @property
    def shm_bytes(self) -> int:
        return int(self.shm[:-2]) * _UNITS[self.shm[-2:]]

    @property
    def memory_bytes(self) -> int:
        return int(self.memory[:-2]) * _UNITS[self.memory[-2:]]

    @property
    def keys_name(self) -> str:
        """The name of the Secret with the job's ssh keys."""
        return f"{self.name}-ssh"


def available(image: LaunchImage) -> tuple[str, ...]:
    """Return the programs of an image that can start ranks, the preferred one first."""
    return (*image.launchers, *(("mpirun",) if image.mpi else ()))


def choose_launcher(image: LaunchImage, asked: str) -> str:
    """Return the launcher that was asked for, or the preferred one for `auto`.

    Raises:
        InputError: the image has none, or not that one.

    """
    found = available(image)
    if asked == "auto" and found:
        return found[0]
    if asked in found:
        return asked
    raise _no_launcher(image, "" if asked == "auto" else asked)


def _no_launcher(image: LaunchImage, asked: str) -> InputError:
    found = available(image)
    if not found:
        return InputError(
            "has nothing that starts ranks: it pins neither a framework with a launcher nor an MPI",
            where=image.reference,
            hint="pin torch, openmpi or mpich in its recipe",
        )
    return InputError(
        f"`{printable(asked)}` is not in the image: choose {' or '.join(found)}", where="--launcher"
    )


def _check_command(command: Sequence[str]) -> None:
    if not command or not command[0]:
        raise InputError(
            "no command is given, and the image has none of its own",
            where="imagebuilder launch",
            hint="write it after `--`, as in: -- python train.py",
        )
    try:
        size = sum(len(word.encode()) + 1 for word in command)
    except UnicodeEncodeError:
        raise InputError("the command is not UTF-8", where="imagebuilder launch") from None
    longest = max(len(word.encode()) for word in command)
    if len(command) > _MOST_WORDS or longest > _LONGEST_WORD or size > _MOST_BYTES:
        raise InputError(
            "the command is too long", where="imagebuilder launch", hint="put it into a script in the image"
        )
    if any("\0" in word for word in command):
        raise InputError("the command holds a NUL", where="imagebuilder launch")


def read_volumes(texts: Sequence[str]) -> tuple[Volume, ...]:
    """Read `--volume` options: `pvc:CLAIM:/path`, `nfs:SERVER:/exported:/path`, `host:/folder:/path`.

    Raises:
        InputError: one is wrong.

    """
    found = tuple(_volume(text) for text in _bounded(texts, "--volume"))
    if len({volume.path for volume in found}) != len(found):
        raise InputError("two volumes have the same path", where="--volume")
    return found


def _volume(text: str) -> Volume:
    match text.split(":"):
        case ["pvc", source, path] if re.fullmatch(_DNS, source) and len(source) < 254 and _mountable(path):
            return Volume(medium="pvc", source=source, path=path)
        case ["host", source, path] if _PATH.fullmatch(source) and _mountable(path):
            return Volume(medium="host", source=source, path=path)
        case ["nfs", server, source, path] if (
            _HOST.fullmatch(server) and _PATH.fullmatch(source) and _mountable(path)
        ):
            return Volume(medium="nfs", server=server, source=source, path=path)
    raise InputError(
        f"`{printable(text)}` is not a volume",
        where="--volume",
        hint="write pvc:CLAIM:/path, nfs:SERVER:/exported:/path or host:/folder:/path",
    )


def _mountable(path: str) -> bool:
    return bool(_PATH.fullmatch(path)) and ".." not in path.split("/") and path.strip("/") not in _KEPT


# What the image itself or the job mounts there.
_KEPT = frozenset({"", "dev", "proc", "sys", "dev/shm", "dev/hugepages", "run/secrets/imagebuilder"})


def read_rdma(text: str) -> tuple[str, int]:
    """Read `--rdma`: a resource's name, and `=COUNT` for more than one.

    Raises:
        InputError: it is wrong.

    """
    if not text:
        return "", 1
    found = _RESOURCE.fullmatch(text)
    if not found or len(found["name"]) > 253:
        raise InputError(
            f"`{printable(text)}` is not a resource", where="--rdma", hint="write it as in rdma/hca_shared=1"
        )
    return found["name"], int(found["count"] or 1)


def read_hugepages(text: str) -> tuple[str, str] | None:
    """Read `--hugepages`: the size of a page and of all, `2Mi=1Gi`.

    Raises:
        InputError: it is wrong.

    """
    found = _HUGEPAGES.fullmatch(text)
    if text and not found:
        raise InputError(
            f"`{printable(text)}` is not understood", where="--hugepages", hint="write it as in 2Mi=1Gi"
        )
    return (found["page"], found["size"]) if found else None


def read_pairs(texts: Sequence[str], option: str) -> tuple[tuple[str, str], ...]:
    """Read options `KEY=VALUE` of labels.

    Raises:
        InputError: one is wrong, or a key is given twice.

    """
    found = []
    for text in _bounded(texts, option):
        match = _LABEL.fullmatch(text)
        if not match:
            raise InputError(f"`{printable(text)}` is not a label", where=option, hint="write KEY=VALUE")
        found.append((match["key"], match["value"]))
    return _unique(found, option)


def read_tolerations(texts: Sequence[str]) -> tuple[Toleration, ...]:
    """Read options `KEY[=VALUE][:EFFECT]`, as `kubectl taint` writes them.

    Raises:
        InputError: one is wrong.

    """
    found = []
    for text in _bounded(texts, "--toleration"):
        match = _TOLERATION.fullmatch(text)
        if not match:
            raise InputError(
                f"`{printable(text)}` is not a taint",
                where="--toleration",
                hint="write KEY, KEY=VALUE or KEY=VALUE:NoSchedule",
            )
        found.append(Toleration(key=match["key"], value=match["value"], effect=match["effect"] or ""))
    return tuple(found)


def read_env(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Read options `NAME=VALUE`.

    Raises:
        InputError: one is wrong, or a name is given twice.

    """
    found = []
    for text in _bounded(texts, "--env"):
        match = _ENV.fullmatch(text)
        if not match or len(text) > _LONGEST_WORD or "\0" in text or _undecodable(text):
            raise InputError(f"`{printable(text)}` is not a variable", where="--env", hint="write NAME=VALUE")
        found.append((match["name"], match["value"]))
    return _unique(found, "--env")


def read_period(text: str) -> int:
    """Read `--deadline`: seconds, or a number with `s`, `m`, `h` or `d`; 0 for none.

    Raises:
        InputError: it is wrong.

    """
    if not text:
        return 0
    found = _PERIOD.fullmatch(text)
    seconds = int(found["count"]) * _SECONDS[found["unit"]] if found else 0
    if not 1 <= seconds <= 365 * 86400:
        raise InputError(
            f"`{printable(text)}` is not a time of at most a year",
            where="--deadline",
            hint="write it as in 90m or 2d",
        )
    return seconds


def name_from(recipe: str) -> str:
    """Make a job's name from a recipe's: `cuda12-torch`."""
    words = re.sub(r"[^a-z0-9]+", "-", recipe.lower()).strip("-")[:40].strip("-")
    return words if _NAME.fullmatch(words) else "job"


def _bounded(texts: Sequence[str], option: str) -> Sequence[str]:
    if len(texts) > _MOST_ENTRIES:
        raise InputError(f"is given more than {_MOST_ENTRIES} times", where=option)
    return texts


def _unique(pairs: Sequence[tuple[str, str]], option: str) -> tuple[tuple[str, str], ...]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"`{name}` is given twice", where=option)
    return tuple(pairs)


def _undecodable(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
