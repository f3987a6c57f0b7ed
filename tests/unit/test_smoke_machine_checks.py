"""What the checks of a node's own things make of what they see: disk, clock, compilers, a killed job."""

from __future__ import annotations

from typing import Any

import pytest

from imagebuilder.smoke.checks import clock, disk, failure, toolchain
from imagebuilder.smoke.nodes.cluster import Outcome

MIB = 1 << 20
TOOLS = {"gcc": "/usr/bin/gcc", "g++": "/usr/bin/g++", "nvcc": ""}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"inodes": -1}, ""),
        ({"free": 10 * MIB}, "/tmp has only 10 MiB free, and 256 are needed"),
        (
            {"free": 0, "wrote": "No space left on device"},
            "cannot be written to: No space left on device (0 MiB",
        ),
        ({"inodes": 3}, "/tmp has room for only 3 more files"),
    ],
    ids=["enough", "no limit of files", "little", "full", "no inodes"],
)
def test_disk(change: dict[str, Any], message: str) -> None:
    said = {"folder": "/tmp", "free": 4096 * MIB, "inodes": 100_000, "wrote": "", **change}
    found = disk.judge("node1", said)
    assert [(f.node, message in f.message, bool(f.remedy)) for f in found] == (
        [("node1", True, True)] if message else []
    )


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((-0.1, 0.2), ""),
        ((-5.0, 1.0), ""),
        ((0.0, 30.0), ""),
        ((3600.0, 3600.4), "the clock is 3599.9 s ahead of node0's"),
        ((-9.0, -8.6), "the clock is 8.6 s behind node0's"),
        ((0.9, 1.0), ""),
    ],
    ids=["equal", "asked slowly", "asked very slowly", "ahead", "behind", "within a second"],
)
def test_clocks_are_accused_only_of_what_is_certain(second: tuple[float, float], message: str) -> None:
    found = clock.judge({"node0": (0.0, 0.1), "node1": second})
    assert [(f.node, message in f.message) for f in found] == ([("node1", True)] if message else [])


@pytest.mark.parametrize(
    ("change", "message", "remedy"),
    [
        ({}, "", ""),
        ({"results": {"C": "ok", "C++": "ok", "CUDA": "ok, compiled only: it needs a GPU to run"}}, "", ""),
        ({"results": {"C": "ok", "C++": "ok", "torch extension": "no Python.h in this image"}}, "", ""),
        (
            {"tools": {**TOOLS, "gcc": ""}, "results": {"C": "does not compile: not found", "C++": "ok"}},
            "`gcc` is not on PATH",
            "pin `gcc`",
        ),
        (
            {"results": {"C": "ok", "C++": "compiles, but does not run: GLIBCXX_3.4.33 not found"}},
            "a program in C++ compiles, but does not run",
            "older libstdc++",
        ),
        (
            {
                "results": {
                    "C": "ok",
                    "C++": "ok",
                    "CUDA": "does not compile: #error -- unsupported GNU version!",
                }
            },
            "a program in CUDA does not compile",
            "older `gcc`",
        ),
        (
            {"results": {"C": "runs, but gives '1', not 332833500", "C++": "ok"}},
            "a program in C runs, but gives '1'",
            "the report",
        ),
        (
            {"results": {"C": "ok", "C++": "ok", "torch extension": "does not compile: error: x"}},
            "an extension of torch does not compile",
            "the report",
        ),
    ],
)
def test_toolchain(change: dict[str, Any], message: str, remedy: str) -> None:
    said = {"tools": TOOLS, "results": {"C": "ok", "C++": "ok"}, **change}
    found = toolchain.judge("node0", said)
    assert [(message in f.message, remedy in f.remedy) for f in found] == ([(True, True)] if message else [])


def ended(node: str, code: int | None, *, timed_out: bool = False, stderr: str = "") -> Outcome:
    return Outcome(code=code, stdout="", stderr=stderr, seconds=60, timed_out=timed_out, node=node)


def test_a_job_that_ends_with_an_error_after_a_kill_is_right() -> None:
    assert failure.judge("torchrun", [ended("node0", 1), ended("node1", 1)], [1, 0], 2) == []
    assert failure.judge_left("torchrun", {"node0": [], "node1": []}) == []


@pytest.mark.parametrize(
    ("outcome", "reached", "message"),
    [
        (ended("node0", 0), [0, 1], "the launcher ended with 0"),
        (ended("node0", 124, timed_out=True), [0, 1], "60 s after the start the job still hung"),
        (ended("node0", None), [0, 1], "the job still hung"),
        (
            ended("node0", 1, stderr="no route to host"),
            [0],
            "before rank 1 was to be killed: no route to host",
        ),
    ],
    ids=["taken for done", "hangs", "no answer", "never began"],
)
def test_each_way_a_killed_job_ends_wrongly(outcome: Outcome, reached: list[int], message: str) -> None:
    (finding,) = failure.judge("torchrun", [outcome, ended("node1", 1)], reached, 2)
    assert (finding.node, message in finding.message) == ("node0", True)
    assert finding.remedy


def test_processes_that_are_left_are_named() -> None:
    (finding,) = failure.judge_left("mpirun", {"node0": [], "node1": ["71 python mpi_victim.py"]})
    assert finding.node == "node1"
    assert "1 of its processes still runs: 71 python mpi_victim.py" in finding.message


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ((), ""),
        (("9.0", "10.3"), ""),
        (("12.2",), "hosts.gpus has 12.2, and Triton's ptxas-blackwell knows 9.0, 10.3"),
        (("6.0",), "hosts.gpus has 6.0, and Triton's ptxas knows 9.0"),
    ],
)
def test_tritons_assembler_knows_the_recipes_gpus(wanted: tuple[str, ...], message: str) -> None:
    ptxas = {"ptxas": ["9.0"], "ptxas-blackwell": ["9.0", "10.3"]}
    found = [finding.message for finding in toolchain.unknown_gpus("node0", ptxas, wanted)]
    assert found == ([message] if message else [])
    assert list(toolchain.unknown_gpus("node0", {}, wanted)) == []


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("ok", ""),
        ("no Python.h in this image", ""),
        ("does not compile: no g++", "a function for torch.compile does not compile: no g++"),
    ],
)
def test_a_function_for_torch_compile(result: str, message: str) -> None:
    said = {"tools": {"gcc": "/usr/bin/gcc", "g++": "/usr/bin/g++"}, "results": {"torch.compile": result}}
    found = [finding.message for finding in toolchain.judge("node0", said)]
    assert found == ([message] if message else [])
    assert toolchain.left_out(said["results"]).endswith("no Python.h in this image") == result.startswith(
        "no "
    )
