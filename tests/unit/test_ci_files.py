"""Files for CI services, pre-commit and editors: structure, pinned actions, and their shell lines run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import workflows

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / "examples" / "ci").glob("github-*.yml"))
UPDATE = ROOT / "examples" / "ci" / "github-update.yml"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_a_commit_and_say_their_version(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
    wrong = [text for text in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", text)]
    assert used
    assert wrong == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_the_keys_that_it_needs_and_no_more_rights(path: Path) -> None:
    workflow = read(path)
    # YAML 1.1 reads the key `on` as true.
    assert set(workflow) <= {"name", True, "permissions", "concurrency", "env", "jobs"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
        rights = {**workflow["permissions"], **job.get("permissions", {})}
        assert set(rights) <= {"contents", "packages", "pull-requests"}
        assert workflow["permissions"]["contents"] == "read"
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.stem)
def test_no_shell_line_holds_an_expression(path: Path) -> None:
    """GitHub pastes `${{ ... }}` into the script: a branch's name could run as a command."""
    found = read(path)
    jobs = [found["runs"]] if "runs" in found else found["jobs"].values()
    lines = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert lines
    assert [line for line in lines if "${{" in line] == []


def test_a_pull_request_gets_no_right_to_write_and_no_secret_of_the_repository() -> None:
    jobs = read(ROOT / "examples" / "ci" / "github-actions.yml")["jobs"]
    asked = {"github.event_name": "pull_request", "github.ref": "refs/pull/1/merge"}
    pushed = {"github.event_name": "push", "github.ref": "refs/heads/main"}
    assert [name for name, job in jobs.items() if workflows.evaluate(job["if"], asked)] == ["prove"]
    assert [name for name, job in jobs.items() if workflows.evaluate(job["if"], pushed)] == ["publish"]
    assert "write" not in jobs["prove"]["permissions"].values()
    assert set(re.findall(r"secrets\.(\w+)", str(jobs["prove"]))) == {"GITHUB_TOKEN"}
    assert "cache-push" not in str(jobs["prove"])


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a.b", "1"),
        ("a.b == '1'", True),
        ("a.b != '1' && none", False),
        ("a.b == '1' && 'yes' || 'no'", "yes"),
        ("a.b == '2' && 'yes' || 'no'", "no"),
        ("always()", True),
    ],
)
def test_the_runner_of_the_examples_evaluates_as_github_does(expression: str, value: object) -> None:
    assert workflows.evaluate(expression, {"a.b": "1"}) == value


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.stem)
def test_the_runner_of_the_examples_knows_every_expression(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "${{" not in workflows.expand(text, defaultdict(str))


def a_runner(folder: Path) -> workflows.Machine:
    (folder / "checkout").mkdir()
    return workflows.machine(folder / "checkout", folder / "temp", folder / "programs")


def test_a_step_of_the_runner_sets_what_later_steps_see(tmp_path: Path) -> None:
    runner, context = a_runner(tmp_path), dict[str, object]()
    first = """
        echo "digest=a=b" >> "$GITHUB_OUTPUT"
        echo "SIZE=3" >> "$GITHUB_ENV"
        echo "/added" >> "$GITHUB_PATH"
    """
    second: dict[str, Any] = {
        "run": 'echo "$DIGEST $SIZE ${PATH%%:*}"',
        "env": {"DIGEST": "${{ steps.one.outputs.digest }}"},
    }
    workflows.run_steps(runner, [dict[str, Any](id="one", run=first), second], context)
    assert runner.said == "a=b 3 /added\n"


def test_after_a_step_that_failed_the_runner_runs_what_always_runs(tmp_path: Path) -> None:
    runner = a_runner(tmp_path)
    (runner.checkout / "proof").mkdir()
    (runner.checkout / "proof" / "report.json").touch()
    upload = {"name": "kept", "path": "proof/", "if-no-files-found": "ignore"}
    steps: list[dict[str, Any]] = [
        {"name": "fails", "run": "exit 3"},
        {"name": "left out", "run": "true"},
        {"name": "upload", "if": "always()", "uses": "actions/upload-artifact@1", "with": upload},
    ]
    with pytest.raises(AssertionError, match="exit 3"):
        workflows.run_steps(runner, steps, {}, {"actions/upload-artifact": workflows.keep})
    assert (runner.ran, runner.kept) == (["upload"], {"kept": {"report.json"}})
    with pytest.raises(AssertionError, match="no test knows the action actions/other@1"):
        workflows.run_steps(runner, [{"uses": "actions/other@1"}], {})


def test_a_composite_action_needs_its_inputs_and_gives_its_outputs(tmp_path: Path) -> None:
    (tmp_path / "action.yml").write_text(
        "inputs: {recipe: {required: true}, mode: {default: cpu}}\n"
        "outputs: {said: {value: '${{ steps.say.outputs.said }}'}}\n"
        "runs:\n  steps:\n    - id: say\n      run: echo said=$MODE:$RECIPE >> $GITHUB_OUTPUT\n"
        "      env: {MODE: '${{ inputs.mode }}', RECIPE: '${{ inputs.recipe }}'}\n",
        encoding="utf-8",
    )
    runner = a_runner(tmp_path)
    assert workflows.run_composite(runner, tmp_path, {"recipe": "x"}) == {"said": "cpu:x"}
    with pytest.raises(AssertionError, match="an input is missing"):
        workflows.run_composite(runner, tmp_path, {})


def test_a_job_of_gitlab_s_gets_its_variables_in_their_order(tmp_path: Path) -> None:
    pipeline = {
        "variables": {"CACHE": "$CI_REGISTRY_IMAGE/cache", "CI_REGISTRY_IMAGE": "the service's own wins"},
        "default": {"before_script": ["export BEFORE=1"]},
        "image": {
            "parallel": {"matrix": [{"RECIPE": ["cpu-mpi", "other"]}]},
            "script": ['echo "$BEFORE $RECIPE $CACHE $CI_REGISTRY_IMAGE"'],
        },
        "own": {"before_script": [], "script": ["false", "true"]},
    }
    runner = a_runner(tmp_path)
    workflows.run_gitlab(runner, pipeline, "image", {"CI_REGISTRY_IMAGE": "r.example/t"})
    assert runner.said == "1 cpu-mpi r.example/t/cache r.example/t\n"
    with pytest.raises(AssertionError, match="false"):
        workflows.run_gitlab(runner, pipeline, "own", {})


def test_the_oldest_versions_of_the_cache_are_deleted(tmp_path: Path) -> None:
    """Run the step as it is, with a `gh` that lists 203 versions in the order of their numbers."""
    listed = """seq 203 | awk '{printf "2026-01-01T%02d:00:%02dZ\\t%d\\n", $1 / 60, $1 % 60, $1}'"""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "gh").write_text(f'#!/bin/bash\necho "$*" >> "$HOME/asked"\n[ "$3" = DELETE ] || {listed}\n')
    (programs / "gh").chmod(0o755)
    (tmp_path / "checkout").mkdir()
    runner = workflows.machine(tmp_path / "checkout", tmp_path / "temp", programs)
    steps = read(ROOT / "examples" / "ci" / "github-actions.yml")["jobs"]["publish"]["steps"]
    context: dict[str, object] = {
        "github.token": "t",
        "github.repository_owner": "team",
        "github.event.repository.name": "images",
        "github.event.repository.owner.type": "Organization",
    }
    workflows.run_steps(runner, [step for step in steps if step.get("name") == "Bound the cache"], context)
    versions = "orgs/team/packages/container/images%2Fcache/versions"
    asked = (runner.temp / "asked").read_text().splitlines()
    assert asked[1:] == [f"api --method DELETE {versions}/{number}" for number in (3, 2, 1)]


def test_the_action_is_composite_and_every_step_names_its_shell() -> None:
    action = read(ROOT / "action.yml")
    assert action["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"])
    inputs = set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", (ROOT / "action.yml").read_text("utf-8")))
    assert inputs == set(action["inputs"])


def test_the_hook_of_pre_commit_takes_recipes_and_their_locks() -> None:
    (hook,) = read(ROOT / ".pre-commit-hooks.yaml")
    found = re.compile(hook["files"])
    assert all(found.search(name) for name in ("recipes/x.yaml", "recipes/x.lock", "a/recipes/x.yaml"))
    assert not any(found.search(name) for name in ("recipes/recipe.schema.json", "x.yaml", "uv.lock"))


def test_the_hook_checks_a_changed_lock_with_its_recipe(tmp_path: Path) -> None:
    (hook,) = read(ROOT / ".pre-commit-hooks.yaml")
    program = tmp_path / "imagebuilder"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    argv = [*shlex.split(hook["entry"]), "recipes/a b.yaml", "recipes/c.lock"]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    said = subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == ["check", "--locked", "recipes/a b.yaml", "recipes/c.yaml"]


def test_the_devcontainer_prepares_with_a_target_that_exists() -> None:
    found = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    target = found["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert (ROOT / next(iter(found["customizations"]["vscode"]["settings"]["yaml.schemas"]))).is_file()


def test_the_steps_of_the_update_open_one_pull_request(tmp_path: Path) -> None:
    """Run as they are, with programs of the test's own in place of imagebuilder, pip, sudo and gh."""
    programs, origin, clone = tmp_path / "bin", tmp_path / "origin.git", tmp_path / "clone"
    programs.mkdir()
    scripts = {
        "pip": "true",
        "sudo": '"$@"',
        "gh": f'echo "$1 $2" >> {tmp_path}/asked; cp "$6" {tmp_path}/body',
        "imagebuilder": 'case "$1" in update) echo new > "${2%.yaml}.lock";; diff) echo "pins: $2";; esac',
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path), "RUNNER_TEMP": str(tmp_path)}

    def shell(line: str, where: Path = tmp_path) -> str:
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", line]
        words = {**env, "RECIPE": "recipes/cpu-mpi.yaml"}
        ended = subprocess.run(argv, cwd=where, env=words, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    shell(f"git init -q --bare -b main {origin}; git clone -q {origin} {clone}")
    shell("git config user.name a; git config user.email a@b; mkdir recipes; git switch -qc main", clone)
    shell("echo a > recipes/cpu-mpi.yaml; echo old > recipes/cpu-mpi.lock", clone)
    shell("git add .; git commit -qm first; git push -q origin main", clone)
    (job,) = read(UPDATE)["jobs"].values()
    for step in job["steps"]:
        if "run" in step:
            shell(step["run"], clone)
    assert (tmp_path / "asked").read_text() == "pr create\n"
    assert (tmp_path / "body").read_text() == f"```\npins: {tmp_path}/before.lock\n```\n"
    assert shell("git show imagebuilder-update:recipes/cpu-mpi.lock", origin) == "new\n"
    assert shell("git show main:recipes/cpu-mpi.lock", origin) == "old\n"
