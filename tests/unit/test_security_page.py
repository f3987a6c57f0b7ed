"""SECURITY.md: every module, folder and test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "imagebuilder"
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
NAMES = re.findall(r"`([\w./-]+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
FUNCTIONS = {
    name for path in TESTS for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
}
CODE = re.compile(r"[\w/]+\.(?:py|pl|sh|ya?ml)")


def missing(names: list[str]) -> list[str]:
    """Return the names that look like a module, a file or a test of this repository, and are none."""
    files = {path.name for path in TESTS}
    return [
        name
        for name in names
        if (name.startswith("test_") and name not in FUNCTIONS | files)
        or (name.startswith("tests/") and not (ROOT / name).exists())
        or (CODE.fullmatch(name) and not name.startswith("test") and not (PACKAGE / name).is_file())
    ]


def test_every_module_and_test_that_the_page_names_exists() -> None:
    assert [name for name in NAMES if name.startswith("test_")]
    assert [name for name in NAMES if CODE.fullmatch(name)]
    assert missing(NAMES) == []


def test_a_name_of_nothing_is_noticed() -> None:
    wrong = ["lock.py", "layers/no_such.py", "test_no_such_thing", "test_no_such.py", "tests/cases/no-such"]
    assert missing(["errors.py", *wrong, "pivot_root", "/etc/subuid"]) == wrong
