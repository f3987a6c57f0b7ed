"""The nodes of a Slurm job: how srun is called, what is refused, and that nothing is left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from imagebuilder.cli import app
from imagebuilder.errors import EnvironmentFault, ImagebuilderError, InputError
from imagebuilder.smoke.nodes import slurm
from imagebuilder.smoke.nodes.cluster import Command
from imagebuilder.smoke.target import Promise, SlurmImage

# Plays srun: writes its arguments down, runs the command here, and adds what srun says of one that failed.
SRUN = """#!/bin/sh
printf '%s\\n' "$@" --- >>"$SAID"
while :; do case $1 in --nodelist=*) break ;; esac; shift; done
shift
"$@"
code=$?
[ "$code" = 0 ] || echo "srun: error: node1: task 0: Exited with exit code $code" >&2
exit "$code"
"""
SCONTROL = """#!/bin/sh
case $3 in one) echo n1 ;; odd) echo '-x' ;; *) echo n1; echo n2 ;; esac
"""
BARE = SlurmImage()
JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    return lambda: (tmp_path / "said").read_text().splitlines()


def node(tmp_path: Path, image: SlurmImage = BARE) -> slurm.SlurmNode:
    (tmp_path / "folder" / "pids").mkdir(parents=True)
    return slurm.SlurmNode("n1", str(tmp_path / "folder"), image)


def test_a_command_is_a_step_that_shares_its_node(said: Callable[[], list[str]], tmp_path: Path) -> None:
    odd = "two words; $(touch never) 'x'"
    command = Command(argv=("sh", "-c", 'printf "%s|%s" "$A" "$1"', "sh", odd), timeout=20, env={"A": odd})
    outcome = node(tmp_path).run(command)
    assert (outcome.code, outcome.stdout) == (0, f"{odd}|{odd}")
    assert not Path("never").exists()
    words = said()
    assert words[: words.index("env")] == [
        *("--quiet", "--overlap", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=1"),
        *("--mpi=none", "--nodes=1", "--ntasks=1", "--nodelist=n1"),
    ]


def test_the_reason_of_a_failure_is_the_command_s_not_srun_s(
    said: Callable[[], list[str]], tmp_path: Path
) -> None:
    outcome = node(tmp_path).run(Command(argv=("sh", "-c", "echo why >&2; exit 3"), timeout=20))
    assert (outcome.code, outcome.last_words) == (3, "why")
    assert said()


def test_files_are_copied_and_all_is_removed(said: Callable[[], list[str]], tmp_path: Path) -> None:
    made, folder = node(tmp_path, SlurmImage(variant="apptainer", source="/i.sif")), tmp_path / "folder"
    data = bytes(range(256)) * 100
    made.put("digits", data)
    assert (folder / "digits").read_bytes() == data
    with pytest.raises(EnvironmentFault) as caught:
        made.begin(b"")
    (problem,) = caught.value.problems
    assert problem.message.startswith("beginning failed: mkdir: cannot create directory ")
    assert problem.message.endswith(": File exists")
    assert problem.hint == (
        "`srun --quiet --overlap --mem=0 --cpu-bind=none --kill-on-bad-exit=1 --mpi=none --nodes=1 "
        "--ntasks=1 --nodelist=n1 true` must work from here"
    )
    made.end()
    assert not folder.exists()
    # The folder is made and removed on the host: no container is needed for it.
    assert "apptainer" not in said()


@pytest.mark.parametrize(
    ("image", "options", "inside"),
    [
        (SlurmImage(), (), ()),
        (
            SlurmImage(variant="apptainer", source="/s/i.sif", gpus=True),
            (),
            ("apptainer", "--quiet", "exec", "--nv", "--bind", "/f", "/s/i.sif"),
        ),
        (
            SlurmImage(variant="pyxis", source="r.example/t/n@sha256:0"),
            (
                "--container-image=r.example#t/n@sha256:0",
                "--container-mounts=/f:/f",
                "--no-container-entrypoint",
            ),
            (),
        ),
        (
            SlurmImage(variant="pyxis", source="/s/i.sqsh"),
            ("--container-image=/s/i.sqsh", "--container-mounts=/f:/f", "--no-container-entrypoint"),
            (),
        ),
    ],
)
def test_the_image_is_started_by_what_the_cluster_has(
    image: SlurmImage, options: tuple[str, ...], inside: tuple[str, ...]
) -> None:
    assert slurm.words_of(image, "/f") == (options, inside)


def test_podman_shares_what_a_job_s_processes_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 1000)
    _, inside = slurm.words_of(SlurmImage(variant="podman", source="r.example/n:1", gpus=True), "/f")
    assert inside == (
        *("podman", "run", "--rm", "--entrypoint=", "--network=host", "--ipc=host", "--pid=host"),
        *("--volume=/f:/f", "--user=1000:1000", "--userns=keep-id", "--device=nvidia.com/gpu=all"),
        "r.example/n:1",
    )


def test_ranks_of_mpi_are_started_by_one_srun(tmp_path: Path) -> None:
    ranks = slurm.SlurmRanks(("n1", "n2"), str(tmp_path), SlurmImage(), 4)
    assert ranks.step()[-5:] == (
        *("--mpi=pmix", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--nodelist=n1,n2"),
    )


def test_slurm_needs_no_login_between_nodes() -> None:
    promise = Promise(runtime="slurm", mode="cpu", pins={"openmpi": "5.0.7"})
    assert (promise.mpi, promise.logins, promise.started) == (True, False, False)


@pytest.mark.usefixtures("said")
def test_the_nodes_are_those_of_the_job() -> None:
    assert slurm.allocation(JOB) == ("n1", "n2")


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize(
    ("env", "kind", "message", "hint"),
    [
        (
            {},
            EnvironmentFault,
            "this is not inside an allocation: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set",
            "run it in a script of sbatch, or in a shell of `salloc --nodes 2`",
        ),
        (
            {**JOB, "SLURM_JOB_NODELIST": "one"},
            InputError,
            "the allocation 17 has one node, n1, and the test needs at least two",
            "ask for more: `salloc --nodes 2`",
        ),
        ({**JOB, "SLURM_JOB_NODELIST": "odd"}, EnvironmentFault, "`odd` does not name its nodes", ""),
    ],
)
def test_a_wrong_allocation_is_named(
    env: dict[str, str], kind: type[EnvironmentFault], message: str, hint: str
) -> None:
    with pytest.raises(kind) as caught:
        slurm.allocation(env)
    (problem,) = caught.value.problems
    assert (problem.message, problem.hint) == (message, hint)


def test_a_host_without_slurm_s_commands_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault) as caught:
        slurm.allocation(JOB)
    (problem,) = caught.value.problems
    assert problem.message == "`srun` is not installed here"
    assert problem.hint == "run it on a host with Slurm's commands: a login node, or a node of the job"


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    other = tmp_path / "image.sif"
    other.write_bytes(b"#!/usr/bin/env run-singularity\n")
    with pytest.raises(InputError) as caught:
        slurm.chosen("", other, "", gpus=False)
    (problem,) = caught.value.problems
    assert (problem.where, problem.message) == (str(other), "is neither a squashfs nor a SIF image")
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        slurm.chosen("", tmp_path / "absent.sif", "", gpus=False)


def test_the_way_to_start_the_image_follows_from_what_is_given(tmp_path: Path) -> None:
    sif, squashfs = tmp_path / "i.sif", tmp_path / "i.sqsh"
    sif.write_bytes(b"x" * 32 + b"SIF_MAGIC\0")
    squashfs.write_bytes(b"hsqs")
    for file in (sif, squashfs):
        made = slurm.chosen("", file, "", gpus=False)
        assert made == SlurmImage(variant="apptainer", source=str(file))
    assert slurm.chosen("", None, "", gpus=False) == SlurmImage()
    assert slurm.chosen("", None, "r.example/n:1", gpus=True).variant == "podman"
    named = slurm.chosen("apptainer", None, "r.example/n:1", gpus=False)
    assert named.source == "docker://r.example/n:1"


@pytest.mark.parametrize(
    ("variant", "file", "name", "message"),
    [
        ("docker", False, "", "`docker` is unknown: choose bare, pyxis, apptainer, podman"),
        ("", True, "r.example/n:1", "give the image's name or its file, not both"),
        (
            "bare",
            False,
            "r.example/n:1",
            "with `bare`, the nodes themselves run the image: leave the image out",
        ),
        ("podman", True, "", "Podman runs images by their name: leave --image-file out"),
        ("pyxis", False, "", "`pyxis` needs the image"),
    ],
)
def test_options_that_do_not_fit_are_named(variant: str, file: bool, name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        slurm.chosen(variant, Path("i.sqsh") if file else None, name, gpus=False)
    assert caught.value.problems[0].message == message


@pytest.mark.parametrize(
    ("words", "where", "message"),
    [
        (
            ("--runtime", "slurm", "--hosts", "a,b"),
            "--hosts",
            "Slurm says which nodes there are: leave it out",
        ),
        (("--variant", "pyxis"), "--variant", "is only for --runtime slurm"),
        (("--image-file", "x.sif"), "--image-file", "is only for --runtime slurm"),
        (
            ("--runtime", "slurm"),
            "--runtime slurm",
            "this is not inside an allocation: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set",
        ),
    ],
)
def test_options_of_the_command_line_are_checked_first(
    words: tuple[str, ...], where: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    error = CliRunner().invoke(app, ["smoke-test", *words]).exception
    assert isinstance(error, ImagebuilderError)
    (problem,) = error.problems
    assert (problem.where, problem.message) == (where, message)
