"""A report as one self-contained HTML page: no scripts, fonts, pictures or requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from imagebuilder.core import webpage
from imagebuilder.core.visible import tail, visible
from imagebuilder.smoke import evidence
from imagebuilder.smoke.checks.pins import numbers
from imagebuilder.smoke.report import Report, Status, shortcoming, told
from imagebuilder.smoke.views import figures

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failure of a check, on one or more nodes; `number` is the position of the check, from 1."""

    number: int
    check: str
    nodes: tuple[str, ...]
    message: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class PinLine:
    """A pin, and the loaded version; `note` says if it was not checked, or differs between nodes."""

    name: str
    wanted: str
    found: str
    note: str
    wrong: bool


def render(report: Report) -> str:
    """Return a report as an HTML page that runs and fetches nothing, whatever an image wrote."""
    # Built as XML, so it is escaped already.
    charts = [(figure, Markup(visible(figure.svg))) for figure in figures.figures(report)]  # noqa: S704
    filters = {
        "seconds": seconds,
        "tail": tail,
        "told": told,
        "layout": figures.layout,
        "sig": _significant,
    }
    return webpage.render(
        _FOLDER / "page.html.j2",
        f"{report.recipe or report.reference}: {'passed' if report.passed else 'failed'}",
        filters,
        report=report,
        counted=_counted(report),
        shortcoming=shortcoming(report),
        failures=failures(report),
        pins=pin_lines(report),
        figures=charts,
        scaling=evidence.scaling(report),
        scaling_caption=figures.SCALING_CAPTION,
        slowest=max((check.seconds for check in report.checks), default=0.0) or 1.0,
        outside=max(report.seconds - sum(check.seconds for check in report.checks), 0.0),
    )


def failures(report: Report) -> tuple[Failure, ...]:
    """Return all findings in order; findings that differ only in the node become one."""
    nodes: dict[tuple[int, str, str, str], list[str]] = {}
    for number, check in enumerate(report.checks, 1):
        for finding in check.findings:
            key = (number, check.name, finding.message, finding.remedy)
            nodes.setdefault(key, []).extend([finding.node] if finding.node else [])
    return tuple(
        Failure(number=number, check=check, nodes=tuple(found), message=message, remedy=remedy)
        for (number, check, message, remedy), found in nodes.items()
    )


def pin_lines(report: Report) -> tuple[PinLine, ...]:
    """Pair each pin with the loaded version. A pin is wrong if its check failed and a number differs."""
    check = evidence.check(report, "pins")
    found = evidence.pins(report)
    unasked = check.evidence.get("not asked", ()) if check else ()
    reasons = dict(
        str(entry).split(": ", 1)
        for entry in (unasked if isinstance(unasked, list | tuple) else ())
        if ": " in str(entry)
    )
    failed = check is not None and check.status == "failed"
    lines = []
    for name, wanted in report.pins.items():
        row = found.get(name)
        versions = {} if row is None else row.nodes
        several = len(set(versions.values())) > 1
        note = reasons.get(name, "") if row is None else ""
        if several:
            note = ", ".join(f"{node}: {version or 'does not load'}" for node, version in versions.items())
        lines.append(
            PinLine(
                name=name,
                wanted=wanted,
                found=row.found if row else "",
                note=note,
                wrong=failed
                and row is not None
                and not all(_agree(wanted, version) for version in (row.found, *versions.values())),
            )
        )
    return tuple(lines)


def seconds(value: float) -> str:
    """Format a duration.

    >>> seconds(0.172), seconds(13.46), seconds(320)
    ('0.2 s', '13.5 s', '5 min 20 s')
    """
    return f"{value:.1f} s" if value < 100 else f"{value // 60:.0f} min {value % 60:.0f} s"


def _agree(pin: str, version: str) -> bool:
    """Compare the numbers that both versions have. The check itself, with the catalog, is stricter."""
    wanted, got = numbers(pin), numbers(version)
    count = min(len(wanted), len(got))
    return count > 0 and wanted[:count] == got[:count]


def _counted(report: Report) -> tuple[tuple[Status, int], ...]:
    kinds: tuple[Status, ...] = ("passed", "failed", "skipped")
    counts = tuple((kind, sum(check.status == kind for check in report.checks)) for kind in kinds)
    return tuple((kind, count) for kind, count in counts if count)


def _significant(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
