"""Try one component of a catalog folder: lock, build and start a small image with it, and ask its version."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from imagebuilder.catalog import own
from imagebuilder.core.progress import Progress
from imagebuilder.errors import InputError
from imagebuilder.host.site import Site, detect
from imagebuilder.smoke.report import CheckResult
from imagebuilder.smoke.target import RuntimeChoice
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow.locking import update_lock
from imagebuilder.workflow.plans import read_locks


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What to try.

    Attributes:
        name, version: the component and its pin; the version may be empty if its file names sources.
        folder: the catalog files.
        beside: more pins, which the component needs.
        base, python: as in a recipe.

    """

    name: str
    version: str
    folder: Path
    beside: Mapping[str, str]
    base: str = "debian:trixie"
    python: str = "3.13"


def try_component(
    wish: Wish,
    site_file: Path | None,
    store: Store,
    progress: Progress,
    *,
    runtime: RuntimeChoice = "auto",
    tools: str = "",
) -> CheckResult:
    """Lock, build and start an image with one component on two nodes, and run the check `pins`.

    Nothing of it stays but layers and packages in the store.

    Args:
        wish: the component.
        site_file: a site file, or None.
        store: keeps what is fetched and made.
        progress: shows the build.
        runtime: the container engine.
        tools: where apt runs, see `site.detect`.

    Returns:
        The result of the check: its evidence has the component's version.

    Raises:
        InputError: the component's file is wrong, or has no probe.
        ImagebuilderError: it cannot be locked, built or started.

    """
    file = wish.folder / f"{wish.name}.yaml"
    if not file.is_file():
        raise InputError("there is no such file", where=str(file), hint="name its folder with --catalog DIR")
    component = own.read(file, wish.beside)
    if component.probe is None:
        hint = "add `probe: {command: [...]}`, which prints the version"
        raise InputError("has no `probe:`, so nobody can ask for its version", where=str(file), hint=hint)
    known = component.build.upstream if component.build else {}
    if not wish.version and len(known) != 1:
        raise InputError(
            "which version?", where=wish.name, hint=f"write it as in: catalog test {wish.name}=1.2.3"
        )
    pins = {**wish.beside, wish.name: wish.version or next(iter(known))}
    site = detect(site_file, tools=tools)
    with tempfile.TemporaryDirectory(prefix="imagebuilder-") as folder:
        recipe = Path(folder) / f"try-{wish.name}.yaml"
        fields = {"name": recipe.stem, "base": wish.base, "python": wish.python, "pins": pins}
        recipe.write_text(json.dumps(fields, indent=1), encoding="utf-8")
        with own.borrowed(recipe, wish.folder):
            update_lock(recipe, site_file, None, store, tools=tools)
            image = _build(recipe, store, site, progress)
    try:
        return _ask(image, store, site, runtime)
    finally:
        store.forget_images(image.name, (), index=False)


def _build(recipe: Path, store: Store, site: Site, progress: Progress) -> ImageRecord:
    from imagebuilder.engines import embedded  # late: it loads everything that makes layers
    from imagebuilder.workflow import sharing

    read = read_locks(recipe)
    ((lock, plan),) = read.plans()
    context = embedded.BuildContext(
        lock=lock,
        store=store,
        site=site,
        progress=progress,
        request=partial(read.request, plan.platform),
        recipe_folder=recipe.parent,
        cache=sharing.open_cache(site, progress.note),
        whole=True,
    )
    return embedded.build(plan, context).image


def _ask(image: ImageRecord, store: Store, site: Site, runtime: RuntimeChoice) -> CheckResult:
    from imagebuilder.engines.load import load
    from imagebuilder.smoke.engine import connect
    from imagebuilder.smoke.run import run_smoke
    from imagebuilder.smoke.target import SmokeOptions, from_labels
    from imagebuilder.workflow.images import labels

    options = SmokeOptions(runtime=runtime, only=frozenset({"pins"}))
    with connect(runtime) as engine:
        loaded = load(image, store, engine)
        target = from_labels(
            loaded.reference, labels(image, store), digest=image.manifest, config=image.config
        )
        try:
            report = run_smoke(replace(target, tests=""), options, store=store, site=site)
        finally:
            for reference in loaded.references:
                with contextlib.suppress(Exception):  # another one may use it: then it stays
                    engine.client.images.remove(reference)
    return next(check for check in report.checks if check.name == "pins")
