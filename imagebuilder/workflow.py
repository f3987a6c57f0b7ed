"""What several verbs need: from the path or name that a person typed to recipe, lock, plan and image."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuilder import catalog, diff, lockfile, oci, platforms, textfile
from imagebuilder import lock as locks
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.diff import Side
from imagebuilder.errors import InputError, LockError, StoreError
from imagebuilder.known import learn
from imagebuilder.located import located
from imagebuilder.lock import Lock
from imagebuilder.lockfile import LockFile
from imagebuilder.plan import Plan
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import facts
from imagebuilder.resolve.request import request
from imagebuilder.rootfs import image_files
from imagebuilder.store import ImageRecord, IndexRecord, Store

if TYPE_CHECKING:
    from imagebuilder.bases.read import Base


def read_recipe(path: Path) -> tuple[Recipe, Mapping[str, str]]:
    """Read a recipe, and of each of its platforms the checksum that its lock must carry."""
    recipe = recipes.load(path, catalog.names())
    with located(path, recipe.name):
        return recipe, {name: request(recipe, name).checksum(recipe) for name in recipe.platforms}


def check_recipe(path: Path) -> None:
    """Look at a recipe, and its lock where there is one, without a network.

    Raises:
        InputError: a file is wrong.
        ConflictError: pins that cannot go together, as far as the catalog knows.
        LockError: the lock is out of step.

    """
    if locks.path_for(path).exists():
        read_plans(path)
        return
    recipe, _ = read_recipe(path)
    with located(path, recipe.name):
        facts.require(recipe, {})


def read_locks(path: Path) -> tuple[Recipe, LockFile]:
    """Read a recipe and its locks.

    Raises:
        InputError: a file is wrong.
        LockError: there is no lock, or it is out of step.

    """
    recipe, inputs = read_recipe(path)
    file = lockfile.read(locks.path_for(path))
    lockfile.require_in_step(file, inputs, path)
    with located(path, recipe.name):
        for section in file.sections:
            facts.require(recipe, section.pins)
    return recipe, file


def read_plans(path: Path, platform: str = "") -> tuple[tuple[Lock, Plan], ...]:
    """Read a recipe and its locks, and lay out the image of each platform, or of the one that is named.

    Raises:
        InputError: a file is wrong, or the recipe is not for that platform.
        LockError: there is no lock, or it is out of step.

    """
    recipe, file = read_locks(path)
    require_platform(platform, file.platforms, str(path))
    return tuple(
        (lock, _plan(recipe, lock))
        for name, lock in zip(file.platforms, file.sections, strict=True)
        if platform in {"", name}
    )


def read_plan(path: Path, platform: str = "") -> tuple[Lock, Plan]:
    """Read a recipe and its lock, and lay out the image for one platform: that of the recipe if it has one.

    Raises:
        InputError: a file is wrong, or which platform is meant is not said.
        LockError: there is no lock, or it is out of step.

    """
    found = read_plans(path, platform)
    if len(found) > 1:
        names = " or ".join(plan.platform for _, plan in found)
        raise InputError(
            "is for several platforms", where=str(path), hint=f"name one with --platform: {names}"
        )
    return found[0]


def require_platform(platform: str, known: Collection[str], where: str) -> None:
    """Refuse a platform that is none, or not one of these; "" stands for all.

    Raises:
        InputError: with those that there are.

    """
    if platform and platforms.check(platform) not in known:
        raise InputError(
            f"is not for {platform}", where=where, hint=f"it is for {' and '.join(sorted(known))}"
        )


def _plan(recipe: Recipe, lock: Lock) -> Plan:
    return plans.plan(recipe, lock, image_files(recipe, plans.environment(recipe, lock)))


def update_lock(
    path: Path, site: Path | None, upgrade: Collection[str] | None, store: Store, *, tools: str = ""
) -> tuple[LockFile | None, LockFile]:
    """Resolve a recipe and write its lock; returns the lock before (None without one) and after.

    The layers of a base from a registry go into the store, for what is in them decides what is to be added.
    """
    # Here and not on top: `check` and `plan` look nothing up, and have half a second.
    from imagebuilder.resolve.locking import make_locks
    from imagebuilder.site import detect

    recipe, inputs = read_recipe(path)
    lock_path = locks.path_for(path)
    previous = lockfile.read(lock_path) if lock_path.exists() else None
    with located(path, recipe.name):
        bases = _bases(recipe, inputs, site, store, previous=previous, upgrade=upgrade)
        surroundings = detect(site, distribution=_known(recipe, bases), tools=tools)
        made = learn(recipe, make_locks(recipe, surroundings, previous, upgrade, bases), store, previous)
    if made != previous:
        lockfile.write(made, lock_path)
    return previous, made


def _bases(
    recipe: Recipe,
    inputs: Mapping[str, str],
    site: Path | None,
    store: Store,
    *,
    previous: LockFile | None,
    upgrade: Collection[str] | None,
) -> dict[str, Base]:
    """Look the base of each platform up where it is an image and something is to be resolved.

    That of the lock stays, unless everything or it may move.
    """
    from imagebuilder.bases import read
    from imagebuilder.site import detect

    found: dict[str, Base] = {}
    if recipe.image is None:
        return found
    moves = upgrade is not None and (not upgrade or "base" in upgrade)
    for name in recipe.platforms:
        lock = previous.section(name) if previous else None
        if lock is not None and lock.inputs == inputs.get(name) and upgrade is None:
            continue
        before = lock.image if lock else None
        if before is not None and (moves or before.name != recipe.image.name):
            before = None
        found[name] = read.read(recipe.image, platforms.architecture(name), detect(site), store, before)
    return found


def _known(recipe: Recipe, bases: Mapping[str, Base]) -> str:
    """Name the distribution, whose mirrors on this host count; a base tells its own."""
    return next((base.system.distribution for base in bases.values()), recipe.distribution)


def update_pins(
    path: Path, site: Path | None, store: Store, *, write: bool, tools: str = ""
) -> tuple[Side, Side, dict[str, tuple[str, str]]]:
    """Move a recipe's pins to the newest that fit together, and lock again.

    Args:
        path: the recipe; it and its lock are rewritten, comments and order stay.
        site: a site file, or None.
        store: tells of layers that were made already.
        write: False only looks.
        tools: where apt runs: see `site.detect`.

    Returns:
        The image before and after, and of each pin that moves its old and its new value.

    Raises:
        ConflictError: nothing fits together.
        InputError: the recipe is wrong, or writes a pin in a way that cannot be edited.

    """
    from imagebuilder.resolve.locking import make_locks
    from imagebuilder.resolve.newest import newest_for_all
    from imagebuilder.site import detect

    recipe, file = read_locks(path)
    with located(path, recipe.name):
        bases = _bases(recipe, {}, site, store, previous=file, upgrade=None)
        surroundings = detect(site, distribution=_known(recipe, bases), tools=tools)
        pins = newest_for_all(recipe, file, surroundings, bases)
    moved = {name: (recipe.pins[name], new) for name, new in pins.items() if recipe.pins[name] != new}
    text = recipes.with_pins(path, moved)
    updated = recipe.model_copy(update={"pins": pins})
    made = learn(updated, make_locks(updated, surroundings, file, (), bases), store, file)
    before = diff.of_plans(str(path), [(lock, _plan(recipe, lock)) for lock in file.sections], store)
    after = diff.of_plans(
        f"{path} (updated)", [(lock, _plan(updated, lock)) for lock in made.sections], store
    )
    if write:
        if moved:
            textfile.write(path, text)
        if made != file:
            lockfile.write(made, locks.path_for(path))
    return before, after, moved


def side(text: str, store: Store) -> Side:
    """Find what a person means by a recipe, a lock or an image of the store, for a comparison.

    Raises:
        InputError: it is none of these.
        LockError: a recipe without a lock, or out of step with it.

    """
    path = Path(text)
    if path.suffix in {".yaml", ".yml"}:
        return diff.of_plans(text, read_plans(path), store)
    if path.suffix == ".lock":
        return diff.of_locks(text, lockfile.read(path).sections)
    found = store.images(text) if recipes.is_name(text) else ()
    if not found:
        raise InputError(
            f"`{text}` is not an image in the store",
            where="imagebuilder diff",
            hint="give a recipe (.yaml), a lock (.lock), or a name that `imagebuilder cache ls` lists",
        )
    return diff.of_images(text, [(image, labels(image, store)) for image in found])


def lock_changes(previous: LockFile | None, made: LockFile) -> list[str]:
    """Name what moved: all pins of a first lock, later only the packages that changed; and what is forced.

    Of several platforms each has lines of its own, for what differs between them; what does not is told once.
    """
    told: dict[str, list[str]] = {}
    for name, lock in zip(made.platforms, made.sections, strict=True):
        for line in _lock_changes(previous.section(name) if previous else None, lock):
            told.setdefault(line, []).append(name)
    gone = sorted(set(previous.platforms if previous else ()) - set(made.platforms))
    lines = [
        line if len(names) == len(made.sections) else f"{line} ({', '.join(names)})"
        for line, names in told.items()
    ]
    return [*lines, *(f"{name} is gone" for name in gone)]


def _lock_changes(previous: Lock | None, made: Lock) -> list[str]:
    if previous is None:
        lines = [f"{name} {version}" for name, version in sorted(made.pins.items())]
    else:
        old, new = _versions(previous), _versions(made)
        lines = [
            f"{name} {old.get(name, '(none)')} -> {new.get(name, '(gone)')}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
    lines += [
        f"override: {item.pin} {item.locked}, though {against}"
        for item in made.overrides
        for against in item.contradicts
    ]
    return lines


def lock_notes(path: Path, made: LockFile) -> list[str]:
    """Say what holds together in a lock, and is worth knowing of it."""
    recipe, _ = read_recipe(path)
    return list(dict.fromkeys(note for lock in made.sections for note in facts.notes(recipe, lock.pins)))


def _versions(lock: Lock) -> dict[str, str]:
    debs = {package.name: package.version for package in lock.installed}
    if lock.image:
        debs["base"] = lock.image.digest
    debs |= {f"{source.name} (source)": source.version for source in lock.sources}
    return debs | {wheel.name: wheel.version for wheel in lock.wheels}


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


def _preferred(found: Collection[str]) -> str:
    """Choose among platforms: this host's, else the first."""
    own = platforms.own()
    return own if own in found else min(found)


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


def parse_size(text: str) -> int:
    """Read a number of bytes as people write it: `20GB`, `500 MB`, `0`. Decimal units, as disks are sold."""
    number, unit = text.strip().upper().removesuffix("B"), 1
    for letter, factor in (("K", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12)):
        if number.endswith(letter):
            number, unit = number[:-1], factor
    try:
        size = float(number)
    except ValueError:
        size = -1.0
    if not 0 <= size < 10**9:
        raise InputError(f"`{text}` is not a size", where="--keep", hint="write it as in 20GB")
    return int(size * unit)
