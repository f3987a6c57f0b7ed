"""Make the wheel of /build/project with the backend that its pyproject.toml names (PEP 517), as product.whl.

Runs with the image's own Python, in a root without a network, under the fixed paths of this file. The backend
is untrusted, so the code that reads the wheel checks it.
"""

import importlib
import importlib.metadata
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

PLACE = Path("/build")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def backend(system: dict[str, Any]) -> Any:
    """Import the backend, and return the object that `build-backend` names."""
    sys.path[:0] = [str(Path(folder).resolve()) for folder in system.get("backend-path", ())]
    # PEP 517's default, with which setuptools expects a setup.py.
    name, _, inside = system.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
    value = importlib.import_module(name)
    for part in filter(None, inside.split(".")):
        value = getattr(value, part)
    return value


def missing(requirements: list[str]) -> list[str]:
    """Return the requirements of the backend itself that are not installed: [build-system] lacks them."""
    installed = {normal(item.name) for item in importlib.metadata.distributions()}
    return [text for text in requirements if normal(text) not in installed]


def normal(requirement: str) -> str:
    """Return the normalised name in a requirement."""
    match = NAME.search(requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def main() -> None:
    """Build the wheel; errors go to stderr."""
    # Build in a copy, because a backend may write into its folder.
    shutil.copytree(PLACE / "project", PLACE / "work", symlinks=True)
    os.chdir(PLACE / "work")
    sys.path.pop(0)  # this script's own folder
    described = Path("pyproject.toml")  # an sdist may have a setup.py alone
    text = described.read_text("utf-8") if described.exists() else ""
    system = tomllib.loads(text).get("build-system", {})
    hooks = backend(system)
    if wanted := missing(getattr(hooks, "get_requires_for_build_wheel", lambda _settings: [])(None)):
        raise SystemExit(
            f"the backend also needs {', '.join(wanted)}: add it to `requires` of [build-system], "
            "or of the package's entry under `compile:`"
        )
    (PLACE / "wheels").mkdir()
    name = hooks.build_wheel(str(PLACE / "wheels"), None, None)
    shutil.copyfile(PLACE / "wheels" / Path(name).name, PLACE / "product.whl")


main()
