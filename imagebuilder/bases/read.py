"""Read the base that a recipe names, for the lock."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from imagebuilder import plan as plans
from imagebuilder.bases import fetch, tree
from imagebuilder.bases import system as facts
from imagebuilder.bases.system import System
from imagebuilder.core.reference import parse
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import ImagebuilderError, InputError, Problem
from imagebuilder.host.site import Site
from imagebuilder.lock.model import BaseImage, BaseLayer
from imagebuilder.recipe import RegistryImage
from imagebuilder.registry import pull
from imagebuilder.store import Store

log = logging.getLogger(__name__)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,254}")
_LONGEST = 32_768  # characters; Linux takes variables of up to 131072 bytes
_MOST_TEXTS = 1_000
_REASONS = {
    "variable": "it makes programs load or run other files; set it in the recipe if you need it",
    "label": "only imagebuilder itself sets labels with this prefix",
}
# Engines mount some 125 layers at once, and the image adds its own.
_MOST_LAYERS = 100


@dataclass(frozen=True, kw_only=True)
class Base:
    """A base: its entry for the lock, and the system in it."""

    image: BaseImage
    system: System


def read(
    wanted: RegistryImage, architecture: str, site: Site, store: Store, previous: BaseImage | None = None
) -> Base:
    """Find a base in its registry, and read its layers, which are kept in the store.

    Args:
        wanted: the base in the recipe.
        architecture: Debian's name; for architectures with wheels, OCI uses the same.
        site: how to reach the registry.
        store: where the layers go.
        previous: the base in the present lock, to keep it; None takes the image that the tag points to now.

    Raises:
        InputError: the image cannot be a base.
        RegistryError: there is no such image, or the registry cannot be reached.
        FetchError: a layer could not be downloaded.
        BuildError: a layer is damaged.

    """
    client = fetch.client_of(wanted.name, site)
    tag = parse(wanted.name).tag
    name = wanted.pinned or (previous.digest if previous else "") or tag
    try:
        image = pull.find(client, name, architecture)
        layers = layers_of(image)
        fetch.fetch_layers(
            layers, client, store, advance=lambda _sha256, _count: None, finished=lambda _sha256: None
        )
        system = _system(wanted.name, layers, store)
        if system.architecture != architecture:
            raise InputError(
                f"its system is for {system.architecture}, not for {architecture}",
                hint="its config says otherwise, so the image is broken: choose another",
            )
        index = image.index or (previous.index if previous and previous.digest == image.digest else "")
        return Base(image=_base_image(wanted, image, index, layers, system), system=system)
    except ImagebuilderError as error:
        # Report the place in the recipe; the message has the image's name.
        error.problems = tuple(_of_recipe(problem, wanted) for problem in error.problems)
        raise


def differences(image: BaseImage, architecture: str, site: Site) -> tuple[str, ...]:
    """List the facts about the base that differ between the lock and the registry, at the lock's digests.

    Raises:
        RegistryError: there is no such image, or the registry cannot be reached.

    """
    now = pull.find(fetch.client_of(image.name, site), image.index or image.digest, architecture)
    facts_now = {
        "digest": now.digest,
        "created": now.created,
        "user": str(now.config.get("User") or ""),
        "env": _environment(now.config),
        "labels": _labels(now.config),
        "layers": tuple(BaseLayer.model_validate(vars(layer)) for layer in now.layers),
    }
    return tuple(key for key, value in facts_now.items() if getattr(image, key) != value)


def hidden_differences(image: BaseImage, store: Store) -> tuple[str, ...]:
    """List the facts about the base's system that differ between the lock and the layers in the store."""
    system = again(image, store)
    facts_now = {
        "packages": system.packages,
        "accounts": dict(system.accounts),
        "archives": _archives(system),
    }
    return tuple(key for key, value in facts_now.items() if getattr(image, key) != value)


def again(image: BaseImage, store: Store) -> System:
    """Read the system of a locked base from its layers in the store."""
    return _system(image.name, image.layers, store)


def _system(name: str, layers: tuple[BaseLayer, ...], store: Store) -> System:
    blobs = [(store.download(layer.sha256), layer.diff_id) for layer in layers]
    return facts.of_tree(tree.read(blobs, facts.wanted, name), name)


def _broken(what: str) -> InputError:
    return InputError(f"its config cannot be used: {what}", hint="choose another image")


def layers_of(image: pull.PulledImage) -> tuple[BaseLayer, ...]:
    """Return the layers of an image, checked.

    Raises:
        InputError: there are too many, or a digest is not a sha256 digest.

    """
    if len(image.layers) > _MOST_LAYERS:
        raise _broken(f"it has {len(image.layers)} layers; a base can have at most {_MOST_LAYERS}")
    layers = []
    for number, layer in enumerate(image.layers, 1):
        try:
            layers.append(BaseLayer.model_validate(vars(layer)))
        except ValidationError:
            raise _broken(f"the digest of layer {number} is not a sha256 digest") from None
    return tuple(layers)


def _base_image(
    wanted: RegistryImage, image: pull.PulledImage, index: str, layers: tuple[BaseLayer, ...], system: System
) -> BaseImage:
    try:
        return BaseImage(
            name=wanted.name,
            digest=image.digest,
            index=index,
            created=image.created,
            user=image.config.get("User") or "",
            env=_environment(image.config),
            labels=_labels(image.config),
            accounts=dict(system.accounts),
            archives=_archives(system),
            layers=layers,
            packages=system.packages,
        )
    except ValidationError as error:
        places = {str(item["loc"][0]) for item in error.errors()}
        raise _broken(f"its {' and '.join(sorted(places))} cannot be written to a lock") from None


def _archives(system: System) -> tuple[str, ...]:
    return tuple(sorted({archive.name for archive in system.archives}))


def _environment(config: Mapping[str, Any]) -> dict[str, str]:
    pairs = config.get("Env") or []
    if not isinstance(pairs, list) or not all(isinstance(text, str) for text in pairs):
        raise _broken("`Env` is not a list of strings")
    texts = {name: value for name, _, value in (text.partition("=") for text in pairs)}
    return _told("variable", texts, plans.inherited_env(texts))


def _labels(config: Mapping[str, Any]) -> dict[str, str]:
    texts = config.get("Labels") or {}
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise _broken("`Labels` is not an object of strings")
    return _told("label", texts, plans.inherited_labels(texts))


def _told(kind: str, texts: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Leave out variables and labels that are forbidden, too long, not one line of text, or oddly named."""
    if len(texts) > _MOST_TEXTS:
        raise _broken(f"it has {len(texts)} {kind}s; a base can have at most {_MOST_TEXTS}")
    name = _VARIABLE if kind == "variable" else _LABEL
    kept = {
        key: text
        for key, text in inherited.items()
        if name.fullmatch(key) and text.isprintable() and len(text) <= _LONGEST
    }
    for key in sorted(texts.keys() - kept.keys()):
        reason = "it is not plain text" if key in inherited else _REASONS[kind]
        log.warning("the base's %s %s is left out: %s", kind, printable(key), reason)
    return kept


def _of_recipe(problem: Problem, wanted: RegistryImage) -> Problem:
    if problem.where == "base: image":
        return problem
    # The error may come from a mirror of the registry.
    elsewhere = f" (at {problem.where})" if problem.where and wanted.name not in problem.where else ""
    message = f"{wanted.image}: {problem.message}{elsewhere}"
    return Problem(message=message, where="base: image", hint=problem.hint)
