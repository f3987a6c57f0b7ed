"""Views of a report: complete, well-formed, and harmless whatever an image wrote."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from imagebuilder.core.visible import tail, visible
from imagebuilder.smoke import report as reports
from imagebuilder.smoke.report import Finding, Report, Step
from imagebuilder.smoke.views import junit, page
from tests.support.pages import Parsed, require_inert
from tests.support.reports import FILES, HOSTILE, check, hostile, report


def samples() -> dict[str, Report]:
    found = {path.stem: reports.read(path) for path in FILES}
    return {
        **found,
        "hostile": hostile(),
        "empty": report(),
        "one": report(check()),
        "twice": report(*[check("a b", "failed")] * 2),
    }


@pytest.fixture(params=samples())
def sample(request: pytest.FixtureRequest) -> Report:
    return samples()[request.param]


def test_a_page_is_closed_and_does_nothing(sample: Report) -> None:
    require_inert(page.render(sample))


def test_identifiers_in_a_page_are_unique_and_what_refers_to_them_finds_them(sample: Report) -> None:
    found = Parsed(page.render(sample)).tags
    names = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(names) == len(set(names))
    for _, attributes in found:
        for name in attributes.get("aria-labelledby", "").split():
            assert name in names
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in names


def test_what_is_hostile_is_shown_and_does_nothing() -> None:
    text = page.render(hostile())
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    text.encode("utf-8")
    words = Parsed(text).text
    assert "</script></style></title><script>document.title='owned'</script>" in words
    assert "{{ 7 * 7 }}{% raw %}" in words, "it is no template either"
    assert "⟨U+202E⟩esrever" in words
    assert len(text) < 1_000_000, "a huge log is cut"


def test_a_page_tells_the_verdict_what_failed_and_what_to_do() -> None:
    finding = Finding(node="node1", message="it broke there", remedy="mend it there")
    words = Parsed(
        page.render(
            report(check("ssh"), check("limits", "failed", findings=(finding,)), check("scaling", "skipped"))
        )
    ).text
    for expected in (
        "demo failed",
        "Mode cpu : no GPU here",
        "Mind: NCCL not exercised",
        "1 passed 1 failed 1 skipped",
        "limits node1 it broke there What to do: mend it there",
        "skipped : not here",
        "nccl 2.27.5 not told",
        "sha256:" + "b" * 64,
    ):
        assert expected in words


def test_findings_that_differ_in_the_node_only_are_one() -> None:
    findings = tuple(Finding(node=f"node{n}", message="m", remedy="r") for n in range(3))
    other = Finding(node="node0", message="other", remedy="r")
    found = page.failures(report(check("limits", "failed", findings=(*findings, other))))
    assert [(failure.message, failure.nodes) for failure in found] == [
        ("m", ("node0", "node1", "node2")),
        ("other", ("node0",)),
    ]


def test_a_page_says_what_a_report_without_failure_lacks() -> None:
    made = report(check("mpirun"), check("training", "skipped"))
    assert "Not a proof: required but not run: training" in Parsed(page.render(made)).text


def test_pins_are_set_beside_what_loads() -> None:
    evidence = {
        "nccl": {"pin": "2.27.5", "found": "2.27.5", "nodes": {"node0": "2.27.5", "node1": "2.27.3"}},
        "torch": {"pin": "2.10.0", "found": "2.10.0+cu128", "nodes": {"node0": "2.10.0+cu128"}},
        "not asked": ["driver: needs a GPU"],
    }
    pins = {"nccl": "2.27.5", "torch": "2.10.0", "driver": "570", "gcc": "14"}
    made = report(check("pins", "failed", evidence=evidence), pins=pins)
    found = {pin.name: (pin.found, pin.note, pin.wrong) for pin in page.pin_lines(made)}
    assert found == {
        "nccl": ("2.27.5", "node0: 2.27.5, node1: 2.27.3", True),
        "torch": ("2.10.0+cu128", "", False),
        "driver": ("", "needs a GPU", False),
        "gcc": ("", "", False),
    }


def test_the_charts_of_the_sample_are_there_and_a_layout_that_could_not_run_has_no_number() -> None:
    text = page.render(reports.read(next(path for path in FILES if path.stem == "gpu-by-hand")))
    assert text.count('<svg class="chart"') == 3
    words = Parsed(text).text
    assert "could not run: 4 ranks on one GPU do not fit its memory" in words
    assert "ontainers on one host; not a cluster prediction" in words
    assert "TEST DATA" in words


# JUnit


def cases(made: Report) -> dict[str, ET.Element]:
    root = ET.fromstring(junit.render(made))
    assert root.tag == "testsuites"
    return {case.attrib["name"]: case for case in root.iter("testcase")}


def test_junit_has_a_case_for_each_check(sample: Report) -> None:
    found = list(ET.fromstring(junit.render(sample)).iter("testcase"))
    for entry, case in zip(sample.checks, found, strict=False):
        assert case.attrib["name"] == entry.name
        kinds = {child.tag for child in case} & {"failure", "skipped", "error"}
        assert kinds == {"passed": set(), "failed": {"failure"}, "skipped": {"skipped"}}[entry.status]


def test_junit_counts_what_is_in_it(sample: Report) -> None:
    root = ET.fromstring(junit.render(sample))
    suite = root.find("testsuite")
    assert suite is not None
    for element in (root, suite):
        assert int(element.attrib["tests"]) == len(list(suite.iter("testcase")))
        assert int(element.attrib["failures"]) == len(list(suite.iter("failure")))
        assert int(element.attrib["skipped"]) == len(list(suite.iter("skipped")))
        assert float(element.attrib["time"]) == pytest.approx(sample.seconds)


def test_junit_is_green_for_a_proof_only(sample: Report) -> None:
    assert sample.passed == (next(ET.fromstring(junit.render(sample)).iter("failure"), None) is None)


def test_a_failure_in_junit_has_message_remedy_and_output() -> None:
    step = Step(
        node="node0", command="ssh node1", exit_code=255, timed_out=False, seconds=2.0, output="refused"
    )
    late = Step(node="node1", command="ssh node0", exit_code=None, timed_out=True, seconds=9.0, output="")
    case = cases(report(check("ssh", "failed", steps=(step, late))))["ssh"]
    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib == {"message": "it broke", "type": "CheckFailed"}
    assert failure.text == "node0: it broke\n-> mend it\n\ncriterion: they hold"
    assert case.findtext("system-out") == (
        "node0$ ssh node1\n[exit code 255, 2.0 s]\nrefused\n\nnode1$ ssh node0\n[killed after 9.0 s]\n"
    )


def test_a_skipped_case_says_why() -> None:
    skipped = cases(report(check("mpirun", "skipped")))["mpirun"].find("skipped")
    assert skipped is not None
    assert skipped.attrib == {"message": "not here"}


def test_a_required_check_that_was_skipped_fails_the_case_verdict() -> None:
    found = cases(report(check("ssh"), check("training", "skipped")))
    failure = found["verdict"].find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "required but not run: training"
    assert "verdict" not in cases(report(check("ssh"), check("training", "failed")))


def test_what_is_hostile_is_well_formed_xml() -> None:
    text = junit.render(hostile())
    assert "\x1b" not in text
    assert "\x00" not in text
    text.encode("utf-8")
    assert visible(HOSTILE).splitlines()[0] in (cases(hostile())["a"].findtext("failure") or "")
    assert len(text) < 200_000


# Text


@pytest.mark.parametrize("code", [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x202E, 0xD800, 0xFFFE, 0xFFFF])
def test_every_character_that_acts_or_breaks_xml_is_replaced_but_tab_and_newline(code: int) -> None:
    shown = visible(f"a{chr(code)}b")
    assert ET.fromstring(f"<a>{shown}</a>").text == shown
    assert (chr(code) in shown) == (chr(code) in "\t\n")
    assert shown[0] == "a"
    assert shown[-1] == "b"


def test_carriage_returns_are_new_lines() -> None:
    assert visible("10 %\r20 %\r\nend") == "10 %\n20 %\nend"


def test_terminal_escapes_are_dropped() -> None:
    assert visible("\x1b[1;31mred\x1b[0m \x1b]8;;file:x\x1b\\link\x1b]8;;\x07 \x1b7") == "red link ␛7"


def test_a_tail_begins_with_a_whole_line_and_says_what_is_left_out() -> None:
    text = "\n".join(f"line {number:04}" for number in range(1000))
    first, *rest = tail(text, 105).splitlines()
    assert first == "[the 9900 characters before this are only in the JSON report]"
    assert rest == text.splitlines()[-10:]
    assert tail(text, 100_000) == text
    assert tail("x" * 50, 10) == "[the 40 characters before this are only in the JSON report]\n" + "x" * 10


def test_templates_and_style_travel_in_the_package() -> None:
    folder = Path(page.__file__).parent
    assert {path.name for path in folder.iterdir()} >= {"page.html.j2", "page.css"}
