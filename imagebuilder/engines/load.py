"""Loads an image of the store into the container engine by a pull, which sends only the layers that it lacks.

An engine that cannot reach this host's loopback (on another host, in a virtual machine, or rootless with a
separate network) gets an archive with all layers through its socket.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import requests
from docker.errors import APIError, DockerException, ImageNotFound

from imagebuilder.core import labels as label_names
from imagebuilder.core import platforms
from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.core.yamlfile import printable
from imagebuilder.engines import endpoint
from imagebuilder.errors import EnvironmentFault
from imagebuilder.image import layout
from imagebuilder.recipe.tags import of_platform
from imagebuilder.store import ImageRecord, Store

if TYPE_CHECKING:
    from imagebuilder.host.engine import Engine

log = logging.getLogger(__name__)

# The SDK's address of a Unix socket. An engine behind ssh or TCP is on another loopback.
_LOCAL_SOCKET = "http+docker://localhost"
_LONGEST = 500


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """The loaded image.

    Attributes:
        reference: its first name in the engine, `name:tag`.
        references: all of its names there.
        moved_bytes: the bytes of the blobs that were sent; 0 if the engine had them all.
        by_archive: whether an archive was sent because the engine could not pull.

    """

    reference: str
    references: tuple[str, ...]
    moved_bytes: int
    by_archive: bool


def load(
    image: ImageRecord,
    store: Store,
    engine: Engine,
    tags: Sequence[str] = (),
    *,
    advance: Advance = no_advance,
) -> LoadResult:
    """Load an image, name it `name:<its tag>` and `name:latest`, and check what the engine has.

    An older image of the same recipe that loses its last name by this is removed, unless a container uses it.

    For another architecture than this host's, each tag ends with it (`latest-arm64`), so that the image does
    not replace the one that runs here without an emulator.

    Args:
        image: the image.
        store: has its blobs.
        engine: the engine, from `imagebuilder.host.engine.connect`.
        tags: more tags, besides the image's own and `latest`.
        advance: called with the bytes sent.

    Raises:
        EnvironmentFault: the engine failed, or has another image than the one sent.

    """
    # Podman keeps local images under `localhost/`; a bare name would mean a registry's image.
    name = f"localhost/{image.name}" if engine.kind == "podman" else image.name
    wanted = tuple(dict.fromkeys((image.tag, *tags, "latest")))
    if image.platform != platforms.own():
        wanted = tuple(of_platform(tag, image.platform) for tag in wanted)
    references = tuple(f"{name}:{tag}" for tag in wanted)
    moved, by_archive = 0, False
    with _explained(engine), store.in_use():
        older = _named(engine, references)
        if not _has(engine, references[0], image):
            moved, by_archive = _send(image, store, engine, references[0], advance)
        _check(engine, references[0], image, store)
        for tag in wanted[1:]:
            engine.client.api.tag(references[0], name, tag)
        _remove_nameless(engine, older, references[0])
    return LoadResult(
        reference=references[0], references=references, moved_bytes=moved, by_archive=by_archive
    )


def _send(
    image: ImageRecord, store: Store, engine: Engine, reference: str, advance: Advance
) -> tuple[int, bool]:
    """Send the layers that the engine lacks; returns the bytes sent, and whether in an archive."""
    address = engine.client.api.base_url
    reason = ""
    if address == _LOCAL_SOCKET:
        with endpoint.serve(image, store, advance) as source:
            said = _pull(engine, source)
            if not said:
                _rename(engine, f"{source.repository}:{source.tag}", reference)
                return source.served, False
        if source.requests:
            raise EnvironmentFault(
                f"{engine.kind} could not take the image: {printable(said)[:_LONGEST]}",
                where=reference,
                hint="the engine's own log says more; is its disk full?",
            )
        reason = printable(said)[:_LONGEST]
    log.warning(
        "%s cannot reach this host's loopback (%s): all layers travel as an archive",
        engine.kind,
        reason or f"it is at {address}",
    )
    counted = _Counter(advance)
    _load_archive(engine, layout.stream(layout.of_image(image, store, reference), counted))
    return counted.total, True


def _pull(engine: Engine, source: endpoint.Endpoint) -> str:
    """Have the engine pull; returns its error message, or "" if it succeeded."""
    api = engine.client.api
    if engine.kind == "podman":
        # Podman accepts plain HTTP only with tlsVerify=false, and only its own API has that option.
        target = quote(f"{source.repository}:{source.tag}", safe="")
        reply = api.post(
            f"{api.base_url}/v4.0.0/libpod/images/pull?reference={target}&tlsVerify=false",
            stream=True,
            timeout=None,
        )
        return _complaint(reply)
    try:
        # Empty credentials, so that no credential helper is asked about this address.
        for event in api.pull(source.repository, tag=source.tag, stream=True, decode=True, auth_config={}):
            if event.get("error"):
                return str(event["error"])
    except APIError as error:
        return str(error.explanation or error)
    return ""


def _complaint(reply: requests.Response) -> str:
    """Read a stream of JSON objects; returns its first error, or that of the reply, or ""."""
    with reply:
        for line in reply.iter_lines():
            try:
                event = json.loads(line) if line else {}
            except ValueError:
                continue
            error = event.get("error") or (event.get("message") if not reply.ok else "")
            if error:
                return str(error)
    return "" if reply.ok else f"status {reply.status_code}"


def _rename(engine: Engine, temporary: str, reference: str) -> None:
    name, _, tag = reference.rpartition(":")
    try:
        engine.client.api.tag(temporary, name, tag)
    finally:
        # Remove the name with the endpoint's address, which is about to disappear.
        with contextlib.suppress(ImageNotFound):
            engine.client.api.remove_image(temporary, noprune=True)


def _has(engine: Engine, reference: str, image: ImageRecord) -> bool:
    try:
        return _is_same(engine.client.images.get(reference).attrs, image)
    except ImageNotFound:
        return False


def _named(engine: Engine, references: Iterable[str]) -> set[str]:
    """Return the ids of the images that have these names so far."""
    ids = set()
    for reference in references:
        with contextlib.suppress(ImageNotFound):
            ids.add(str(engine.client.images.get(reference).id))
    return ids


def _remove_nameless(engine: Engine, ids: Iterable[str], loaded: str) -> None:
    """Remove images that the loaded one has left without a name, if they are of the same recipe.

    Removal is not forced: the engine refuses it for an image that a container uses, also a stopped one, and
    for one that the engine itself needs for another image.
    """
    recipe = engine.client.images.get(loaded).labels.get(label_names.RECIPE)
    for identity in ids:
        try:
            older = engine.client.images.get(identity)
            names = [*older.tags, *(older.attrs.get("RepoDigests") or ())]
            if recipe and not names and older.labels.get(label_names.RECIPE) == recipe:
                engine.client.api.remove_image(identity, noprune=True)
        except ImageNotFound:
            continue  # some engines remove an image with its last name
        except APIError as error:
            log.info("%s keeps the older image %s: %s", engine.kind, identity, error.explanation)


def _is_same(attributes: dict[str, Any], image: ImageRecord) -> bool:
    """Compare ids: Docker's containerd store uses the manifest's digest, others the config's."""
    identity = str(attributes.get("Id", ""))
    identity = identity if identity.startswith("sha256:") else f"sha256:{identity}"
    return identity in {image.manifest, image.config}


def _check(engine: Engine, reference: str, image: ImageRecord, store: Store) -> None:
    """Check that the engine has the image that was sent, with its labels."""
    loaded = engine.client.images.get(reference).attrs
    wanted = json.loads(store.blob(image.config).read_bytes())["config"].get("Labels") or {}
    labels = (loaded.get("Config") or {}).get("Labels") or {}
    if not _is_same(loaded, image) or labels != wanted:
        raise EnvironmentFault(
            f"{engine.kind} has another image than the one sent: {loaded.get('Id')}",
            where=reference,
            hint="load it again; somebody else may have loaded an image of that name meanwhile",
        )


class _Counter:
    """Adds up bytes, and passes them on to a progress display."""

    def __init__(self, advance: Advance) -> None:
        self.total = 0
        self._advance = advance

    def __call__(self, size: int) -> None:
        self.total += size
        self._advance(size)


def _load_archive(engine: Engine, pieces: Iterable[bytes]) -> None:
    api = engine.client.api
    reply = api.post(
        f"{api.base_url}/v{api.api_version}/images/load",
        data=(piece for piece in pieces if piece),
        headers={"Content-Type": "application/x-tar"},
        stream=True,
        timeout=None,
    )
    said = _complaint(reply)
    if said:
        raise EnvironmentFault(
            f"{engine.kind} could not take the image: {printable(said)[:_LONGEST]}",
            hint="the engine's own log says more; is its disk full?",
        )


@contextlib.contextmanager
def _explained(engine: Engine) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise EnvironmentFault(
            f"{engine.kind} could not load the image: {printable(str(error.explanation or error))}",
            hint="the engine's own log says more",
        ) from error
    except (DockerException, requests.RequestException) as error:
        raise EnvironmentFault(
            f"{engine.kind} closed the connection: {printable(str(error))[:_LONGEST]}",
            hint="does the container engine still run?",
        ) from error
