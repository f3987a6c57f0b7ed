"""`.dockerignore`: the rules are Docker's, and no pattern takes long."""

from __future__ import annotations

import time

import pytest

from imagebuilder.errors import InputError
from imagebuilder.layers import dockerignore


def left_out(text: str, path: str) -> bool:
    """Tell whether a path stays out, as one comes to it from the folder above."""
    rules = dockerignore.parse(text, "src/.dockerignore")
    names = path.split("/")
    matches: dockerignore.Matches = ()
    for count in range(1, len(names) + 1):
        matches = rules.matches(names[:count], matches)
    return rules.excludes(matches)


@pytest.mark.parametrize(
    ("text", "out", "kept"),
    [
        ("data", ["data", "data/x"], ["src/data", "database"]),
        ("/data/", ["data", "data/x/y"], ["src/data"]),
        ("*.log", ["a.log", ".log"], ["src/a.log", "a.logs"]),
        ("*/*.log", ["src/a.log"], ["a.log", "a/b/c.log"]),
        ("**/*.log", ["a.log", "a/b/c.log"], ["a.logs"]),
        ("**.log", ["a.log", "a/b/c.log"], ["a.logs"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a", "a/b", "b/a/z"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ab"]),
        ("temp**", ["temp", "temporary", "temporary/x"], ["a/temp"]),
        ("temp?", ["temps", "temp1/x"], ["temp", "temp/s"]),
        ("[a-c]1", ["a1", "c1"], ["d1", "a11"]),
        ("[^a]1", ["b1"], ["a1"]),
        (r"\*", ["*"], ["a"]),
        ("# data\n\n  data  \r\n", ["data"], ["# data"]),
        ("\ufeffdata", ["data"], []),
        ("*.md\n!README.md", ["a.md"], ["README.md"]),
        ("!README.md\n*.md", ["README.md"], []),
        ("data\n!data/small", ["data/large"], ["data/small", "data/small/x"]),
        ("*\n!src\nsrc/*.ckpt", ["a", "src/a.ckpt"], ["src", "src/a.py"]),
        (".\n/\n..\n../x", [], ["x", ".x"]),
        ("a//b/../c", ["a/c"], ["a/b"]),
        ("ä[+.]", ["ä+", "ä."], ["äb"]),
    ],
)
def test_rules_match_as_docker_s_do(text: str, out: list[str], kept: list[str]) -> None:
    assert [path for path in out if not left_out(text, path)] == []
    assert [path for path in kept if left_out(text, path)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data\n!", "src/.dockerignore:2: `!` is not a pattern: nothing follows the `!`"),
        (
            "a**b",
            "src/.dockerignore:1: `a**b` is not a pattern: `**` must be between slashes, or at an end",
        ),
        ("[a", "src/.dockerignore:1: `[a` is not a pattern: a `[` has no `]`"),
        ("[z-a]", "src/.dockerignore:1: `[z-a]` is not a pattern: bad character range z-a at position 1"),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        dockerignore.parse(text, "src/.dockerignore")
    hint = "patterns are Docker's: `*.log`, `data/`, `**/*.ckpt`, `!data/small`"
    assert str(caught.value) == f"{message}\n  -> {hint}"


def test_more_rules_than_anybody_writes_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        dockerignore.parse("x\n" * 1001, "src/.dockerignore")
    assert str(caught.value) == "src/.dockerignore:1001: has more than 1000 rules\n  -> name folders instead"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 100 + "b", "a" * 255),
        ("?*" * 100 + "b", "a" * 255),
        ("**/a/" * 100 + "b", "/".join("a" * 100)),
        ("**/*a*a*a*a*a*b/" * 50 + "c", "/".join(["a" * 40] * 90)),
    ],
)
def test_no_pattern_takes_long(pattern: str, path: str) -> None:
    rules = dockerignore.parse(pattern, "x")
    started = time.process_time()
    assert not rules.excludes(rules.matches(path.split("/"), ()))
    assert time.process_time() - started < 0.5
