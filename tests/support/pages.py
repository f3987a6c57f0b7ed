"""What an HTML page consists of, and whether it can do anything in a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "img", "hr", "input"}
# Elements and attributes that run or fetch something.
_ACTIVE = {"script", "iframe", "object", "embed", "base", "form", "img", "audio", "video", "foreignobject"}


class Parsed(HTMLParser):
    """What a page consists of; complains of elements that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], "elements are left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def require_inert(text: str) -> None:
    """Require a page that is well-formed, runs and loads nothing, and allows only its own style sheet."""
    found = Parsed(text)
    assert not {tag for tag, _ in found.tags} & _ACTIVE
    for tag, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("src", "href", "xlink:href", "action"):
            assert attributes.get(name, "data:,").startswith(("#", "data:,")), (tag, attributes)
    policy = next(
        attributes["content"]
        for _, attributes in found.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() for style in styles]
    assert [f"'sha256-{digest}'" for digest in digests] == re.findall(r"'sha256-[^']+'", policy)
