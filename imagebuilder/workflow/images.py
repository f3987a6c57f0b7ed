"""From what a person typed to images of the store: only those that are what their recipe says now."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from imagebuilder import catalog, oci, platforms
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.errors import LockError, StoreError
from imagebuilder.store import ImageRecord, IndexRecord, Store
from imagebuilder.workflow.plans_of import read_locks, read_plans, require_platform


@dataclass(frozen=True, kw_only=True)
class Last:
    """The last images of a recipe or a name.

    Attributes:
        images: those that were asked for, sorted by platform.
        index: what joins them; None where one image alone was asked for, or is all that there is.
        known: all platforms of the recipe, asked for or not.

    """

    images: tuple[ImageRecord, ...]
    index: IndexRecord | None
    known: tuple[str, ...]

    @property
    def is_part(self) -> bool:
        """Whether this is one image out of several platforms'."""
        return self.index is None and len(self.known) > 1

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(image.platform for image in self.images)

    @property
    def whole(self) -> ImageRecord | IndexRecord:
        """What a push of all sends: the index, or the only image."""
        return self.index or self.images[0]


def built_image(target: str, store: Store, platform: str = "") -> ImageRecord | None:
    """Find the image that a recipe or a name stands for; None where it is neither (it may be an engine's).

    Args:
        target: a recipe's path, or an image's name.
        store: to look in.
        platform: of several; without it the one that this host's machine runs.

    Raises:
        InputError: it is not for that platform.
        LockError: the recipe changed since its image was built, or it was never built.

    """
    found = last_images(target, store, platform or None)
    if found is None:
        return None
    wanted = platform or _preferred(found.platforms)
    require_in_step(target, store, wanted)
    return next(image for image in found.images if image.platform == wanted)


def last_images(target: str, store: Store, platform: str | None = "") -> Last | None:
    """Find the last images that were built of a recipe or a name, whatever the recipe says by now.

    Args:
        target: a recipe's path, or an image's name.
        store: to look in.
        platform: "" wants those of all platforms of the recipe, None is content with any of them; a name
            wants this one and no other.

    Returns:
        The images; None where the target is neither a recipe nor an image's name.

    Raises:
        InputError: the recipe is not for that platform.
        LockError: a recipe's image was never built.

    """
    if not is_recipe(target):
        images = store.images(target) if recipes.is_name(target) else ()
        if not images:
            return None
        # Each build forgets the images for platforms that its recipe no longer has.
        index, wanted = store.index(target), tuple(dict.fromkeys(p for i in images for p in i.siblings))
    else:
        recipe = recipes.load(Path(target), catalog.names())
        images, index, wanted = store.images(recipe.name), store.index(recipe.name), recipe.platforms
    require_platform(platform or "", wanted, target)
    asked = (platform,) if platform else tuple(wanted)
    found = tuple(image for image in images if image.platform in asked)
    lacking = [name for name in asked if name not in {image.platform for image in found}]
    if lacking and not (platform is None and found):
        what = "its image was not built yet"
        if len(wanted) > 1:
            what = f"its image for {' and '.join(lacking)} was not built yet"
        raise LockError(what, where=target, hint=f"run: imagebuilder build {target}")
    joined = index if index is not None and index.images == found else None
    if len(found) > 1 and joined is None and platform == "":
        raise LockError(
            "its images are not joined yet", where=target, hint=f"run: imagebuilder build {target}"
        )
    return Last(images=found, index=joined if len(found) > 1 else None, known=tuple(sorted(wanted)))


def last_image(target: str, store: Store) -> ImageRecord | None:
    """Find the last image of a target for a single platform; see `last_images`."""
    found = last_images(target, store, None)
    return found.images[0] if found else None


def require_in_step(target: str, store: Store, platform: str = "") -> None:
    """Refuse where images in the store are not what their recipe and lock say now; a name has no recipe.

    Raises:
        LockError: the lock is out of step with the recipe, or an image with either.

    """
    if not is_recipe(target):
        return
    for lock, plan in read_plans(Path(target), platform):
        image = next((i for i in store.images(plan.name) if i.platform == plan.platform), None)
        reason = ""
        if image is None:
            reason = "its image was not built yet"
        elif image.lock != lock.checksum:
            reason = "the image in the store was built from another state of the lock"
        elif image.tags != plan.tags or not oci.is_image_of(
            plans.as_made(plan, labels(image, store)), image, store
        ):
            reason = "the image in the store was built from another state of the recipe"
        if reason:
            raise LockError(reason, where=target, hint=f"run: imagebuilder build {target}")


def join_images(path: Path, store: Store) -> IndexRecord | None:
    """Join the images of a recipe, once the store has all of them as recipe and lock say now.

    Returns:
        The index; None for a recipe of a single platform, and while an image is missing or out of step.

    """
    recipe, file = read_locks(path)
    several = len(recipe.platforms) > 1
    store.forget_images(recipe.name, recipe.platforms, index=several)
    if not several:
        return None
    try:
        require_in_step(str(path), store)
    except LockError:
        return None
    images = [image for image in store.images(recipe.name) if image.platform in recipe.platforms]
    return oci.join(images, plans.index_tags(recipe, file), file.checksum, store)


def is_recipe(target: str) -> bool:
    """Tell whether a word names a recipe's file, not an image."""
    return target.endswith((".yaml", ".yml"))


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
    """Choose among platforms: this host's, else the first."""
    own = platforms.own()
    return own if own in found else min(found)
