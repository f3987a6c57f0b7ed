"""What buildx tells while it builds, as rows of our own progress display, and as the reason of a failure.

Two formats: `--progress rawjson` (buildx 0.13), one JSON object after the other as BuildKit's client has them
(client/graph.go, `SolveStatus`), and the plain text of older ones (util/progress/progressui/printer.go).
"""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuilder.core.progress import Progress
from imagebuilder.core.yamlfile import printable
from imagebuilder.host.site import redact

_TAIL = 40  # lines kept of each step
_LONGEST = 60  # characters of a step's title
_LINE = re.compile(r"#(\d+) (?:\d+\.\d+ )?(.*)")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What a Dockerfile's RUN shows before its command; a script that is written out begins with a comment.
_NOISE = re.compile(r"--(?:mount|network|security|chmod|link)(?:=\S+)?\s+|<<-?'?\w+'?\s*")
_SCRIPT = re.compile(r"\(# (.*)\.\.\.\)$")


@dataclass(kw_only=True)
class Step:
    """One step of a build: `name` is BuildKit's, `title` what people are shown."""

    name: str
    title: str
    state: str = ""
    error: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))


class BuildLog:
    """Reads the output of one build, and keeps what an error message needs."""

    def __init__(self, progress: Progress, *, raw: bool) -> None:
        """Begin.

        Args:
            progress: where the steps of the Dockerfile are shown.
            raw: whether the output is JSON.

        """
        self._progress = progress
        self._raw = raw
        self._rest = ""
        self._steps: dict[str, Step] = {}
        self._other: deque[str] = deque(maxlen=_TAIL)

    def hear(self, text: str) -> None:
        """Take the next piece of output; it may end anywhere."""
        self._rest += text
        if self._raw:
            self._read_json()
        else:
            *lines, self._rest = self._rest.split("\n")
            for line in lines:
                self._read_line(_ESCAPES.sub("", line).rstrip("\r"))

    def end(self, *, ok: bool) -> None:
        """Take the end of the output; steps that were still running have not ended well, unless all did."""
        for line in self._rest.splitlines():
            self._say(line)
        self._rest = ""
        for key, step in self._steps.items():
            if step.state == "building":
                self._close(key, step, "done" if ok else "failed")

    @property
    def failed(self) -> Step | None:
        """The step that failed, if one did; those that BuildKit broke off because of it come after it."""
        failed = [step for step in self._steps.values() if step.error]
        return min(failed, key=lambda step: "context canceled" in step.error, default=None)

    @property
    def said(self) -> str:
        """What buildx said outside of any step: its last lines."""
        return "\n".join(self._other)

    def _read_json(self) -> None:
        decoder = json.JSONDecoder()
        while self._rest:
            self._rest = self._rest.lstrip()
            if self._rest and self._rest[0] != "{":
                # buildx's own words, between or after the objects.
                line, newline, rest = self._rest.partition("\n")
                if not newline:
                    return
                self._say(line)
                self._rest = rest
                continue
            try:
                event, end = decoder.raw_decode(self._rest)
            except ValueError:
                return
            self._rest = self._rest[end:]
            self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        for vertex in event.get("vertexes") or ():
            key = str(vertex.get("digest", ""))
            step = self._step(key, str(vertex.get("name", "")))
            if vertex.get("error"):
                step.error = str(vertex["error"])
                self._close(key, step, "failed")
            elif vertex.get("completed"):
                self._close(key, step, "cached" if vertex.get("cached") else "done")
            elif vertex.get("started"):
                self._open(key, step)
        for entry in event.get("logs") or ():
            if found := self._steps.get(str(entry.get("vertex", ""))):
                data = base64.b64decode(entry.get("data") or "").decode(errors="replace")
                found.lines += [line for line in data.splitlines() if line.strip()]

    def _read_line(self, line: str) -> None:
        found = _LINE.fullmatch(line)
        if not found:
            self._say(line)
            return
        key, text = found[1], found[2]
        if key not in self._steps:
            self._open(key, self._step(key, text))
            return
        step = self._steps[key]
        word = text.split(" ")[0]
        if word == "ERROR:":
            step.error = text.removeprefix("ERROR: ")
            self._close(key, step, "failed")
        elif word in {"DONE", "CACHED"}:
            self._close(key, step, word.lower())
        elif text.strip() and text != step.name:
            step.lines.append(text)

    def _step(self, key: str, name: str) -> Step:
        if key not in self._steps:
            self._steps[key] = Step(name=name, title=title(name))
        return self._steps[key]

    def _open(self, key: str, step: Step) -> None:
        if not step.state and step.title:
            step.state = "building"
            self._progress.begin(f"step:{key}", step.title, "building")

    def _close(self, key: str, step: Step, state: str) -> None:
        if step.state in {"", "building"} and step.title:
            step.state = state
            self._progress.end(f"step:{key}", step.title, state)

    def _say(self, line: str) -> None:
        if line.strip():
            self._other.append(_ESCAPES.sub("", line))


def title(name: str) -> str:
    """Shorten a step's name to one line; empty for what is BuildKit's own business.

    >>> title("[os 2/3] RUN --mount=type=cache,target=/x apt-get update")
    'os 2/3: RUN apt-get update'
    """
    found = re.match(r"\[([^]]+)\] ?(.*)", name, re.DOTALL)
    if not found:
        return name if name.startswith(("exporting", "importing", "writing")) else ""
    stage, command = found[1], " ".join(_NOISE.sub("", found[2]).split())
    command = _SCRIPT.sub(r"\1", command)
    if stage in {"internal", "auth"} or stage.startswith("context "):
        return ""
    text = printable(redact(f"{stage}: {command}".rstrip(": ")))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
