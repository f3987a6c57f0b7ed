"""Engines on the command line: their options, builds with Docker, and loading images into an engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from imagebuilder.cli import copied
from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import err, out
from imagebuilder.errors import InputError

if TYPE_CHECKING:
    from imagebuilder.engines.dockerfile import BuildxOptions, BuiltByDocker
    from imagebuilder.host.site import Site
    from imagebuilder.lock.model import Lock
    from imagebuilder.plan import Plan
    from imagebuilder.store import ImageRecord, Store
    from imagebuilder.workflow.project import Copied


@dataclass(frozen=True, kw_only=True)
class DockerBuild:
    """Where to put an image of the docker engine, how to show it, its recipe's folder, and what is copied."""

    load: bool
    output: Path | None
    progress: str
    as_json: bool
    recipe_folder: Path = Path()
    own: Copied | None = None


def docker_options(engine: str, builder: str, base: str, proofs: Mapping[str, bool]) -> BuildxOptions | None:
    """Read the options of the docker engine; None means the embedded engine.

    Args:
        engine: `embedded` or `docker`.
        builder: name of a buildx builder.
        base: where the base comes from.
        proofs: the options that require reproducible bytes, and whether each was given.

    Raises:
        InputError: a value is unknown, or the chosen engine does not have the option.

    """
    if engine == "embedded":
        for option, given in (("--builder", builder), ("--base", base != "auto")):
            if given:
                raise InputError(
                    "works only with the docker engine", where=option, hint="add --engine docker"
                )
        return None
    if engine != "docker":
        raise InputError(f"`{engine}` is not an engine: choose embedded or docker", where="--engine")
    # Late: both load the modules that make layers, which an embedded build with nothing to do does not need.
    from imagebuilder.engines.bases import CHOICES
    from imagebuilder.engines.dockerfile import BuildxOptions

    if base not in CHOICES:
        raise InputError(f"`{base}` is not a base: choose one of {', '.join(CHOICES)}", where="--base")
    for option in (name for name, given in proofs.items() if given):
        raise InputError(
            "the docker engine promises the same files, not the same bytes",
            where=option,
            hint="leave out --engine docker",
        )
    return BuildxOptions(builder=builder, base=cast("Any", base))


def build_with_docker(
    targets: Sequence[tuple[Lock, Plan]], store: Store, site: Site, options: BuildxOptions, wish: DockerBuild
) -> None:
    """Let BuildKit build the rendered Dockerfile of one platform, and show the image."""
    from imagebuilder.core.progress import shown
    from imagebuilder.engines import dockerfile
    from imagebuilder.engines.context import BuildContext

    if len(targets) > 1:
        raise InputError(
            "the docker engine builds one platform at a time",
            where="--engine docker",
            hint="name one with --platform",
        )
    ((locked, planned),) = targets
    with shown(wish.progress, sys.stderr) as live:
        context = BuildContext(
            lock=locked, store=store, site=site, progress=live, recipe_folder=wish.recipe_folder
        )
        # Without --output the image goes where `docker build` puts it.
        load = wish.load or wish.output is None
        built = dockerfile.build(planned, context, options, load=load, output=wish.output)
    _show(built, planned, wish)


def require_engine() -> None:
    """Check that a container engine answers, before a build that may take minutes.

    Raises:
        EnvironmentFault: neither Docker nor Podman answers.

    """
    from imagebuilder.smoke.engine import connect

    with connect("auto"):
        pass


def load_image(image: ImageRecord, store: Store, site: Site, runtime: str = "auto") -> str:
    """Load an image into the local engine; returns its name there."""
    from imagebuilder.core.progress import human, shown
    from imagebuilder.engines.load import load
    from imagebuilder.smoke.engine import connect
    from imagebuilder.workflow import sharing

    with shown("auto", sys.stderr) as live:
        sharing.bring(image, store, site, live)
    with connect(cast("Any", runtime)) as engine:
        err(f"loading {image.name} into {engine.kind}")
        result = load(image, store, engine)
    err(f"loaded {result.reference}, {human(result.moved_bytes)} copied")
    return result.reference


def _show(built: BuiltByDocker, planned: Plan, wish: DockerBuild) -> None:
    if wish.as_json:
        from imagebuilder.cli import results

        answer(
            results.images.BuildResult(
                name=planned.name,
                tag=planned.tag,
                digest=built.digest,
                reference=built.reference,
                images=(results.images.BuiltImage.of_docker(built, planned),),
                copied=results.recipes.CopiedResult.of(wish.own) if wish.own else None,
            )
        )
        return
    out(f"image   {planned.name}:{planned.tag}")
    out(f"digest  {built.digest or built.config}")
    if wish.own:
        copied.show(wish.own)
    out(f"time    {built.seconds:.1f} s, by BuildKit: the image is not in the store")
    if wish.output is not None:
        out(f"wrote   {wish.output}")
    if built.reference:
        out(f"loaded  {built.reference}")
        out(f"next:   imagebuilder smoke-test {built.reference}")
        out(f"        docker tag {built.reference} REGISTRY/NAME && docker push REGISTRY/NAME")
