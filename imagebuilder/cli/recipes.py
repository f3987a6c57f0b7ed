"""Verbs on recipes: init, schema, check, lock, plan, render."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imagebuilder.cli import completion, copied
from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import (
    Json,
    Locked,
    PlatformName,
    RecipeFile,
    SiteFile,
    StoreFolder,
    ToolsPlace,
    app,
    complain,
    open_store,
    out,
    warn,
)
from imagebuilder.errors import ImagebuilderError, InputError

if TYPE_CHECKING:
    from imagebuilder.plan import Plan
    from imagebuilder.workflow.project import Copied


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path(),
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            help="Which shipped recipe to start from. [default: cuda12-torch]",
            autocompletion=completion.shipped,
        ),
    ] = "",
    image: Annotated[
        str,
        typer.Option(
            "--from-image",
            metavar="IMAGE",
            help="Make it from what an image of the local engine, or of a registry, holds.",
        ),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            "--from-requirements",
            metavar="FILE",
            help="Make it for a requirements.txt, pyproject.toml, uv.lock or pylock.toml.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    platform: Annotated[
        str,
        typer.Option("--platform", metavar="NAME", help="Of an image for several: which to read."),
    ] = "",
    site: SiteFile = None,
    store: StoreFolder = None,
) -> None:
    """Write a recipe to start from. Adds its JSON Schema, for editors."""
    from imagebuilder.recipe import init as starting
    from imagebuilder.workflow import schemas

    if sum(map(bool, (recipe, image, file))) > 1:
        raise InputError(
            "--recipe, --from-image and --from-requirements exclude each other",
            where="imagebuilder init",
            hint="keep one of them",
        )
    notes = 0
    if image or file:
        from imagebuilder.host.site import detect
        from imagebuilder.workflow.adopt import images, requirements

        name = requirements.name_of_file(file) if file else images.name_of_image(image)
        path = starting.place(folder, name, force=force)
        if file:
            draft = requirements.of_requirements(file, path, detect(site).catalog)
        else:
            draft = images.read_image(image, path, platform, site, open_store(store))
        text, notes = draft.text(), len(draft.notes)
    else:
        name = recipe or "cuda12-torch"
        text = starting.shipped(name)
        path = starting.place(folder, name, force=force)
    for written in starting.write(path, text, schemas.text(schemas.recipe())):
        out(f"wrote {written}")
    if notes:
        out(f"  its end says what was left out or changed: {notes} note{'s' if notes > 1 else ''}")
    said = f" --site {site}" if site else ""
    out(f"next: imagebuilder {'lock' if image or file else 'build'} {path}{said}")


@app.command()
def schema(
    of_site: Annotated[bool, typer.Option("--site-file", help="Of a site file instead.")] = False,
    of_component: Annotated[
        bool, typer.Option("--catalog-file", help="Of a component's file in `catalog/` instead.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--catalog", metavar="DIR", help="Also list the components that this folder describes."),
    ] = None,
    of_verb: Annotated[
        str, typer.Option("--json", metavar="VERB", help="Of what VERB prints with --json, instead.")
    ] = "",
) -> None:
    """Print the JSON Schema of a recipe, for editors."""
    from imagebuilder.workflow import schemas

    if sum(map(bool, (of_site, of_component, of_verb, folder))) > 1:
        raise InputError(
            "--site-file, --catalog-file, --catalog and --json exclude each other",
            where="imagebuilder schema",
            hint="keep one of them",
        )
    if of_verb:
        from imagebuilder.cli import results

        described = results.schema(of_verb)
    else:
        described = (
            schemas.site_file()
            if of_site
            else schemas.component()
            if of_component
            else schemas.recipe(folder)
        )
    out(schemas.text(described).rstrip("\n"))


@app.command()
def check(
    recipes: Annotated[
        list[Path],
        typer.Argument(metavar="RECIPE...", help="Recipes to check.", autocompletion=completion.recipe),
    ],
    require_lock: Locked = False,
    as_json: Json = False,
) -> None:
    """Check recipes and their locks, offline. Reports every problem of every file at once."""
    from imagebuilder.lock import model as locks
    from imagebuilder.workflow import check_recipe

    found: list[tuple[Path, Copied | ImagebuilderError]] = []
    for path in recipes:
        try:
            own = check_recipe(path, locked=require_lock)
        except ImagebuilderError as error:
            found.append((path, error))
            if not as_json:
                complain(error)
        else:
            found.append((path, own))
            if not as_json:
                out(f"{path}: ok, " + ("locked" if locks.path_for(path).exists() else "not locked yet"))
                copied.show(own)
    _warn_of_one_name([path for path, each in found if not isinstance(each, ImagebuilderError)])
    if as_json:
        from imagebuilder.cli import results

        answer(results.recipes.CheckResult.of(found))
    raise typer.Exit(max(each.exit_code if isinstance(each, ImagebuilderError) else 0 for _, each in found))


def _warn_of_one_name(paths: Sequence[Path]) -> None:
    from imagebuilder import catalog, recipe

    first: dict[str, Path] = {}
    for path in paths:
        name = recipe.load(path, catalog.own.names(path)).name
        other = first.setdefault(name, path)
        if other != path:
            warn(f"{path}: its name `{name}` is also that of {other}: the later build replaces its tags")


_Words = Annotated[
    list[str],
    typer.Argument(
        metavar="RECIPE [PIN...]", help="A recipe; after --upgrade, the pins or packages to move."
    ),
]


@app.command()
def lock(
    words: _Words,
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            "-U",
            help="Move the named pins or packages to newer versions; without a name, all of them.",
        ),
    ] = False,
    site: SiteFile = None,
    tools: ToolsPlace = "",
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Resolve a recipe and write its lock. Versions in an existing lock stay if they still fit."""
    from imagebuilder.lock import model as locks
    from imagebuilder.workflow import lock_changes, named, update_lock

    # The recipe may come before or after `--upgrade PIN`: it is the argument that names a file.
    files = [word for word in words if named(word).is_recipe] or words[:1]
    names = [word for word in words if word not in files]
    if len(files) > 1 or (names and not upgrade):
        extra = files[1] if len(files) > 1 else names[0]
        raise InputError(
            f"unexpected argument `{extra}`", where="imagebuilder lock", hint="names of pins need --upgrade"
        )
    path = Path(files[0])
    found = update_lock(path, site, names if upgrade else None, open_store(store), tools=tools)
    previous, made = found.previous, found.made
    if as_json:
        from imagebuilder.cli import results

        changes = () if made == previous else tuple(lock_changes(previous, made))
        answer(results.recipes.LockResult.of(str(locks.path_for(path)), made, changes, found.notes))
        return
    if made == previous:
        out(f"{locks.path_for(path)} is current")
        return
    for line in lock_changes(previous, made):
        out(f"  {line}")
    for name, section in zip(made.platforms, made.sections, strict=True):
        what = f"{len(section.debs)} Debian packages, {len(section.wheels)} wheels"
        what += f", {len(section.builds)} to compile" if section.builds else ""
        out(f"wrote {locks.path_for(path)}: " + (f"{name}: {what}" if len(made.sections) > 1 else what))
    for note in found.notes:
        out(f"  note: {note}")
    out(f"next: imagebuilder build {path}")


@app.command()
def plan(recipe_file: RecipeFile, platform: PlatformName = "", as_json: Json = False) -> None:
    """Show the layers that a build would make. Offline; needs a lock."""
    from imagebuilder.workflow import read_locks

    read = read_locks(recipe_file)
    planned = [plan for _, plan in read.plans(platform)]
    if as_json:
        from imagebuilder.cli import results

        files = results.recipes.CopiedResult.of(read.copied, names=True)
        answer(
            results.recipes.PlanResult(
                images=tuple(results.recipes.PlannedImage.of(plan, files) for plan in planned)
            )
        )
        return
    for number, image in enumerate(planned):
        if len(planned) > 1:
            out(("\n" if number else "") + image.platform)
        _show_plan(image)
    copied.show(read.copied)


def _show_plan(planned: Plan) -> None:
    from imagebuilder.core.progress import human
    from imagebuilder.image.diff import packages_of

    for layer in planned.layers:
        size = sum(package.size for package in packages_of(layer))
        out(f"{layer.key[:12]}  {human(size) if size else '':>8}  {layer.title}")
    out(f"{len(planned.layers)} layers, tag {planned.tag}")


@app.command()
def render(
    recipe_file: RecipeFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file. [default: print]"),
    ] = None,
    platform: PlatformName = "",
) -> None:
    """Write the plan as a Dockerfile. `docker buildx build` builds it without imagebuilder. Needs a lock."""
    from imagebuilder.core import files
    from imagebuilder.plan import render as renderer
    from imagebuilder.workflow import read_plan, read_plans

    if output is None:
        _, planned = read_plan(recipe_file, platform)
        out(renderer.render(planned, files.template("Dockerfile.j2")).rstrip("\n"))
        return
    found = read_plans(recipe_file, platform)
    for _, planned in found:
        path = output
        if len(found) > 1:
            # Names and versions of packages differ between platforms: one file for all would be unreadable.
            path = output.with_name(f"{output.stem}.{planned.architecture}{output.suffix}")
        files.write(path, renderer.render(planned, files.template("Dockerfile.j2")))
        out(f"wrote {path}")
