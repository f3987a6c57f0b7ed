"""What to test and how: the image with its pins, and the options of a run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from imagebuilder import catalog
from imagebuilder.core import installation
from imagebuilder.core import labels as label_names
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.recipe.checks import TrainingCheck
from imagebuilder.smoke.gpus import NAME as GPU_NAME

ModeChoice = Literal["auto", "cpu", "one-gpu-shared", "multi-gpu"]
RuntimeChoice = Literal["auto", "docker", "podman", "process", "ssh", "slurm"]
# How the nodes of a Slurm job run the image.
SlurmVariant = Literal["bare", "pyxis", "apptainer", "podman"]
TransportChoice = Literal["any", "socket", "ib", "ofi"]
Workload = Literal["digits", "resnet"]
# Whether imagebuilder built the image, somebody built on top of such an image, or neither.
Origin = Literal["built", "derived", "foreign"]


GIB = 1 << 30
# Components that have an `mpirun`.
_MPI = ("openmpi", "mpich")
_GPUS_BY_NAME = ("auto", "docker", "podman", "process")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+:~_-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class SmokeTarget:
    """The image under test.

    Attributes:
        reference: the image's name in the engine: a name, a digest or an id.
        digest: of the manifest, for the report; empty if unknown.
        config: digest of the image's config; Docker's classic image store uses it as the image's id.
        recipe: name of the recipe.
        lock: the lock's checksum, hex sha256.
        pins: component and full version, sorted.
        ssh_port, ssh_user: sshd's port, and the user that nodes log in as.
        baked_keys: the image has an ssh key in a layer, so a job needs none.
        training: the user's own training check; None if the recipe has none.
        tests: checksum of the user's own tests; "" if the recipe names none.
        allowed_env: variables of a job or a host that the recipe allows in the image, with its reasons.
        origin: who built it.
        base: of a derived image: the image of imagebuilder below it.
        on_top: of a derived image: the steps that made its own layers, the lowest first.
        entrypoint: of a derived or foreign image.
        has_ssh: whether nodes can log in to each other.
        gpus: compute capabilities of the hosts' GPUs, as the recipe says; only known if the recipe is.
        probes: how to ask the components that the recipe's own folder describes, as the labels say.

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
    training: TrainingCheck | None = None
    tests: str = ""
    allowed_env: tuple[tuple[str, str], ...] = ()
    origin: Origin = "built"
    base: str = ""
    on_top: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    has_ssh: bool = True
    gpus: tuple[str, ...] = ()
    probes: tuple[tuple[str, catalog.Probe], ...] = ()

    def pin(self, name: str) -> str:
        """Return a component's version; empty if it is not pinned."""
        return dict(self.pins).get(name, "")

    @property
    def mpi(self) -> str:
        """The pinned component that has the image's `mpirun`; empty if there is none."""
        return next((name for name in _MPI if self.pin(name)), "")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What an image promises by its pins, and where it is tested. This decides which checks must pass.

    Attributes:
        runtime: what runs the nodes: `docker`, `podman`, `process`, `ssh`, `slurm` or `job`.
        mode: how tensors are sent.
        pins: component and version.
        ssh: whether it has an sshd, as every image of imagebuilder.
        own_training, own_tests: the recipe has a training check of the user's, or names tests.

    """

    runtime: str
    mode: str
    pins: Mapping[str, str]
    ssh: bool = True
    own_training: bool = False
    own_tests: bool = False

    @property
    def contained(self) -> bool:
        """Whether each node has a name, an sshd and files of its own."""
        return self.runtime != "process"

    @property
    def asked(self) -> bool:
        """Whether the nodes are asked while they run; else a job's log is read."""
        return self.runtime != "job"

    @property
    def started(self) -> bool:
        """Whether the test starts the nodes, from an image."""
        return self.runtime in {"docker", "podman"}

    @property
    def shared(self) -> bool:
        """Whether the test gives the nodes a folder that they share. Hosts and jobs may have none."""
        return self.started or self.runtime == "process"

    @property
    def mpi(self) -> bool:
        """Whether ranks of MPI must reach the other nodes."""
        return self.asked and self.contained and any(name in self.pins for name in _MPI)

    @property
    def logins(self) -> bool:
        """Whether nodes must be able to log in to each other. Schedulers start ranks without that."""
        return self.contained and self.ssh and self.runtime not in {"slurm", "job"}

    def framework(self, check: str) -> bool:
        """Return True if a framework is pinned that has a script for this check."""
        return any(name in self.pins for name in catalog.frameworks(check))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Whether to time the same training with several numbers of ranks, and what to train.

    Attributes:
        asked: whether to do it; it takes minutes.
        workload: handwritten digits, or a small ResNet on random images of CIFAR's shape.
        epochs: passes over the data, for each row of the table.
        full: train on all 60,000 digits instead of 4,500.

    """

    asked: bool = False
    workload: Workload = "digits"
    epochs: int = 1
    full: bool = False

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            InputError: a value is out of range.

        """
        if self.workload not in get_args(Workload):
            raise InputError(
                f"`{self.workload}` is unknown: choose {' or '.join(get_args(Workload))}", where="--workload"
            )
        if not 1 <= self.epochs <= 100:
            raise InputError(f"{self.epochs} epochs: choose 1 to 100", where="--epochs")


@dataclass(frozen=True, kw_only=True)
class SlurmImage:
    """How the nodes run the image.

    Attributes:
        variant: `bare`: the nodes' own processes are in the image already; or what starts it.
        source: a file, or a name in a registry; empty for `bare`.
        gpus: whether the container gets the GPUs that Slurm gave the job.

    """

    variant: SlurmVariant = "bare"
    source: str = ""
    gpus: bool = False


@dataclass(frozen=True, kw_only=True)
class SmokeOptions:
    """How to test.

    Attributes:
        runtime: where the nodes run; `auto` takes the first engine that answers, Docker before Podman.
        mode: how tensors are sent; `auto` takes the best mode that the host can run.
        nodes: number of nodes, at least two; with `ssh` and `slurm`, that of the hosts.
        hosts: for the runtimes `ssh` and `slurm`: names of hosts, as for ssh; the nodes of the job.
        slurm: for the runtime `slurm`: how the nodes run the image.
        nproc_per_node: number of ranks on each node.
        gpus: the GPUs to use, each by its number in nvidia-smi's list or by its uuid: one, or one for each
            rank in order, node by node; `("all",)` for any of the host's, and empty for any or none.
        shm_bytes: size of each node's /dev/shm.
        patience: factor on every time limit, for slow hosts.
        only: names of the checks to run; the others are reported as skipped, so such a run cannot pass.
        transport: the network that NCCL must use between nodes; `any` allows any, if all ranks agree.
        min_busbw: minimum bus bandwidth of the largest allreduce, in 10^9 bytes a second; 0 for no minimum.
        scaling: the table of several layouts.
        again: run every check, also those whose earlier results hold.
        tests: folder of the user's own tests; None for none.
        containers: extra arguments for the engine's SDK for single nodes, by the node's number:
            `{1: {"shm_size": 1 << 26}}`. Only tests use it; the command line cannot set it.

    """

    runtime: RuntimeChoice = "auto"
    mode: ModeChoice = "auto"
    nodes: int = 2
    hosts: tuple[str, ...] = ()
    slurm: SlurmImage = SlurmImage()
    nproc_per_node: int = 1
    gpus: tuple[str, ...] = ()
    shm_bytes: int = GIB
    patience: float = 1.0
    only: frozenset[str] = frozenset()
    transport: TransportChoice = "any"
    min_busbw: float = 0.0
    scaling: Scaling = Scaling()
    again: bool = False
    tests: Path | None = None
    containers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def may_reuse(self) -> bool:
        """Whether earlier results can stand for this run: all that a report does not record is as usual."""
        plain = SmokeOptions()
        asked = (self.again, self.only, self.transport, self.min_busbw, self.shm_bytes, self.scaling.asked)
        return (
            asked == (*(False, plain.only, plain.transport, plain.min_busbw, plain.shm_bytes, False),)
            and not self.containers
        )

    def __post_init__(self) -> None:
        """Refuse values out of range, before anything is started.

        Raises:
            InputError: a value is out of range.

        """
        for key, value, choices in (
            ("--runtime", self.runtime, get_args(RuntimeChoice)),
            ("--mode", self.mode, get_args(ModeChoice)),
            ("--transport", self.transport, get_args(TransportChoice)),
        ):
            if value not in choices:
                raise InputError(f"`{value}` is unknown: choose {', '.join(choices)}", where=key)
        if bool(self.hosts) != (self.runtime in {"ssh", "slurm"}):
            raise InputError(
                "the runtime ssh needs `--hosts a,b`, and no other runtime takes it", where="--hosts"
            )
        if not 2 <= self.nodes <= 16:
            raise InputError(f"{self.nodes} nodes: choose 2 to 16", where="--nodes")
        if not 1 <= self.nproc_per_node <= 8:
            raise InputError(
                f"{self.nproc_per_node} ranks on a node: choose 1 to 8", where="--nproc-per-node"
            )
        self._require_gpus()
        if not 0 <= self.min_busbw < float("inf"):
            raise InputError("the bandwidth must not be negative", where="--min-busbw")
        if self.patience <= 0:
            raise InputError("the factor must be larger than 0", where="patience")

    def _require_gpus(self) -> None:
        if not self.gpus:
            return
        ranks = self.nodes * self.nproc_per_node
        if self.mode == "cpu":
            raise InputError("mode cpu uses no GPU", where="--gpus")
        if self.runtime not in _GPUS_BY_NAME:
            raise InputError(
                f"the runtime {self.runtime} takes the GPUs that its hosts offer",
                where="--gpus",
                hint=f"set CUDA_VISIBLE_DEVICES there; {', '.join(_GPUS_BY_NAME)} take `--gpus`",
            )
        if self.gpus == ("all",):
            return
        for name in self.gpus:
            if not GPU_NAME.fullmatch(name):
                raise InputError(
                    f"`{printable(name)}` is not a GPU",
                    where="--gpus",
                    hint="write numbers or uuids of nvidia-smi's list, as in `--gpus 0,2`, or `--gpus all`",
                )
        if len(set(self.gpus)) < len(self.gpus):
            raise InputError("a GPU is there twice", where="--gpus")
        if len(self.gpus) not in {1, ranks}:
            raise InputError(
                f"{len(self.gpus)} GPUs for {ranks} ranks: name one, which all of them share, or {ranks}, "
                "one for each",
                where="--gpus",
            )


def from_labels(
    reference: str, labels: Mapping[str, str], *, digest: str = "", config: str = ""
) -> SmokeTarget:
    """Read what an image promises from its labels.

    Raises:
        InputError: a label is missing or damaged.

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
            f"this is not an image of imagebuilder: it lacks the label{'s' if lacking[1:] else ''} "
            + ", ".join(f"`{label}`" for label in lacking),
            where=reference,
            hint="test an image that `imagebuilder build` made, or add these labels to yours",
        )
    port = labels[label_names.SSH_PORT]
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise InputError(
            f"its label `{label_names.SSH_PORT}` is `{port}`, which is not a port", where=reference
        )
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
        tests=labels.get(label_names.TESTS, ""),
        training=_training(labels.get(label_names.TRAINING, ""), reference),
        probes=tuple(_probes(labels, reference)),
        allowed_env=tuple(label_names.allowed_env(labels).items()),
    )


def from_image(
    reference: str, labels: Mapping[str, str], *, digest: str = "", entrypoint: Sequence[str] = ()
) -> SmokeTarget:
    """Read what an image promises; one without labels of imagebuilder promises nothing.

    Raises:
        InputError: a label of imagebuilder is missing or damaged.

    """
    if any(name.startswith(label_names.OWN) for name in labels):
        return dataclasses.replace(
            from_labels(reference, labels, digest=digest), entrypoint=tuple(entrypoint)
        )
    return SmokeTarget(
        reference=reference,
        digest=digest,
        recipe="",
        lock="",
        pins=(),
        origin="foreign",
        entrypoint=tuple(entrypoint),
    )


def on_hosts(hosts: Sequence[str]) -> SmokeTarget:
    """Take hosts that run already as the target; which image they run is unknown."""
    return SmokeTarget(reference=" ".join(hosts), recipe="", lock="", pins=(), origin="foreign")


def expecting(target: SmokeTarget, expected: Sequence[str]) -> SmokeTarget:
    """Add expected versions (`nccl=2.27.5`) to a target's pins.

    Raises:
        InputError: one is not `COMPONENT=VERSION`, or no component that can be asked has that name.

    """
    asked = {name for name, component in catalog.load().items() if component.probe}
    known = sorted(asked | dict(target.probes).keys())
    pins = dict(target.pins)
    for text in expected:
        name, _, version = text.partition("=")
        if not _VERSION.fullmatch(version):
            raise InputError(
                f"`{printable(text)}` is not a component and a version",
                where="--expect",
                hint="write it as in --expect nccl=2.27.5",
            )
        if name not in known:
            raise InputError(
                f"`{printable(name)}` is not a component whose version can be asked",
                where="--expect",
                hint=f"components: {', '.join(known)}",
            )
        pins[name] = version
    return dataclasses.replace(target, pins=tuple(sorted(pins.items())))


def _probes(labels: Mapping[str, str], reference: str) -> Iterator[tuple[str, catalog.Probe]]:
    """Read how to ask the components that imagebuilder does not have; nobody replaces a probe of its own."""
    for label in sorted(labels):
        name = label.removeprefix(label_names.PROBE)
        if name == label or name in catalog.names():
            continue
        try:
            yield name, catalog.Probe.model_validate_json(labels[label])
        except ValidationError as error:
            raise InputError(
                f"its label `{printable(label)}` is not a probe: {error.errors()[0]['msg']}",
                where=reference,
                hint="build it again",
            ) from None


def _training(text: str, reference: str) -> TrainingCheck | None:
    try:
        return TrainingCheck.model_validate_json(text) if text else None
    except ValidationError as error:
        raise InputError(
            f"its label `{label_names.TRAINING}` is not a training check: {error.errors()[0]['msg']}",
            where=reference,
            hint="build it again",
        ) from None


def from_environment() -> SmokeTarget:
    """Take this Python's own packages as the target: the installed versions are the pins.

    Raises:
        InputError: no framework is installed here, so there is nothing to test.

    """
    installed = {}
    for name, component in catalog.load().items():
        for provider in component.providers:
            # The name of the wheel may contain the major version of the pin, which is unknown here: accept
            # any.
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
            hint=f"run `{installation.install('process')}`, or run the test inside the image",
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
