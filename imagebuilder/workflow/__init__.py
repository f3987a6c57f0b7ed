"""From the path or name that a user typed to recipe, lock, plan and image, for several verbs."""

from __future__ import annotations

from imagebuilder.workflow.images import (
    Last,
    built_image,
    join_images,
    labels,
    last_image,
    last_images,
    require_in_step,
)
from imagebuilder.workflow.locking import LockUpdate, Updated, lock_changes, update_lock, update_pins
from imagebuilder.workflow.named import Named, named
from imagebuilder.workflow.plans import (
    LockedRecipe,
    check_recipe,
    read_locks,
    read_plan,
    read_plans,
    read_recipe,
    require_platform,
)
from imagebuilder.workflow.sides import side

__all__ = [
    "Last",
    "LockUpdate",
    "LockedRecipe",
    "Named",
    "Updated",
    "built_image",
    "check_recipe",
    "join_images",
    "labels",
    "last_image",
    "last_images",
    "lock_changes",
    "named",
    "read_locks",
    "read_plan",
    "read_plans",
    "read_recipe",
    "require_in_step",
    "require_platform",
    "side",
    "update_lock",
    "update_pins",
]
