"""What the program set out to reach, and whether the figures of a run say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.sidebyside import limits, samples
from bench.sidebyside.samples import Run

_OURS, _PLAIN = "imagebuilder", "plain"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One goal held against a run.

    Attributes:
        goal: in words, with its number.
        measured: the same of this run, and what it is made of.
        met: whether that is as good.
        bound: what stands in the way; empty where it is met.

    """

    goal: str
    measured: str
    met: bool
    bound: str = ""


def reached(run: Run) -> tuple[Goal, ...]:
    """Evaluate the goals that a run has figures for."""
    return tuple(
        goal for each in (_cold, _warm, _pin, _nothing, _matrix, _packed, _import) for goal in each(run)
    )


def _cold(run: Run) -> Iterator[Goal]:
    ours, limit = run.medians("cold", _OURS), run.medians(limits.DOWNLOAD, "")
    if ours and limit:
        written = f"; {ours[samples.WRITTEN] / 1e9:.1f} GB are written" if samples.WRITTEN in ours else ""
        yield _at_most(
            "cold build + push at most 1.3 times downloading the same bytes alone",
            samples.total(ours) / limit[samples.SECONDS],
            1.3,
            f"{samples.total(ours):.1f} s ({ours[samples.BUILD]:.1f} + {ours[samples.PUSH]:.1f})"
            f" / {limit[samples.SECONDS]:.1f} s",
            f"the build alone is {ours[samples.BUILD] / limit[samples.SECONDS]:.2f} times the download; the"
            " push reads every layer for secrets, sends it, and the registry server hashes and writes it on"
            f" the same cores and disk{written}",
        )


def _warm(run: Run) -> Iterator[Goal]:
    # The plain side keeps no downloads: its warm build is its cold one.
    ours, plain = run.medians("warm", _OURS), run.medians("cold", _PLAIN)
    first = run.medians("warm-first", _OURS)
    copy, hashing = run.medians(limits.COPY, ""), run.medians(limits.HASH, "")
    inflating = run.medians(limits.INFLATE, "")
    if ours and copy and hashing:
        floor = copy[samples.SECONDS] + hashing[samples.SECONDS]
        inflate = f", inflating them alone {inflating[samples.SECONDS]:.1f} s" if inflating else ""
        yield _at_most(
            "warm build at most 2 times copying and hashing the wheels, once their layers are known",
            ours[samples.BUILD] / floor,
            2.0,
            f"{ours[samples.BUILD]:.1f} s / ({copy[samples.SECONDS]:.1f} + {hashing[samples.SECONDS]:.1f} s)",
            f"modules are compiled to bytecode, too, on all cores{inflate}",
        )
    if first and plain:
        yield _at_least(
            "warm build the first time at least 15 times faster than the plain Dockerfile",
            plain[samples.BUILD] / first[samples.BUILD],
            15.0,
            f"{plain[samples.BUILD]:.1f} s / {first[samples.BUILD]:.1f} s",
            "splicing reads, inflates and hashes every byte; the plain side's time is mostly its download",
        )


def _pin(run: Run) -> Iterator[Goal]:
    ours, plain = run.medians("other-nccl", _OURS), run.medians("other-nccl", _PLAIN)
    if ours and plain:
        yield _at_least(
            "one pin changed: build + push at least 50 times faster",
            samples.total(plain) / samples.total(ours),
            50.0,
            f"{samples.total(plain):.1f} s / {samples.total(ours):.1f} s",
            "the smaller the rest of the image, the more of it is this wheel, which both fetch and push",
        )
    changed = run.facts.get("changed: other-nccl")
    if ours and changed:
        yield _at_most(
            "one pin changed: bytes pushed at most 1.02 times the changed wheels",
            ours[samples.PUSHED] / changed,
            1.02,
            f"{ours[samples.PUSHED] / 1e6:,.1f} MB / {changed / 1e6:,.1f} MB",
            "settings and config travel too",
        )


def _nothing(run: Run) -> Iterator[Goal]:
    ours = run.medians("nothing-changed", _OURS)
    if ours:
        yield _at_most(
            "nothing changed: a build in less than 0.5 s",
            ours[samples.BUILD],
            0.5,
            f"{ours[samples.BUILD]:.2f} s, with starting the program",
            "most of it is starting Python and reading the recipe, the catalog and the lock",
        )


def _matrix(run: Run) -> Iterator[Goal]:
    ours = run.medians("matrix", _OURS)
    if not ours:
        return
    distinct = run.facts.get("distinct")
    if distinct:
        yield _at_most(
            "six recipes: bytes stored at most 1.1 times the distinct components",
            ours[samples.STORED] / distinct,
            1.1,
            f"{ours[samples.STORED] / 1e6:,.1f} MB / {distinct / 1e6:,.1f} MB",
            "small wheels share layers, and each state of a shared layer is stored",
        )
    cold = run.medians("cold", _OURS)
    if cold:
        largest = run.facts.get("largest")
        share = f", {distinct / largest:.2f} times one recipe's bytes" if distinct and largest else ""
        yield _at_most(
            "six recipes cold: at most 1.5 times the slowest recipe",
            samples.total(ours) / samples.total(cold),
            1.5,
            f"{samples.total(ours):.1f} s / {samples.total(cold):.1f} s",
            f"they differ in large wheels, each of which has to be fetched, spliced and pushed{share}",
        )


def _packed(run: Run) -> Iterator[Goal]:
    ours, plain = run.medians("cold", _OURS), run.medians("cold", _PLAIN)
    if ours and plain:
        yield _at_most(
            "packed size at most the plain image's",
            ours[samples.PACKED] / plain[samples.PACKED],
            1.0,
            f"{ours[samples.PACKED] / 1e6:,.1f} MB / {plain[samples.PACKED] / 1e6:,.1f} MB",
            "wheels keep the compression of whoever made them",
        )


def _import(run: Run) -> Iterator[Goal]:
    ours, plain = run.medians("consumer", _OURS), run.medians("consumer", _PLAIN)
    if ours and plain:
        yield _at_most(
            "first import at most the plain image's",
            ours[samples.IMPORT] / plain[samples.IMPORT],
            1.0,
            f"{ours[samples.IMPORT]:.1f} s / {plain[samples.IMPORT]:.1f} s",
            "reading the files from disk; and compiling modules that have no bytecode",
        )


def _at_most(goal: str, value: float, most: float, parts: str, bound: str) -> Goal:
    met = value <= most
    return Goal(goal=goal, measured=f"{value:.3g}: {parts}", met=met, bound="" if met else bound)


def _at_least(goal: str, value: float, least: float, parts: str, bound: str) -> Goal:
    met = value >= least
    return Goal(goal=goal, measured=f"{value:.3g}: {parts}", met=met, bound="" if met else bound)
