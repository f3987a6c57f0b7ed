"""The base of all models of files in this project's own formats: recipe, lock, catalog, site file, report.

Models of others' documents are lenient on purpose and do not use it: registry/reader.py (newer registries add
keys), smoke/verdict.py and smoke/evidence.py (reports of other versions of imagebuilder).
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, RootModel

_Row = TypeVar("_Row", bound=BaseModel)


class Strict(BaseModel):
    """Refuses unknown keys, converts no value, and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Table(RootModel[dict[str, _Row]], Generic[_Row]):
    """A file whose top level is a mapping from names to rows of one kind."""

    model_config = ConfigDict(frozen=True, strict=True)
