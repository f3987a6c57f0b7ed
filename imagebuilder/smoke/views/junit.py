"""A report as JUnit XML, which CI services show as tests: one test case for each check."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from imagebuilder.core.visible import tail, visible
from imagebuilder.smoke.report import CheckResult, Finding, Report, Step, shortcoming, told

_STEP_CHARACTERS = 4000


def render(report: Report) -> str:
    """Write a report as JUnit XML.

    The format has no standard. This uses what GitLab, Jenkins and GitHub actions read: `testsuites`,
    `testsuite`, `properties`, `testcase` with `failure` or `skipped`. CI services count skipped tests as
    good. So if nothing failed but a required check was skipped, an extra test case `verdict` fails.

    Returns:
        Well-formed XML 1.0, whatever is in the report.

    """
    cases = [_case(check) for check in report.checks]
    missing = shortcoming(report)
    if missing:
        cases.append(_verdict(missing))
    failures = sum(case.find("failure") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    counts = {"tests": f"{len(cases)}", "failures": f"{failures}", "errors": "0", "skipped": f"{skipped}"}
    time = {"time": f"{report.seconds:.3f}"}
    name = f"imagebuilder smoke-test {report.recipe or report.reference}"
    root = ET.Element("testsuites", _fit({"name": "imagebuilder", **counts, **time}))
    suite = ET.SubElement(root, "testsuite", _fit({"name": name, **counts, **time}))
    properties = ET.SubElement(suite, "properties")
    for key, value in _properties(report).items():
        ET.SubElement(properties, "property", _fit({"name": key, "value": value}))
    suite.extend(cases)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(check: CheckResult) -> ET.Element:
    case = _testcase(check.name, check.seconds)
    if check.status == "skipped":
        ET.SubElement(case, "skipped", _fit({"message": check.reason}))
    elif check.status == "failed":
        first = check.findings[0].message.partition("\n")[0] if check.findings else "failed"
        failure = ET.SubElement(case, "failure", _fit({"message": first, "type": "CheckFailed"}))
        failure.text = visible("\n\n".join([*map(_finding, check.findings), f"criterion: {check.criterion}"]))
    if check.status == "passed":
        ET.SubElement(case, "system-out").text = visible(told(check))
    elif check.steps:
        ET.SubElement(case, "system-out").text = visible("\n\n".join(map(_step, check.steps)))
    return case


def _verdict(missing: str) -> ET.Element:
    case = _testcase("verdict", 0)
    failure = ET.SubElement(case, "failure", _fit({"message": missing, "type": "NotAProof"}))
    failure.text = visible(f"{missing}\n-> the skipped checks say why")
    return case


def _testcase(name: str, seconds: float) -> ET.Element:
    words = {"classname": "imagebuilder.smoke", "name": name, "time": f"{seconds:.3f}"}
    return ET.Element("testcase", _fit(words))


def _properties(report: Report) -> dict[str, str]:
    return {
        "digest": report.digest,
        "reference": report.reference,
        "lock": report.lock,
        "mode": report.mode,
        "runtime": report.runtime,
        "nodes": str(report.nodes),
        "nproc_per_node": str(report.nproc_per_node),
        "tool": report.tool,
        **{f"reused.{check.name}": check.reused.digest for check in report.checks if check.reused},
        **{f"pin.{name}": version for name, version in report.pins.items()},
        **{f"caveat.{number}": caveat for number, caveat in enumerate(report.caveats, 1)},
    }


def _finding(finding: Finding) -> str:
    where = f"{finding.node}: " if finding.node else ""
    return f"{where}{finding.message}" + (f"\n-> {finding.remedy}" if finding.remedy else "")


def _step(step: Step) -> str:
    if step.timed_out:
        ended = f"killed after {step.seconds:.1f} s"
    else:
        ended = f"exit code {'none' if step.exit_code is None else step.exit_code}, {step.seconds:.1f} s"
    return f"{step.node}$ {step.command}\n[{ended}]\n{tail(step.output, _STEP_CHARACTERS)}"


def _fit(attributes: dict[str, str]) -> dict[str, str]:
    return {key: visible(value) for key, value in attributes.items()}
