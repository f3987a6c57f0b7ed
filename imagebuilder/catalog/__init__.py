"""The catalog: one YAML file a component says who provides it, what it needs, and how to see what loads."""

from __future__ import annotations

from imagebuilder.catalog.model import (
    Build,
    Component,
    Framework,
    Launcher,
    Limit,
    Probe,
    Provider,
    fill,
    frameworks,
    kind,
    load,
    matches,
    names,
    names_package,
)
from imagebuilder.catalog.select import VENV, Part, Selection, select

__all__ = [
    "VENV",
    "Build",
    "Component",
    "Framework",
    "Launcher",
    "Limit",
    "Part",
    "Probe",
    "Provider",
    "Selection",
    "fill",
    "frameworks",
    "kind",
    "load",
    "matches",
    "names",
    "names_package",
    "select",
]
