"""The verb `build`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli import copied, engines
from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    CacheName,
    Json,
    Locked,
    PlatformName,
    ProgressKind,
    RecipeFile,
    SiteFile,
    StoreFolder,
    ToolsPlace,
    app,
    check_progress,
    err,
    open_store,
    out,
    warn,
)
from imagebuilder.errors import InputError, RegistryError, TestFailure

if TYPE_CHECKING:
    from imagebuilder.engines.context import BuildContext
    from imagebuilder.engines.embedded import Built
    from imagebuilder.host.site import Site
    from imagebuilder.lock.model import Lock
    from imagebuilder.plan import Plan
    from imagebuilder.store import ImageRecord, IndexRecord, Store
    from imagebuilder.workflow import LockedRecipe
    from imagebuilder.workflow.project import Copied
    from imagebuilder.workflow.reproduce import RebuildVerdict
    from imagebuilder.workflow.source import RecipeSource

_BAKED = (
    "warning: `ssh: {keys: baked}` puts a private key into a layer: everybody who can pull the image can log "
    "in to every node that runs it; push refuses it without --allow-baked-keys"
)

_Load = Annotated[bool, typer.Option("--load", help="Load the image into the local Docker or Podman.")]
_Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="Also write the image as an OCI layout: a folder, or a .tar file. "
        "A .sqsh file is squashfs, for enroot and Apptainer.",
    ),
]
_VerifyReproducible = Annotated[
    bool,
    typer.Option(
        "--verify-reproducible",
        help="Build again in an empty store; if the digest differs, fail and list the files that differ.",
    ),
]
_Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Do not trust the store: make the layers of wheels again, and read and hash all other layers.",
    ),
]
_CachePush = Annotated[
    bool,
    typer.Option("--cache-push", help="Put the layers that were made and the packages into the cache, too."),
]
_Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="embedded (needs no daemon), or docker (buildx builds the rendered Dockerfile).",
    ),
]
_Builder = Annotated[
    str,
    typer.Option(
        "--builder", metavar="NAME", help="With --engine docker: a builder that `docker buildx ls` lists."
    ),
]
_Base = Annotated[
    str,
    typer.Option(
        "--base",
        metavar="KIND",
        help="With --engine docker: registry pulls the base, bootstrap makes it here; auto chooses.",
    ),
]


@app.command()
def build(
    recipe_file: RecipeFile,
    load: _Load = False,
    output: _Output = None,
    platform: PlatformName = "",
    locked: Locked = False,
    verify_reproducible: _VerifyReproducible = False,
    verify: _Verify = False,
    engine: _Engine = "embedded",
    builder: _Builder = "",
    base: _Base = "auto",
    cache: CacheName = "",
    cache_push: _CachePush = False,
    site: SiteFile = None,
    tools: ToolsPlace = "",
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Build the image of a recipe. Locks the recipe first if it has no lock."""
    from imagebuilder.host.site import detect
    from imagebuilder.store import sparse
    from imagebuilder.workflow import read_locks
    from imagebuilder.workflow import source as sources

    check_progress(progress)
    proofs = {"--verify-reproducible": verify_reproducible, "--verify": verify}
    docker = engines.docker_options(engine, builder, base, proofs)
    where = open_store(store)
    if load:
        engines.require_engine()
    # Without a lock, `read_locks` raises the error of --locked.
    if not locked:
        _lock_if_absent(recipe_file, platform, where, site, tools)
    read = read_locks(recipe_file)
    targets = read.plans(platform)
    copied.warn_of_changes(read.copied)
    source = sources.of_recipe(recipe_file)
    if output is not None:
        _require_writable(output, targets, embedded=docker is None)
    surroundings = detect(site, distribution=targets[0][0].base.partition(":")[0], tools=tools, cache=cache)
    if cache_push:
        _require_cache(surroundings)
    _warn_of_baked_keys(targets)
    if docker is not None:
        wish = engines.DockerBuild(
            recipe_folder=recipe_file.parent,
            load=load,
            output=output,
            progress=progress,
            as_json=as_json,
            own=read.copied,
        )
        engines.build_with_docker(targets, where, surroundings, docker, wish)
        return
    settings = _BuildSettings(
        store=where,
        site=surroundings,
        progress=progress,
        verify=verify,
        build_twice=verify_reproducible,
        whole=load or output is not None or verify_reproducible,
    )
    made, verdicts = _make(read, targets, settings)
    index = _remember(read, source, made, where)
    if cache_push:
        _share(targets, settings)
    sparse.squeeze(where)
    whole = index if index is not None and not platform else made[0].image
    reference = _deliver(whole, made, settings, output, load=load)
    if as_json:
        _answer(whole, made, verdicts, reference, read.copied)
    else:
        copied.show(read.copied)
        _show_images(made, index, verdicts)
        _show_next(reference, output, recipe_file)
    _require_same(recipe_file, verdicts)


@dataclass(frozen=True, kw_only=True)
class _BuildSettings:
    """What all platforms of one build share.

    Attributes:
        store: where the layers are.
        site: the site's settings.
        progress: how progress is shown, see `--progress`.
        verify: make the layers of wheels again, see `--verify`.
        build_twice: build a second time in a fresh store, see `--verify-reproducible`.
        whole: fetch what only the cache has, because the image is read afterwards.

    """

    store: Store
    site: Site
    progress: str
    verify: bool
    build_twice: bool
    whole: bool


def _lock_if_absent(recipe_file: Path, platform: str, store: Store, site: Path | None, tools: str) -> None:
    from imagebuilder import catalog, recipe
    from imagebuilder.host.site import detect
    from imagebuilder.lock import model as locks
    from imagebuilder.workflow import update_lock
    from imagebuilder.workflow.plans import require_platform

    if not locks.path_for(recipe_file).exists():
        # A wrong recipe or platform is reported before packages are resolved, which takes a while.
        known = catalog.own.names(recipe_file, detect(site).catalog if site else None)
        require_platform(platform, recipe.load(recipe_file, known).platforms, str(recipe_file))
        err(f"{recipe_file} has no lock yet: resolving")
        update_lock(recipe_file, site, None, store, tools=tools)


def _require_cache(site: Site) -> None:
    if not site.cache:
        raise InputError(
            "no cache is named",
            where="--cache-push",
            hint="add --cache registry.example/team/cache, or name it in the site file (`cache:`)",
        )


def _warn_of_baked_keys(targets: Sequence[tuple[Lock, Plan]]) -> None:
    from imagebuilder.plan import KeysLayer

    if any(isinstance(layer, KeysLayer) for _, planned in targets for layer in planned.layers):
        err(_BAKED)


def _deliver(
    whole: ImageRecord | IndexRecord,
    made: list[Built],
    settings: _BuildSettings,
    output: Path | None,
    *,
    load: bool,
) -> str:
    """Write and load the image as asked for; returns its name in the local engine, empty without --load."""
    if output is not None and _is_squashfs(output):
        from imagebuilder.image import squashfs

        squashfs.export(made[0].image, settings.store, output)
    elif output is not None:
        from imagebuilder.image import layout

        layout.export(whole, settings.store, output)
    return engines.load_image(_loadable(made), settings.store, settings.site) if load else ""


def _is_squashfs(output: Path) -> bool:
    return output.suffix == ".sqsh"


def _require_writable(output: Path, targets: Sequence[tuple[Lock, Plan]], *, embedded: bool) -> None:
    """Check that the image can be written in the format of `--output`, before the build."""
    if _is_squashfs(output):
        from imagebuilder.image import squashfs  # late: it loads what reads layers

        squashfs.require_possible(output, [plan.platform for _, plan in targets], embedded=embedded)


def _make(
    read: LockedRecipe, targets: Sequence[tuple[Lock, Plan]], settings: _BuildSettings
) -> tuple[list[Built], list[RebuildVerdict]]:
    """Build the image of each platform, and a second time for --verify-reproducible."""
    from imagebuilder.core.progress import shown
    from imagebuilder.engines import embedded
    from imagebuilder.host.tools import choose_tools
    from imagebuilder.layers import hints
    from imagebuilder.workflow import sharing

    # Every platform is checked before the first one is built, which takes minutes.
    for _, planned in targets if not settings.site.cache else ():
        embedded.require_possible(
            embedded.missing_layers(planned, settings.store), choose_tools(settings.site)
        )
    made: list[Built] = []
    verdicts: list[RebuildVerdict] = []
    for locked, planned in targets:
        with shown(settings.progress, sys.stderr) as live:
            context = embedded.BuildContext(
                lock=locked,
                store=settings.store,
                site=settings.site,
                progress=live,
                request=partial(read.request, planned.platform),
                recipe_folder=read.path.parent,
                cache=sharing.open_cache(settings.site, live.note),
                remake=settings.verify,
                whole=settings.whole,
            )
            before = hints.forget(planned, settings.store) if settings.verify else {}
            built = embedded.build(planned, context)
            for title in hints.changed(planned, before, settings.store):
                live.note(f"{title}: the layer in the store was not what its packages give, and was replaced")
            made.append(built)
            if settings.build_twice:
                verdicts.append(_made_again(planned, built, context))
    return made, verdicts


def _share(targets: Sequence[tuple[Lock, Plan]], settings: _BuildSettings) -> None:
    """Fill the cache. The image is built: a cache that refuses is no reason to fail."""
    from imagebuilder.core.progress import human, shown
    from imagebuilder.workflow import sharing

    for locked, planned in targets:
        try:
            with shown(settings.progress, sys.stderr) as live:
                filled = sharing.share(locked, planned, settings.store, settings.site, live)
        except RegistryError as error:
            warn(f"the cache was not filled: {error}")
            return
        got = f"{human(filled.bytes)} in {filled.blobs} blobs"
        err(f"put {got} into {settings.site.cache}, which has {filled.kept} blobs of this lock")


def _made_again(planned: Plan, built: Built, context: BuildContext) -> RebuildVerdict:
    # Late: it loads everything that downloads and makes layers; most builds need none of that.
    from imagebuilder.workflow import reproduce

    return reproduce.verify(planned, built.image, context)


def _answer(
    whole: ImageRecord | IndexRecord,
    made: Sequence[Built],
    verdicts: Sequence[RebuildVerdict],
    reference: str,
    own: Copied,
) -> None:
    from imagebuilder.cli import results

    images = tuple(
        results.images.BuiltImage.of(built, verdict)
        for built, verdict in zip_longest(made, verdicts)
        if built
    )
    answer(
        results.images.BuildResult(
            name=whole.name,
            tag=whole.tag,
            digest=whole.manifest,
            reference=reference,
            images=images,
            copied=results.recipes.CopiedResult.of(own),
        )
    )


def _show_images(made: list[Built], index: IndexRecord | None, verdicts: list[RebuildVerdict]) -> None:
    for built in made:
        _show_built(built)
    if index is not None:
        out(f"index   {index.manifest}, of {' and '.join(image.platform for image in index.images)}")
    if verdicts:
        from imagebuilder.workflow import reproduce

        for verdict in verdicts:
            for line in reproduce.lines(verdict):
                out(line)


def _remember(
    read: LockedRecipe, source: RecipeSource, made: Sequence[Built], store: Store
) -> IndexRecord | None:
    """Record recipe and lock of the images; join them once the store has all platforms of the recipe."""
    from imagebuilder.layers import hints
    from imagebuilder.workflow import join_images
    from imagebuilder.workflow import source as sources

    for built in made:
        sources.remember(store, built.image.manifest, source)
    hints.remember(read.path, read.file, read.layer_keys, store)
    return join_images(read, store)


def _require_same(recipe_file: Path, verdicts: Sequence[RebuildVerdict]) -> None:
    if not all(verdict.same for verdict in verdicts):
        raise TestFailure(
            "the second build gave another digest",
            where=str(recipe_file),
            hint="the differences are listed above",
        )


def _loadable(made: list[Built]) -> ImageRecord:
    """Choose the image to load into the local engine: this host's platform, or else the first."""
    from imagebuilder.core import platforms

    own = platforms.own()
    return next((built.image for built in made if built.image.platform == own), made[0].image)


def _show_built(built: Built) -> None:
    from imagebuilder.core import platforms
    from imagebuilder.core.progress import human

    image = built.image
    foreign = "" if image.platform == platforms.DEFAULT else f" for {image.platform}"
    out(f"image   {image.name}:{image.tag}{foreign}")
    out(f"digest  {image.manifest}")
    away = f", {built.away} in the cache" if built.away else ""
    layers = f"{len(image.layers)} layers ({built.made} made, {built.reused} reused{away})"
    out(f"size    {human(image.size)} in {layers}")
    out(f"time    {built.seconds:.1f} s, {human(built.fetched)} fetched")


def _show_next(reference: str, output: Path | None, recipe_file: Path) -> None:
    if output is not None:
        out(f"wrote   {output}")
    if reference:
        out(f"loaded  {reference}")
        # Podman alone keeps local images under this name.
        program = "podman" if reference.startswith("localhost/") else "docker"
        out(f"next:   {program} run --rm {reference} python -c 'import sys; print(sys.version)'")
    out(f"next:   imagebuilder smoke-test {recipe_file}")
    out(f"        imagebuilder push {recipe_file} REGISTRY/NAME")
