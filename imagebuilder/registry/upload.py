"""Push an image: only the blobs that the registry lacks travel, the manifest after them, the tags last.

Of several platforms all images are there before the index that names them, and that before any tag. So an
interrupted push leaves no image that misses a layer, and pushing again goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from imagebuilder.errors import GateError, InputError, Problem, RegistryError
from imagebuilder.progress import Advance, no_advance
from imagebuilder.registry import sources
from imagebuilder.registry.blob import MOUNTED, PUSHED, REUSED, Blob, Upload, damaged
from imagebuilder.registry.client import Client, Options
from imagebuilder.registry.reference import check_tag, parse
from imagebuilder.store import ImageRecord, IndexRecord, Store

_PARALLEL = 4


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What a push did.

    Attributes:
        reference: the image by digest, `host/path@sha256:...`.
        digest: of its manifest.
        tags: that now stand for it.
        pushed_bytes: size of the blobs that travelled.
        pushed_blobs, mounted_blobs, reused_blobs: how many travelled, were linked from another repository
            of the registry, and were there already.
        reused_bytes: size of those that did not travel.
        moved: tags that stood for another image before, and its digest.
        retries: how often something was tried again.
        resumed: how often an upload went on in the middle after it was cut off.
        resent_bytes: of layers, that travelled more than once.
        seconds: it took.

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


def push(
    image: ImageRecord | IndexRecord,
    store: Store,
    reference: str,
    tags: Sequence[str] = (),
    *,
    options: Options | None = None,
    move: bool = False,
    own: Collection[str] = (),
    attach: Callable[[Client], object] | None = None,
    advance: Advance = no_advance,
) -> PushResult:
    """Push an image of the store, or the images of several platforms and the index that joins them.

    Args:
        image: what to push.
        store: that holds its blobs.
        reference: where to, `host/path` or `host/path:tag`.
        tags: to give it there, besides the one in the reference.
        options: how to reach the registry.
        move: let a tag that stands for another image stand for this one.
        own: tags that may always do so, for they say nothing but what is inside.
        attach: called when all is there, and before any tag stands for it.
        advance: told the bytes done, of `image.size` in all; bytes that need not travel count at once.

    Raises:
        InputError: the reference or a tag is not one.
        GateError: a tag stands for another image, and may not be moved; nothing was sent.
        RegistryError: the registry refused, broke or cannot be reached.
        StoreError: a blob is gone or damaged.

    """
    started = time.monotonic()
    target = parse(reference)
    if target.digest:
        raise InputError(
            "a push goes to a tag, not to a digest", where=reference, hint=f"write `{target.name}`"
        )
    names = tuple(dict.fromkeys(check_tag(tag) for tag in (target.tag, *tags) if tag))
    if not names:
        raise InputError("no tag is given", where=reference, hint=f"write `{target.name}:TAG`")
    with store.in_use():
        manifests, blobs = _contents(image, store)
        known = sources.known(store, target)
        elsewhere = {
            blob.digest: known[blob.digest]
            for blob in blobs
            if known.get(blob.digest, target.path) != target.path
        }
        client = Client(target, options or Options(), "pull,push", tuple(sorted(set(elsewhere.values()))))
        standing = _standing(client, image.manifest, names)
        stuck = {} if move else {tag: there for tag, there in standing.items() if tag not in own}
        if stuck:
            raise _immovable(target.name, stuck)
        uploads = [Upload(client, blob, elsewhere.get(blob.digest, ""), advance) for blob in blobs]
        fates = _push_blobs(client, uploads)
        sources.remember(store, target, [blob.digest for blob in blobs])
        for digest, data in manifests.items():
            _push_manifest(client, digest, data)
        if attach is not None:
            attach(client)
        _set_tags(client, image.manifest, manifests[image.manifest], names, names if move else own)
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
        resent_bytes=sum(
            upload.sent - (upload.blob.size if fates[upload.blob.digest] == PUSHED else 0)
            for upload in uploads
        ),
        seconds=time.monotonic() - started,
    )


def push_index(
    client: Client,
    data: bytes,
    tags: Sequence[str],
    *,
    move: bool = False,
    own: Collection[str] = (),
    attach: Callable[[str], object],
) -> tuple[tuple[str, str], ...]:
    """Push an index of images that the repository has already.

    Args:
        client: of the repository, signed in to push.
        data: the index.
        tags: to give it.
        move: let a tag that stands for another image stand for this one.
        own: tags that may always do so.
        attach: called with the index's digest, before any tag stands for it.

    Returns:
        the tags that stood for another image before, and its digest.

    Raises:
        InputError: a tag is none.
        GateError: a tag stands for another image, and may not be moved; nothing was sent.
        RegistryError: the registry refused, broke or cannot be reached.

    """
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    names = tuple(dict.fromkeys(check_tag(tag) for tag in tags))
    standing = _standing(client, digest, names)
    stuck = {} if move else {tag: there for tag, there in standing.items() if tag not in own}
    if stuck:
        raise _immovable(client.reference.name, stuck)
    _push_manifest(client, digest, data)
    attach(digest)
    _set_tags(client, digest, data, names, names if move else own)
    return tuple(standing.items())


def _contents(image: ImageRecord | IndexRecord, store: Store) -> tuple[Mapping[str, bytes], tuple[Blob, ...]]:
    """Read the manifests, the last of which names the others, and find what they name: all there, each once.

    The blobs are sorted by size, the largest first.
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
        if not store.has_blob(blob.digest, blob.size):
            raise damaged(blob.path, image.name)
    # The largest first: what is last keeps only one of the connections busy.
    return manifests, tuple(sorted(blobs.values(), key=lambda blob: (-blob.size, blob.digest)))


def _manifest(digest: str, name: str, store: Store) -> bytes:
    path = store.blob(digest)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise damaged(path, name) from error
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise damaged(path, name)
    return data


def _standing(client: Client, digest: str, tags: Sequence[str]) -> dict[str, str]:
    """Find the tags that stand for another image now, and its digest."""
    found = {tag: client.head_manifest(tag) for tag in tags}
    return {tag: there for tag, there in found.items() if there not in {"", digest}}


def _immovable(name: str, standing: Mapping[str, str]) -> GateError:
    problems = [
        Problem(
            message=f"the tag {tag} stands for another image, {digest}",
            where=f"{name}:{tag}",
            hint="choose another tag, or say --move: whoever runs it by its tag then gets other bytes",
        )
        for tag, digest in standing.items()
    ]
    error = GateError(problems[0].message)
    error.problems = tuple(problems)
    return error


def _push_blobs(client: Client, uploads: Sequence[Upload]) -> dict[str, str]:
    """Bring all blobs into the repository, several at once: how each of them came there."""
    fates = {}
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="push") as pool:
        waiting = {pool.submit(upload.run): upload.blob for upload in uploads}
        try:
            for done in as_completed(waiting):
                fates[waiting[done].digest] = done.result()
        except BaseException:
            # The others stop at their next piece; what they sent so far, the registry forgets by itself.
            client.stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return fates


def _push_manifest(client: Client, digest: str, data: bytes) -> None:
    """Put the manifest by its digest, and see that it is what was sent."""
    headers = {"Content-Type": json.loads(data)["mediaType"]}
    if client.head_manifest(digest) != digest:
        client.request("PUT", f"manifests/{digest}", wanted=(201,), headers=headers, body=data)
    client.get_manifest(digest)


def _set_tags(
    client: Client, digest: str, data: bytes, tags: Sequence[str], movable: Collection[str]
) -> None:
    """Let the tags stand for the manifest."""
    headers = {"Content-Type": json.loads(data)["mediaType"]}
    for tag in tags:
        there = client.head_manifest(tag)
        if there == digest:
            continue
        if there and tag not in movable:  # somebody else set it while the layers travelled
            raise _immovable(client.reference.name, {tag: there})
        client.request("PUT", f"manifests/{tag}", wanted=(201,), headers=headers, body=data)
        if client.head_manifest(tag) != digest:
            raise RegistryError(
                f"the tag {tag} does not stand for what was pushed",
                where=client.reference.name,
                hint="somebody else may be pushing the same tag; push again",
            )
