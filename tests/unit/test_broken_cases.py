"""The files of tests/cases/broken: each is whole, names a check that exists, and is in the documentation."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from imagebuilder.smoke.run import CHECKS
from tests.support import broken

PAGE = broken.CASES.parents[2] / "docs" / "explanation" / "smoke-test.md"


@pytest.mark.parametrize("name", broken.names())
def test_a_case_is_whole(name: str) -> None:
    case = broken.read(name)
    assert case.check in {check.name for check in CHECKS}
    assert re.compile(case.message).pattern
    assert case.image or any(
        change.settings or change.root or change.network for change in case.nodes.values()
    )
    named = {*case.image.add.values(), *case.image.append.values(), *case.image.compile.values()}
    assert {path.name for path in (broken.CASES / name).iterdir()} == {"case.yaml", *named}


def test_the_documentation_tells_of_every_case_how_it_was_caught() -> None:
    table = PAGE.read_text().partition(broken.BEGIN)[2].partition(broken.END)[0]
    found = re.findall(
        r"tests/cases/broken/([a-z0-9-]+)/case\.yaml\) \| `([a-z-]+)` \| .+ \| [0-9.]+ \|", table
    )
    assert dict(found) == {name: broken.read(name).check for name in broken.names()}


def test_the_documentation_has_each_case_s_name_and_a_message_that_the_case_wants() -> None:
    table = PAGE.read_text().partition(broken.BEGIN)[2].partition(broken.END)[0]
    rows = re.findall(
        r"^\| \[(.+)\]\(.+/([a-z0-9-]+)/case\.yaml\) \| `.+?` \| (.+) \| [0-9.]+ \|$", table, re.MULTILINE
    )
    wrong = [
        name
        for title, name, message in rows
        if title != broken.read(name).broken
        or not re.search(broken.read(name).message, html.unescape(message))
    ]
    assert (len(rows), wrong) == (len(broken.names()), [])


def test_a_run_of_some_cases_writes_their_lines_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    broken.write_table(page, {"nan": broken.Caught(check="training", message="a | b", seconds=1.23)})
    pairs = zip(PAGE.read_text().splitlines(), page.read_text().splitlines(), strict=True)
    ((_, written),) = [(old, new) for old, new in pairs if old != new]
    assert written.endswith(r"/nan/case.yaml) | `training` | a \| b | 1.2 |")


def test_every_check_that_runs_without_a_gpu_has_a_case() -> None:
    # own-tests runs files of this host: tests/unit/test_own_tests.py has those that fail.
    on_gpus_or_asked_for = {"transport", "nccl-tests", "scaling", "own-tests"}
    caught_by = {broken.read(name).check for name in broken.names()}
    assert caught_by | on_gpus_or_asked_for == {check.name for check in CHECKS}
    assert len(broken.names()) >= 20
    assert 6 <= len(broken.names(sample=True)) <= 14


@pytest.mark.parametrize("name", ["another-mpi-on-one-node", "exit-code-lost"])
def test_scripts_of_cases_begin_with_their_interpreter(name: str) -> None:
    (script,) = broken.read(name).image.add.values()
    assert (broken.CASES / name / script).read_text().startswith("#!/bin/sh\n")
