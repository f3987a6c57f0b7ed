"""Verify what a name in a registry refers to: one image, or an index and the images that it joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from imagebuilder.core import labels as label_names
from imagebuilder.core.reference import parse
from imagebuilder.errors import InputError, LockError
from imagebuilder.host.site import Site
from imagebuilder.image import repack
from imagebuilder.plan import Project
from imagebuilder.publish import inputs
from imagebuilder.publish.attest import published, verification, whole
from imagebuilder.publish.attest.published import Published
from imagebuilder.publish.attest.verification import Verification, VerifyCheck, VerifyTask
from imagebuilder.publish.attest.whole import Whole
from imagebuilder.registry import options_for
from imagebuilder.store import Store
from imagebuilder.workflow import require_platform
from imagebuilder.workflow.rebuild import Rebuilt
from imagebuilder.workflow.source import RecipeSource

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from imagebuilder.workflow.project import Copied

# Builds an image again from recipe and lock, for a platform, with mirrors of a distribution, user files, the
# repository that keeps what it was built from ("" if none does), and whether zstd packs its layers.
Rebuild = Callable[[RecipeSource, str, str, Project, str, bool], Rebuilt]


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """The arguments of a verification.

    Attributes:
        target: an image's name, with a tag or a digest.
        key: the key that must have signed the image and its documents; None to ignore signatures.
        own: a recipe and lock that the image must be made from; None for the attached ones.
        copied: the user's files beside that recipe, to build the image from again; None if they are not read.
        signed_for: the repository that signatures must name; "" for the image's own.
        provers: further keys that may have signed reports, by name.
        base: of a derived image: the name of the image of imagebuilder that it is built on; "" to name none.
        platform: check only this platform's image; "" for all.
        plain_http: use plain HTTP with a registry that does not speak TLS.

    """

    target: str
    key: EllipticCurvePublicKey | None = None
    own: RecipeSource | None = None
    copied: Copied | None = None
    signed_for: str = ""
    provers: Mapping[str, EllipticCurvePublicKey] = field(default_factory=dict)
    base: str = ""
    platform: str = ""
    plain_http: bool = False


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The results of all checks.

    Attributes:
        images: the results for each image.
        index: joins them; None if only one image was checked.
        joint: the checks of the index.
        published: the images themselves.

    """

    images: tuple[Verification, ...]
    index: Whole | None = None
    joint: tuple[VerifyCheck, ...] = ()
    published: tuple[Published, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(image.passed for image in self.images) and all(
            check.status != "failed" for check in self.joint
        )


def verify(request: VerifyRequest, store: Store, site: Site, rebuild: Rebuild | None = None) -> Verified:
    """Check an image, or those of all platforms and their index. Failed checks are in the result.

    Args:
        request: what to check, and against what.
        store: its layers are compared with the image's.
        site: the site's settings.
        rebuild: builds an image again; None skips that check.

    Raises:
        InputError: an argument is wrong.
        RegistryError: the registry does not have the image, or cannot be reached.

    """
    if request.signed_for and request.key is None and not request.provers:
        raise InputError(
            "--signed-for has no effect without a key", where="imagebuilder verify", hint="add --key FILE"
        )
    options = options_for(site, parse(request.target).host, plain_http=request.plain_http)
    client = published.open_image(request.target, options)
    repository = parse(request.signed_for).name if request.signed_for else ""
    index = whole.read(client, request.key, repository)
    parts = {"": client} if index is None else whole.parts(index, client, options, request.platform)
    results: dict[str, Verification] = {}
    below: list[Verification] = []
    images: list[Published] = []
    for name, part in parts.items():
        image = published.read(part, request.key, repository, request.provers)
        require_platform(request.platform, [image.platform], request.target)
        images.append(image)
        base = None
        if request.base:
            base = _base(request, image, store, site, rebuild)
            below += base.images
        task = VerifyTask(
            published=image,
            keyed=request.key is not None,
            own=request.own,
            store=store,
            base=base.published[0] if base else None,
        )
        result = verification.verify(task, part)
        more = [] if name in {"", image.platform} else [_other_platform(name, image)]
        if rebuild is not None and not image.on_top:
            more.append(rebuild_check(result.source, image, rebuild, request.copied))
        results[name] = replace(result, checks=(*result.checks, *more))
    found = Verified(images=(*below, *results.values()), published=tuple(images))
    if index is None or request.platform:
        return found
    joint = whole.checks(index, results, keyed=request.key is not None)
    # A derived image has no recipe and lock that could name the index.
    return replace(found, index=index, joint=joint[:1] if all(image.on_top for image in images) else joint)


def _base(
    request: VerifyRequest, image: Published, store: Store, site: Site, rebuild: Rebuild | None
) -> Verified:
    """Verify the base of a derived image, for its platform.

    Raises:
        InputError: the image is not derived.
        RegistryError: the registry does not have the base.

    """
    if not image.on_top:
        raise InputError(
            "the image has no steps of another builder on top, so it has no such base",
            where="--base",
            hint="leave it out",
        )
    return verify(
        replace(request, target=request.base, base="", platform=image.platform), store, site, rebuild
    )


def rebuild_check(
    source: RecipeSource | None, image: Published, rebuild: Rebuild, copied: Copied | None = None
) -> VerifyCheck:
    """Build an image again, and compare digests. For the user's files in it, `copied` is what is here.

    If it cannot be built, `rebuild` raises the error. A different digest is a failed check.
    """
    name = "rebuild"
    if (engine := image.labels.get(label_names.ENGINE, "embedded")) != "embedded":
        detail = f"made by the {engine} engine, whose layers differ from build to build"
        return VerifyCheck(name=name, status="not checked", detail=detail)
    if source is None:
        return VerifyCheck(name=name, status="failed", detail="there is no recipe and lock to build it from")
    project = Project.of_labels(image.labels)
    if detail := _other_files(project, copied):
        return VerifyCheck(name=name, status="not checked", detail=detail)
    try:
        lock, _ = source.read(image.platform, project)
    except LockError as error:
        return VerifyCheck(name=name, status="failed", detail=error.problems[0].message)
    kept = image.reference.name if inputs.TYPE in image.others else ""
    zstd = any(layer.media_type == repack.MEDIA_TYPE for layer in image.manifest.layers)
    made = rebuild(source, image.platform, lock.base.partition(":")[0], project, kept, zstd)
    if made.digest == image.digest:
        return VerifyCheck(name=name, status="passed", detail=f"the same digest, in {made.seconds:.1f} s")
    theirs = {layer.digest for layer in image.manifest.layers}
    same = sum(digest in theirs for digest in made.layers)
    detail = f"recipe and lock give {made.digest} here; {same} of {len(made.layers)} layers are the same"
    return VerifyCheck(name=name, status="failed", detail=detail)


def _other_files(project: Project, copied: Copied | None) -> str:
    """Say what is missing to build the user's files of an image again; "" if all are here, or it has none."""
    theirs = [*project.checksums, *([project.package] if project.package else [])]
    if not theirs:
        return ""
    at = f" at revision {project.revision}" if project.revision else ""
    if copied is None:
        return (
            f"it contains files of yours, which are not attached: check them out{at}, and give the recipe "
            "beside them with --recipe"
        )
    ours = [*copied.project.checksums, *([copied.project.package] if copied.project.package else [])]
    if len(ours) != len(theirs):
        return f"it contains {len(theirs)} folders of yours, and the recipe given copies {len(ours)}"
    other = [
        folder.source for folder, one, two in zip(copied.folders, ours, theirs, strict=True) if one != two
    ]
    if not other:
        return ""
    return f"it contains other files of yours than are here in {' and '.join(other)}: check them out{at}"


def _other_platform(name: str, image: Published) -> VerifyCheck:
    detail = f"the index says {name}, its config {image.platform}"
    return VerifyCheck(name="platform", status="failed", detail=detail)
