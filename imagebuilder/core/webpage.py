"""Pages for a browser, each one self-contained file: no scripts, fonts, pictures or requests.

What they show is hostile: names of packages and labels of images come from registries. All text is escaped
and made visible, and the content security policy allows only the page's own style sheet, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from imagebuilder.core.visible import visible

_FOLDER = Path(__file__).parent


def render(template: Path, title: str, filters: Mapping[str, Any], **values: object) -> str:
    """Return a page.

    Args:
        template: it extends `webpage.html.j2`; its style sheet is beside it, with the suffix `.css`.
        title: of the page.
        filters: for the template, by name.
        values: for the template, by name.

    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _FOLDER]),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= filters
    sheets = (_FOLDER / "webpage.css", template.with_name(template.name.partition(".")[0] + ".css"))
    style = "\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.get_template(template.name).render(
        title=title,
        style=Markup(style),  # noqa: S704  (our own files)
        style_hash=f"sha256-{digest}",
        **values,
    )


def _finalized(value: object) -> object:
    """Make all text that a template prints harmless; markup is our own and stays."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
