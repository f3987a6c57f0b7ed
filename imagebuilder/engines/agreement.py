"""Compares a lock with its sources: the base with the registry, wheels with their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from imagebuilder.bases import read
from imagebuilder.engines.context import BuildContext
from imagebuilder.errors import BuildError, LockError, Problem, RegistryError
from imagebuilder.lock.model import BaseImage, Wheel
from imagebuilder.plan import BuiltLayer, CompiledLayer, PackageLayer
from imagebuilder.resolve import closure
from imagebuilder.resolve.request import Request


def require_base(context: BuildContext) -> None:
    """Refuse a lock whose base differs from the registry's, before programs of the base run.

    If the registry does not answer, the build continues, with a note that nothing was compared.

    Raises:
        LockError: names every key that differs.
        RegistryError: the registry answers, and does not have the base.

    """
    lock = context.lock
    if lock.image is None:
        return
    try:
        differing = read.differences(lock.image, lock.architecture, context.site)
    except RegistryError as error:
        # An error with a cause means that the registry did not answer.
        if error.__cause__ is None:
            raise
        context.progress.note(f"the lock's {lock.image.name} was not compared with its registry: {error}")
        return
    _refuse_base(lock.image, differing, lock.recipe)


def require_image(context: BuildContext, request: Request) -> None:
    """Refuse wheels that nothing requires, missing wheels, and a base with other content than the lock says.

    Raises:
        LockError: names every such wheel, and every key of the base that differs.

    """
    lock, store = context.lock, context.store
    if lock.image and all(store.has_download(layer.sha256, layer.size) for layer in lock.image.layers):
        _refuse_base(lock.image, read.hidden_differences(lock.image, store), lock.recipe)
    _require(lock.wheels, closure.of_image(request, lock), context, f"the lock of {lock.recipe}: wheels")


def require_build(context: BuildContext, layer: BuiltLayer) -> None:
    """Refuse a component's build before it runs if nothing requires one of its wheels, or one is missing.

    Raises:
        LockError: names every such wheel.

    """
    if context.request is None:
        return
    asked = closure.of_build(context.request(), context.lock, layer.component)
    used = layer.wheels
    if isinstance(layer, CompiledLayer):
        used = tuple(wheel for part in layer.requirements for wheel in part.wheels)
    _require(used, asked, context, f"the lock of {context.lock.recipe}: builds.{layer.component}.wheels")


def require_package_build(context: BuildContext, layer: PackageLayer) -> None:
    """Refuse a project's build, before it runs, if it has wheels that nothing requires, or lacks some.

    Raises:
        LockError: names every such wheel.

    """
    if context.request is None:
        return
    asked = closure.of_project(context.request(), context.lock)
    where = f"the lock of {context.lock.recipe}: project.wheels"
    _require(layer.requirements.wheels, asked, context, where)


def require_package(context: BuildContext, layer: PackageLayer, wheel: Path) -> None:
    """Refuse a project's wheel that requires something which the image does not have.

    Raises:
        BuildError: names it.

    """
    if context.request is None:
        return
    request = context.request()
    extras = request.project.extras if request.project else ()
    if found := closure.lacking(wheel, extras, request, context.lock):
        raise BuildError(
            f"the package's own wheel requires {', '.join(found)}, which the image does not have",
            where=layer.title,
            hint="its backend adds that: name it under `dependencies` of [project], or under `pip:`",
        )


def require_compiled(context: BuildContext, layer: CompiledLayer, wheel: Path) -> None:
    """Refuse a compiled wheel that requires something which the image does not have.

    Raises:
        BuildError: names it.

    """
    if context.request is None:
        return
    request = context.request()
    entry = next((item for item in request.compiles if item.component == layer.component), None)
    extras = sorted(Requirement(entry.requirement).extras) if entry else ()
    if found := closure.lacking(wheel, extras, request, context.lock):
        raise BuildError(
            f"the compiled wheel requires {', '.join(found)}, which the image does not have",
            where=layer.title,
            hint="its source does not say so before it is compiled: add it under `pip:`",
        )


def _require(wheels: Sequence[Wheel], asked: closure.Asked, context: BuildContext, where: str) -> None:
    store = context.store
    files = {
        wheel.sha256: store.download(wheel.sha256)
        for wheel in wheels
        if store.has_download(wheel.sha256, wheel.size)
    }
    closure.require(wheels, closure.read(wheels, files), asked, where)


def _refuse_base(image: BaseImage, keys: Sequence[str], recipe: str) -> None:
    problems = [
        Problem(
            message=f"differs from {image.name}@{image.digest}",
            where=f"the lock of {recipe}: image.{key}",
            hint="the lock was changed: lock the recipe again",
        )
        for key in keys
    ]
    if problems:
        raise LockError.of(problems)
