"""One image made by a plain Dockerfile and by imagebuilder, one after the other in one run.

    python bench/side_by_side.py recipes/cuda12-torch.yaml --registry 127.0.0.1:5000 --out bench/results.md

Both sides start from the same Debian base, which is there and configured; install the same locked
versions, with no wheel cached; and push to the same registry server, which holds nothing yet. The plain
side is what people write by hand:

    FROM base
    COPY requirements.txt .
    RUN pip install --no-cache-dir -r requirements.txt

Then one pin changes (NCCL, forced by an override), which for the plain side means the same work once more.
Ratios are what counts: the seconds of one machine mean little on another.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagebuilder import lock as locks
from imagebuilder import registry
from imagebuilder.engines import embedded
from imagebuilder.engines.load import load
from imagebuilder.lock import Lock
from imagebuilder.plan import FilesLayer, OsLayer, OsPart, Plan, WheelLayer
from imagebuilder.process import run
from imagebuilder.progress import LineProgress, human
from imagebuilder.site import Site, detect
from imagebuilder.smoke.engine import connect
from imagebuilder.store import Store
from imagebuilder.workflow import read_plan, update_lock

HOUR = 3600.0
# With nothing changed a plain build does nothing either, and it keeps no downloads to start from.
_COMPARED = ("all new", "another NCCL")
_HOW = (
    "Made by `make bench` (bench/side_by_side.py says what each side does). Both sides start from the same",
    "Debian base, which is in place before a clock starts, and fetch all wheels anew; both push to the same",
    "empty registry server on this host. The last column compares with the plain Dockerfile, whose `pip",
    "install` is one step: it fetches and writes everything again when one pin changes.",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of work on one side: seconds of both steps, and the bytes that went to the registry."""

    side: str
    work: str
    build: float
    push: float
    pushed: int

    @property
    def total(self) -> float:
        return self.build + self.push


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all measurements share."""

    root: Path
    store: Store
    site: Site
    registry: str
    stream: LineProgress

    def build(self, plan: Plan, lock: Lock) -> embedded.Built:
        shop = embedded.Workshop(lock=lock, store=self.store, site=self.site, progress=self.stream)
        return embedded.build(plan, shop)

    def ours(self, work: str, plan: Plan, lock: Lock, repository: str) -> Row:
        built = self.build(plan, lock)
        pushed = registry.push(
            built.image, self.store, f"{self.registry}/{repository}", (plan.tag,), move=True
        )
        return Row(
            side="imagebuilder",
            work=work,
            build=built.seconds,
            push=pushed.seconds,
            pushed=pushed.pushed_bytes,
        )


def main() -> None:
    arguments = _arguments()
    lock, plan = read_plan(arguments.recipe)
    root = Path(tempfile.mkdtemp(prefix="bench-", dir=arguments.work))
    try:
        bench = Bench(
            root=root,
            store=Store(root / "store"),
            site=detect(),
            registry=arguments.registry,
            stream=LineProgress(open("/dev/stderr", "w")),  # noqa: SIM115, PTH123  (lives as long as the run)
        )
        rows = []
        for row in _measure(bench, plan, lock, arguments.recipe):
            print(row, flush=True)
            rows.append(row)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    text = _table(plan, rows)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def _measure(bench: Bench, plan: Plan, lock: Lock, recipe: Path) -> Iterator[Row]:
    unique = uuid.uuid4().hex[:8]
    # The base of both sides. Its layers are in the store and in the engine before any clock starts.
    kept = tuple(layer for layer in plan.layers if isinstance(layer, (OsLayer, OsPart, FilesLayer)))
    base = bench.build(dataclasses.replace(plan, name=f"bench-{plan.name}", layers=kept), lock).image
    with connect("docker") as engine:
        reference = load(base, bench.store, engine).reference
    yield bench.ours("all new", plan, lock, f"ours-{unique}")
    yield bench.ours("nothing changed", plan, lock, f"ours-{unique}")
    changed_lock, changed = _other_nccl(recipe, bench.root)
    yield bench.ours("another NCCL", changed, changed_lock, f"ours-{unique}")
    _forget_wheel_layers(bench, plan)
    yield bench.ours("made anew from downloads", plan, lock, f"ours-{unique}")
    yield _plain(bench, plan, lock, f"plain-{unique}", reference)


def _forget_wheel_layers(bench: Bench, plan: Plan) -> None:
    for layer in plan.layers:
        if isinstance(layer, WheelLayer):
            record = bench.store.layer(layer.key)
            if record is not None:
                bench.store.blob(record.digest).unlink()


def _plain(bench: Bench, plan: Plan, lock: Lock, repository: str, base: str) -> Row:
    """Build and push the way a hand-written Dockerfile does."""
    folder = bench.root / "plain"
    folder.mkdir()
    (folder / "requirements.txt").write_text("".join(f"{w.name}=={w.version}\n" for w in lock.wheels))
    (folder / "Dockerfile").write_text(
        f"FROM {base}\n"
        "USER 0:0\n"
        "COPY requirements.txt /tmp/requirements.txt\n"
        "RUN --mount=type=secret,id=ca,target=/run/secrets/ca.crt \\\n"
        "    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \\\n"
        "    python3 -m ensurepip && python3 -m pip install --no-cache-dir -r /tmp/requirements.txt\n"
    )
    name = f"{bench.registry}/{repository}:{plan.tag}"
    ca = ["--secret", f"id=ca,src={bench.site.ca_bundle}"] if bench.site.ca_bundle else []
    started = time.monotonic()
    # Without provenance, which would make an index of it: one manifest, like the other side's.
    run(
        [
            "docker",
            "buildx",
            "build",
            "--no-cache",
            "--provenance=false",
            "--load",
            "--tag",
            name,
            *ca,
            folder,
        ],
        timeout=HOUR,
    )
    built = time.monotonic()
    run(["docker", "push", name], timeout=HOUR)
    pushed = time.monotonic()
    client = registry.Client(registry.parse(name), registry.Options())
    manifest = json.loads(client.get_manifest(plan.tag).data)
    run(["docker", "image", "rm", name], timeout=HOUR, check=False)
    return Row(
        side="plain Dockerfile",
        work="all new",
        build=built - started,
        push=pushed - built,
        pushed=sum(layer["size"] for layer in manifest["layers"]),
    )


def _other_nccl(recipe: Path, root: Path) -> tuple[Lock, Plan]:
    """Change only the NCCL pin, as a user would: in the recipe, with an override."""
    path = root / recipe.name
    text = re.sub(r'nccl: "[^"]+"', 'nccl: "2.28.9"', recipe.read_text())
    path.write_text(f"{text}\noverride: [nccl]\n")
    shutil.copy(locks.path_for(recipe), locks.path_for(path))
    update_lock(path, None, None, Store.default())
    return read_plan(path)


def _table(plan: Plan, rows: list[Row]) -> str:
    plain = next(row for row in rows if row.side == "plain Dockerfile")
    lines = [
        f"# {plan.name}: side by side, one run",
        "",
        *_HOW,
        "",
        "| side | work | build | push | pushed | build + push, plain / this |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.side} | {row.work} | {row.build:.1f} s | {row.push:.1f} s | {human(row.pushed)} "
        f"| {f'{plain.total / row.total:.1f}x' if row.work in _COMPARED else ''} |"
        for row in (plain, *(row for row in rows if row is not plain))
    ]
    return "\n".join(lines) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--registry", required=True, help="host:port of an empty registry on this host")
    parser.add_argument("--work", type=Path, help="folder on the disk to measure")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
