"""Runs the steps of a CI file, one after the other, as the service's runner does: for tests of the examples.

They run as they are written, by the shell that the service takes, with files for outputs and paths. Unknown
expressions, and steps that use an action, are errors.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
_LONGEST_STEP = 900  # seconds


def evaluate(text: str, context: Mapping[str, object]) -> object:
    """Evaluate an expression of GitHub's: names, texts, `==`, `!=`, `&&`, `||` and `always()`.

    Raises:
        KeyError: a name is not in the context.

    """
    for sign in ("||", "&&"):
        if sign in text:
            value: object = None
            for part in text.split(sign):
                value = evaluate(part.strip(), context)
                if bool(value) == (sign == "||"):
                    break
            return value
    if compared := re.fullmatch(r"(.+?)\s*(==|!=)\s*(.+)", text):
        equal = evaluate(compared[1], context) == evaluate(compared[3], context)
        return equal == (compared[2] == "==")
    if text == "always()":
        return True
    return text[1:-1] if text.startswith("'") else context[text]


def expand(text: object, context: Mapping[str, object]) -> str:
    """Replace the expressions of a value."""
    return _EXPRESSION.sub(lambda match: str(evaluate(match[1], context)), str(text))


@dataclass(kw_only=True)
class Machine:
    """A fresh runner: a checkout, a folder for temporary files, and an environment.

    Attributes:
        checkout: the repository's files.
        temp: RUNNER_TEMP, and the home of the runner's user.
        env: the environment that the service gives to each step.
        ran: the names of the steps that ran.

    """

    checkout: Path
    temp: Path
    env: dict[str, str]
    ran: list[str] = field(default_factory=list)

    def sh(self, script: str, env: Mapping[str, str] | None = None) -> str:
        """Run a script in the checkout, with the service's shell; returns what it printed.

        Raises:
            AssertionError: it ended with an error.

        """
        ended = subprocess.run(
            [*_SHELL, script],
            cwd=self.checkout,
            env={**self.env, **(env or {})},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LONGEST_STEP,
        )
        assert ended.returncode == 0, f"{script}\n{ended.stdout[-4000:]}"
        return ended.stdout


def machine(checkout: Path, temp: Path, programs: Path, **env: str) -> Machine:
    """Make a runner whose path begins with a folder of programs."""
    temp.mkdir(parents=True)
    taken = {
        name: os.environ[name] for name in ("LANG", "DOCKER_HOST", "PIP_CACHE_DIR") if name in os.environ
    }
    own = {"HOME": str(temp), "RUNNER_TEMP": str(temp), "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin"}
    return Machine(checkout=checkout, temp=temp, env={**taken, **own, **env})


def run_steps(runner: Machine, steps: Sequence[Mapping[str, Any]], context: dict[str, object]) -> None:
    """Run GitHub's steps; what they set is in the context after that, as `steps.ID.outputs.NAME`."""
    for step in steps:
        if "if" in step and not evaluate(step["if"], context):
            continue
        assert "run" in step, f"no test knows the action {step['uses']}"
        outputs, paths = runner.temp / "outputs", runner.temp / "paths"
        outputs.write_text("")
        paths.write_text("")
        env = {name: expand(value, context) for name, value in step.get("env", {}).items()}
        runner.sh(step["run"], {**env, "GITHUB_OUTPUT": str(outputs), "GITHUB_PATH": str(paths)})
        runner.ran.append(step.get("name", step["run"]))
        for line in outputs.read_text().splitlines():
            name, _, value = line.partition("=")
            context[f"steps.{step['id']}.outputs.{name}"] = value
        for line in paths.read_text().splitlines():
            runner.env["PATH"] = f"{line}:{runner.env['PATH']}"
