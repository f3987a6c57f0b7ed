"""The page of a smoke report in a real browser: on a phone, on a desk, in the dark and on paper."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from imagebuilder.core import process
from imagebuilder.smoke import report as reports
from imagebuilder.smoke.views import page
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.support.browser import Browser, browser
from tests.support.reports import FILES, hostile

PHONE, DESK, PAPER = 320, 1100, 718  # pixels; the last is A4 between margins
_ROOT = "document.documentElement"
# Elements that stick out to the right.
_STICKING_OUT = """
[...document.body.querySelectorAll('*')]
  .filter(e => !e.closest('.scroll, pre'))  // those scroll by themselves
  .filter(e => e.getBoundingClientRect().right > document.body.parentNode.clientWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 200))
"""
# The least ratio of contrast (WCAG 2.2, 1.4.3) of any text on the ground behind it, and where it is.
_CONTRAST = """
(() => {
  const parse = text => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const linear = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const found = parse(getComputedStyle(e).backgroundColor);
      if (found[3] > 0) return found;
    }
    return [255, 255, 255, 1];
  };
  let least = [21, ''];
  for (const e of document.body.querySelectorAll('*')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || ['title', 'desc'].includes(e.tagName) || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(parse(e instanceof SVGElement ? style.fill : style.color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least[0]) least = [ratio, e.outerHTML.slice(0, 200)];
  }
  return least;
})()
"""


@pytest.fixture(scope="module")
def shown() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {path.stem: reports.read(path) for path in FILES} | {"hostile": hostile()}
    found = {}
    for name, report in made.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(page.render(report), encoding="utf-8")
    return found


SAMPLES = [*(path.stem for path in FILES), "hostile"]


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_page_fits_its_screen_and_shows_something(
    shown: Browser, pages: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    shown.open(pages[name], width=width, scheme=scheme)
    # What is folded counts too.
    shown.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert shown.evaluate(f"{_ROOT}.scrollWidth - {_ROOT}.clientWidth") == 0
    assert shown.evaluate(_STICKING_OUT) == []
    picture = shown.picture()
    assert picture.width <= width
    assert picture.height > 800
    assert picture.colours > 100, "text alone has more shades"
    assert picture.ground < 0.95, "nearly all of it is empty"
    ratio, where = shown.evaluate(_CONTRAST)
    assert ratio >= 4.5, f"{ratio:.2f} in {where}"
    ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 27)"}[scheme]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_page_asks_for_nothing_and_runs_nothing(shown: Browser, pages: dict[str, Path], name: str) -> None:
    shown.open(pages[name], width=DESK)
    assert shown.requests() == (pages[name].as_uri(),)
    assert shown.complaints() == ()
    assert shown.evaluate("document.scripts.length") == 0
    assert shown.evaluate("document.title") != "owned"


def test_its_policy_would_stop_what_slipped_through(shown: Browser, pages: dict[str, Path]) -> None:
    leaky = pages["passed-cpu"].with_name("leaky.html")
    attack = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    attack += '<p style="color: red">x</p>'
    leaky.write_text(pages["passed-cpu"].read_text(encoding="utf-8").replace("</main>", f"{attack}</main>"))
    shown.open(leaky, width=DESK)
    assert shown.evaluate("document.title") == "cuda12-torch: passed"
    assert shown.requests() == (leaky.as_uri(),)
    assert len(shown.complaints()) >= 3


def test_charts_can_be_read_on_a_phone(shown: Browser, pages: dict[str, Path]) -> None:
    shown.open(pages["gpu-by-hand"], width=PHONE)
    heights = shown.evaluate(
        "[...document.querySelectorAll('.chart text')].map(e => e.getBoundingClientRect().height)"
    )
    assert len(heights) > 20
    assert min(heights) >= 11
    overlaps = shown.evaluate(
        """[...document.querySelectorAll('.chart')].flatMap(chart => {
             const texts = [...chart.querySelectorAll('text')];
             const boxes = texts.map(e => [e.textContent, e.getBoundingClientRect()]);
             return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
               p.left < q.right && q.left < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom
             ).map(([b]) => `${a} / ${b}`));
           })"""
    )
    assert overlaps == []


def test_on_paper_it_is_light_and_nothing_is_cut_off(shown: Browser, pages: dict[str, Path]) -> None:
    for name in SAMPLES:
        shown.open(pages[name], width=PAPER, scheme="dark", media="print")
        assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert shown.evaluate("document.documentElement.scrollWidth") <= PAPER, name
        assert (
            shown.evaluate(
                "[...document.querySelectorAll('pre, .scroll')]"
                ".filter(e => e.clientHeight < e.scrollHeight - 1 || e.scrollWidth > e.clientWidth + 1)"
                ".map(e => e.outerHTML.slice(0, 200))"
            )
            == []
        ), name
        assert shown.print_pdf().startswith(b"%PDF-")


def test_a_smoke_test_writes_its_views(shown: Browser, built: Built, store: Store, tmp_path: Path) -> None:
    reference = built(ROOT / "recipes" / "cpu-mpi.yaml")
    program = Path(sys.executable).parent / "imagebuilder"
    command: list[str | Path] = [program, "smoke-test", reference, "--check", "names", "--store", store.root]
    files = {kind: tmp_path / "made" / f"report.{kind}" for kind in ("json", "html", "xml")}
    options: list[str | Path] = ["--report", files["json"], "--html", files["html"], "--junit", files["xml"]]
    result = process.run([*command, *options], timeout=300, check=False)
    assert result.code == 1, f"one check alone is no proof\n{result.stdout}{result.stderr}"
    found = json.loads(files["json"].read_text())
    names = [case.attrib["name"] for case in ET.parse(files["xml"]).getroot().iter("testcase")]
    assert names == [*(check["name"] for check in found["checks"]), "verdict"]
    shown.open(files["html"], width=PHONE)
    assert "Not a proof: required but not run:" in shown.evaluate("document.body.innerText")
    assert shown.picture().colours > 100
