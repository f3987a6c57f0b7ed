import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from imagebuilder.core.process import CommandError, feed, run, stream
from imagebuilder.errors import EnvironmentFault


def test_output_code_and_input_come_back() -> None:
    script = "import sys; print(sys.stdin.read().upper()); print('oh', file=sys.stderr); sys.exit(3)"
    result = run([sys.executable, "-c", script], timeout=20, stdin="hello", check=False)
    assert (result.code, result.stdout.strip(), result.stderr.strip()) == (3, "HELLO", "oh")


def test_a_failure_carries_command_code_and_the_end_of_its_output() -> None:
    with pytest.raises(CommandError, match=r"ended with 3\nthe reason") as caught:
        run(
            [
                sys.executable,
                "-c",
                "import sys; sys.exit('the reason') if 0 else print('the reason') or sys.exit(3)",
            ],
            timeout=20,
        )
    assert caught.value.result.code == 3


def test_a_command_that_outruns_its_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "survived"
    child = f"import time; time.sleep(1); open({str(mark)!r}, 'w')"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with pytest.raises(CommandError, match=r"did not end within 0\.5 s"):
        run([sys.executable, "-c", script], timeout=0.5)
    time.sleep(1.2)
    assert not mark.exists()


def test_a_missing_command_points_to_the_doctor() -> None:
    with pytest.raises(
        EnvironmentFault, match=r"`no-such-tool` is not installed\n  -> `imagebuilder doctor`"
    ):
        run(["no-such-tool"], timeout=1)


def test_no_shell_ever_sees_the_arguments() -> None:
    assert run(["echo", "$(id) ; rm -rf x"], timeout=5).stdout.strip() == "$(id) ; rm -rf x"


def test_lines_of_both_streams_are_heard_while_a_command_runs_and_kept(tmp_path: Path) -> None:
    seen: list[str] = []

    def hear(line: str) -> None:
        seen.append(line)
        (tmp_path / "heard").touch()

    # The command waits until its first line was heard.
    script = 'echo one; until [ -e heard ]; do sleep 0.01; done; echo two >&2; printf "no end"'
    done = run(["sh", "-c", script], timeout=10, cwd=tmp_path, heard=hear)
    assert seen == ["one", "two"]
    assert (done.stdout, done.stderr) == ("one\nno end", "two\n")


def test_a_command_that_is_heard_has_a_time_limit_and_its_output_is_kept() -> None:
    with pytest.raises(CommandError) as caught:
        run(["sh", "-c", "echo begun; sleep 60"], timeout=0.3, heard=lambda _line: None)
    assert str(caught.value) == "`sh -c 'echo begun; sleep 60'` did not end within 0.3 s\nbegun"


def test_a_long_command_is_heard_while_it_runs() -> None:
    script = "import sys, time\nfor word in ('one\\n', 'tw\u00e4'):\n"
    script += " sys.stderr.write(word); sys.stderr.flush(); time.sleep(0.5)\nprint('end'); sys.exit(4)"
    heard: list[tuple[float, str]] = []
    started = time.monotonic()
    code = stream(
        [sys.executable, "-c", script],
        lambda text: heard.append((time.monotonic() - started, text)),
        timeout=20,
        env={"PYTHONIOENCODING": "utf-8"},
    )
    assert code == 4
    assert "".join(text for _, text in heard).split() == ["one", "tw\u00e4end"]
    assert heard[-1][0] - heard[0][0] > 0.4


def test_a_long_command_that_outruns_its_limit_is_ended() -> None:
    started = time.monotonic()
    with pytest.raises(CommandError, match=r"did not end within 0\.5 s"):
        stream([sys.executable, "-c", "import time; time.sleep(30)"], lambda _text: None, timeout=0.5)
    assert time.monotonic() - started < 10


def test_who_stops_listening_ends_the_command(tmp_path: Path) -> None:
    mark = tmp_path / "survived"
    script = f"import time; print('x', flush=True); time.sleep(1); open({str(mark)!r}, 'w')"

    def stop(_text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream([sys.executable, "-c", script], stop, timeout=20)
    time.sleep(1.2)
    assert not mark.exists()


def test_a_command_is_fed_while_it_runs_and_may_stop_reading() -> None:
    counting = "import sys; sys.exit(len(sys.stdin.read()) != 64 * 65536)"
    feed([sys.executable, "-c", counting], _writing(64), timeout=20)
    # It reads one byte of many: what it says counts, not that the pipe broke.
    script = "import sys; sys.stdin.buffer.read(1); print('enough'); sys.exit(4)"
    with pytest.raises(CommandError, match=r"ended with 4\nenough$"):
        feed([sys.executable, "-c", script], _writing(64), timeout=20)


def test_a_fed_command_has_a_time_limit_and_dies_with_its_feeder() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = time.monotonic()
    with pytest.raises(CommandError, match=r"did not end within 0\.5 s"):
        feed(sleep, _writing(64), timeout=0.5)

    def broken(_: BinaryIO) -> None:
        raise EnvironmentFault("the layer is damaged")

    with pytest.raises(EnvironmentFault, match=r"^the layer is damaged$"):
        feed(sleep, broken, timeout=20)
    assert time.monotonic() - started < 10


def _writing(pieces: int) -> Callable[[BinaryIO], None]:
    def write(out: BinaryIO) -> None:
        out.writelines(b"x" * 65536 for _ in range(pieces))

    return write
