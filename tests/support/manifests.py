"""Pods as the controllers of Kubernetes make them of a manifest: names, variables, mounts and users."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.pods import given, operator_keys, volume

_NAMESPACE = "team"
_MPI = {
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_set_default_slots": "1",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod: its host name, the names that a service gives it, its variables, and its template's `spec`."""

    host: str
    names: tuple[str, ...]
    env: Mapping[str, str]
    spec: Mapping[str, Any]
    args: Sequence[str] = ()
    mounts: tuple[str, ...] = field(default=())

    @property
    def options(self) -> tuple[str, ...]:
        """Options of `docker run`, without those of volumes from a Secret."""
        security = self.spec.get("securityContext", {})
        user = f"{security['runAsUser']}:{security.get('runAsGroup', 0)}" if "runAsUser" in security else ""
        names = (word for name in self.names for word in ("--network-alias", name))
        return (
            *(("--user", user) if user else ()),
            *(("--group-add", str(security["fsGroup"])) if "fsGroup" in security else ()),
            *names,
            *given(self.env),
            *self.mounts,
        )

    @property
    def command(self) -> tuple[str, ...]:
        """The container's arguments, with `$(NAME)` and `$$` replaced as the kubelet does."""
        assert "command" not in self.container

        def value(found: re.Match[str]) -> str:
            return "$" if found[0] == "$$" else self.env[found[1]]

        words = self.args or self.container.get("args", ())
        return tuple(re.sub(r"\$\$|\$\(([A-Z_]+)\)", value, word) for word in words)

    @property
    def container(self) -> Mapping[str, Any]:
        (container,) = self.spec["containers"]
        made: Mapping[str, Any] = container
        return made


def pods_of(folder: Path, work: Path) -> list[Pod]:
    """Return the pods of a job that `launch` wrote; those that others wait for come first.

    Args:
        folder: with `job.yaml`, and `keys.yaml` where the job has keys of its own.
        work: where files to mount are written; everybody may enter it.

    """
    work.chmod(0o755)
    documents = {item["kind"]: item for item in yaml.safe_load_all((folder / "job.yaml").read_text())}
    made: list[Pod] = []
    for kind, document in documents.items():
        name, spec = document["metadata"]["name"], document["spec"]
        match kind:
            case "JobSet":
                made += _of_jobset(name, spec)
            case "LeaderWorkerSet":
                made += _of_leaderworkerset(name, spec)
            case "Job":
                made += _of_volcano(name, spec)
            case "PyTorchJob":
                made += _of_pytorchjob(name, spec)
            case "MPIJob":
                made += _of_mpijob(name, spec, work)
            case "TrainJob":
                runtime = documents["ClusterTrainingRuntime"]["spec"]
                made += _of_trainjob(name, spec["trainer"], runtime, work)
    if (folder / "keys.yaml").exists():
        secret = yaml.safe_load((folder / "keys.yaml").read_text())
        keys = {file: yaml.safe_load(f"!!binary {text}") for file, text in secret["data"].items()}
        place = volume(work / "secret", keys, 0o444)
        mount = ("-v", f"{place}:/run/secrets/imagebuilder:ro")
        made = [Pod(**{**vars(pod), "mounts": (*pod.mounts, *mount)}) for pod in made]
    return made


def _of_jobset(name: str, spec: Mapping[str, Any]) -> Iterator[Pod]:
    for group in spec["replicatedJobs"]:
        job = group["template"]["spec"]
        for index in range(job.get("completions", 1)):
            host = f"{name}-{group['name']}-0-{index}"
            env = {"JOB_COMPLETION_INDEX": str(index)}
            yield Pod(host=host, names=(f"{host}.{name}",), env=env, spec=job["template"]["spec"])


def _of_leaderworkerset(name: str, spec: Mapping[str, Any]) -> Iterator[Pod]:
    template = spec["leaderWorkerTemplate"]
    leader = template.get("leaderTemplate", template["workerTemplate"])
    for index in range(template["size"]):
        host = f"{name}-0-{index}" if index else f"{name}-0"
        env = {
            "LWS_LEADER_ADDRESS": f"{name}-0.{name}.{_NAMESPACE}",
            "LWS_GROUP_SIZE": str(template["size"]),
            "LWS_WORKER_INDEX": str(index),
        }
        names = (f"{host}.{name}", f"{host}.{name}.{_NAMESPACE}")
        yield Pod(
            host=host, names=names, env=env, spec=(template["workerTemplate"] if index else leader)["spec"]
        )


def _of_volcano(name: str, spec: Mapping[str, Any]) -> Iterator[Pod]:
    for task in spec["tasks"]:
        for index in range(task["replicas"]):
            host = f"{name}-{task['name']}-{index}"
            env = {"VC_TASK_INDEX": str(index), "VK_TASK_INDEX": str(index)}
            yield Pod(host=host, names=(f"{host}.{name}",), env=env, spec=task["template"]["spec"])


def _of_pytorchjob(name: str, spec: Mapping[str, Any]) -> Iterator[Pod]:
    replicas = spec["pytorchReplicaSpecs"]
    kinds = [
        (kind, index)
        for kind in ("Master", "Worker")
        if kind in replicas
        for index in range(replicas[kind]["replicas"])
    ]
    for rank, (kind, index) in enumerate(kinds):
        host = f"{name}-{kind.lower()}-{index}"
        env = {
            "MASTER_ADDR": f"{name}-master-0",
            "MASTER_PORT": "23456",
            "WORLD_SIZE": str(len(kinds)),
            "RANK": str(rank),
            "PET_MASTER_ADDR": f"{name}-master-0",
            "PET_MASTER_PORT": "23456",
            "PET_NNODES": str(len(kinds)),
            "PET_NODE_RANK": str(rank),
            "PET_NPROC_PER_NODE": spec["nprocPerNode"],
        }
        yield Pod(host=host, names=(), env=env, spec=replicas[kind]["template"]["spec"])


def _of_mpijob(name: str, spec: Mapping[str, Any], work: Path) -> Iterator[Pod]:
    replicas = spec["mpiReplicaSpecs"]
    hosts = [f"{name}-worker-{index}" for index in range(replicas["Worker"]["replicas"])]
    home = spec.get("sshAuthMountPath", "/root/.ssh")
    secret = operator_keys(work / "keys", mode=0o600 if home.startswith("/root") else 0o644)
    keys = ("-v", f"{secret}:{home}:ro")
    for host in hosts:
        names, worker = (f"{host}.{name}.{_NAMESPACE}.svc",), replicas["Worker"]["template"]["spec"]
        yield Pod(host=host, names=names, env={"K_MPI_JOB_ROLE": "worker"}, spec=worker, mounts=keys)
    mounts = (*keys, *_hostfile(work, [f"{host}.{name}.{_NAMESPACE}.svc" for host in hosts]))
    launcher = replicas["Launcher"]["template"]["spec"]
    yield Pod(host=f"{name}-launcher", names=(), env=_MPI, spec=launcher, mounts=mounts)


def _of_trainjob(
    name: str, trainer: Mapping[str, Any], runtime: Mapping[str, Any], work: Path
) -> Iterator[Pod]:
    jobs = {job["name"]: job["template"]["spec"] for job in runtime["template"]["spec"]["replicatedJobs"]}
    node = jobs["node"]["template"]["spec"]
    if "mpi" not in runtime["mlPolicy"]:
        for index in range(trainer["numNodes"]):
            host = f"{name}-node-0-{index}"
            env = {
                "PET_NNODES": str(trainer["numNodes"]),
                "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
                "PET_NODE_RANK": str(index),
                "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
                "PET_MASTER_PORT": "29500",
            }
            yield Pod(host=host, names=(f"{host}.{name}",), env=env, spec=node, args=trainer["args"])
        return
    hosts = [f"{name}-node-0-{index}" for index in range(trainer["numNodes"] - 1)]
    launcher = f"{name}-launcher-0-0"
    secret = operator_keys(work / "keys", mode=0o640, group=1000)
    keys = ("-v", f"{secret}:{runtime['mlPolicy']['mpi']['sshAuthMountPath']}:ro")
    for host in hosts:
        yield Pod(host=host, names=(f"{host}.{name}",), env={}, spec=node, mounts=keys)
    mounts = (*keys, *_hostfile(work, [f"{host}.{name}" for host in (launcher, *hosts)]))
    yield Pod(
        host=launcher,
        names=(f"{launcher}.{name}",),
        env=_MPI,
        spec=jobs["launcher"]["template"]["spec"],
        args=trainer["args"],
        mounts=mounts,
    )


def _hostfile(work: Path, hosts: Sequence[str]) -> tuple[str, str]:
    lines = "".join(f"{host} slots=1\n" for host in hosts)
    return "-v", f"{volume(work / 'config', {'hostfile': lines.encode()}, 0o444)}:/etc/mpi:ro"
