"""Write a plan as a Dockerfile, which any BuildKit builds without imagebuilder. Pure."""

from __future__ import annotations

import base64
import json
import posixpath
import shlex
from dataclasses import dataclass

import jinja2

from imagebuilder.core import labels as label_names
from imagebuilder.core import platforms
from imagebuilder.errors import InputError
from imagebuilder.lock.model import Source, Wheel
from imagebuilder.plan import (
    BuiltLayer,
    BytecodeLayer,
    CompiledLayer,
    Entry,
    FilesLayer,
    KeysLayer,
    PackageLayer,
    Plan,
    ProjectLayer,
    UpperOsLayer,
    WheelLayer,
    backend,
)

# The folder that components are compiled in; it is not kept.
_PLACE = "/imagebuilder"
# The end mark of heredocs: none of our files has such a line.
_HEREDOC = "IMAGEBUILDER_END_OF_FILE"


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """A build stage that installs one layer's wheels."""

    stage: str
    title: str
    wheels: tuple[Wheel, ...]


@dataclass(frozen=True, kw_only=True)
class _Compiled:
    """A build stage that compiles one component or package.

    Attributes:
        stage: its name.
        product: the stage whose `/out` the image gets: of a package, the one that unpacks its wheel.
        wheels: of a package, what is in its venv and what its import needs besides, by folder.
        files: commands that make links and scripts.

    """

    stage: str
    product: str
    layer: BuiltLayer
    below: tuple[str, ...]
    script: str
    wheels: tuple[tuple[str, tuple[Wheel, ...]], ...] = ()
    files: tuple[str, ...] = ()


def render(plan: Plan, template: str) -> str:
    """Write a plan as a Dockerfile.

    Args:
        plan: the image.
        template: the text of `dockerfiles/Dockerfile.j2`.

    Returns:
        The Dockerfile: stages for the packages, each compiled component, each layer of wheels, and the image
        itself. It needs Dockerfile syntax 1.4 (BuildKit 0.10, Docker Engine 23), and names no place to fetch
        from.

    Raises:
        InputError: the image is to be slim.

    """
    system = plan.system
    if system.slim:
        raise InputError(
            "`slim: true` is not for Dockerfiles: apt and pip install whole packages",
            where=plan.name,
            hint="build without --engine docker, or remove `slim: true`",
        )
    wheels = [layer for layer in plan.layers if isinstance(layer, WheelLayer)]
    entries = [entry for layer in plan.layers if isinstance(layer, FilesLayer) for entry in layer.entries]
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  (a Dockerfile is not HTML; every text in it is checked or quoted)
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = _quoted
    environment.filters["json"] = json.dumps
    environment.filters["dirname"] = posixpath.dirname
    environment.globals["backend"] = backend.script
    return environment.from_string(template).render(
        name=plan.name,
        # The default platform is left out.
        platform="" if plan.platform == platforms.DEFAULT else plan.platform,
        tag=plan.tag,
        base=base_of(plan),
        imported=isinstance(system, UpperOsLayer),
        lock_checksum=plan.lock_checksum,
        os=system,
        compiled=[_compiled(layer) for layer in plan.layers if isinstance(layer, BuiltLayer)],
        upstream=upstream_sources(plan),
        wheels=[_stage(number, layer) for number, layer in enumerate(wheels, start=1)],
        bytecode=any(isinstance(layer, BytecodeLayer) for layer in plan.layers),
        files=entries,
        commands=[*_commands(entries), *_baked_keys(plan)],
        own=own_folders(plan),
        package=_package(plan),
        project=_projects(plan),
        config=plan.config,
        place=_PLACE,
        heredoc=_HEREDOC,
    )


def own_folders(plan: Plan) -> tuple[tuple[str, ProjectLayer | PackageLayer], ...]:
    """List the user's own folders, each with the name of the build context that it has to be given as."""
    package = _package(plan)
    return (*([("package", package)] if package else []), *_projects(plan))


def _package(plan: Plan) -> PackageLayer | None:
    return next((layer for layer in plan.layers if isinstance(layer, PackageLayer)), None)


def _projects(plan: Plan) -> tuple[tuple[str, ProjectLayer], ...]:
    layers = [layer for layer in plan.layers if isinstance(layer, ProjectLayer)]
    return tuple((f"project-{number}", layer) for number, layer in enumerate(layers, start=1))


def upstream_sources(plan: Plan) -> tuple[Source, ...]:
    """Return the source archives that the Dockerfile does not fetch: the user has to provide them.

    Among them are Python packages' sources: to download one, pip executes it with a network.
    """
    layers = (layer for layer in plan.layers if isinstance(layer, BuiltLayer))
    return tuple(
        source
        for layer in layers
        for source in layer.sources
        if source.upstream or isinstance(layer, CompiledLayer)
    )


def base_of(plan: Plan) -> str:
    """Return the Dockerfile's base: a suite, or the lock's base image by its digest."""
    system = plan.system
    if not isinstance(system, UpperOsLayer):
        return f"{system.distribution}:{system.suite}"
    labels = dict(plan.config.labels)
    return f"{labels[label_names.BASE_NAME]}@{labels[label_names.BASE_DIGEST]}"


def _stage(number: int, layer: WheelLayer) -> _Stage:
    name = layer.wheels[0].name if len(layer.wheels) == 1 else layer.component
    return _Stage(stage=f"wheels-{number:02}-{name}", title=layer.title, wheels=layer.wheels)


def _compiled(layer: BuiltLayer) -> _Compiled:
    stage, product = f"compiled-{layer.component}", f"compiled-{layer.component}"
    wheels: tuple[tuple[str, tuple[Wheel, ...]], ...] = ()
    files: tuple[str, ...] = ()
    if isinstance(layer, CompiledLayer):
        product = f"wheel-{layer.component}"
        sets = (("venv", layer.requirements), ("beside", layer.beside))
        wheels = tuple(
            (name, tuple(w for part in parts for w in part.wheels)) for name, parts in sets if parts
        )
        files = tuple(_commands([*layer.files.entries], inline=True))
    return _Compiled(
        stage=stage,
        product=product,
        wheels=wheels,
        files=files,
        layer=layer,
        below=tuple(f"compiled-{other.component}" for other in layer.below),
        script=layer.script(_PLACE),
    )


def _commands(entries: list[Entry], *, inline: bool = False) -> list[str]:
    """Return shell commands that make folders and links, because COPY makes neither; `inline` files too."""
    commands = []
    for entry in entries:
        path = shlex.quote(entry.path)
        if inline and entry.kind != "dir":
            commands.append(f"mkdir -p {shlex.quote(posixpath.dirname(entry.path))}")
        if inline and entry.kind == "file":
            text = base64.b64encode(entry.text.encode()).decode()
            commands.append(f"echo {text} | base64 -d >{path} && chmod {entry.mode:04o} {path}")
        elif entry.kind == "dir":
            commands.append(f"install -d -m {entry.mode:04o} {path}")
        elif entry.kind == "link":
            commands.append(f"ln -sfn {shlex.quote(entry.text)} {path}")
    return commands


def _baked_keys(plan: Plan) -> list[str]:
    """Return shell commands that make the baked-in key; unlike our engine, every build makes a new one."""
    commands = []
    for layer in plan.layers:
        if isinstance(layer, KeysLayer):
            key = shlex.quote(f"{layer.folder}/id_ed25519")
            commands.append(f"install -d -m 0750 {shlex.quote(layer.folder)}")
            commands.append(f"ssh-keygen -q -t ed25519 -N '' -C {shlex.quote(layer.image)} -f {key}")
            commands.append(f"chmod 0640 {key}")
    return commands


def _quoted(text: str) -> str:
    """Quote a value for ENV and LABEL: there `$` expands and a backslash escapes, also between quotes."""
    for char in ("\\", '"', "$"):
        text = text.replace(char, f"\\{char}")
    return f'"{text}"'
