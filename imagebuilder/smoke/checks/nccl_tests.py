"""nccl-tests, if the image has them: NVIDIA's benchmark of an allreduce, as one job of all ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from imagebuilder.smoke.checks import hostname_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 240
# 8 B to 64 MiB, each size four times the last, one GPU a rank, results checked (-c 1), report in JSON (-J).
_ARGUMENTS = ("-b", "8", "-e", "64M", "-f", "4", "-g", "1", "-c", "1")


def run(session: Session) -> Passed:
    hosts = [session.cluster.host(index) for index in range(session.nnodes)]
    place = f"{session.cluster.folder}/nccl-tests-{session.nonce}.json"
    program = ("all_reduce_perf", *_ARGUMENTS, "-J", place)
    slots = session.layout.nproc_per_node
    # Through `env`, because mpirun passes on only named variables, and its option for that differs by
    # version.
    env = [f"{name}={value}" for name, value in session.rank_env(0).items() if name != "NCCL_HOSTID"]
    command = session.mpirun(hosts, "env", *env, *program, slots=slots)
    outcome = session.run(0, command, timeout=_SECONDS)
    session.require_ok([outcome])
    report = session.run(0, ("cat", place), timeout=30)
    session.require_ok([report])
    try:
        found = json.loads(report.stdout)
    except ValueError as error:
        raise CheckFailed(f"the report of nccl-tests is not JSON: {error}", node=report.node) from None
    findings = judge(found, session.world_size, session.options.min_busbw)
    if findings:
        raise CheckFailed.because(*findings)
    last = rows(found)[-1]
    return Passed(
        summary=f"all_reduce_perf with {session.world_size} ranks, no wrong value, "
        f"{last['busbw_gbs']:.2f} GB/s at {last['bytes'] >> 20} MiB",
        evidence={"sweep": rows(found), "nccl": found.get("nccl_version")},
    )


def judge(found: Mapping[str, Any], world_size: int, floor: float) -> list[Finding]:
    """Return what is wrong with a report of nccl-tests (src/util.cu); the floor is in 10^9 bytes a second.

    "0 OK" alone proves nothing: if the launcher and nccl-tests use different MPIs, each rank is a job of one
    rank, which has nothing to send (nccl-tests #213, #329).
    """

    def finding(message: str, remedy: str) -> list[Finding]:
        return [Finding(node="", message=message, remedy=remedy)]

    ranks = len(found.get("config", {}).get("devices", ()))
    if ranks != world_size:
        return finding(
            f"all_reduce_perf ran with {ranks} of {world_size} ranks",
            "it was built without MPI, or for another one than mpirun's: build nccl-tests with MPI=1 against "
            "the image's MPI",
        )
    wrong = found.get("out_of_bounds", {})
    if wrong.get("count") != 0 or wrong.get("okay") != "true":
        return finding(
            f"all_reduce_perf counts {wrong.get('count', 'no')} wrong values",
            "NCCL gives wrong results: compare its version and the driver's on the nodes",
        )
    measured = rows(found)
    if not measured or any(row["nwrong"] for row in measured):
        return finding("all_reduce_perf checked no result", "its report lacks the column of wrong values")
    last = measured[-1]["busbw_gbs"]
    if not last > 0:
        return finding(
            "all_reduce_perf measured a bus bandwidth of 0: nothing went from rank to rank",
            "each rank was a job of its own; is there a second MPI in the image?",
        )
    if last < floor:
        return finding(
            f"all_reduce_perf reaches a bus bandwidth of {last:.3f} GB/s, and --min-busbw asks for {floor:g}",
            "the transport is slower than expected: see the check `transport`",
        )
    return []


def rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert the out-of-place results to rows of our own sweep; nccl-tests has microseconds."""
    return [
        {
            "bytes": int(row["size"]),
            "dtype": str(row["type"]),
            "seconds": row["out_of_place"]["time"] / 1e6,
            "algbw_gbs": row["out_of_place"]["alg_bw"],
            "busbw_gbs": row["out_of_place"]["bus_bw"],
            "nwrong": row["out_of_place"]["nwrong"],
        }
        for row in found.get("results", ())
        if row.get("out_of_place") and isinstance(row["out_of_place"].get("nwrong"), int | float)
    ]


def _skip(session: Session) -> str:
    if session.mode == "cpu":
        return "no GPU here"
    if not session.facts.get("all_reduce_perf") or not session.facts.get("mpirun"):
        return "all_reduce_perf and mpirun are not both in this image; `collectives` measures the same"
    if session.mode == "one-gpu-shared" and session.layout.nproc_per_node > 1:
        return "all_reduce_perf needs a GPU for each rank of a node, and there is one"
    return hostname_reason(session)


CHECK = Check(
    name="nccl-tests",
    order=150,
    title="all_reduce_perf over all ranks, from 8 B to 64 MiB",
    criterion="as many ranks as were started, no value out of bounds, a bus bandwidth above 0 and at least "
    "--min-busbw, if given",
    run=run,
    skip=_skip,
    required=lambda _promise: False,
    reusable=True,
)
