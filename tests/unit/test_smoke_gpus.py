"""Which GPUs there are, which node gets which, and how its container gets them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from docker.errors import APIError

from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.host import engine as hosts
from imagebuilder.host.engine import Engine
from imagebuilder.smoke import engine as engines
from imagebuilder.smoke import gpus
from imagebuilder.smoke.gpus import Gpu, Gpus
from imagebuilder.smoke.nodes import containers, processes
from imagebuilder.smoke.nodes.cluster import Command, Outcome
from imagebuilder.smoke.report import NodeGpu, told_gpus
from imagebuilder.smoke.run import _assigned, told_of
from imagebuilder.smoke.target import SmokeOptions

UUIDS = [f"GPU-0000000{number}-aaaa" for number in range(4)]
LISTED = "".join(f"{number}, {uuid}, NVIDIA H100, NVL, 570.86.15\n" for number, uuid in enumerate(UUIDS))
FOUND = gpus.parse(LISTED)
NAMES = "write numbers or uuids of nvidia-smi's list, as in `--gpus 0,2`, or `--gpus all`"


def test_nvidia_smi_s_list_is_read_and_nothing_else() -> None:
    assert FOUND.driver == "570.86.15"
    assert FOUND.gpus[2] == Gpu(index=2, uuid=UUIDS[2], name="NVIDIA H100, NVL", id="2")
    assert FOUND.names == ("NVIDIA H100, NVL",) * 4
    assert gpus.parse("NVIDIA-SMI has failed because, it couldn't, communicate, with the driver") == Gpus()
    assert gpus.parse(f"7, {'u' * 81}, n, d\n7, u, {'n' * 201}, d\n1234, u, n, d") == Gpus()
    assert len(gpus.parse("0, u, n, d\n" * 5000).gpus) == 1024
    # Whatever an image answers, it does not act on a terminal.
    assert gpus.parse("0, GPU-\x1b[2J, n\x07, d").gpus[0].uuid == "GPU-\\x1b[2J"


def test_gpus_are_used_in_the_order_in_which_they_are_named() -> None:
    chosen = gpus.choose(FOUND, ("2", UUIDS[0]), "docker here")
    assert [(gpu.index, gpu.id) for gpu in chosen.gpus] == [(2, "2"), (0, UUIDS[0])]
    assert chosen.driver == "570.86.15"
    assert gpus.choose(FOUND, (), "docker here") == gpus.choose(FOUND, ("all",), "docker here") == FOUND
    assert gpus.choose(Gpus(), (), "docker here") == Gpus()


@pytest.mark.parametrize(
    ("found", "asked", "message", "hint"),
    [
        (
            gpus.parse(LISTED.splitlines()[1]),
            ("0", "1", UUIDS[3]),
            f"docker here has no GPU 0 or {UUIDS[3]}",
            f"it offers 1 ({UUIDS[1]}, NVIDIA H100, NVL)",
        ),
        (
            Gpus(lacking="Podman's service takes CDI devices since version 5.4"),
            ("all",),
            "docker here offers no GPU",
            "Podman's service takes CDI devices since version 5.4",
        ),
    ],
)
def test_gpus_that_are_not_there_are_named(
    found: Gpus, asked: tuple[str, ...], message: str, hint: str
) -> None:
    with pytest.raises(EnvironmentFault) as error:
        gpus.choose(found, asked, "docker here")
    assert str(error.value) == f"--gpus: {message}\n  -> {hint}"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"gpus": ("0",), "mode": "cpu"}, "mode cpu uses no GPU", ""),
        (
            {"gpus": ("0", "1", "2")},
            "3 GPUs for 2 ranks: name one, which all of them share, or 2, one for each",
            "",
        ),
        (
            {"gpus": ("0", "1"), "nproc_per_node": 2},
            "2 GPUs for 4 ranks: name one, which all of them share, or 4, one for each",
            "",
        ),
        ({"gpus": ("0", "0")}, "a GPU is there twice", ""),
        ({"gpus": ("nvidia.com/gpu=0",)}, "`nvidia.com/gpu=0` is not a GPU", NAMES),
        ({"gpus": ("all", "0")}, "`all` is not a GPU", NAMES),
        ({"gpus": ("0", "")}, "`` is not a GPU", NAMES),
        (
            {"gpus": ("0",), "runtime": "ssh", "hosts": ("a", "b")},
            "the runtime ssh takes the GPUs that its hosts offer",
            "set CUDA_VISIBLE_DEVICES there; auto, docker, podman, process take `--gpus`",
        ),
    ],
)
def test_gpus_that_cannot_be_used_are_refused_before_anything_starts(
    options: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(InputError) as error:
        SmokeOptions(**options)
    assert str(error.value) == f"--gpus: {message}" + (f"\n  -> {hint}" if hint else "")


def test_each_rank_gets_a_gpu_or_all_share_one() -> None:
    options = SmokeOptions(nproc_per_node=2)
    told = told_gpus(told_of(_assigned(options, FOUND, "multi-gpu")))
    assert told == "; ".join(
        f"node{number // 2} has {number} (NVIDIA H100, NVL, {UUIDS[number]})" for number in range(4)
    )
    shared = _assigned(options, gpus.choose(FOUND, ("2",), ""), "one-gpu-shared")
    assert [(row.node, row.index) for row in told_of(shared)] == [("node0", 2), ("node1", 2)]
    assert _assigned(options, FOUND, "cpu") == ()
    assert NodeGpu(node="node0", index=2, uuid=UUIDS[2], name="NVIDIA H100, NVL") in told_of(shared)


def test_ranks_of_processes_see_their_gpus_alone() -> None:
    with processes.start(SmokeOptions(), (FOUND.gpus[2:3], FOUND.gpus[:1])) as cluster:
        assert [cluster.rank_env(node)["CUDA_VISIBLE_DEVICES"] for node in (0, 1)] == ["2", "0"]
    with processes.start(SmokeOptions()) as cluster:
        assert "CUDA_VISIBLE_DEVICES" not in cluster.rank_env(0)


def test_a_process_keeps_to_the_gpus_that_it_was_given() -> None:
    def visible(given: str) -> list[tuple[str, str]]:
        return [(gpu.id, gpu.uuid) for gpu in processes.visible(FOUND.gpus, given)]

    assert visible("3,1") == [("3", UUIDS[3]), ("1", UUIDS[1])]
    assert visible(UUIDS[2]) == [(UUIDS[2], UUIDS[2])]
    assert visible("MIG-5c8e") == [("MIG-5c8e", "")]
    assert len(visible("")) == 4
    assert processes.visible((), "0") == ()


@pytest.mark.parametrize(
    ("kind", "version", "info", "routes"),
    [
        ("docker", "20.10.24", {"Runtimes": {"runc": {}}}, ()),
        ("docker", "26.1.5", {"Runtimes": {"runc": {}, "nvidia": {}}}, ("request",)),
        ("docker", "26.1.5", {"CDISpecDirs": ["/etc/cdi"], "Runtimes": {"nvidia": {}}}, ("cdi", "request")),
        ("docker", "26.1.5", {"CDISpecDirs": []}, ()),
        ("docker", "28.2.2", {"DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}]}, ("cdi",)),
        (
            "docker",
            "28.2.2",
            {"CDISpecDirs": ["/etc/cdi"], "DiscoveredDevices": [{"ID": "other.org/nic=0"}]},
            (),
        ),
        ("podman", "5.4.2", {}, ("cdi",)),
        ("podman", "5.10.0-dev", {}, ("cdi",)),
        ("podman", "4.9.3", {"Runtimes": {"nvidia": {}}}, ()),
    ],
)
def test_engines_give_gpus_in_ways_of_their_own(
    kind: str, version: str, info: dict[str, Any], routes: tuple[str, ...]
) -> None:
    assert hosts._gpu_routes(kind, version, info) == routes


class Asked:
    """An engine's containers: it has GPUs for requests whose driver it takes, or fails with an error."""

    def __init__(self, answers: dict[str, bytes | APIError]) -> None:
        self.answers = answers
        self.requests: list[dict[str, Any]] = []

    def run(self, _image: str, **settings: Any) -> bytes:
        (request,) = settings["device_requests"]
        self.requests.append(request)
        answer = self.answers[request["Driver"]]
        if isinstance(answer, APIError):
            raise answer
        return answer


def engine(asked: Asked, *routes: Literal["cdi", "request"]) -> Engine:
    client = cast(Any, SimpleNamespace(containers=asked))
    return Engine(client=client, kind="docker", version="1", cores=1, memory_bytes=1, gpu_routes=routes)


UNRESOLVABLE = APIError("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all")


def test_cdi_is_asked_for_gpus_before_the_runtime_of_nvidia(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked({"cdi": LISTED.encode(), "": b""})
    assert engines.gpus(engine(asked, "cdi", "request"), "image") == (FOUND, "cdi")
    assert [request["DeviceIDs"] for request in asked.requests] == [["nvidia.com/gpu=all"]]
    asked = Asked({"cdi": UNRESOLVABLE, "": LISTED.encode()})
    assert engines.gpus(engine(asked, "cdi", "request"), "image") == (FOUND, "request")
    assert (asked.requests[1]["Count"], asked.requests[1]["DeviceIDs"]) == (-1, [])
    # Every host without GPUs whose Docker knows CDI comes here.
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("routes", "answer", "lacking", "warned"),
    [
        ((), b"", engines._NO_ROUTE["docker"], False),
        (("cdi",), UNRESOLVABLE, engines._NO_DEVICE, False),
        (("cdi",), b"No devices were found", "nvidia-smi lists none in a container", False),
        (("cdi",), APIError("no such hook\x1b"), "no such hook\\x1b", True),
    ],
)
def test_why_there_are_no_gpus_is_known(
    routes: tuple[Literal["cdi"], ...],
    answer: bytes | APIError,
    lacking: str,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found, _ = engines.gpus(engine(Asked({"cdi": answer}), *routes), "image")
    assert found == Gpus(lacking=lacking)
    assert bool(caplog.text) is warned


def test_containers_ask_for_the_gpus_of_their_node() -> None:
    for route, name in (("cdi", "nvidia.com/gpu=2"), ("request", "2")):
        devices = containers.Devices(route=cast(Any, route), of_node=(FOUND.gpus[:1], FOUND.gpus[2:3]))
        (request,) = cast(Any, containers._gpus(devices, 1)["device_requests"])
        assert (request["DeviceIDs"], request["Count"]) == ([name], 0)
    assert containers._gpus(containers.Devices(), 0) == {}


def node(*answers: str) -> Any:
    """A node that answers so, and its last answer from then on."""
    left = list(answers)

    def run(_command: Command) -> Outcome:
        return Outcome(code=0, stdout=left.pop(0) if left[1:] else left[0], stderr="", seconds=0.0)

    return SimpleNamespace(name="node1", run=cast(Callable[[Command], Outcome], run))


def test_a_node_that_sees_other_gpus_than_its_own_is_not_used() -> None:
    own = FOUND.gpus[1:2]
    containers._require_gpus(node("", "", LISTED.splitlines()[1]), own)
    for answer, seen in (
        ("", "it printed nothing"),
        ("No devices\x1b", "No devices\\x1b"),
        (LISTED, ", ".join(UUIDS)),
        (LISTED.splitlines()[2], UUIDS[2]),
    ):
        with pytest.raises(EnvironmentFault) as error:
            containers._require_gpus(node(answer), own)
        assert str(error.value) == (
            f"node1: it was started with GPU 1 ({UUIDS[1]}), and nvidia-smi there says: {seen}\n"
            "  -> `imagebuilder smoke-test --mode cpu` tests without GPUs"
        )
