"""The smoke test can fail: everything in tests/cases/broken, and the table of how each case was caught."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from imagebuilder.smoke.engine import Engine
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.support import broken

PAGE = ROOT / "docs" / "explanation" / "smoke-test.md"


@pytest.fixture(scope="module")
def table(pytestconfig: pytest.Config) -> Iterator[dict[str, broken.Caught]]:
    """How each case of this run was caught; written into the documentation when that is asked for."""
    rows: dict[str, broken.Caught] = {}
    yield rows
    if pytestconfig.getoption("--update-controls"):
        broken.write_table(PAGE, rows)


@pytest.mark.parametrize("name", broken.names())
def test_what_is_broken_is_caught_and_named(
    name: str, built: Built, connected: Engine, store: Store, table: dict[str, broken.Caught]
) -> None:
    case = broken.read(name)
    sound = built(broken.recipe(case.base))
    with broken.image(name, sound, case.image, connected, store) as reference:
        report = broken.run(case, reference, connected, store)
    assert not report.passed
    found = broken.caught(case, report)
    assert found.message, broken.said(report)
    table[name] = found


@pytest.mark.parametrize("base", ["cpu-mpi", "cuda12-torch", "frameworks", "mxnet"])
def test_an_image_with_a_layer_that_breaks_nothing_passes(
    base: str, built: Built, connected: Engine, store: Store
) -> None:
    sound = built(broken.recipe(base))
    with broken.image("sound", sound, broken.HARMLESS, connected, store) as reference:
        report = broken.run(None, reference, connected, store)
    assert report.passed, broken.said(report)
