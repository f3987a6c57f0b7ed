"""The verb `report`, from the words that are typed to what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from imagebuilder.cli import app
from imagebuilder.smoke import report as reports
from imagebuilder.store import ImageRecord, Store
from tests.support.reports import CASES, check, report


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store")
    digest, size = found.put_bytes(b"both manifest and config")
    found.put_image(
        ImageRecord(
            name="demo",
            manifest=digest,
            config=digest,
            size=size,
            tag="t",
            tags=("t", "a" * 12),
            lock="a" * 64,
            layers=(),
        )
    )
    return found


def test_a_report_is_shown_as_text_without_options() -> None:
    code, text = run("report", CASES / "failed-cpu.json")
    assert code == 0, "showing a failure is no failure"
    assert "cuda12-torch: FAILED" in text


def test_json_is_the_report_itself() -> None:
    _, text = run("report", CASES / "passed-cpu.json", "--json")
    written = json.loads((CASES / "passed-cpu.json").read_text(encoding="utf-8"))
    assert json.loads(text)["result"] == {**written, "gpus": [], "config": ""}


def test_views_are_written_and_nothing_else_is_printed(tmp_path: Path) -> None:
    page, cases = tmp_path / "new" / "r.html", tmp_path / "r.xml"
    code, text = run("report", CASES / "passed-cpu.json", "--html", page, "--junit", cases)
    assert (code, text) == (0, "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert ET.parse(cases).getroot().tag == "testsuites"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["r.html"], "no temporary file stays"


def test_a_report_is_found_by_the_name_of_its_image(store: Store) -> None:
    image = store.image("demo")
    assert image is not None
    reports.write(report(check("mpirun")), store.report(image.manifest))
    code, text = run("report", "demo", "--store", store.root)
    assert code == 0
    assert "demo: passed" in text


def test_an_image_without_a_report_and_a_name_of_nothing_are_told_apart(store: Store) -> None:
    for word, words in (("demo", "smoke-test demo"), ("other", "neither a report nor an image")):
        result = CliRunner().invoke(app, ["report", word, "--store", str(store.root)])
        assert words in str(result.exception)
