"""The plan: which layers an image has, and its config. Pure: no network, clock, environment or folder."""

from __future__ import annotations

from imagebuilder.plan.config import (
    BASE_DIGEST_LABEL,
    ENGINE_LABEL,
    EPOCH,
    PATH,
    Config,
    environment,
    image_tags,
    index_tags,
    version,
)
from imagebuilder.plan.layer import (
    BAKED_KEYS,
    VENV,
    BuiltLayer,
    DockerOsLayer,
    Entry,
    FilesLayer,
    ImportedLayer,
    KeysLayer,
    Layer,
    OsLayer,
    UpperOsLayer,
    User,
    WheelLayer,
)
from imagebuilder.plan.layout import MAX_LAYERS, OWN_LAYER_BYTES, Plan, as_made, by_docker, plan

__all__ = [
    "BAKED_KEYS",
    "BASE_DIGEST_LABEL",
    "ENGINE_LABEL",
    "EPOCH",
    "MAX_LAYERS",
    "OWN_LAYER_BYTES",
    "PATH",
    "VENV",
    "BuiltLayer",
    "Config",
    "DockerOsLayer",
    "Entry",
    "FilesLayer",
    "ImportedLayer",
    "KeysLayer",
    "Layer",
    "OsLayer",
    "Plan",
    "UpperOsLayer",
    "User",
    "WheelLayer",
    "as_made",
    "by_docker",
    "environment",
    "image_tags",
    "index_tags",
    "plan",
    "version",
]
