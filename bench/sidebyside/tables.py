"""The page of results: what was measured, as tables, with nothing in them that was not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from bench.sidebyside import goals, limits, rendering, samples
from bench.sidebyside.samples import Run
from bench.sidebyside.works import WORKS
from imagebuilder.core.progress import human

FIRST = "plain"
WARM = ("warm", "warm-first")
_HEAD = """\
# Side by side

Made by `make bench`; the samples behind the medians are in [samples.json](samples.json). Seconds of one
machine mean little on another. Compare the ratios to the plain Dockerfile, in parentheses.

- **plain**: a hand-written Dockerfile, `pip install --no-cache-dir -r requirements.txt`.
- **uv**: the same with uv and a cache mount.
- **rendered**: our rendered Dockerfile by docker buildx, on the containerd image store, with zstd.
- **imagebuilder**: the embedded engine, by its command line; its push searches every layer for secrets first.

All four install the same locked versions on the same Debian base and push to a server of the same registry
program, which is empty when a round begins. Every side has the base before a measurement starts, even if the
base changed: these tables do not include making it. Each side with a Dockerfile has its own container engine.
Each side compiles modules to bytecode or not, by its own default: pip does, uv does not. That affects its
seconds, sizes and first imports.
"""
_COLUMNS = (
    ("build", samples.BUILD),
    ("push", samples.PUSH),
    ("pushed", samples.PUSHED),
    ("in the registry", samples.STORED),
    ("packed", samples.PACKED),
    ("unpacked", samples.UNPACKED),
    ("peak memory", samples.MEMORY),
    ("written to disk", samples.WRITTEN),
)
_SECONDS = frozenset({samples.BUILD, samples.PUSH, samples.PULL, samples.IMPORT, "import again"})


def page(runs: Sequence[Run]) -> str:
    """Write the page of all runs."""
    return "\n".join([_HEAD, *(section for run in runs for section in _sections(run))])


def _sections(run: Run) -> Iterable[str]:
    alone = f", {run.compared[0]} alone" if len(run.compared) == 1 else ""
    yield f"## {run.recipe}{alone}\n"
    yield f"`{run.command}`, on {', '.join(f'{name} {value}' for name, value in run.machine.items())}.\n"
    for work, what in WORKS.items():
        if sides := run.sides(work):
            rounds = run.rounds(work, sides[0])
            yield f"### {work}: {what}\n\n{_many(rounds)}.\n"
            if work in WARM and FIRST in run.sides("cold"):
                yield "The plain Dockerfile keeps no downloads: the ratios are to its cold build.\n"
            yield _table(run, work, sides, _COLUMNS)
    if sides := run.sides("consumer"):
        note = next(sample.note for sample in run.samples if sample.work == "consumer")
        yield f"### The consumer\n\nPulled by an empty engine; then `{note}` in a new container,"
        yield f"from disk, then again from memory. {_many(run.rounds('consumer', sides[0]))}.\n"
        columns = (
            ("pull", samples.PULL),
            ("first import", samples.IMPORT),
            ("again", "import again"),
            ("written to disk", samples.WRITTEN),
        )
        yield _table(run, "consumer", sides, columns)
    yield from _limits(run)
    yield from _rendering(run)
    yield from _goals(run)


def _table(run: Run, work: str, sides: Sequence[str], columns: Sequence[tuple[str, str]]) -> str:
    first = run.medians(work, FIRST)
    if work in WARM and not first:
        first = run.medians("cold", FIRST)
    found = {side: run.medians(work, side) for side in sides}
    shown = [(title, key) for title, key in columns if any(key in values for values in found.values())]
    timed = work != "consumer"
    head = ["side", *(title for title, _ in shown), *(["build + push"] if timed else [])]
    lines = [head, ["---"] + ["--:"] * (len(head) - 1)]
    for side, values in found.items():
        cells = [side, *(_cell(values, first, key) for _, key in shown)]
        if timed:
            cells.append(_ratio(samples.total(values), samples.total(first), _seconds(samples.total(values))))
        lines.append(cells)
    return _markdown(lines)


def _cell(values: Mapping[str, float], first: Mapping[str, float], key: str) -> str:
    if key not in values:
        return ""
    text = _seconds(values[key]) if key in _SECONDS else human(int(values[key]))
    return _ratio(values[key], first.get(key, 0.0), text)


def _ratio(value: float, first: float, text: str) -> str:
    """Add the ratio to the plain side; to nothing there is none."""
    return f"{text} ({value / first:.3g})" if first else text


def _limits(run: Run) -> Iterable[str]:
    names = (limits.DOWNLOAD, limits.COPY, limits.HASH, limits.INFLATE)
    if not any(run.sides(name) for name in names):
        return
    yield "### Limits: the wheels alone, in the same run\n"
    lines = [["what", "seconds", "bytes", "MB/s", ""], ["---", "--:", "--:", "--:", "---"]]
    for name in names:
        values = run.medians(name, "")
        if values:
            seconds, size = values[samples.SECONDS], values[samples.BYTES]
            note = next(sample.note for sample in run.samples if sample.work == name)
            speed = f"{size / seconds / 1e6:,.0f}" if seconds else ""
            lines.append([name.partition(": ")[2], _seconds(seconds), human(int(size)), speed, note])
    yield _markdown(lines)


def _rendering(run: Run) -> Iterable[str]:
    works = (rendering.RENDER, rendering.REFUSE)
    if not any(run.sides(work) for work in works):
        return
    yield "### Rendering a Dockerfile, beside hpccm\n"
    lines = [["what", "program", "seconds", "says"], ["---", "---", "--:", "---"]]
    for work in works:
        for side in run.sides(work):
            note = next(s.note for s in run.samples if (s.work, s.side) == (work, side))
            lines.append([work, side, _seconds(run.medians(work, side)[samples.SECONDS]), note])
    yield _markdown(lines)


def _goals(run: Run) -> Iterable[str]:
    found = goals.reached(run)
    if not found:
        return
    yield "### Goals\n"
    lines = [["goal", "measured", "", "what bounds it"], ["---", "---", "---", "---"]]
    lines += [[each.goal, each.measured, "met" if each.met else "not met", each.bound] for each in found]
    yield _markdown(lines)


def _many(rounds: int) -> str:
    return "One round" if rounds == 1 else f"Medians of {rounds} rounds"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"


def _markdown(lines: Iterable[Sequence[str]]) -> str:
    write: Callable[[Sequence[str]], str] = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
    return "\n".join(write(cells) for cells in lines) + "\n"
