"""The base of the Dockerfile's stages: a registry's image, or one bootstrapped here from locked packages.

A bootstrapped base has the essential packages and apt in the locked versions. It needs no registry, and the
same lock gives the same bytes.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from imagebuilder.core import documents, process
from imagebuilder.core.process import CommandError
from imagebuilder.core.progress import no_advance
from imagebuilder.debian import suites
from imagebuilder.engines import buildx
from imagebuilder.engines.buildx import Builder
from imagebuilder.engines.context import BuildContext
from imagebuilder.errors import EnvironmentFault
from imagebuilder.host.tools import Tools, choose_tools
from imagebuilder.image import layout, oci
from imagebuilder.layers.system import debs as relations
from imagebuilder.layers.system import install
from imagebuilder.lock.model import BaseImage, BaseLayer
from imagebuilder.plan import OsLayer, User, inherited_env, inherited_labels
from imagebuilder.store import LayerRecord, Store, check_bytes, explained

Choice = Literal["auto", "registry", "bootstrap"]
CHOICES: tuple[Choice, ...] = ("auto", "registry", "bootstrap")
_LIMIT = 600.0  # seconds for an engine to import 50 MB, or to remove them


@dataclass(frozen=True, kw_only=True)
class StageBase:
    """The origin of the base: a registry if `digest` is not empty, else the lock's packages."""

    name: str
    digest: str = ""

    @property
    def place(self) -> str:
        """The value of `--build-context` for a base from a registry."""
        return f"docker-image://{self.name}@{self.digest}"


def choose(layer: OsLayer, wanted: Choice) -> StageBase:
    """Choose the origin of the base.

    Args:
        layer: names distribution and suite.
        wanted: `registry`, `bootstrap`, or `auto`: the registry if it answers, else a bootstrapped base.

    Raises:
        EnvironmentFault: `wanted` is `registry`, and no registry answers.

    """
    name = f"{layer.distribution}:{layer.suite}"
    if wanted == "bootstrap":
        return StageBase(name=name)
    if digest := buildx.base_digest(name):
        return StageBase(name=name, digest=digest)
    if wanted == "auto":
        return StageBase(name=name)
    raise EnvironmentFault(
        f"no registry answers for the base `{name}`",
        where="--base",
        hint="--base bootstrap makes it here, from the lock's packages",
    )


@contextlib.contextmanager
def handed(base: StageBase, layer: OsLayer, builder: Builder, context: BuildContext) -> Iterator[str]:
    """Provide the base to a builder while the block runs; bootstrap it first if it is not from a registry.

    Args:
        base: the origin of the base.
        layer: names the packages; the store has all of them.
        builder: reads the base.
        context: has the store for the base, and shows the progress.

    Yields:
        The value of `--build-context` for the base.

    Raises:
        BuildError: a package's script failed.
        EnvironmentFault: mmdebstrap is missing, this user may not create namespaces, or the engine refused.

    """
    if base.digest:
        yield base.place
        return
    record = bootstrap(layer, context)
    if builder.merges:
        with context.store.work() as folder:
            blobs = ((context.store.blob(record.digest), record),)
            yield _layout(blobs, {"Cmd": ["bash"]}, layer.architecture, folder / "base")
        return
    # Engines with the classic image store cannot read layouts, so import the base as an image for this build.
    name = f"imagebuilder-base:{record.diff_id.removeprefix('sha256:')[:12]}-{secrets.token_hex(4)}"
    blob = context.store.blob(record.digest)
    try:
        process.run(
            ["docker", "import", "--platform", f"linux/{layer.architecture}", blob, name], timeout=_LIMIT
        )
    except CommandError as error:
        raise EnvironmentFault(
            f"the engine could not import the base: {error.result.stderr.strip()}",
            where="--engine docker",
            hint="is its disk full?",
        ) from error
    try:
        yield f"docker-image://{name}"
    finally:
        process.run(["docker", "image", "rm", name], timeout=_LIMIT, check=False)


def imported(image: BaseImage, architecture: str, store: Store, folder: Path) -> str:
    """Write a registry's base as an OCI layout from the store, so that BuildKit does not ask the registry.

    Args:
        image: the base from the lock; its layers are in the store.
        architecture: OCI's name of it.
        store: has the layers.
        folder: the layout is written here; it is created.

    Returns:
        The value of `--build-context` for the base.

    """
    for layer in image.layers:
        check_bytes(store.download(layer.sha256), layer.sha256, f"a layer of {image.name}")
    config: dict[str, object] = {
        "Env": [f"{name}={value}" for name, value in inherited_env(image.env).items()],
        "Labels": inherited_labels(image.labels),
        **({"User": image.user} if image.user else {}),
    }
    blobs = tuple((store.download(layer.sha256), layer) for layer in image.layers)
    return _layout(blobs, config, architecture, folder)


def bootstrap(layer: OsLayer, context: BuildContext) -> LayerRecord:
    """Make the base from the layer's packages, if the store does not have it.

    Raises:
        BuildError: a package's script failed.
        EnvironmentFault: mmdebstrap is missing, or this user may not create namespaces.

    """
    tools = choose_tools(context.site)
    files = {deb.sha256: context.store.download(deb.sha256) for deb in layer.debs}
    packages = install.relations(layer, files, context.store, tools)
    names = relations.base(packages, suites.facts(layer.distribution, layer.suite).packages)
    base = OsLayer(
        distribution=layer.distribution,
        suite=layer.suite,
        architecture=layer.architecture,
        debs=tuple(deb for deb in layer.debs if deb.name in names),
        user=User(name="root", uid=0, home="/root"),
        python="",
        venv="",
    )
    return _record(base, files, context, tools)


def _record(base: OsLayer, files: Mapping[str, Path], context: BuildContext, tools: Tools) -> LayerRecord:
    store, progress, title = context.store, context.progress, f"base: {base.title}"
    with store.exclusive(base.key):
        record = store.layer(base.key)
        if record is not None:
            progress.end(base.key, title, "cached", record.size)
            return record
        progress.begin(base.key, title, "installing")
        try:
            record = install.build_os_layer(base, files, store, no_advance, tools)
        except BaseException:
            progress.end(base.key, title, "failed")
            raise
        store.put_layer(base.key, record)
    progress.end(base.key, title, "done", record.size)
    return record


def _layout(
    layers: Sequence[tuple[Path, LayerRecord | BaseLayer]],
    run: Mapping[str, object],
    architecture: str,
    folder: Path,
) -> str:
    """Write an image of these layers, the lowest first: image-spec 1.1, image-layout.md."""
    records = [record for _, record in layers]
    config = documents.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [record.diff_id for record in records]},
        }
    )
    manifest = oci.manifest_document(config, records)
    name = documents.digest_of(manifest)
    made = layout.Layout(
        blobs={
            **{record.digest: file for file, record in layers},
            documents.digest_of(config): config,
            name: manifest,
        },
        manifests=[oci.descriptor(oci.MANIFEST_TYPE, manifest)],
    )
    with explained(folder):
        layout.write_folder(made, folder)
    return f"oci-layout://{folder}@{name}"
