"""The command line: the only place that prints or exits.

What a verb needs is imported inside it, so that `--help` and `check` start in a fraction of a second.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from imagebuilder import __version__
from imagebuilder.errors import INTERRUPTED, EnvironmentFault, ImagebuilderError, InputError

if TYPE_CHECKING:
    from imagebuilder.engines.embedded import Built
    from imagebuilder.smoke.target import Target
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

RecipeFile = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A recipe, e.g. recipes/cuda12-torch.yaml.")
]
SiteFile = Annotated[
    Path | None,
    typer.Option("--site", metavar="FILE", help="Proxies, CA, indexes and mirrors, over what the host says."),
]
StoreFolder = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Store to use. [default: the user's cache]")
]
ProgressKind = Annotated[str, typer.Option("--progress", metavar="KIND", help="auto, table, lines or json.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> NoReturn:
    """Run the command line and exit with the code of what happened (see errors.py)."""
    code = 0
    try:
        code = app(standalone_mode=False) or 0
    except ImagebuilderError as error:
        _complain(error)
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
    if verbose == 0:
        # It warns of every retry; what comes of them is said in the end, in our own words.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
    if version:
        _out(f"imagebuilder {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        _out(context.get_help())


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path(),
    recipe: Annotated[
        str, typer.Option("--recipe", help="Which shipped recipe to start from.")
    ] = "cuda12-torch",
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
    from imagebuilder import recipe

    _out_json(recipe.schema())


@app.command()
def check(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipes to check.")],
    as_json: Json = False,
) -> None:
    """Check recipes and their locks, offline: every problem of every file at once."""
    from imagebuilder import lock as locks
    from imagebuilder.workflow import read_plan, read_recipe

    rows: list[dict[str, object]] = []
    worst = 0
    for path in recipes:
        locked = locks.path_for(path).exists()
        try:
            _ = read_plan(path) if locked else read_recipe(path)
        except ImagebuilderError as error:
            worst = max(worst, error.exit_code)
            problems = [dataclasses.asdict(problem) for problem in error.problems]
            rows.append(
                {"recipe": str(path), "ok": False, "exit_code": error.exit_code, "problems": problems}
            )
            if not as_json:
                _complain(error)
        else:
            rows.append({"recipe": str(path), "ok": True, "locked": locked})
            if not as_json:
                _out(f"{path}: ok, " + ("locked" if locked else "not locked yet"))
    if as_json:
        _out_json(rows)
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
    from imagebuilder import lock as locks
    from imagebuilder.workflow import lock_changes, update_lock

    # The recipe may stand before or after `--upgrade PIN`: it is the word that names a file.
    files = [word for word in words if word.endswith((".yaml", ".yml"))] or words[:1]
    names = [word for word in words if word not in files]
    if len(files) > 1 or (names and not upgrade):
        extra = files[1] if len(files) > 1 else names[0]
        raise InputError(
            f"`{extra}` is one word too many", where="imagebuilder lock", hint="names go after --upgrade"
        )
    path = Path(files[0])
    previous, made = update_lock(path, site, names if upgrade else None)
    if made == previous:
        _out(f"{locks.path_for(path)} is current")
        return
    for line in lock_changes(previous, made):
        _out(f"  {line}")
    _out(f"wrote {locks.path_for(path)}: {len(made.debs)} Debian packages, {len(made.wheels)} wheels")
    _out(f"next: imagebuilder build {path}")


@app.command()
def plan(recipe_file: RecipeFile, as_json: Json = False) -> None:
    """Show the layers and the config that a build would make. Offline; needs a lock."""
    from imagebuilder.progress import human
    from imagebuilder.workflow import read_plan

    _, planned = read_plan(recipe_file)
    layers = [
        {
            "kind": type(layer).__name__,
            "title": layer.title,
            "key": layer.key,
            "packages_bytes": sum(
                p.size for p in (*getattr(layer, "wheels", ()), *getattr(layer, "debs", ()))
            ),
        }
        for layer in planned.layers
    ]
    if as_json:
        config = dataclasses.asdict(planned.config)
        _out_json({"name": planned.name, "tag": planned.tag, "layers": layers, "config": config})
        return
    for layer in layers:
        size = int(str(layer["packages_bytes"]))
        _out(f"{str(layer['key'])[:12]}  {human(size) if size else '':>8}  {layer['title']}")
    _out(f"{len(layers)} layers, tag {planned.tag}")


@app.command()
def render(
    recipe_file: RecipeFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it there. [default: print it]"),
    ] = None,
) -> None:
    """Write the plan as a Dockerfile that `docker buildx build` takes without imagebuilder. Needs a lock."""
    from imagebuilder import render as renderer
    from imagebuilder import share
    from imagebuilder.workflow import read_plan

    _, planned = read_plan(recipe_file)
    text = renderer.render(planned, share.template("Dockerfile.j2"))
    if output is None:
        _out(text.rstrip("\n"))
    else:
        _write(output, text)
        _out(f"wrote {output}")


@app.command()
def build(
    recipe_file: RecipeFile,
    load: Annotated[
        bool, typer.Option("--load", help="Put the image into the local Docker or Podman.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="Also write an OCI layout: a folder, or a .tar file."
        ),
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
    from imagebuilder.workflow import read_plan, update_lock

    _check_progress(progress)
    if not locks.path_for(recipe_file).exists():
        _err(f"{recipe_file} has no lock yet: resolving")
        update_lock(recipe_file, site, None)
    locked, planned = read_plan(recipe_file)
    where = _store(store)
    surroundings = detect(site, distribution=locked.base.partition(":")[0])
    with shown(progress, sys.stderr) as live:
        shop = embedded.Workshop(lock=locked, store=where, site=surroundings, progress=live)
        built = embedded.build(planned, shop)
    if output is not None:
        oci.export(built.image, where, output)
    reference = _load(built.image, where) if load else ""
    if as_json:
        _out_json(
            {
                "name": built.image.name,
                "digest": built.image.manifest,
                "config": built.image.config,
                "tag": built.image.tag,
                "size": built.image.size,
                "layers": len(built.image.layers),
                "layers_made": built.made,
                "layers_reused": built.reused,
                "fetched_bytes": built.fetched,
                "seconds": round(built.seconds, 3),
                "reference": reference,
            }
        )
    else:
        _show_built(built, reference, output, recipe_file)


@app.command("smoke-test")
def smoke_test(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[RECIPE|IMAGE]", help="A recipe that was built, or an image of the local engine."
        ),
    ] = "",
    mode: Annotated[str, typer.Option("--mode", help="auto, cpu, one-gpu-shared or multi-gpu.")] = "auto",
    runtime: Annotated[
        str, typer.Option("--runtime", help="auto, docker, podman, or process (no containers: this Python).")
    ] = "auto",
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes, at least two.")] = 2,
    checks: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="NAME", help="Run only this check; may be repeated."),
    ] = None,
    patience: Annotated[float, typer.Option("--patience", help="Factor on every time limit.")] = 1.0,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the JSON report here too.")
    ] = None,
    site: SiteFile = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Prove an image on two nodes. Exit code 0: passed, 1: failed, 2: could not run."""
    from imagebuilder.errors import TestFailure
    from imagebuilder.site import detect
    from imagebuilder.smoke import report as reports
    from imagebuilder.smoke.run import Watch, run_smoke
    from imagebuilder.smoke.target import Options

    options = Options(
        mode=cast("Any", mode),
        runtime=cast("Any", runtime),
        nodes=nodes,
        patience=patience,
        only=frozenset(checks or ()),
    )
    where = _store(store)
    found = _smoke_target(target, runtime, where)
    watch = Watch(ended=lambda check: _err(f"{check.status:8} {check.name}  {check.seconds:.1f} s"))
    result = run_smoke(found, options, store=where, site=detect(site), watch=watch)
    if result.digest and not checks:
        # What allows a push; a run of single checks proves nothing, and must not undo a proof either.
        reports.write(result, where.report(result.digest))
    if report is not None:
        reports.write(result, report)
    if as_json:
        _out(reports.dumps(result).rstrip("\n"))
    else:
        for line in reports.lines(result):
            _out(line)
        if result.passed and result.digest:
            _out(f"next: imagebuilder push {target} REGISTRY/NAME")
    if not result.passed:
        raise typer.Exit(TestFailure.exit_code)


@app.command()
def push(
    image: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe that was built, or its image's name.")
    ],
    repository: Annotated[str, typer.Argument(metavar="REPOSITORY", help="registry.example/team/name[:TAG]")],
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
    progress: ProgressKind = "auto",
    as_json: Json = False,
) -> None:
    """Push an image that passed its smoke test; only what the registry lacks travels."""
    from imagebuilder import registry
    from imagebuilder.progress import human, shown
    from imagebuilder.site import detect
    from imagebuilder.workflow import built_image

    _check_progress(progress)
    where = _store(store)
    found = built_image(image, where)
    if found is None:
        raise InputError(
            f"`{image}` is not an image in the store",
            where="imagebuilder push",
            hint="give the recipe that it is built from; `imagebuilder cache ls` lists what is there",
        )
    registry.parse(repository)
    if untested:
        _err(f"warning: pushing {found.manifest} without proof that it works")
    else:
        registry.require_proof(found, where)
    options = registry.Options(session=detect(site).session(), insecure=insecure)
    with shown(progress, sys.stderr) as live:
        live.begin("push", f"{found.name} to {repository}", "pushing", found.size)
        result = registry.push(
            found,
            where,
            repository,
            (found.tag, found.lock[:12], *(tags or ())),
            options=options,
            advance=lambda count: live.advance("push", count),
        )
        live.end("push", f"{found.name} to {repository}", "done", result.pushed_bytes)
    if as_json:
        _out_json(dataclasses.asdict(result))
        return
    _out(f"pushed  {result.reference}")
    _out(f"tags    {', '.join(result.tags)}")
    _out(
        f"        {human(result.pushed_bytes)} in {result.pushed_blobs} blobs travelled, "
        f"{human(result.reused_bytes)} were there already, {result.seconds:.1f} s"
    )


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder to make; it must not exist yet.")],
    name: Annotated[str, typer.Option("--name", help="The job's name, for the keys' comments.")] = "job",
    days: Annotated[
        int, typer.Option("--days", min=1, max=3650, help="How long the certificates hold.")
    ] = 30,
    secret: Annotated[
        str, typer.Option("--secret", metavar="NAME", help="Print them as a Kubernetes Secret of this name.")
    ] = "",
) -> None:
    """Make the ssh keys of one job, to mount into its containers at /run/secrets/imagebuilder."""
    from imagebuilder.keys import check_secret_name, make_keys, secret_manifest

    if secret:
        check_secret_name(secret)
    make_keys(folder, name=name, days=days)
    if secret:
        _out(secret_manifest(folder, secret).rstrip())
        return
    _out(f"wrote {folder}: keys and certificates for {days} days; the authority that signed them is gone")
    _out(f"next: docker run -v {folder.absolute()}:/run/secrets/imagebuilder:ro ...")


@app.command()
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Install the Debian packages that are missing (root).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what this host has and lacks for each verb, and how to mend it."""
    from imagebuilder import doctor as doctors

    if fix:
        for line in doctors.fix():
            _err(line)
    findings = doctors.examine()
    if as_json:
        _out_json([dataclasses.asdict(finding) for finding in findings])
    else:
        for line in doctors.lines(findings):
            _out(line)
    if any(finding.status == "missing" for finding in findings):
        raise typer.Exit(EnvironmentFault.exit_code)


@cache_app.command("ls")
def cache_ls(store: StoreFolder = None, as_json: Json = False) -> None:
    """List the images in the store, and what the store takes."""
    from imagebuilder import cache
    from imagebuilder.progress import human

    where = _store(store)
    usage = cache.usage(where)
    if as_json:
        _out_json({**dataclasses.asdict(usage), "folder": str(where.root)})
        return
    for image in usage.images:
        proven = "proven" if where.report(image.manifest).exists() else "not proven"
        _out(f"{image.name:<20} {image.manifest[:19]}  {human(image.size):>8}  {image.tag}  ({proven})")
    _out(
        f"{human(usage.blob_bytes)} in {usage.blobs} blobs, {human(usage.download_bytes)} in "
        f"{usage.downloads} downloads, in {where.root}"
    )


@cache_app.command("verify")
def cache_verify(
    fix: Annotated[
        bool, typer.Option("--fix", help="Remove what is damaged, for the next build to replace.")
    ] = False,
    store: StoreFolder = None,
    progress: ProgressKind = "auto",
) -> None:
    """Hash every blob and download again, and name those that are not what they should be."""
    from imagebuilder import cache
    from imagebuilder.errors import StoreError
    from imagebuilder.progress import shown

    _check_progress(progress)
    where = _store(store)
    with shown(progress, sys.stderr) as live:
        live.begin("verify", str(where.root), "reading", cache.usage(where).total)
        damages = cache.verify(where, lambda count: live.advance("verify", count), remove=fix)
        live.end("verify", str(where.root), "failed" if damages else "done")
    for damage in damages:
        _out(f"{damage.path}: {damage.reason}" + (", removed" if fix else ""))
    if damages and not fix:
        raise StoreError(
            f"{len(damages)} damaged files",
            where=str(where.root),
            hint="run: imagebuilder cache verify --fix",
        )
    _out("everything is what it should be" if not damages else "build again to replace what was removed")


@cache_app.command("prune")
def cache_prune(
    keep: Annotated[str, typer.Option("--keep", metavar="SIZE", help="Bytes to keep, e.g. 20GB.")] = "0",
    store: StoreFolder = None,
) -> None:
    """Remove what was not used for longest, until the store takes no more than SIZE."""
    from imagebuilder import cache
    from imagebuilder.progress import human
    from imagebuilder.workflow import parse_size

    pruned = cache.prune(_store(store), parse_size(keep))
    _out(f"removed {pruned.files} files, {human(pruned.bytes)}")


def _smoke_target(text: str, runtime: str, store: Store) -> Target:
    """Find what a smoke test is to run on; an image of the store is put into the engine first."""
    from imagebuilder.smoke import engine as engines
    from imagebuilder.smoke import target as targets
    from imagebuilder.workflow import built_image, labels

    if runtime == "process":
        return targets.from_environment()
    if not text:
        hint = "name a recipe that was built, or an image"
        raise InputError("no image is given", where="imagebuilder smoke-test", hint=hint)
    image = built_image(text, store)
    if image is None:
        with engines.connect(cast("Any", runtime)) as engine:
            return engines.look_up(engine, text)
    reference = _load(image, store, runtime)
    return targets.from_labels(reference, labels(image, store), digest=image.manifest, config=image.config)


def _load(image: ImageRecord, store: Store, runtime: str = "auto") -> str:
    """Put an image into the local engine; returns what the engine knows it by."""
    from imagebuilder.engines.load import load
    from imagebuilder.progress import human
    from imagebuilder.smoke.engine import connect

    with connect(cast("Any", runtime)) as engine:
        _err(f"loading {image.name} into {engine.kind}")
        result = load(image, store, engine)
    _err(f"loaded {result.reference}, {human(result.moved_bytes)} travelled")
    return result.reference


def _show_built(built: Built, reference: str, output: Path | None, recipe_file: Path) -> None:
    from imagebuilder.progress import human

    image = built.image
    _out(f"image   {image.name}:{image.tag}")
    _out(f"digest  {image.manifest}")
    layers = f"{len(image.layers)} layers ({built.made} made, {built.reused} reused)"
    _out(f"size    {human(image.size)} in {layers}")
    _out(f"time    {built.seconds:.1f} s, {human(built.fetched)} fetched")
    if output is not None:
        _out(f"wrote   {output}")
    if reference:
        _out(f"loaded  {reference}")
        _out(f"next:   docker run --rm {reference} python -c 'import sys; print(sys.version)'")
    _out(f"next:   imagebuilder smoke-test {recipe_file}")
    _out(f"        imagebuilder push {recipe_file} REGISTRY/NAME")


def _check_progress(kind: str) -> None:
    if kind not in {"auto", "table", "lines", "json"}:
        raise InputError(f"`{kind}` is none of auto, table, lines, json", where="--progress")


def _store(folder: Path | None) -> Store:
    from imagebuilder.store import Store

    return Store(folder) if folder is not None else Store.default()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _complain(error: ImagebuilderError) -> None:
    for problem in error.problems:
        _err(f"error: {problem}")


def _out_json(value: object) -> None:
    _out(json.dumps(value, indent=2))


def _out(text: str) -> None:
    typer.echo(text)


def _err(text: str) -> None:
    typer.echo(text, err=True)
