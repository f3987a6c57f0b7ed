"""Settings of Sphinx, which `make docs` runs to build the site.

The source folder is the top of the repository, so that links, also those to a file such as a recipe, mean the
same on the site as in a checkout. The sidebar is made from the lists in index.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

_INDEX = "docs/index"

project = "imagebuilder"
html_title = "imagebuilder"
author = ""
extensions = ["myst_parser"]
root_doc = _INDEX
include_patterns = [
    "*.md",
    "docs/**.md",
    "bench/**.md",
    "examples/*/README.md",
    "tests/cases/nccl-logs/README.md",
]
exclude_patterns = [".*", "build", "dist"]
myst_heading_anchors = 4
# `--json` in a heading is an option, not a dash.
smartquotes = False
# Blocks of `console` hold `…` and output, which the lexer of that name marks as errors.
suppress_warnings = ["misc.highlighting_failure"]
templates_path: list[str] = []

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}


def add_sidebar(app: Sphinx, page: str, source: list[str]) -> None:
    """Append a hidden table of contents to the index: each of its lists is a section of the sidebar."""
    if page != _INDEX:
        return
    for caption, text in re.findall(
        r"^- \*\*([^*]+)\*\*: (.*?)(?=^- |\Z)", source[0], re.MULTILINE | re.DOTALL
    ):
        links = [f"/{_page(Path(app.srcdir), link)}" for link in re.findall(r"\]\(([^)#]+)\.md\)", text)]
        source[0] += "\n".join(
            ["", "", "```{toctree}", ":hidden:", f":caption: {caption}", "", *links, "```", ""]
        )


def _page(top: Path, link: str) -> str:
    return (top / "docs" / link).resolve().relative_to(top.resolve()).as_posix()


def lead_to_index(app: Sphinx, error: Exception | None) -> None:
    """Write the page at the top of the site, which leads to the index."""
    if error is None:
        target = f'<meta http-equiv="refresh" content="0; url={_INDEX}.html">'
        page = f"<!doctype html>{target}<title>{project}</title>"
        (Path(app.outdir) / "index.html").write_text(page + "\n", encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connect the functions above to Sphinx."""
    app.connect("source-read", add_sidebar)
    app.connect("build-finished", lead_to_index)
