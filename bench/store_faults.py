"""The store under fire, at length: kills, builds at once, prunes meanwhile, full disks. For `make soak`.

Prints a table, and ends with 1 where a build gave another digest, or anything in the store was not whole.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from imagebuilder import cache, lock, supply
from imagebuilder.errors import StoreError
from imagebuilder.store import Store
from tests.support import storefaults, wheelimage
from tests.support.storefaults import Start

ROOT = Path(__file__).resolve().parent.parent
_WHEELS, _WHEEL_BYTES = 12, 8_000_000
_BUILDS = 8
# Of what the image of wheels needs for its downloads and its blobs; the last is enough for all of it.
_DISKS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.5)

_CAPTION = """\
# The store under fire

Made by `python -m bench.store_faults` (`make soak`). "wheels" is an image of 12 wheels of 8 MB from a folder,
"os" a small recipe whose layer of Debian packages has to be installed. Kills are `kill -9` at random points
between the start of the process and the time that a whole build takes; each build goes on from what the one
before left. After each row one more build has to succeed with the digest of a build that nobody disturbed,
`cache verify` has to find nothing, and no temporary file may be left.
"""
_OS_RECIPE = """\
name: fire
base: debian:trixie
python: "3.13"
pins: {}
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; `wrong` says what should not have happened."""

    what: str
    how: str
    outcome: str
    seconds: float
    wrong: tuple[str, ...] = ()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of the image of wheels")
    parser.add_argument("--os-kills", type=int, default=20, help="of a recipe with a layer of packages")
    parser.add_argument("--downloads", type=Path, help="a store that has the recipe's packages already")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="store-faults-") as name:
        folder = Path(name)
        start = storefaults.wheels(folder / "wheels")
        wheelimage.make_wheels(folder / "wheels", _WHEELS, _WHEEL_BYTES)
        digest = storefaults.built(start, Store(folder / "quiet"))["manifest"]
        rows = [
            kills("wheels", start, Store(folder / "kills"), arguments.kills, digest),
            at_once(start, Store(folder / "once"), digest),
            pruned(start, Store(folder / "pruned"), digest),
            *(full_disk(folder / "wheels", folder / f"disk-{share}", share, digest) for share in _DISKS),
            os_kills(folder, arguments.downloads, arguments.os_kills),
        ]
    table = "| what | how | outcome | s |\n| --- | --- | --- | --: |\n"
    table += "".join(f"| {row.what} | {row.how} | {row.outcome} | {row.seconds:.0f} |\n" for row in rows)
    print(f"{_CAPTION}\n{table}")
    wrong = [f"{row.what}: {text}" for row in rows for text in row.wrong]
    print("\n".join(wrong))
    if arguments.out:
        arguments.out.write_text(f"{_CAPTION}\n{table}", encoding="utf-8")
    return 1 if wrong else 0


def kills(image: str, start: Start, store: Store, count: int, digest: object) -> Row:
    def fresh() -> None:
        storefaults.forget(store, "blobs", "layers", "downloads", "images")

    done = storefaults.killed_at_random(start, store, count, seed=1, fresh=fresh)
    return Row(
        what=f"kill -9, {image}",
        how=f"{done.kills} kills, {done.hit} of a build that ran",
        outcome=f"{done.left_files} left temporary files, gone after the next start; same digest",
        seconds=done.seconds,
        wrong=unsound(start, store, digest),
    )


def at_once(start: Start, store: Store, digest: object) -> Row:
    began = time.monotonic()
    said = storefaults.at_once(start, store, _BUILDS)
    seconds = time.monotonic() - began
    fetched = sum(int(str(one["fetched"])) for one in said)
    return Row(
        what="builds at once, wheels",
        how=f"{_BUILDS} processes, one empty store",
        outcome=f"same digest, {fetched / (_WHEELS * _WHEEL_BYTES):.2f} times the bytes fetched",
        seconds=seconds,
        wrong=(
            *(f"digest {one['manifest']}" for one in said if one["manifest"] != digest),
            *unsound(start, store, digest),
        ),
    )


def pruned(start: Start, store: Store, digest: object) -> Row:
    """Prune again and again while builds run: a prune is refused then, and never takes what they use."""
    began = time.monotonic()
    refused = done = 0
    wrong: list[str] = []
    for _ in range(_BUILDS):
        child = start(store)
        while child.poll() is None:
            try:
                cache.prune(store)
                done += 1
            except StoreError:
                refused += 1
            time.sleep(0.02)
        code, said, messages = storefaults.outcome(child)
        if code or said["manifest"] != digest:
            wrong.append(messages or str(said))
    return Row(
        what="prune while building, wheels",
        how=f"{done + refused} prunes to nothing during {_BUILDS} builds",
        outcome=f"{refused} refused, {done} done before a build began; same digest",
        seconds=time.monotonic() - began,
        wrong=(*wrong, *unsound(start, store, digest)),
    )


def full_disk(wheels: Path, target: Path, share: float, digest: object) -> Row:
    """Build on a file system of its own that is too small, then with room."""
    target.mkdir()
    need = 2 * _WHEELS * _WHEEL_BYTES
    build = f"{sys.executable} -m tests.support.wheelimage {wheels} {target}/store"
    script = f"""
        mount -t tmpfs -o size={int(share * need)} none {target}
        {build} >{target.parent}/said 2>{target.parent}/messages; echo $?
        find {target}/store/work -type f | wc -l
        mount -o remount,size={2 * need} {target}
        {build}
    """
    began = time.monotonic()
    result = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    code, left, last = result.stdout.splitlines()
    wrong = [] if str(digest) in last else [f"with room again: {last} {result.stderr}"]
    expected = "0" if share > 1 else str(StoreError.exit_code)
    if (code, left) != (expected, "0"):
        wrong.append(f"exit code {code}, {left} temporary files left")
    return Row(
        what="full disk, wheels",
        how=f"room for {share:.0%} of what a build writes",
        outcome=f"exit code {code}; with room again the same digest",
        seconds=time.monotonic() - began,
        wrong=tuple(wrong),
    )


def os_kills(folder: Path, downloads: Path | None, count: int) -> Row:
    recipe = folder / "fire.yaml"
    recipe.write_text(_OS_RECIPE, encoding="utf-8")
    program = Path(sys.executable).parent / "imagebuilder"
    store = Store(folder / "os")
    subprocess.run([program, "lock", recipe], check=True, capture_output=True)
    packages = lock.read(recipe.with_suffix(".lock"))
    if downloads:
        supply.copy((*packages.debs, *packages.wheels), Store(downloads), store)

    def start(one: Store) -> subprocess.Popen[str]:
        command: list[str | Path] = [
            program,
            "build",
            recipe,
            "--json",
            "--progress",
            "lines",
            "--store",
            one.root,
        ]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def fresh() -> None:
        storefaults.forget(store, "blobs", "layers", "images")

    digest = storefaults.built(start, store)["digest"]
    fresh()
    done = storefaults.killed_at_random(start, store, count, seed=2, fresh=fresh)
    return Row(
        what="kill -9, os",
        how=f"{done.kills} kills, {done.hit} of a build that ran",
        outcome=f"{done.left_files} left temporary files, gone after the next start; same digest",
        seconds=done.seconds,
        wrong=unsound(start, store, digest),
    )


def unsound(start: Start, store: Store, digest: object) -> tuple[str, ...]:
    """Build once more, and say what is not as it should be."""
    said = storefaults.built(start, store)
    found = list(storefaults.damages(store))
    if digest not in (said.get("manifest"), said.get("digest")):
        found.append(f"the digest is {said}")
    found += [f"left over: {path.name}" for path in (store.root / "work").iterdir()]
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main())
