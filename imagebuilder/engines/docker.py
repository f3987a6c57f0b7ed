"""The docker engine: what has to be executed runs in BuildKit, by the rendered Dockerfile.

By default that is the Dockerfile's `os` stage, which becomes a layer of the store; wheels and files are put
on top by the embedded engine's own code, and what follows (load, test, push) is the same. `build_pure` gives
the whole Dockerfile to BuildKit instead.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from imagebuilder import oci, render, share, supply
from imagebuilder import plan as plans
from imagebuilder.engines import bases, buildx, embedded, sitefiles
from imagebuilder.engines.bases import Base
from imagebuilder.engines.buildx import Builder, Request
from imagebuilder.engines.embedded import Built, Workshop
from imagebuilder.engines.means import Means
from imagebuilder.errors import BuildError, EnvironmentFault, InputError
from imagebuilder.layers.tarball import build_tar_layer
from imagebuilder.plan import OsLayer, Plan, UpperOsLayer
from imagebuilder.progress import Advance
from imagebuilder.store import LayerRecord, Store, check_bytes, link_or_copy
from imagebuilder.supply import Package

_STAGE = "os"  # of dockerfiles/Dockerfile.j2


@dataclass(frozen=True, kw_only=True)
class PureBuilt:
    """What BuildKit made of a whole Dockerfile.

    Attributes:
        digest: of the manifest; empty where the engine's classic store made none.
        config: digest of the config.
        reference: what the engine knows the image by; empty when it was not loaded.
        seconds: that it took.

    """

    digest: str
    config: str
    reference: str
    seconds: float


def build(plan: Plan, shop: Workshop, means: Means) -> Built:
    """Make an image with the OS layer from BuildKit; whatever the store holds already is not made again.

    The packages are those of the lock, to the byte: BuildKit is handed the files, and the step that installs
    them has no network.

    Raises:
        EnvironmentFault: docker, buildx or the builder is missing or too old, or no base can be had.
        FetchError: bytes that could not be had, or were not the locked ones.
        BuildError: a step or a layer failed.
        StoreError: the store is full or not writable.

    """
    if isinstance(plan.system, UpperOsLayer):
        raise InputError(
            "BuildKit gives a stage as one layer, so the base's layers would no longer be the registry's",
            where="--engine docker",
            hint="leave out --engine docker: the embedded engine keeps the base's layers; or add --pure",
        )
    builder = buildx.look_up(means.builder)
    base = bases.choose(plan.system, means.base, shop.site, registry_first=False)
    planned = plans.by_docker(plan, base.digest)
    maker = _SystemStage(builder=builder, base=base, plan=planned, shop=shop)
    return embedded.build(planned, dataclasses.replace(shop, make_system=maker))


def build_pure(
    plan: Plan, shop: Workshop, means: Means, *, load: bool, output: Path | None = None
) -> PureBuilt:
    """Have BuildKit build the whole rendered Dockerfile: packages from the archive, wheels from the index.

    Args:
        plan: the image.
        shop: whose site says how to reach both.
        means: builder and base.
        load: whether to put the image into the engine.
        output: also write it as an OCI layout: a folder, or an archive where the name ends in `.tar`.

    Raises:
        EnvironmentFault: something is missing, too old, or cannot do what was asked for.
        FetchError: the archive or the index no longer has what the lock names.
        BuildError: a step failed.
        InputError: something else is in the place of the output.

    """
    started = time.monotonic()
    builder = buildx.look_up(means.builder)
    if not builder.merges:
        if output is not None:
            raise EnvironmentFault(
                "this engine's classic image store exports no OCI image",
                where="--output",
                hint="switch on its containerd image store, name another builder, or leave out --pure",
            )
        shop.progress.note(
            "classic image store: COPY --link copies here instead of merging, so a changed layer makes those"
            " above it anew; the containerd image store does not"
        )
    with (
        shop.store.in_use(),
        shop.store.work() as folder,
        _based(plan, builder, shop, means, folder) as based,
    ):
        planned, contexts = based
        request = _whole(planned, (*contexts, *_sources(plan, shop, folder)), shop, folder)
        found: Mapping[str, object] = {}
        tags = tuple(f"{plan.name}:{tag}" for tag in dict.fromkeys((plan.tag, "latest")))
        if load:
            found = _run(builder, request, shop, folder, ("--load", *_tagged(tags)))
        if output is not None:
            with oci.replacing(output) as draft:
                kind = "oci" if output.suffix == ".tar" else "oci,tar=false"
                outputs = (f"--output=type={kind},dest={draft}", *_tagged(tags[:1]))
                found = _run(builder, request, shop, folder, outputs)
    return PureBuilt(
        digest=str(found.get("containerimage.digest", "")),
        config=str(found.get("containerimage.config.digest", "")),
        reference=tags[0] if load else "",
        seconds=time.monotonic() - started,
    )


@contextmanager
def _based(
    plan: Plan, builder: Builder, shop: Workshop, means: Means, folder: Path
) -> Iterator[tuple[Plan, tuple[tuple[str, str], ...]]]:
    """Find the base: the plan with what is known of it now, and the build contexts that stand for it."""
    system = plan.system
    if isinstance(system, UpperOsLayer):
        yield plans.by_docker(plan), _registry_base(plan, system, builder, shop, folder)
        return
    base = bases.choose(system, means.base, shop.site, registry_first=True)
    if not base.digest:
        # What a base is made from: which packages those are, only the packages themselves say.
        _fetch(system.debs, shop)
    with bases.handed(base, system, builder, shop) as place:
        yield plans.by_docker(plan, base.digest), ((base.name, place),)


def _registry_base(
    plan: Plan, system: OsLayer, builder: Builder, shop: Workshop, folder: Path
) -> tuple[tuple[str, str], ...]:
    """Hand in the lock's packages, and the base as the store has it.

    The packages' archives are the base's own, and the site's places of them are nothing that the Dockerfile
    could be told. An engine with the classic store reads no layouts: it pulls the base, by its digest.
    """
    _fetch(system.debs, shop)
    debs = {deb.sha256: shop.store.download(deb.sha256) for deb in system.debs}
    contexts = [("debs", str(_hand_in(system, debs, folder / "debs")))]
    image = shop.lock.image
    if builder.merges and image is not None:
        _fetch(image.layers, shop)
        place = bases.imported(image, system.architecture, shop.store, folder / "base")
        contexts.append((render.base_of(plan), place))
    return tuple(contexts)


@dataclass(frozen=True, kw_only=True)
class _SystemStage:
    """Makes the OS layer: the Dockerfile's first stage, from the lock's packages, without a network."""

    builder: Builder
    base: Base
    plan: Plan
    shop: Workshop

    def __call__(
        self, layer: OsLayer, debs: Mapping[str, Path], store: Store, advance: Advance, /
    ) -> LayerRecord:
        with store.work() as folder, bases.handed(self.base, layer, self.builder, self.shop) as place:
            handed = _hand_in(layer, debs, folder / "debs")
            tar = folder / "os.tar"
            request = Request(
                dockerfile=_dockerfile(self.plan, folder),
                context=_empty(folder),
                platform=self.plan.platform,
                target=_STAGE,
                contexts=((self.base.name, place), ("debs", str(handed))),
                outputs=("--network=none", f"--output=type=tar,dest={tar}"),
            )
            buildx.build(self.builder, request, self.shop.progress)
            if not tar.is_file():
                raise BuildError("the builder said that all is well, and gave no files", where=layer.title)
            return build_tar_layer(tar, store, advance)


def _fetch(packages: Sequence[Package], shop: Workshop) -> None:
    supply.fetch(
        supply.absent(packages, shop.store),
        shop.lock,
        shop.store,
        shop.site,
        advance=lambda _sha256, _count: None,
        finished=lambda _sha256: None,
    )


def _sources(plan: Plan, shop: Workshop, folder: Path) -> tuple[tuple[str, str], ...]:
    """Lay out, as a build context, the archives that the Dockerfile cannot fetch by itself."""
    wanted = render.upstream_sources(plan)
    if not wanted:
        return ()
    _fetch(wanted, shop)
    (folder / "sources").mkdir()
    for source in wanted:
        place = shop.store.download(source.sha256)
        check_bytes(place, source.sha256, source.file)
        link_or_copy(place, folder / "sources" / source.file)
    return (("sources", str(folder / "sources")),)


def _whole(plan: Plan, contexts: tuple[tuple[str, str], ...], shop: Workshop, folder: Path) -> Request:
    """Ask for the whole Dockerfile, with what the site needs to reach archive and index."""
    return Request(
        dockerfile=_dockerfile(plan, folder),
        context=_empty(folder),
        platform=plan.platform,
        contexts=contexts,
        secrets=sitefiles.write(shop.site, plan.system, folder),
        arguments=sitefiles.arguments(shop.site),
        # No attestations: an index of one image and a statement would have another digest every time.
        outputs=("--provenance=false", *sitefiles.network(shop.site)),
    )


def _run(
    builder: Builder, request: Request, shop: Workshop, folder: Path, outputs: tuple[str, ...]
) -> Mapping[str, object]:
    metadata = folder / "metadata.json"
    words = (*request.outputs, "--metadata-file", str(metadata), *outputs)
    buildx.build(builder, dataclasses.replace(request, outputs=words), shop.progress)
    try:
        found: Mapping[str, object] = json.loads(metadata.read_bytes())
    except (OSError, ValueError) as error:
        raise BuildError(f"buildx left no record of what it made: {error}", where=request.target) from error
    return found


def _hand_in(layer: OsLayer, debs: Mapping[str, Path], folder: Path) -> Path:
    """Lay out the packages as a build context: links to the store's files, each `<name>.deb`."""
    folder.mkdir()
    for deb in layer.debs:
        check_bytes(debs[deb.sha256], deb.sha256, Path(deb.path).name)
        link_or_copy(debs[deb.sha256], folder / f"{deb.name}.deb")
    return folder


def _dockerfile(plan: Plan, folder: Path) -> Path:
    path = folder / "Dockerfile"
    path.write_text(render.render(plan, share.template("Dockerfile.j2")), encoding="utf-8")
    return path


def _empty(folder: Path) -> Path:
    """Make the context of a build that takes nothing from this host."""
    (folder / "context").mkdir()
    return folder / "context"


def _tagged(references: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for reference in references for word in ("--tag", reference))
