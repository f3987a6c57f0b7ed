"""The user's own pytest files (`--tests`, `checks: {tests: ...}`), with testinfra's `host` for every node."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder.core import process
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.layers import project
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session
from imagebuilder.smoke.verdict import OWN_TESTS as NAME

if TYPE_CHECKING:
    from imagebuilder.smoke.inspection import RunLine

_SECONDS = 600
# Limits on what is kept in the report.
_MOST_TESTS = 1000
_LONGEST_NAME = 500
_LONGEST_OUTPUT = 2000
_MOST_RESULTS_BYTES = 8 << 20
_MOST_COMMANDS = 5000
_LONGEST_LINE = 1 << 20
_NO_TESTS = 5  # pytest's exit code
_REPORTED = "the report has its output"


@dataclass(frozen=True, kw_only=True)
class RanTest:
    """What became of a test: `passed`, `failed`, `skipped`, `uncollected` or, if it hangs, `running`."""

    test: str
    result: str
    seconds: float = 0.0
    output: str = ""


def run(session: Session) -> Passed:
    folder = session.options.tests
    if folder is None:
        raise CheckFailed("no folder of tests is given", remedy="give it with --tests")
    checksum = _checksum(folder, session.target.tests)
    limit = _SECONDS * session.options.patience
    code, output, rows = _pytest(session, folder, limit)
    found = last(rows)
    shown = [dataclasses.asdict(row) for row in found[:_MOST_TESTS]]
    evidence = {"checksum": checksum, "tests": shown}
    if findings := judge(folder.name, code, output, found, limit):
        raise CheckFailed.because(*findings, evidence=evidence)
    return Passed(summary=told(found), evidence=evidence)


def told(rows: Sequence[RanTest]) -> str:
    """Count the results: `6 tests passed, 1 skipped`."""
    counts = {result: sum(row.result == result for row in rows) for result in ("passed", "skipped")}
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    return f"{counts['passed']} tests passed{skipped}"


def last(rows: Sequence[RanTest]) -> list[RanTest]:
    """Return the last result of each test; a test whose teardown fails has two."""
    return list({row.test: row for row in rows}.values())


def judge(folder: str, code: int | None, output: str, rows: Sequence[RanTest], limit: float) -> list[Finding]:
    """Return what is wrong.

    Args:
        folder: name of the folder.
        code: pytest's exit code; None if it was ended at the time limit.
        output: the end of what pytest printed.
        rows: the last result of each test.
        limit: seconds.

    """
    if uncollected := [row for row in rows if row.result == "uncollected"]:
        return [
            _finding(row, "cannot be read as tests", "run pytest on it: it says where the mistake is")
            for row in uncollected
        ]
    if code is None:
        running = [row.test for row in rows if row.result == "running"]
        what = f"`{printable(running[-1])}`" if running else "pytest"
        remedy = "it hangs, or needs longer: --patience multiplies the limit"
        return [Finding(node="", message=f"{what} did not end within {limit:g} s", remedy=remedy)]
    if failed := [row for row in rows if row.result == "failed"]:
        return [_finding(row, "failed", _REPORTED) for row in failed[:20]]
    return _undone(folder, code, output, rows)


def _undone(folder: str, code: int, output: str, rows: Sequence[RanTest]) -> list[Finding]:
    """Return what is wrong with a run in which no test failed."""
    if running := [row for row in rows if row.result == "running"]:
        return [_finding(row, "ended pytest", "a test must return") for row in running]
    if code not in {0, _NO_TESTS}:
        message = f"pytest ended with {code}: {_last_line(output)}"
        return [Finding(node="", message=message, remedy="run pytest on the folder: it says more")]
    if not any(row.result == "passed" for row in rows):
        why = "every test was skipped" if rows else "it has no tests"
        remedy = "write them as `def test_...(host):` in files named test_*.py"
        return [Finding(node="", message=f"`{printable(folder)}`: {why}", remedy=remedy)]
    return []


def _finding(row: RanTest, what: str, remedy: str) -> Finding:
    lines = [line for line in row.output.splitlines() if line.startswith("E ")]
    # A failure is told by its first line; a syntax error comes after the place where it is.
    line = lines[-1 if row.result == "uncollected" else 0].removeprefix("E") if lines else ""
    reason = printable(line.strip() or _last_line(row.output))
    return Finding(node="", message=f"`{printable(row.test)}` {what}: {reason}", remedy=remedy)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")


def _checksum(folder: Path, wanted: str) -> str:
    """Return the checksum of the tests; refuse others than those that the image's recipe names."""
    try:
        found = project.checksum_of_tests(folder)
    except InputError as error:
        problem = error.problems[0]
        message = f"{problem.where}: {problem.message}" if problem.where else problem.message
        raise CheckFailed(message, remedy=problem.hint) from None
    if wanted and found != wanted:
        raise CheckFailed(
            f"these are not the tests that the image's recipe names: their checksum is {found[:12]}, "
            f"not {wanted[:12]}",
            remedy="give the folder as it was when the image was built, or build again",
        )
    return found


def _pytest(session: Session, folder: Path, limit: float) -> tuple[int | None, str, list[RanTest]]:
    """Run pytest; returns its exit code (None at the time limit), its output, and the results."""
    from imagebuilder.smoke import pytest_plugin as plugin  # late: it loads pytest

    with tempfile.TemporaryDirectory(prefix="imagebuilder-") as scratch:
        socket, results = Path(scratch) / "socket", Path(scratch) / "results"
        names = [node.name for node in session.nodes]
        env = {plugin.SOCKET: str(socket), plugin.RESULTS: str(results), plugin.NODES: json.dumps(names)}
        # Nothing is written beside the tests: their checksum is in the proof.
        env |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        argv = (
            *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
            *("-p", plugin.__name__, "--rootdir", folder.absolute(), folder.absolute()),
        )
        with _serving(socket, session):
            try:
                ended = process.run(argv, timeout=limit, env=env, cwd=folder, check=False)
                code, output = ended.code, f"{ended.stdout}\n{ended.stderr}"[-4000:]
            except process.CommandError as error:
                code, output = None, error.result.stdout[-4000:]
        return code, output, _rows(results)


def _rows(path: Path) -> list[RanTest]:
    """Read the results. The tests could write anything there, so all of it is checked."""
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_RESULTS_BYTES).splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        with suppress(ValueError, RecursionError, TypeError, KeyError, AttributeError):
            row = json.loads(line)
            rows.append(
                RanTest(
                    test=str(row["test"])[:_LONGEST_NAME],
                    result=str(row["result"]),
                    seconds=round(float(row.get("seconds", 0)), 3),
                    output=str(row.get("output", ""))[-_LONGEST_OUTPUT:],
                )
            )
    return rows


@contextmanager
def _serving(socket: Path, session: Session) -> Iterator[None]:
    """Run on the nodes what the tests ask for, until the block ends."""
    from imagebuilder.smoke.inspection import on_node

    nodes = [on_node(session, index) for index in range(session.nnodes)]
    ended = threading.Event()
    with Listener(str(socket), family="AF_UNIX") as listener:
        thread = threading.Thread(target=_serve, args=(listener, nodes, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            # Wakes the thread where it waits for a connection.
            with suppress(OSError):
                Client(str(socket), family="AF_UNIX").close()
            thread.join(60)


def _serve(listener: Listener, nodes: Sequence[RunLine], ended: threading.Event) -> None:
    count = 0
    while not ended.is_set():
        with suppress(OSError, EOFError, ValueError, TypeError, IndexError), listener.accept() as connection:
            while not ended.is_set():
                index, line = json.loads(connection.recv_bytes(_LONGEST_LINE))
                count += 1
                if count > _MOST_COMMANDS:
                    answer = (255, "", f"imagebuilder: the tests ran more than {_MOST_COMMANDS} commands")
                else:
                    answer = nodes[index](str(line))
                connection.send_bytes(json.dumps(answer).encode())


CHECK = Check(
    name=NAME,
    order=167,
    title="your own pytest files, on this host, with testinfra's `host` for every node",
    criterion="at least one test passes and none fails; the tests are those that the recipe names",
    run=run,
    skip=lambda session: "" if session.options.tests else _why_not(session),
    required=lambda promise: promise.own_tests,
    asked=lambda session: session.options.tests is not None,
)


def _why_not(session: Session) -> str:
    if session.target.tests:
        return f"the recipe names tests (checksum {session.target.tests[:12]}): give them with --tests"
    return "no tests are given: --tests, or `checks: {tests: ...}` in the recipe"
