"""The argument lists that start a job's ranks: a framework's launcher on every node, or mpirun on the first.

What is generated here has a fixed alphabet, and is marked `Raw` so that templates put it out as it is: it may
hold a variable of the shell or of Kubernetes, such as the node's number. The user's own words are plain
strings, which every template quotes.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from imagebuilder.launch.job import Job

# Seconds in which all nodes have to answer by ssh: pulling an image of several GB takes minutes.
WAIT = 1800


class Raw(str):
    """Text that a template puts out unquoted."""

    __slots__ = ()


def script(name: str) -> str:
    """Return a script of `scripts/`, without its comments: it becomes one word of a command."""
    text = resources.files("imagebuilder.launch").joinpath("scripts", name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join(lines)


def node_head(job: Job, *, node: str, host: str) -> tuple[str, ...]:
    """Return a framework's launcher, such as torchrun, with its options; the command follows on every node.

    Args:
        job: the job.
        node: the node's number, or the variable that holds it, in the notation of the target.
        host: the name of node 0, likewise.

    """
    launcher = job.image.launchers[job.launcher]
    values = {
        "nodes": str(job.nodes),
        "ranks": str(job.ranks),
        "node": node,
        "host": host,
        "port": str(job.port),
    }
    options = (Raw(option.format_map(values)) for option in launcher.job)
    return (*map(Raw, launcher.command), *options)


def node_command(job: Job, *, node: str, host: str) -> tuple[str, ...]:
    """Return all that each node runs for a framework's launcher."""
    return (*node_head(job, node=node, host=host), *job.command)


def mpirun(job: Job, hosts: Sequence[str] = (), *, hostfile: str = "") -> tuple[str, ...]:
    """Return what node 0 runs to start all ranks by MPI, with a list of hosts or a file that lists them."""
    openmpi = job.image.mpi == "openmpi"
    names = [name for name, _ in job.env]
    words = ["mpirun", "-n", str(job.world_size)]
    if hostfile:
        words += ["--hostfile" if openmpi else "-f", hostfile]
    else:
        # Open MPI 5.0 leaves out its own node if that is not named as by `hostname`: pods have a domain.
        known = ("localhost", *hosts[1:]) if openmpi else hosts
        words += ["--host" if openmpi else "-hosts", ",".join(f"{host}:{job.ranks}" for host in known)]
    if openmpi:
        words += [word for name in names for word in ("-x", name)]
        if job.ssh_port != job.image.port:
            words += ["--prtemca", "plm_ssh_args", f"-p {job.ssh_port}"]
    else:
        words += ["-genvlist", ",".join(names)] if names else []
        # Otherwise Hydra may see a scheduler's variables, and start by it.
        words += ["-launcher", "ssh"]
    return (*words, *ranked(job))


def ranked(job: Job) -> tuple[str, ...]:
    """Return what each rank of mpirun runs: a check of how many ranks there are, and then the command."""
    return ("sh", "-c", script("rank.sh"), "rank", str(job.world_size), str(job.ranks), *job.command)


def first(job: Job, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return what node 0 runs where only sshd joins the nodes: it waits for them, and tells them the end."""
    others = hosts[1:]
    head = ("sh", "-c", script("first.sh"), "first", str(job.ssh_port), job.image.state, str(WAIT))
    return (*head, *others, "--", *mpirun(job, hosts))


def other(job: Job) -> tuple[str, ...]:
    """Return what the other nodes run there: sshd, until node 0 tells them the job's exit code."""
    # The entrypoint starts sshd on the image's port.
    own = str(job.ssh_port) if job.ssh_port != job.image.port else ""
    return ("sh", "-c", script("other.sh"), "other", own, job.image.state)


def stay(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command that does not end after it has ended well, for what would start it again."""
    return ("sh", "-c", script("stay.sh"), "stay", *command)


def srun_rank(job: Job) -> tuple[str, ...]:
    """Return what each rank of `srun --mpi` runs: a check that MPI finds the others, and then the command."""
    variable = "PMIX_RANK" if job.image.mpi == "openmpi" else "PMI_RANK"
    return ("sh", "-c", script("srun_rank.sh"), "rank", variable, str(job.world_size), *job.command)
