"""The pods of a job on Kubernetes: the same for every operator, as far as operators let them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imagebuilder.errors import InputError
from imagebuilder.launch.commands import Raw
from imagebuilder.launch.job import Job, Volume

_KEYS = "/run/secrets/imagebuilder"


def metadata(job: Job) -> dict[str, Any]:
    """Return the metadata of the job's objects."""
    return {"name": job.name, **({"namespace": job.namespace} if job.namespace else {})}


def template(
    job: Job,
    args: Sequence[str] = (),
    *,
    container: str = "node",
    keys: bool = False,
    idle: bool = False,
    ready: bool = False,
    restart: str = "",
    deadline: bool = False,
) -> dict[str, Any]:
    """Return the template of a pod.

    Args:
        job: the job.
        args: what the container runs, through the image's entrypoint; empty to leave it to the operator.
        container: its name; some operators look for one.
        keys: mount the Secret with the job's ssh keys.
        idle: the pod only starts the ranks of others, and needs neither GPUs nor the rest of a node.
        ready: the pod is ready once its sshd answers.
        restart: the pod's restart policy, where the operator does not set it.
        deadline: end the pod after the job's deadline, where the operator has none.

    Raises:
        InputError: Kubernetes would refuse the pod.

    """
    node: dict[str, Any] = {
        "name": container,
        "image": job.image.reference,
        "args": words(args),
        "env": _env(job, keys=keys),
        "readinessProbe": {"tcpSocket": {"port": job.ssh_port}, "periodSeconds": 2} if ready else {},
        **({} if idle else _devices(job)),
    }
    volumes = _volumes(job, keys=keys)
    node["volumeMounts"] = [
        {"name": volume["name"], "mountPath": path, **({"readOnly": True} if path == _KEYS else {})}
        for path, volume in volumes.items()
    ]
    spec = {
        "restartPolicy": restart,
        "activeDeadlineSeconds": job.deadline if deadline else 0,
        **_placement(job, idle=idle),
        "containers": [_filled(node)],
        "volumes": list(volumes.values()),
    }
    return {"spec": _filled(spec)}


def _filled(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is empty."""
    return {key: value for key, value in mapping.items() if value}


def _placement(job: Job, *, idle: bool) -> dict[str, Any]:
    """Return who a pod runs as, and where."""
    user = job.image.uid
    return {
        # Files of volumes get the group; that of the image's own files is 0.
        "securityContext": {"runAsUser": user, "runAsGroup": 0, "fsGroup": user} if user else {},
        "hostNetwork": job.host_network,
        "dnsPolicy": "ClusterFirstWithHostNet" if job.host_network else "",
        "nodeSelector": {} if idle else dict(job.node_selector),
        "tolerations": [_toleration(item) for item in job.tolerations],
    }


def _env(job: Job, *, keys: bool) -> list[dict[str, str]]:
    env = list(job.env)
    if keys and job.ssh_port != job.image.port:
        # The entrypoint's sshd would have the image's port, which is the host's.
        env.append(("IMAGEBUILDER_SSHD", "off"))
    return [{"name": name, "value": words([value])[0]} for name, value in env]


def _devices(job: Job) -> dict[str, Any]:
    """Return what a container gets of its node."""
    limits = _limits(job)
    return {
        "resources": {"requests": dict(limits), "limits": limits} if limits else {},
        # Memory that an RDMA device uses is locked, beyond any limit of the runtime.
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}} if job.rdma else {},
    }


def words(args: Sequence[str]) -> list[str]:
    """Keep Kubernetes from replacing `$(NAME)` in words that are not generated."""
    return [str(word) if isinstance(word, Raw) else word.replace("$", "$$") for word in args]


def _limits(job: Job) -> dict[str, str]:
    found = {
        "cpu": job.cpus,
        "memory": job.memory,
        "nvidia.com/gpu": str(job.gpus) if job.gpus else "",
        job.rdma: str(job.rdma_count) if job.rdma else "",
    }
    if job.hugepages:
        if not (job.cpus or job.memory):
            raise InputError(
                "Kubernetes gives huge pages only to pods that ask for memory or CPU cores too",
                where="--hugepages",
                hint="add --memory or --cpus",
            )
        found[f"hugepages-{job.hugepages[0]}"] = job.hugepages[1]
    return {name: amount for name, amount in found.items() if name and amount}


def _volumes(job: Job, *, keys: bool) -> dict[str, dict[str, Any]]:
    """Return each volume by the path that it is mounted at."""
    found: dict[str, dict[str, Any]] = {
        "/dev/shm": {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.shm}},  # noqa: S108
    }
    if job.hugepages:
        medium = f"HugePages-{job.hugepages[0]}"
        found["/dev/hugepages"] = {"name": "hugepages", "emptyDir": {"medium": medium}}
    if keys and not job.image.baked_keys:
        # Root's files, which the group 0 of another user may read, and nobody else.
        mode = 0o440 if job.image.uid else 0o400
        found[_KEYS] = {"name": "ssh", "secret": {"secretName": job.keys_name, "defaultMode": mode}}
    for number, volume in enumerate(job.volumes):
        found[volume.path] = {"name": f"data{number}", **_source(volume)}
    return found


def _source(volume: Volume) -> Mapping[str, Any]:
    if volume.medium == "pvc":
        return {"persistentVolumeClaim": {"claimName": volume.source}}
    if volume.medium == "nfs":
        return {"nfs": {"server": volume.server, "path": volume.source}}
    return {"hostPath": {"path": volume.source}}


def _toleration(item: Any) -> dict[str, str]:
    found = {"key": item.key, "operator": "Exists" if item.value is None else "Equal"}
    if item.value is not None:
        found["value"] = item.value
    return {**found, **({"effect": item.effect} if item.effect else {})}
