"""Every envelope that a unit test prints with `--json` is held against the schema of its verb."""

from __future__ import annotations

import json
from functools import cache

import jsonschema
import pytest

from imagebuilder.cli import answer
from imagebuilder.errors import Problem


@cache
def validator(verb: str) -> jsonschema.Draft202012Validator:
    from imagebuilder.cli import results  # late: few tests need it, and it loads much

    return jsonschema.Draft202012Validator(results.schema(verb))


@pytest.fixture(autouse=True)
def _envelopes_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    real = answer.envelope

    def checked(verb: str, code: int, problems: tuple[Problem, ...]) -> str:
        text = real(verb, code, problems)
        validator(verb).validate(json.loads(text))
        return text

    monkeypatch.setattr(answer, "envelope", checked)
