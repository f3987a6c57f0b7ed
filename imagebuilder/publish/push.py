"""Push images: choose them and their tags, check the gates, make the documents, and send everything."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import catalog
from imagebuilder import recipe as recipes
from imagebuilder.core import labels as label_names
from imagebuilder.core.progress import Progress
from imagebuilder.core.reference import parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import GateError, ImagebuilderError, InputError, RegistryError
from imagebuilder.host.site import Site
from imagebuilder.image import repack
from imagebuilder.layers.hints import require_true_tables
from imagebuilder.lock.model import Lock
from imagebuilder.plan import Project
from imagebuilder.publish import gates, inputs, leaks, proof, verdicts
from imagebuilder.publish.attest import bundle, publish, signing_keys
from imagebuilder.publish.attest.bundle import ImageDocument
from imagebuilder.publish.attest.publish import Attached
from imagebuilder.publish.gates import Gate, Placed, Waiver
from imagebuilder.recipe import NotSecret, runtimes
from imagebuilder.recipe.tags import in_repository, of_platform
from imagebuilder.registry import Client, PushResult, options_for, upload
from imagebuilder.registry.blob import Blob
from imagebuilder.registry.cache import Cache, require_here
from imagebuilder.store import ImageRecord, IndexRecord, Store, sparse
from imagebuilder.workflow import Last, labels, last_images, named, require_in_step, require_platform, sharing
from imagebuilder.workflow import source as sources

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


@dataclass(frozen=True, kw_only=True)
class PushRequest:
    """The arguments of a push.

    Attributes:
        target: a recipe's path, or an image's name.
        repository: where to, `host/path` or `host/path:tag`.
        platform: push this platform's image alone; "" for all.
        tags: to give the image, besides the recipe's and the one in `repository`.
        move: let a tag that points to another image stand for this one.
        waived: gates that may refuse, on every platform.
        untested_on: platforms whose image needs no smoke test.
        attach: attach documents.
        plain_http: speak plain HTTP with a registry that does not speak TLS.
        sources: keep beside the image everything that it was built from.
        candidate: the proof is still to come: push under a candidate's tag only, without the gate for it.
        share: sign what the search for secrets found, and put it into the site's cache.
        compression: pack the layers with `gzip` or `zstd`; "" as the recipe says.

    """

    target: str
    repository: str
    platform: str = ""
    tags: tuple[str, ...] = ()
    move: bool = False
    waived: frozenset[str] = frozenset()
    untested_on: tuple[str, ...] = ()
    attach: bool = True
    sources: bool = False
    plain_http: bool = False
    candidate: bool = False
    share: bool = False
    compression: str = ""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Images in the store that are to be pushed, before any gate.

    Attributes:
        request: the arguments of the push.
        last: the images.
        zstd: whether their layers are packed with zstd.
        unreadable: what runtimes that the recipe states cannot read, a sentence each.
        tags: those of the recipe.
        own: the tags that are made from the content alone, such as the lock's checksum.
        waived: gates that may refuse, for each platform.

    """

    request: PushRequest
    last: Last
    zstd: bool
    unreadable: tuple[str, ...]
    tags: tuple[str, ...]
    own: tuple[str, ...]
    waived: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class PushContext:
    """The surroundings of a push.

    Attributes:
        store: has the images.
        site: the site's settings.
        key: to sign with; None for no signatures.
        progress: shows what is being done.
        warn: shows warnings that do not stop the push.

    """

    store: Store
    site: Site
    key: EllipticCurvePrivateKey | None
    progress: Progress
    warn: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """The result of a push.

    Attributes:
        result: of the transfer.
        images: the pushed images, sorted by platform, as they were sent.
        packing_seconds: how long it took to pack layers with zstd; 0 where nothing was packed.
        is_index: whether an index that joins them was pushed too.
        attached: documents and signatures of each image, and last those of the index.
        waivers: of all platforms.

    """

    result: PushResult
    images: tuple[ImageRecord, ...]
    is_index: bool
    attached: tuple[Attached, ...]
    waivers: tuple[Waiver, ...]
    packing_seconds: float = 0.0

    @property
    def signed(self) -> int:
        """The number of new signatures."""
        return sum(item.signed for item in self.attached)


def prepare(request: PushRequest, store: Store) -> Candidate:
    """Find the images to push, and their tags.

    Raises:
        InputError: there is no such image, or an argument is wrong.
        LockError: a recipe's image was never built.

    """
    if request.sources and not request.attach:
        raise InputError(
            "nobody could build from the sources: --no-attach leaves out the recipe and the lock",
            where="--sources",
            hint="leave out --no-attach",
        )
    repository = parse(request.repository).path
    last = last_images(request.target, store, request.platform)
    if last is None:
        raise InputError(
            f"`{request.target}` is not an image in the store",
            where="imagebuilder push",
            hint="give its recipe, or a name that `imagebuilder cache ls` lists; an image of "
            "`build --engine docker` is in Docker: use `docker push`",
        )
    if request.compression not in {"", "gzip", "zstd"}:
        raise InputError(
            f"`{printable(request.compression)}` is unknown: choose gzip or zstd", where="--compression"
        )
    recipe = sources.recipe_of(request.target, last.images[0], store)
    zstd = (request.compression or (recipe.compression if recipe else "")) == "zstd"
    unreadable = tuple(runtimes.warnings(recipe.hosts.runtimes, zstd=zstd)) if recipe else ()
    waived = _waived(request, last)
    if request.candidate:
        _require_no_tags(request)
        return Candidate(
            request=request, last=last, zstd=zstd, unreadable=unreadable, tags=(), own=(), waived=waived
        )
    tags, own = _tags(last, store, repository)
    return Candidate(
        request=request, last=last, zstd=zstd, unreadable=unreadable, tags=tags, own=own, waived=waived
    )


def push(candidate: Candidate, context: PushContext) -> Pushed:
    """Check the gates, then push the images with their documents and signatures, and the tags last.

    Raises:
        ImagebuilderError: a gate refused, see `pass_gates`; or a document holds a secret.
        RegistryError: the registry refused, broke or cannot be reached.

    """
    request, last, store = candidate.request, candidate.last, context.store
    for warning in candidate.unreadable:
        context.warn(warning)
    reviewed = reviewed_files(request.target, last, store)
    _require_shareable(request, context)
    for image in last.images:
        _require_layers(image, request, context)
    waivers = pass_gates(candidate, reviewed, context)
    started = time.monotonic()
    sent = _packed(candidate, context)
    packing = time.monotonic() - started if candidate.zstd else 0.0
    documents = {
        one.manifest: _documents(request.target, (image, one), store, waivers[image.platform])
        if request.attach
        else ()
        for image, one in zip(last.images, sent.images, strict=True)
    }
    search_documents(documents, reviewed, store, context.site)
    built_from = _locks(request.target, last, sent, store) if request.sources else {}
    for lock in built_from.values():
        inputs.bring(lock, store, context.site, context.progress)
    attached: list[Attached] = []
    whole, live, title = sent.whole, context.progress, f"{sent.whole.name} to {request.repository}"
    live.begin("push", title, "pushing", whole.size)
    destination = upload.Destination(
        reference=request.repository,
        tags=((candidate_tag(sent),) if request.candidate else (*candidate.tags, *request.tags)),
        own=candidate.own,
        move=request.move,
        options=options_for(context.site, parse(request.repository).host, plain_http=request.plain_http),
    )
    keep = partial(_keep, built_from, destination, context) if built_from else None
    result = upload.push(
        whole,
        store,
        destination,
        attach=lambda client: attached.extend(_attach(client, sent, documents, keep, context)),
        bring=partial(_bring, whole, context),
        advance=lambda count: live.advance("push", count),
    )
    live.end("push", title, "done", result.pushed_bytes)
    if built_from:
        sparse.squeeze(store)
    if request.share:
        _share(last, context)
    return Pushed(
        result=result,
        images=sent.images,
        is_index=last.index is not None,
        packing_seconds=packing,
        attached=tuple(attached),
        waivers=tuple(waiver for image in last.images for waiver in waivers[image.platform]),
    )


def pass_gates(
    candidate: Candidate, reviewed: Sequence[NotSecret], context: PushContext
) -> Mapping[str, tuple[Waiver, ...]]:
    """Try every gate for every platform.

    Returns:
        The waivers of each platform, to show them and record them in the provenance.

    Raises:
        ImagebuilderError: the error of the gate that refused; a GateError with all findings if several did.

    """
    passed: dict[str, tuple[Waiver, ...]] = {}
    refused: list[ImagebuilderError] = []
    unused = set(reviewed)
    for image in candidate.last.images:
        review = gates.review(_findings(image, context), reviewed)
        unused &= set(review.unused)
        prefix = f"on {image.platform}: " if len(candidate.last.known) > 1 else ""
        own = _gates(candidate.request, image, context, review.findings)
        try:
            waivers = (*gates.pass_all(own, candidate.waived[image.platform]), *review.waivers)
        except ImagebuilderError as error:
            error.problems = tuple(
                dataclasses.replace(item, message=prefix + item.message) for item in error.problems
            )
            refused.append(error)
            continue
        passed[image.platform] = tuple(
            dataclasses.replace(item, reason=prefix + item.reason) for item in waivers
        )
    for item in reviewed:
        if item in unused and not item.path.startswith("(attached)/"):
            context.warn(f"not_secret: nothing was found in {printable(item.path)} with sha256 {item.sha256}")
    if len(refused) > 1:
        raise GateError.of([problem for error in refused for problem in error.problems])
    if refused:
        raise refused[0]
    return passed


def reviewed_files(target: str, last: Last, store: Store) -> tuple[NotSecret, ...]:
    """Return the files that the recipe has reviewed; for an image's name, of the recipe as it was built."""
    if named(target).is_recipe:
        return recipes.load(Path(target), catalog.own.names(Path(target))).not_secret
    image = last.images[0]
    return sources.recall(store, image).parsed().not_secret if store.source(image.manifest).exists() else ()


def search_documents(
    documents: Mapping[str, Sequence[ImageDocument]],
    reviewed: Sequence[NotSecret],
    store: Store,
    site: Site,
) -> None:
    """Search the documents of images for secrets, like the images themselves.

    Raises:
        GateError: a secret was found.

    """
    files = {name: data for made in documents.values() for one in made for name, data in one.files.items()}
    found = leaks.scan_documents(files, leaks.marks(site, Path.home(), store.root))
    left = gates.review([("attached", finding) for finding in found], reviewed).findings
    gates.require_no_secrets(left)


def _packed(candidate: Candidate, context: PushContext) -> Last:
    """Return the images to send: packed with zstd if wanted, and else as they are.

    Layers whose result is in the store need not be read, so their bytes may stay in a registry.
    """
    last, store = candidate.last, context.store
    if not candidate.zstd:
        return last
    live, title = context.progress, f"layers of {last.whole.name} with zstd"
    wanted = [record for image in last.images for record in repack.wanting(image, store)]
    require_here(wanted, last.whole.name, store, context.site, live)
    live.begin("zstd", title, "packing", sum({record.diff_id: record.size for record in wanted}.values()))
    packed = repack.repack(last.whole, store, lambda count: live.advance("zstd", count))
    live.end("zstd", title, "done", packed.whole.size)
    return dataclasses.replace(
        last,
        images=tuple(packed.images[image.manifest] for image in last.images),
        index=packed.whole if isinstance(packed.whole, IndexRecord) else None,
    )


def _waived(request: PushRequest, last: Last) -> Mapping[str, tuple[str, ...]]:
    """Return the waived gates of each platform."""
    for name in request.untested_on:
        require_platform(name, last.platforms, "--untested-on")
    everywhere = tuple(sorted(request.waived))
    return {
        name: (*everywhere, "smoke-test") if name in request.untested_on else everywhere
        for name in last.platforms
    }


def _tags(last: Last, store: Store, repository: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tags, and those of them that are made from the content alone."""
    whole = last.whole
    version = labels(last.images[0], store).get(label_names.VERSION, "")
    own = in_repository((version, whole.lock[:12]), version, whole.name, repository)
    given = in_repository(whole.tags, version, whole.name, repository)
    if last.is_part:
        # Tags without a platform are for the index of all platforms.
        (platform,) = last.platforms
        return tuple(of_platform(tag, platform) for tag in given), tuple(
            of_platform(tag, platform) for tag in own
        )
    return given, own


def candidate_tag(last: Last) -> str:
    """Return the tag of a candidate: `candidate-` and the first twelve digits of its digest.

    So two candidates never share a tag, and the tag says which bytes it points to.
    """
    return f"candidate-{last.whole.manifest.partition(':')[2][:12]}"


def _require_no_tags(request: PushRequest) -> None:
    """Refuse what contradicts `--candidate`."""
    wrong = [f"the tag {name}" for name in (parse(request.repository).tag, *request.tags) if name]
    wrong += ["--untested"] if "smoke-test" in request.waived or request.untested_on else []
    if wrong:
        raise InputError(
            "a candidate has one tag, made of its digest, and needs no test yet: "
            f"leave out {', '.join(wrong)}",
            where="--candidate",
            hint="`imagebuilder promote` sets the other tags once the image is proven",
        )


def _require_layers(image: ImageRecord, request: PushRequest, context: PushContext) -> None:
    """Fetch the layers that have to be read and whose bytes are only in a registry.

    Those with a trusted verdict in the cache need not be read.
    """
    store, site = context.store, context.site
    records = {layer.record.digest: layer.record for layer in image.layers}
    away = tuple(digest for digest, record in records.items() if not store.has_blob(digest, record.size))
    marks = leaks.marks(site, Path.home(), store.root)
    unread = verdicts.lacking(away, store, marks, attach=request.attach)
    if unread and site.cache and site.cache_signers:
        cache = Cache(site.cache, site, context.progress.note)
        verdicts.take(unread, cache, verdicts.signers(site), store, marks)
        unread = verdicts.lacking(unread, store, marks, attach=request.attach)
    require_here([records[digest] for digest in unread], image.name, store, site, context.progress)
    require_true_tables((records[digest] for digest in unread), store)


def _require_shareable(request: PushRequest, context: PushContext) -> None:
    """Refuse `--cache-push` where it has no effect."""
    if request.share and (context.key is None or not context.site.cache):
        lacking = "--sign-key" if context.key is None else "--cache"
        raise InputError(
            "a push puts what its search for secrets found into the cache, and others believe it only signed",
            where="--cache-push",
            hint=f"add {lacking}; `build --cache-push` puts layers and packages there",
        )


def _share(last: Last, context: PushContext) -> None:
    """Put verdicts on layers of the cache into it. The image is pushed already: a failure only warns."""
    store, site = context.store, context.site
    sizes = {layer.record.digest: layer.record.size for image in last.images for layer in image.layers}
    cache = Cache(site.cache, site, context.warn)
    try:
        if context.key is not None:
            marks = leaks.marks(site, Path.home(), store.root)
            verdicts.put(sorted(cache.find(sizes)), context.key, store, site, marks)
    except RegistryError as error:
        context.warn(f"the cache got no verdicts: {error}")


def _bring(whole: ImageRecord | IndexRecord, context: PushContext, blob: Blob) -> None:
    """Fetch one layer, because the registry to push to has no link to it."""
    layers = [layer.record for image in whole.images for layer in image.layers]
    needed = [record for record in layers if record.digest == blob.digest]
    require_here(needed[:1], whole.name, context.store, context.site, context.progress)


def _findings(image: ImageRecord, context: PushContext) -> tuple[Placed, ...]:
    """Search an image for secrets; warn of files that could not be searched."""
    live = context.progress
    marks = leaks.marks(context.site, Path.home(), context.store.root)
    size = sum(layer.record.size for layer in image.layers)
    row, title = f"scan {image.platform}", f"secrets in {image.name}"
    if len(image.siblings) > 1:
        title += f" for {image.platform}"
    live.begin(row, title, "searching", size)
    scan = leaks.scan(image, context.store, marks, advance=lambda count: live.advance(row, count))
    live.end(row, title, "failed" if scan.findings else "done", scan.bytes)
    for note in scan.notes:
        context.warn(str(note))
    return scan.findings


def _gates(
    request: PushRequest, image: ImageRecord, context: PushContext, findings: Sequence[Placed]
) -> tuple[Gate, ...]:
    """Return the gates of an image, given its findings."""
    tested = Gate(name="smoke-test", check=lambda: _require_proof(request, image, context))
    return (
        Gate(name="recipe", check=lambda: require_in_step(request.target, context.store, image.platform)),
        *(() if request.candidate else (tested,)),
        Gate(name="secrets", check=lambda: gates.require_no_secrets(findings)),
        Gate(name="baked-keys", check=lambda: gates.require_no_baked_keys(findings)),
    )


def _require_proof(request: PushRequest, image: ImageRecord, context: PushContext) -> None:
    """Refuse an image without the proof that its recipe demands; the push signs the report."""
    signers: list[str] = []
    if context.key is not None and named(request.target).is_recipe:
        policy = proof.policy_of(labels(image, context.store), image.name)
        own = context.key.public_key().public_numbers()
        provers = signing_keys.load_provers(policy, Path(request.target))
        signers = [name for name, key in provers.items() if key.public_numbers() == own]
    proof.require(image, context.store, signers)


def _documents(
    target: str, images: tuple[ImageRecord, ImageRecord], store: Store, waivers: Sequence[Waiver]
) -> tuple[ImageDocument, ...]:
    """Make the documents of an image, given as built and as sent; the provenance records the waivers."""
    image, sent = images
    told = tuple(f"{waiver.gate}: {waiver.reason}" for waiver in waivers)
    source = sources.find(target, image, store)
    return bundle.documents(image, store, source, told, bundle.claimed_time(), sent)


def _locks(target: str, last: Last, sent: Last, store: Store) -> dict[str, Lock]:
    """Return the lock of each image, by the digest that it is sent with."""
    return {
        one.manifest: sources.find(target, image, store).read(
            image.platform, Project.of_labels(labels(image, store))
        )[0]
        for image, one in zip(last.images, sent.images, strict=True)
    }


def _attach(
    client: Client,
    last: Last,
    documents: Mapping[str, tuple[ImageDocument, ...]],
    keep: Callable[[ImageRecord], str] | None,
    context: PushContext,
) -> list[Attached]:
    """Attach documents and signatures to each image, and a signature to the index that joins them.

    `keep` attaches what an image was built from, or is None.
    """
    store, key = context.store, context.key
    attached = [
        publish.attach(client, bundle.subject_of(image, store), documents[image.manifest], key)
        for image in last.images
    ]
    if keep is not None:
        attached = [
            dataclasses.replace(item, artefacts=(*item.artefacts, ("inputs", keep(image))))
            for item, image in zip(attached, last.images, strict=True)
        ]
    if last.index is not None:
        attached.append(publish.attach(client, bundle.subject_of(last.index, store), (), key))
    return attached


def _keep(
    locks: Mapping[str, Lock], destination: upload.Destination, context: PushContext, image: ImageRecord
) -> str:
    """Attach what an image was built from; returns the artefact's digest."""
    live, row, title = context.progress, f"keep {image.platform}", f"what {image.name} was built from"
    lock = locks[image.manifest]
    size = sum(entry.size for entry in sharing.packages(lock, context.store))
    live.begin(row, title, "pushing", size)
    digest = inputs.attach(
        destination,
        bundle.subject_of(image, context.store),
        lock,
        context.store,
        lambda count: live.advance(row, count),
    )
    live.end(row, title, "done", size)
    return digest
