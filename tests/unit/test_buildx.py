"""docker buildx: builders of every kind, what they lack, why a build failed; with a false `docker`."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.core.progress import JsonProgress
from imagebuilder.engines import buildx
from imagebuilder.engines.buildlog import BuildStep
from imagebuilder.engines.buildx import Builder, BuildxRequest
from imagebuilder.errors import BuildError, EnvironmentFault, FetchError, ImagebuilderError

BUILDER = Builder(name="default", asked="", driver="docker", version="26.1.5", raw_json=True, merges=True)
REQUEST = BuildxRequest(dockerfile=Path("/x/Dockerfile"), context=Path("/x/context"), platform="linux/amd64")
FALSE_DOCKER = """\
#!{python}
import json, pathlib, sys, time
here = pathlib.Path(__file__).parent
answers = json.loads((here / "answers.json").read_text())
with open(here / "asked", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
key = next((key for key in answers if " ".join(sys.argv[1:]).startswith(key)), None)
code, text = answers[key] if key else (1, "docker: unknown command: " + " ".join(sys.argv[1:]))
(sys.stderr if code else sys.stdout).write(text)
sys.exit(code)
"""
INSPECT = "Name:   {name}\nDriver: {driver}\n\nNodes:\nName:     n0\nBuildKit version: {version}\n"
# As buildx 0.13 answers, with the exit code 0.
NO_ENGINE = "Name:  default\nDriver:  \nError:  Cannot connect to the Docker daemon at unix:///x\n"
OLD_REMOTE = INSPECT.format(name="f", driver="remote", version="v0.9.3")
NO_BASE = "failed to resolve source metadata for docker.io/library/debian:trixie: failed to do request: no"
Answers = dict[str, tuple[int, str]]


def docker(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: tuple[int, str]) -> Path:
    """Put a `docker` first in the path that answers as Debian's does, but for some questions."""
    answers: Answers = {
        "buildx version": (0, "github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3\n"),
        "buildx inspect": (0, INSPECT.format(name="default", driver="docker", version="v0.0.0+unknown")),
        "version": (0, "26.1.5+dfsg1\n"),
        "info": (0, '[["driver-type","io.containerd.snapshotter.v1"]]\n'),
    }
    answers |= {key.replace("_", " "): value for key, value in changes.items()}
    program = folder / "docker"
    program.write_text(FALSE_DOCKER.format(python=sys.executable))
    program.chmod(0o755)
    (folder / "answers.json").write_text(json.dumps(answers))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "asked"


def test_the_builder_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = docker(tmp_path, monkeypatch)
    found = buildx.look_up()
    assert found == replace(BUILDER, version="26.1.5+dfsg1", buildx="0.13")
    assert "buildx inspect --bootstrap\n" in asked.read_text()


def test_a_builder_that_does_not_run_is_not_started_for_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Name:   farm\nDriver: docker-container\n\nNodes:\nName: n0\nStatus: inactive\n"
    asked = docker(tmp_path, monkeypatch, buildx_inspect=(0, text))
    assert buildx.look_up(start=False).version == ""
    assert "--bootstrap" not in asked.read_text()


def test_the_classic_store_does_not_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker(tmp_path, monkeypatch, info=(0, '[["Backing Filesystem","extfs"]]\n'))
    assert not buildx.look_up().merges


def test_a_builder_by_name_is_asked_for_its_own_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = INSPECT.format(name="farm", driver="docker-container", version="v0.23.2")
    asked = docker(tmp_path, monkeypatch, buildx_inspect=(0, text), info=(1, "no engine here"))
    found = buildx.look_up("farm")
    assert (found.driver, found.version, found.merges) == ("docker-container", "v0.23.2", True)
    assert "buildx inspect --bootstrap farm\n" in asked.read_text()
    assert "--builder farm" in " ".join(buildx.command(found, REQUEST))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": (0, "20.10.24+dfsg1\n")}, "Docker Engine 20.10.24+dfsg1 is too old"),
        ({"buildx_inspect": (0, OLD_REMOTE)}, "BuildKit v0.9.3 is too old"),
        ({"buildx_version": (0, "github.com/docker/buildx v0.7.1 05846896d1")}, "buildx 0.7 is too old"),
        ({"buildx_version": (1, "docker: 'buildx' is not a docker command.")}, "docker has no `buildx`"),
        ({"buildx_inspect": (1, "ERROR: no builder found\n")}, "`farm` does not answer: no builder found"),
        ({"buildx_inspect": (0, NO_ENGINE)}, "`farm` does not answer: Cannot connect to the Docker daemon"),
        ({"buildx_inspect": (0, "what?")}, "`farm` does not answer: it does not say"),
        ({"info": (1, "Cannot connect to the Docker daemon")}, "no builder answers: Cannot connect"),
    ],
)  # fmt: skip
def test_what_is_missing_or_too_old_is_said_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Answers, message: str
) -> None:
    asked = docker(tmp_path, monkeypatch, **changes)
    with pytest.raises(EnvironmentFault, match=re.escape(message)) as caught:
        buildx.look_up("farm")
    assert caught.value.exit_code == 2
    assert caught.value.problems[0].hint
    assert "buildx build" not in asked.read_text()


def test_docker_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="`docker` is not installed"):
        buildx.look_up()


def test_a_command_line_holds_no_value_of_a_build_argument() -> None:
    request = replace(
        REQUEST,
        contexts=(("debian:trixie", "oci-layout:///b@sha256:0"), ("debs", "/d")),
        secrets=(("ca", Path("/etc/ca")),),
        arguments=(("https_proxy", "http://me:word@proxy:1"),),
        outputs=("--load",),
    )
    assert buildx.command(BUILDER, request) == (
        "docker", "buildx", "build", "--file", "/x/Dockerfile", "--platform", "linux/amd64",
        "--progress", "rawjson",
        "--build-context", "debian:trixie=oci-layout:///b@sha256:0", "--build-context", "debs=/d",
        "--secret", "id=ca,src=/etc/ca", "--build-arg", "https_proxy", "--load", "/x/context",
    )  # fmt: skip
    assert "plain" in buildx.command(replace(BUILDER, raw_json=False), request)


def failure(*lines: str, error: str = "exit code: 100", said: str = "") -> ImagebuilderError:
    step = BuildStep(name="[os 2/2] RUN x", title="os 2/2: RUN x", error=error)
    step.lines.extend(lines)
    return buildx.explain(step, said)


def test_a_failed_step_is_named_with_its_last_words() -> None:
    found = failure(*(f"line {number}" for number in range(30)), "see https://me:word@x/\x1b[1m")
    assert isinstance(found, BuildError)
    assert found.problems[0].where == "os 2/2: RUN x"
    assert "line 29" in str(found)
    assert "line 5\n" not in str(found)
    assert "word" not in str(found)
    assert "\x1b" not in str(found)


def test_a_step_that_said_nothing_has_a_reason_too() -> None:
    command = "set -eu\\n" * 400
    found = failure(error=f'process "/bin/sh -c {command}" did not complete successfully: exit code: 137')
    assert str(found).startswith("os 2/2: RUN x: this step failed:\nexit code: 137\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("E: Version '9.9-1' for 'libc6' was not found", "the archive no longer has libc6=9.9-1"),
        ("E: Unable to locate package libold7", "the archive no longer has libold7"),
        ("ERROR: No matching distribution found for torch==2.10.0", "the index has no torch==2.10.0"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", "a wheel with other bytes"),
    ],
)
def test_what_moved_on_is_named_with_what_to_do(line: str, message: str) -> None:
    found = failure(line)
    assert isinstance(found, FetchError)
    assert message in str(found)
    assert re.search("lock --upgrade; or add --base bootstrap|lock again with --upgrade", str(found))


@pytest.mark.parametrize(
    ("said", "message", "code"),
    [
        (
            f"ERROR: failed to solve: debian:trixie: {NO_BASE} such host",
            "the base docker.io/library/debian:trixie cannot be fetched from its registry", 6,
        ),
        ("ERROR: OCI exporter is not supported for the docker driver.", "classic image store", 2),
        ("ERROR: OCI exporter is currently not supported for the docker driver.", "classic image store", 2),
        ("write /x: no space left on device", "the builder's disk is full", 2),
        ("failed to create endpoint 3a5z on network bridge: no device", "network `bridge` does not work", 2),
        ("unknown flag: --build-context", "does not know --build-context", 2),
    ],
)  # fmt: skip
def test_what_the_builder_lacks_is_said_in_our_words(said: str, message: str, code: int) -> None:
    found = buildx.explain(None, said)
    assert message in str(found)
    assert found.exit_code == code
    assert found.problems[0].hint


def test_a_build_that_fails_raises_and_one_that_does_not_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker(tmp_path, monkeypatch, buildx_build=(0, ""))
    with (tmp_path / "progress").open("w") as stream:
        buildx.build(BUILDER, REQUEST, JsonProgress(stream))
        docker(tmp_path, monkeypatch, buildx_build=(1, "ERROR: it broke\n"))
        with pytest.raises(BuildError, match="ERROR: it broke"):
            buildx.build(BUILDER, REQUEST, JsonProgress(stream))


def test_a_step_that_hangs_is_ended_with_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\necho begun\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def interrupted(_log: object, _text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("imagebuilder.engines.buildlog.BuildLog.hear", interrupted)
    started = time.monotonic()
    with (tmp_path / "progress").open("w") as stream, pytest.raises(KeyboardInterrupt):
        buildx.build(BUILDER, REQUEST, JsonProgress(stream))
    assert time.monotonic() - started < 20
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_the_digest_of_a_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = f"sha256:{'0' * 64}"
    docker(tmp_path, monkeypatch, buildx_imagetools=(0, json.dumps({"digest": digest})))
    assert buildx.base_digest("debian:trixie") == digest
    docker(tmp_path, monkeypatch, buildx_imagetools=(1, "no such host"))
    assert buildx.base_digest("debian:trixie") == ""
