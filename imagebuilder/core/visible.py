"""Make text from an image safe to show: every character is visible, and none has an effect."""

from __future__ import annotations

import re

# Colours and cursor movements (ECMA-48: CSI sequences), and titles and links (OSC, ended by BEL or ST).
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_NEWLINES = re.compile(r"\r\n?")
# Characters that XML 1.0 does not allow (section 2.2), C1 controls, and those that change the direction of
# text.
_UNFIT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\ufffe\uffff]"
)
_PICTURES = 0x2400  # Unicode's pictures of the C0 controls, in order


def visible(text: str) -> str:
    r"""Remove terminal escapes, draw other controls, and name characters that change the direction of text.

    After escaping, the result is valid in XML 1.0.

    >>> visible("\x1b[31mred\x1b[0m\x00 \u202e.")
    'red␀ ⟨U+202E⟩.'
    """
    return _UNFIT.sub(_shown, _NEWLINES.sub("\n", _ESCAPES.sub("", text)))


def tail(text: str, limit: int = 12_000) -> str:
    """Keep the end of a text, starting with a whole line; a first line says how much is left out."""
    if len(text) <= limit:
        return text
    kept = text[-limit:]
    _, newline, rest = kept.partition("\n")
    kept = rest if newline and rest else kept
    return f"[the {len(text) - len(kept)} characters before this are only in the JSON report]\n{kept}"


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == 0x7F:
        return "␡"
    return "\ufffd" if 0xD800 <= code < 0xE000 or code > 0xFFF0 else f"⟨U+{code:04X}⟩"
