"""What is tested and how: the image with its pins, and the options of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal, get_args

from imagebuilder import catalog
from imagebuilder.core import labels as label_names
from imagebuilder.errors import InputError

ModeChoice = Literal["auto", "cpu", "one-gpu-shared", "multi-gpu"]
RuntimeChoice = Literal["auto", "docker", "podman", "process"]
TransportChoice = Literal["any", "socket", "ib", "ofi"]
Workload = Literal["digits", "resnet"]


GIB = 1 << 30
# Components that bring an `mpirun`.
_MPI = ("openmpi", "mpich")


@dataclass(frozen=True, kw_only=True)
class SmokeTarget:
    """The image under test.

    Attributes:
        reference: what the engine knows the image by: a name, a digest or an id.
        digest: the manifest's, which the report vouches for; empty where nothing says it.
        config: digest of the image's config; an engine without containerd's store names images by it.
        recipe: name of the recipe.
        lock: the lock's checksum, hex sha256.
        pins: component and full version, sorted.
        ssh_port, ssh_user: where sshd listens, and as whom nodes log in.
        baked_keys: the image has an ssh key in a layer, and needs none of a job.

    """

    reference: str
    digest: str = ""
    config: str = ""
    recipe: str
    lock: str
    pins: tuple[tuple[str, str], ...]
    ssh_port: int = 22
    ssh_user: str = "root"
    baked_keys: bool = False

    def pin(self, name: str) -> str:
        """Give a component's version; empty where it is not pinned."""
        return dict(self.pins).get(name, "")

    @property
    def mpi(self) -> str:
        """Name the component that the image's `mpirun` is of; empty where none is pinned."""
        return next((name for name in _MPI if self.pin(name)), "")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What an image promises by its pins, and where it is tested: which checks have to pass follows from it.

    Attributes:
        runtime: what runs the nodes: `docker`, `podman` or `process`.
        mode: what carries the tensors.
        pins: component and version.

    """

    runtime: str
    mode: str
    pins: Mapping[str, str]

    @property
    def contained(self) -> bool:
        """Whether each node is a container, with a name, an sshd and files of its own."""
        return self.runtime != "process"

    @property
    def mpi(self) -> bool:
        """Whether `mpirun` has to reach the other nodes."""
        return self.contained and any(name in self.pins for name in _MPI)

    def framework(self, check: str) -> bool:
        """Tell whether a framework is pinned that a check runs with."""
        return any(name in self.pins for name in catalog.frameworks(check))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Whether to time the same training on more and more ranks, and on what.

    Attributes:
        asked: it costs minutes, so only who asks for it gets it.
        workload: handwritten digits, or a small ResNet on random images of CIFAR's shape.
        epochs: how often the data is gone through in each row of the table.
        full: take all 60,000 digits for the training instead of 4,500.

    """

    asked: bool = False
    workload: Workload = "digits"
    epochs: int = 1
    full: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be run.

        Raises:
            InputError: a value is out of range.

        """
        if self.workload not in get_args(Workload):
            raise InputError(
                f"`{self.workload}` is none of {', '.join(get_args(Workload))}", where="--workload"
            )
        if not 1 <= self.epochs <= 100:
            raise InputError(f"{self.epochs} epochs: 1 to 100 can be run", where="--epochs")


@dataclass(frozen=True, kw_only=True)
class SmokeOptions:
    """How to test.

    Attributes:
        runtime: where the nodes run; `auto` takes the first engine that answers, Docker before Podman.
        mode: what carries the tensors; `auto` takes the best that the host has.
        nodes: how many, at least two.
        nproc_per_node: how many ranks on each node.
        shm_bytes: size of each node's /dev/shm.
        patience: factor on every time limit, for slow hosts.
        only: names of the checks to run; the others are reported as skipped, so such a run cannot pass.
        transport: what NCCL has to go over between nodes; `any` takes what it chooses, if all ranks agree.
        min_busbw: bus bandwidth that the largest allreduce has to reach, in 10^9 bytes a second; 0 for none.
        scaling: the table of several layouts.
        containers: what single nodes' containers are created with besides, by the node's number and in the
            words of the engine's SDK: `{1: {"shm_size": 1 << 26}}`. Nothing on the command line leads here.

    """

    runtime: RuntimeChoice = "auto"
    mode: ModeChoice = "auto"
    nodes: int = 2
    nproc_per_node: int = 1
    shm_bytes: int = GIB
    patience: float = 1.0
    only: frozenset[str] = frozenset()
    transport: TransportChoice = "any"
    min_busbw: float = 0.0
    scaling: Scaling = Scaling()
    containers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be run, before anything is started.

        Raises:
            InputError: a value is out of range.

        """
        for key, value, choices in (
            ("--runtime", self.runtime, get_args(RuntimeChoice)),
            ("--mode", self.mode, get_args(ModeChoice)),
            ("--transport", self.transport, get_args(TransportChoice)),
        ):
            if value not in choices:
                raise InputError(f"`{value}` is none of {', '.join(choices)}", where=key)
        if not 2 <= self.nodes <= 16:
            raise InputError(f"{self.nodes} nodes: two to sixteen can be tested", where="--nodes")
        if not 1 <= self.nproc_per_node <= 8:
            raise InputError(
                f"{self.nproc_per_node} ranks on a node: one to eight can be tested", where="--nproc-per-node"
            )
        if not 0 <= self.min_busbw < float("inf"):
            raise InputError("a bandwidth is a number that is not negative", where="--min-busbw")
        if self.patience <= 0:
            raise InputError("a factor on time limits is larger than 0", where="patience")


def from_labels(
    reference: str, labels: Mapping[str, str], *, digest: str = "", config: str = ""
) -> SmokeTarget:
    """Read from an image's labels what it promises.

    Raises:
        InputError: it lacks them, or one is damaged.

    """
    pins = label_names.pins(labels)
    lacking = [
        label
        for label in (label_names.LOCK, label_names.SSH_PORT, label_names.SSH_USER)
        if not labels.get(label)
    ]
    if not pins:
        lacking.append(f"{label_names.PIN}<component>")
    if lacking:
        raise InputError(
            f"the image says nothing about itself: it lacks the label{'s' if lacking[1:] else ''} "
            + ", ".join(f"`{label}`" for label in lacking),
            where=reference,
            hint="test an image that `imagebuilder build` made, or add the labels where yours is made",
        )
    port = labels[label_names.SSH_PORT]
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise InputError(f"its label `{label_names.SSH_PORT}` is `{port}`, which is no port", where=reference)
    return SmokeTarget(
        reference=reference,
        digest=digest,
        config=config,
        recipe=labels.get(label_names.TITLE, ""),
        lock=labels[label_names.LOCK],
        pins=tuple(sorted(pins.items())),
        ssh_port=int(port),
        ssh_user=labels[label_names.SSH_USER],
        baked_keys=labels.get(label_names.SSH_KEYS) == "baked",
    )


def from_environment() -> SmokeTarget:
    """Take this Python's own packages for the target: what is installed must be what gets loaded.

    Raises:
        InputError: no framework is installed here, so there is nothing to test.

    """
    installed = {}
    for name, component in catalog.load().items():
        for provider in component.providers:
            # The wheel's name may hold the pin's major, which is not known here: any of them will do.
            pattern = re.escape(provider.wheel).replace(r"\{major\}", "[0-9]+")
            found = _version(pattern) if provider.wheel else ""
            if found:
                installed[name] = found
                break
    frameworks = catalog.frameworks()
    if not frameworks.keys() & installed.keys():
        raise InputError(
            f"{' or '.join(frameworks)} is not installed in this Python, so there is nothing to test without "
            "containers",
            hint="pip install 'imagebuilder[process]', or run this inside the image",
        )
    return SmokeTarget(
        reference="this Python environment", recipe="", lock="", pins=tuple(sorted(installed.items()))
    )


def _version(pattern: str) -> str:
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if re.fullmatch(pattern, name):
            return distribution.version
    return ""
