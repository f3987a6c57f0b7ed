"""What the `os` stage stands on: the suite's image from a registry, or one made here of locked packages.

The latter has the essential packages and apt, each as locked: nothing has to be reached for it, and the same
lock gives the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuilder import emulation, oci, platforms, process, suites, toolbox
from imagebuilder.engines import buildx
from imagebuilder.engines.buildx import Builder
from imagebuilder.engines.means import Choice
from imagebuilder.engines.workshop import Workshop
from imagebuilder.errors import EnvironmentFault
from imagebuilder.layers import debs as relations
from imagebuilder.layers import system
from imagebuilder.lock import BaseImage, BaseLayer
from imagebuilder.plan import OsLayer, User
from imagebuilder.process import CommandError
from imagebuilder.progress import no_advance
from imagebuilder.site import Site
from imagebuilder.store import LayerRecord, Store, check_bytes, explained, link_or_copy
from imagebuilder.toolbox import Toolbox

_LIMIT = 600.0  # seconds for an engine to take 50 MB, or to let go of them


@dataclass(frozen=True, kw_only=True)
class Base:
    """Where the base comes from: a registry, with this digest; or, without one, the lock's packages."""

    name: str
    digest: str = ""

    @property
    def context(self) -> str:
        """The place of a base from a registry, as a build context has it."""
        return f"docker-image://{self.name}@{self.digest}"


def choose(layer: OsLayer, wanted: Choice, site: Site, *, registry_first: bool) -> Base:
    """Decide where the base comes from.

    Args:
        layer: the packages that will stand on it.
        wanted: `registry`, `bootstrap`, or `auto` for what can be had.
        site: says where the tools are that make a base.
        registry_first: what `auto` prefers where this host has the tools itself.

    Raises:
        EnvironmentFault: the registry was asked for, and does not answer.

    """
    name = f"{layer.distribution}:{layer.suite}"
    at_hand = not toolbox.choose(site).contained and emulation.runs(platforms.of(layer.architecture))
    if wanted == "bootstrap" or (wanted == "auto" and at_hand and not registry_first):
        return Base(name=name)
    if digest := buildx.base_digest(name):
        return Base(name=name, digest=digest)
    if wanted == "auto":
        return Base(name=name)
    raise EnvironmentFault(
        f"no registry answers for the base `{name}`",
        where="--base",
        hint="--base bootstrap makes it here, from the lock's packages",
    )


@contextlib.contextmanager
def handed(base: Base, layer: OsLayer, builder: Builder, shop: Workshop) -> Iterator[str]:
    """Give a builder the base for as long as the block runs; without a registry it is made first.

    Args:
        base: where it comes from.
        layer: whose essential packages it has; all of its packages are in the store.
        builder: what is to take it.
        shop: where it is kept, and whom to tell.

    Yields:
        Its place, as a build context has it.

    Raises:
        BuildError: a package's script failed.
        EnvironmentFault: mmdebstrap is missing, this user may not make namespaces, or the engine refused.

    """
    if base.digest:
        yield base.context
        return
    record = bootstrap(layer, shop)
    if builder.merges:
        with shop.store.work() as folder:
            blobs = ((shop.store.blob(record.digest), record),)
            yield _layout(blobs, {"Cmd": ["bash"]}, layer.architecture, folder / "base")
        return
    # An engine with the classic store reads no layouts: there the base is an image, for as long as it takes.
    name = f"imagebuilder-base:{record.diff_id.removeprefix('sha256:')[:12]}-{secrets.token_hex(4)}"
    blob = shop.store.blob(record.digest)
    try:
        process.run(
            ["docker", "import", "--platform", f"linux/{layer.architecture}", blob, name], timeout=_LIMIT
        )
    except CommandError as error:
        raise EnvironmentFault(
            f"the engine does not take the base: {error.result.stderr.strip()}",
            where="--engine docker",
            hint="is its disk full?",
        ) from error
    try:
        yield f"docker-image://{name}"
    finally:
        process.run(["docker", "image", "rm", name], timeout=_LIMIT, check=False)


def imported(image: BaseImage, architecture: str, store: Store, folder: Path) -> str:
    """Lay out a registry's base from the store: nobody has to reach the registry once more.

    Args:
        image: what the lock says of it; its layers are in the store.
        architecture: as OCI names it.
        store: has the layers.
        folder: where to; made here.

    Returns:
        Its place, as a build context has it.

    """
    for layer in image.layers:
        check_bytes(store.download(layer.sha256), layer.sha256, f"a layer of {image.name}")
    config: dict[str, object] = {
        "Env": [f"{name}={value}" for name, value in image.env.items()],
        "Labels": image.labels,
        **({"User": image.user} if image.user else {}),
    }
    blobs = tuple((store.download(layer.sha256), layer) for layer in image.layers)
    return _layout(blobs, config, architecture, folder)


def bootstrap(layer: OsLayer, shop: Workshop) -> LayerRecord:
    """Make the base from the layer's packages, if the store does not have it.

    Raises:
        BuildError: a package's script failed.
        EnvironmentFault: mmdebstrap is missing, or this user may not make namespaces.

    """
    tools = toolbox.choose(shop.site)
    files = {deb.sha256: shop.store.download(deb.sha256) for deb in layer.debs}
    packages = system.relations(layer, files, shop.store, tools)
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
    return _record(base, files, shop, tools)


def _record(base: OsLayer, files: Mapping[str, Path], shop: Workshop, tools: Toolbox) -> LayerRecord:
    store, progress, title = shop.store, shop.progress, f"base: {base.title}"
    with store.exclusive(base.key):
        record = store.layer(base.key)
        if record is not None:
            progress.end(base.key, title, "cached", record.size)
            return record
        progress.begin(base.key, title, "installing")
        try:
            record = system.build_os_layer(base, files, store, no_advance, tools)
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
    blobs = folder / "blobs" / "sha256"
    with explained(folder):
        blobs.mkdir(parents=True)
        for file, record in layers:
            place = blobs / record.digest.removeprefix("sha256:")
            if not place.exists():  # a layer may be there twice
                link_or_copy(file, place)
        config = _put(
            blobs,
            oci.CONFIG_TYPE,
            {
                "architecture": architecture,
                "os": "linux",
                "config": run,
                "rootfs": {"type": "layers", "diff_ids": [record.diff_id for _, record in layers]},
            },
        )
        described = [
            {"mediaType": record.media_type, "digest": record.digest, "size": record.size}
            for _, record in layers
        ]
        manifest = _put(
            blobs,
            oci.MANIFEST_TYPE,
            {"schemaVersion": 2, "mediaType": oci.MANIFEST_TYPE, "config": config, "layers": described},
        )
        index = {"schemaVersion": 2, "mediaType": oci.INDEX_TYPE, "manifests": [manifest]}
        (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
        (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}), encoding="utf-8")
    return f"oci-layout://{folder}@{manifest['digest']}"


def _put(blobs: Path, media_type: str, document: object) -> dict[str, Any]:
    data = json.dumps(document, sort_keys=True).encode()
    name = hashlib.sha256(data).hexdigest()
    (blobs / name).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(data)}
