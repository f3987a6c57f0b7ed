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

from imagebuilder.core.progress import no_advance
from imagebuilder.errors import StoreError
from imagebuilder.fetch import locked
from imagebuilder.lock import file as lockfile
from imagebuilder.store import Store, cache
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
between the start of the process and the time that a whole build takes; each build continues with what the one
before left. After each row one more build must succeed with the digest of an undisturbed build,
`cache verify` must find no damage, and no temporary file may be left.
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
            *(
                damaged(start, folder / "damaged", kind, how, digest)
                for kind in ("downloads", "blobs", "layers")
                for how in ("truncated", "flipped", "swapped")
            ),
            read_only(folder / "wheels", folder / "read-only", digest),
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
        how=f"{done.hit} builds killed, {done.kills - done.hit} ended before",
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
    result = in_a_namespace(script)
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


def damaged(start: Start, root: Path, kind: str, how: str, digest: object) -> Row:
    """Damage one file of a whole store; it has to be found, and be whole again after at most a `verify`."""
    began = time.monotonic()
    store = Store(root)
    storefaults.forget(store, "blobs", "layers", "downloads", "images")
    storefaults.built(start, store)
    victim, other = sorted(
        (path for path in (root / kind).rglob("*") if path.is_file()), key=lambda path: -path.stat().st_size
    )[:2]
    storefaults.damage(victim, how, other)
    # Layers that are there need no downloads: those are read when a layer is made.
    if kind == "downloads":
        storefaults.forget(store, "blobs", "layers")
    named = bool(storefaults.damages(store))
    wrong = [] if storefaults.built(start, store)["manifest"] == digest else ["another digest"]
    if mended := not storefaults.damages(store):
        outcome = "the next build makes it good"
    else:
        cache.verify(store, no_advance, remove=True)
        outcome = "`cache verify --fix` and the next build make it good"
    # Of a record there is nothing to verify: it is looked at whenever it is used.
    if kind != "layers" and not named:
        wrong.append("not named by cache verify")
    return Row(
        what=f"{how}, one of {kind}",
        how="named by `cache verify`" if named else "read as absent",
        outcome=f"{outcome}; same digest",
        seconds=time.monotonic() - began,
        wrong=(*wrong, *unsound(start, store, digest), *(() if mended or named else ("not found",))),
    )


def read_only(wheels: Path, target: Path, digest: object) -> Row:
    """Use a store that cannot be written: with all that a build needs, and without a layer."""
    target.mkdir()
    build = f"{sys.executable} -m tests.support.wheelimage {wheels} {target}/store"
    script = f"""
        mount --bind {target} {target}
        {build}; echo
        mount -o remount,bind,ro {target}
        {build}; echo
        mount -o remount,bind,rw {target}; rm -r {target}/store/layers; mount -o remount,bind,ro {target}
        {build}; echo $?
    """
    began = time.monotonic()
    result = in_a_namespace(script)
    first, again, code = result.stdout.splitlines()
    wrong = [f"with everything there: {line}" for line in (first, again) if str(digest) not in line]
    if code != str(StoreError.exit_code) or "Read-only file system" not in result.stderr:
        wrong.append(f"without a layer: exit code {code}, {result.stderr}")
    return Row(
        what="read-only store, wheels",
        how="with every layer, then with none",
        outcome=f"same digest; then exit code {code}, which says that the file system is read-only",
        seconds=time.monotonic() - began,
        wrong=tuple(wrong),
    )


def in_a_namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that may mount: nothing of that is left."""
    words = ["unshare", "--mount", "--map-root-user", "sh", "-c", script]
    return subprocess.run(words, cwd=ROOT, text=True, capture_output=True, check=True)


def os_kills(folder: Path, downloads: Path | None, count: int) -> Row:
    recipe = folder / "fire.yaml"
    recipe.write_text(_OS_RECIPE, encoding="utf-8")
    program = Path(sys.executable).parent / "imagebuilder"
    store = Store(folder / "os")
    subprocess.run([program, "lock", recipe], check=True, capture_output=True)
    packages = lockfile.read(recipe.with_suffix(".lock")).sections[0]
    if downloads:
        locked.copy((*packages.debs, *packages.wheels), Store(downloads), store)

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
        how=f"{done.hit} builds killed, {done.kills - done.hit} ended before",
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
