"""Verbs on the store: cache ls, cache verify, cache prune."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli.base import (
    Json,
    ProgressKind,
    StoreFolder,
    cache_app,
    check_progress,
    open_store,
    out,
    out_json,
)
from imagebuilder.errors import GateError, InputError

if TYPE_CHECKING:
    from imagebuilder.store import ImageRecord, Store


@cache_app.command("ls")
def cache_ls(store: StoreFolder = None, as_json: Json = False) -> None:
    """List the images in the store, and its size."""
    from imagebuilder.core.progress import human
    from imagebuilder.store import cache

    where = open_store(store)
    usage = cache.usage(where)
    if as_json:
        out_json({**dataclasses.asdict(usage), "folder": str(where.root)})
        return
    for image in usage.images:
        out(
            f"{image.key:<20} {image.manifest[:19]}  {human(image.size):>8}  {image.tag}  "
            f"({_proof(image, where)})"
        )
    out(
        f"{human(usage.blob_bytes)} in {usage.blobs} blobs, {human(usage.download_bytes)} in "
        f"{usage.downloads} downloads, in {where.root}"
    )


def _proof(image: ImageRecord, store: Store) -> str:
    """Say in a word or two whether a push accepts the image as tested."""
    from imagebuilder.publish import proof

    try:
        proof.require(image, store)
    except GateError:
        try:
            passed = proof.in_store(image, store).proves_image
        except FileNotFoundError:
            return "not proven"
        except (OSError, ValueError):
            passed = False
        return "proven, but not as its recipe demands" if passed else "failed its test"
    return "proven"


@cache_app.command("verify")
def cache_verify(
    fix: Annotated[
        bool, typer.Option("--fix", help="Remove damaged files; the next build replaces them.")
    ] = False,
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Check every blob and download in the store. Hashes them again and names the damaged ones."""
    from imagebuilder.core.progress import shown
    from imagebuilder.errors import StoreError
    from imagebuilder.store import cache

    check_progress(progress)
    where = open_store(store)
    with shown(progress, sys.stderr) as live:
        live.begin("verify", str(where.root), "reading", cache.usage(where).total)
        damages = cache.verify(where, lambda count: live.advance("verify", count), remove=fix)
        live.end("verify", str(where.root), "failed" if damages else "done")
    if as_json:
        rows = [{"path": str(damage.path), "reason": damage.reason} for damage in damages]
        out_json({"folder": str(where.root), "damages": rows, "removed": fix})
    for damage in () if as_json else damages:
        out(f"{damage.path}: {damage.reason}" + (", removed" if fix else ""))
    if damages and not fix:
        raise StoreError(
            f"{len(damages)} damaged files",
            where=str(where.root),
            hint="run: imagebuilder cache verify --fix",
        )
    if not as_json:
        out("nothing is damaged" if not damages else "build again to replace what was removed")


@cache_app.command("prune")
def cache_prune(
    keep: Annotated[
        str, typer.Option("--keep", metavar="SIZE", help="Size that the store may keep, e.g. 20GB.")
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Remove everything: images, reports, layers, downloads.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; print what would be removed.")
    ] = False,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Remove the least recently used files. Stops when the store is no larger than SIZE."""
    from imagebuilder.core.progress import human
    from imagebuilder.store import cache

    if bool(keep) == everything:
        raise InputError(
            "needs --keep SIZE or --all" if not keep else "takes --keep or --all, not both",
            where="cache prune",
            hint="give --keep SIZE, e.g. --keep 20GB, or --all",
        )
    pruned = cache.prune(open_store(store), 0 if everything else _size(keep), dry_run=dry_run)
    if as_json:
        out_json({**dataclasses.asdict(pruned), "dry_run": dry_run})
        return
    out(f"{'would remove' if dry_run else 'removed'} {pruned.files} files, {human(pruned.bytes)}")


def _size(text: str) -> int:
    """Read a number of bytes as people write it: `20GB`, `500 MB`, `0`. Decimal units, as disks are sold."""
    number, unit = text.strip().upper().removesuffix("B"), 1
    for letter, factor in (("K", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12)):
        if number.endswith(letter):
            number, unit = number[:-1], factor
    try:
        size = float(number)
    except ValueError:
        size = -1.0
    if not 0 <= size < 10**9:
        raise InputError(f"`{text}` is not a size", where="--keep", hint="write a size as 20GB or 500MB")
    return int(size * unit)
