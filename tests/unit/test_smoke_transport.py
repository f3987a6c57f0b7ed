"""What NCCL says of itself, in the formats of its releases, and what is made of it; nccl-tests' report."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.core import yamlfile
from imagebuilder.smoke.checks import nccl_tests, transport
from imagebuilder.smoke.nccllog import NcclLog, Way, kind, parse

LOGS = Path(__file__).resolve().parents[1] / "cases" / "nccl"
PUBLISHED = LOGS.parent / "nccl-logs"
NODES = {0: "node0", 1: "node1", 2: "node0"}
SUBNET = "172.20.0.0/16"


def log(name: str) -> NcclLog:
    return parse((LOGS / name).read_text())


@pytest.mark.parametrize(
    ("name", "version", "bootstrap", "network", "provider", "transports"),
    [
        ("socket-2.27.log", "2.27.5", ("eth0", "172.20.0.2"), "Socket", "", {("NET", "Socket", False)}),
        ("socket-2.4.log", "2.4.8", ("eth0", "172.20.0.2"), "Socket", "", {("NET", "Socket", False)}),
        ("ib-2.21.log", "2.21.5", ("bond0", "10.1.0.7"), "IB", "", {("NET", "IB", True), ("P2P", "", False)}),
        (
            "ofi-2.21.log",
            "2.21.5",
            ("eth0", "10.1.0.8"),
            "AWS Libfabric",
            "efa",
            {("NET", "AWS Libfabric", True)},
        ),
        ("one-host.log", "2.27.5", ("eth0", "172.20.0.2"), "Socket", "", {("SHM", "", False)}),
        ("silent.log", "", ("", ""), "", "", set()),
    ],
)
def test_logs_of_several_releases_are_read(
    name: str,
    version: str,
    bootstrap: tuple[str, str],
    network: str,
    provider: str,
    transports: set[tuple[str, str, bool]],
) -> None:
    found = log(name)
    assert (found.version, (found.interface, found.address)) == (version, bootstrap)
    assert (found.network, found.provider) == (network, provider)
    assert {(way.transport, way.network, way.direct) for way in found.ways} == transports


def shown(way: Way) -> str:
    """Write a way as the files in tests/cases/nccl-logs do: `0 -> 9: NET IB direct relayed`."""
    words = (way.transport, way.network, "direct" * way.direct, "relayed" * way.relayed)
    return f"{way.source} -> {way.target}: {' '.join(filter(None, words))}"


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.yaml")), ids=lambda path: path.stem)
def test_published_logs_are_read(path: Path) -> None:
    case = yamlfile.parse(path.read_bytes(), str(path)).data
    found = parse(case["log"])
    assert case["expected"] == {
        "version": found.version,
        "interface": found.interface,
        "address": found.address,
        "network": found.network,
        "kind": kind(found.network),
        "provider": found.provider,
        "gpus": found.gpus,
        "ways": tuple(shown(way) for way in found.ways),
    }


def test_published_logs_are_of_many_releases_and_networks() -> None:
    cases = [yamlfile.parse(path.read_bytes(), str(path)).data for path in PUBLISHED.glob("*.yaml")]
    assert len({case["source"] for case in cases}) >= 30
    assert {case["expected"]["kind"] for case in cases} == {"", "socket", "ib", "ofi"}


@pytest.mark.parametrize(
    "line",
    [
        "[0] NCCL INFO Channel 00 : " + "9" * 6000 + "[0] -> 1[0] via NET/IB/0",
        "[0] NCCL INFO Channel 00 : 0[" * 40_000,
        "NCCL INFO Bootstrap : Using " + "[0]" * 300_000,
        "NCCL INFO Using network " + " x" * 500_000,
        "NET/OFI Selected Provider is " + "e" * 1_000_000,
        "[0] NCCL INFO Channel 00 : \u0661[0] -> \u0662[0] via NET/IB/0",
        "NCCL version " + "1" * 800_000,
    ],
    ids=["number", "brackets", "bootstrap", "network", "provider", "other digits", "version"],
)
def test_a_hostile_log_says_nothing_and_costs_little(line: str) -> None:
    started = time.monotonic()
    found = parse(line + "\n")
    assert time.monotonic() - started < 1
    assert (found.version, found.address, found.ways) == ("", "", ())
    assert max(map(len, (found.network, found.provider))) <= 100


def test_a_hostile_log_has_few_ways_and_gpus() -> None:
    lines = (f"[{i}] NCCL INFO Channel 00 : {i}[0] -> 1[0] via NET/IB/0" for i in range(9000))
    found = parse("\n".join(lines))
    assert (len(found.ways), len(found.gpus)) == (4096, 64)


def test_nvlink_between_nodes_bypasses_the_network_rightly() -> None:
    line = "node0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/MNNVL\n"
    found = parse((LOGS / "socket-2.27.log").read_text() + line)
    assert transport.judge({0: found}, NODES, "any", SUBNET) == []


@pytest.mark.parametrize(
    ("network", "meant"),
    [("Socket", "socket"), ("IB", "ib"), ("IBext_v8", "ib"), ("Libfabric", "ofi"), ("Odd", "Odd")],
)
def test_a_plugins_name_says_what_it_goes_over(network: str, meant: str) -> None:
    assert kind(network) == meant


@pytest.mark.parametrize("wanted", ["any", "socket"])
def test_sockets_on_all_ranks_are_right_where_they_are_expected(wanted: str) -> None:
    logs = {0: log("socket-2.27.log"), 1: log("socket-2.27.log")}
    assert transport.judge(logs, NODES, wanted, SUBNET) == []


@pytest.mark.parametrize(
    ("names", "wanted", "subnet", "messages"),
    [
        (
            ("socket-2.27.log",) * 2,
            "ib",
            SUBNET,
            ["rank 0: NCCL uses the network Socket, and ib is", "rank 1"],
        ),
        (("socket-2.27.log",) * 2, "any", "10.9.0.0/16", ["not over 10.9.0.0/16", "not over 10.9.0.0/16"]),
        (
            ("ib-2.21.log", "socket-2.27.log"),
            "any",
            "0.0.0.0/0",
            ["use different networks: rank 0 IB, rank 1"],
        ),
        (("silent.log", "socket-2.27.log"), "any", SUBNET, ["NCCL's log does not name its transport"]),
        (("one-host.log", "socket-2.27.log"), "any", SUBNET, ["reaches another node through SHM"]),
    ],
    ids=["another than asked for", "over another interface", "one without InfiniBand", "silent", "one host"],
)
def test_each_way_a_transport_is_wrong(
    names: tuple[str, str], wanted: str, subnet: str, messages: list[str]
) -> None:
    found = transport.judge({rank: log(name) for rank, name in enumerate(names)}, NODES, wanted, subnet)
    assert len(found) == len(messages)
    assert all(message in finding.message for message, finding in zip(messages, found, strict=True))
    assert all(finding.remedy for finding in found)


def test_ranks_of_one_node_may_go_past_the_network() -> None:
    logs = {0: log("one-host.log"), 1: log("one-host.log")}
    assert transport.judge(logs, {0: "node0", 1: "node0"}, "any", SUBNET) == []


def report(**change: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LOGS / "all_reduce_perf.json").read_text())
    return {**found, **change}


def test_a_good_report_of_nccl_tests_passes_and_is_read() -> None:
    assert nccl_tests.judge(report(), 2, 0.0) == []
    assert nccl_tests.judge(report(), 2, 1.0) == []
    last = nccl_tests.rows(report())[-1]
    assert (last["bytes"], last["dtype"], last["nwrong"]) == (1 << 26, "float", 0)
    assert last["seconds"] == pytest.approx(0.0305)


@pytest.mark.parametrize(
    ("change", "floor", "message"),
    [
        ({"config": {"devices": [{"rank": 0}]}}, 0, "ran with 1 of 2 ranks"),
        ({"out_of_bounds": {"count": 3, "okay": "false"}}, 0, "counts 3 wrong values"),
        ({"out_of_bounds": {}}, 0, "counts no wrong values"),
        ({"results": []}, 0, "checked no result"),
        ({}, 50, "and --min-busbw asks for 50"),
    ],
)
def test_each_way_nccl_tests_go_wrong(change: dict[str, Any], floor: float, message: str) -> None:
    (finding,) = nccl_tests.judge(report(**change), 2, floor)
    assert message in finding.message
    assert finding.remedy


def test_a_bandwidth_of_nothing_is_no_pass() -> None:
    found = report()
    for row in found["results"]:
        row["out_of_place"]["bus_bw"] = 0.0
    (finding,) = nccl_tests.judge(found, 2, 0.0)
    assert "nothing went from rank to rank" in finding.message
