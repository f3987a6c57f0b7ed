"""Commands in the docs and the CI examples: their verbs and options exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from imagebuilder import cli

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "ci").glob("*.yml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def texts(value: Any) -> Iterator[str]:
    """Give every text in a YAML file, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from texts(entry)


def commands(text: str) -> list[list[str]]:
    """Find the lines that call the program; a backslash at the end goes on below."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [re.match(r"\s*(?:\$ )?imagebuilder (.+)", line) for line in lines]
    return [shlex.split(match[1], comments=True) for match in found if match]


def of_page(path: Path) -> list[list[str]]:
    blocks = re.findall(
        r"^```(?:console|sh|shell)\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    typed = [line for block in blocks for line in re.findall(r"^\$ ((?:.*\\\n)*.*)", block, re.MULTILINE)]
    return [command for line in typed for command in commands(line)]


def require_possible(words: list[str]) -> None:
    """Parse a command as the program would; typer's parser raises for what it does not know."""
    command: Any = typer.main.get_command(cli.app)
    context = command.make_context("imagebuilder", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no verb {words[0]}"
        command = command.commands[words[0]]
        words = words[1:]
        context = command.context_class(command, parent=context, info_name=command.name)
    # What follows in a shell is no argument: `> file`, `| head`, `&& ...`.
    ends = [index for index, word in enumerate(words) if word in {"|", ">", ">>", "&&", "||", ";", "2>&1"}]
    command.parse_args(context, words[: ends[0]] if ends else words)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_commands_of_an_example_are_possible(path: Path) -> None:
    found = [words for text in texts(yaml.safe_load(path.read_text("utf-8"))) for words in commands(text)]
    wanted = {"update", "diff"} if path.stem == "github-update" else {"check", "build", "smoke-test", "push"}
    assert {words[0] for words in found} >= wanted
    assert ("promote" in {words[0] for words in found}) == path.stem.endswith("-prove-elsewhere")
    for words in found:
        require_possible(words)


@pytest.mark.parametrize("path", [page for page in PAGES if of_page(page)], ids=lambda path: path.stem)
def test_commands_of_a_page_are_possible(path: Path) -> None:
    for words in of_page(path):
        require_possible(words)


@pytest.mark.parametrize(
    "words", [["no-such-verb"], ["check"], ["check", "x", "--no-such-option"], ["cache", "melt"]]
)
def test_what_is_not_possible_is_found(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"no verb|Missing (argument|parameter)|[Nn]o such option"):
        require_possible(words)


def test_the_example_for_github_proves_before_it_pushes() -> None:
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "github-actions.yml").read_text("utf-8"))
    # YAML 1.1 takes the key `on` for a truth value; GitHub does not.
    assert {"push", "pull_request"} <= workflow[True].keys()
    job = workflow["jobs"]["publish"]
    ran = [words[0] for step in job["steps"] for words in commands(step.get("run", ""))]
    assert ran.index("build") < ran.index("smoke-test") < ran.index("push")
    uploads = [step for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    assert [step["if"] for step in uploads] == ["always()"]


def test_the_example_for_gitlab_shows_the_tests_and_tries_again_only_where_that_may_help() -> None:
    pipeline = yaml.safe_load((ROOT / "examples" / "ci" / "gitlab-ci.yml").read_text("utf-8"))
    job = pipeline["image"]
    assert job["stage"] in pipeline["stages"]
    options = next(words for text in job["script"] for words in commands(text) if words[0] == "smoke-test")
    assert job["artifacts"]["reports"]["junit"] == options[options.index("--junit") + 1]
    assert job["artifacts"]["when"] == "always"
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text("utf-8")
    again = re.search(r"In CI, ([\d, and]+) are worth another try", text)
    assert again is not None
    assert job["retry"]["exit_codes"] == [int(code) for code in re.findall(r"\d+", again[1])]
