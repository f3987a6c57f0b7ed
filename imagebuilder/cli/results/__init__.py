"""The type of the `result` in each verb's `--json`, and the JSON Schema of the whole document.

Loaded only for `--json`: it imports what the types name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from imagebuilder.cli.answer import VERSION
from imagebuilder.cli.results import images, recipes
from imagebuilder.errors import InputError, Problem
from imagebuilder.publish.promote import Promoted
from imagebuilder.smoke.report import Report
from imagebuilder.store.cache import Damage, Pruned, Share, Usage
from imagebuilder.workflow.doctor import HostFinding


@dataclass(frozen=True, kw_only=True)
class DoctorResult:
    """What this host has and lacks."""

    findings: tuple[HostFinding, ...]


@dataclass(frozen=True, kw_only=True)
class TriedComponent:
    """A component of a catalog file, the version that each node's probe printed, and what was wrong.

    A node whose probe printed none has "".
    """

    name: str
    pin: str
    passed: bool
    versions: dict[str, str]
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CacheListResult:
    """The store's folder, and what is in it."""

    folder: str
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class CacheUseResult:
    """The blobs of each recipe's images, and the bytes of those in no image and of the downloads."""

    folder: str
    recipes: tuple[Share, ...]
    other: int
    downloads: int


@dataclass(frozen=True, kw_only=True)
class CacheVerifyResult:
    """The damaged files; `removed` with `--fix`."""

    folder: str
    damages: tuple[Damage, ...]
    removed: bool


@dataclass(frozen=True, kw_only=True)
class CachePruneResult:
    """What was removed, or with `dry_run` would be."""

    pruned: Pruned
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a command did not succeed.

    Attributes:
        code: the exit code, see docs/reference/exit-codes.md.
        problems: what is wrong; empty if the result says it, for example which check failed.

    """

    code: int
    problems: tuple[Problem, ...]


RESULTS: dict[str, type] = {
    "check": recipes.CheckResult,
    "lock": recipes.LockResult,
    "plan": recipes.PlanResult,
    "diff": recipes.DiffResult,
    "update": recipes.UpdateResult,
    "fetch": recipes.FetchResult,
    "build": images.BuildResult,
    "smoke-test": Report,
    "report": Report,
    "compare-checkpoints": images.CompareResult,
    "push": images.PushedResult,
    "promote": Promoted,
    "join": images.JoinResult,
    "inspect": images.InspectResult,
    "verify": images.VerifyResult,
    "catalog test": TriedComponent,
    "doctor": DoctorResult,
    "cache ls": CacheListResult,
    "cache du": CacheUseResult,
    "cache verify": CacheVerifyResult,
    "cache prune": CachePruneResult,
}


def schema(verb: str) -> dict[str, Any]:
    """Describe what a verb prints with `--json`, as JSON Schema 2020-12.

    Raises:
        InputError: the verb is unknown, or has no `--json`.

    """
    kind = RESULTS.get(verb)
    if kind is None:
        raise InputError(
            f"no verb `{verb}` has --json", where="--json", hint=f"choose one of {', '.join(RESULTS)}"
        )
    template = "#/$defs/{model}"
    kinds: tuple[Any, ...] = (kind | None, Failure | None)
    parts = [TypeAdapter(each).json_schema(mode="serialization", ref_template=template) for each in kinds]
    definitions = {name: entry for part in parts for name, entry in part.pop("$defs", {}).items()}
    keys = {
        "version": {"const": VERSION},
        "command": {"const": verb},
        "ok": {"type": "boolean", "description": "Whether the exit code is 0."},
        "result": {**parts[0], "description": "Null if the command ended before it had one."},
        "error": {**parts[1], "description": "Null if the exit code is 0."},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"imagebuilder {verb} --json",
        "type": "object",
        "properties": keys,
        "required": list(keys),
        "additionalProperties": False,
        "$defs": definitions,
    }
