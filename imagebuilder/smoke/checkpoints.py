"""Compare checkpoints with torch: in a container of an image, or with a Python of this host.

The script that compares is payload/compare.py. Checkpoints are untrusted: the script has limits on memory and
time, and in a container no network and no other files of this host.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import requests
from docker.types import Mount
from pydantic import ValidationError

from imagebuilder.core import jsontext, process
from imagebuilder.core.model import Strict
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import ImagebuilderError
from imagebuilder.host import leftovers
from imagebuilder.smoke.engine import Engine, explained, require_image
from imagebuilder.smoke.nodes.cluster import PAYLOAD
from imagebuilder.smoke.target import GIB

Kind = Literal["parameter", "buffer", "optimizer", "value"]
KINDS: tuple[Kind, ...] = ("parameter", "buffer", "optimizer", "value")

_VERB = "imagebuilder compare-checkpoints"
_SCRIPT = PAYLOAD / "compare.py"
_INSIDE = "/imagebuilder"
# The script's answer is shorter than this; a hostile container could write without end.
_ANSWER = 65 << 20
_PLURAL: dict[Kind, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "optimizer": "optimizer state",
    "value": "other values",
}


class Incomparable(ImagebuilderError):
    """The files cannot be compared: one is damaged, for example, or torch is missing."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class CompareRules:
    """How to compare.

    Without tolerances, elements must be equal bit for bit. With a tolerance, `a` and `b` agree if
    |a - b| <= atol + rtol * |b|, or if both are NaN.

    Attributes:
        atol, rtol: tolerances.
        only: the kinds of entries to compare; empty for all.
        buffers: patterns of further names that are buffers.

    """

    atol: float = 0.0
    rtol: float = 0.0
    only: Collection[Kind] = ()
    buffers: tuple[str, ...] = ()


class Difference(Strict):
    """One entry that differs, as the script reports it.

    Attributes:
        name, kind: the entry.
        what: which property differs.
        first, other: type and shape, or the value, on both sides; None where it is missing.
        count, of: elements that differ, of all.
        max_abs: the largest difference of two numbers; None where no difference is finite.
        relative: that difference in units of the largest number of either tensor.
        not_finite: of the elements that differ, those with a NaN or an infinity on at least one side.
        index, values: index of the first element that differs, and both values.

    """

    name: str
    kind: Kind
    what: Literal["numbers", "dtype", "shape", "value", "missing", "extra"]
    first: str | None
    other: str | None
    count: int = 0
    of: int = 0
    max_abs: float | None = None
    relative: float | None = None
    not_finite: int = 0
    index: tuple[int, ...] = ()
    values: tuple[str, str] = ("", "")


class Count(Strict):
    """Entries of one kind."""

    equal: int
    differ: int


class Comparison(Strict):
    """The comparison of one checkpoint with the first."""

    counts: dict[Kind, Count]
    differences: tuple[Difference, ...]


class _Answer(Strict):
    """What the script prints: comparisons, or an error and the number of the file that caused it."""

    comparisons: tuple[Comparison, ...] = ()
    error: str = ""
    hint: str = ""
    file: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """The script's limits: bytes of memory, and seconds."""

    memory: int
    seconds: float


def compare_here(files: Sequence[Path], rules: CompareRules, python: Path | None) -> tuple[Comparison, ...]:
    """Compare with a Python of this host that has torch: the given one, or the one that runs this program.

    Raises:
        Incomparable: there is no torch, or a file cannot be compared.
        EnvironmentFault: there is no such Python.

    """
    if python is None and importlib.util.find_spec("torch") is None:
        raise Incomparable(
            "reading checkpoints needs torch, and the Python that runs imagebuilder does not have it",
            where=_VERB,
            hint="name an image that has torch (--image RECIPE), or a Python that has it (--python PATH)",
        )
    limits = _limits(files)
    argv = [python or sys.executable, _SCRIPT, *_arguments(rules), "--memory", str(limits.memory)]
    try:
        result = process.run([*argv, "--", *files], timeout=limits.seconds, check=False)
    except process.CommandError:
        raise _late(limits) from None
    return _read(result.stdout, files, f"{argv[0]} ended with {result.code}: {_last_line(result.stderr)}")


def compare_inside(
    files: Sequence[Path], rules: CompareRules, engine: Engine, reference: str
) -> tuple[Comparison, ...]:
    """Compare in a container of an image that has torch.

    Raises:
        Incomparable: a file cannot be compared, or the image has no Python with torch.
        InputError: the engine has no such image.
        EnvironmentFault: the engine cannot run it.

    """
    require_image(engine, reference)
    limits = _limits(files)
    places = [f"{_INSIDE}/{number}" for number in range(len(files))]
    command = [f"{_INSIDE}/compare.py", *_arguments(rules), "--", *places]
    with _container(engine, reference, (command, dict(zip(places, files, strict=True))), limits) as container:
        code = _wait(container, limits)
        said = _log(container, stdout=True)
        container.reload()
        if container.attrs["State"].get("OOMKilled"):
            raise Incomparable(
                f"the comparison needs more memory than {limits.memory / GIB:.0f} GiB", where=reference
            )
        ended = f"Python ended with {code} in {reference}: {_last_line(_log(container, stdout=False))}"
    return _read(said, files, ended)


@contextlib.contextmanager
def _container(
    engine: Engine, reference: str, work: tuple[list[str], dict[str, Path]], limits: _Limits
) -> Iterator[Any]:
    """Start a container that compares; it is removed at the end, or by a later run."""
    command, files = work
    mounted = {**files, f"{_INSIDE}/compare.py": _SCRIPT}
    mounts = [Mount(inside, str(path.resolve()), "bind", read_only=True) for inside, path in mounted.items()]
    leftovers.sweep(engine)
    run_id = secrets.token_hex(4)
    try:
        with explained(f"comparing in a container of {reference}"):
            # Root without capabilities cannot read this user's files. In a rootless engine, root is this
            # user.
            rootless = "name=rootless" in (engine.client.info().get("SecurityOptions") or ())
            container = engine.client.containers.create(
                reference,
                command,
                entrypoint=["python"],
                user="0:0" if rootless else f"{os.getuid()}:{os.getgid()}",
                mounts=mounts,
                name=leftovers.name(run_id),
                labels=leftovers.labels(run_id, limits.seconds / 3600),
                network_mode="none",
                read_only=True,
                tmpfs={"/tmp": "size=64m"},  # noqa: S108 - the container's own
                mem_limit=limits.memory,
                memswap_limit=limits.memory,
                pids_limit=512,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
            )
            container.start()
            yield container
    finally:
        leftovers.remove(engine, run_id)


def _wait(container: Any, limits: _Limits) -> int:
    try:
        return int(container.wait(timeout=limits.seconds)["StatusCode"])
    except (requests.ReadTimeout, requests.ConnectionError):
        raise _late(limits) from None


def _log(container: Any, *, stdout: bool) -> str:
    """Read what a container wrote, up to a limit."""
    said = bytearray()
    for piece in container.logs(stdout=stdout, stderr=not stdout, stream=True):
        said += piece
        if len(said) > _ANSWER:
            break
    return said.decode(errors="replace")


def _limits(files: Sequence[Path]) -> _Limits:
    """Check that the files can be read, and return limits that suit their size."""
    total = 0
    for path in files:
        try:
            if not path.exists() or path.is_file():  # opening a pipe would block until somebody writes to it
                with path.open("rb") as file:
                    total += os.fstat(file.fileno()).st_size
                continue
        except OSError as error:
            raise Incomparable(f"cannot be read: {error.strerror}", where=str(path)) from None
        raise Incomparable("is not a file", where=str(path))
    # Two files are in memory at a time, and views of tensors are copied; the rest is for torch itself.
    return _Limits(memory=8 * GIB + 3 * total, seconds=300 + total / 20e6)


def _arguments(rules: CompareRules) -> list[str]:
    pairs = [("atol", repr(rules.atol)), ("rtol", repr(rules.rtol))]
    pairs += [("only", kind) for kind in rules.only] + [("buffer", pattern) for pattern in rules.buffers]
    return [f"--{name}={value}" for name, value in pairs]


def _late(limits: _Limits) -> Incomparable:
    return Incomparable(f"the comparison did not end within {limits.seconds:.0f} s", where=_VERB)


def _read(said: str, files: Sequence[Path], ended: str) -> tuple[Comparison, ...]:
    """Read the script's answer, which is the last line that it wrote.

    Args:
        said: the script's output.
        files: the compared files, to name the one that an error is about.
        ended: how the script ended, for the error if there is no answer.

    Raises:
        Incomparable: there is no answer, or it is an error.

    """
    try:
        jsontext.loads(_last_line(said), limit=_ANSWER, most=16 * jsontext.MOST)
        answer = _Answer.model_validate_json(_last_line(said))
    except (ValueError, ValidationError):
        raise Incomparable(f"the script gave no answer: {printable(ended)}", where=_VERB) from None
    if answer.error:
        number = answer.file
        where = _VERB if number is None or not 0 <= number < len(files) else str(files[number])
        raise Incomparable(printable(answer.error), where=where, hint=printable(answer.hint))
    if len(answer.comparisons) != len(files) - 1:
        raise Incomparable(
            f"the script compared {len(answer.comparisons)} times for {len(files)} files", where=_VERB
        )
    return answer.comparisons


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def lines(files: tuple[Path, Path], comparison: Comparison, most: int) -> tuple[str, ...]:
    """Format a comparison as text: counts by kind, then at most `most` differences of each kind."""
    verdict = "DIFFER" if comparison.differences else "equal"
    rows = [f"{files[0]} and {files[1]}: {verdict}"]
    counts = {kind: count for kind, count in comparison.counts.items() if count.equal or count.differ}
    for kind, count in counts.items():
        rows.append(f"  {_PLURAL[kind]:15}  {count.equal} equal, {count.differ} differ")
    for kind in counts:
        differences = [difference for difference in comparison.differences if difference.kind == kind]
        rows += [_line(difference) for difference in differences[:most]]
        if len(differences) > most:
            rows.append(f"{kind}  ... and {len(differences) - most} more, see --most")
    return tuple(rows)


def _line(difference: Difference) -> str:
    a, b = printable(difference.first or ""), printable(difference.other or "")
    head = f"{difference.kind:9}  {printable(difference.name)}"
    if difference.what == "missing":
        return f"{head}  only in the first: {a}"
    if difference.what == "extra":
        return f"{head}  not in the first: {b}"
    if difference.what != "numbers":
        return f"{head}  {difference.what}: {a} against {b}"
    words = [f"{difference.count} of {difference.of} differ"]
    if difference.max_abs is not None:
        words.append(f"max abs {difference.max_abs:.3g}")
    if difference.relative is not None:
        words.append(f"relative {difference.relative:.3g}")
    if difference.not_finite:
        words.append(f"{difference.not_finite} not finite")
    values = " against ".join(map(printable, difference.values))
    words.append(f"first at {list(difference.index)}: {values}")
    return f"{head}  {a}  {', '.join(words)}"
