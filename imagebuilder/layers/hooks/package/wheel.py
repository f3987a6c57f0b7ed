"""Make the wheel of /build/project with the backend that its pyproject.toml names (PEP 517), as product.whl.

Runs in the image's own Python, in a root without a network, under the fixed paths of this file. Whatever the
backend answers is somebody else's: who takes the wheel from here checks it.
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
    """Import the backend, and take the object in it that is meant."""
    sys.path[:0] = [str(Path(folder).resolve()) for folder in system.get("backend-path", ())]
    # Without a name it is setuptools, which then expects setup.py beside it.
    name, _, inside = system.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
    found = importlib.import_module(name)
    for part in filter(None, inside.split(".")):
        found = getattr(found, part)
    return found


def missing(requirements: list[str]) -> list[str]:
    """Name what a backend asks for besides `requires` of [build-system], and is not there."""
    there = {normal(found.name) for found in importlib.metadata.distributions()}
    return [text for text in requirements if normal(text) not in there]


def normal(requirement: str) -> str:
    """Take the name of a requirement, as indexes write it."""
    found = NAME.search(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def main() -> None:
    """Build; what goes wrong is said on stderr."""
    # The files there are the build's; the backend may write beside them.
    shutil.copytree(PLACE / "project", PLACE / "work", symlinks=True)
    os.chdir(PLACE / "work")
    sys.path.pop(0)  # this script's own folder
    system = tomllib.loads(Path("pyproject.toml").read_text("utf-8")).get("build-system", {})
    hooks = backend(system)
    if wanted := missing(getattr(hooks, "get_requires_for_build_wheel", lambda _settings: [])(None)):
        raise SystemExit(
            f"the backend also needs {', '.join(wanted)}: add it to `requires` of [build-system]"
        )
    (PLACE / "wheels").mkdir()
    name = hooks.build_wheel(str(PLACE / "wheels"), None, None)
    shutil.copyfile(PLACE / "wheels" / Path(name).name, PLACE / "product.whl")


main()
