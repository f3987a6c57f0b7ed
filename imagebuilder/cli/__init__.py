"""The command line: the only place that prints or exits.

What a verb needs is imported inside it, so that `--help` and `check` start in a fraction of a second.
"""

from __future__ import annotations

# First: what it sets holds while the rest is loaded.
from imagebuilder.cli import collector  # noqa: F401

# isort: split

import copy
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from imagebuilder.cli.base import app, complain, err
from imagebuilder.errors import INTERRUPTED, EnvironmentFault, ImagebuilderError

# Imported for the verbs that they register, in the order of the help.
# isort: off
from imagebuilder.cli import recipes, changes, fetch, build, smoke, reports  # noqa: F401
from imagebuilder.cli import push, promote, join, published, host, launch, cache, components  # noqa: F401
# isort: on

__all__ = ["app", "application", "main"]


def main() -> NoReturn:
    """Run the command line and exit with the code of what happened (see errors.py)."""
    code = 0
    # Otherwise pydantic searches all installed packages for plugins: that takes time, and they change models.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        code = application(sys.argv[1:2])(standalone_mode=False) or 0
    except ImagebuilderError as error:
        complain(error)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `| head`, has closed the pipe. Without this, Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # typer's errors for wrong options have a method `show`; their base class moves between releases.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(EnvironmentFault.exit_code)
    # Some releases of typer turn Ctrl-C into this exit code by themselves.
    if code == INTERRUPTED:
        err("interrupted: no half-written file was left")
    sys.exit(code)


def application(verb: Sequence[str]) -> typer.Typer:
    """Return the application with only the verb that the command line begins with.

    Typer parses the options of every registered verb before it runs one, which takes time. If the first word
    is not a verb, as for `--help`, return the whole application.
    """
    named = [
        command
        for command in app.registered_commands
        if command.callback is not None
        and (command.name or command.callback.__name__.replace("_", "-")) in verb
    ]
    if not named:
        return app
    one = copy.copy(app)
    one.registered_commands, one.registered_groups = named, []
    return one
