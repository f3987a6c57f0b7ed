"""Push images: choose them and their tags, check the gates, make the documents, and send everything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import catalog
from imagebuilder import recipe as recipes
from imagebuilder.core import labels as label_names
from imagebuilder.core.progress import Progress
from imagebuilder.core.reference import parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import GateError, ImagebuilderError, InputError
from imagebuilder.host.site import Site
from imagebuilder.publish import gates, leaks, proof
from imagebuilder.publish.attest import bundle, publish, signing_keys
from imagebuilder.publish.attest.bundle import ImageDocument
from imagebuilder.publish.attest.publish import Attached
from imagebuilder.publish.gates import Gate, Placed, Waiver
from imagebuilder.recipe import NotSecret
from imagebuilder.recipe.tags import in_repository, of_platform
from imagebuilder.registry import Client, PushResult, options_for, upload
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import Last, labels, last_images, named, require_in_step, require_platform
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
        candidate: the proof is still to come: push under a candidate's tag only, without the gate for it.

    """

    target: str
    repository: str
    platform: str = ""
    tags: tuple[str, ...] = ()
    move: bool = False
    waived: frozenset[str] = frozenset()
    untested_on: tuple[str, ...] = ()
    attach: bool = True
    plain_http: bool = False
    candidate: bool = False


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Images in the store that are to be pushed, before any gate.

    Attributes:
        request: the arguments of the push.
        last: the images.
        tags: those of the recipe.
        own: the tags that are made from the content alone, such as the lock's checksum.
        waived: gates that may refuse, for each platform.

    """

    request: PushRequest
    last: Last
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
        images: the pushed images, sorted by platform.
        is_index: whether an index that joins them was pushed too.
        attached: documents and signatures of each image, and last those of the index.
        waivers: of all platforms.

    """

    result: PushResult
    images: tuple[ImageRecord, ...]
    is_index: bool
    attached: tuple[Attached, ...]
    waivers: tuple[Waiver, ...]

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
    last = last_images(request.target, store, request.platform)
    if last is None:
        raise InputError(
            f"`{request.target}` is not an image in the store",
            where="imagebuilder push",
            hint="give its recipe, or a name that `imagebuilder cache ls` lists; an image of "
            "`build --engine docker` is in Docker: use `docker push`",
        )
    waived = _waived(request, last)
    if request.candidate:
        _require_no_tags(request)
        return Candidate(request=request, last=last, tags=(candidate_tag(last),), own=(), waived=waived)
    tags, own = _tags(last, store, parse(request.repository).path)
    return Candidate(request=request, last=last, tags=tags, own=own, waived=waived)


def push(candidate: Candidate, context: PushContext) -> Pushed:
    """Check the gates, then push the images with their documents and signatures, and the tags last.

    Raises:
        ImagebuilderError: a gate refused, see `pass_gates`; or a document holds a secret.
        RegistryError: the registry refused, broke or cannot be reached.

    """
    request, last, store = candidate.request, candidate.last, context.store
    reviewed = reviewed_files(request.target, last, store)
    waivers = pass_gates(candidate, reviewed, context)
    documents = {
        image.manifest: _documents(request.target, image, store, waivers[image.platform])
        if request.attach
        else ()
        for image in last.images
    }
    search_documents(documents, reviewed, store, context.site)
    attached: list[Attached] = []
    whole, live, title = last.whole, context.progress, f"{last.whole.name} to {request.repository}"
    live.begin("push", title, "pushing", whole.size)
    destination = upload.Destination(
        reference=request.repository,
        tags=(*candidate.tags, *request.tags),
        own=candidate.own,
        move=request.move,
        options=options_for(context.site, parse(request.repository).host, plain_http=request.plain_http),
    )
    result = upload.push(
        whole,
        store,
        destination,
        attach=lambda client: attached.extend(_attach(client, last, documents, context)),
        advance=lambda count: live.advance("push", count),
    )
    live.end("push", title, "done", result.pushed_bytes)
    return Pushed(
        result=result,
        images=last.images,
        is_index=last.index is not None,
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
        return recipes.load(Path(target), catalog.names()).not_secret
    image = last.images[0]
    return sources.recall(store, image).not_secret() if store.source(image.manifest).exists() else ()


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
    target: str, image: ImageRecord, store: Store, waivers: Sequence[Waiver]
) -> tuple[ImageDocument, ...]:
    """Make the documents of an image; the provenance records the waivers."""
    told = tuple(f"{waiver.gate}: {waiver.reason}" for waiver in waivers)
    source = sources.find(target, image, store)
    return bundle.documents(image, store, source, told, bundle.claimed_time())


def _attach(
    client: Client, last: Last, documents: Mapping[str, tuple[ImageDocument, ...]], context: PushContext
) -> list[Attached]:
    """Attach documents and signatures to each image, and a signature to the index that joins them."""
    store, key = context.store, context.key
    attached = [
        publish.attach(client, bundle.subject_of(image, store), documents[image.manifest], key)
        for image in last.images
    ]
    if last.index is not None:
        attached.append(publish.attach(client, bundle.subject_of(last.index, store), (), key))
    return attached
