"""What the engine's history says of an image that somebody built on top of one of ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from imagebuilder.smoke import engine

OWN = [{"CreatedBy": "imagebuilder: settings", "Created": 1795227046}] * 2


@pytest.mark.parametrize("created", [0, 1795300000])
def test_steps_on_top_are_told_from_ours_by_name_and_not_by_date(created: int) -> None:
    """SOURCE_DATE_EPOCH=0 gives the steps of any builder the date 1970."""
    steps = [
        {"CreatedBy": "/bin/sh -c #(nop)  USER root", "Created": created},
        {"CreatedBy": "RUN /bin/sh -c touch /x # buildkit", "Created": created},
    ]
    image = cast("Any", SimpleNamespace(history=lambda: [*steps, *OWN]))
    assert engine._on_top(image) == ("RUN touch /x", "USER root")
    assert engine._on_top(cast("Any", SimpleNamespace(history=lambda: OWN))) == ()
