"""The block `checks:` of a recipe: what the smoke test runs besides its own checks."""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict
from imagebuilder.recipe.project import Folder

METRIC_LINE = "imagebuilder-metric: "
_LONGEST = 1_000
_BOUND = re.compile(r"([a-z][a-z0-9_]{0,39})(?:\s*(<=|>=|<|>)\s*(-?[0-9]{1,15}(?:\.[0-9]{1,15})?))?")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _command(value: str) -> str:
    try:
        words = shlex.split(value) if value.isprintable() and len(value) <= _LONGEST else []
    except ValueError:
        words = []
    if not words or not words[0]:
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not a command",
            'write one line of words, quoted as for a shell: "python -m app.smoke"',
        )
    return value


def _metric(value: str) -> str:
    if not _BOUND.fullmatch(value):
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not a metric",
            "write its name, or its name and a limit: `accuracy >= 0.9` (`<`, `<=`, `>` or `>=`)",
        )
    return value


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A metric that a script has to print; `compare` and `limit` are "" and 0 if any number will do."""

    name: str
    compare: str
    limit: float

    def holds(self, value: float) -> bool:
        """Return True if a printed value is within the limit."""
        return not self.compare or _COMPARE[self.compare](value, self.limit)


class TrainingCheck(Strict):
    """A command of your own that the smoke test runs as every rank of a job on all nodes.

    It starts in the image's working folder, as the image's user. Every rank has to end with 0.
    """

    command: Annotated[
        str,
        AfterValidator(_command),
        Field(
            description="The command, as one line. No shell runs it, so `|`, `&&` and `$NAME` do not work."
        ),
    ]
    timeout: Annotated[
        int, Field(ge=1, le=3600, description="Seconds that it may take, before `--patience`.")
    ] = 300
    metric: Annotated[
        str,
        AfterValidator(_metric),
        Field(
            description=f"A number that it has to print, as a line `{METRIC_LINE}accuracy=0.95`: the "
            "name, or the name and a limit: `accuracy >= 0.9`."
        ),
    ] = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The command's words."""
        return tuple(shlex.split(self.command))

    @property
    def bound(self) -> Bound | None:
        """The metric that it has to print, if any."""
        found = _BOUND.fullmatch(self.metric)
        if found is None:
            return None
        return Bound(name=found[1], compare=found[2] or "", limit=float(found[3] or 0))


def _kind(value: object) -> str:
    return "<mapping>" if isinstance(value, (dict, TrainingCheck)) else "<command>"


_Training = Annotated[
    Annotated[str, AfterValidator(_command), Tag("<command>")] | Annotated[TrainingCheck, Tag("<mapping>")],
    Discriminator(_kind),
]


class Checks(Strict):
    """What the smoke test runs besides its own checks."""

    training: Annotated[
        _Training | None,
        Field(
            description="A command of your own, such as a short training, which must succeed on all nodes: "
            '`"python -m app.smoke"`, or `{command: ..., timeout: 600, metric: "accuracy >= 0.9"}`.'
        ),
    ] = None
    tests: Annotated[
        Folder | None,
        Field(
            description="A folder with pytest files of your own, relative to the recipe's. The smoke test "
            "runs them on its own host, with testinfra's fixture `host` for every node."
        ),
    ] = None

    @property
    def own_training(self) -> TrainingCheck | None:
        """The training check, however the recipe writes it."""
        return TrainingCheck(command=self.training) if isinstance(self.training, str) else self.training
