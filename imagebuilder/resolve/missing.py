"""Clashes that a missing pin hides: nothing can be resolved without it, so values of it are tried."""

from __future__ import annotations

import logging

from imagebuilder import catalog
from imagebuilder.errors import ConflictError, ImagebuilderError, Problem
from imagebuilder.host.site import Site
from imagebuilder.recipe import Places, Recipe
from imagebuilder.resolve.python import resolve_wheels
from imagebuilder.resolve.request import request

log = logging.getLogger(__name__)

# Stands in for the C library of the base, which only its packages tell.
_GLIBC = "2.40"


def hidden_clashes(recipe: Recipe, places: Places, site: Site) -> tuple[Problem, ...]:
    """Find the clashes that stay once a missing pin is added.

    Args:
        recipe: it pins a component that needs another one, which it does not pin.
        places: where its keys stand.
        site: how to reach an index.

    Returns:
        Clashes between the pins that are there. Empty if some value of the missing pin makes all of them
        hold, and if the index cannot be asked: the missing pin is reported anyway.

    """
    components = catalog.load()
    needed = {need for name in recipe.pins for need in components[name].needs} - recipe.pins.keys()
    if len(needed) != 1 or recipe.image is not None:
        return ()
    (name,) = needed
    providers = (provider for pin in recipe.pins for provider in components[pin].providers)
    values = sorted({provider.when[name] for provider in providers if name in provider.when})
    clashes: list[tuple[Problem, ...]] = []
    for value in values:
        try:
            tried = recipe.model_copy(update={"pins": {**recipe.pins, name: value}})
            resolve_wheels(request(catalog.select(tried, places)), _GLIBC, site)
        except ConflictError as error:
            clashes.append(error.problems)
        except ImagebuilderError as error:
            log.debug("%s", error)
            return ()
        else:
            return ()
    # A clash that names the tried value is one of our own making.
    own = [f'{name} "{value}"' for value in values]
    return next(
        (
            problems
            for problems in clashes
            if not any(text in problem.message for problem in problems for text in own)
        ),
        (),
    )
