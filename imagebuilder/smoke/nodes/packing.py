"""Pack what is copied into a container before it starts: this run's keys, and the payload."""

from __future__ import annotations

import io
import tarfile
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from imagebuilder import catalog
from imagebuilder.core.tarstream import without_filler
from imagebuilder.plan.sshkeys import make_keys
from imagebuilder.smoke.nodes.cluster import FOLDER, PAYLOAD, SHARED

KEYS_FOLDER = "/run/secrets/imagebuilder"
FRAMEWORKS = "frameworks.txt"


@dataclass(frozen=True, kw_only=True)
class Item:
    """A file to copy: path, content and mode; without content, a folder."""

    path: str
    mode: int
    data: bytes | None = None


def payload() -> tuple[Item, ...]:
    """Collect the scripts that run inside, and the folders for their pids and for shared files."""
    files = [
        Item(
            path=f"{FOLDER}/{path.relative_to(PAYLOAD)}",
            mode=0o755 if path.parent.name == "bin" else 0o644,
            data=path.read_bytes(),
        )
        for path in sorted(PAYLOAD.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ]
    folders = (FOLDER, f"{FOLDER}/bin", f"{FOLDER}/pids", SHARED)
    listed = Item(path=f"{FOLDER}/{FRAMEWORKS}", mode=0o644, data=frameworks())
    return (*(Item(path=folder, mode=0o755) for folder in folders), *files, listed)


def frameworks() -> bytes:
    """List the modules of the catalog's frameworks, which payload/facts.py looks for."""
    return "".join(f"{framework.module}\n" for framework in catalog.frameworks().values()).encode()


def keys(run_id: str) -> tuple[Item, ...]:
    """Make the keys of one run. They are never in an image, and on this host only during the run."""
    with tempfile.TemporaryDirectory(prefix="imagebuilder-keys-") as folder:
        made = Path(folder) / "keys"
        make_keys(made, name=f"smoke-{run_id}", days=1)
        files = [
            Item(path=f"{KEYS_FOLDER}/{path.name}", mode=0o600, data=path.read_bytes())
            for path in sorted(made.iterdir())
        ]
    return (
        Item(path=str(Path(KEYS_FOLDER).parent), mode=0o755),
        Item(path=KEYS_FOLDER, mode=0o700),
        *files,
    )


def pack(items: Iterable[Item], owner: tuple[int, int]) -> bytes:
    """Pack into a tar for `put_archive`, all owned by one user and group."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for item in items:
            info = tarfile.TarInfo(item.path.lstrip("/"))
            info.mode, info.mtime = item.mode, int(time.time())
            info.uid, info.gid = owner
            if item.data is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = len(item.data)
                archive.addfile(info, io.BytesIO(item.data))
    return without_filler(archive, buffer.getvalue())
