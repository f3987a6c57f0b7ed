"""From the recipe or name that a user typed to images in the store, if they match their recipe."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from imagebuilder import catalog
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.core import platforms
from imagebuilder.errors import LockError, StoreError
from imagebuilder.image import oci
from imagebuilder.lock.model import Lock
from imagebuilder.plan import Plan, ProjectLayer
from imagebuilder.store import ImageRecord, IndexRecord, Store
from imagebuilder.workflow.named import named
from imagebuilder.workflow.plans import LockedRecipe, read_plans, require_platform


@dataclass(frozen=True, kw_only=True)
class Last:
    """The last images of a recipe or a name.

    Attributes:
        images: the requested ones, sorted by platform.
        index: joins them; None if only one image was requested or exists.
        known: all platforms of the recipe, also those not requested.

    """

    images: tuple[ImageRecord, ...]
    index: IndexRecord | None
    known: tuple[str, ...]

    @property
    def is_part(self) -> bool:
        """Whether this is the image of one platform out of several."""
        return self.index is None and len(self.known) > 1

    def of(self, platforms: Collection[str]) -> tuple[ImageRecord, ...]:
        """Return the images for these platforms."""
        return tuple(image for image in self.images if image.platform in platforms)

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(image.platform for image in self.images)

    @property
    def whole(self) -> ImageRecord | IndexRecord:
        """What a push of all sends: the index, or the only image."""
        return self.index or self.images[0]


def built_image(target: str, store: Store, platform: str = "") -> ImageRecord | None:
    """Return the image of a recipe or a name; None if the store has no such name (an engine may have it).

    Args:
        target: a recipe's path, or an image's name.
        store: the store to search.
        platform: one of several; by default that of this host.

    Raises:
        InputError: the recipe or image does not have that platform.
        LockError: the recipe has changed since its image was built, or the image was never built.

    """
    image = last_image(target, store, platform)
    if image is not None:
        require_in_step(target, store, image.platform)
    return image


def last_image(target: str, store: Store, platform: str = "") -> ImageRecord | None:
    """Return the last image for one platform, as `built_image` does, even if the recipe has changed.

    Raises:
        InputError: the recipe or image does not have that platform.
        LockError: a recipe's image was never built.

    """
    there = _there(target, store)
    if there is None:
        return None
    require_platform(platform, there.known, target)
    found = there.of((platform,) if platform else there.known)
    if not found:
        raise _not_built(target, there, (platform,) if platform else there.known)
    wanted = platform or _preferred([image.platform for image in found])
    return next(image for image in found if image.platform == wanted)


def last_images(target: str, store: Store, platform: str = "") -> Last | None:
    """Return the last images of a recipe or a name, even if the recipe has changed.

    Args:
        target: a recipe's path, or an image's name.
        store: the store to search.
        platform: return only this one; by default all platforms of the recipe must exist, and be joined.

    Returns:
        The images; None if the target is neither a recipe nor the name of an image.

    Raises:
        InputError: the recipe does not have that platform.
        LockError: a recipe's image was never built.

    """
    there = _there(target, store)
    if there is None:
        return None
    require_platform(platform, there.known, target)
    asked = (platform,) if platform else there.known
    found = there.of(asked)
    built = {image.platform for image in found}
    if lacking := [name for name in asked if name not in built]:
        raise _not_built(target, there, lacking)
    if len(found) == 1:
        return replace(there, images=found, index=None)
    if there.index is None or there.index.images != found:
        raise LockError(
            "the store has no image index that joins its images", where=target, hint=_how_to_build(target)
        )
    return replace(there, images=found)


def _there(target: str, store: Store) -> Last | None:
    """Return all images in the store of a recipe or a name; None if the target is neither."""
    word = named(target)
    if word.is_recipe:
        recipe = recipes.load(word.path, catalog.own.names(word.path))
        name, images, known = recipe.name, store.images(recipe.name), recipe.platforms
    else:
        # Each build forgets the images for platforms that its recipe no longer has.
        name, images = target, word.images(store)
        known = tuple(platform for image in images for platform in image.siblings)
    if not known:
        return None
    return Last(images=images, index=store.index(name), known=tuple(sorted(set(known))))


def _not_built(target: str, there: Last, lacking: Collection[str]) -> LockError:
    what = "its image is not in the store"
    if len(there.known) > 1:
        what = f"its image for {' and '.join(lacking)} is not in the store"
    return LockError(what, where=target, hint=_how_to_build(target))


def _how_to_build(target: str) -> str:
    if not named(target).is_recipe:
        return "build its recipe again"
    return (
        f"run: imagebuilder build {target} (an image of `build --engine docker` is in Docker, not in the "
        "store: pass the NAME:TAG that the build printed to `smoke-test`, and push it with `docker push`)"
    )


def require_in_step(target: str, store: Store, platform: str = "") -> None:
    """Refuse images in the store that do not match their current recipe and lock; a name has no recipe.

    Raises:
        LockError: the lock does not match the recipe, or an image does not match both.

    """
    word = named(target)
    if not word.is_recipe:
        return
    _require_in_step(target, read_plans(word.path, platform), store)


def _require_in_step(target: str, wanted: Iterable[tuple[Lock, Plan]], store: Store) -> None:
    for lock, plan in wanted:
        image = next((i for i in store.images(plan.name) if i.platform == plan.platform), None)
        reason = ""
        if image is None:
            reason = "its image is not in the store"
        elif image.lock != lock.checksum:
            reason = "the image in the store does not match its lock any more"
        elif image.tags != plan.tags or not oci.is_image_of(plan, image, store):
            reason = "the image in the store does not match its recipe any more"
            if [layer.key for layer in plan.layers if isinstance(layer, ProjectLayer)]:
                reason += ", or of the files that it copies"
        if reason:
            raise LockError(reason, where=target, hint=_how_to_build(target))


def join_images(locked: LockedRecipe, store: Store) -> IndexRecord | None:
    """Join the images of a recipe once the store has all of them, in step with recipe and lock.

    Returns:
        The index; None if the recipe has only one platform, or if an image is missing or out of step.

    """
    recipe = locked.selection.recipe
    several = len(recipe.platforms) > 1
    store.forget_images(recipe.name, recipe.platforms, index=several)
    if not several:
        return None
    try:
        _require_in_step(str(locked.path), locked.plans(), store)
    except LockError:
        return None
    tags = plans.index_tags(locked.selection, locked.file)
    images = [image for image in store.images(recipe.name) if image.platform in recipe.platforms]
    return oci.join(images, tags, locked.file.checksum, store)


def labels(image: ImageRecord, store: Store) -> Mapping[str, str]:
    """Read an image's labels from its config blob."""
    try:
        config = json.loads(store.blob(image.config).read_bytes())
        found = config["config"]["Labels"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the config of `{image.name}` cannot be read: {error}",
            where=str(store.blob(image.config)),
            hint="build it again",
        ) from error
    return {str(key): str(value) for key, value in found.items()}


def _preferred(found: Collection[str]) -> str:
    """Choose a platform: this host's, else the first."""
    own = platforms.own()
    return own if own in found else min(found)
