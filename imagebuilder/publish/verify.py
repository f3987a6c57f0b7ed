"""Checking what a name stands for in a registry: one image, or an index and the images that it joins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from imagebuilder.core import labels as label_names
from imagebuilder.core.reference import parse
from imagebuilder.errors import InputError, LockError
from imagebuilder.host.site import Site
from imagebuilder.plan import Project
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

# Makes an image again: from its recipe and lock, for a platform, on a distribution.
Rebuild = Callable[[RecipeSource, str, str], Rebuilt]


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """What a user asks for.

    Attributes:
        target: an image's name, with a tag or a digest.
        key: that must have signed it all; None where signatures do not count.
        own: a recipe and lock that the image has to be made from; None for those attached to it.
        signed_for: the repository that signatures must name; "" for the image's own.
        platform: check this platform's image alone; "" for all.
        plain_http: speak plain HTTP with a registry that does not speak TLS.

    """

    target: str
    key: EllipticCurvePublicKey | None = None
    own: RecipeSource | None = None
    signed_for: str = ""
    platform: str = ""
    plain_http: bool = False


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What came of all checks.

    Attributes:
        images: what came of each image.
        index: that joins them; None where one image alone was checked.
        joint: the checks of the index.

    """

    images: tuple[Verification, ...]
    index: Whole | None = None
    joint: tuple[VerifyCheck, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(image.passed for image in self.images) and all(
            check.status != "failed" for check in self.joint
        )


def verify(request: VerifyRequest, store: Store, site: Site, rebuild: Rebuild | None = None) -> Verified:
    """Check an image, or those of all platforms and their index. What is wrong is in the answer.

    Args:
        request: what to check, and against what.
        store: whose layers the image's are compared with.
        site: the site's settings.
        rebuild: makes an image again; None leaves that check out.

    Raises:
        InputError: an argument is wrong.
        RegistryError: there is no such image, or the registry cannot be reached.

    """
    if request.signed_for and request.key is None:
        raise InputError(
            "--signed-for says nothing without a key", where="imagebuilder verify", hint="add --key FILE"
        )
    options = options_for(site, parse(request.target).host, plain_http=request.plain_http)
    client = published.open_image(request.target, options)
    repository = parse(request.signed_for).name if request.signed_for else ""
    index = whole.read(client, request.key, repository)
    parts = {"": client} if index is None else whole.parts(index, client, options, request.platform)
    results: dict[str, Verification] = {}
    for name, part in parts.items():
        image = published.read(part, request.key, repository)
        require_platform(request.platform, [image.platform], request.target)
        task = VerifyTask(published=image, keyed=request.key is not None, own=request.own, store=store)
        result = verification.verify(task, part)
        more = [] if name in {"", image.platform} else [_other_platform(name, image)]
        if rebuild is not None:
            more.append(rebuild_check(result.source, image, rebuild))
        results[name] = replace(result, checks=(*result.checks, *more))
    if index is None or request.platform:
        return Verified(images=tuple(results.values()))
    return Verified(
        images=tuple(results.values()),
        index=index,
        joint=whole.checks(index, results, keyed=request.key is not None),
    )


def rebuild_check(source: RecipeSource | None, image: Published, rebuild: Rebuild) -> VerifyCheck:
    """Make an image again, and compare digests.

    What keeps it from being made is an error of `rebuild`; another digest is a check that failed.
    """
    name = "rebuild"
    if (engine := image.labels.get(label_names.ENGINE, "embedded")) != "embedded":
        detail = f"made by the {engine} engine, whose layers differ from build to build"
        return VerifyCheck(name=name, status="not checked", detail=detail)
    if source is None:
        return VerifyCheck(name=name, status="failed", detail="there is no recipe and lock to make it from")
    if Project.of_labels(image.labels).checksums:
        detail = "it holds files of a project, which are not attached"
        return VerifyCheck(name=name, status="not checked", detail=detail)
    try:
        lock, _ = source.read(image.platform)
    except LockError as error:
        return VerifyCheck(name=name, status="failed", detail=error.problems[0].message)
    made = rebuild(source, image.platform, lock.base.partition(":")[0])
    if made.digest == image.digest:
        return VerifyCheck(name=name, status="passed", detail=f"the same digest, in {made.seconds:.1f} s")
    theirs = {layer.digest for layer in image.manifest.layers}
    same = sum(digest in theirs for digest in made.layers)
    detail = f"recipe and lock give {made.digest} here; {same} of {len(made.layers)} layers are the same"
    return VerifyCheck(name=name, status="failed", detail=detail)


def _other_platform(name: str, image: Published) -> VerifyCheck:
    detail = f"the index says {name}, its config {image.platform}"
    return VerifyCheck(name="platform", status="failed", detail=detail)
