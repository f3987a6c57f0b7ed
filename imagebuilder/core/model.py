"""The base of all models of files in this project's own formats: recipe, lock, catalog, site file, report.

Models of others' documents are lenient on purpose and do not use it: registry/reader.py (newer registries add
keys), smoke/verdict.py and smoke/evidence.py (reports of other versions of imagebuilder).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, RootModel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_Row = TypeVar("_Row", bound=BaseModel)


class Strict(BaseModel):
    """Refuses unknown keys, converts no value, and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Table(RootModel[dict[str, _Row]], Generic[_Row]):
    """A file whose top level is a mapping from names to rows of one kind."""

    model_config = ConfigDict(frozen=True, strict=True)


@dataclass(frozen=True)
class Rule:
    """A rule for a text, as metadata of `Annotated[str, ...]`. JSON Schemas get its pattern.

    Attributes:
        check: returns the text, or raises `yamlfile.Invalid`.
        pattern: regular expression in the dialect that Python and ECMA 262 share. It matches every whole text
            that `check` accepts, and perhaps more.

    """

    check: Callable[[str], str]
    pattern: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Run the check after pydantic's own."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, described: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the pattern to the JSON Schema."""
        return {**handler(described), "pattern": f"^(?:{self.pattern})$"}
