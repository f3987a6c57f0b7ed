"""The smoke test can fail: images and settings broken on purpose, tests/cases/broken, a sample of them.

`make soak` runs all of them (tests/soak/test_all_controls.py).
"""

from __future__ import annotations

import pytest

from imagebuilder.smoke.engine import Engine
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.support import broken


@pytest.mark.parametrize("name", broken.names(sample=True))
def test_what_is_broken_is_caught_and_named(name: str, built: Built, connected: Engine, store: Store) -> None:
    case = broken.read(name)
    sound = built(broken.recipe(case.base))
    with broken.image(name, sound, case.image, connected, store) as reference:
        report = broken.run(case, reference, connected, store)
    assert not report.passed
    assert broken.caught(case, report).message, broken.said(report)


def test_an_image_with_a_layer_that_breaks_nothing_passes(
    built: Built, connected: Engine, store: Store
) -> None:
    sound = built(ROOT / "recipes" / "cpu-mpi.yaml")
    with broken.image("sound", sound, broken.HARMLESS, connected, store) as reference:
        assert reference != sound
        report = broken.run(None, reference, connected, store)
    assert report.passed, broken.said(report)
