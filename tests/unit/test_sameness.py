"""The list of what engines may differ in: each rule lets through what it says, and nothing else."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest

from tests.support import sameness
from tests.support.sameness import ALLOWED, Side

SCRIPT = "#!/opt/venv/bin/python\nfrom x import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
LONGER = SCRIPT.replace("from x", "import re\nfrom x")
WANTS = "etc/systemd/system/timers.target.wants/apt-daily.timer"


def side(place: Path, files: dict[str, str]) -> Side:
    with tarfile.open(place, "w") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.mode = 0o644
            if text.startswith("-> "):
                entry.type, entry.linkname = tarfile.SYMTYPE, text[3:]
            else:
                entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return Side(blobs=[place])


@pytest.mark.parametrize(
    ("path", "before", "after", "allowed"),
    [
        ("etc/shadow", "a:1\nb:2\n", "b:2\na:1\n", True),
        ("etc/shadow", "a:1\nb:2\n", "a:1\nb:3\n", False),
        ("etc/passwd", "a\nb\n", "b\na\n", False),
        (WANTS, "-> /lib/systemd/x", "-> /usr/lib/systemd/x", True),
        (WANTS, "-> /lib/systemd/x", "-> /lib/systemd/y", False),
        ("opt/venv/bin/x", SCRIPT, LONGER, True),
        ("opt/venv/bin/x", SCRIPT, SCRIPT.replace("main()", "other()"), False),
        ("opt/venv/lib/python3.13/site-packages/x-1.dist-info/INSTALLER", "pip", "imagebuilder", True),
        ("opt/venv/lib/python3.13/site-packages/x/__init__.py", "1", "2", False),
        ("opt/venv/lib/python3.13/site-packages/x/__pycache__/a.cpython-313.pyc", "1", "2", False),
    ],
)  # fmt: skip
def test_a_rule_lets_through_what_it_says(
    tmp_path: Path, path: str, before: str, after: str, allowed: bool
) -> None:
    sides = side(tmp_path / "1", {path: before}), side(tmp_path / "2", {path: after})
    wrong, used = sameness.differences(*sides)
    assert (wrong == []) == allowed
    assert bool(used) == allowed


def test_what_only_one_side_has_is_a_difference(tmp_path: Path) -> None:
    sides = side(tmp_path / "1", {"etc/shadow": "x"}), side(tmp_path / "2", {})
    assert sameness.differences(*sides)[0] != []


def test_the_list_is_short_and_each_entry_has_a_reason() -> None:
    assert len(ALLOWED) <= 6
    for rule in ALLOWED:
        assert len(rule.reason.split()) > 5
        assert re.compile(rule.paths)
