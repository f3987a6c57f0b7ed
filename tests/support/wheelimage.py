"""An image of wheels alone, built by the real engine in a second: for what is done to a store many times.

    python -m tests.support.wheelimage WHEELS STORE

builds it in a process of its own, which can be killed, and prints what the build said as JSON.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from imagebuilder.core.progress import LineProgress
from imagebuilder.engines import embedded
from imagebuilder.engines.embedded import BuildContext, Built
from imagebuilder.errors import ImagebuilderError
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Lock
from imagebuilder.plan import Config, Entry, FilesLayer, Layer, Plan, WheelLayer
from imagebuilder.store import Store
from tests.support.wheels import dice, locked, make_wheel
from tests.unit import samples

ROOT = Path(__file__).resolve().parents[2]


def make_wheels(folder: Path, count: int, size: int) -> tuple[Path, ...]:
    """Write wheels of about `size` bytes each that do not compress, the same in every call."""
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(
        make_wheel(folder, {f"part{number}/data.bin": dice(number).randbytes(size)}, name=f"part{number}")
        for number in range(count)
    )


def plan(wheels: Sequence[Path]) -> tuple[Plan, Lock]:
    """Lay out an image with a layer for each wheel, and one of settings."""
    packages = tuple(locked(path) for path in sorted(wheels))
    lock = samples.lock(wheels=packages, debs=(samples.deb("libc6", "2.41-12"),))
    layers: tuple[Layer, ...] = tuple(
        WheelLayer(component="python", wheels=(wheel,), python=lock.python) for wheel in packages
    )
    settings = FilesLayer(name="settings", entries=(Entry(path="/etc/sample", kind="file", mode=0o644),))
    config = Config(env=(), labels=(), entrypoint=(), cmd=(), user="0:0", workdir="/", ports=())
    whole = Plan(
        name="wheels",
        architecture="amd64",
        layers=(*layers, settings),
        config=config,
        tags=("latest",),
        lock_checksum=lock.checksum,
    )
    return whole, lock


def build(folder: Path, store: Store, log: IO[str] | None = None) -> Built:
    """Build the image of a folder's wheels; `log` gets the lines of progress."""
    return build_plan(*plan(tuple(folder.glob("*.whl"))), folder, store, log)


def build_plan(image: Plan, lock: Lock, folder: Path, store: Store, log: IO[str] | None = None) -> Built:
    """Build an image with wheels from a folder."""
    site = Site(no_index=True, wheel_folders=(str(folder),))
    progress = LineProgress(log or io.StringIO())
    return embedded.build(image, BuildContext(lock=lock, store=store, site=site, progress=progress))


def start(folder: Path, store: Store, *before: str) -> subprocess.Popen[str]:
    """Build in another process; `before` is a command that starts it, such as `nice`."""
    return subprocess.Popen(
        [*before, sys.executable, "-m", "tests.support.wheelimage", str(folder), str(store.root)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def main() -> int:
    folder, root = sys.argv[1:]
    try:
        built = build(Path(folder), Store(Path(root)))
    except ImagebuilderError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    said = {"manifest": built.image.manifest, "made": built.made, "reused": built.reused}
    sys.stdout.write(json.dumps({**said, "fetched": built.fetched, "seconds": built.seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
