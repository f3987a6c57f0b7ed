"""What is made of ranks' checkpoints, and of the table of several layouts."""

from __future__ import annotations

from typing import Any

import pytest

from imagebuilder.smoke.checks import replicas, scaling
from imagebuilder.smoke.nodes.cluster import NodeLayout
from imagebuilder.smoke.target import Promise


def numbers(name: str, kind: str, count: int, max_abs: float | None) -> dict[str, Any]:
    """One tensor that differs, as payload/compare.py says it."""
    sides = {"first": "float32 [8]", "other": "float32 [8]"}
    return {"name": name, "kind": kind, "what": "numbers", **sides, "count": count, "max_abs": max_abs}


MEAN = numbers("model.1.running_mean", "buffer", 8, 0.1)
COUNT = numbers("model.1.num_batches_tracked", "buffer", 1, 1.0)
WEIGHT = numbers("model.0.weight", "parameter", 3, None)
MOMENTUM = {
    "name": "optimizer.state.0.step",
    "kind": "optimizer",
    "what": "value",
    "first": "6",
    "other": "7",
}
ABSENT = {
    "name": "model.9.bias",
    "kind": "parameter",
    "what": "missing",
    "first": "float32 [8]",
    "other": None,
}


def compared(*differences: dict[str, Any]) -> dict[str, Any]:
    counts = {}
    for kind, total in {"parameter": 9, "buffer": 9, "optimizer": 9, "value": 0}.items():
        differ = sum(difference["kind"] == kind for difference in differences)
        counts[kind] = {"equal": total - differ, "differ": differ}
    return {"counts": counts, "differences": list(differences)}


def test_averages_of_each_rank_are_right_without_syncbn_and_equal_ones_with_it() -> None:
    assert replicas.judge("plain", 1, compared(MEAN), "node1") == []
    assert replicas.judge("sync", 1, compared(), "node1") == []


def test_data_parallel_must_compute_the_module_s_own_gradients() -> None:
    assert replicas.judge_threaded({"gpus": 8, "distance": 2e-16}, "node0") == []
    for distance in (0.5, float("nan")):
        (finding,) = replicas.judge_threaded({"gpus": 8, "distance": distance}, "node0")
        assert finding.node == "node0"
        assert finding.message.startswith("DataParallel on 8 GPUs computes other gradients than the module")


@pytest.mark.parametrize(
    ("norm", "differences", "message"),
    [
        ("plain", [MEAN, WEIGHT], "in 1 of 9 parameters: model.0.weight (3 elements, not a number)"),
        (
            "plain",
            [MEAN, MOMENTUM],
            "in 1 of 9 values of the optimizer: optimizer.state.0.step is 6 and 7",
        ),
        ("plain", [], "has the same running averages as rank 0's"),
        ("plain", [MEAN, COUNT], "counts other batches"),
        ("plain", [MEAN, ABSENT], "has other entries than rank 0's: model.9.bias"),
        ("sync", [MEAN], "differs in SyncBatchNorm's running_mean"),
    ],
)
def test_each_way_checkpoints_are_wrong(norm: str, differences: list[dict[str, Any]], message: str) -> None:
    (finding,) = replicas.judge(norm, 1, compared(*differences), "node1")
    assert (finding.node, finding.message.startswith("the checkpoint of rank 1 ")) == ("node1", True)
    assert message in finding.message
    assert finding.remedy


def ran(seconds: float, samples: int = 4480, **change: Any) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "samples": samples,
        "backend": "gloo",
        "batch_per_rank": 32,
        "batch_global": 64,
        "epoch_seconds": seconds,
        "batch_median_ms": 1.0,
        "batch_p95_ms": 2.0,
        "loss": 0.3,
        "accuracy": 0.9,
        "end": "0123456789abcdef",
        **change,
    }


def test_speed_up_is_against_one_rank_and_the_slowest_rank_counts() -> None:
    one = scaling.row(NodeLayout(nnodes=1, nproc_per_node=1), [ran(8.0)], None)
    two = scaling.row(NodeLayout(nnodes=2, nproc_per_node=1), [ran(4.0), ran(5.0)], one)
    assert (one["speedup"], one["efficiency"]) == (1.0, 1.0)
    assert (two["nodes"], two["processes"], two["samples_per_second"]) == (2, 1, 896.0)
    assert (two["speedup"], two["efficiency"]) == (pytest.approx(1.6), pytest.approx(0.8))
    assert two["replica"] == "0123456789ab"
    assert two["reason"] == ""


def test_a_row_without_a_first_one_has_no_speed_up() -> None:
    layout = NodeLayout(nnodes=1, nproc_per_node=1)
    empty = scaling.empty_row(layout, "cpu", "no processor")
    row = scaling.row(NodeLayout(nnodes=2, nproc_per_node=1), [ran(4.0)], empty)
    assert (row["speedup"], row["efficiency"]) == (None, None)


def test_a_layout_that_cannot_be_run_has_a_reason_and_no_number() -> None:
    row = scaling.empty_row(NodeLayout(nnodes=2, nproc_per_node=2), "cuda", "4 ranks would share one GPU")
    numbers = {key: value for key, value in row.items() if key not in ("nodes", "processes")}
    assert numbers.pop("reason") == "4 ranks would share one GPU"
    assert numbers.pop("backend") == "nccl"
    assert set(numbers.values()) == {None}
    assert set(row) == set(scaling.row(NodeLayout(nnodes=1, nproc_per_node=1), [ran(1.0)], None))


@pytest.mark.parametrize(
    ("layout", "place", "reason"),
    [
        ((2, 2), {"cpus": 4}, ""),
        ((2, 2), {"cpus": 2}, "4 ranks need a processor each, and there are 2"),
        ((1, 1), {"mode": "one-gpu-shared"}, ""),
        ((2, 1), {"mode": "one-gpu-shared"}, "2 ranks would share one GPU"),
        ((2, 1), {"mode": "multi-gpu"}, ""),
        ((1, 2), {"mode": "multi-gpu"}, "each node was given 1 GPU: --nproc-per-node 2"),
        ((1, 2), {"mode": "multi-gpu", "nproc_per_node": 2}, ""),
    ],
)
def test_which_layouts_can_be_run(layout: tuple[int, int], place: dict[str, Any], reason: str) -> None:
    where = {"mode": "cpu", "nproc_per_node": 1, "cpus": 1, **place}
    assert scaling.impossible(NodeLayout(nnodes=layout[0], nproc_per_node=layout[1]), **where) == reason


def test_layouts_number_ranks_node_by_node() -> None:
    places = NodeLayout(nnodes=2, nproc_per_node=2).places
    assert [(place.rank, place.node_rank, place.local_rank) for place in places] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]


@pytest.mark.parametrize(
    ("runtime", "required"),
    [("docker", True), ("podman", True), ("process", True), ("ssh", False), ("slurm", False), ("job", False)],
)
def test_replicas_are_required_where_the_test_gives_a_shared_folder(runtime: str, required: bool) -> None:
    promise = Promise(runtime=runtime, mode="cpu", pins={"torch": "2.10.0"})
    assert replicas.CHECK.required(promise) is required
