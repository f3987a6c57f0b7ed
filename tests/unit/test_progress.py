import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest

from imagebuilder.core import progress
from imagebuilder.core.progress import JsonProgress, LineProgress
from imagebuilder.layers.system.listening import listener


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_700_000_000, "3.7 GB"), (120_000_000, "120 MB")],
)
def test_bytes_are_written_in_decimal_units(count: int, text: str) -> None:
    assert progress.human(count) == text


def test_lines_say_each_change_of_state_once() -> None:
    stream = io.StringIO()
    lines = LineProgress(stream)
    lines.begin("k", "torch 2.10.0", "downloading", 900_000_000)
    lines.advance("k", 1000)
    lines.end("k", "torch 2.10.0", "done", 900_000_000)
    first, last = stream.getvalue().splitlines()
    assert first.split() == ["downloading", "torch", "2.10.0", "900", "MB"]
    assert last.startswith("done         torch 2.10.0  900 MB")


def test_json_is_one_object_a_line_with_bytes_added_up() -> None:
    stream = io.StringIO()
    events = JsonProgress(stream)
    events.begin("k", "torch", "splicing", 10)
    events.advance("k", 4)
    events.end("k", "torch", "done", 10)
    rows = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [row["event"] for row in rows] == ["begin", "advance", "end"]
    assert rows[1]["done"] == 4


def test_a_package_is_named_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, events = io.StringIO(), io.StringIO()
    shown = (LineProgress(stream), JsonProgress(events))
    for each in shown:
        each.expect({"k": 5})
        each.begin("k", "debian trixie, 200 packages", "installing")
        each.at("k", "setting up bash", 3, 400)
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    for each in shown:
        each.at("k", "unpacking gcc", 80, 400)
    monkeypatch.setattr(progress, "_LINE_SECONDS", 10.0)
    for each in shown:
        each.at("k", "unpacking make", 81, 400)
    assert stream.getvalue().splitlines() == [
        "installing   debian trixie, 200 packages",
        "installing   debian trixie, 200 packages  unpacking gcc, 80 of 400",
    ]
    assert [json.loads(line) for line in events.getvalue().splitlines()] == [
        {"event": "expect", "sizes": {"k": 5}},
        {
            "event": "begin",
            "key": "k",
            "title": "debian trixie, 200 packages",
            "state": "installing",
            "total": 0,
        },
        {"event": "at", "key": "k", "text": "setting up bash", "done": 3, "total": 400},
    ]


# Runs on a terminal of its own, and stops in the middle of a build: 40 layers are finished, 6 run.
TERMINAL = """
import os, sys, time
from imagebuilder.core import progress
with progress.shown("auto", sys.stderr) as live:
    live.expect({f"layer{number}": 1000 for number in range(50)})
    live.begin("system", "debian trixie, 200 packages", "installing")
    live.at("system", "setting up libc6", 30, 400)
    for number in range(40):
        live.begin(f"layer{number}", f"numpy[{number}] 1.0", "splicing", 1000)
        live.advance(f"layer{number}", 1000)
        live.end(f"layer{number}", f"numpy[{number}] 1.0", "done", 900)
    for number in range(40, 40 + int(sys.argv[1])):
        live.begin(f"layer{number}", f"torch {number}", "downloading", 1_000_000_000)
        live.advance(f"layer{number}", 250_000_000)
    live.note("a wheel in the store is damaged")
    time.sleep(0.6)
    os.write(2, b"SEEN")
    time.sleep(60)
"""


def screen(running: int) -> tuple[list[str], list[str]]:
    """Show progress on a terminal of 24 lines; returns what scrolled away, and what the screen shows."""
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (24, 80))
    env = {**os.environ, "TERM": "xterm", "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, "-c", TERMINAL, str(running)]
    with subprocess.Popen(argv, stdin=there, stdout=there, stderr=there, env=env) as child:
        os.close(there)
        said = b""
        try:
            while b"SEEN" not in said:
                said += os.read(here, 65536)
        finally:
            child.kill()
            os.close(here)
    lines, row, column = [""], 0, 0
    for code, char in re.findall(r"\x1b\[([?0-9;]*[A-Za-z])|([^\x1b])", said.decode().partition("SEEN")[0]):
        if code.endswith("A"):
            row -= int(code[:-1])
            assert row >= len(lines) - 24, "the cursor moved above the screen"
        elif code.endswith("K"):
            lines[row] = ""
        elif char == "\r":
            column = 0
        elif char == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif char:
            lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1 :]
            column += 1
    assert max(map(len, lines)) <= 80
    return lines[:-24], [line.rstrip() for line in lines[-24:] if line.strip()]


def test_what_runs_stays_on_a_small_terminal_and_what_is_done_scrolls_away() -> None:
    above, shown = screen(running=6)
    assert [line.split() for line in above[:2]] == [
        ["done", "numpy[0]", "1.0", "900", "B"],
        ["done", "numpy[1]", "1.0", "900", "B"],
    ]
    assert shown[-9] == "a wheel in the store is damaged"
    assert re.fullmatch(r"installing +debian trixie, 200 packages .* 30 of 400: setting.*", shown[-8])
    assert [line.split()[:3] for line in shown[-7:-1]] == [
        ["downloading", "torch", str(number)] for number in range(40, 46)
    ]
    assert all("250 MB of 1.0 GB" in line for line in shown[-7:-1])
    assert re.fullmatch(r"40 of 50 made, 7 running, 3 waiting(; about [0-9]+:[0-9]{2} left)?", shown[-1])


def test_more_than_fits_is_counted() -> None:
    _, shown = screen(running=30)
    assert shown[-2] == "... and 10 more"
    assert shown[-1].startswith("40 of 50 made, 31 running, 0 waiting")


def test_a_pipe_gets_lines_and_no_terminal_codes() -> None:
    stream = io.StringIO()
    with progress.shown("auto", stream) as shown:
        shown.end("k", "torch", "cached", 5)
    assert stream.getvalue() == "cached       torch  5 B\n"


def test_an_installation_says_its_packages_and_believes_no_script() -> None:
    said: list[tuple[str, int, int]] = []
    system = SimpleNamespace(debs=[SimpleNamespace(name="bash"), SimpleNamespace(name="libstdc++6")])
    hear = listener(system, lambda *step: said.append(step))  # type: ignore[arg-type]
    for line in (
        "Preparing to unpack bash.deb ...",
        "Unpacking bash (5.2.37-2) ...",
        "Unpacking libstdc++6:amd64 (14.2.0-19) over (14.2.0-19) ...",
        "Setting up bash (5.2.37-2) ...",
        # A package's script may say anything.
        "Setting up bash (5.2.37-2) ...",
        "Setting up evil\x1b[2J (1) ...",
        "Setting up something-else (1) ...",
    ):
        hear(line)
    assert said == [("unpacking bash", 1, 4), ("unpacking libstdc++6", 2, 4), ("setting up bash", 3, 4)]
