"""What each check makes of what it sees: good and bad answers."""

from __future__ import annotations

import hashlib
import re
import signal
import struct
import subprocess
import warnings
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType
from typing import Any

import pytest

from imagebuilder import catalog
from imagebuilder.smoke.checks import collectives, control, environment, limits, names, pins, training
from imagebuilder.smoke.nodes.cluster import PAYLOAD, Outcome
from imagebuilder.smoke.run import CHECKS

GIB = 1 << 30
FINE = {"shm": GIB, "memlock": 8 << 20, "nofile": 1024, "rdma": False}


@pytest.mark.parametrize(
    ("pin", "version", "parts", "agree"),
    [
        ("2.10.0", "2.10.0+cu128", 3, True),
        ("2.13.0+cpu", "2.13.0+cu130", 3, True),
        ("12.8.90", "12.8", 2, True),
        ("2.27.5", "2.27.3", 3, False),
        ("9.10.2.21", "9.10.2", 3, True),
        ("14", "14.2.0", 3, True),
        ("1:10.0p1-7", "10.0p2", 2, True),
        ("56.1-1", "56.1", 1, True),
        ("12.8", "12.80", 2, False),
        ("2.27.5", "", 3, False),
        ("odd", "odd", 1, False),
    ],
)
def test_a_pin_agrees_by_its_leading_numbers(pin: str, version: str, parts: int, agree: bool) -> None:
    assert pins.agrees(pin, version, parts) is agree


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    loader = SourceFileLoader("probe", str(PAYLOAD / "bin" / "imagebuilder-probe"))
    spec = spec_from_loader("probe", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("number", "wider_from", "version"),
    [(22705, 10000, "2.27.5"), (2708, 10000, "2.7.8"), (91002, 90000, "9.10.2"), (8907, 90000, "8.9.7")],
    ids=["NCCL 2.27.5", "NCCL 2.7.8", "cuDNN 9.10.2", "cuDNN 8.9.7"],
)
def test_the_probe_reads_versions_old_and_new(
    probe: ModuleType, number: int, wider_from: int, version: str
) -> None:
    assert probe.decoded(number, wider_from) == version


def test_the_probe_refuses_two_copies_of_a_library(
    probe: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        probe.the_one(["/opt/venv/lib/libnccl.so.2", "/usr/lib/libnccl.so.2"], "libnccl.so")
    assert caught.value.code == 1
    assert "2 copies of libnccl.so are loaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"shm": 64 << 20}, "shared memory has 64 MiB"),
        ({"nofile": 256}, "only 256 files"),
        ({"nofile": -1}, ""),
        ({"rdma": True}, "only 8192 KiB may be locked"),
        ({"rdma": True, "memlock": -1}, ""),
    ],
)
def test_limits(change: dict[str, int], message: str) -> None:
    found = limits.judge("node0", {**FINE, **change})
    assert [message in finding.message and finding.remedy != "" for finding in found] == (
        [True] if message else []
    )


def test_limits_that_are_lower_through_ssh_are_found() -> None:
    assert limits.compare("node1", "ssh", FINE, FINE) == []
    (finding,) = limits.compare("node1", "ssh", {**FINE, "memlock": -1}, FINE)
    assert (
        "through ssh the limit of locked memory is 8388608, in the container itself unlimited"
        in finding.message
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"own": "node0", "names": {"node0": ["172.18.0.2"], "node1": ["172.18.0.3"]}}, ""),
        ({"own": "node0", "names": {"node0": ["127.0.1.1"]}}, "`node0` means 127.0.1.1, the loopback"),
        ({"own": "node0", "names": {"node1": ["10.0.0.1"]}}, "not in 172.18.0.0/16"),
        ({"own": "node0", "names": {"node1": ["! Name or service not known"]}}, "cannot be resolved"),
        ({"own": "worker", "names": {}}, "calls itself `worker`"),
    ],
)
def test_names(said: dict[str, Any], message: str) -> None:
    found = names.judge("node0", said, "172.18.0.0/16")
    assert [message in finding.message for finding in found] == ([True] if message else [])


def test_the_environment_script_says_tools_and_variables() -> None:
    done = subprocess.run(
        ["/bin/sh", str(PAYLOAD / "environ.sh"), "n0nce", "PATH", "EMPTY", "ODD", "ABSENT"],
        env={"PATH": "/usr/bin:/bin", "EMPTY": "", "ODD": "a b$HOME'\\n"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = environment.parse(done.stdout, "n0nce")
    assert {key: value for key, value in found.items() if key.startswith("env ")} == {
        "env PATH": "/usr/bin:/bin",
        "env EMPTY": "",
        "env ODD": "a b$HOME'\\n",
    }
    assert "tool python" in found
    assert environment.parse(done.stdout, "another") == {}, "an answer of another run"


def test_environments_differ_by_tool_and_variable_path_first() -> None:
    here = {"env LANG": "C.UTF-8", "env PATH": "/opt/venv/bin:/bin", "tool python": "/opt/venv/bin/python"}
    there = {"env PATH": "/bin", "tool python": ""}
    assert environment.differences(here, there) == [
        "PATH is `/bin`, not `/opt/venv/bin:/bin`",
        "LANG is not set, not `C.UTF-8`",
        "`python` is not found, not /opt/venv/bin/python",
    ]
    assert environment.differences(here, here) == []
    assert environment.differences({"env PRTE_X": "1"}, {}, ("env PRTE_",)) == []


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("length", [8, 4096, 80_000])
def test_the_expected_sum_is_that_of_all_ranks(size: int, length: int) -> None:
    count = length // 8
    data = [[(i % 1009) * (rank + 1) + rank for i in range(count)] for rank in range(size)]
    summed = struct.pack(f"<{count}q", *map(sum, zip(*data, strict=True)))
    assert collectives.expected_digest(size, length) == hashlib.sha256(summed).hexdigest()


def answer(number: int, **change: object) -> dict[str, Any]:
    right = collectives.expected_digest(2, 4096)
    return {"rank": number, "digest": right, "held": 0.5 if number else 0.0, **change}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"digest": "0" * 64}, "an allreduce of 4096 bytes is not the sum"),
        ({"held": 0.01}, "a barrier held it 0.01 s"),
    ],
)
def test_what_ranks_say_of_collectives(change: dict[str, Any], message: str) -> None:
    found = collectives.judge([answer(0), answer(1, **change)], 4096, lambda rank: f"node{rank}")
    assert [(finding.node, message in finding.message, bool(finding.remedy)) for finding in found] == (
        [("node1", True, True)] if message else []
    )


@pytest.mark.parametrize(
    ("lacking", "names"),
    [
        ((), "allreduce, broadcast, allgather, reduce_scatter and all_to_all"),
        (("reduce_scatter", "all_to_all"), "allreduce, broadcast and allgather"),
    ],
)
def test_collectives_that_did_not_run_are_not_named(lacking: tuple[str, ...], names: str) -> None:
    assert collectives.ran(lacking) == names


def test_bandwidths_are_worked_out_as_nccl_tests_does() -> None:
    (row,) = collectives.sweep([{"bytes": 4_000_000, "dtype": "float32", "seconds": 0.002}], 4)
    assert row["algbw_gbs"] == pytest.approx(2.0)
    assert row["busbw_gbs"] == pytest.approx(2.0 * 2 * 3 / 4)


@pytest.mark.parametrize(("floor", "fails"), [(0.0, False), (2.0, False), (2.5, True)])
def test_a_floor_is_compared_with_the_largest_message(floor: float, fails: bool) -> None:
    rows = [{"bytes": 4, "busbw_gbs": 0.001}, {"bytes": 1 << 26, "busbw_gbs": 2.0}]
    found = collectives.judge_speed(rows, floor)
    assert ["an allreduce of 64 MiB reaches a bus bandwidth of 2.000 GB/s" in f.message for f in found] == (
        [True] if fails else []
    )


def test_losses_are_the_mean_over_the_ranks() -> None:
    assert training.mean_losses([[2.0, 1.0], [1.0, 0.5]]) == [1.5, 0.75]


@pytest.mark.parametrize(
    ("line", "ok", "words"),
    [
        ("nccl=2.27.5", True, "2.27.5"),
        ("nccl!2 copies of libnccl.so are loaded: /a, /b", False, "2 copies of libnccl.so"),
        ("", False, "killed"),
    ],
)
def test_one_components_answer_is_taken_out_of_all(line: str, ok: bool, words: str) -> None:
    said = Outcome(code=0 if line else 137, stdout=f"cuda=12.8\n{line}\n", stderr="killed", seconds=1)
    found = pins.one_answer(said, "nccl")
    assert found.ok is ok
    assert words in (found.stdout if ok else found.last_words)


def test_each_component_is_asked_apart_and_a_crash_ends_no_other(
    probe: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    def crash() -> str:
        signal.raise_signal(signal.SIGKILL)
        return "survived"

    def stop() -> str:
        return str(probe.stop("no such library"))

    def found() -> str:
        return "1.2.3"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside pytest's threads, if any
        answers = [probe.apart(ask) for ask in (crash, stop, found)]
    assert answers == ["crash!it ended with -9", "stop!no such library", "found=1.2.3"]
    assert capfd.readouterr().out == ""


def rank(number: int, **change: object) -> dict[str, Any]:
    return {
        "rank": number,
        "own": f"own{number}",
        "start": "s",
        "end": "e",
        "first_loss": 2.3,
        "last_loss": 0.2,
        "accuracy": 0.94,
        "distance": 1e-15 if number == 0 else None,
        **change,
    }


def test_a_good_training_has_no_findings() -> None:
    assert training.judge([rank(0), rank(1)], ["node0", "node1"]) == []


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"end": "other"}, "replicas differ"),
        ({}, {"start": "other"}, "did not give all ranks"),
        ({}, {"own": "own0"}, "seeded differently"),
        ({}, {"accuracy": 0.89}, "accuracy"),
        ({}, {"accuracy": float("nan")}, "accuracy"),
        ({}, {"last_loss": 1.2}, "nothing was learnt"),
        ({}, {"last_loss": float("nan")}, "nothing was learnt"),
        ({"distance": 1e-3}, {}, "one process"),
        ({"distance": float("nan")}, {}, "one process"),
        ({"distance": None}, {}, "one process"),
    ],
)
def test_each_way_a_training_goes_wrong(first: dict[str, Any], second: dict[str, Any], message: str) -> None:
    (finding,) = training.judge([rank(0, **first), rank(1, **second)], ["node0", "node1"])
    assert message in finding.message
    assert finding.remedy


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"end": "a"}, {"end": "b"}, ""),
        ({"end": "a"}, {"end": "a"}, "stayed equal"),
        ({"end": "a"}, {"end": "b", "start": "other"}, "did not start with equal weights"),
    ],
)
def test_a_control_has_to_drift_apart_from_equal_weights(
    first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    said = control.judge([rank(0, **first), rank(1, **second)])
    assert message in said
    assert bool(said) is bool(message)


@pytest.mark.parametrize("name", catalog.frameworks())
def test_a_framework_names_checks_and_scripts_that_exist(name: str) -> None:
    framework = catalog.frameworks()[name]
    assert framework.payloads.keys() <= {check.name for check in CHECKS}
    assert all((PAYLOAD / script).is_file() for script in framework.payloads.values())
    options = framework.launcher.options if framework.launcher else ()
    assert set(re.findall(r"\{(\w*)\}", " ".join(options))) <= {"nodes", "ranks", "place", "job"}


def test_every_check_says_what_it_is_and_none_is_there_twice() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.title and check.criterion for check in CHECKS)
    # Two checks with one number would run in the order of their names.
    assert [check.order for check in CHECKS] == sorted({check.order for check in CHECKS})
    assert [check.name for check in CHECKS if check.exchanges] == [
        "mpirun",
        "rendezvous",
        "collectives",
        "training",
        "replicas",
    ]
