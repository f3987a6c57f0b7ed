"""Write a recipe for a project's requirement file."""

from __future__ import annotations

import os
from pathlib import Path

from packaging.version import Version

from imagebuilder import catalog
from imagebuilder import recipe as recipes
from imagebuilder.bases.inventory import Distribution
from imagebuilder.catalog import own
from imagebuilder.core import files, platforms, yamlfile
from imagebuilder.debian import suites
from imagebuilder.errors import ConflictError, InputError
from imagebuilder.recipe import Places, requirements
from imagebuilder.recipe.draft import Draft, listed
from imagebuilder.recipe.model import kind_of_file
from imagebuilder.recipe.requirements import Demand
from imagebuilder.resolve.agreement import environment
from imagebuilder.workflow.adopt.growing import GrowingRecipe, as_name, pin_found


def name_of_file(file: Path) -> str:
    """Make a recipe's name from the name of the folder that holds a requirement file."""
    return as_name(file.absolute().parent.name, "project")


def of_requirements(file: Path, path: Path, folder: Path | None = None) -> Draft:
    """Write a recipe that takes its Python packages from a requirement file, and pins the components in it.

    Args:
        file: requirements.txt, pyproject.toml, uv.lock or pylock.toml; the recipe refers to it.
        path: of the recipe; components described beside it can be pinned.
        folder: the site's folder of catalog files.

    Raises:
        InputError: it is not such a file, or cannot be read.
        ConflictError: it requires a Python that no suite has.

    """
    base, python, demands = _suite_for(file, path.stem)
    known, strange = own.offered(path, folder)
    entry = os.path.relpath(file.absolute(), path.parent.absolute())
    made = GrowingRecipe(known, name=path.stem, base=base, python=python, requirements=[entry])
    made.notes += strange
    exact: dict[str, Version] = {item.name: item.exact for item in demands if item.exact is not None}
    wheels = {item: Distribution(name=item, version=str(version)) for item, version in exact.items()}
    pin_found(made, wheels)
    pins = made.fields.get("pins", {})
    if "torch" in pins and "cuda" not in pins and exact["torch"].local is None:
        _pin_beside_torch(made)
    if local := [f"{item} {version}" for item, version in sorted(exact.items()) if version.local]:
        made.notes.append(
            f"Builds that the usual index does not have: {listed(local)}. Name their index in a site file."
        )
    return made.draft(f"the packages that {entry} names, on the newest suite whose Python they take")


def _suite_for(file: Path, name: str) -> tuple[str, str, list[Demand]]:
    """Choose the newest Python that a requirement file accepts. Returns base, Python, and the demands."""
    if not kind_of_file(file.name):
        raise InputError(
            "is not named like a requirement file",
            where=yamlfile.printable(str(file)),
            hint="requirements.txt (or another NAME.txt, NAME.in), pyproject.toml, uv.lock or pylock.toml",
        )
    known = {
        facts.has["python"]: f"{distribution}:{suite}"
        for distribution, of_distribution in suites.known().items()
        for suite, facts in of_distribution.suites.items()
        if "python" in facts.has
    }
    refusals = []
    for python in sorted(known, key=Version, reverse=True):
        fields = {"name": name, "base": known[python], "python": python, "requirements": (file.name,)}
        recipe = recipes.Recipe.model_validate(fields)
        variables = environment(python, platforms.architecture(platforms.DEFAULT))
        try:
            read = requirements.read(recipe, file.absolute().parent, Places(recipe=str(file)), variables)
        except ConflictError as error:
            refusals.append(error)
            continue
        return known[python], python, [demand for item in read for demand in item.demands]
    raise refusals[0]


def _pin_beside_torch(made: GrowingRecipe) -> None:
    """Pin the CUDA, cuDNN and NCCL that torch's wheels need, if a shipped recipe has this torch."""
    torch = made.fields["pins"]["torch"]
    for path in sorted(files.resources("recipes").glob("*.yaml")):
        shipped = recipes.load(path, catalog.names())
        if shipped.pins.get("torch") == torch and not shipped.devel:
            beside = {
                name: shipped.pins[name] for name in catalog.load()["torch"].loads if name in shipped.pins
            }
            made.offer(f"what torch {torch} loads", pins={**made.fields["pins"], **beside})
            return
    made.notes.append(
        f"CUDA, cuDNN and NCCL: which ones the wheels of torch {torch} take is not known offline. "
        "`imagebuilder lock` finds them; pin them then, so that the smoke test checks them."
    )
