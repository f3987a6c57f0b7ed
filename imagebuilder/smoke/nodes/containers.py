"""Nodes as containers on a private network. They are removed at the end, whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import requests
from docker.errors import APIError, DockerException

from imagebuilder.catalog import Launcher
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import EnvironmentFault
from imagebuilder.host import leftovers
from imagebuilder.host.engine import GpuRoute, execute
from imagebuilder.smoke.engine import Engine, device_request, explained, user_of
from imagebuilder.smoke.gpus import QUERY, Gpu, parse
from imagebuilder.smoke.nodes import foreign, packing
from imagebuilder.smoke.nodes.cluster import (
    FOLDER,
    OUTPUT_LIMIT,
    SHARED,
    Command,
    Outcome,
    RuntimeKind,
    stop_script,
    was_time_up,
    wrap,
)
from imagebuilder.smoke.nodes.discovery import discover
from imagebuilder.smoke.target import SmokeOptions, SmokeTarget

if TYPE_CHECKING:
    from docker.models.containers import Container
    from docker.models.networks import Network

log = logging.getLogger(__name__)

# Capabilities of a node that runs as root: to read the job's keys whoever owns them, and for sshd, which
# listens on port 22, uses chroot, and becomes the user who logs in. MPI and NCCL need none: as in every
# container, ranks work without reading each other's memory (SYS_PTRACE).
_POWERS = ("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL")
_SSHD_POWERS = ("NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT")
# Enough for the threads of ranks, but not for a fork bomb. The rest of the memory stays for the host.
_PROCESSES, _PROCESSES_PER_CORE = 4096, 256
_SHARE_OF_MEMORY = 0.9
_SECONDS = 60.0
_QUESTIONS = 4

_FILTERED = (
    "this host's firewall sees packets between containers (net.bridge.bridge-nf-call-iptables, which Docker "
    "sets) and drops those of Podman's internal networks"
)
# The engine's answers if the container is gone or not running.
_NOT_RUNNING = (404, 409, 500)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The GPUs of each node, and how its container gets them; empty on CPUs."""

    route: GpuRoute = "request"
    of_node: tuple[tuple[Gpu, ...], ...] = ()


@contextlib.contextmanager
def start(
    engine: Engine, target: SmokeTarget, options: SmokeOptions, devices: Devices, run_id: str
) -> Iterator[ContainerCluster]:
    """Start the nodes with this run's keys and the payload, and remove everything at the end.

    Raises:
        EnvironmentFault: the engine cannot start them, or gives them other GPUs.

    """
    leftovers.sweep(engine)
    run_id = f"smoke-{run_id}"
    labels = leftovers.labels(run_id, options.patience)
    try:
        with explained("starting the nodes"):
            # An image with a baked key is tested with that key; a foreign one gets its keys later.
            keys = () if target.baked_keys or target.origin == "foreign" else packing.keys(run_id)
            # Internal: the nodes can reach each other and nothing else.
            internal = not engine.filters_internal
            if not internal:
                log.warning("the nodes' network is not isolated: %s", _FILTERED)
            network = engine.client.networks.create(
                leftovers.name(run_id), driver="bridge", labels=labels, internal=internal
            )
            nodes: list[ContainerNode] = []
            owner, archive = (0, 0), b""
            for index in range(options.nodes):
                settings = {
                    "shm_size": options.shm_bytes,
                    "labels": labels,
                    **_gpus(devices, index),
                    **_shared([node.container for node in nodes]),
                    **confined(engine, options, options.containers.get(index, {})),
                }
                container = _create(engine, target, network, f"node{index}", settings)
                if not archive:
                    owner = user_of(engine, target.reference, container)
                    archive = packing.pack((*keys, *packing.payload()), owner)
                # Copied, not mounted: the engine may be on another host.
                container.put_archive("/", archive)
                container.start()
                nodes.append(ContainerNode(name=f"node{index}", container=container, owner=owner))
            cluster = ContainerCluster(engine.kind, tuple(nodes), network)
        for node, gpus in zip(nodes, devices.of_node, strict=False):
            _require_gpus(node, gpus)
        yield cluster
    finally:
        leftovers.remove(engine, run_id)


@dataclass(frozen=True, kw_only=True)
class ContainerNode:
    """A container as a node; `owner` is the user and group that the image runs as."""

    name: str
    container: Container
    owner: tuple[int, int]

    def run(self, command: Command) -> Outcome:
        """Run a command in the container, as the image's user."""
        started = time.monotonic()
        api = self.container.client.api  # type: ignore[union-attr]  # a container from a client has it
        try:
            argv, env = wrap(command, FOLDER), dict(command.env)
            ended = execute(api, str(self.container.id), argv, keep=OUTPUT_LIMIT, environment=env)
        except APIError as error:
            if error.status_code not in _NOT_RUNNING:
                raise
            said = str(error.explanation or error)
            return Outcome(code=None, stdout="", stderr=said, seconds=time.monotonic() - started)
        seconds = time.monotonic() - started
        return Outcome(
            code=ended.code,
            stdout=ended.stdout,
            stderr=ended.stderr,
            seconds=seconds,
            timed_out=was_time_up(ended.code, seconds, command),
        )

    def stop(self) -> None:
        """Kill what `run` started and still runs."""
        with contextlib.suppress(DockerException, requests.RequestException):
            self.container.exec_run(stop_script(FOLDER))

    def put(self, name: str, data: bytes) -> None:
        """Copy a file into the smoke folder of the container."""
        item = packing.Item(path=name, mode=0o644, data=data)
        with explained(f"copying {name} into {self.name}"):
            self.container.put_archive(FOLDER, packing.pack([item], self.owner))


class ContainerCluster:
    """Running containers, named node0, node1, ... on one bridge."""

    def __init__(
        self, kind: Literal["docker", "podman"], nodes: tuple[ContainerNode, ...], network: Network
    ) -> None:
        """Take started nodes, and read their addresses from the engine."""
        self.kind: RuntimeKind = kind
        self.folder = FOLDER
        self.shared = SHARED
        self.python: tuple[str, ...] = ("python",)
        self._launches_modules = False
        network.reload()
        self.subnet = _subnet(network)
        self._nodes = nodes
        self._network = str(network.name)
        # Below Linux's ephemeral ports.
        self._ports = iter(range(29400, 30000))

    @property
    def nodes(self) -> tuple[ContainerNode, ...]:
        """The nodes; where ranks meet, the first one."""
        return self._nodes

    def host(self, index: int) -> str:
        """Return the name by which the other nodes reach a node."""
        return self._nodes[index].name

    def own_name(self, index: int) -> str:
        return self._nodes[index].name

    def address(self, index: int) -> str:
        """Return a node's IP address."""
        container = self._nodes[index].container
        with explained(f"asking for the address of {self._nodes[index].name}"):
            container.reload()
        return str(container.attrs["NetworkSettings"]["Networks"][self._network]["IPAddress"])

    def port(self) -> int:
        """Return a port of the first node that nothing has used yet."""
        return next(self._ports)

    def rank_env(self, index: int) -> dict[str, str]:
        """Return the variables that make NCCL treat a rank's node as a separate host."""
        # NCCL identifies hosts by name and boot id, and all containers of one host have the same boot id.
        return {"NCCL_HOSTID": self._nodes[index].name}

    def prepare(self, target: SmokeTarget, run_id: str) -> SmokeTarget:
        """Find out what a foreign image has, and start its sshd; returns what is known of it then.

        Raises:
            InputError: it has no shell or no Python.
            EnvironmentFault: the engine does not answer.

        """
        facts = discover(self._nodes[0], self.folder)
        self.python, self._launches_modules = (facts.python,), True
        target = dataclasses.replace(target, ssh_user=facts.user, ssh_port=foreign.port(facts))
        if not (facts.ssh and facts.sshd and facts.user and facts.home):
            return dataclasses.replace(target, has_ssh=False)
        archive = packing.pack(foreign.files(f"smoke-{run_id}", facts), self._nodes[0].owner)
        with explained("starting sshd in the nodes"):
            for node in self._nodes:
                node.container.put_archive("/", archive)
                node.container.exec_run(list(foreign.sshd(facts)), detach=True)
        return target

    @property
    def scheduler(self) -> None:
        return None

    def launcher(self, launcher: Launcher) -> tuple[str, ...]:
        # A Python that is not on PATH has its launchers beside it.
        return (*self.python, "-m", launcher.module) if self._launches_modules else launcher.command

    def state(self, index: int) -> tuple[bool, str]:
        """Return whether a node's container runs, and the end of its log."""
        container = self._nodes[index].container
        with explained(f"asking how {self._nodes[index].name} is"):
            container.reload()
            return container.status == "running", container.logs(tail=20).decode(errors="replace").strip()


def _create(
    engine: Engine, target: SmokeTarget, network: Network, name: str, settings: Mapping[str, object]
) -> Container:
    endpoint = engine.client.api.create_endpoint_config(aliases=[name])
    # With `sshd`, the entrypoint keeps sshd in the foreground, as in a worker of a job, instead of starting
    # the recipe's `command:`. A foreign entrypoint is replaced, as by the `command:` of a job.
    is_foreign = target.origin == "foreign"
    if is_foreign:
        settings = {**settings, "entrypoint": ["sh"]}
    return engine.client.containers.create(
        target.reference,
        list(foreign.IDLE) if is_foreign else ["sshd"],
        name=f"{network.name}-{name}",
        hostname=name,
        network=str(network.name),
        networking_config={str(network.name): endpoint},
        **settings,  # type: ignore[arg-type]
    )


def confined(engine: Engine, options: SmokeOptions, given: Mapping[str, Any]) -> dict[str, object]:
    """Return the limits and permissions of a node's container.

    Args:
        engine: runs the container; not every engine can limit what a container uses.
        options: of the run; its nodes share the host's memory.
        given: for this node, takes precedence; capabilities and security options are added.

    """
    own: dict[str, object] = {"cap_drop": ["ALL"]}
    if engine.limits_processes:
        own["pids_limit"] = (_PROCESSES + _PROCESSES_PER_CORE * engine.cores) * options.nproc_per_node
    if engine.limits_memory and engine.memory_bytes:
        # Without swap: the same number for both.
        own["mem_limit"] = own["memswap_limit"] = int(engine.memory_bytes * _SHARE_OF_MEMORY) // options.nodes
    return {
        **own,
        **given,
        "cap_add": [*_POWERS, *_SSHD_POWERS, *given.get("cap_add", ())],
        "security_opt": ["no-new-privileges", *given.get("security_opt", ())],
    }


def _gpus(devices: Devices, index: int) -> dict[str, object]:
    if not devices.of_node:
        return {}
    ids = [gpu.id for gpu in devices.of_node[index]]
    return {"device_requests": [device_request(devices.route, ids)]}


def _require_gpus(node: ContainerNode, gpus: tuple[Gpu, ...]) -> None:
    """Check that a node sees its GPUs and no others: an engine may ignore what it does not know."""
    command = Command(argv=("nvidia-smi", *QUERY), timeout=_SECONDS)
    outcome = node.run(command)
    for _ in range(_QUESTIONS - 1):
        # Podman 5.4 on a busy host loses the output of a short command now and then.
        if outcome.stdout or not outcome.ok:
            break
        outcome = node.run(command)
    seen = [gpu.uuid for gpu in parse(outcome.stdout).gpus]
    if sorted(seen) != sorted(gpu.uuid for gpu in gpus):
        wanted = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
        raise EnvironmentFault(
            f"it was started with GPU {wanted}, and nvidia-smi there says: "
            f"{', '.join(seen) or printable(outcome.last_words)}",
            where=node.name,
            hint="`imagebuilder smoke-test --mode cpu` tests without GPUs",
        )


def _shared(earlier: list[Container]) -> dict[str, object]:
    """Create an anonymous volume with the first node and share it; it is removed with the last node."""
    return {"volumes_from": [str(earlier[0].id)]} if earlier else {"volumes": [SHARED]}


def _subnet(network: Network) -> str:
    for entry in network.attrs.get("IPAM", {}).get("Config") or ():
        subnet = str(entry.get("Subnet", ""))
        if subnet and isinstance(ipaddress.ip_network(subnet), ipaddress.IPv4Network):
            return subnet
    raise EnvironmentFault(
        "the engine gave the test network no IPv4 addresses", hint="allow IPv4 in the engine's address pools"
    )
