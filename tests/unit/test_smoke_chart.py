"""Charts: every point in its place, labels that can be read, and text for who cannot see."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest

from imagebuilder.smoke.views import chart, figures
from imagebuilder.smoke.views.chart import Axis, Bar, Series, bar_chart, line_chart
from tests.support.reports import check, report


def lines(*points: tuple[float, float], x: Axis | None = None, y: Axis | None = None) -> ET.Element:
    axes = (x or Axis(label="step"), y or Axis(label="loss"))
    return ET.fromstring(line_chart("c", "Title", "Words", *axes, (Series(name="one", points=points),)))


def circles(svg: ET.Element) -> list[tuple[float, float]]:
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in svg.iter("circle")]


def texts(svg: ET.Element, kind: str = "tick") -> list[str]:
    return [text.text or "" for text in svg.iter("text") if text.attrib["class"] == kind]


def test_points_are_placed_in_proportion() -> None:
    (x0, y0), (x1, y1), (x2, y2) = circles(lines((0, 0), (1, 1), (2, 4)))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y2 == pytest.approx(4 * (y0 - y1), abs=0.4)


def test_a_logarithmic_axis_spaces_powers_evenly() -> None:
    found = circles(
        lines((4, 0.01), (64, 0.1), (1024, 1), x=Axis(label="x", base=2), y=Axis(label="y", base=10))
    )
    (x0, y0), (x1, y1), (x2, y2) = found
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


@pytest.mark.parametrize("low", [1e-9, 0.003, 1.0, 7.0])
@pytest.mark.parametrize("factor", [1.0, 1.5, 30.0, 1e4, 1e9])
@pytest.mark.parametrize("base", [0, 2, 10])
def test_everything_lies_within_the_drawing_and_ticks_are_few(low: float, factor: float, base: int) -> None:
    axis = Axis(label="y", base=base)  # type: ignore[arg-type]
    svg = lines((1, low), (2, low * factor), y=axis)
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    for x, y in circles(svg):
        assert 0 <= x <= width
        assert 0 <= y <= height
    scale = chart._Scale.over([low, low * factor], axis, 0, 100)
    assert 2 <= len(scale.ticks) <= 7
    assert scale.ticks[0] <= low * 1.0001
    assert scale.ticks[-1] >= low * factor * 0.9999


def test_what_no_axis_has_a_place_for_is_left_out() -> None:
    logarithmic = Axis(label="y", base=10)
    bad = [(2.0, 0.0), (3.0, -1.0), (4.0, math.nan), (5.0, math.inf), (math.nan, 1.0)]
    assert len(circles(lines((1, 1), *bad, y=logarithmic))) == 1
    assert not line_chart("c", "t", "d", Axis(label="x"), logarithmic, (Series(name="s", points=tuple(bad)),))
    assert not line_chart("c", "t", "d", Axis(label="x"), logarithmic, ())


def test_a_chart_speaks_to_who_cannot_see_it() -> None:
    svg = lines((1, 1), (2, 2))
    assert svg.attrib["role"] == "img"
    named = {element.attrib["id"]: element.text for element in svg.iter() if "id" in element.attrib}
    assert [named[name] for name in svg.attrib["aria-labelledby"].split()] == ["Title", "Words"]
    assert texts(svg, "name") == ["step", "loss"]


def test_a_legend_names_several_lines_and_not_a_single_one() -> None:
    assert "one" not in texts(lines((1, 1), (2, 2)))
    series = [Series(name=name, points=((1, 1), (2, 2))) for name in ("int64", "float32")]
    svg = ET.fromstring(line_chart("c", "t", "d", Axis(label="x"), Axis(label="y"), series))
    assert texts(svg)[-2:] == ["int64", "float32"]
    assert {group.attrib["class"] for group in svg.iter("g")} == {"series s0", "series s1"}


def test_names_are_escaped() -> None:
    svg = line_chart(
        "c", "<b>", "&", Axis(label="<x>"), Axis(label="y"), (Series(name="s", points=((1, 1),)),)
    )
    assert "<b>" not in svg
    assert texts(ET.fromstring(svg), "name")[0] == "<x>"


def test_a_bar_without_a_length_is_not_drawn_and_says_why() -> None:
    bars = (
        Bar(name="1 x 1", value=1.0, text="1.00", mark=1.0),
        Bar(name="2 x 2", value=None, text="could not run"),
    )
    svg = ET.fromstring(bar_chart("b", "t", "d", "speed-up", bars))
    assert len(list(svg.iter("rect"))) == 1
    assert texts(svg, "absent") == ["could not run"]
    assert texts(svg, "value") == ["1.00"]
    assert not bar_chart("b", "t", "d", "speed-up", bars[1:])


# What a report gives to draw


def sweep(*rows: tuple[int, str, float]) -> dict[str, object]:
    return {
        "sweep": [
            {"bytes": size, "dtype": dtype, "seconds": 1.0, "algbw_gbs": value, "busbw_gbs": value}
            for size, dtype, value in rows
        ]
    }


def test_bandwidth_has_a_line_for_each_type_and_names_the_most() -> None:
    evidence = sweep((4, "int64", 0.001), (1024, "int64", 0.5), (4, "float32", 0.002), (1024, "float32", 1.5))
    (figure,) = figures.figures(report(check("collectives", evidence=evidence)))
    assert len(circles(ET.fromstring(figure.svg))) == 4
    assert figure.caption.startswith("At most 1.5 GB/s with 1 KiB of float32.")


def test_the_loss_curve_says_where_it_goes_and_what_was_no_number() -> None:
    (figure,) = figures.figures(report(check("training", evidence={"losses": [2.5, None, 1.0, 0.25]})))
    assert (
        figure.caption == "Mean over the ranks: from 2.5 to 0.25 in 4 logged steps. 1 of 4 were not numbers."
    )


def test_a_long_loss_curve_keeps_its_ends() -> None:
    losses = [5000.0 - number for number in range(5000)]
    (figure,) = figures.figures(report(check("training", evidence={"losses": losses})))
    polyline = next(ET.fromstring(figure.svg).iter("polyline"))
    assert 200 < len(polyline.attrib["points"].split()) < 500
    assert "from 5e+03 to 1 " in figure.caption


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"sweep": "text"},
        {"sweep": [1, None, {"bytes": 4}]},
        {"losses": [1.0]},
        {"losses": ["a", True, None]},
        {"rows": [{"nodes": "many"}]},
        {"rows": [{"nodes": 2, "processes": 2, "reason": "no memory"}]},
    ],
    ids=str,
)
def test_evidence_that_is_not_understood_gives_no_chart(evidence: dict[str, object]) -> None:
    checks = [check(name, evidence=evidence) for name in ("collectives", "training", "scaling")]
    assert figures.figures(report(*checks)) == ()
