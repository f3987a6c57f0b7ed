"""The block `proof:` of a recipe: what a report has to show before the image counts as proven."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from imagebuilder.core.model import Strict


class ProofPolicy(Strict):
    """Rules for the report that `push` and `verify` accept."""

    reuse: Annotated[
        Literal["code", "nothing"],
        Field(
            description="`code`: if only your own files changed (`copy:`, `project:`), long checks that "
            "passed on an image with the same lower layers do not run again. `nothing`: all checks run."
        ),
    ] = "code"
