"""What buildx tells, in both of its formats."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest

from imagebuilder.core.progress import JsonProgress
from imagebuilder.engines.buildlog import BuildLog, title

APT = "[os 2/2] RUN --mount=type=cache,target=/var/cache/apt apt-get install -y x"


def events(vertexes: list[dict[str, Any]], logs: list[dict[str, Any]] | None = None) -> str:
    # buildx 0.13 writes objects over several lines, newer ones write one a line.
    return json.dumps({"vertexes": vertexes, "logs": logs or []}, indent=2) + "\n"


def log_line(vertex: str, text: str) -> dict[str, Any]:
    return {"vertex": vertex, "data": base64.b64encode(text.encode()).decode()}


def rows(stream: io.StringIO) -> list[tuple[str, str, str]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(row["event"], row["state"], row["title"]) for row in found]


def heard(text: str, *, raw: bool, ok: bool, piece: int = 7) -> tuple[BuildLog, list[tuple[str, str, str]]]:
    stream = io.StringIO()
    log = BuildLog(JsonProgress(stream), raw=raw)
    for start in range(0, len(text), piece):
        log.hear(text[start : start + piece])
    log.end(ok=ok)
    return log, rows(stream)


def test_json_shows_the_steps_of_the_dockerfile_and_keeps_what_a_failed_one_said() -> None:
    text = "".join(
        (
            events([{"digest": "a", "name": "[internal] load build definition", "started": "1"}]),
            events([{"digest": "b", "name": "[os 1/2] FROM debian:trixie", "started": "1"}]),
            events(
                [{"digest": "b", "name": "[os 1/2] FROM debian:trixie", "completed": "2", "cached": True}]
            ),
            events([{"digest": "c", "name": APT, "started": "2"}]),
            events([], [log_line("c", "Reading\nE: broken {\n")]),
            events([{"digest": "c", "name": APT, "completed": "3", "error": "exit code: 100"}]),
            "ERROR: failed to solve: exit code: 100\n",
        )
    )
    for piece in (1, 1000):
        log, shown = heard(text, raw=True, ok=False, piece=piece)
        assert shown == [
            ("begin", "building", "os 1/2: FROM debian:trixie"),
            ("end", "cached", "os 1/2: FROM debian:trixie"),
            ("begin", "building", "os 2/2: RUN apt-get install -y x"),
            ("end", "failed", "os 2/2: RUN apt-get install -y x"),
        ]
        assert log.failed is not None
        assert list(log.failed.lines) == ["Reading", "E: broken {"]
        assert log.failed.error == "exit code: 100"
        assert log.said == "ERROR: failed to solve: exit code: 100"


def test_plain_text_of_older_ones_gives_the_same() -> None:
    text = (
        '#0 building with "default" instance\n\n'
        "#1 [internal] load build definition from Dockerfile\n#1 DONE 0.0s\n\n"
        "#2 [os 1/2] FROM debian:trixie\n#2 CACHED\n\n"
        f"#3 {APT}\n#3 0.345 Reading\n#3 1.200 E: broken\n#3 ERROR: exit code: 100\n"
        "------\n > [os 2/2] RUN:\n------\nERROR: failed to solve\n"
    )
    log, shown = heard(text, raw=False, ok=False)
    assert ("end", "cached", "os 1/2: FROM debian:trixie") in shown
    assert shown[-1] == ("end", "failed", "os 2/2: RUN apt-get install -y x")
    assert log.failed is not None
    assert list(log.failed.lines) == ["Reading", "E: broken"]
    assert log.said.endswith("ERROR: failed to solve")


def test_a_step_that_was_broken_off_is_not_the_reason() -> None:
    broken = {"digest": "a", "name": "[a 1/1] RUN a", "error": "context canceled: context canceled"}
    reason = {"digest": "b", "name": "[b 1/1] RUN b", "error": "exit code: 1"}
    for vertexes in ([broken, reason], [reason, broken]):
        log, _ = heard(events(vertexes), raw=True, ok=False)
        assert log.failed is not None
        assert log.failed.title == "b 1/1: RUN b"


@pytest.mark.parametrize(("ok", "state"), [(True, "done"), (False, "failed")])
def test_a_step_that_never_ended_ends_with_the_build(ok: bool, state: str) -> None:
    _, shown = heard(events([{"digest": "c", "name": APT, "started": "2"}]), raw=True, ok=ok)
    assert shown[-1][1] == state


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[internal] load metadata for debian:trixie", ""),
        ("[auth] library/debian:pull token", ""),
        ("[context debs] load from client", ""),
        ("exporting to client tarball", "exporting to client tarball"),
        ("[s 2/9] COPY --link --from=wheels-01-torch /out/ /", "s 2/9: COPY --from=wheels-01-torch /out/ /"),
        ("[os 2/2] RUN --mount=type=cache <<'EOF' (# install the packages...)", "os 2/2: RUN install the p"),
        ("[os 2/2] RUN curl https://me:word@x/y \x1b[31m", "os 2/2: RUN curl https://***@x/y"),
    ],
)  # fmt: skip
def test_titles_are_one_short_line_without_passwords(name: str, shown: str) -> None:
    assert title(name).startswith(shown)
    assert len(title(name)) <= 60
    assert "\x1b" not in title(name)
    assert bool(title(name)) == bool(shown)
