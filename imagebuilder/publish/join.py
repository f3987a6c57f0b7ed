"""Join published images of several platforms, which were built on different hosts, into one image index.

The conditions are those of a push of all platforms at once: the images are made from one recipe and lock, and
each passed its smoke test. If the index is signed, each image must be signed too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from imagebuilder.core import labels as label_names
from imagebuilder.core.documents import digest_of
from imagebuilder.core.reference import Reference, parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import GateError, ImagebuilderError, InputError, Problem
from imagebuilder.host.site import Site
from imagebuilder.image import oci
from imagebuilder.lock import file as lockfile
from imagebuilder.publish.attest import published, reports, signature
from imagebuilder.publish.attest.bundle import SOURCE
from imagebuilder.publish.attest.provenance import LOCK, RECIPE
from imagebuilder.publish.attest.published import Published
from imagebuilder.publish.gates import Gate, Waiver, pass_all
from imagebuilder.recipe.tags import in_repository
from imagebuilder.registry import Client, options_for, upload
from imagebuilder.workflow import require_platform
from imagebuilder.workflow.source import RecipeSource

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """The arguments of a join.

    Attributes:
        images: names of images of one repository, with a tag or a digest.
        tags: for the index; without any, those of the recipe.
        move: let a tag that points to another image stand for the index.
        waived: gates that may refuse: `recipe`, `smoke-test`.
        sign_key: to sign the index with; None for no signature.
        key: the key that must have signed each image; None for that of `sign_key`.
        unsigned_parts: platforms whose image needs no signature.
        provers: further keys that may have signed reports, by name.
        plain_http: use plain HTTP with a registry that does not speak TLS.

    """

    images: tuple[str, ...]
    tags: tuple[str, ...] = ()
    move: bool = False
    waived: frozenset[str] = frozenset()
    sign_key: EllipticCurvePrivateKey | None = None
    key: EllipticCurvePublicKey | None = None
    unsigned_parts: tuple[str, ...] = ()
    provers: Mapping[str, EllipticCurvePublicKey] = field(default_factory=dict)
    plain_http: bool = False


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A pushed index.

    Attributes:
        reference: the index by digest.
        joint: the images that it joins, and the waivers.
        tags: that now point to it.
        moved: tags that pointed to another image before, and its digest.
        signed: number of new signatures.

    """

    reference: str
    joint: Joint
    tags: tuple[str, ...]
    moved: tuple[tuple[str, str], ...]
    signed: int


@dataclass(frozen=True, kw_only=True)
class Joint:
    """An index that is ready to push.

    Attributes:
        index: its bytes.
        images: platform and digest of each image.
        tags: those of the recipe; empty if no recipe was found.
        own: the tags that are made from the content alone, such as the lock's checksum.
        waivers: refusals that were waived.

    """

    index: bytes
    images: tuple[tuple[str, str], ...]
    tags: tuple[str, ...]
    own: tuple[str, ...]
    waivers: tuple[Waiver, ...]

    @property
    def digest(self) -> str:
        """Its digest."""
        return digest_of(self.index)


def join(request: JoinRequest, site: Site) -> Joined:
    """Join images of one repository, and push the index; its signature comes before its tags.

    Raises:
        InputError: the images or an argument are wrong.
        GateError: a gate refuses the images, or a tag must not be moved.
        RegistryError: the registry refused, broke or cannot be reached.

    """
    repository = _repository(request.images)
    key = request.key or (request.sign_key.public_key() if request.sign_key else None)
    if request.unsigned_parts and key is None:
        raise InputError(
            "--unsigned-parts has no effect without a key",
            where="imagebuilder join",
            hint="--sign-key or --key requires signatures",
        )
    options = options_for(site, repository.host, plain_http=request.plain_http)
    images = [
        published.read(published.open_image(image, options), key, provers=request.provers)
        for image in request.images
    ]
    for name in request.unsigned_parts:
        require_platform(name, [image.platform for image in images], "--unsigned-parts")
    made = joint(images, request.waived, None if key is None else request.unsigned_parts)
    tags = _tags(request, images[0].labels.get(label_names.RECIPE, ""), made, repository)
    signed: list[bool] = []

    def sign(digest: str) -> None:
        if request.sign_key is not None:
            signed.append(signature.sign(client, digest, request.sign_key))

    client = Client(repository, options, "pull,push")
    moved = upload.push_index(client, made.index, tags, sign)
    return Joined(
        reference=f"{repository.name}@{made.digest}",
        joint=made,
        tags=tags.names,
        moved=moved,
        signed=sum(signed),
    )


def joint(
    images: Sequence[Published], waived: Collection[str] = (), unsigned: Collection[str] | None = None
) -> Joint:
    """Make the index of published images.

    Args:
        images: of one repository, each for another platform; read with the key that must have signed them.
        waived: gates that may refuse: `recipe`, `smoke-test`.
        unsigned: platforms whose image needs no signature with the key; None without a key.

    Raises:
        InputError: they are not images of different platforms.
        GateError: they are not made from one recipe and lock, or one was not tested or not signed.

    """
    _require_distinct(images)
    signatures: tuple[Waiver, ...] = ()
    if unsigned is not None:
        signatures = _require_signatures(images, unsigned)
        images = [_signed_part(image) for image in images]
    sources = [next(iter(sources_of(image)), None) for image in images]
    gates = [Gate(name="recipe", check=lambda: _require_one_source(images, sources))]
    keyed = unsigned is not None
    gates += [Gate(name="smoke-test", check=partial(_require_proof, image, keyed=keyed)) for image in images]
    waivers = pass_all(gates, waived)
    source = sources[0] if not any(waiver.gate == "recipe" for waiver in waivers) else None
    checksum = lockfile.loads(source.lock, LOCK).checksum if source else ""
    entries = [
        oci.IndexEntry(
            platform=image.platform,
            digest=image.digest,
            size=image.manifest_size,
            labels=image.labels,
        )
        for image in images
    ]
    return Joint(
        index=oci.index_document(entries, checksum),
        images=tuple(sorted((image.platform, image.digest) for image in images)),
        tags=source.tags() if source else (),
        own=(images[0].labels.get(label_names.VERSION, ""), checksum[:12]),
        waivers=(*signatures, *waivers),
    )


def _repository(images: Sequence[str]) -> Reference:
    """Return the repository of the images, which must be the same for all."""
    references = [parse(image) for image in images]
    names = {reference.name for reference in references}
    if len(names) > 1:
        raise InputError(
            f"they are in different repositories: {', '.join(sorted(names))}",
            where="imagebuilder join",
            hint="push them to one repository: an index can only name images beside it",
        )
    return references[0]


def _tags(request: JoinRequest, recipe: str, made: Joint, repository: Reference) -> upload.Tags:
    """Choose the tags of the index: the requested ones, or the recipe's."""
    version = made.own[0]
    names = request.tags or in_repository(made.tags, version, recipe, repository.path)
    if not names:
        raise InputError("no tag is given", where="imagebuilder join", hint="give --tag")
    own = in_repository(made.own, version, recipe, repository.path)
    return upload.Tags(names=names, recipe=recipe, own=own, move=request.move)


def _require_signatures(images: Sequence[Published], unsigned: Collection[str]) -> tuple[Waiver, ...]:
    """Refuse to sign an index with an unsigned image, because anybody who may push could have supplied it."""
    gates = {
        image.platform: Gate(name="signature", check=partial(_require_signature, image)) for image in images
    }
    pass_all([gate for platform, gate in gates.items() if platform not in unsigned], ())
    return pass_all([gate for platform, gate in gates.items() if platform in unsigned], ("signature",))


def _require_signature(image: Published) -> None:
    if image.signed:
        return
    platform = printable(image.platform)
    elsewhere = f", but for {' and '.join(image.signed_for)}" if image.signed_for else ""
    raise GateError(
        f"on {platform}: the image is not signed with this key for its repository{elsewhere}",
        where=str(image.reference),
        hint="push it with --sign-key where it was built; --key names another key of its signature "
        f"(or join with --unsigned-parts {platform})",
    )


def _signed_part(image: Published) -> Published:
    """Ignore unsigned documents of a signed image, because anybody who may push can attach them."""
    if not image.signed:
        return image
    return replace(
        image, attachments=tuple(item for item in image.attachments if item.signed or item.signed_by)
    )


def _require_distinct(images: Sequence[Published]) -> None:
    if len(images) < 2:
        raise InputError(
            "one image needs no index",
            where="imagebuilder join",
            hint="name images of at least two platforms",
        )
    seen: dict[str, Published] = {}
    for image in images:
        first = seen.setdefault(image.platform, image)
        if first is not image:
            raise InputError(
                f"both are for {printable(image.platform)}",
                where=f"{first.reference} and {image.reference}",
                hint="name one image of each platform",
            )


def sources_of(image: Published) -> tuple[RecipeSource, ...]:
    """Return the attached recipes and locks that match an image's labels; a push attaches one."""
    matching = []
    for found in image.attachments:
        if found.kind != SOURCE:
            continue
        try:
            source = RecipeSource(recipe=found.files[RECIPE].decode(), lock=found.files[LOCK].decode())
            lock = lockfile.loads(source.lock, LOCK).section(image.platform)
        except (ImagebuilderError, UnicodeDecodeError):
            continue
        if lock is not None and lock.checksum == image.labels.get(label_names.LOCK):
            matching.append(source)
    return tuple(matching)


def _require_one_source(images: Sequence[Published], sources: Sequence[RecipeSource | None]) -> None:
    everywhere = " and ".join(str(image.reference) for image in images)
    lacking = [image for image, source in zip(images, sources, strict=True) if source is None]
    if lacking:
        raise GateError.of(
            [
                Problem(
                    message="the recipe and lock that it was made from are not attached",
                    where=str(image.reference),
                    hint="push it with imagebuilder, without --no-attach (or join with --out-of-step)",
                )
                for image in lacking
            ]
        )
    (first, *others) = (source for source in sources if source is not None)
    if any(other != first for other in others):
        raise GateError(
            "the images are made from different recipes or locks",
            where=everywhere,
            hint="build and push each from the same recipe and lock (or --out-of-step)",
        )
    named = {image.platform for image in images}
    missing = sorted(set(lockfile.loads(first.lock, LOCK).platforms) - named)
    if missing:
        raise GateError(
            f"the recipe is also for {' and '.join(missing)}",
            where=everywhere,
            hint="name the images of all its platforms (or --out-of-step)",
        )


def _require_proof(image: Published, *, keyed: bool) -> None:
    if lacking := reports.lacking(image, keyed=keyed):
        raise GateError(
            f"on {printable(image.platform)}: {'; '.join(lacking)}",
            where=str(image.reference),
            hint="run the smoke test and attach its report: imagebuilder smoke-test --attach "
            "(or join with --untested)",
        )
