"""Push an image: first the blobs that the registry lacks, then the manifest, then the tags.

For several platforms, all images come before their index, and the index before any tag. So an interrupted
push leaves no image without its layers, and the next push continues where it stopped.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

from imagebuilder.core import labels as label_names
from imagebuilder.core.documents import digest_of
from imagebuilder.core.progress import Advance, no_advance
from imagebuilder.core.reference import Reference, check_tag, parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import GateError, InputError, Problem, RegistryError
from imagebuilder.registry import reader, sources
from imagebuilder.registry.blob import MOUNTED, PUSHED, REUSED, Blob, Upload, damaged
from imagebuilder.registry.client import Client, Options, RequestOptions
from imagebuilder.store import ImageRecord, IndexRecord, Store

log = logging.getLogger(__name__)

_PARALLEL = 4


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What a push did.

    Attributes:
        reference: the image by digest, `host/path@sha256:...`.
        digest: digest of its manifest.
        tags: its tags.
        pushed_bytes: size of the blobs that were sent.
        pushed_blobs, mounted_blobs, reused_blobs: how many blobs were sent, linked from another repository
            of the registry, and in the repository already.
        reused_bytes: size of the blobs that were not sent.
        moved: tags that pointed to another image before, and its digest.
        retries: how often a request was repeated.
        resumed: how often an interrupted upload was continued.
        resent_bytes: bytes of layers that were sent more than once.
        seconds: duration of the push.

    """

    reference: str
    digest: str
    tags: tuple[str, ...]
    pushed_bytes: int
    pushed_blobs: int
    mounted_blobs: int
    reused_blobs: int
    reused_bytes: int
    moved: tuple[tuple[str, str], ...]
    retries: int
    resumed: int
    resent_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where to push an image.

    Attributes:
        reference: `host/path` or `host/path:tag`.
        tags: its tags, besides the one in the reference.
        own: tags that may be moved from another image of the same recipe, because they only state versions.
        move: whether any tag may be moved from another image.
        options: how to reach the registry.

    """

    reference: str
    tags: tuple[str, ...] = ()
    own: Collection[str] = ()
    move: bool = False
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, kw_only=True)
class Tags:
    """The new tags of an image, and which of them may be moved from another image.

    Attributes:
        names: the tags, each once.
        recipe: name of the image's recipe.
        own: tags that may be moved if the other image is of the same recipe.
        move: whether every tag may be moved.

    """

    names: tuple[str, ...]
    recipe: str
    own: Collection[str] = ()
    move: bool = False

    def standing(self, client: Client, digest: str) -> dict[str, str]:
        """Return the tags that point to another image now, and its digest.

        Raises:
            GateError: some of them may not be moved; names each, and both recipes.

        """
        present = {tag: client.head_manifest(tag) for tag in self.names}
        standing = {tag: there for tag, there in present.items() if there not in {"", digest}}
        self.require_movable(client, standing)
        return standing

    def require_movable(self, client: Client, standing: Mapping[str, str]) -> None:
        """Refuse tags that may not be moved; `standing` has the digest that each points to now.

        Raises:
            GateError: some may not be moved; names each, and both recipes.

        """
        if self.move:
            return
        problems = [self._problem(client, tag, digest) for tag, digest in standing.items()]
        if refused := [problem for problem in problems if problem]:
            raise GateError.of(refused)

    def _problem(self, client: Client, tag: str, digest: str) -> Problem | None:
        recipe = _recipe_of(client, digest)
        if tag in self.own and recipe == self.recipe:
            return None
        whose = ""
        if recipe != self.recipe:
            whose = f" of the recipe `{printable(recipe)}`" if recipe else " without the name of a recipe"
            whose += f", and this one is of `{self.recipe}`"
        return Problem(
            message=f"the tag {tag} points to another image, {digest}{whose}",
            where=f"{client.reference.name}:{tag}",
            hint="choose another tag, or add --move: users of the tag then get another image",
        )


def push(
    image: ImageRecord | IndexRecord,
    store: Store,
    destination: Destination,
    *,
    attach: Callable[[Client], object] | None = None,
    bring: Callable[[Blob], None] | None = None,
    advance: Advance = no_advance,
) -> PushResult:
    """Push an image of the store, or the images of several platforms and the index that joins them.

    Args:
        image: the image or index.
        store: the store with its blobs.
        destination: where to push, and with which tags.
        attach: called when everything has been pushed, before any tag points to it.
        bring: fetches a layer that is neither here nor in the registry; without it such a layer is an error.
        advance: called with the number of bytes done, `image.size` in all; reused blobs count at once.

    Raises:
        InputError: the reference or a tag is invalid.
        GateError: a tag points to another image and may not be moved; nothing was sent.
        RegistryError: the registry refused, broke or cannot be reached.
        StoreError: a blob is gone or damaged.

    """
    started = time.monotonic()
    target, names = _target(destination)
    tags = Tags(names=names, recipe=image.name, own=destination.own, move=destination.move)
    with store.in_use():
        manifests, blobs = _contents(image, store)
        known = sources.known(store, target)
        elsewhere = {blob.digest: known.get(blob.digest, target.path) for blob in blobs}
        linked = {digest: path for digest, path in elsewhere.items() if path != target.path}
        client = Client(target, destination.options, "pull,push", tuple(sorted(set(linked.values()))))
        standing = tags.standing(client, image.manifest)
        uploads = [Upload(client, blob, linked.get(blob.digest, ""), advance, bring) for blob in blobs]
        fates = push_blobs(client, uploads)
        sources.remember(store, target, [blob.digest for blob in blobs])
        for digest, data in manifests.items():
            _push_manifest(client, digest, data)
        if attach is not None:
            attach(client)
        _set_tags(client, image.manifest, _sending(manifests[image.manifest]), tags)
    advance(sum(len(manifests[one.manifest]) for one in image.images))
    stayed = [blob for blob in blobs if fates[blob.digest] != PUSHED]
    return PushResult(
        reference=f"{target.name}@{image.manifest}",
        digest=image.manifest,
        tags=names,
        pushed_bytes=sum(blob.size for blob in blobs) - sum(blob.size for blob in stayed),
        pushed_blobs=len(blobs) - len(stayed),
        mounted_blobs=sum(fates[blob.digest] == MOUNTED for blob in stayed),
        reused_blobs=sum(fates[blob.digest] == REUSED for blob in stayed),
        reused_bytes=sum(blob.size for blob in stayed),
        moved=tuple(standing.items()),
        retries=client.retries,
        resumed=sum(upload.resumed for upload in uploads),
        resent_bytes=_resent(uploads, fates),
        seconds=time.monotonic() - started,
    )


def push_index(
    client: Client, data: bytes, tags: Tags, attach: Callable[[str], object]
) -> tuple[tuple[str, str], ...]:
    """Push an index of images that the repository has already.

    Args:
        client: the repository's client, with the right to push.
        data: the index.
        tags: its tags.
        attach: called with the index's digest, before any tag points to it.

    Returns:
        The tags that pointed to another image before, and its digest.

    Raises:
        InputError: a tag is invalid.
        GateError: a tag points to another image and may not be moved; nothing was sent.
        RegistryError: the registry refused, broke or cannot be reached.

    """
    digest = digest_of(data)
    tags = replace(tags, names=tuple(dict.fromkeys(check_tag(tag) for tag in tags.names)))
    standing = tags.standing(client, digest)
    _push_manifest(client, digest, data)
    attach(digest)
    _set_tags(client, digest, _sending(data), tags)
    return tuple(standing.items())


def promote(client: Client, digest: str, tags: Tags) -> tuple[tuple[str, str], ...]:
    """Point tags to an image or index that the repository has already: to exactly this digest.

    Args:
        client: the repository's client, with the right to push.
        digest: of the image or index.
        tags: its new tags.

    Returns:
        The tags that pointed to another image before, and its digest.

    Raises:
        InputError: a tag is invalid.
        GateError: a tag points to another image and may not be moved; nothing was changed.
        RegistryError: the registry refused, broke or cannot be reached.

    """
    tags = replace(tags, names=tuple(dict.fromkeys(check_tag(tag) for tag in tags.names)))
    standing = tags.standing(client, digest)
    found = client.get_manifest(digest)
    sending = RequestOptions(headers={"Content-Type": found.media_type}, body=found.data)
    _set_tags(client, digest, sending, tags)
    return tuple(standing.items())


def _target(destination: Destination) -> tuple[Reference, tuple[str, ...]]:
    """Return the repository to push to, and all tags.

    Raises:
        InputError: the reference or a tag is invalid, or there is no tag.

    """
    target = parse(destination.reference)
    if target.digest:
        raise InputError(
            "a push goes to a tag, not to a digest",
            where=destination.reference,
            hint=f"write `{target.name}`",
        )
    names = tuple(dict.fromkeys(check_tag(tag) for tag in (target.tag, *destination.tags) if tag))
    if not names:
        raise InputError("no tag is given", where=destination.reference, hint=f"write `{target.name}:TAG`")
    return target, names


def _resent(uploads: Sequence[Upload], fates: Mapping[str, str]) -> int:
    """Return the number of bytes that were sent more than once."""
    return sum(
        upload.sent - (upload.blob.size if fates[upload.blob.digest] == PUSHED else 0) for upload in uploads
    )


def _contents(image: ImageRecord | IndexRecord, store: Store) -> tuple[Mapping[str, bytes], tuple[Blob, ...]]:
    """Return the manifests (the last one lists the others) and their blobs, each once, the largest first.

    Raises:
        StoreError: a blob is missing or damaged.

    """
    digests = dict.fromkeys((*(one.manifest for one in image.images), image.manifest))
    manifests = {digest: _manifest(digest, image.name, store) for digest in digests}
    blobs: dict[str, Blob] = {}
    for one in image.images:
        manifest: dict[str, Any] = json.loads(manifests[one.manifest])
        for part in (manifest["config"], *manifest["layers"]):
            place = store.blob(part["digest"])
            blobs[part["digest"]] = Blob(digest=part["digest"], size=part["size"], path=place)
    for blob in blobs.values():
        if not store.is_known(blob.digest, blob.size):
            raise damaged(blob.path, image.name)
    # The largest first, so that all connections stay busy until shortly before the end.
    return manifests, tuple(sorted(blobs.values(), key=lambda blob: (-blob.size, blob.digest)))


def _manifest(digest: str, name: str, store: Store) -> bytes:
    path = store.blob(digest)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise damaged(path, name) from error
    if digest_of(data) != digest:
        raise damaged(path, name)
    return data


def _recipe_of(client: Client, digest: str) -> str:
    """Return the recipe of an image, or of an index's images; "" if its labels name none."""
    try:
        if index := reader.image_index(client, digest):
            return index[1].annotations.get(label_names.RECIPE, "")
        _, manifest = reader.image_manifest(client, digest)
        config = reader.json_object(reader.blob(client, manifest.config), client.reference.name)
    except RegistryError as error:  # damaged, or made by another tool
        log.debug("%s: %s", digest, error)
        return ""
    settings = config.get("config")
    labels = settings.get("Labels") if isinstance(settings, dict) else None
    name = labels.get(label_names.RECIPE) if isinstance(labels, dict) else None
    return name if isinstance(name, str) else ""


def push_blobs(client: Client, uploads: Sequence[Upload]) -> dict[str, str]:
    """Push all blobs, several at once. Returns how each got there, by digest."""
    fates = {}
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="push") as pool:
        waiting = {pool.submit(upload.run): upload.blob for upload in uploads}
        try:
            for done in as_completed(waiting):
                fates[waiting[done].digest] = done.result()
        except BaseException:
            # The others stop at their next piece. The registry discards unfinished uploads itself.
            client.stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return fates


def _push_manifest(client: Client, digest: str, data: bytes) -> None:
    """Put the manifest by its digest, and check that the registry returns the same bytes."""
    if client.head_manifest(digest) != digest:
        client.request("PUT", f"manifests/{digest}", wanted=(201,), options=_sending(data))
    client.get_manifest(digest)


def _sending(manifest: bytes) -> RequestOptions:
    return RequestOptions(headers={"Content-Type": json.loads(manifest)["mediaType"]}, body=manifest)


def _set_tags(client: Client, digest: str, manifest: RequestOptions, tags: Tags) -> None:
    """Point the tags to the manifest with this digest."""
    for tag in tags.names:
        there = client.head_manifest(tag)
        if there == digest:
            continue
        if there:  # somebody else may have set it while the layers were sent
            tags.require_movable(client, {tag: there})
        client.request("PUT", f"manifests/{tag}", wanted=(201,), options=manifest)
        if client.head_manifest(tag) != digest:
            raise RegistryError(
                f"the tag {tag} does not point to the pushed image",
                where=client.reference.name,
                hint="somebody else may be pushing the same tag; push again",
            )
