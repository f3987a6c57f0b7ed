"""The catalog: one YAML file for each component, with its providers, needs, limits and version probe."""

from __future__ import annotations

from imagebuilder.catalog.model import (
    BuildSteps,
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
    numbers,
)
from imagebuilder.catalog.own import OwnComponent
from imagebuilder.catalog.select import VENV, Part, Selection, select

__all__ = [
    "VENV",
    "BuildSteps",
    "Component",
    "Framework",
    "Launcher",
    "Limit",
    "OwnComponent",
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
    "numbers",
    "select",
]
