"""The command line: the only place that prints or exits.

What a verb needs is imported inside it, so that `--help` and `check` start in a fraction of a second.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from imagebuilder import __version__
from imagebuilder.errors import INTERRUPTED, EnvironmentFault, ImagebuilderError, InputError

if TYPE_CHECKING:
    from imagebuilder.engines.embedded import Built
    from imagebuilder.lock import Lock
    from imagebuilder.plan import Plan
    from imagebuilder.recipe import Recipe
    from imagebuilder.smoke.report import Report
    from imagebuilder.store import ImageRecord, Store

app = typer.Typer(
    name="imagebuilder",
    help="Container images for distributed training: from a pinned recipe to a proven push.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="Look after the store of blobs, layers and downloads.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe, e.g. recipes/cuda12-torch.yaml.")]
SiteFile = Annotated[
    Path | None,
    typer.Option("--site", metavar="FILE", help="Proxies, CA, indexes and mirrors, over what the host says."),
]
StoreFolder = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Store to use. [default: the user's cache]")
]
ProgressKind = Annotated[
    str, typer.Option("--progress", metavar="KIND", help="auto, table, lines or json.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> NoReturn:
    """Run the command line and exit with the code of what happened (see errors.py)."""
    code = 0
    try:
        code = app(standalone_mode=False) or 0
    except ImagebuilderError as error:
        for problem in error.problems:
            _err(f"error: {problem}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _err("interrupted: nothing half-written was left")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Somebody's `| head` has read enough. Closing standard output here keeps Python quiet at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # What typer raises for a wrong option knows how to show itself; its base class has no stable home.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(EnvironmentFault.exit_code)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="Say more; twice: all.")] = 0,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    if version:
        _out(f"imagebuilder {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        _out(context.get_help())


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path(),
    recipe: Annotated[str, typer.Option("--recipe", help="Which shipped recipe to start from.")] = "cuda12-torch",
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Write a recipe to start from, with its JSON Schema for the editor."""
    from imagebuilder.init import copy_templates

    for path in copy_templates(folder, recipe, force=force):
        _out(f"wrote {path}")
    _out(f"next: imagebuilder build {folder / recipe}.yaml")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a recipe."""
    import json

    from imagebuilder import recipe

    _out(json.dumps(recipe.schema(), indent=2, sort_keys=True))


@app.command()
def check(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipes to check.")],
    as_json: Json = False,
) -> None:
    """Check recipes and their locks, offline: every problem of every file at once."""
    import json

    from imagebuilder import lock as locks

    rows, worst = [], 0
    for path in recipes:
        try:
            recipe, inputs = _recipe(path)
            lock_path = locks.path_for(path)
            locked = lock_path.exists()
            if locked:
                locks.require_in_step(locks.read(lock_path), inputs, path)
        except ImagebuilderError as error:
            worst = max(worst, error.exit_code)
            rows.append({"recipe": str(path), "ok": False, "problems": [vars(p) for p in error.problems]})
            if not as_json:
                for problem in error.problems:
                    _err(f"error: {problem}")
        else:
            rows.append({"recipe": str(path), "ok": True, "name": recipe.name, "locked": locked})
            if not as_json:
                _out(f"{path}: ok, " + ("locked" if locked else "not locked yet"))
    if as_json:
        _out(json.dumps(rows, indent=2))
    if worst:
        raise typer.Exit(worst)


@app.command()
def lock(
    words: Annotated[
        list[str], typer.Argument(metavar="RECIPE [PIN...]", help="A recipe; after --upgrade, what to move.")
    ],
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", "-U", help="Move the pins or packages named after it; all without a name."),
    ] = False,
    site: SiteFile = None,
) -> None:
    """Resolve a recipe to exact bytes and write its lock beside it. What still fits stays as it was."""
    # The recipe may stand before or after `--upgrade PIN`: it is the word that names a file.
    files = [word for word in words if word.endswith((".yaml", ".yml"))] or words[:1]
    names = [word for word in words if word not in files]
    if len(files) > 1 or (names and not upgrade):
        extra = files[1] if len(files) > 1 else names[0]
        raise InputError(
            f"`{extra}` is one word too many", where="imagebuilder lock", hint="names go after --upgrade"
        )
    recipe_file = Path(files[0])
    made, path, previous = _make_lock(recipe_file, site, names if upgrade else None)
    for line in _lock_changes(previous, made):
        _out(line)
    if made == previous:
        _out(f"{path} is current")
    else:
        _out(f"wrote {path}: {len(made.debs)} Debian packages, {len(made.wheels)} wheels")
        _out(f"next: imagebuilder build {recipe_file}")


@app.command()
def plan(recipe_file: RecipeFile, as_json: Json = False) -> None:
    """Show the layers and the config that a build would make. Offline; needs a lock."""
    import dataclasses
    import json

    from imagebuilder.progress import human

    _, _, planned = _planned(recipe_file)
    if as_json:
        layers = [{"title": layer.title, "key": layer.key, "kind": type(layer).__name__} for layer in planned.layers]
        config = dataclasses.asdict(planned.config)
        _out(json.dumps({"name": planned.name, "tag": planned.tag, "layers": layers, "config": config}, indent=2))
        return
    for layer in planned.layers:
        size = sum(wheel.size for wheel in getattr(layer, "wheels", ()))
        _out(f"{layer.key[:12]}  {layer.title}" + (f"  {human(size)}" if size else ""))
    _out(f"{len(planned.layers)} layers, tag {planned.tag}")


@app.command()
def build(
    recipe_file: RecipeFile,
    load: Annotated[bool, typer.Option("--load", help="Put the image into the local Docker or Podman.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="Also write an OCI layout: a folder, or a .tar file."),
    ] = None,
    site: SiteFile = None,
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Build the image of a recipe. Locks it first if it never was."""
    from imagebuilder import lock as locks
    from imagebuilder import oci
    from imagebuilder.engines import embedded
    from imagebuilder.progress import shown
    from imagebuilder.site import detect

    _check_progress(progress)
    if not locks.path_for(recipe_file).exists():
        _recipe(recipe_file)
        _err(f"locking    {recipe_file} (it has no lock yet)")
        _make_lock(recipe_file, site, None)
    _, locked, planned = _planned(recipe_file)
    where = _store(store)
    with shown(progress, sys.stderr) as live:
        shop = embedded.Workshop(lock=locked, store=where, site=detect(site), progress=live)
        built = embedded.build(planned, shop)
    if output is not None:
        oci.export(built.image, where, output)
    reference = _load(built.image, where) if load else ""
    if as_json:
        _print_json(built, reference)
    else:
        _print_built(built, reference, output, recipe_file)


@app.command("smoke-test")
def smoke_test(
    target: Annotated[
        str, typer.Argument(metavar="RECIPE|IMAGE", help="A recipe that was built, or an image of the local engine.")
    ] = "",
    mode: Annotated[
        str, typer.Option("--mode", help="auto, cpu, one-gpu-shared or multi-gpu.")
    ] = "auto",
    runtime: Annotated[
        str, typer.Option("--runtime", help="auto, docker, podman, or process (no containers: this Python).")
    ] = "auto",
    nodes: Annotated[int, typer.Option("--nodes", min=2, max=16, help="How many containers.")] = 2,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the JSON report here too.")] = None,
    site: SiteFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Prove an image on two nodes. Exit code 0: passed, 1: failed, 2: could not run."""
    raise NotImplementedError


@app.command()
def push(
    image: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe that was built, or its image's name.")],
    repository: Annotated[str, typer.Argument(metavar="REPOSITORY", help="registry.example/team/name")],
    tags: Annotated[
        list[str] | None, typer.Option("--tag", "-t", help="One more tag; may be repeated.")
    ] = None,
    untested: Annotated[
        bool, typer.Option("--untested", help="Push without a passing smoke test of these very bytes.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plain HTTP to a registry that is not on this host.")
    ] = False,
    site: SiteFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Push an image that passed its smoke test; only what the registry lacks travels."""
    raise NotImplementedError


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder to make; it must not exist yet.")],
    name: Annotated[str, typer.Option("--name", help="The job's name, for the keys' comments.")] = "job",
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long the certificates hold.")] = 30,
) -> None:
    """Make the ssh keys of one job, to mount into its containers at /run/secrets/imagebuilder."""
    from imagebuilder.keys import make_keys

    make_keys(folder, name=name, days=days)
    _out(f"wrote {folder}: keys and certificates for {days} days; the authority that signed them is gone")
    _out(f"next: docker run -v {folder.absolute()}:/run/secrets/imagebuilder:ro ...")


@app.command()
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Install the Debian packages that are missing (root).")] = False,
    as_json: Json = False,
) -> None:
    """Say what this host has and lacks for each verb, and how to mend it."""
    raise NotImplementedError


@cache_app.command("ls")
def cache_ls(store: StoreFolder = None, as_json: Json = False) -> None:
    """List the images in the store, and what the store takes."""
    raise NotImplementedError


@cache_app.command("verify")
def cache_verify(store: StoreFolder = None) -> None:
    """Hash every blob and download again; damaged ones are removed, so that the next build fetches them."""
    raise NotImplementedError


@cache_app.command("prune")
def cache_prune(
    keep: Annotated[str, typer.Option("--keep", metavar="SIZE", help="Bytes to keep, e.g. 20GB.")] = "0",
    store: StoreFolder = None,
) -> None:
    """Remove what was not used for longest, until the store takes no more than SIZE."""
    raise NotImplementedError


def _recipe(path: Path) -> tuple[Recipe, str]:
    """Read a recipe, and the checksum that its lock must carry."""
    from imagebuilder import catalog, recipe
    from imagebuilder.resolve.request import request

    loaded = recipe.load(path, catalog.names())
    return loaded, request(loaded).checksum(loaded)


def _planned(path: Path) -> tuple[Recipe, Lock, Plan]:
    """Read a recipe and its lock, which has to be in step, and plan."""
    from imagebuilder import lock as locks
    from imagebuilder import plan as plans
    from imagebuilder.rootfs import image_files

    loaded, inputs = _recipe(path)
    locked = locks.read(locks.path_for(path))
    locks.require_in_step(locked, inputs, path)
    files = image_files(loaded, plans.environment(loaded))
    return loaded, locked, plans.plan(loaded, locked, files)


def _make_lock(path: Path, site: Path | None, upgrade: list[str] | None) -> tuple[Lock, Path, Lock | None]:
    from imagebuilder import lock as locks
    from imagebuilder.resolve.locking import make_lock
    from imagebuilder.site import detect

    loaded, _ = _recipe(path)
    lock_path = locks.path_for(path)
    previous = locks.read(lock_path) if lock_path.exists() else None
    made = make_lock(loaded, detect(site), previous, upgrade)
    if made != previous:
        locks.write(made, lock_path)
    return made, lock_path, previous


def _lock_changes(previous: Lock | None, made: Lock) -> list[str]:
    """Name what moved: pins, then packages."""
    if previous is None:
        return [f"  {name} {version}" for name, version in sorted(made.pins.items())]
    lines = []
    old = {package.name: package.version for package in (*previous.wheels, *previous.debs)}
    new = {package.name: package.version for package in (*made.wheels, *made.debs)}
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            lines.append(f"  {name} {old.get(name, '(none)')} -> {new.get(name, '(gone)')}")
    lines += [f"  override: {item.pin} {item.locked}, though {c}" for item in made.overrides for c in item.contradicts]
    return lines


def _store(folder: Path | None) -> Store:
    from imagebuilder.store import Store

    return Store(folder) if folder is not None else Store.default()


def _out(text: str) -> None:
    typer.echo(text)


def _err(text: str) -> None:
    typer.echo(text, err=True)
