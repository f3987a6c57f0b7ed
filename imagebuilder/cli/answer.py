"""What `--json` prints: one document a command, also if the command failed. Nothing else prints JSON.

The envelope is the same for all verbs; `results.py` has the type of each verb's result.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import typer
from typer.core import TyperCommand

from imagebuilder.core import jsontext
from imagebuilder.errors import INTERRUPTED, EnvironmentFault, ImagebuilderError, Problem

# Goes up when a key disappears or gets another meaning; new keys leave it.
VERSION = 1
# What verbs declare as `as_json: Json`.
_OPTION, _PARAMETER = "--json", "as_json"
_result: ContextVar[object] = ContextVar("result", default=None)


class Verbs(typer.Typer):
    """An application whose verbs answer with an envelope if they were called with `--json`."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a verb, as typer does."""
        return super().command(name, cls=_Verb, **settings)


class _Verb(TyperCommand):
    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read the options; wrong ones are answered in JSON, too."""
        _result.set(None)
        asked = _OPTION in args and any(parameter.name == _PARAMETER for parameter in self.params)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as error:
            # typer's errors for wrong options have this method; their base class moves between releases.
            if asked and (describe := getattr(error, "format_message", None)) is not None:
                name = _name(info_name, parent)
                problem = Problem(message=describe(), where=f"imagebuilder {name}")
                typer.echo(envelope(name, EnvironmentFault.exit_code, (problem,)))
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the verb, and print its envelope when it has ended."""
        if not ctx.params.get(_PARAMETER):
            return super().invoke(ctx)
        code, problems = 0, tuple[Problem, ...]()
        try:
            return super().invoke(ctx)
        except typer.Exit as end:
            code = end.exit_code
            raise
        except ImagebuilderError as error:
            code, problems = error.exit_code, error.problems
            raise
        except (KeyboardInterrupt, typer.Abort):
            code, problems = INTERRUPTED, (Problem(message="interrupted"),)
            raise
        except Exception as error:
            code, problems = (
                ImagebuilderError.exit_code,
                (Problem(message=f"{type(error).__name__}: {error}"),),
            )
            raise
        finally:
            typer.echo(envelope(_name(ctx.info_name, ctx.parent), code, problems))


def answer(result: object) -> None:
    """Give the result of the running verb, of the verb's type in `results.py`, to its envelope."""
    _result.set(result)


def envelope(verb: str, code: int, problems: tuple[Problem, ...]) -> str:
    """Return the document of a verb that ended with an exit code, as JSON."""
    error = {"code": code, "problems": problems} if code else None
    whole = {"version": VERSION, "command": verb, "ok": not code, "result": _result.get(), "error": error}
    return json.dumps(jsontext.plain(whole), indent=2)


def _name(info_name: str | None, parent: Any) -> str:
    """Return the verb as people call it, such as `cache ls`. The outermost context is the program itself."""
    words = [info_name or ""]
    while parent is not None and parent.parent is not None:
        words.insert(0, parent.info_name or "")
        parent = parent.parent
    return " ".join(words)
