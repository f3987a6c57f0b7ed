"""Find clashes that a missing pin hides. Nothing can be resolved without it, so its values are tried."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from imagebuilder import catalog
from imagebuilder.catalog import Component
from imagebuilder.errors import ConflictError, ImagebuilderError, Problem
from imagebuilder.host.site import Site
from imagebuilder.recipe import Places, Recipe
from imagebuilder.resolve.python import resolve_wheels
from imagebuilder.resolve.request import request

log = logging.getLogger(__name__)

# An assumed version: the base's C library is not known yet.
_GLIBC = "2.40"


def hidden_clashes(
    recipe: Recipe, places: Places, components: Mapping[str, Component], site: Site
) -> tuple[Problem, ...]:
    """Find the clashes that remain after a missing pin is added.

    Args:
        recipe: pins a component that needs another one, and does not pin that.
        places: the places of its keys.
        components: what it can pin.
        site: how to reach an index.

    Returns:
        Clashes between the present pins. Empty if they work with some value of the missing pin, or if the
        index cannot be reached: the missing pin is reported anyway.

    """
    needed = {need for name in recipe.pins for need in components[name].needs} - recipe.pins.keys()
    if len(needed) != 1 or recipe.image is not None:
        return ()
    (name,) = needed
    providers = (provider for pin in recipe.pins for provider in components[pin].providers)
    # In the order of the catalog, which has the usual ones first.
    values = tuple(dict.fromkeys(provider.when[name] for provider in providers if name in provider.when))
    clashes: list[tuple[Problem, ...]] = []
    for value in values:
        try:
            tried = recipe.model_copy(update={"pins": {**recipe.pins, name: value}})
            resolve_wheels(request(catalog.select(tried, places, components)), _GLIBC, site)
        except ConflictError as error:
            clashes.append(error.problems)
        except ImagebuilderError as error:
            log.debug("%s", error)
            return ()
        else:
            return ()
    # A clash that names the tried value may be caused by that value.
    own = [f'{name} "{value}"' for value in values]
    return next(
        (
            problems
            for problems in clashes
            if not any(text in problem.message for problem in problems for text in own)
        ),
        (),
    )
