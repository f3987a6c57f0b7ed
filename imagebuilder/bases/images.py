"""Read any image, from the local engine or a registry: its files and its config. It is never run."""

from __future__ import annotations

import contextlib
import io
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from docker.errors import ImageNotFound

from imagebuilder.bases import fetch, inventory, tree
from imagebuilder.bases.inventory import Inventory
from imagebuilder.bases.read import layers_of
from imagebuilder.bases.tree import Tree
from imagebuilder.core import platforms, tarstream
from imagebuilder.core.reference import Reference, parse
from imagebuilder.core.streams import HashedReader, IterReader
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import (
    BuildError,
    EnvironmentFault,
    ImagebuilderError,
    InputError,
    Problem,
    RegistryError,
)
from imagebuilder.host import engine as engines
from imagebuilder.host import leftovers
from imagebuilder.host.engine import Engine
from imagebuilder.registry import pull
from imagebuilder.registry.client import reader_of

if TYPE_CHECKING:
    from imagebuilder.host.site import Site
    from imagebuilder.store import Store

_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that was read: where it came from, its platform, and its contents."""

    place: str
    platform: str
    contents: Inventory


def read(name: str, platform: str, site: Site, store: Store) -> Image:
    """Read an image from the local engine; if the engine does not have it, from its registry.

    Args:
        name: as for `docker run`; an id names an image of the engine.
        platform: the platform to read. "" reads the engine's image whatever its platform is, and from a
            registry the image for this host's platform.
        site: how to reach the registry.
        store: keeps the layers that a registry sends.

    Raises:
        InputError: there is no such image, it is for another platform, or it is of an unsupported system.
        RegistryError: the registry has no such image, or cannot be reached.
        FetchError: a layer could not be downloaded.
        BuildError: a layer is damaged.

    """
    reference, asked = parse(name), ""
    try:
        local, asked = _local(name, platform)
        return local or _in_registry(reference, platform, site, store)
    except ImagebuilderError as error:
        # Errors about bases name a key of the recipe, but there is no recipe yet: name the image instead.
        error.problems = tuple(
            Problem(
                message=f"{problem.message}; {asked}"
                if isinstance(error, RegistryError)
                else problem.message,
                where=printable(name) if problem.where in {"", "base: image"} else problem.where,
                hint=problem.hint,
            )
            for problem in error.problems
        )
        raise


def _local(name: str, platform: str) -> tuple[Image | None, str]:
    """Read an image from the local engine. If it is not there, say why for the registry's errors."""
    with contextlib.ExitStack() as stack:
        try:
            engine = stack.enter_context(engines.connect("auto"))
        except EnvironmentFault:  # without an engine, the registry may still have the image
            return None, "no local engine answers"
        return _in_engine(engine, name, platform), f"the local {engine.kind} does not have it"


def _in_engine(engine: Engine, name: str, platform: str) -> Image | None:
    """Read an image from the local engine; return None if the engine does not have it."""
    try:
        with engines.explained(f"asking {engine.kind} for the image"):
            attributes: Mapping[str, Any] = engine.client.images.get(name).attrs
    except EnvironmentFault as error:
        if isinstance(error.__cause__, ImageNotFound):
            return None
        raise
    own = f"{attributes.get('Os')}/{attributes.get('Architecture')}"
    if own not in platforms.KNOWN or platform not in {"", own}:
        raise InputError(
            f"{engine.kind} has it for {printable(own)}, not for {platform or ' or '.join(platforms.KNOWN)}",
            hint="pull the other platform's, or name an image of a registry",
        )
    config = attributes.get("Config")
    contents = inventory.of_tree(_exported(engine, name), config if isinstance(config, dict) else {}, name)
    return Image(place=f"{engine.kind}'s {attributes.get('Id', '')[:19]}", platform=own, contents=contents)


def _exported(engine: Engine, name: str) -> Tree:
    """Read the files of an image from the engine's export of a container that is never started."""
    api: Any = engine.client.api
    run_id = secrets.token_hex(8)
    leftovers.sweep(engine)
    try:
        with engines.explained(f"reading `{name}`"):
            # Engines require a command; this one is never run.
            container = api.create_container(
                name,
                command=["none"],
                network_disabled=True,
                name=leftovers.name(run_id),
                labels=leftovers.labels(run_id, 1.0),
            )["Id"]
            sent = HashedReader(cast("BinaryIO", IterReader(api.export(container, chunk_size=_PIECE))))
            stream = cast("BinaryIO", io.BufferedReader(sent, _PIECE))
            return tree.read_stream(stream, inventory.wanted, name)
    except tarstream.errors() as error:
        raise BuildError(f"its files cannot be read: {printable(str(error))}") from error
    finally:
        leftovers.remove(engine, run_id)


def _in_registry(reference: Reference, platform: str, site: Site, store: Store) -> Image:
    name = str(reference)
    platform = platform or platforms.own() or platforms.DEFAULT
    client = reader_of(reference, site)
    tag = reference.digest or reference.tag or "latest"
    pulled = pull.find(client, tag, platforms.architecture(platform))
    layers = layers_of(pulled)
    fetch.fetch_layers(layers, client, store, advance=_nothing, finished=_nothing)
    blobs = [(store.download(layer.sha256), layer.diff_id) for layer in layers]
    files = tree.read(blobs, inventory.wanted, name)
    return Image(
        place=f"{reference.host}, {pulled.digest[:19]}",
        platform=platform,
        contents=inventory.of_tree(files, pulled.config, name),
    )


def _nothing(*_told: object) -> None:
    """Ignore progress."""
