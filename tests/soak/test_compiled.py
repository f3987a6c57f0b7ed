"""A component that is compiled twice, in surroundings that differ: the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.store import Store
from tests.integration.test_compiled import Bench, bench

__all__ = ["bench"]


def test_a_component_compiled_twice_is_the_same(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.build(Store(tmp_path / "one"))
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("HOSTNAME", "elsewhere")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert bench.build(Store(tmp_path / "a longer name for the other one")) == first
