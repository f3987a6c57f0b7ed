"""Runs the jobs of a CI file, step by step, as the service's runner does: for tests of the examples.

They run as they are written, by the shell that the service takes, with files for outputs, paths and settings.
Unknown expressions, and actions that have no stand-in, are errors.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
_LONGEST_STEP = 900  # seconds
# The files that a step writes for the steps after it.
_FILES = ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_ENV", "GITHUB_STEP_SUMMARY")


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
        container: the command that starts a container for a script, `docker run` to the image's name; its
            environment is given to it. Empty: scripts run on this host.
        ran: the names of the steps that ran.
        said: what they printed.
        kept: the files that an upload kept, by the artifact's name.

    """

    checkout: Path
    temp: Path
    env: dict[str, str]
    container: tuple[str, ...] = ()
    ran: list[str] = field(default_factory=list)
    said: str = ""
    kept: dict[str, set[str]] = field(default_factory=dict)

    def sh(self, script: str, env: Mapping[str, str] | None = None) -> str:
        """Run a script in the checkout, with the service's shell; returns what it printed.

        Raises:
            AssertionError: it ended with an error.

        """
        whole = {**self.env, **(env or {})}
        argv = [*_SHELL, script]
        if self.container:
            *start, image = self.container
            argv = [*start, *(f"--env={name}={value}" for name, value in whole.items()), image, *argv]
        ended = subprocess.run(
            argv,
            cwd=self.checkout,
            env=dict(os.environ) if self.container else whole,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LONGEST_STEP,
        )
        self.said += ended.stdout
        assert ended.returncode == 0, f"{script}\n{ended.stdout[-4000:]}"
        return ended.stdout


Action = Callable[[Machine, Mapping[str, str]], None]
"""What stands in for an action: it gets the runner, and the step's `with:`."""


def machine(checkout: Path, temp: Path, programs: Path, **env: str) -> Machine:
    """Make a runner whose path begins with a folder of programs."""
    temp.mkdir(parents=True)
    taken = {
        name: os.environ[name] for name in ("LANG", "DOCKER_HOST", "PIP_CACHE_DIR") if name in os.environ
    }
    own = {"HOME": str(temp), "RUNNER_TEMP": str(temp), "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin"}
    own |= {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(checkout)}
    return Machine(checkout=checkout, temp=temp, env={**taken, **own, **env})


def keep(runner: Machine, given: Mapping[str, str]) -> None:
    """Stand in for actions/upload-artifact: note which files it would keep."""
    found = {path.name for path in (runner.checkout / given["path"]).rglob("*") if path.is_file()}
    assert found or given["if-no-files-found"] == "ignore", f"no files in {given['path']}"
    runner.kept[given["name"]] = found


def run_job(
    runner: Machine,
    workflow: Mapping[str, Any],
    name: str,
    context: Mapping[str, object],
    actions: Mapping[str, Action],
) -> dict[str, str]:
    """Run a job of a GitHub workflow, with the first value of each key of its matrix; returns its outputs."""
    job = workflow["jobs"][name]
    matrix = {f"matrix.{key}": values[0] for key, values in job.get("strategy", {}).get("matrix", {}).items()}
    own: dict[str, object] = {**context, **matrix}
    assert "if" not in job or evaluate(job["if"], own), f"the job {name} does not run on this event"
    for settings in (workflow.get("env", {}), job.get("env", {})):
        runner.env.update({key: expand(value, own) for key, value in settings.items()})
    run_steps(runner, job["steps"], own, actions)
    return {key: expand(value, own) for key, value in job.get("outputs", {}).items()}


def run_steps(
    runner: Machine,
    steps: Sequence[Mapping[str, Any]],
    context: dict[str, object],
    actions: Mapping[str, Action] | None = None,
) -> None:
    """Run GitHub's steps; what they set is in the context after that, as `steps.ID.outputs.NAME`.

    After a step that failed, only those with `if: always()` run.

    Raises:
        AssertionError: a step failed, or uses an action that has no stand-in.

    """
    failed: AssertionError | None = None
    for step in steps:
        condition = step.get("if", "success()")
        if not (failed is None if condition == "success()" else evaluate(condition, context)):
            continue
        try:
            _run_step(runner, step, context, actions or {})
        except AssertionError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _run_step(
    runner: Machine, step: Mapping[str, Any], context: dict[str, object], actions: Mapping[str, Action]
) -> None:
    if "uses" in step:
        name = step["uses"].partition("@")[0]
        assert name in actions, f"no test knows the action {step['uses']}"
        actions[name](runner, {key: expand(value, context) for key, value in step.get("with", {}).items()})
        runner.ran.append(step.get("name", name))
        return
    files = {name: runner.temp / name.lower() for name in _FILES}
    for path in files.values():
        path.write_text("")
    env = {name: expand(value, context) for name, value in step.get("env", {}).items()}
    try:
        runner.sh(step["run"], {**env, **{name: str(path) for name, path in files.items()}})
    finally:
        written = {name: path.read_text() for name, path in files.items()}
        for line in written["GITHUB_OUTPUT"].splitlines():
            name, _, value = line.partition("=")
            context[f"steps.{step['id']}.outputs.{name}"] = value
        for line in written["GITHUB_ENV"].splitlines():
            name, _, runner.env[name] = line.partition("=")
        for line in written["GITHUB_PATH"].splitlines():
            runner.env["PATH"] = f"{line}:{runner.env['PATH']}"
    runner.ran.append(step.get("name", step["run"]))


def run_composite(runner: Machine, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Run a composite action, whose action.yml is in a folder; returns its outputs."""
    action = yaml.safe_load((folder / "action.yml").read_text(encoding="utf-8"))
    inputs = {
        f"inputs.{name}": given.get(name, entry.get("default")) for name, entry in action["inputs"].items()
    }
    assert None not in inputs.values(), "an input is missing"
    context: dict[str, object] = {**inputs, "github.action_path": str(folder)}
    run_steps(runner, action["runs"]["steps"], context)
    return {name: expand(entry["value"], context) for name, entry in action["outputs"].items()}


def run_gitlab(runner: Machine, pipeline: Mapping[str, Any], name: str, variables: Mapping[str, str]) -> None:
    """Run a job of GitLab's: its lines in one shell, after those of `before_script`, with its variables.

    The first value of its matrix counts. The service's own variables go before those of the file.
    """
    job = pipeline[name]
    runner.env.update(variables)
    (chosen,) = job.get("parallel", {}).get("matrix", [{}])
    own = {
        **pipeline.get("variables", {}),
        **job.get("variables", {}),
        **{k: v[0] for k, v in chosen.items()},
    }
    for key, text in own.items():
        value = _VARIABLE.sub(lambda match: runner.env.get(match[1], ""), text)
        runner.env.setdefault(key, value)
    before = job.get("before_script", pipeline["default"]["before_script"])
    runner.sh("\n".join([*before, *job["script"]]))
    runner.ran.append(name)
    paths = job.get("artifacts", {}).get("paths", [])
    found = {
        path.name for folder in paths for path in (runner.checkout / folder).rglob("*") if path.is_file()
    }
    runner.kept[name] = found
