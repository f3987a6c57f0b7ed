"""Loaded by pytest for the user's own tests: the fixture `host` for every node, and each test's result.

pytest runs in a process of its own, so that a test that hangs can be ended. What testinfra runs on a node
goes through a socket to the smoke test, which has the nodes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from imagebuilder.smoke.inspection import NodeBackend, RunLine

# The socket, the file for results, and the names of the nodes as JSON.
SOCKET, RESULTS, NODES = "IMAGEBUILDER_SOCKET", "IMAGEBUILDER_RESULTS", "IMAGEBUILDER_NODES"
_LONGEST_ANSWER = 1 << 26
_OUTPUT = 2000


def pytest_generate_tests(metafunc: Any) -> None:
    """Run tests with the fixture `host` once for each node."""
    if "host" in metafunc.fixturenames:
        names = json.loads(os.environ[NODES])
        metafunc.parametrize("host", range(len(names)), ids=names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def _connection() -> Iterator[Connection[Any, Any]]:
    with Client(os.environ[SOCKET], family="AF_UNIX") as connection:
        yield connection


@pytest.fixture(scope="session")
def host(request: Any, _connection: Connection[Any, Any]) -> Host:
    """Testinfra's host object for a node."""
    names, index = json.loads(os.environ[NODES]), request.param
    return Host(NodeBackend(names[index], _remote(_connection, index)))


def _remote(connection: Connection[Any, Any], index: int) -> RunLine:
    def run(line: str) -> tuple[int, str, str]:
        connection.send_bytes(json.dumps([index, line]).encode())
        code, stdout, stderr = json.loads(connection.recv_bytes(_LONGEST_ANSWER))
        return int(code), str(stdout), str(stderr)

    return run


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note that a test begins: if nothing follows, it hangs."""
    _note(test=nodeid, result="running")


def pytest_runtest_logreport(report: Any) -> None:
    """Note the result of a test: that of its call, or of the part that kept it from being called."""
    if report.when == "call" or report.outcome != "passed":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        output = "\n".join(part for part in (reason, report.capstdout, report.capstderr) if part)
        _note(test=report.nodeid, result=report.outcome, seconds=report.duration, output=output[-_OUTPUT:])


def pytest_collectreport(report: Any) -> None:
    """Note a file that is no test, for example one with a syntax error."""
    if report.failed:
        _note(test=report.nodeid, result="uncollected", output=str(report.longrepr)[-_OUTPUT:])


def _note(**row: object) -> None:
    with Path(os.environ[RESULTS]).open("a", encoding="utf-8", errors="replace") as file:
        file.write(json.dumps(row) + "\n")
