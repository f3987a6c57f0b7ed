"""Run every subprocess: argv only, with a time limit, and with the output kept for the error.

`run` waits for the end; `stream` passes on the output of a long command while it runs, and `feed` gives it a
long input.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, BinaryIO, cast

from imagebuilder.errors import EnvironmentFault, ImagebuilderError

log = logging.getLogger(__name__)

_TAIL_LINES = 30
_PIECE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a finished command: exit code, and both streams as text."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


class CommandError(ImagebuilderError):
    """A command failed or exceeded its time limit; carries the `Result`."""

    exit_code = 7

    def __init__(self, result: Result, reason: str) -> None:
        self.result = result
        tail = "\n".join((result.stderr.strip() or result.stdout.strip()).splitlines()[-_TAIL_LINES:])
        super().__init__(f"`{shlex.join(result.argv)}` {reason}" + (f"\n{tail}" if tail else ""))


def run(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    check: bool = True,
    heard: Callable[[str], None] | None = None,
) -> Result:
    """Run a command to its end.

    Args:
        argv: the command and its arguments; never a shell line.
        timeout: seconds after which the command and all its children are killed.
        env: variables on top of this process's own.
        cwd: the folder to run in.
        stdin: text for its standard input; without it the input is empty.
        check: raise when the exit code is not 0.
        heard: called with each line of both streams while the command runs; not together with `stdin`.

    Raises:
        EnvironmentFault: the command is not installed.
        CommandError: it failed (with `check`), or exceeded the limit.

    """
    words = tuple(str(word) for word in argv)
    child = _start(words, env, cwd, stdin=stdin is not None, merged=False)
    said: dict[str, list[str]] = {"out": [], "err": []}

    def result(code: int, stdout: str, stderr: str) -> Result:
        out, err = ("".join(said[name]) for name in ("out", "err"))
        return Result(argv=words, code=code, stdout=out + stdout, stderr=err + stderr)

    try:
        if heard is not None:
            _listen(child, said, heard, timeout)
        stdout, stderr = child.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        stdout, stderr = _kill(child)
        raise CommandError(
            result(-signal.SIGKILL, stdout, stderr), f"did not end within {timeout:g} s"
        ) from None
    except BaseException:
        _kill(child)
        raise
    ended = result(child.returncode, stdout, stderr)
    if check and ended.code != 0:
        raise CommandError(ended, f"ended with {ended.code}")
    return ended


def _listen(
    child: subprocess.Popen[str], said: dict[str, list[str]], heard: Callable[[str], None], timeout: float
) -> None:
    """Read both streams of a command to their ends, keep what they say, and pass on each line."""
    until = time.monotonic() + timeout
    streams = {
        name: cast("IO[str]", stream) for name, stream in (("out", child.stdout), ("err", child.stderr))
    }
    with selectors.DefaultSelector() as selector:
        rests, decoders = dict.fromkeys(streams, ""), {}
        for name, stream in streams.items():
            selector.register(stream.fileno(), selectors.EVENT_READ, name)
            decoders[name] = codecs.getincrementaldecoder("utf-8")("replace").decode
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(child.args, timeout)
            for key, _ in ready:
                piece = os.read(key.fd, _PIECE)
                if not piece:
                    selector.unregister(key.fd)
                text = decoders[key.data](piece, final=not piece)
                said[key.data].append(text)
                *lines, rests[key.data] = (rests[key.data] + text).split("\n")
                for line in lines:
                    heard(line)


def stream(
    argv: Sequence[str | Path],
    heard: Callable[[str], None],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a long command, and pass on its output while it runs.

    Args:
        argv: the command and its arguments; never a shell line.
        heard: called with each piece of its output, both streams in one; a piece may end inside a line.
        timeout: seconds after which the command and all its children are killed.
        env: variables on top of this process's own.

    Returns:
        Its exit code.

    Raises:
        EnvironmentFault: the command is not installed.
        CommandError: it exceeded the limit.

    """
    words = tuple(str(word) for word in argv)
    child = _start(words, env, None, stdin=False, merged=True)
    late = threading.Event()

    def end() -> None:
        late.set()
        _signal(child, signal.SIGKILL)

    watch = threading.Timer(timeout, end)
    watch.daemon = True
    watch.start()
    try:
        # Read what is available now: TextIOWrapper.read would wait for a full buffer or the end.
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        output = cast("IO[str]", child.stdout)
        while piece := os.read(output.fileno(), _PIECE):
            heard(decode(piece))
        code = child.wait()
    except BaseException:
        _kill(child)
        raise
    finally:
        watch.cancel()
        cast("IO[str]", child.stdout).close()
    if late.is_set():
        result = Result(argv=words, code=-signal.SIGKILL, stdout="", stderr="")
        raise CommandError(result, f"did not end within {timeout:g} s")
    return code


def feed(
    argv: Sequence[str | Path],
    write: Callable[[BinaryIO], None],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a long command whose input is made while it runs.

    Args:
        argv: the command and its arguments; never a shell line.
        write: writes the input. The command may end without reading all of it.
        timeout: seconds after which the command and all its children are killed.
        env: variables on top of this process's own.

    Raises:
        EnvironmentFault: the command is not installed.
        CommandError: it failed, or exceeded the limit; both streams of its output are in the `stderr`.

    """
    words = tuple(str(word) for word in argv)
    said: list[str] = []
    child = _start(words, env, None, stdin=True, merged=True)
    pipe = cast("BinaryIO", cast("TextIOWrapper", child.stdin).buffer)
    output = cast("IO[str]", child.stdout)
    listener = threading.Thread(target=lambda: said.extend(output), daemon=True)
    watch = threading.Timer(timeout, lambda: _signal(child, signal.SIGKILL))
    watch.daemon = True
    started = time.monotonic()
    listener.start()
    watch.start()
    try:
        with contextlib.suppress(BrokenPipeError):
            write(pipe)
            pipe.close()
        code = child.wait()
    except BaseException:
        # Not `_kill`, which would read the output that the listener reads.
        _signal(child, signal.SIGKILL)
        child.wait()
        raise
    finally:
        watch.cancel()
        listener.join()
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
        output.close()
    if code != 0:
        late = time.monotonic() - started >= timeout
        reason = f"did not end within {timeout:g} s" if late else f"ended with {code}"
        raise CommandError(Result(argv=words, code=code, stdout="", stderr="".join(said)), reason)


def _start(
    words: tuple[str, ...], env: Mapping[str, str] | None, cwd: Path | None, *, stdin: bool, merged: bool
) -> subprocess.Popen[str]:
    log.debug("+ %s", shlex.join(words))
    try:
        return subprocess.Popen(  # the one place that starts anything
            words,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise EnvironmentFault(
            f"`{words[0]}` is not installed", hint="`imagebuilder doctor` says how to get it"
        ) from error
    except PermissionError as error:
        raise EnvironmentFault(f"`{words[0]}` may not be run: {error.strerror}") from error
    except (OSError, ValueError) as error:
        # Arguments that are too long or too many, or one with a zero byte.
        raise EnvironmentFault(f"`{words[0][:80]}` cannot be run: {error.__class__.__name__}") from error


def _signal(child: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def cores() -> int:
    """Count the processors that this process may use: a cpuset may allow fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _kill(child: subprocess.Popen[str]) -> tuple[str, str]:
    """End the whole process group, with SIGTERM first, so that a tool can undo its mounts."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(child, number)
        try:
            return child.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    return "", ""
