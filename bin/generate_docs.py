"""Write what is generated from the code: docs/reference (all but exit-codes.md) and the recipes' schema.

With --check nothing is written; the exit code is 1 where a file is not what it would be.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from imagebuilder import catalog, cli
from imagebuilder.cli import answer, results
from imagebuilder.core import files
from imagebuilder.launch import targets
from imagebuilder.lock import file as lockfile
from imagebuilder.recipe import Recipe
from imagebuilder.smoke import evidence, report
from imagebuilder.smoke.run import CHECKS
from imagebuilder.workflow import schemas

ROOT = Path(__file__).resolve().parents[1]
_NOTICE = "<!-- Written by bin/generate_docs.py (`make docs`); change the code that it describes instead. -->"


def main(arguments: Sequence[str]) -> int:
    """Write or check every file; the exit code."""
    check = "--check" in arguments
    stale = [
        path for path, text in generated().items() if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in stale:
        if not check:
            path.write_text(generated()[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)} {'is not current: run make docs' if check else 'written'}")
    return 1 if stale and check else 0


def generated() -> dict[Path, str]:
    """Give the path and the whole text of every generated file."""
    reference = ROOT / "docs" / "reference"
    return {
        ROOT / "recipes" / "recipe.schema.json": schemas.text(schemas.recipe()),
        reference / "recipe.md": _page(_recipe()),
        reference / "catalog.md": _page(_catalog()),
        reference / "cli.md": _page(_cli()),
        reference / "json.md": _page(_json()),
        reference / "report.md": _page(_report()),
        reference / "report.schema.json": json.dumps(report.schema(), indent=2) + "\n",
        reference / "checks.md": _page(_checks()),
        reference / "frameworks.md": _page(_frameworks()),
        reference / "launch.md": _page(_launch()),
    }


def _page(lines: Iterator[str]) -> str:
    return "\n".join([_NOTICE, "", *lines]).rstrip("\n") + "\n"


def _recipe() -> Iterator[str]:
    yield "# Recipe"
    yield ""
    yield "A YAML file that a person writes. Unknown and duplicate keys, aliases, tags and unquoted versions"
    yield "are refused, with all problems of a file at once. `imagebuilder schema` prints the JSON Schema."
    yield ""
    yield "## Keys"
    yield ""
    yield from _fields(Recipe)
    for name, info in Recipe.model_fields.items():
        inner = info.annotation if isinstance(info.annotation, type) else typing.get_args(info.annotation)[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from ["", f"## `{info.alias or name}`", "", *_words(inner.__doc__), ""]
            yield from _fields(inner)
    yield from ["", "## What can be pinned", ""]
    for component in catalog.load().values():
        if component.name != "python":
            yield f"- [`{component.name}`](catalog.md#{component.name}): {component.summary}"
    yield from ["", "Python is pinned by the key `python`. Anything else goes under `pip` or `apt`.", ""]
    yield from ["## An example", "", "```yaml"]
    yield (files.resources("recipes") / "cuda12-torch.yaml").read_text(encoding="utf-8").rstrip("\n")
    yield "```"


def _catalog() -> Iterator[str]:
    yield "# Catalog"
    yield ""
    yield "What a recipe can pin: one file a component in `imagebuilder/catalog/`. Adding a component is"
    yield "adding its file."
    for component in catalog.load().values():
        yield from ["", f"## {component.name}", "", f"{component.summary}.", ""]
        yield from _component(component)
    yield from ["", "## A component's file", "", *_fields(catalog.Component)]
    yield from ["", "### `providers`", "", *_words(catalog.Provider.__doc__), "", *_fields(catalog.Provider)]
    yield from ["", "### `build`", "", *_words(catalog.BuildSteps.__doc__), "", *_fields(catalog.BuildSteps)]
    yield from ["", "### `limits`", "", *_words(catalog.Limit.__doc__), "", *_fields(catalog.Limit)]
    yield from ["", "### `probe`", "", *_words(catalog.Probe.__doc__), "", *_fields(catalog.Probe)]
    yield from ["", "### `framework`", "", *_words(catalog.Framework.__doc__), ""]
    yield from _fields(catalog.Framework)
    yield from ["", "Its `launcher`:", "", *_words(catalog.Launcher.__doc__), "", *_fields(catalog.Launcher)]


def _component(component: catalog.Component) -> Iterator[str]:
    if component.include == "always":
        yield "- In every image, pinned or not."
    if component.include == "devel":
        yield f"- In images with `devel: true` that pin `{component.like}`; its version is that pin's."
    if component.needs:
        yield f"- Needs a pin of {_code(component.needs)}."
    if component.excludes:
        yield f"- Not in one image with {_code(component.excludes)}."
    for provider in component.providers:
        values = provider.model_dump(exclude_defaults=True)
        when = "".join(f" with {name} {version}" for name, version in values.pop("when", {}).items())
        own = {key: values.pop(key, {}) for key in ("env", "links", "scripts")}
        ways = "; ".join(f"{key} {_value(value)}" for key, value in values.items())
        yield f"- Provided{when} by: {ways}."
        yield from (f"    - Sets `{name}={value}`." for name, value in own["env"].items())
        yield from (f"    - Links `{path}` to `{target}`." for path, target in own["links"].items())
        yield from (f"    - Has the script `{path}`." for path in own["scripts"])
    yield from _built_and_limits(component)
    for name, value in component.env.items():
        yield f"- Sets `{name}={value}`."
    for path, target in component.links.items():
        yield f"- Links `{path}` to `{target}`."
    for path, target in component.devel_links.items():
        yield f"- With `devel: true` links `{path}` to `{target}`."
    yield from _tested(component)


def _tested(component: catalog.Component) -> Iterator[str]:
    if component.probe:
        yield f"- The version that loads is read with `{' '.join(component.probe.command)}`."
    if component.framework:
        yield f"- A framework: the smoke test's {_code(sorted(component.framework.payloads))} run with it."


def _built_and_limits(component: catalog.Component) -> Iterator[str]:
    if component.build:
        source = component.build.debian or component.build.sdist
        kind = "Debian's source package" if component.build.debian else "the sdist"
        beside = f", against {' or '.join(component.build.against)}" if component.build.against else ""
        yield f"- Compiled with `build: [{component.name}]`, from {kind} `{source}`{beside}."
    for limit in component.limits:
        ends = [f"from `{limit.least}`"] * bool(limit.least) + [f"to `{limit.most}`"] * bool(limit.most)
        note = "" if limit.strict else " (said, no conflict)"
        yield f"- Version {limit.version} takes `{limit.of}` {' '.join(ends)}: {limit.why}{note}."


def _cli() -> Iterator[str]:
    root: Any = typer.main.get_command(cli.app)
    yield "# Command line"
    yield ""
    yield f"{root.help} Every verb has `--help`."
    yield "What the exit codes mean is on [a page of its own](exit-codes.md)."
    yield ""
    yield from _options(root)
    for name, command in root.commands.items():
        yield from _command(f"imagebuilder {name}", command)


def _json() -> Iterator[str]:
    yield "# Output of --json"
    yield ""
    yield "With `--json`, a verb prints one JSON document, whether it succeeds or not, and nothing else on"
    yield "stdout. Messages, warnings and progress go to stderr, as without it. The document is the same for"
    yield "all verbs except for `result`:"
    yield ""
    yield "| key | value |"
    yield "|---|---|"
    yield f"| `version` | {answer.VERSION}; goes up when a key disappears or gets another meaning |"
    yield "| `command` | the verb, such as `build` or `cache ls` |"
    yield "| `ok` | whether the exit code is 0 |"
    yield "| `result` | what the verb did, see below; null if it ended before that |"
    yield "| `error` | null if the exit code is 0 |"
    yield "| `error.code` | the [exit code](exit-codes.md) |"
    yield (
        "| `error.problems` | what is wrong: a list of `message`, `where` (file, line and key) and `hint`; "
        "empty if the result says it, as with a failed smoke test |"
    )
    yield ""
    yield "```console"
    yield "$ imagebuilder push recipes/cpu-mpi.yaml registry.example/team/mpi --json > pushed.json"
    yield "$ jq -r .result.digest pushed.json"
    yield "```"
    yield ""
    yield "`imagebuilder schema --json VERB` prints the JSON Schema of the whole document."
    for verb, kind in results.RESULTS.items():
        yield from ["", f"## {verb}", ""]
        if kind is report.Report:
            yield "The [report of a smoke test](report.md)."
            continue
        yield from [_summary(kind), "", "| key | value |", "|---|---|"]
        yield from _result_rows(kind, "")


def _result_rows(kind: type, prefix: str) -> Iterator[str]:
    """List the keys of a result, those inside of it with a path such as `images[].digest`."""
    for name, annotation in typing.get_type_hints(kind).items():
        path, inner = f"{prefix}{name}", annotation
        if typing.get_origin(inner) in (typing.Union, types.UnionType):
            inner = next(part for part in typing.get_args(inner) if part is not type(None))
        if typing.get_origin(inner) is tuple:
            path, inner = f"{path}[]", typing.get_args(inner)[0]
        elif typing.get_origin(inner) in (dict, Mapping):
            path, inner = f"{path}.*", typing.get_args(inner)[1]
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            yield f"| `{path}` | {_summary(inner)} |"
            yield from _result_rows(inner, f"{path}.")
        else:
            yield f"| `{prefix}{name}` | {_kind(annotation)} |"


def _summary(kind: type) -> str:
    """Return a docstring up to its list of attributes, as one line."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").partition("Attributes:")[0].split())


def _report() -> Iterator[str]:
    yield "# Report of a smoke test"
    yield ""
    yield "`imagebuilder smoke-test --report` writes this JSON, and `--json` prints it as the"
    yield "[`result`](json.md). For programs, the same is in"
    yield "[the JSON Schema](report.schema.json). `imagebuilder report` turns it into HTML or JUnit XML."
    yield ""
    yield from [*_words(report.Report.__doc__), ""]
    yield from _fields(report.Report)
    for name, model in (
        ("checks", report.CheckResult),
        ("checks[].findings", report.Finding),
        ("checks[].steps", report.Step),
        ("checks[].reused", report.Reused),
        ("earlier", report.Earlier),
        ("host", report.Host),
    ):
        yield from ["", f"## `{name}`", "", *_words(model.__doc__), "", *_fields(model)]
    yield from [
        "",
        "## `checks[].evidence`",
        "",
        "Each check decides what it puts here. These parts have a fixed meaning:",
    ]
    for row in (evidence.PinRow, evidence.SweepRow, evidence.ScalingRow):
        yield from ["", f"### `{row.__name__}`", "", *_words(row.__doc__), "", *_fields(row)]
    yield from [
        "",
        '`training`: `evidence["losses"]` lists the loss of each logged step, mean over the ranks.',
    ]


def _checks() -> Iterator[str]:
    yield "# Checks of the smoke test"
    yield ""
    yield "The checks run in this order. A check that cannot run in a place is skipped, with the reason, and"
    yield "does not count as passed. An image is proven if no check failed, all required checks passed, and"
    yield "ranks computed something together. Every command has a time limit. Every failure names a node,"
    yield "a cause and a remedy."
    yield ""
    yield "| Check | What is run | When it passes |"
    yield "|---|---|---|"
    for check in CHECKS:
        yield f"| `{check.name}` | {check.title} | {check.criterion} |"


_TOGETHER = (
    (
        "JAX 0.12 and TensorFlow 2.21.0 in one image",
        "the smoke test, with each of them; TensorFlow in a custom loop",
        "a wrong coordinator; a wrong worker in `TF_CONFIG`; a killed rank; gradients that are not averaged",
    ),
    (
        "tf-keras 2.21.0 with TensorFlow 2.21.0",
        "`fit` under `MultiWorkerMirroredStrategy`",
        "a worker in `TF_CONFIG` whose name has no address; Keras 3 in place of tf-keras",
    ),
    (
        "MXNet 1.9.1",
        "the smoke test; `launch.py` over ssh and over mpirun",
        "a scheduler at another port; a worker that is killed",
    ),
    (
        "Horovod 0.28.1 with torch 2.13.0 and Open MPI 4.1.4",
        "`horovodrun` with `--mpi`, `--gloo` and a hostfile; `mpirun`; compiled twice",
        "a rank that ends with 3; a host without an address; no mpirun; an image without MPI",
    ),
    (
        "DeepSpeed 0.19.8 with torch 2.13.0, pdsh and Open MPI 4.1.4",
        "ZeRO 1, 2 and 3 by `deepspeed --hostfile` over pdsh; `--launcher openmpi`; compiled twice",
        "a rank that ends with 3; a host without an address; operators for another torch",
    ),
    (
        "Debian's torch with Open MPI 5.0.7",
        "two ranks by torch's MPI backend, in one container",
        "-",
    ),
    (
        "torch 2.10.0",
        "`examples/mnist` on all of MNIST, and from its checkpoint; TensorBoard reads its events",
        "the cases of the smoke test",
    ),
)


def _together() -> Iterator[str]:
    yield "## What is run together, and broken on purpose"
    yield ""
    yield "`make soak` builds these and runs them in two containers without a GPU. What is broken must end by"
    yield "itself, and its last words must name the cause. For torch and MPI the page about the smoke test"
    yield "[lists every case](../explanation/smoke-test.md#broken-on-purpose)."
    yield ""
    yield "| what | how it is run | broken on purpose |"
    yield "|---|---|---|"
    yield from (f"| {' | '.join(row)} |" for row in _TOGETHER)
    yield ""
    yield "The images of `cuda12-jax`, `cuda12-tensorflow`, `mxnet` and `examples/recipes/cpu-horovod.yaml`"
    yield "passed the whole smoke test in two containers. None of this has run on a GPU."
    yield ""


def _frameworks() -> Iterator[str]:
    yield "# Frameworks"
    yield ""
    yield "A framework is a component of the catalog that trains on several nodes. The smoke test runs the"
    yield "checks of each framework that is pinned, one framework after the other, with scripts of its own."
    yield ""
    yield "| framework | what it is | launcher | checks | its name in the default tag | frozen upstream |"
    yield "|---|---|---|---|---|---|"
    for name, framework in catalog.frameworks().items():
        launcher = f"`{framework.launcher.command[0]}`" if framework.launcher else "none"
        checks, tag = _code(sorted(framework.payloads)), framework.tag
        row = (f"`{name}`", catalog.load()[name].summary, launcher, checks, f"`{tag}`")
        yield f"| {' | '.join(row)} | {framework.frozen or 'no'} |"
    yield ""
    yield "## Versions that fit together"
    yield ""
    yield "The shipped recipes pin these. Their locks hold everything else."
    yield ""
    yield "| recipe | Python | framework | CUDA, cuDNN, NCCL | MPI |"
    yield "|---|---|---|---|---|"
    for place in sorted((ROOT / "recipes").glob("*.lock")):
        (lock, *_) = lockfile.read(place).sections
        frameworks = [f"{name} {lock.pins[name]}" for name in catalog.frameworks() if name in lock.pins]
        cuda = [lock.pins[name] for name in ("cuda", "cudnn", "nccl") if name in lock.pins]
        mpi = [f"{name} {lock.pins[name]}" for name in ("openmpi", "mpich") if name in lock.pins]
        cells = (
            f"`{lock.recipe}`",
            lock.python,
            *(", ".join(part) or "-" for part in (frameworks, cuda, mpi)),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield from _together()
    yield "## How ranks of each meet"
    yield ""
    yield "Every rank has the variables `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`."
    for name, framework in catalog.frameworks().items():
        told = f"**{catalog.load()[name].summary}**: {framework.meets}"
        yield from ("", *textwrap.wrap(told, 100, break_on_hyphens=False)) if framework.meets else ()
    yield ""
    yield "## Older stacks"
    yield ""
    yield "CUDA 11 is for code that needs torch 2.0: `examples/recipes/cuda11-torch.yaml` pins torch 2.0.1,"
    yield "whose wheels on the package index are for CUDA 11.7, and gcc 11, the newest that CUDA 11.7's"
    yield "compiler works with. Its image was locked and rendered, and not run."
    yield ""
    yield "The stack of 2018 (CUDA 9.0, cuDNN 7.4, NCCL 2.3, TensorFlow 1.12, torch 1.3, MXNet 1.4, Python"
    yield "3.5, gcc 4.9 on `nvidia/cuda:9.0-devel-ubuntu16.04`) is not expressed. The catalog begins with"
    yield "CUDA 11, uv does not resolve for Python 3.5, and the smoke test's scripts need a later Python. The"
    yield "package index still serves those wheels for Python 3.5; there are none of CUDA 9's libraries."


def _launch() -> Iterator[str]:
    found = [targets.load(name) for name in targets.names()]
    yield "# Targets of `launch`"
    yield ""
    yield "`imagebuilder launch --target KIND` writes these files. Each target is one file in"
    yield "`imagebuilder/launch/targets/`, with a header and a template. The launcher `framework` is that of"
    yield "a framework in the image, such as torchrun."
    yield ""
    yield "| target | runs the job | launchers | files | start it with |"
    yield "|---|---|---|---|---|"
    for target in found:
        names = [name for name, _ in target.templates]
        header = target.header
        yield (
            f"| `{target.name}` | {header.summary} | {_code(header.launchers)} | {_code(names)} "
            f"| `{header.run}` |"
        )
    yield ""
    yield "Before `launch` writes a manifest, it checks it against the schema of its kind, and refuses keys"
    yield "that the schema does not have. `imagebuilder/launch/schemas/README.md` says where they come from."
    yield ""
    yield "| target | schemas | what else checks it | keys for mpirun |"
    yield "|---|---|---|---|"
    keys = {"": "the operator's, or none", "folder": "a folder `keys`", "secret": "a Secret in `keys.yaml`"}
    for target in found:
        header = target.header
        used = keys[header.keys] if "mpirun" in header.launchers else "no mpirun"
        schemas = _code(list(header.schemas)) or "no manifest"
        yield f"| `{target.name}` | {schemas} | {header.checked} | {used} |"
    yield from ["", "## Options", "", "A target refuses an option that it cannot follow.", ""]
    yield f"| option | {' | '.join(_code([target.name]) for target in found)} |"
    yield f"|---|{'---|' * len(found)}"
    for field, option in targets.OPTIONS.items():
        marks = ("yes" if field in target.header.options else "" for target in found)
        yield f"| `{option}` | {' | '.join(marks)} |"
    yield ""
    yield (
        f"{_code(['docker'])} always uses the hosts' own network. Volumes: "
        + "; ".join(
            f"`{target.name}` has {_code(target.header.volumes)}" for target in found if target.header.volumes
        )
        + "."
    )
    yield from ["", "## A target's file", "", *_words(targets.Header.__doc__), "", *_fields(targets.Header)]


def _command(name: str, command: Any) -> Iterator[str]:
    yield from ["", f"## {name}", "", *_words(command.help)]
    if hasattr(command, "commands"):
        for sub, subcommand in command.commands.items():
            yield from _command(f"{name} {sub}", subcommand)
        return
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = ["[OPTIONS]"] if len(command.params) > len(arguments) else []
    usage = " ".join([name, *(_argument(parameter) for parameter in arguments), *options])
    yield from ["", f"    {usage}", ""]
    for parameter in arguments:
        if parameter.help:
            yield f"- `{_argument(parameter)}`: {parameter.help}"
    yield from _options(command)


def _argument(parameter: Any) -> str:
    word = str(parameter.metavar or parameter.name.upper())
    return word if parameter.required or word.startswith("[") else f"[{word}]"


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name != "option":
            continue
        spelled = ", ".join(f"`{spelling}`" for spelling in parameter.opts)
        takes_value = not parameter.is_flag and not parameter.count
        value = f" `{parameter.metavar or parameter.name.upper()}`" if takes_value else ""
        default = f" Default: `{parameter.default}`." if takes_value and parameter.default else ""
        yield f"- {spelled}{value}: {parameter.help}{default}"


def _fields(model: type[BaseModel]) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, info in model.model_fields.items():
        kind = _kind(info.annotation)
        yield f"| `{info.alias or name}` | {kind} | {_default(info)} | {info.description or ''} |"


def _kind(annotation: Any) -> str:
    """Put a type into words: `tuple[str, ...]` is a list of texts."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(parts[0])
    if origin is tuple:
        return f"list of {_kind(parts[0])}"
    if origin is dict:
        return f"mapping to {_kind(parts[1])}"
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(part) for part in parts if part is not type(None))
    names = {str: "text", int: "number", float: "number", bool: "true or false"}
    return names.get(annotation, "mapping")


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    return "" if not value or isinstance(value, BaseModel) else _value(value)


def _value(value: Any) -> str:
    return _code(value) if isinstance(value, tuple) else f"`{str(value).lower() if value is True else value}`"


def _code(words: Sequence[Any]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _words(docstring: str | None) -> list[str]:
    return inspect.cleandoc(docstring or "").splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
