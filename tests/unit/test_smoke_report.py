"""The report: what counts as a proof, and how it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from imagebuilder.errors import InputError
from imagebuilder.smoke import report as reports
from imagebuilder.smoke.report import CheckResult, Finding, Host, Report, Status, verdict

HOST = Host(cores=2, memory_bytes=1 << 30, gpus=(), engine="docker", engine_version="26.1")


def check(
    name: str,
    status: Status,
    *,
    required: bool = True,
    exchanges: bool = False,
    findings: tuple[Finding, ...] = (),
) -> CheckResult:
    return CheckResult(
        name=name,
        title="",
        criterion="",
        required=required,
        exchanges=exchanges,
        status=status,
        summary="all is well" if status == "passed" else "",
        reason="not here" if status == "skipped" else "",
        findings=findings,
        seconds=1.0,
    )


def report(*checks: CheckResult) -> Report:
    return Report(
        tool="imagebuilder 0",
        recipe="demo",
        lock="a" * 64,
        digest="sha256:" + "b" * 64,
        reference="demo:1",
        pins={"torch": "2.10.0"},
        runtime="docker",
        nodes=2,
        mode="cpu",
        mode_reason="no GPU here",
        caveats=("NCCL not exercised",),
        host=HOST,
        checks=checks,
        seconds=3.0,
        passed=verdict(checks),
    )


SUM = check("mpirun", "passed", exchanges=True)


@pytest.mark.parametrize(
    ("checks", "proven"),
    [
        ((SUM, check("pins", "passed")), True),
        ((SUM, check("torch", "skipped", required=False)), True),
        ((SUM, check("pins", "skipped")), False),
        ((SUM, check("pins", "failed", required=False)), False),
        ((check("pins", "passed"),), False),
        ((), False),
    ],
    ids=["all", "optional skipped", "required skipped", "failed", "nothing exchanged", "nothing at all"],
)
def test_a_proof_has_no_failure_all_that_is_required_and_an_exchange(
    checks: tuple[CheckResult, ...], proven: bool
) -> None:
    assert verdict(checks) is proven


def test_it_reads_back_what_it_wrote(tmp_path: Path) -> None:
    made = report(SUM, check("pins", "failed", findings=(Finding(node="node1", message="m", remedy="r"),)))
    path = tmp_path / "reports" / "r.json"
    reports.write(made, path)
    assert reports.read(path) == made
    assert [entry.name for entry in path.parent.iterdir()] == ["r.json"], "no temporary file stays"


def test_a_verdict_that_does_not_follow_from_the_checks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(
        reports.dumps(report(check("pins", "failed"))).replace('"passed": false', '"passed": true')
    )
    with pytest.raises(InputError, match="does not follow"):
        reports.read(path)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not JSON"])
def test_what_is_no_report_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        reports.read(path)
    assert str(path) in str(caught.value)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError):
        Report.model_validate({**report(SUM).model_dump(), "extra": 1})


def test_the_table_has_a_line_a_check_and_every_remedy() -> None:
    findings = (
        Finding(node="node0", message="first", remedy="mend it"),
        Finding(node="node1", message="second", remedy="mend that"),
    )
    text = "\n".join(
        reports.lines(report(SUM, check("limits", "failed", findings=findings), check("x", "skipped")))
    )
    for expected in (
        "mpirun  passed       1.0  all is well",
        "limits  failed       1.0  first",
        "x       skipped      1.0  not here",
        "FAILED limits, node1: second",
        "-> mend that",
        "demo: FAILED",
        "1 passed, 1 failed, 1 skipped",
        "NCCL not exercised",
    ):
        assert expected in text


def test_the_table_says_why_skipping_is_not_passing() -> None:
    text = "\n".join(reports.lines(report(SUM, check("training", "skipped"))))
    assert "not a proof: required but not run: training" in text


def test_no_line_is_wider_than_asked() -> None:
    long = Finding(node="node0", message="word " * 100, remedy="remedy " * 100)
    assert max(map(len, reports.lines(report(check("pins", "failed", findings=(long,))), width=80))) <= 80


def test_the_schema_names_every_field() -> None:
    assert set(reports.schema()["properties"]) == set(Report.model_fields)
