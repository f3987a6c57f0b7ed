"""The block `proof:` of a recipe: what a report has to show before the image counts as proven."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from imagebuilder.core import jsontext, yamlfile
from imagebuilder.core.model import Strict

_KEY_FILE = re.compile(r"(?:\.\./)*[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_LONGEST = 200
# Each key costs a few requests for each attached report.
_MOST_KEYS = 16
_LABEL_LIMIT = 16_384


def _key_file(value: str) -> str:
    if not _KEY_FILE.fullmatch(value) or len(value) > _LONGEST:
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not the path of a key",
            "name the file of a public key, relative to the recipe's folder: lab.pub",
        )
    return value


class ProofPolicy(Strict):
    """What a report has to show before the image counts as proven. One report has to show all of it."""

    mode: Annotated[
        Literal["cpu", "one-gpu-shared", "multi-gpu"],
        Field(description="How tensors were sent, at least; the weakest mode is first."),
    ] = "cpu"
    nodes: Annotated[int, Field(ge=2, le=4096, description="The smallest number of nodes.")] = 2
    transport: Annotated[
        Literal["any", "socket", "ib", "ofi"],
        Field(description="The network that NCCL must have used between the nodes."),
    ] = "any"
    min_busbw: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            description="The lowest bus bandwidth of the largest allreduce, in 10^9 bytes a second.",
        ),
    ] = 0
    signed_by: Annotated[
        tuple[Annotated[str, AfterValidator(_key_file)], ...],
        Field(
            max_length=_MOST_KEYS,
            description="Files of public keys, relative to the recipe's folder: one of them must have signed "
            "the report. Without any, everybody who may push to the registry can attach one that counts.",
        ),
    ] = ()
    reuse: Annotated[
        Literal["code", "nothing"],
        Field(
            description="`code`: if only your own files changed (`copy:`, `project:`), long checks that "
            "passed on an image with the same lower layers do not run again. `nothing`: all checks run."
        ),
    ] = "code"

    def label(self) -> str:
        """Return the demands as an image's label has them; empty if any passing report will do."""
        demands = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps(demands, sort_keys=True, separators=(",", ":")) if demands else ""


def of_label(text: str) -> ProofPolicy:
    """Read the label that `ProofPolicy.label` wrote.

    Raises:
        ValueError: it is damaged; the message completes a sentence that begins with the label's name.

    """
    if not text:
        return ProofPolicy()
    jsontext.loads(text, limit=_LABEL_LIMIT, unique=True)
    try:
        return ProofPolicy.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ValueError(f"holds no demands on a report: {where}: {first['msg']}") from None
