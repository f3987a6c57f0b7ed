"""A build and push on a machine that has nothing, beside BuildKit's cache in a registry.

    python -m bench.cache recipes/cuda12-torch.yaml --seed ~/.cache/imagebuilder --out bench/cache.md

For each kind of work, each side first builds and pushes the unchanged recipe and fills its cache. Then it
forgets all that it has (an empty store; a new engine, into which the Debian base is loaded beforehand), and
builds and pushes the changed recipe. The registry is on this machine and has a server for each side.

    plain         docker buildx build --cache-from, --cache-to type=registry,mode=max, and docker push
    rendered      the same with our rendered Dockerfile
    imagebuilder  build --cache --cache-push, push
    unsearched    the same, and CI has signed what its search for secrets found

`--seed` is a store with the packages: what is not measured comes from there. Samples are kept in a file
beside the page, so some sides and kinds of work can be measured again alone (`--side`, `--work`).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.sidebyside.engine import HOUR
from bench.sidebyside.sides import PROGRAM, DockerSide, Embedded, Plain, Rendered, Side, stored
from bench.sidebyside.variants import Bases, Variant, prepare, scheme
from imagebuilder.core import process
from imagebuilder.core.progress import LineProgress, human
from imagebuilder.store import Store

# What a work changes, and its goal, as docs and the table name it.
WORKS = {
    "nothing": "nothing changed",
    "other-nccl": "another NCCL",
    "package-added": "one more package",
    "security-update": "another Debian security update",
}
_NOTHING = next(iter(WORKS))
# A line of the registry's access log: the answer's status and bytes.
_GIVEN = re.compile(r'"GET /v2/[^"]*" 20[06] (\d+)')
_CAPTION = """\
# A machine that has nothing, and a cache in a registry

Made by `python -m bench.cache recipes/{recipe}.yaml --seed STORE --out bench/cache.md`, on {cores}
processors. Each side filled its cache with the unchanged recipe before. Then it forgot everything, and
built and pushed the changed recipe. The registry is on the same machine. The Debian update is another
version of OpenSSL. Each side may be from a run of its own, with more or less other work beside it.

- **plain**: a hand-written Dockerfile, `docker buildx build --cache-from/--cache-to
  type=registry,mode=max`, and `docker push`. **rendered**: the same with our rendered Dockerfile. Each
  time the engine is new and empty. The Debian base is loaded into it beforehand, which is not measured;
  with a Debian update, it is the new base.
- **imagebuilder**: `build --cache --cache-push`, and `push`, from an empty store. **unsearched**: the
  same, where CI has signed what its search for secrets found, so a push need not read the layers.
- *from the registry*: the bytes that it sent, by its access log. *from elsewhere*: what this machine's
  network interface received meanwhile from indexes and archives, with their lists of files, and for
  whatever else the machine did. *pushed*: new blobs of image and cache. *changed*: the packages of the
  lock that the unchanged one does not have.

"""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One kind of work by one side.

    Attributes:
        work, side: which.
        seconds: of build and push.
        given: bytes that the registry sent.
        received: bytes that this machine received from others.
        pushed: bytes by which the registry grew.
        changed: bytes of packages that the unchanged recipe does not have.

    """

    work: str
    side: str
    seconds: float
    given: int
    received: int
    pushed: int
    changed: int


class CachedDocker:
    """What a side with a Dockerfile does differently where its cache is in the registry."""

    @staticmethod
    def options(side: DockerSide) -> tuple[str, ...]:
        place = f"type=registry,ref={side.registry.host}/cache"
        return ("--cache-from", place, "--cache-to", f"{place},mode=max")


class CachedPlain(Plain):
    """pip, with BuildKit's cache in the registry."""

    def contexts(self, variant: Variant) -> tuple[str, ...]:
        return (*super().contexts(variant), *CachedDocker.options(self))


class CachedRendered(Rendered):
    """The rendered Dockerfile, with BuildKit's cache in the registry."""

    def contexts(self, variant: Variant) -> tuple[str, ...]:
        return (*super().contexts(variant), *CachedDocker.options(self))


class CachedEmbedded(Embedded):
    """Our engine, with a cache in the registry."""

    fills = ("--cache-push",)
    key: Path | None = None

    def build(self, variant: Variant, *, rebuild: bool = False) -> None:
        del rebuild
        self._answer("build", variant.recipe, *self._cache(), *self.fills)

    def push(self, variant: Variant) -> None:
        signing = ("--sign-key", self.key, *self.fills) if self.key else ()
        words = ("--untested", "--no-attach", "--move", *self._cache(), *signing)
        self._answer("push", variant.recipe, self.name_of(variant), *words)

    def empty(self) -> None:
        """Forget the store; the registry stays."""
        shutil.rmtree(self.store)

    def _cache(self) -> tuple[str | Path, ...]:
        site = self.folder / "site.yaml"
        signers = f"\ncache_signers: [{self.key.with_suffix('.pub')}]" if self.key else ""
        site.write_text(f"cache: {self.registry.host}/cache{signers}\n")
        return ("--site", site)

    def _answer(self, *words: str | Path) -> None:
        command = [PROGRAM, *words, "--store", self.store, "--json", "--progress", "lines"]
        json.loads(process.run(command, timeout=HOUR).stdout)


class Unsearched(CachedEmbedded):
    """The same, with signed verdicts on the layers."""

    name = "unsearched"


SIDES: dict[str, type[Side]] = {
    "plain": CachedPlain,
    "rendered": CachedRendered,
    "imagebuilder": CachedEmbedded,
    "unsearched": Unsearched,
}


def measure(
    name: str, variants: dict[str, Variant], bases: Bases, seed: Path, folder: Path
) -> Iterator[Sample]:
    """Measure all kinds of work by one side."""
    side = SIDES[name](folder / name, bases)
    try:
        side.reset()
        if isinstance(side, CachedEmbedded):
            if name == "unsearched":
                side.key = _key(folder)
            _fill(side, variants[_NOTHING], seed)
        else:
            side.build(variants[_NOTHING])
            side.push(variants[_NOTHING])
        for work, variant in variants.items():
            if isinstance(side, CachedEmbedded):
                side.empty()
            elif isinstance(side, DockerSide):
                side.engine.renew()
                side.engine.docker("load", "--input", variant.base.archive)
            before, started = _counters(side), time.monotonic()
            side.build(variant)
            side.push(variant)
            seconds = time.monotonic() - started
            sent, received, pushed = (now - then for now, then in zip(_counters(side), before, strict=True))
            yield Sample(
                work=work,
                side=name,
                seconds=seconds,
                given=sent,
                received=received,
                pushed=pushed,
                changed=_changed(variants[_NOTHING], variant),
            )
    finally:
        side.stop()


def _counters(side: Side) -> tuple[int, int, int]:
    """Count what the side's registry has sent, what this machine has received, and what the registry has."""
    log = (side.registry.folder / "log").read_text(errors="replace")
    return given(log), _received(), stored(side)


def given(log: str) -> int:
    """Count the bytes of answers to GET in the access log of a registry."""
    return sum(int(size) for size in _GIVEN.findall(log))


def _received() -> int:
    """Count what the interface of the default route has received (proc(5): net/route, net/dev)."""
    routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    interface = next(route[0] for route in routes if route[1] == "00000000")
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(
        int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith(f"{interface}:")
    )


def _changed(main: Variant, variant: Variant) -> int:
    known = {package.sha256 for package in main.lock.files}
    return sum(package.size for package in variant.lock.files if package.sha256 not in known)


def _fill(side: CachedEmbedded, main: Variant, seed: Path) -> None:
    """Do the first build and push from a store that has everything, which no clock has to wait for."""
    empty = side.store
    empty.rename(side.folder / "kept") if empty.exists() else None
    empty.symlink_to(seed)
    try:
        side.build(main)
        side.push(main)
    finally:
        empty.unlink()
    empty.mkdir()


def _key(folder: Path) -> Path:
    place = folder / "ci"
    for words in (
        ("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{place}.sec1"),
        ("pkcs8", "-topk8", "-nocrypt", "-in", f"{place}.sec1", "-out", f"{place}.key"),
        ("ec", "-in", f"{place}.sec1", "-pubout", "-out", f"{place}.pub"),
    ):
        process.run(["openssl", *words], timeout=60)
    return place.with_suffix(".key")


def table(samples: Sequence[Sample]) -> str:
    """Return the samples as a table in Markdown."""
    names = ("work", "side", "build + push", "from the registry", "from elsewhere", "pushed", "changed")
    rows = [f"| {' | '.join(names)} |", "|---|---|---:|---:|---:|---:|---:|"]
    works, sides = list(WORKS), list(SIDES)
    for item in sorted(samples, key=lambda sample: (works.index(sample.work), sides.index(sample.side))):
        sizes = (item.given, item.received, item.pushed, item.changed)
        cells = (WORKS[item.work], item.side, f"{item.seconds:.1f} s", *map(human, sizes))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def prepared(
    recipe: Path, works: Sequence[str], seed: Path, folder: Path
) -> tuple[dict[str, Variant], Bases]:
    """Lock and build the unchanged recipe in the seed, and lock the changed ones."""
    store = Store(seed)
    bases = Bases(Store(folder / "bases"), store, folder, LineProgress(sys.stderr))
    plan_of = scheme(recipe.stem)
    # The build in the seed writes the layers into the lock, and the changed locks keep those that stay.
    unchanged = prepare(recipe, (), plan_of, folder / "recipes", bases)
    process.run([PROGRAM, "build", unchanged.recipe, "--store", store.root], timeout=HOUR)
    variants = {_NOTHING: unchanged}
    for work in works:
        if work != _NOTHING:
            variants[work] = prepare(recipe, (work,), plan_of, folder / "recipes", bases)
    return variants, bases


def caption(recipe: Path) -> str:
    """Return what the page says above its table."""
    return _CAPTION.format(cores=process.cores(), recipe=recipe.stem)


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="bench.cache", description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--seed", type=Path, required=True)
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    kept = asked.out.with_suffix(".json") if asked.out else None
    known = json.loads(kept.read_text()) if kept and kept.exists() else []
    samples = {(row["work"], row["side"]): Sample(**row) for row in known}
    with tempfile.TemporaryDirectory(prefix="imagebuilder-bench-") as made:
        variants, bases = prepared(asked.recipe, asked.work, asked.seed, Path(made))
        for name in asked.side:
            for sample in measure(name, variants, bases, asked.seed, Path(made)):
                sys.stderr.write(f"{sample}\n")
                samples[sample.work, sample.side] = sample
                if kept:
                    kept.write_text(json.dumps([*map(asdict, samples.values())], indent=1) + "\n")
                    page = caption(asked.recipe) + table(tuple(samples.values()))
                    asked.out.write_text(page, encoding="utf-8")
    sys.stdout.write(table(tuple(samples.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
