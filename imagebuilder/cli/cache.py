"""Verbs on the store: cache ls, cache du, cache verify, cache prune."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    Json,
    ProgressKind,
    StoreFolder,
    cache_app,
    check_progress,
    open_store,
    out,
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
        from imagebuilder.cli import results

        answer(results.CacheListResult(folder=str(where.root), usage=usage))
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


@cache_app.command("du")
def cache_du(store: StoreFolder = None, as_json: Json = False) -> None:
    """Show how much of the store each recipe's image takes, and how much of that no other uses."""
    from imagebuilder.core.progress import human
    from imagebuilder.store import cache

    where = open_store(store)
    downloads = cache.usage(where).download_bytes
    shares, rest = cache.shares(where)
    if as_json:
        from imagebuilder.cli import results

        folder = str(where.root)
        answer(results.CacheUseResult(folder=folder, recipes=shares, other=rest, downloads=downloads))
        return
    for share in shares:
        out(f"{share.recipe:<20} {human(share.bytes):>8}, {human(share.alone)} of it used by no other")
    out(f"{'in no image':<20} {human(rest):>8}")
    out(f"{'downloads':<20} {human(downloads):>8}, needed again only for layers that change")


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
        from imagebuilder.cli import results

        answer(results.CacheVerifyResult(folder=str(where.root), damages=tuple(damages), removed=fix))
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
    recipes: Annotated[
        list[Path] | None,
        typer.Option(
            "--keep-recipe",
            metavar="RECIPE",
            help="Keep only what builds of this recipe need, by its lock; may be repeated. Packages whose "
            "layers are made are not needed.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove everything: images, reports, layers, downloads.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; print what would be removed.")
    ] = False,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Remove the least recently used files, until SIZE is left, or all that no recipe needs."""
    from imagebuilder.core.progress import human
    from imagebuilder.store import cache

    given = bool(keep) + everything + bool(recipes)
    if given != 1:
        names = "--keep SIZE, --keep-recipe RECIPE or --all"
        raise InputError(
            f"takes only one of {names}" if given else f"needs {names}",
            where="cache prune",
            hint="give --keep SIZE, e.g. --keep 20GB, or --keep-recipe RECIPE, or --all",
        )
    where = open_store(store)
    if recipes:
        from imagebuilder.engines import steps
        from imagebuilder.workflow import read_plans

        plans = [plan for path in recipes for _, plan in read_plans(path, "")]
        pruned = cache.prune_to(where, steps.needed(plans, where), dry_run=dry_run)
    else:
        pruned = cache.prune(where, 0 if everything else _size(keep), dry_run=dry_run)
    if as_json:
        from imagebuilder.cli import results

        answer(results.CachePruneResult(pruned=pruned, dry_run=dry_run))
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
