"""The nodes of a Slurm allocation, reached by srun; the image as processes, in pyxis, Apptainer or Podman.

Slurm's own settings hold. Every command is a step of the job that shares the nodes with other steps.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from imagebuilder.core import process
from imagebuilder.core.reference import parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.smoke.nodes import reached
from imagebuilder.smoke.nodes.cluster import Command, Node, RuntimeKind
from imagebuilder.smoke.nodes.reached import ReachedCluster, ReachedNode
from imagebuilder.smoke.target import SlurmImage

_SECONDS = 60.0
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_JOB = re.compile(r"[0-9]{1,20}(?:_[0-9]{1,20})?")
_MOST_NODES = 4096
# `--overlap`: ranks of one test run beside each other. `--mem=0`: a step may use all of the job's memory.
_SRUN = ("srun", "--quiet", "--overlap", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=1")
# What srun adds to the messages of a command that failed, which say nothing of the reason.
_ADDED = re.compile(
    r"srun: (?:error: [^:]+: tasks? [^:]+: |Terminating StepId|Job step aborted|(?:First|Last) task|"
    r"error: Timed out waiting for job step|launch/slurm: )"
)
_SQUASHFS = b"hsqs"
_SIF = b"SIF_MAGIC"
_SIF_AT = 32
# Whether a login by ssh works from the first node to the second, as Slurm itself needs none.
_LOGIN = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=5")


def words_of(image: SlurmImage, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return srun's own options, and what stands before each command, to run it in an image."""
    if image.variant == "pyxis":
        source = image.source if image.source.startswith("/") else image.source.replace("/", "#", 1)
        mounted = f"--container-mounts={folder}:{folder}"
        return (f"--container-image={source}", mounted, "--no-container-entrypoint"), ()
    if image.variant == "apptainer":
        gpus = ("--nv",) if image.gpus else ()
        return (), ("apptainer", "--quiet", "exec", *gpus, "--bind", folder, image.source)
    if image.variant == "podman":
        # The host's processes are visible, so that one command can end another. The user is the host's:
        # nobody else can read the folder.
        user, group = os.getuid(), os.getgid()
        shared = ("--network=host", "--ipc=host", "--pid=host", f"--volume={folder}:{folder}")
        whose = (f"--user={user}:{group}", *(("--userns=keep-id",) if user else ()))
        gpus = ("--device=nvidia.com/gpu=all",) if image.gpus else ()
        return (), ("podman", "run", "--rm", "--entrypoint=", *shared, *whose, *gpus, image.source)
    return (), ()


class SlurmNode(ReachedNode):
    """One node of the allocation."""

    def __init__(self, name: str, folder: str, image: SlurmImage) -> None:
        """Take Slurm's name of the node, the folder that the test makes there, and the image."""
        super().__init__(name, folder)
        self._image = image

    def words(self, argv: Sequence[str]) -> tuple[str, ...]:
        options, inside = words_of(self._image, self._folder)
        return (*self.step(), *options, *inside, *argv)

    def outside(self, argv: Sequence[str]) -> tuple[str, ...]:
        return (*self.step(), *argv)

    def step(self) -> tuple[str, ...]:
        """Return srun's command line for one process on this node."""
        return (*_SRUN, "--mpi=none", "--nodes=1", "--ntasks=1", f"--nodelist={self.name}")

    @property
    def hint(self) -> str:
        return f"`{' '.join(self.step())} true` must work from here"

    def cleaned(self, stderr: str) -> str:
        r"""Drop srun's lines about a command that failed, if the command gave a reason itself."""
        kept = [line for line in stderr.splitlines(keepends=True) if not _ADDED.match(line)]
        return "".join(kept)


class SlurmRanks(SlurmNode):
    """All nodes: a command is started as every rank of MPI, by `srun --mpi`."""

    def __init__(self, nodes: Sequence[str], folder: str, image: SlurmImage, ranks: int) -> None:
        """Take the nodes, the folder, the image, and the number of ranks on each node."""
        super().__init__("srun", folder, image)
        self._nodes = tuple(nodes)
        self._ranks = ranks
        self.pmi = "pmix"

    def step(self) -> tuple[str, ...]:
        count = len(self._nodes)
        layout = (
            f"--nodes={count}",
            f"--ntasks={count * self._ranks}",
            f"--ntasks-per-node={self._ranks}",
        )
        return (*_SRUN, f"--mpi={self.pmi}", *layout, f"--nodelist={','.join(self._nodes)}")

    def stop(self) -> None:
        """Do nothing: srun itself ends all ranks if one fails."""


class SlurmCluster(ReachedCluster[SlurmNode]):
    """The nodes of the allocation."""

    kind: RuntimeKind = "slurm"

    def __init__(self, nodes: tuple[SlurmNode, ...], folder: str, image: SlurmImage, ranks: int) -> None:
        """Take nodes on which the folder exists, the image, and the number of ranks on each node.

        Raises:
            InputError: one of them has no shell or Python, or two names mean one host.

        """
        super().__init__(nodes, folder)
        self._together = SlurmRanks([node.name for node in nodes], folder, image, ranks)
        said = nodes[0].run(Command(argv=("mpirun", "--version"), timeout=_SECONDS))
        if "HYDRA" in said.stdout:
            self._together.pmi = "pmi2"
        login = Command(argv=(*_LOGIN, nodes[1].name, "true"), timeout=_SECONDS)
        self.has_ssh = nodes[0].run(login).ok

    @property
    def scheduler(self) -> Node | None:
        return self._together


def allocation(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the job that this process belongs to.

    Raises:
        EnvironmentFault: this is not inside an allocation, or Slurm's commands are missing or fail.
        InputError: the allocation has one node.

    """
    job, listed = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NODELIST", "")
    if not _JOB.fullmatch(job) or not listed:
        raise EnvironmentFault(
            "this is not inside an allocation: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set",
            where="--runtime slurm",
            hint="run it in a script of sbatch, or in a shell of `salloc --nodes 2`",
        )
    for program in ("srun", "scontrol"):
        if shutil.which(program) is None:
            raise EnvironmentFault(
                f"`{program}` is not installed here",
                where="--runtime slurm",
                hint="run it on a host with Slurm's commands: a login node, or a node of the job",
            )
    said = process.run(("scontrol", "show", "hostnames", listed), timeout=_SECONDS).stdout.split()
    if not said or len(said) > _MOST_NODES or not all(_NODE.fullmatch(name) for name in said):
        raise EnvironmentFault(
            f"`{printable(listed[:100])}` does not name its nodes", where="SLURM_JOB_NODELIST"
        )
    if len(said) == 1:
        raise InputError(
            f"the allocation {job} has one node, {said[0]}, and the test needs at least two",
            where="--runtime slurm",
            hint="ask for more: `salloc --nodes 2`",
        )
    return tuple(said)


def chosen(variant: str, file: Path | None, name: str, *, gpus: bool) -> SlurmImage:
    """Choose how the nodes run the image; without a variant, by what is given.

    Args:
        variant: `bare`, `pyxis`, `apptainer` or `podman`; empty to choose.
        file: the image as squashfs or SIF, at this path on every node.
        name: the image's name in a registry.
        gpus: whether containers get the job's GPUs.

    Raises:
        InputError: the file is not an image, or what is given does not fit the variant.

    """
    chosen = variant or ("apptainer" if file else "podman" if name else "bare")
    if chosen not in {"bare", "pyxis", "apptainer", "podman"}:
        raise InputError(
            f"`{printable(chosen)}` is unknown: choose bare, pyxis, apptainer, podman", where="--variant"
        )
    if file and name:
        raise InputError("give the image's name or its file, not both", where="--image-file")
    if chosen == "bare" and (file or name):
        raise InputError(
            "with `bare`, the nodes themselves run the image: leave the image out", where="--variant"
        )
    if chosen == "podman" and file:
        raise InputError("Podman runs images by their name: leave --image-file out", where="--variant")
    if chosen != "bare" and not (file or name):
        raise InputError(
            f"`{chosen}` needs the image",
            where="--variant",
            hint="name it as the registry does"
            + ("" if chosen == "podman" else ", or give its file: --image-file FILE.sqsh"),
        )
    if file:
        require_image(file)
        source = str(file.absolute())
    elif name:
        # A name with a registry's host: on other nodes a short one may mean another image.
        named = str(parse(name))
        source = f"docker://{named}" if chosen == "apptainer" else named
    else:
        source = ""
    return SlurmImage(variant=chosen, source=source, gpus=gpus)  # type: ignore[arg-type]


def require_image(file: Path) -> None:
    """Check that a file is squashfs or SIF.

    Raises:
        InputError: it cannot be read, or is something else.

    """
    try:
        with file.open("rb") as opened:
            head = opened.read(_SIF_AT + len(_SIF))
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}",
            where=printable(str(file)),
            hint="put the file onto a folder that all nodes share",
        ) from None
    if not head.startswith(_SQUASHFS) and head[_SIF_AT:] != _SIF:
        raise InputError(
            "is neither a squashfs nor a SIF image",
            where=printable(str(file)),
            hint="write one: imagebuilder build RECIPE --output FILE.sqsh",
        )


@contextlib.contextmanager
def start(nodes: Sequence[str], image: SlurmImage, ranks: int, run_id: str) -> Iterator[SlurmCluster]:
    """Copy the scripts to the nodes, and remove them at the end.

    Raises:
        EnvironmentFault: a node cannot be reached.
        InputError: a node cannot be used.

    """
    folder = reached.folder(run_id)
    made = tuple(SlurmNode(name, folder, image) for name in nodes)
    with reached.begun(made):
        yield SlurmCluster(made, folder, image, ranks)
