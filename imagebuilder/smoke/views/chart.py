"""Charts as SVG for an HTML page: without scripts or styles, readable at the width of a phone.

Colours, lines and type come from the page's style sheet, through classes: `s0`, `s1`, ... for series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

# In units of the drawing, which are pixels if it is shown 340 pixels wide: about the width of a phone, so
# that text stays readable there.
WIDTH = 340.0
_HEIGHT = 230.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 26.0, 42.0
_LEGEND = 16.0  # what a legend adds to the top
_ROW = 30.0
_CHARACTER = 7.2  # approximate width of a character at 12 pixels
_TICKS = 6
_SERIES = 6  # the number of colours in the style sheet

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis: its label, with the unit; 0 for linear or the base of a logarithm; how a tick is written."""

    label: str
    base: Literal[0, 2, 10] = 0
    write: Callable[[float], str] = lambda value: f"{value:g}"


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line: its name in the legend, and its points."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar: its name, its length (None for no bar), the text beside it, and a mark to compare with."""

    name: str
    value: float | None
    text: str
    mark: float | None = None


def line_chart(  # noqa: PLR0917 - two axes, two texts, the data and a name for references
    name: str, title: str, description: str, x: Axis, y: Axis, series: Sequence[Series], *, dots: bool = True
) -> str:
    """Draw lines over two axes.

    Args:
        name: unique in the page; what the drawing's parts refer to each other by.
        title: for screen readers.
        description: what the chart shows, in a sentence or two, for screen readers.
        x: the axis to the right.
        y: the axis upwards.
        series: at most six; points that an axis cannot show are left out.
        dots: draw the points too.

    Returns:
        The SVG element as text; empty where no point can be drawn.

    """
    drawn = [(entry.name, _fitting(entry.points, x, y)) for entry in series[:_SERIES]]
    points = [point for _, found in drawn for point in found]
    if not points:
        return ""
    to_x = _Scale.over([px for px, _ in points], x, _LEFT, WIDTH - _RIGHT)
    top = _TOP + (_LEGEND if len(drawn) > 1 else 0)
    to_y = _Scale.over([py for _, py in points], y, _HEIGHT - _BOTTOM, top)
    svg = _svg(name, title, description, _HEIGHT)
    _axes(svg, to_x, to_y)
    for index, (_, found) in enumerate(drawn):
        placed = [(to_x(px), to_y(py)) for px, py in sorted(found)]
        group = ET.SubElement(svg, "g", {"class": f"series s{index}"})
        ET.SubElement(group, "polyline", {"points": " ".join(f"{px:.1f},{py:.1f}" for px, py in placed)})
        for px, py in placed if dots else ():
            ET.SubElement(group, "circle", {"cx": f"{px:.1f}", "cy": f"{py:.1f}", "r": "2.6"})
    _legend(svg, [label for label, _ in drawn])
    return _text(svg)


def bar_chart(name: str, title: str, description: str, label: str, bars: Sequence[Bar]) -> str:
    """Draw horizontal bars from zero, one on each line; a mark shows the ideal length.

    Args:
        name: unique in the page.
        title: for screen readers.
        description: what the chart shows, for screen readers.
        label: what the length means, with the unit.
        bars: from top to bottom.

    Returns:
        The SVG element as text; empty where no bar has a length.

    """
    lengths = [value for bar in bars for value in (bar.value, bar.mark) if value is not None]
    if not any(bar.value is not None for bar in bars):
        return ""
    bottom = 10 + _ROW * len(bars)
    left = 14 + _CHARACTER * max(len(bar.name) for bar in bars)
    scale = _Scale.over([0.0, *lengths], Axis(label=label), left, WIDTH - 4 - _CHARACTER * _widest(bars))
    svg = _svg(name, title, description, bottom + _BOTTOM)
    for tick in scale.ticks:
        _line(svg, scale(tick), 6, scale(tick), bottom, "grid")
        _label(svg, scale(tick), bottom + 14, scale.axis.write(tick), "middle")
    _label(svg, (left + WIDTH - _RIGHT) / 2, bottom + 32, label, "middle", "name")
    for row, bar in enumerate(bars):
        middle = 6 + _ROW * (row + 0.5)
        _label(svg, left - 8, middle + 4, bar.name, "end")
        end = left if bar.value is None else scale(bar.value)
        if bar.value is not None:
            box = {"x": left, "y": middle - 8, "width": max(end - left, 0.5), "height": 16}
            ET.SubElement(svg, "rect", {"class": "fill s0", **{key: f"{v:.1f}" for key, v in box.items()}})
        if bar.mark is not None:
            _line(svg, scale(bar.mark), middle - 11, scale(bar.mark), middle + 11, "mark")
            end = max(end, scale(bar.mark)) if bar.value is not None else end
        _label(svg, end + 6, middle + 4, bar.text, "start", "value" if bar.value is not None else "absent")
    _line(svg, left, 6, left, bottom, "axis")
    return _text(svg)


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Maps values to positions on the drawing, and knows the values to label."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float], axis: Axis, start: float, end: float) -> _Scale:
        ticks = _log_ticks(values, axis.base) if axis.base else _linear_ticks(values)
        return cls(axis=axis, low=ticks[0], high=ticks[-1], start=start, end=end, ticks=ticks)

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.axis.base:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def _linear_ticks(values: Sequence[float]) -> tuple[float, ...]:
    """Label round numbers, starting from zero if no value is negative."""
    low, high = min(0.0, *values), max(0.0, *values)
    if low == high:
        high = 1.0
    raw = (high - low) / (_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return tuple(step * index for index in range(first, last + 1))


def _log_ticks(values: Sequence[float], base: int) -> tuple[float, ...]:
    """Label whole powers, evenly, few enough to read; the outermost values lie within."""
    low = math.floor(math.log(min(values), base) + 1e-9)
    high = max(math.ceil(math.log(max(values), base) - 1e-9), low + 1)
    least = math.ceil((high - low) / (_TICKS - 1))
    # Prefer a label at the last value, if one is near.
    stride = next((step for step in (least, least + 1, least + 2) if (high - low) % step == 0), least)
    return tuple(float(base) ** power for power in range(low, high + stride, stride))


def _fitting(points: Sequence[Point], x: Axis, y: Axis) -> list[Point]:
    """Leave out what cannot be drawn: NaN, infinity, and values without a logarithm."""
    return [
        point
        for point in points
        if all(
            math.isfinite(value) and abs(value) < 1e300 and (not axis.base or value > 1e-300)
            for value, axis in zip(point, (x, y), strict=True)
        )
    ]


def _svg(name: str, title: str, description: str, height: float) -> ET.Element:
    size = f"0 0 {WIDTH:g} {height:g}"
    labels = f"{name}-title {name}-desc"
    svg = ET.Element(
        "svg",
        {"class": "chart", "viewBox": size, "role": "img", "aria-labelledby": labels},
    )
    ET.SubElement(svg, "title", {"id": f"{name}-title"}).text = title
    ET.SubElement(svg, "desc", {"id": f"{name}-desc"}).text = description
    return svg


def _axes(svg: ET.Element, x: _Scale, y: _Scale) -> None:
    for tick in y.ticks:
        _line(svg, x.start, y(tick), x.end, y(tick), "grid")
        _label(svg, x.start - 6, y(tick) + 3.5, y.axis.write(tick), "end")
    for tick in x.ticks:
        _line(svg, x(tick), y.start, x(tick), y.start + 4, "axis")
        text = x.axis.write(tick)
        # The outermost label would stick out of the drawing.
        furthest = WIDTH - _CHARACTER * len(text) / 2
        _label(svg, min(x(tick), furthest), y.start + 18, text, "middle")
    _line(svg, x.start, y.start, x.end, y.start, "axis")
    _label(svg, (x.start + x.end) / 2, _HEIGHT - 6, x.axis.label, "middle", "name")
    _label(svg, 4, 12, y.axis.label, "start", "name")


def _legend(svg: ET.Element, names: Sequence[str]) -> None:
    """Draw a legend below the axis label, if there are several lines."""
    left, middle = _LEFT, 24.0
    for index, name in enumerate(names if len(names) > 1 else ()):
        group = ET.SubElement(svg, "g", {"class": f"series s{index}"})
        ET.SubElement(group, "polyline", {"points": f"{left:.1f},{middle} {left + 22:.1f},{middle}"})
        _label(svg, left + 27, middle + 4, name, "start")
        left += 27 + _CHARACTER * len(name) + 12


def _line(svg: ET.Element, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:  # noqa: PLR0917
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    ET.SubElement(svg, "line", {"class": kind, **{key: f"{value:.1f}" for key, value in ends.items()}})


def _label(  # noqa: PLR0917
    svg: ET.Element, x: float, y: float, text: str, anchor: str, kind: str = "tick"
) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "class": kind}
    ET.SubElement(svg, "text", place).text = text


def _widest(bars: Sequence[Bar]) -> int:
    """Count the characters that must fit to the right of a bar; without a bar the text has all the room."""
    return max((len(bar.text) for bar in bars if bar.value is not None), default=0) + 1


def _text(svg: ET.Element) -> str:
    return ET.tostring(svg, encoding="unicode", short_empty_elements=True)
