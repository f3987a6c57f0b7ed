"""The docker engine: BuildKit builds the rendered Dockerfile, all of it.

Debian's packages come from the archive and wheels from the index, each held to the lock. The image goes into
the engine, or into an OCI layout; the store does not have it.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.core import files
from imagebuilder.core import labels as label_names
from imagebuilder.engines import bases, buildx, sitefiles
from imagebuilder.engines.bases import Choice
from imagebuilder.engines.buildx import Builder, BuildxRequest
from imagebuilder.engines.context import BuildContext
from imagebuilder.errors import BuildError, EnvironmentFault
from imagebuilder.fetch import locked
from imagebuilder.fetch.locked import Package
from imagebuilder.image import layout
from imagebuilder.layers import project
from imagebuilder.plan import OsLayer, Plan, UpperOsLayer, render
from imagebuilder.store import check_bytes, link_or_copy


@dataclass(frozen=True, kw_only=True)
class BuildxOptions:
    """Options of a build with Docker: a builder's name, and the origin of the base."""

    builder: str = ""
    base: Choice = "auto"


@dataclass(frozen=True, kw_only=True)
class BuiltByDocker:
    """The image that BuildKit made.

    Attributes:
        digest: of the manifest; empty with the classic image store, which makes no manifest.
        config: digest of the config.
        reference: the image's name in the engine; empty when it was not loaded.
        seconds: the time that the build took.

    """

    digest: str
    config: str
    reference: str
    seconds: float


def build(
    plan: Plan, context: BuildContext, options: BuildxOptions, *, load: bool, output: Path | None = None
) -> BuiltByDocker:
    """Have BuildKit build the rendered Dockerfile: packages from the archive, wheels from the index.

    Args:
        plan: the image.
        context: its site has the addresses of both.
        options: builder and base.
        load: whether to load the image into the engine.
        output: also write the image as an OCI layout: a folder, or an archive if the name ends in `.tar`.

    Raises:
        EnvironmentFault: docker, buildx or the builder is missing, too old, or lacks a feature.
        FetchError: the archive or the index no longer has what the lock names.
        BuildError: a step failed.
        InputError: the output exists, and is not an OCI image.

    """
    started = time.monotonic()
    builder = buildx.look_up(options.builder)
    if not builder.merges:
        if output is not None:
            raise EnvironmentFault(
                "this engine's classic image store exports no OCI image",
                where="--output",
                hint="use its containerd image store, name another builder, or leave out --engine docker",
            )
        context.progress.note(
            "the engine has the classic image store: if a layer changes, all layers above it are made again;"
            " the containerd image store avoids that"
        )
    with (
        context.store.in_use(),
        context.store.work() as folder,
        _based(plan, builder, context, options, folder) as based,
    ):
        planned, contexts = based
        own = (*_sources(plan, context, folder), *_projects(plan, context, folder))
        request = _request(planned, (*contexts, *own), context, folder)
        metadata: Mapping[str, object] = {}
        tags = tuple(f"{plan.name}:{tag}" for tag in dict.fromkeys((plan.tag, "latest")))
        if load:
            metadata = _run(builder, request, context, folder, ("--load", *_tagged(tags)))
        if output is not None:
            with layout.replacing(output) as draft:
                kind = "oci" if output.suffix == ".tar" else "oci,tar=false"
                outputs = (f"--output=type={kind},dest={draft}", *_tagged(tags[:1]))
                metadata = _run(builder, request, context, folder, outputs)
    return BuiltByDocker(
        digest=str(metadata.get("containerimage.digest", "")),
        config=str(metadata.get("containerimage.config.digest", "")),
        reference=tags[0] if load else "",
        seconds=time.monotonic() - started,
    )


@contextmanager
def _based(
    plan: Plan, builder: Builder, context: BuildContext, options: BuildxOptions, folder: Path
) -> Iterator[tuple[Plan, tuple[tuple[str, str], ...]]]:
    """Choose the base; yields the plan with labels that name it, and the build contexts that provide it."""
    system = plan.system
    if isinstance(system, UpperOsLayer):
        yield _labelled(plan), _registry_base(plan, system, builder, context, folder)
        return
    base = bases.choose(system, options.base)
    contexts: list[tuple[str, str]] = []
    if not base.digest:
        # Only a package's own fields say whether it is essential, so all are downloaded.
        _fetch(system.debs, context)
        contexts.append(("debs", str(_hand_in(system, context, folder / "debs"))))
    with bases.handed(base, system, builder, context) as place:
        yield _labelled(plan, base.digest), ((base.name, place), *contexts)


def _labelled(plan: Plan, base_digest: str = "") -> Plan:
    """Add the labels that name the engine, and the digest of the base if it is from a registry."""
    labels = {**dict(plan.config.labels), label_names.ENGINE: "docker"}
    if base_digest:
        labels[label_names.BASE_DIGEST] = base_digest
    config = dataclasses.replace(plan.config, labels=tuple(sorted(labels.items())))
    return dataclasses.replace(plan, config=config)


def _registry_base(
    plan: Plan, system: OsLayer, builder: Builder, context: BuildContext, folder: Path
) -> tuple[tuple[str, str], ...]:
    """Return build contexts with the lock's packages as files, and with the base from the store.

    The packages are from the base's own archives, whose mirrors the Dockerfile has no way to name. An engine
    with the classic image store cannot read layouts: it pulls the base by its digest.
    """
    _fetch(system.debs, context)
    contexts = [("debs", str(_hand_in(system, context, folder / "debs")))]
    image = context.lock.image
    if builder.merges and image is not None:
        _fetch(image.layers, context)
        place = bases.imported(image, system.architecture, context.store, folder / "base")
        contexts.append((render.base_of(plan), place))
    return tuple(contexts)


def _fetch(packages: Sequence[Package], context: BuildContext) -> None:
    locked.fetch(
        locked.absent(packages, context.store),
        context.lock,
        context.store,
        context.site,
        advance=lambda _sha256, _count: None,
        finished=lambda _sha256: None,
    )


def _sources(plan: Plan, context: BuildContext, folder: Path) -> tuple[tuple[str, str], ...]:
    """Make a build context of the source archives that the Dockerfile cannot fetch."""
    wanted = render.upstream_sources(plan)
    if not wanted:
        return ()
    _fetch(wanted, context)
    (folder / "sources").mkdir()
    for source in wanted:
        place = context.store.download(source.sha256)
        check_bytes(place, source.sha256, source.file)
        link_or_copy(place, folder / "sources" / source.file)
    return (("sources", str(folder / "sources")),)


def _projects(plan: Plan, context: BuildContext, folder: Path) -> tuple[tuple[str, str], ...]:
    """Make a build context of each folder of the user's, with only what is copied."""
    found = render.own_folders(plan)
    for name, layer in found:
        source = project.find(context.recipe_folder, layer.source, layer.title)
        project.write_folder(layer, source, folder / name)
    return tuple((name, str(folder / name)) for name, _ in found)


def _request(
    plan: Plan, contexts: tuple[tuple[str, str], ...], context: BuildContext, folder: Path
) -> BuildxRequest:
    """Return the build of the Dockerfile, with the site's settings for archive and index."""
    return BuildxRequest(
        dockerfile=_dockerfile(plan, folder),
        context=_empty(folder),
        platform=plan.platform,
        contexts=contexts,
        secrets=sitefiles.write(context.site, plan.system, folder),
        # BuildKit writes this time into the config, as our own engine does.
        arguments=(*sitefiles.arguments(context.site), ("SOURCE_DATE_EPOCH", str(plan.config.epoch))),
        # No attestations: with one, the result is an index with a new digest for every build.
        outputs=("--provenance=false", *sitefiles.network(context.site)),
    )


def _run(
    builder: Builder, request: BuildxRequest, context: BuildContext, folder: Path, outputs: tuple[str, ...]
) -> Mapping[str, object]:
    metadata = folder / "metadata.json"
    words = (*request.outputs, "--metadata-file", str(metadata), *outputs)
    buildx.build(builder, dataclasses.replace(request, outputs=words), context.progress)
    try:
        answer: Mapping[str, object] = json.loads(metadata.read_bytes())
    except (OSError, ValueError) as error:
        raise BuildError(
            f"buildx wrote no metadata of the image: {error}", where="--engine docker"
        ) from error
    return answer


def _hand_in(layer: OsLayer, context: BuildContext, folder: Path) -> Path:
    """Make a build context of the packages: links `<name>.deb` to the store's files."""
    folder.mkdir()
    for deb in layer.debs:
        file = context.store.download(deb.sha256)
        check_bytes(file, deb.sha256, Path(deb.path).name)
        link_or_copy(file, folder / f"{deb.name}.deb")
    return folder


def _dockerfile(plan: Plan, folder: Path) -> Path:
    path = folder / "Dockerfile"
    path.write_text(render.render(plan, files.template("Dockerfile.j2")), encoding="utf-8")
    return path


def _empty(folder: Path) -> Path:
    """Make the empty context of a build that takes no files from this host."""
    (folder / "context").mkdir()
    return folder / "context"


def _tagged(references: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for reference in references for word in ("--tag", reference))
