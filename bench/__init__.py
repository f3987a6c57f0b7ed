"""Measurements: see `make bench`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def words(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return the type of an option of argparse that takes known words, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        given = tuple(word for word in text.split(",") if word)
        if unknown := [word for word in given if word not in known]:
            raise argparse.ArgumentTypeError(f"`{unknown[0]}` is not one of {', '.join(known)}")
        return given

    return parse
