"""The charts of a report, with headings and captions."""

from __future__ import annotations

from dataclasses import dataclass

from imagebuilder.smoke import evidence
from imagebuilder.smoke.evidence import ScalingRow, SweepRow
from imagebuilder.smoke.report import Report
from imagebuilder.smoke.views.chart import Axis, Bar, Series, bar_chart, line_chart

SCALING_CAPTION = "containers on one host; not a cluster prediction"
_DRAWN_STEPS = 400  # a line of this width cannot show more points


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart: its heading, the SVG, and a caption."""

    heading: str
    svg: str
    caption: str


def figures(report: Report) -> tuple[Figure, ...]:
    """Draw the charts that a report has data for: bandwidth by size, speed-up by layout, loss by step."""
    made = (
        *(
            _bandwidth(report, number, name, rows)
            for number, (name, rows) in enumerate(evidence.sweeps(report.checks).items())
        ),
        _speedup(evidence.scaling(report)),
        _losses(evidence.losses(report)),
    )
    return tuple(figure for figure in made if figure is not None and figure.svg)


def size(count: float) -> str:
    """Format a number of bytes that is a power of two, or near one.

    >>> size(4), size(65536), size(1 << 26)
    ('4 B', '64 KiB', '64 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.4g} {unit}"


def rate(gigabytes: float) -> str:
    """Format a bandwidth, given in 10^9 bytes a second.

    >>> rate(10), rate(0.001), rate(0.00001)
    ('10 GB/s', '1 MB/s', '10 kB/s')
    """
    count = gigabytes * 1e9
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}/s"


def layout(row: ScalingRow) -> str:
    """Name a layout: nodes times processes."""
    return f"{row.nodes} × {row.processes}"  # noqa: RUF001 - people write it so


def _bandwidth(report: Report, number: int, check: str, rows: tuple[SweepRow, ...]) -> Figure:
    names = tuple(dict.fromkeys(row.dtype for row in rows))
    lines = [
        Series(
            name=name, points=tuple((float(row.bytes), row.busbw_gbs) for row in rows if row.dtype == name)
        )
        for name in names
    ]
    best = max(rows, key=lambda row: row.busbw_gbs)
    reached = f"{rate(best.busbw_gbs)} with {size(best.bytes)} of {best.dtype}"
    svg = line_chart(
        f"bandwidth-{number}",
        "Bus bandwidth of allreduce by size",
        f"One line for each of {', '.join(names)}, over sizes from {size(min(row.bytes for row in rows))} to "
        f"{size(max(row.bytes for row in rows))}. The most is {reached}.",
        Axis(label="size of the tensor", base=2, write=size),
        Axis(label="bus bandwidth", base=10, write=rate),
        lines,
    )
    caption = f"At most {reached}. busbw = bytes / seconds × 2(n-1)/n, GB = 10⁹ bytes, mode {report.mode}."  # noqa: RUF001
    return Figure(heading=f"Allreduce, {check}", svg=svg, caption=caption)


def _speedup(rows: tuple[ScalingRow, ...]) -> Figure | None:
    several = len({row.backend for row in rows if row.speedup is not None}) > 1
    bars = tuple(
        Bar(
            name=f"{layout(row)} {row.backend}" if several else layout(row),
            value=row.speedup,
            text="could not run" if row.speedup is None else f"{row.speedup:.2f}×",  # noqa: RUF001
            mark=float(row.nodes * row.processes),
        )
        for row in rows
    )
    told = "; ".join(f"{bar.name}: {bar.text}" for bar in bars)
    svg = bar_chart(
        "scaling",
        "Speed-up by layout",
        f"Nodes times processes, against one process: {told}.",
        "speed-up against 1 × 1",  # noqa: RUF001
        bars,
    )
    caption = f"Nodes × processes, the same global batch; the mark shows perfect scaling; {SCALING_CAPTION}."  # noqa: RUF001
    return Figure(heading="Scaling", svg=svg, caption=caption)


def _losses(values: tuple[float | None, ...]) -> Figure | None:
    points = tuple((float(step), value) for step, value in enumerate(values, 1) if value is not None)
    if len(points) < 2:
        return None
    every = -(-len(points) // _DRAWN_STEPS)
    missing = len(values) - len(points)
    lost = f" {missing} of {len(values)} were not numbers." if missing else ""
    ends = f"from {points[0][1]:.3g} to {points[-1][1]:.3g} in {len(values)} logged steps"
    svg = line_chart(
        "losses",
        "Training loss by step",
        f"The loss goes {ends}.{lost}",
        Axis(label="logged step"),
        Axis(label="loss"),
        (Series(name="DDP", points=(*points[:-1:every], points[-1])),),
        dots=False,
    )
    return Figure(heading="Training", svg=svg, caption=f"Mean over the ranks: {ends}.{lost}")
