import io
import json

import pytest

from imagebuilder.core import progress
from imagebuilder.core.progress import JsonProgress, LineProgress, TableProgress


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


def test_the_table_has_a_row_for_each_layer_and_shows_brackets_as_they_are() -> None:
    from rich.console import Console

    table = TableProgress()
    table.begin("a", "numpy[extra]", "splicing", 100)
    table.advance("a", 50)
    table.end("b", "torch", "cached", 5)
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(table)
    shown = console.export_text()
    assert "numpy[extra]" in shown
    assert "50%" in shown
    assert "cached" in shown


def test_a_pipe_gets_lines_and_no_terminal_codes() -> None:
    stream = io.StringIO()
    with progress.shown("auto", stream) as shown:
        shown.end("k", "torch", "cached", 5)
    assert stream.getvalue() == "cached       torch  5 B\n"
