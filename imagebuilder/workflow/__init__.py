"""What several verbs need: from the path or name that a person typed to recipe, lock, plan and image."""

from __future__ import annotations

from imagebuilder.workflow.images import (
    Last,
    built_image,
    is_recipe,
    join_images,
    labels,
    last_image,
    last_images,
    require_in_step,
)
from imagebuilder.workflow.locking import lock_changes, lock_notes, update_lock, update_pins
from imagebuilder.workflow.plans_of import (
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
    "built_image",
    "check_recipe",
    "is_recipe",
    "join_images",
    "labels",
    "last_image",
    "last_images",
    "lock_changes",
    "lock_notes",
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
