"""The report: what counts as a proof, and how it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from imagebuilder.errors import InputError
from imagebuilder.smoke import report as reports
from imagebuilder.smoke.report import CheckResult, Finding, Host, Report, Status, verdict
from imagebuilder.smoke.verdict import read as read_verdict
from tests.support.reports import FILES

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "reference" / "report.schema.json"
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
        started="2026-01-02T03:04:05Z",
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


def test_a_report_with_a_key_in_two_cases_is_refused_by_both_readers(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(reports.dumps(report(SUM)).replace('"passed": ', '"Passed": false, "passed": '))
    with pytest.raises(InputError, match="a key is given twice"):
        reports.read(path)
    with pytest.raises(ValueError, match="a key is given twice"):
        read_verdict(path.read_bytes())


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


def test_what_json_cannot_hold_is_replaced(tmp_path: Path) -> None:
    evidence = {"losses": [1.0, float("nan"), float("inf")], "said": ["half \ud800", {"x": -0.0}]}
    made = report(SUM.model_copy(update={"evidence": evidence}))
    path = tmp_path / "r.json"
    reports.write(made, path)
    assert "NaN" not in path.read_text(encoding="utf-8")
    assert reports.read(path).checks[0].evidence == {
        "losses": [1.0, None, None],
        "said": ["half ?", {"x": -0.0}],
    }


def test_a_shortcoming_is_told_only_where_nothing_failed() -> None:
    assert not reports.shortcoming(report(SUM))
    assert not reports.shortcoming(report(SUM, check("pins", "failed"), check("ssh", "skipped")))
    assert reports.shortcoming(report(SUM, check("ssh", "skipped"))) == "required but not run: ssh"
    assert reports.shortcoming(report(check("pins", "passed"))) == "the nodes computed nothing together"


def complaints(schema: dict[str, Any], value: Any, root: dict[str, Any], where: str = "") -> list[str]:
    """Compare a value with as much of JSON Schema as the report's uses."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        found = [complaints(choice, value, root, where) for choice in schema["anyOf"]]
        return [] if [] in found else found[0]
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kinds |= {"integer": int, "number": (int, float)}  # type: ignore[dict-item]
    wrong = []
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        wrong.append(f"{where}: is no {schema['type']}")
    if value not in schema.get("enum", [schema.get("const", value)]):
        wrong.append(f"{where}: is not one of those")
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        for index, entry in enumerate(value):
            wrong += complaints(schema["items"], entry, root, f"{where}[{index}]")
    if "properties" in schema and isinstance(value, dict):
        wrong += [f"{where}: lacks {name}" for name in schema.get("required", ()) if name not in value]
        for name, entry in value.items():
            if name not in schema["properties"]:
                wrong.append(f"{where}: has {name}")
            else:
                wrong += complaints(schema["properties"][name], entry, root, f"{where}.{name}")
    return wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reports_are_what_the_published_schema_says(path: Path) -> None:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    found = json.loads(path.read_text(encoding="utf-8"))
    assert complaints(published, found, published) == []
    del found["mode"]
    found["checks"][0]["status"] = "fine"
    found["checks"][1]["steps"][0]["extra"] = 1
    assert len(complaints(published, found, published)) == 3


def test_it_says_by_which_schema_it_was_written() -> None:
    assert reports.schema()["properties"]["schema_version"]["const"] == 1
    assert json.loads(reports.dumps(report(SUM)))["schema_version"] == 1
