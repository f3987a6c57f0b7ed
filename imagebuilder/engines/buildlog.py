"""Reads the output of buildx: shows its steps in our progress display, and keeps the cause of a failure.

There are two formats. `--progress rawjson` (buildx 0.13) prints JSON objects of BuildKit's client
(client/graph.go, `SolveStatus`). Older releases print plain text (util/progress/progressui/printer.go).
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
# Options that a RUN step shows before its command. Our scripts begin with a comment, which becomes the title.
_NOISE = re.compile(r"--(?:mount|network|security|chmod|link)(?:=\S+)?\s+|<<-?'?\w+'?\s*")
_SCRIPT = re.compile(r"\(# (.*)\.\.\.\)$")


@dataclass(kw_only=True)
class BuildStep:
    """One step of a build: `name` is BuildKit's name of it, and `title` is shown to people."""

    name: str
    title: str
    state: str = ""
    error: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))


class BuildLog:
    """Reads the output of one build, and keeps what an error message needs."""

    def __init__(self, progress: Progress, *, raw: bool) -> None:
        """Begin a log.

        Args:
            progress: shows the steps of the Dockerfile.
            raw: whether the output is JSON.

        """
        self._progress = progress
        self._raw = raw
        self._rest = ""
        self._steps: dict[str, BuildStep] = {}
        self._other: deque[str] = deque(maxlen=_TAIL)

    def hear(self, text: str) -> None:
        """Read the next piece of output, which may end in the middle of a line."""
        self._rest += text
        if self._raw:
            self._read_json()
        else:
            *lines, self._rest = self._rest.split("\n")
            for line in lines:
                self._read_line(_ESCAPES.sub("", line).rstrip("\r"))

    def end(self, *, ok: bool) -> None:
        """Read the end of the output; steps that still run are done with `ok`, else failed."""
        for line in self._rest.splitlines():
            self._say(line)
        self._rest = ""
        for key, step in self._steps.items():
            if step.state == "building":
                self._close(key, step, "done" if ok else "failed")

    @property
    def failed(self) -> BuildStep | None:
        """The step that failed, if any; steps that BuildKit cancelled because of it do not count."""
        failed = [step for step in self._steps.values() if step.error]
        return min(failed, key=lambda step: "context canceled" in step.error, default=None)

    @property
    def said(self) -> str:
        """The last lines that buildx printed outside of steps."""
        return "\n".join(self._other)

    def _read_json(self) -> None:
        decoder = json.JSONDecoder()
        while self._rest:
            self._rest = self._rest.lstrip()
            if self._rest and self._rest[0] != "{":
                # A line of buildx itself, between or after the objects.
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
            if logged := self._steps.get(str(entry.get("vertex", ""))):
                data = base64.b64decode(entry.get("data") or "").decode(errors="replace")
                logged.lines += [line for line in data.splitlines() if line.strip()]

    def _read_line(self, line: str) -> None:
        match = _LINE.fullmatch(line)
        if not match:
            self._say(line)
            return
        key, text = match[1], match[2]
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

    def _step(self, key: str, name: str) -> BuildStep:
        if key not in self._steps:
            self._steps[key] = BuildStep(name=name, title=title(name))
        return self._steps[key]

    def _open(self, key: str, step: BuildStep) -> None:
        if not step.state and step.title:
            step.state = "building"
            self._progress.begin(f"step:{key}", step.title, "building")

    def _close(self, key: str, step: BuildStep, state: str) -> None:
        if step.state in {"", "building"} and step.title:
            step.state = state
            self._progress.end(f"step:{key}", step.title, state)

    def _say(self, line: str) -> None:
        if line.strip():
            self._other.append(_ESCAPES.sub("", line))


def title(name: str) -> str:
    """Shorten a step's name to one line; return "" for BuildKit's internal steps.

    >>> title("[os 2/3] RUN --mount=type=cache,target=/x apt-get update")
    'os 2/3: RUN apt-get update'
    """
    match = re.match(r"\[([^]]+)\] ?(.*)", name, re.DOTALL)
    if not match:
        return name if name.startswith(("exporting", "importing", "writing")) else ""
    stage, command = match[1], " ".join(_NOISE.sub("", match[2]).split())
    command = _SCRIPT.sub(r"\1", command)
    if stage in {"internal", "auth"} or stage.startswith("context "):
        return ""
    text = printable(redact(f"{stage}: {command}".rstrip(": ")))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
