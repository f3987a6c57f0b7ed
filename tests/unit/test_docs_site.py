"""The docs site: every link leads somewhere, and a browser loads nothing from elsewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from imagebuilder.core import process

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# What a browser loads without a click: scripts, styles, pictures, frames, imports and fonts of style sheets.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object|input)\b[^>]*?\b(?:src|srcset|data)\s*=\s*[\"']?([^\"'\s>]+)"
    r"|<link\b[^>]*?\bhref\s*=\s*[\"']?([^\"'\s>]+)"
    r"|<(?:image|use)\b[^>]*?\bhref\s*=\s*[\"']?([^\"'\s>]+)"
    r"|url\(\s*[\"']?([^\"')]+)"
    r"|@import\s+[\"']([^\"']+)"
)
ELSEWHERE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)


def build(source: Path, output: Path) -> process.Result:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q"]
    return process.run([*command, "-c", ROOT / "docs", source, output], timeout=300, check=False)


def loaded_from_elsewhere(text: str) -> list[str]:
    addresses = ["".join(groups) for groups in LOADED.findall(text)]
    return [address for address in addresses if ELSEWHERE.match(address)]


def stale_lines(text: str, folder: Path) -> list[str]:
    """Find lines that do not exist: of a link to `file.py#L12`, or of `imagebuilder/file.py:12`."""
    links = [(folder / path, line) for path, line in re.findall(r"\]\(([^)#:]+)#L(\d+)", text)]
    named = re.findall(r"\b((?:imagebuilder|bin|tests|bench|scripts|docs)/[\w./-]+\.\w+):(\d+)", text)
    places = [*links, *((ROOT / path, line) for path, line in named)]
    return [f"{path.name}:{line}" for path, line in places if not has_line(path, int(line))]


def has_line(path: Path, line: int) -> bool:
    return path.is_file() and 0 < line <= len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    result = build(ROOT, tmp_path)
    assert (result.code, result.stdout + result.stderr) == (0, "")
    pages = [page.relative_to(ROOT).with_suffix(".html") for page in PAGES]
    assert [page for page in pages if not (tmp_path / page).is_file()] == []
    files = [path for path in tmp_path.rglob("*") if path.suffix in {".html", ".css", ".svg"}]
    assert len(files) > len(pages)
    assert [path for path in files if loaded_from_elsewhere(path.read_text("utf-8"))] == []
    index = (tmp_path / "searchindex.js").read_text("utf-8")
    assert all(f'"{page.with_suffix("")}"' in index for page in pages)
    assert 'url=docs/index.html"' in (tmp_path / "index.html").read_text("utf-8")


@pytest.mark.slow
def test_a_link_that_leads_nowhere_and_a_page_that_nobody_lists_stop_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "source" / "docs"
    docs.mkdir(parents=True)
    (docs / "index.md").write_text("# Docs\n\n- **How to**: [a page](page.md)\n", "utf-8")
    (docs / "page.md").write_text(
        "# A page\n\n[gone](gone.md) [part](index.md#no-part) [x](x.yaml)\n", "utf-8"
    )
    (docs / "alone.md").write_text("# Alone\n", "utf-8")
    result = build(tmp_path / "source", tmp_path / "site")
    assert result.code == 1
    told = re.findall(r"docs/(\w+\.md)(?::\d+)?: WARNING: (.*) \[", result.stderr)
    assert sorted(told) == [
        ("alone.md", "document isn't included in any toctree"),
        ("page.md", "'myst' cross-reference target not found: 'gone.md'"),
        ("page.md", "'myst' cross-reference target not found: 'x.yaml'"),
        ("page.md", "local id not found in doc 'docs/index': 'no-part'"),
    ]


def test_the_index_lists_every_page() -> None:
    """Sphinx says so too, but its test is slow. The sidebar is made from the index."""
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    linked = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#]+\.md)\)", index)}
    assert [page.relative_to(ROOT).as_posix() for page in PAGES if page not in linked] == ["docs/index.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_that_a_page_refers_to_exist(page: Path) -> None:
    assert stale_lines(page.read_text("utf-8"), page.parent) == []


def test_a_line_that_does_not_exist_is_noticed() -> None:
    text = "[a](../Makefile#L1) [b](../Makefile#L99999) `bin/house.py:2` `imagebuilder/errors.py:99999`"
    assert stale_lines(text, ROOT / "docs") == ["Makefile:99999", "errors.py:99999"]
    assert stale_lines("imagebuilder/no_such_file.py:1", ROOT) == ["no_such_file.py:1"]


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://x.example/a.js"></script>',
        '<link rel=stylesheet href="//x.example/a.css">',
        "<img alt='' src='HTTP://x.example/a.png'>",
        "a { background: url(https://x.example/a.woff2) }",
        '@import "https://x.example/a.css";',
    ],
)
def test_what_a_browser_would_load_from_elsewhere_is_noticed(text: str) -> None:
    assert len(loaded_from_elsewhere(text)) == 1
    assert loaded_from_elsewhere('<a href="https://x.example">a link</a><img src="a.png">') == []
