"""What is made of ranks' checkpoints, and of the table of several layouts."""

from __future__ import annotations

from typing import Any

import pytest

from imagebuilder.smoke.checks import replicas, scaling
from imagebuilder.smoke.cluster import Layout

MEAN = {"name": "model.1.running_mean", "of": "float32[8]", "elements": 8, "max_abs": 0.1, "max_rel": 0.2}
COUNT = {
    "name": "model.1.num_batches_tracked",
    "of": "int64[]",
    "elements": 1,
    "max_abs": 1.0,
    "max_rel": 0.1,
}
WEIGHT = {"name": "model.0.weight", "of": "float32[8]", "elements": 3, "max_abs": None, "max_rel": None}
MOMENTUM = {"name": "optimizer.state.0.step", "first": "6", "second": "7"}


def compared(
    *, parameters: Any = (), buffers: Any = (MEAN,), others: Any = (), lacking: Any = ()
) -> dict[str, Any]:
    groups = {"parameters": parameters, "buffers": buffers, "others": others}
    return {
        **{
            name: {"compared": 9, "differ": len(different), "different": list(different)}
            for name, different in groups.items()
        },
        "only_in_first": list(lacking),
        "only_in_second": [],
    }


def test_averages_of_each_rank_are_right_without_syncbn_and_equal_ones_with_it() -> None:
    assert replicas.judge("plain", 1, compared(), "node1") == []
    assert replicas.judge("sync", 1, compared(buffers=()), "node1") == []


@pytest.mark.parametrize(
    ("norm", "change", "message"),
    [
        (
            "plain",
            {"parameters": [WEIGHT]},
            "in 1 of 9 parameters: model.0.weight (3 elements, not a number)",
        ),
        ("plain", {"others": [MOMENTUM]}, "values of the optimizer: optimizer.state.0.step is 6 and 7"),
        ("plain", {"buffers": []}, "has the same running averages as rank 0's"),
        ("plain", {"buffers": [MEAN, COUNT]}, "counts other batches"),
        ("plain", {"lacking": ["model.9.bias"]}, "has other entries than rank 0's: model.9.bias"),
        ("sync", {}, "differs in SyncBatchNorm's running_mean"),
    ],
)
def test_each_way_checkpoints_are_wrong(norm: str, change: dict[str, Any], message: str) -> None:
    (finding,) = replicas.judge(norm, 1, compared(**change), "node1")
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
    one = scaling.row(Layout(nnodes=1, nproc_per_node=1), [ran(8.0)], None)
    two = scaling.row(Layout(nnodes=2, nproc_per_node=1), [ran(4.0), ran(5.0)], one)
    assert (one["speedup"], one["efficiency"]) == (1.0, 1.0)
    assert (two["nodes"], two["processes"], two["samples_per_second"]) == (2, 1, 896.0)
    assert (two["speedup"], two["efficiency"]) == (pytest.approx(1.6), pytest.approx(0.8))
    assert two["replica"] == "0123456789ab"
    assert two["reason"] == ""


def test_a_row_without_a_first_one_has_no_speed_up() -> None:
    layout = Layout(nnodes=1, nproc_per_node=1)
    empty = scaling.empty_row(layout, "cpu", "no processor")
    row = scaling.row(Layout(nnodes=2, nproc_per_node=1), [ran(4.0)], empty)
    assert (row["speedup"], row["efficiency"]) == (None, None)


def test_a_layout_that_cannot_be_run_has_a_reason_and_no_number() -> None:
    row = scaling.empty_row(Layout(nnodes=2, nproc_per_node=2), "cuda", "4 ranks would share one GPU")
    numbers = {key: value for key, value in row.items() if key not in ("nodes", "processes")}
    assert numbers.pop("reason") == "4 ranks would share one GPU"
    assert numbers.pop("backend") == "nccl"
    assert set(numbers.values()) == {None}
    assert set(row) == set(scaling.row(Layout(nnodes=1, nproc_per_node=1), [ran(1.0)], None))


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
    assert scaling.impossible(Layout(nnodes=layout[0], nproc_per_node=layout[1]), **where) == reason


def test_layouts_number_ranks_node_by_node() -> None:
    places = Layout(nnodes=2, nproc_per_node=2).places
    assert [(place.rank, place.node_rank, place.local_rank) for place in places] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]
