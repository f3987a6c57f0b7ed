"""docker buildx: finds it and its builder, checks their versions, runs a build, and explains failures."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.core import process
from imagebuilder.core.process import CommandError
from imagebuilder.core.progress import Progress
from imagebuilder.core.yamlfile import printable
from imagebuilder.engines.buildlog import BuildLog, BuildStep
from imagebuilder.errors import BuildError, EnvironmentFault, FetchError, ImagebuilderError
from imagebuilder.host.site import redact

_LIMIT = 4 * 3600.0  # seconds; a build of everything on a slow disk
_ASKING = 60.0
_STARTING = 600.0  # the first command downloads and starts a builder that runs in a container
_TAIL = 12
# --build-context: https://docs.docker.com/reference/cli/docker/buildx/build/ and its release notes.
_BUILDX = (0, 8)
_RAW_JSON = (0, 13)
# BuildKit 0.10 has Dockerfile syntax 1.4, and Docker Engine 23 has BuildKit 0.10.
_BUILDKIT = (0, 10)
_ENGINE = (23, 0)
_INSTALL = "install Debian's docker-buildx, or Docker's docker-buildx-plugin; `imagebuilder doctor` checks it"
_OLD_ENGINE = "upgrade Docker, name a newer builder with --builder, or build with --engine embedded"


@dataclass(frozen=True, kw_only=True)
class Builder:
    """A builder that answers.

    Attributes:
        name: its name.
        asked: the name given by `--builder`; empty for the builder in use.
        driver: `docker` (the engine's own), `docker-container`, `kubernetes` or `remote`.
        version: of BuildKit, or of the engine for the driver `docker`, as it reports it.
        raw_json: whether buildx can write its progress as JSON.
        merges: whether `COPY --link` makes layers that do not depend on those below. It is false only for
            engines with the classic image store, which cannot export OCI images either.
        buildx: the version of buildx, such as `0.13`.

    """

    name: str
    asked: str
    driver: str
    version: str
    raw_json: bool
    merges: bool
    buildx: str = ""


@dataclass(frozen=True, kw_only=True)
class BuildxRequest:
    """One build.

    Attributes:
        dockerfile: its path.
        context: the build's context folder.
        platform: the target platform, in OCI's form.
        contexts: values of `--build-context`: the name of an image or stage, and what replaces it.
        secrets: ids and files.
        arguments: build arguments. They are passed in the environment, because the list of processes shows
            command lines.
        outputs: `--output`, `--tag`, `--load` and the like.

    """

    dockerfile: Path
    context: Path
    platform: str
    contexts: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, Path], ...] = ()
    arguments: tuple[tuple[str, str], ...] = ()
    outputs: tuple[str, ...] = ()


def look_up(name: str = "", *, start: bool = True) -> Builder:
    """Find a builder, and check that it is new enough for our Dockerfiles.

    Args:
        name: its name in `docker buildx ls`; empty for the one in use.
        start: whether to start a builder that does not run yet, which may download an image. A builder that
            does not run has no version.

    Raises:
        EnvironmentFault: docker, buildx, the engine or the builder is missing or too old.

    """
    version = _buildx_version()
    argv = ["docker", "buildx", "inspect", *(["--bootstrap"] if start else []), *([name] if name else [])]
    try:
        text = process.run(argv, timeout=_STARTING).stdout
    except CommandError as error:
        raise _no_builder(name, _last_line(error)) from error
    driver = _field(text, "Driver")
    # buildx exits with 0 even if the engine does not answer.
    if (reason := _field(text, "Error")) or not driver:
        raise _no_builder(name, reason or "it does not say what it is")
    if driver == "docker":
        release, merges = _engine()
        if _numbers(release) < _ENGINE:
            raise EnvironmentFault(
                f"Docker Engine {release} is too old to build this Dockerfile: it needs 23.0",
                where=f"builder {_field(text, 'Name')}",
                hint=_OLD_ENGINE,
            )
    else:
        release, merges = _field(text, "BuildKit version") or _field(text, "Buildkit"), True
        # Development builds report v0.0.0+unknown; they are accepted, and fail later if they are too old.
        if (0, 0) < _numbers(release) < _BUILDKIT:
            raise EnvironmentFault(
                f"BuildKit {release} is too old to build this Dockerfile: it needs 0.10",
                where=f"builder {_field(text, 'Name')}",
                hint=_OLD_ENGINE,
            )
    return Builder(
        name=_field(text, "Name"),
        asked=name,
        driver=driver,
        version=release,
        raw_json=version >= _RAW_JSON,
        merges=merges,
        buildx=".".join(map(str, version)),
    )


def base_digest(reference: str) -> str:
    """Ask an image's registry for its digest; empty if the registry does not answer."""
    argv = ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", reference]
    try:
        return str(json.loads(process.run(argv, timeout=_ASKING).stdout)["digest"])
    except (ImagebuilderError, ValueError, KeyError, TypeError):
        return ""


def command(builder: Builder, request: BuildxRequest) -> tuple[str, ...]:
    """Write the command line of a build."""
    words = ["docker", "buildx", "build", "--file", str(request.dockerfile), "--platform", request.platform]
    words += ["--progress", "rawjson" if builder.raw_json else "plain"]
    if builder.asked:
        words += ["--builder", builder.asked]
    for name, place in request.contexts:
        words += ["--build-context", f"{name}={place}"]
    for name, file in request.secrets:
        words += ["--secret", f"id={name},src={file}"]
    for name, _ in request.arguments:
        words += ["--build-arg", name]
    return (*words, *request.outputs, str(request.context))


def build(builder: Builder, request: BuildxRequest, progress: Progress) -> None:
    """Build, and show each step.

    Raises:
        BuildError: a step failed; names it, with its last lines.
        FetchError: the archive or the index no longer has what the lock names.
        EnvironmentFault: the builder lacks something, or broke.

    """
    log = BuildLog(progress, raw=builder.raw_json)
    try:
        code = process.stream(
            command(builder, request), log.hear, timeout=_LIMIT, env=dict(request.arguments) or None
        )
    except BaseException:
        log.end(ok=False)
        raise
    log.end(ok=code == 0)
    if code != 0:
        raise explain(log.failed, log.said)


def explain(step: BuildStep | None, said: str) -> ImagebuilderError:
    """Return an error that says why a build failed, and what to do.

    Args:
        step: the step that failed; None if buildx failed outside of steps.
        said: the last lines that buildx printed outside of steps.

    """
    lines = list(step.lines) if step else []
    # BuildKit repeats the whole command before the error.
    error = re.sub(r".*did not complete successfully: ", "", step.error, flags=re.DOTALL) if step else ""
    text = "\n".join([*lines, error, said])
    where = step.title if step and step.title else "docker buildx"
    for cause in (_moved_on, _no_wheel, _lacking):
        if (fault := cause(text, where)) is not None:
            return fault
    shown = [line for line in (*lines, *(error or said).splitlines()) if line.strip()]
    return BuildError(
        "this step failed:\n" + printable_lines(shown[-_TAIL:]),
        where=where,
        hint="-vv shows the command line; `docker buildx build` runs it by hand",
    )


def printable_lines(lines: Sequence[str]) -> str:
    """Join lines of a log, without control characters, and without passwords in URLs."""
    return "\n".join(printable(redact(line)) for line in lines)


def _moved_on(text: str, where: str) -> FetchError | None:
    """Recognise apt's messages about versions that the archive does not have."""
    gone = dict.fromkeys(
        f"{name}={version}"
        for version, name in re.findall(r"E: Version '(\S+)' for '(\S+)' was not found", text)
    )
    gone |= dict.fromkeys(re.findall(r"E: Unable to locate package (\S+)", text))
    if not gone:
        return None
    names = list(gone)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return FetchError(
        f"the archive no longer has {', '.join(names[:3])}{more}",
        where=where,
        hint="lock newer packages: imagebuilder lock --upgrade; or add --base bootstrap, or leave out "
        "--engine docker: both take packages from the store, a cache or a snapshot service, too",
    )


def _no_wheel(text: str, where: str) -> FetchError | None:
    match = re.search(r"ERROR: No matching distribution found for (\S+)", text)
    if not match and "DO NOT MATCH THE HASHES" not in text:
        return None
    what = f"the index has no {match[1]}" if match else "the index has a wheel with other bytes than the lock"
    return FetchError(
        what,
        where=where,
        hint="name an index that has it in --site, lock again with --upgrade, or leave out --engine docker",
    )


# Messages of BuildKit and Docker, with their meaning and a hint.
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"failed to resolve source metadata for (\S+?):? ",
        "the base {0} cannot be fetched from its registry",
        "--base bootstrap makes it here from the lock's packages",
    ),
    (
        r"(?:OCI|Docker) exporter (?:feature )?is (?:currently )?not supported for the docker driver",
        "this engine's classic image store exports no OCI image",
        "switch on its containerd image store, name another builder with --builder, or use --load",
    ),
    (
        r"no space left on device",
        "the builder's disk is full",
        "free some space: `docker buildx prune` drops its cache",
    ),
    (
        r"failed to create endpoint \S+ on network (\S+):",
        "the engine's network `{0}` does not work",
        "the engine's log says more; restarting the engine creates the network again",
    ),
    (
        r"unknown flag: (\S+)",
        "this buildx does not know {0}",
        _INSTALL,
    ),
    (
        r"(?:Cannot connect to the Docker daemon|error during connect|connection refused|closing transport)",
        "the builder stopped answering",
        "check with `docker buildx ls` whether the engine still runs",
    ),
)


def _lacking(text: str, where: str) -> EnvironmentFault | FetchError | None:
    for pattern, meaning, hint in _CAUSES:
        if match := re.search(pattern, text):
            kind = FetchError if "registry" in meaning else EnvironmentFault
            return kind(meaning.format(*(printable(word) for word in match.groups())), where=where, hint=hint)
    return None


def _buildx_version() -> tuple[int, int]:
    try:
        text = process.run(["docker", "buildx", "version"], timeout=_ASKING).stdout
    except CommandError as error:
        raise EnvironmentFault("docker has no `buildx`", where="--engine docker", hint=_INSTALL) from error
    version = _numbers(text)
    if (0, 0) < version < _BUILDX:
        raise EnvironmentFault(
            f"buildx {version[0]}.{version[1]} is too old: named build contexts need 0.8",
            where="--engine docker",
            hint=_INSTALL,
        )
    return version


def _engine() -> tuple[str, bool]:
    """Return the engine's version, and whether it has the containerd image store."""
    try:
        version = process.run(
            ["docker", "version", "--format", "{{.Server.Version}}"], timeout=_ASKING
        ).stdout
        status = process.run(["docker", "info", "--format", "{{json .DriverStatus}}"], timeout=_ASKING).stdout
    except CommandError as error:
        raise _no_builder("", _last_line(error)) from error
    return version.strip(), "io.containerd.snapshotter" in status


def _last_line(error: CommandError) -> str:
    said = (error.result.stderr.strip() or error.result.stdout.strip()).splitlines()
    return said[-1].removeprefix("ERROR: ") if said else str(error)


def _no_builder(name: str, reason: str) -> EnvironmentFault:
    what = f"the builder `{name}` does not answer" if name else "no builder answers"
    return EnvironmentFault(
        f"{what}: {printable(redact(reason))}",
        where="--builder" if name else "--engine docker",
        hint="`docker buildx ls` lists the builders; is Docker running, and is DOCKER_HOST right?",
    )


def _field(text: str, name: str) -> str:
    match = re.search(rf"^{re.escape(name)}:\s*(.*?)\s*$", text, re.MULTILINE)
    return match[1] if match else ""


def _numbers(text: str) -> tuple[int, int]:
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
