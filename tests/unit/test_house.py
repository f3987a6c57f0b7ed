"""The package's structure: what bin/house.py measures, and what CONTRIBUTING.md says of it."""

from __future__ import annotations

import json
import re
import runpy
import sys
from functools import cache
from pathlib import Path
from typing import Any

from imagebuilder.core import process
from tests.unit.test_guards import ORDER, PACKAGE, ROOT

PROGRAM = ROOT / "bin" / "house.py"
measure, circles = (runpy.run_path(str(PROGRAM))[name] for name in ("measure", "circles"))


@cache
def figures() -> Any:
    return json.loads(process.run([sys.executable, PROGRAM, "--json"], timeout=60).stdout)


def folders() -> set[str]:
    """Name the folders of the package that hold code."""
    return {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}


def test_no_room_imports_itself_through_others() -> None:
    assert figures()["circles"] == []


def test_rooms_of_the_table_are_the_folders_in_the_order_of_imports() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| room | ")[2].partition("\n\n")[0]
    rooms = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert tuple(rooms) == ORDER
    assert set(rooms) == folders() | {"errors"}


def test_the_package_fits_one_glance() -> None:
    assert figures()["entries"] <= 24


def test_a_package_is_measured(tmp_path: Path) -> None:
    package = tmp_path / "imagebuilder"
    for name, text in {
        "__init__.py": "",
        "one/__init__.py": "from imagebuilder import two\nclass Entry: ...\n",
        "two/__init__.py": "def f():\n    import imagebuilder.three\n    def in_it():\n        import os\n",
        "three/__init__.py": "from imagebuilder.one import Entry as E\nclass Entry: ...\ncatalog.load()\n",
        "three/wide.py": "def wide(a, b, c, d, e, f):\n" + "    a\n" * 60,
        "smoke/payload/script.py": "from imagebuilder import one\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    found = measure(package)
    assert (found.entries, found.modules, found.loads, found.late) == (5, 6, 1, 2)
    assert found.lines == {"__init__": 0, "one": 2, "two": 4, "three": 64, "smoke": 1}
    assert found.arrows == (("one", "two"), ("three", "one"), ("two", "three"))
    assert found.circles == (("one", "three", "two"),)
    assert found.long == ("imagebuilder/three/wide.py:1 wide 61",)
    assert found.many == ("imagebuilder/three/wide.py:1 wide 6",)
    assert found.shared == {"Entry": 2}


def test_circles_are_told_apart() -> None:
    arrows = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c"), ("e", "a")]
    assert circles(arrows) == (("a", "b"), ("c", "d"))


def test_the_figures_are_printed_for_people_too() -> None:
    text = process.run([sys.executable, PROGRAM], timeout=60).stdout
    found = figures()
    assert f"{len(found['arrows'])} arrows between {len(ORDER)} rooms, 0 circles" in text
    assert f"{found['modules']} modules, {found['entries']} entries in imagebuilder/" in text
