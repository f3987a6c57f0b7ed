"""Horovod, compiled against the image's torch and MPI: in two containers by its own launchers, and twice."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from imagebuilder.core import process
from imagebuilder.plan import CompiledLayer
from imagebuilder.plan.sshkeys import make_keys
from imagebuilder.store import Store
from imagebuilder.workflow import read_plans
from tests.integration.conftest import ROOT, remove_images
from tests.integration.test_examples import run
from tests.support.pods import SCRIPTS, docker, pods

TRAIN = f"python {SCRIPTS}/horovod_train.py"
ON_BOTH = "-np 2 -H node0:1,node1:1"
SECONDS = 90


@dataclass(frozen=True)
class Job:
    """Two containers of one image, which reach each other as node0 and node1; `first` is node0's name."""

    first: str

    def run(self, command: str) -> process.Result:
        """Run a command on node0, with a time limit: one that waits for ever gives the code 124."""
        words = ("timeout", "-k", "5", str(SECONDS), "bash", "-c", command)
        return docker("exec", "-e", "OMP_NUM_THREADS=1", self.first, *words, check=False)

    def answer(self, command: str) -> dict[str, Any]:
        """Train, and return what rank 0 says of it. Launchers write the rank before each line."""
        result = self.run(command)
        assert result.code == 0, result.stdout[-2000:] + result.stderr[-2000:]
        (said,) = re.findall(r"answer (\{.*\})", result.stdout)
        found: dict[str, Any] = json.loads(said)
        return found


def put(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Copy an example and its patch, changed; returns the recipe."""
    for path in (ROOT / "examples" / "recipes").glob(f"*{name.partition('-')[2]}*"):
        shutil.copy(path, folder)
    recipe = folder / f"{name}.yaml"
    text = recipe.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    recipe.write_text(text)
    return recipe


def started(recipe: Path, store: Store, engine: DockerClient) -> Iterator[Job]:
    run("lock", recipe, store=store)
    run("build", recipe, "--load", "--progress", "lines", store=store)
    keys = recipe.parent / "keys"
    make_keys(keys, name="nodes")
    # The image's user has another uid, and the entrypoint takes what it can read.
    recipe.parent.chmod(0o755)
    keys.chmod(0o755)
    for path in keys.iterdir():
        path.chmod(0o444)
    mount = ("--shm-size", "1g", "-v", f"{keys}:/run/secrets/imagebuilder:ro")
    with pods(f"{recipe.stem}:latest") as job:
        first, _ = (job.start(host, *mount) for host in ("node0", "node1"))
        docker("exec", first, "timeout", "60", "sh", "-c", "until ssh node1 true; do sleep 1; done")
        yield Job(first)
    remove_images(engine, recipe.stem)


@pytest.fixture(scope="module")
def horovod(store: Store, engine: DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    yield from started(put(tmp_path_factory.mktemp("horovod"), "cpu-horovod"), store, engine)


def test_horovod_says_what_it_was_built_with(horovod: Job) -> None:
    said = horovod.run("horovodrun --check-build").stdout
    assert sorted(re.findall(r"\[X\] (\w+)", said)) == ["Gloo", "Gloo", "MPI", "MPI", "PyTorch"]


@pytest.mark.parametrize(
    ("start", "size"),
    [
        (f"horovodrun {ON_BOTH}", 2),
        (f"horovodrun --mpi -p 2222 {ON_BOTH}", 2),
        (f"horovodrun --gloo {ON_BOTH}", 2),
        (r"printf 'node0 slots=2\nnode1 slots=2\n' >/tmp/hosts; horovodrun -np 4 --hostfile /tmp/hosts", 4),
        ("mpirun -np 2 --host node0:1,node1:1", 2),
    ],
)
def test_horovod_trains_by_each_of_its_launchers(horovod: Job, start: str, size: int) -> None:
    assert horovod.answer(f"{start} {TRAIN}") == {
        "size": size,
        "total": [size * (size + 1) / 2] * 4,
        "hosts": ["node0", "node1"],
        "equal": True,
        "learnt": True,
    }


@pytest.mark.parametrize(
    ("start", "code", "cause"),
    [
        (f"horovodrun --mpi {ON_BOTH}", 3, r"Exit code: +3"),
        (f"mpirun {ON_BOTH}", 3, r"Exit code: +3"),
        # Its own code is 1; the rank's is in its last words.
        (f"horovodrun --gloo {ON_BOTH}", 1, r"Process name: 1\s+Exit code: 3"),
    ],
)
def test_a_rank_that_fails_ends_the_job(horovod: Job, start: str, code: int, cause: str) -> None:
    result = horovod.run(f"{start} {TRAIN} fail")
    said = result.stdout + result.stderr
    assert result.code == code, said[-2000:]
    assert re.search(cause, said), said[-2000:]
    assert "answer" not in said


@pytest.mark.parametrize("hosts", ["-H node0:1,nowhere:1", "--hostfile /tmp/hosts"])
def test_an_unknown_host_is_named(horovod: Job, hosts: str) -> None:
    """horovodrun tries ssh five times. Each waits for the name, a minute if nothing else is said."""
    lines = r"printf 'node0 slots=1\nnowhere slots=1\n' >/tmp/hosts"
    result = horovod.run(f"{lines}; IMAGEBUILDER_WAIT=2 horovodrun -np 2 {hosts} {TRAIN}")
    assert result.code not in (0, 124, 137), result.stdout[-2000:] + result.stderr[-2000:]
    assert "ssh not successful for host nowhere" in result.stdout + result.stderr
    assert "Could not resolve hostname nowhere" in result.stdout + result.stderr


def test_horovodrun_without_mpirun_says_what_is_missing(horovod: Job) -> None:
    links = "mkdir -p /tmp/bin; ln -sf /usr/bin/* /tmp/bin; rm /tmp/bin/mpi*"
    result = horovod.run(f"{links}; PATH=/opt/venv/bin:/tmp/bin horovodrun --mpi {ON_BOTH} {TRAIN}")
    assert result.code == 1, result.stdout[-2000:] + result.stderr[-2000:]
    assert "horovod does not find an installed MPI" in result.stderr


def test_an_image_without_mpi_does_not_compile_horovod_with_it(store: Store, tmp_path: Path) -> None:
    recipe = put(tmp_path, "cpu-horovod", ('  openmpi: "4.1.4"\n', ""))
    run("lock", recipe, store=store)
    result = run("build", recipe, "--progress", "lines", store=store, code=7)
    assert "Could NOT find MPI" in result.stderr


@pytest.mark.parametrize("name", ["cpu-horovod", "cpu-deepspeed"])
def test_a_framework_compiled_twice_is_the_same(store: Store, tmp_path: Path, name: str) -> None:
    recipe = put(tmp_path, name)
    run("lock", recipe, store=store)
    run("build", recipe, store=store)
    other = Store(tmp_path / "other")
    run("fetch", recipe, "--output", other.root, store=store)
    ((_, plan),) = read_plans(recipe)
    (layer,) = [layer for layer in plan.layers if isinstance(layer, CompiledLayer)]
    for key in (layer.wheel_key, layer.key):
        other.layer_path(key).unlink(missing_ok=True)
    run("build", recipe, store=other)
    first, second = store.layer(layer.wheel_key), other.layer(layer.wheel_key)
    assert first is not None
    assert second is not None
    contents = [members(shop.blob(record.digest)) for shop, record in ((store, first), (other, second))]
    assert [name for name in contents[0] if contents[0][name] != contents[1].get(name)] == []
    assert first == second


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}
