"""`launch`: jobs are checked, and every target receives the command word for word."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagebuilder.errors import InputError
from imagebuilder.launch import commands, manifest, output, targets
from imagebuilder.launch import job as jobs
from tests.unit import launching

WRONG_JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": "Fit"}, "--name: `Fit` is not a job's name"),
    "long name": ({"name": "a" * 41}, "--name: "),
    "name with a newline": ({"name": "fit\n"}, "--name: `fit\\n` is not a job's name"),
    "namespace": ({"namespace": "a b"}, "--namespace: `a b` is not a namespace"),
    "no nodes": ({"nodes": 0}, "--nodes: 0: choose 1 to 1024"),
    "many nodes": ({"nodes": 10**9}, "--nodes: 1000000000: choose 1 to 1024"),
    "ranks": ({"ranks": 0}, "--nproc-per-node: 0: choose 1 to 256"),
    "gpus": ({"gpus": -2}, "--gpus: -2: choose 0 to 64"),
    "port": ({"port": 80}, "--port: 80: choose 1024 to 65535"),
    "restarts": ({"restarts": 101}, "--restarts: 101: choose 0 to 100"),
    "shm": ({"shm": "8G"}, "--shm: `8G` is not understood"),
    "memory": ({"memory": "$(id)"}, "--memory: `$(id)` is not understood"),
    "cpus": ({"cpus": "2.5"}, "--cpus: `2.5` is not understood"),
    "file": ({"file": "a.sqsh"}, "--image-file: `a.sqsh` is not understood"),
    "hosts": ({"hosts": ("a",)}, "--host: 1 hosts are named for 2 nodes"),
    "hostile host": ({"hosts": ("a", "-oProxyCommand=id")}, "--host: `-oProxyCommand=id` is not a host"),
    "same host": ({"hosts": ("a", "a")}, "--host: a host is named twice"),
    "no command": ({"command": ()}, "imagebuilder launch: no command is given"),
    "empty program": ({"command": ("",)}, "imagebuilder launch: no command is given"),
    "not UTF-8": ({"command": ("a", "\udcff")}, "imagebuilder launch: the command is not UTF-8"),
    "long word": ({"command": ("a" * 120_001,)}, "imagebuilder launch: the command is too long"),
    "many words": ({"command": ("a",) * 10_001}, "imagebuilder launch: the command is too long"),
    "NUL": ({"command": ("a\0b",)}, "imagebuilder launch: the command holds a NUL"),
    "launcher": ({"launcher": "horovodrun"}, "--launcher: `horovodrun` is not in the image"),
}


@pytest.mark.parametrize("case", WRONG_JOBS)
def test_a_wrong_job_is_refused(case: str) -> None:
    changed, message = WRONG_JOBS[case]
    with pytest.raises(InputError) as caught:
        launching.job(**changed)
    assert str(caught.value).startswith(message)


READERS: dict[str, Any] = {
    "volume": lambda text: jobs.read_volumes((text,)),
    "label": lambda text: jobs.read_pairs((text,), "--node-selector"),
    "toleration": lambda text: jobs.read_tolerations((text,)),
    "env": lambda text: jobs.read_env((text,)),
    "rdma": jobs.read_rdma,
    "hugepages": jobs.read_hugepages,
    "period": jobs.read_period,
}
WRONG_OPTIONS = {
    "volume": (
        *("", "pvc:A:/x", "pvc:a:x", "pvc:a:/", "pvc:a:/dev/shm", "pvc:a:/a/../b", "host:/a b:/x"),
        *("nfs:s:/x", "nfs:-s:/x:/y", "host:/a,b:/x", "pvc:a:/x\n"),
    ),
    "label": ("a", "=b", "a=b c", "a=$(id)", "a=b\n"),
    "toleration": ("-", "a=b:No", "a b", "a:NoSchedule\n"),
    "env": ("A", "1A=b", "A B=c", "=x", "A=\udcff", "A=\0"),
    "rdma": ("rdma", "rdma/", "rdma/a=0", "rdma/a=100", "RDMA/a", "rdma/a b"),
    "hugepages": ("2Mi", "3Mi=1Gi", "2Mi=0", "2Mi=1Gi\n"),
    "period": ("0", "1w", "-1", "1.5h", "366d", "10m\n"),
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in WRONG_OPTIONS.items() for text in texts]
)
def test_a_wrong_option_is_refused(kind: str, text: str) -> None:
    read = READERS[kind]
    with pytest.raises(InputError):
        read(text)


def test_options_are_read() -> None:
    assert jobs.read_volumes(("pvc:data:/data", "nfs:nas.example:/a:/b", "host:/scratch:/c")) == (
        jobs.Volume(medium="pvc", source="data", path="/data"),
        jobs.Volume(medium="nfs", server="nas.example", source="/a", path="/b"),
        jobs.Volume(medium="host", source="/scratch", path="/c"),
    )
    assert jobs.read_tolerations(("a.example/gpu=yes:NoSchedule", "b"))[1] == jobs.Toleration(
        key="b", value=None, effect=""
    )
    assert jobs.read_rdma("rdma/hca=2") == ("rdma/hca", 2)
    assert jobs.read_hugepages("2Mi=1Gi") == ("2Mi", "1Gi")
    assert [jobs.read_period(text) for text in ("", "90", "90m", "2d")] == [0, 90, 5400, 172800]
    assert jobs.read_env(("A=b=c\nd",)) == (("A", "b=c\nd"),)
    assert [jobs.name_from(text) for text in ("cuda12-torch", "My_Recipe", "9", "")] == [
        *("cuda12-torch", "my-recipe", "job", "job")
    ]


def test_an_option_given_too_often_is_refused() -> None:
    with pytest.raises(InputError, match="--env: is given more than 200 times"):
        jobs.read_env(("A=b",) * 201)
    with pytest.raises(InputError, match="--env: `A` is given twice"):
        jobs.read_env(("A=b", "A=c"))
    with pytest.raises(InputError, match="two volumes have the same path"):
        jobs.read_volumes(("pvc:a:/x", "pvc:b:/x"))


def test_targets_are_found_by_listing_the_folder() -> None:
    assert {"compose", "docker", "slurm"} <= set(targets.names())
    with pytest.raises(InputError, match=re.escape("--target: `dokcer` is not a target\n  -> perhaps")):
        targets.load("dokcer")


@pytest.mark.parametrize("name", targets.names())
def test_a_target_refuses_what_it_cannot_do(name: str) -> None:
    target = targets.load(name)
    every: dict[str, Any] = {
        "accelerator": "H100",
        "cpus": "2",
        "deadline": 60,
        "file": "/image.sqsh",
        "host_network": True,
        "hosts": ("a", "b"),
        "hugepages": ("2Mi", "1Gi"),
        "memory": "1Gi",
        "namespace": "team",
        "node_selector": (("a", "b"),),
        "rdma": "rdma/hca",
        "restarts": 1,
        "tolerations": (jobs.Toleration(key="a", value=None, effect=""),),
    }
    for field, value in every.items():
        # Kubernetes gives huge pages only with memory.
        more = {"memory": "1Gi"} if field == "hugepages" and "memory" in target.header.options else {}
        asked = launching.job(target, image=launching.trainer(), gpus=0, **more, **{field: value})
        if field in target.header.options or (field == "host_network" and target.header.network):
            assert targets.fill(target, asked)
        else:
            with pytest.raises(InputError, match=f"the target {name} cannot do this"):
                targets.fill(target, asked)


def launchers(name: str) -> list[str]:
    words = {"framework": "torchrun", "mpirun": "mpirun"}
    return [words[kind] for kind in targets.load(name).header.launchers]


STUB = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done >"$STUB_OUTPUT"
"""


def words_of(script: Path, tmp_path: Path, *arguments: str, program: str = "docker") -> list[str]:
    """Run a script with a stub in place of a program; the words that the stub received."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    stub = folder / program
    stub.write_text(STUB)
    stub.chmod(0o755)
    heard = tmp_path / "heard"
    heard.unlink(missing_ok=True)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "STUB_OUTPUT": str(heard), "SLURM_NODEID": "1"}
    env |= {"ENGINE": str(stub)}
    env |= {"SLURM_JOB_NODELIST": "x", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    result = subprocess.run(
        ("sh", script, *arguments), env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert heard.exists(), result.stderr
    return heard.read_bytes().decode().split("\0")[:-1]


def written(tmp_path: Path, name: str, **changed: Any) -> Path:
    target = targets.load(name)
    job = launching.job(target, **changed)
    folder = tmp_path / "job"
    output.write(targets.fill(target, job), target, job, folder)
    return folder


@pytest.mark.parametrize("program", ["docker", "podman"])
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_the_command_reaches_docker_word_for_word(tmp_path: Path, program: str, launcher: str) -> None:
    env = (("ODD", launching.ODD[-3]),)
    folder = written(tmp_path, "docker", launcher=launcher, command=launching.ODD, env=env)
    heard = words_of(folder / "node.sh", tmp_path, "0", program=program)
    assert tuple(heard[-len(launching.ODD) :]) == launching.ODD
    assert f"ODD={launching.ODD[-3]}" in heard
    assert launching.REFERENCE in heard
    gpus = {"docker": ["--gpus", "2"], "podman": ["--device", "nvidia.com/gpu=0"]}[program]
    assert heard[heard.index(gpus[0]) :][:2] == gpus
    assert not (tmp_path / "pwned").exists()


def test_a_node_of_docker_knows_its_number(tmp_path: Path) -> None:
    folder = written(tmp_path, "docker")
    heard = words_of(folder / "node.sh", tmp_path, "1")
    assert heard[heard.index(launching.REFERENCE) + 1 :] == [
        *("torchrun", "--nnodes=2", "--nproc-per-node=2", "--node-rank=1", "--master-addr=gpu0"),
        *("--master-port=29500", "--no-python", "python", "train.py"),
    ]
    assert words_of(folder / "node.sh", tmp_path, "1", "stop") == ["stop", "fit-1"]


@pytest.mark.parametrize("number", ["", "2", "-1", "x", "$(id)"])
def test_docker_refuses_a_node_that_there_is_not(tmp_path: Path, number: str) -> None:
    folder = written(tmp_path, "docker")
    result = subprocess.run(("sh", folder / "node.sh", number), capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (64, "usage: sh node.sh NUMBER, from 0 to 1\n")


def test_the_words_reach_compose_unchanged() -> None:
    target = targets.load("compose")
    for launcher in launchers("compose"):
        job = launching.job(target, launcher=launcher, command=launching.ODD, env=(("ODD", "$A"),))
        found = yaml.safe_load(launching.only(targets.fill(target, job)).text)
        command = found["services"]["node0"]["command"]
        assert tuple(word.replace("$$", "$") for word in command[-len(launching.ODD) :]) == launching.ODD
        assert all("$" not in word.replace("$$", "") for word in command)
        assert found["services"]["node1"]["environment"] == {"ODD": "$$A"}


@pytest.mark.parametrize("variant", targets.load("slurm").header.variants)
@pytest.mark.parametrize("launcher", launchers("slurm"))
def test_the_command_reaches_slurm_word_for_word(tmp_path: Path, variant: str, launcher: str) -> None:
    if (variant, launcher) == ("podman", "mpirun"):
        with pytest.raises(InputError, match="--variant: the variant podman does not start mpirun's ranks"):
            written(tmp_path, "slurm", launcher=launcher, variant=variant)
        return
    folder = written(tmp_path, "slurm", launcher=launcher, variant=variant, command=launching.ODD)
    heard = words_of(folder / "job.sh", tmp_path, program="srun")
    assert tuple(heard[-len(launching.ODD) :]) == launching.ODD
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("counts", [("4", "2", 0), ("4", "4", 65), ("2", "2", 65), ("", "", 65)])
def test_a_rank_that_is_alone_ends_with_an_error(counts: tuple[str, str, int]) -> None:
    env = {
        "PATH": "/usr/bin:/bin",
        "OMPI_COMM_WORLD_SIZE": counts[0],
        "OMPI_COMM_WORLD_LOCAL_SIZE": counts[1],
    }
    job = launching.job(launcher="mpirun", command=("echo", "ran"))
    result = subprocess.run(commands.ranked(job), env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (counts[2], "" if counts[2] else "ran\n")


def test_a_rank_of_slurm_needs_pmix() -> None:
    job = launching.job(launcher="mpirun", command=("echo", "ran"))
    for env, code in (
        ({"PMIX_RANK": "0", "SLURM_NTASKS": "4"}, 0),
        ({"SLURM_NTASKS": "4"}, 65),
        ({"PMIX_RANK": "0", "SLURM_NTASKS": "1"}, 65),
    ):
        line = commands.srun_rank(job)
        result = subprocess.run(
            line, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, check=False
        )
        assert (result.returncode, result.stdout) == (code, "" if code else "ran\n")


@pytest.mark.parametrize("word", launching.ODD)
def test_texts_survive_the_yaml(word: str) -> None:
    written_text = manifest.dump([{"args": [word, {"a": word}], "b": word}])
    assert yaml.safe_load(written_text) == {"args": [word, {"a": word}], "b": word}
    plain = [line for line in written_text.splitlines() if re.fullmatch(r"b: (y|1e3|0o17|null|1:20)", line)]
    assert plain == []


def test_a_folder_is_written_in_one_step_and_never_over_another(tmp_path: Path) -> None:
    target = targets.load("docker")
    job = launching.job(target, launcher="mpirun")
    files = targets.fill(target, job)
    folder = tmp_path / "deep" / "job"
    paths = output.write(files, target, job, folder)
    assert [path.name for path in paths] == ["keys", "node.sh", "start.sh"]
    assert stat.S_IMODE((folder / "node.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "keys" / "job" / "id_ed25519").stat().st_mode) == 0o644
    before = (folder / "keys" / "job" / "id_ed25519").read_bytes()
    with pytest.raises(InputError, match="exists and is not an empty folder"):
        output.write(files, target, job, folder)
    assert (folder / "keys" / "job" / "id_ed25519").read_bytes() == before
    output.write(files, target, job, folder, force=True)
    assert (folder / "keys" / "job" / "id_ed25519").read_bytes() != before
    (folder / "mine").write_text("")
    with pytest.raises(InputError, match="exists and is not an empty folder\n  -> name another one"):
        output.write(files, target, job, folder, force=True)
    assert [path.name for path in folder.parent.iterdir()] == ["job"]


def test_only_one_file_can_be_printed() -> None:
    target = targets.load("docker")
    job = launching.job(target)
    with pytest.raises(
        InputError, match=r"the target docker writes node\.sh and start\.sh\n  -> name a folder"
    ):
        output.text(targets.fill(target, job), target, job)
    compose = targets.load("compose")
    job = launching.job(compose)
    assert output.text(targets.fill(compose, job), compose, job).startswith("# The job fit: 2 nodes")
