"""Promote an image in a registry: point its recipe's tags to it, once its proof is attached.

What the proof has to show stands in the image's label, which its digest covers, and nowhere else: the recipe
that is attached to the image could be replaced by everybody who may push. The caller's own recipe, and the
keys that the caller names, override the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import catalog
from imagebuilder import recipe as recipes
from imagebuilder.core import labels as label_names
from imagebuilder.core.reference import parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import GateError, InputError, Problem
from imagebuilder.host.site import Site
from imagebuilder.lock import file as lockfile
from imagebuilder.plan import Project
from imagebuilder.publish import proof
from imagebuilder.publish.attest import published, reports, signing_keys, whole
from imagebuilder.publish.attest.provenance import LOCK
from imagebuilder.publish.attest.published import Published
from imagebuilder.publish.attest.reports import AttachedReport
from imagebuilder.publish.attest.whole import Whole
from imagebuilder.publish.join import sources_of
from imagebuilder.recipe.proof import ProofPolicy
from imagebuilder.recipe.tags import LOCK_DIGITS, in_repository, of_platform
from imagebuilder.registry import Client, options_for, upload
from imagebuilder.workflow import source as sources
from imagebuilder.workflow.source import RecipeSource

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


@dataclass(frozen=True, kw_only=True)
class PromoteRequest:
    """The arguments of a promotion.

    Attributes:
        image: its name, with a tag or a digest.
        tags: to set instead of the recipe's.
        move: let a tag that points to another image stand for this one.
        recipe: the recipe, with its lock, that the image must be made from, and whose `proof:` holds;
            None for the demands in the image's label.
        key: the key that must have signed the image and its recipe; None to ignore signatures of these.
        provers: keys of which one must have signed the report, by name; instead of the recipe's `signed_by`.
        plain_http: use plain HTTP with a registry that does not speak TLS.

    """

    image: str
    tags: tuple[str, ...] = ()
    move: bool = False
    recipe: Path | None = None
    key: EllipticCurvePublicKey | None = None
    provers: Mapping[str, EllipticCurvePublicKey] = field(default_factory=dict)
    plain_http: bool = False


@dataclass(frozen=True, kw_only=True)
class Promoted:
    """A promoted image.

    Attributes:
        reference: the image by digest.
        digest: of the image or index.
        tags: that now point to it.
        moved: tags that pointed to another image before, and its digest.
        proofs: the reports that prove it, by platform.

    """

    reference: str
    digest: str
    tags: tuple[str, ...]
    moved: tuple[tuple[str, str], ...]
    proofs: Mapping[str, tuple[AttachedReport, ...]]


def promote(request: PromoteRequest, site: Site) -> Promoted:
    """Check the proof of an image, or of each image of an index, then set the tags.

    Raises:
        InputError: an argument is wrong, or no tag is given and the recipe is unknown.
        LockError: the attached recipe and lock are not for this version.
        GateError: a demand is not met, named one by one; or a tag must not be moved.
        RegistryError: the registry refused, broke or cannot be reached.

    """
    options = options_for(site, parse(request.image).host, plain_http=request.plain_http)
    client = published.open_image(request.image, options)
    own, policy, provers = None, None, dict(request.provers)
    if request.recipe is not None:
        own = sources.of_recipe(request.recipe)
        policy = recipes.load(request.recipe, catalog.own.names(request.recipe)).proof
        provers = provers or signing_keys.load_provers(policy, request.recipe)
    index = whole.read(client, request.key)
    parts = {"": client} if index is None else whole.parts(index, client, options)
    images = [published.read(part, request.key, provers=provers) for part in parts.values()]
    digest = index.digest if index else images[0].digest
    _require_signed(request, index, images, digest)
    _require_made_from(request, own, images)
    proofs = _proofs(request, policy, images)
    tags = _tags(request, index, images, own)
    pushing = Client(client.reference, options, "pull,push")
    return Promoted(
        reference=f"{client.reference.name}@{digest}",
        digest=digest,
        tags=tags.names,
        moved=upload.promote(pushing, digest, tags),
        proofs=proofs,
    )


def _require_signed(
    request: PromoteRequest, index: Whole | None, images: Sequence[Published], digest: str
) -> None:
    """Refuse what the given key has not signed for its repository."""
    if request.key is None:
        return
    found = {image.digest: image.signed for image in images}
    found |= {index.digest: index.signed} if index else {}
    unsigned = [name for name, signed in found.items() if not signed]
    if unsigned:
        what = "it is" if unsigned == [digest] else f"{' and '.join(unsigned)} is"
        raise GateError(
            f"{what} not signed with this key for its repository",
            where=request.image,
            hint="push it with --sign-key, or name another key with --key",
        )


def _require_made_from(
    request: PromoteRequest, own: RecipeSource | None, images: Sequence[Published]
) -> None:
    """Refuse images of several recipes, and those that were not made from the caller's recipe and lock."""
    names = sorted({image.labels.get(label_names.RECIPE, "") for image in images})
    if len(names) > 1:
        said = " and ".join(f"`{printable(name)}`" for name in names)
        raise GateError(f"its images are made from different recipes, {said}", where=request.image)
    if own is None:
        return
    file = lockfile.loads(own.lock, LOCK)
    for image in images:
        section = file.section(image.platform)
        if section is None or section.checksum != image.labels.get(label_names.LOCK):
            raise GateError(
                f"it was not made from {request.recipe} and its lock",
                where=f"{image.reference.name}@{image.digest}",
                hint="promote it from the commit that it was built from",
            )


def _proofs(
    request: PromoteRequest, policy: ProofPolicy | None, images: Sequence[Published]
) -> Mapping[str, tuple[AttachedReport, ...]]:
    """Return the reports that prove each image.

    Raises:
        GateError: an image has none; the problems name each demand that is not met.

    """
    problems: list[Problem] = []
    proofs = {}
    for image in images:
        where = f"{image.reference.name}@{image.digest}"
        demanded = policy or proof.policy_of(image.labels, where)
        if request.provers:
            demanded = demanded.model_copy(update={"signed_by": tuple(request.provers)})
        keyed = request.key is not None
        prefix = f"on {printable(image.platform)}: " if len(images) > 1 else ""
        problems += [
            Problem(message=prefix + printable(reason), where=where, hint=_hint(demanded, request, where))
            for reason in reports.lacking(image, demanded, keyed=keyed)
        ]
        found = reports.attached(image, demanded, keyed=keyed)
        proofs[image.platform] = tuple(report for report in found if not report.refusals)
    if problems:
        raise GateError.of(problems)
    return proofs


def _hint(demanded: ProofPolicy, request: PromoteRequest, where: str) -> str:
    if demanded.signed_by and not request.provers and request.recipe is None:
        keys = " ".join(f"--signed-by {name}" for name in demanded.signed_by)
        return f"give the recipe with --recipe, or its keys: {keys}"
    signing = " --sign-key FILE" if demanded.signed_by else ""
    return f"where it can be shown, run: imagebuilder smoke-test --attach{signing} {where}"


def _tags(
    request: PromoteRequest, index: Whole | None, images: Sequence[Published], own: RecipeSource | None
) -> upload.Tags:
    """Choose the tags: the requested ones, or those of the recipe.

    Raises:
        InputError: no tag is given, and the recipe is unknown.
        LockError: the recipe and its lock are not for this version.

    """
    image = images[0]
    path, platform = image.reference.path, image.platform
    recipe, version = (image.labels.get(name, "") for name in (label_names.RECIPE, label_names.VERSION))
    checksum = index.lock if index else image.labels.get(label_names.LOCK, "")
    content = in_repository((version, checksum[:LOCK_DIGITS]), version, recipe, path)
    if request.tags:
        return upload.Tags(names=request.tags, recipe=recipe, own=content, move=request.move)
    source = own or _attached_source(request, image)
    if index is not None:
        names = in_repository(source.tags(), version, recipe, path)
    else:
        _, plan = source.read(platform, Project.of_labels(image.labels))
        names = in_repository(plan.tags, version, recipe, path)
        if len(lockfile.loads(source.lock, LOCK).platforms) > 1:
            # Tags without a platform are for the index of all platforms.
            names, content = (tuple(of_platform(tag, platform) for tag in made) for made in (names, content))
    return upload.Tags(names=names, recipe=recipe, own=content, move=request.move)


def _attached_source(request: PromoteRequest, image: Published) -> RecipeSource:
    """Return the attached recipe and lock, which say the recipe's tags.

    Raises:
        InputError: there is none, or there are several: whoever may push can attach another.

    """
    counted = [item for item in image.attachments if item.signed or request.key is None]
    found = set(sources_of(replace(image, attachments=tuple(counted))))
    if len(found) == 1:
        return found.pop()
    raise InputError(
        "several recipes are attached to it, so its tags are unknown"
        if found
        else "the recipe that it was made from is not attached, so its tags are unknown",
        where=request.image,
        hint="give the recipe with --recipe, or tags with --tag",
    )
