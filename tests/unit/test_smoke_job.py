"""A job that tests an image by itself: what is written, what runs on its nodes, and what its log may say."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from imagebuilder.catalog import Probe
from imagebuilder.cli import app
from imagebuilder.errors import ImagebuilderError, InputError
from imagebuilder.publish.proof import Proof
from imagebuilder.recipe.proof import ProofPolicy
from imagebuilder.smoke import job, joblog, verdict
from imagebuilder.smoke.report import Report, dumps
from imagebuilder.smoke.target import SmokeTarget

DIGEST = f"sha256:{'a' * 64}"
MARKER = "@imagebuilder-job"


def asked(*, logins: bool = False, **pins: str) -> job.Order:
    target = SmokeTarget(
        reference=f"registry.example/team/n@{DIGEST}",
        digest=DIGEST,
        recipe="n",
        lock="0" * 64,
        pins=tuple(sorted(pins.items())),
    )
    return job.order(target, {"PATH": "/usr/bin:/bin"}, mode="cpu", layout=(2, 1), logins=logins)


@cache
def ran() -> tuple[job.Order, str]:
    """Run a job of two nodes, which are two processes here; returns what both of them print."""
    order = asked(python=f"{sys.version_info[0]}.{sys.version_info[1]}")
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    _, _, program = job.command(order, port)
    folder = f"/tmp/imagebuilder-smoke-{order.nonce[:12]}"
    children = [
        subprocess.Popen(
            (sys.executable, "-c", program.replace(folder, f"{folder}-{rank}")),
            env={
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                "PMIX_RANK": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [child.communicate(timeout=120)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    assert [child.returncode for child in children] == [0, 0]
    assert list(Path("/tmp").glob(f"imagebuilder-smoke-{order.nonce[:12]}*")) == []
    return order, "".join(said)


def lines() -> list[str]:
    """The log of node 0: it has the results of all nodes."""
    return ran()[1].split("to read this log")[0].splitlines()


def read(text: str) -> Report:
    return joblog.read(io.BytesIO(text.encode()), "job.log")


def test_the_log_of_a_job_becomes_a_report() -> None:
    order, log = ran()
    report = read(log)
    checks = {check.name: check for check in report.checks}
    assert (report.runtime, report.digest, report.nodes, report.mode) == ("job", DIGEST, 2, "cpu")
    assert {name for name, check in checks.items() if check.status == "passed"} >= {"disk", "link", "pins"}
    assert checks["clock"].reason == "a log does not say when it was written"
    assert checks["ssh"].reason == "the job has no keys to log in to its nodes with"
    assert report.caveats[0] == "read from a job's log: whoever signed the report vouches for the log"
    assert [note.partition(" is ")[0] for note in report.caveats[-2:]] == ["node0", "node1"]
    assert {step.node for step in checks["disk"].steps} == {"node0", "node1"}
    # It asks for no GPU, so none counts.
    assert (report.gpus, report.host.gpus) == ((), ())
    # A rank's launcher does not leak into what a rank starts.
    assert order.nonce[:16] in checks["disk"].steps[0].command


def test_a_component_of_the_user_is_asked_as_its_own_file_says() -> None:
    probe = Probe(command=("sh", "-c", "echo 2.12"))
    target = SmokeTarget(
        reference="n", recipe="n", lock="", pins=(("hwmap", "2.12"),), probes=(("hwmap", probe),)
    )
    order = job.order(target, {"PATH": "/usr/bin:/bin"}, mode="cpu", layout=(2, 1), logins=False)
    assert order.target.probes == target.probes
    pins = [each for step in job.steps(order) if step.check == "pins" for each in step.jobs]
    assert [(each.node, each.argv) for each in pins] == [(0, probe.command), (1, probe.command)]


def test_each_node_says_which_gpus_it_has() -> None:
    def listed(record: dict[str, object]) -> None:
        record["nvidia_smi"] = f"{record['node']}, GPU-7f3c8a52, NVIDIA H100, 570.86.15\nnot a row\n"
        if "order" in record:
            record["order"] = str(record["order"]).replace('"mode":"cpu"', '"mode":"multi-gpu"')

    text = "\n".join((*forged(0, listed).splitlines(), *forged(1, listed).splitlines()))
    own = [line for line in text.splitlines() if line not in lines()]
    report = read("\n".join(own))
    assert [(gpu.node, gpu.index, gpu.uuid) for gpu in report.gpus] == [
        ("node0", 0, "GPU-7f3c8a52"),
        ("node1", 1, "GPU-7f3c8a52"),
    ]
    assert (report.host.gpus, report.host.driver) == (("NVIDIA H100",) * 2, "570.86.15")


def test_prefixes_order_and_doubles_do_not_matter() -> None:
    whole = read(ran()[1])
    prefixed = [
        f"[pod/fit-node-{number}/node] 2026-11-22T21:00:00.000000000Z {number}: {line}\r"
        for number, line in enumerate(reversed(ran()[1].splitlines()))
    ]
    assert read("\n".join(prefixed)).checks == whole.checks
    assert read("\n".join(lines())).checks == whole.checks


def changed(change: Callable[[list[str]], object]) -> str:
    said = [line for line in lines() if MARKER in line]
    change(said)
    return "\n".join(said)


def repacked(line: str, change: Callable[[dict[str, object]], object]) -> list[str]:
    """Forge the result that the lines of a node hold, with a digest that fits."""
    _, nonce, node, *_ = line.split()
    own = [other.split() for other in lines() if f"{MARKER} {nonce} {node} " in other]
    data = json.loads(zlib.decompress(base64.b64decode("".join(words[5] for words in own))))
    change(data)
    packed = zlib.compress(json.dumps(data).encode())
    text = base64.b64encode(packed).decode()
    pieces = [text[at : at + 3000] for at in range(0, len(text), 3000)]
    digest = hashlib.sha256(packed).hexdigest()
    return [
        f"{MARKER} {nonce} {node} {number}/{len(pieces)} {digest} {piece}"
        for number, piece in enumerate(pieces, 1)
    ]


def forged(node: int, change: Callable[[dict[str, object]], object]) -> str:
    said = [line for line in lines() if MARKER in line]
    own = [line for line in said if line.split()[2] == f"{node}/2"]
    return "\n".join([*(line for line in said if line not in own), *repacked(own[0], change)])


def bomb(said: list[str]) -> None:
    _, nonce, node, *_ = said[-1].split()
    packed = zlib.compress(bytes(40_000_000))
    text = base64.b64encode(packed).decode()
    said[:] = [line for line in said if line.split()[2] != node]
    pieces = [text[at : at + 3000] for at in range(0, len(text), 3000)]
    digest = hashlib.sha256(packed).hexdigest()
    said += [
        f"{MARKER} {nonce} {node} {number}/{len(pieces)} {digest} {piece}"
        for number, piece in enumerate(pieces, 1)
    ]


def other_digest(said: list[str]) -> None:
    old = said[-1].split()[4]
    said[:] = [line.replace(old, "0" * 64) for line in said]


REFUSED: dict[str, tuple[Callable[[], str], str]] = {
    "nothing": (lambda: "epoch 1\n", "it holds no result of a smoke test"),
    "a part": (lambda: changed(lambda said: said.pop(0)), "of node 0's result"),
    "no second node": (
        lambda: changed(lambda said: said.__delitem__(slice(-1, None))),
        "of node 1's result",
    ),
    "a line that is cut off": (
        lambda: changed(lambda said: said.__setitem__(0, said[0][:60])),
        "a line of the test is cut off or damaged",
    ),
    "a forged line": (
        lambda: changed(lambda said: said.append(said[0][:-8] + "AAAAAAAA")),
        "it holds two different results of node 0: one of them is forged",
    ),
    "two jobs": (
        lambda: changed(lambda said: said.append(said[0].replace(said[0].split()[1], "0" * 32))),
        "it holds the results of several jobs",
    ),
    "another digest": (lambda: changed(other_digest), "does not have the digest that its lines name"),
    "a number that is too large": (
        lambda: changed(lambda said: said.append(said[0].replace(" 0/2 ", " 7/2 "))),
        "a line of the test has impossible numbers",
    ),
    "a bomb": (lambda: changed(bomb), "is larger than 16000000 bytes, or cut off"),
    "another node's": (
        lambda: forged(1, lambda data: data.update(node=0)),
        "what node 1 is said to have written is another node's, or another job's",
    ),
    "more than a record": (
        lambda: forged(1, lambda data: data.update(x=1)),
        "node 1's result is not one: x:",
    ),
    "no order": (
        lambda: forged(0, lambda data: data.update(order="{}")),
        "it does not say what was to be tested",
    ),
    "another version": (
        lambda: forged(
            0, lambda data: data.update(order=json.dumps({**json.loads(str(data["order"])), "tool": "x 0"}))
        ),
        "the job was written by x 0, and this is ",
    ),
    "other nodes": (
        lambda: forged(0, lambda data: data.update(hosts=["a"])),
        "what node 0 says of the job is not what the lines say",
    ),
    "too much": (lambda: "x" * (joblog.LIMIT + 1), "is larger than 64 MB"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_log_that_is_wrong_is_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(InputError) as caught:
        read(make())
    (problem,) = caught.value.problems
    assert message in problem.message
    assert problem.where.startswith("job.log")
    assert problem.hint


def test_what_did_not_run_is_a_failure() -> None:
    report = read(forged(1, lambda data: data.update(outcomes=[])))
    failed = {check.name for check in report.checks if check.status == "failed"}
    assert "disk" in failed
    assert not report.passed


def test_a_job_with_logins_asks_for_all_that_its_checks_judge() -> None:
    order = asked(logins=True, openmpi="5.0.7", torch="2.10.0", gcc="14.2.0")
    counts: dict[str, int] = {}
    for step in job.steps(order):
        counts[step.check] = counts.get(step.check, 0) + 1
    wanted = {"ssh": 4, "environment": 4, "mpirun": 1, "rendezvous": 2, "collectives": 1, "failure": 4}
    assert {name: counts[name] for name in wanted} == wanted
    assert not {"training", "control", "clock", "contents"} & set(counts)


def test_a_log_counts_only_if_a_key_vouches_for_it() -> None:
    text = dumps(read(ran()[1])).encode()
    proof = Proof(data=text, report=verdict.read(text), is_about_image=True, shortcoming="")
    unsigned = "it was read from a log, for which a key must vouch: name one in `proof: {signed_by: [...]}`"
    assert proof.refusals(ProofPolicy(), ()) == (unsigned,)
    signed_by = ProofPolicy(signed_by=("lab.pub",))
    assert proof.refusals(signed_by, ()) == ("it is not signed with lab.pub",)
    assert proof.refusals(signed_by, ("lab.pub",)) == ()


def refusal(*words: str) -> tuple[str, str]:
    error = CliRunner().invoke(app, list(words)).exception
    assert isinstance(error, ImagebuilderError)
    (problem,) = error.problems
    return problem.where, problem.message


def test_options_that_a_job_does_not_follow_are_refused() -> None:
    assert refusal("smoke-test", "r.example/n:1", "--as-job", "jobset", "--attach") == (
        "--attach",
        "is not for --as-job",
    )
    assert refusal("smoke-test", "r.example/n:1", "--as-job", "jobset", "--tests", "tests") == (
        "--tests",
        "is not for --as-job",
    )
    assert refusal("smoke-test", "recipes/cpu-mpi.yaml", "--as-job", "jobset") == (
        "--as-job",
        "name the image as registry.example/team/name@DIGEST: the nodes pull it from there",
    )
    assert refusal("smoke-test", "r.example/n:1", "--output", "x") == ("--output", "is only for --as-job")
    assert refusal("smoke-test", "r.example/n:1", "--as-job", "jobst")[0] == "--target"


def test_a_log_is_read_by_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(ran()[1])
    result = CliRunner().invoke(app, ["report", "--from-log", str(path), "--json"])
    assert json.loads(result.stdout)["result"]["runtime"] == "job"
    piped = CliRunner().invoke(app, ["report", "--from-log", "-"], input=ran()[1])
    assert "note: read from a job's log: whoever signed the report vouches for the log" in piped.stdout
    where = "imagebuilder report"
    message = "give a report, the recipe or image that was tested, or a job's log with --from-log"
    assert refusal("report") == (where, message)
    assert refusal("report", "x", "--from-log", "y") == (where, message)
    assert (
        refusal("report", "--from-log", str(tmp_path / "z"))[1] == "cannot be read: No such file or directory"
    )
