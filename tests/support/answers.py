"""Reads what verbs print with `--json`."""

from __future__ import annotations

import json
from typing import Any


def result(text: str) -> dict[str, Any]:
    """Return the result in an envelope."""
    found: dict[str, Any] = json.loads(text)["result"]
    return found


def built_image(text: str) -> dict[str, Any]:
    """Return the result of a build of one platform, with what it says of its image."""
    whole = result(text)
    (image,) = whole["images"]
    return {**image, "reference": whole["reference"]}


def one_image(text: str) -> dict[str, Any]:
    """Return the only image in the result of `inspect`, `plan` or `verify`."""
    (image,) = result(text)["images"]
    found: dict[str, Any] = image
    return found
