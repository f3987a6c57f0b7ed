"""Files of `launch` are read by the packages that read them in earnest, each in an environment of its own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagebuilder.core import process
from imagebuilder.launch import output, targets
from tests.unit import launching, test_launch_manifests

# Given the files' names: fails if one is not read, or is read as something else.
SKYPILOT = """
import sys, sky
for name in sys.argv[1:]:
    task = sky.Task.from_yaml(name)
    (resources,) = task.resources
    assert task.num_nodes == 2 and resources.accelerators == {"H100": 2}, resources
    assert resources.image_id[None] == "docker:%s", resources.image_id
"""
DSTACK = """
import sys, yaml
from dstack._internal.core.models import configurations
for name in sys.argv[1:]:
    found = configurations.parse_apply_configuration(yaml.safe_load(open(name)))
    found = getattr(found, "root", found)
    assert isinstance(found, configurations.TaskConfiguration), found
    assert (found.nodes, found.image) == (2, "%s"), found
"""
CORE = """
import sys, kubernetes_validate, yaml
for name in sys.argv[1:]:
    for document in yaml.safe_load_all(open(name)):
        kubernetes_validate.validate(document, "1.37", strict=True)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make a Python with one package."""

    def make(package: str) -> Path:
        place = tmp_path_factory.mktemp("python") / "venv"
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
        process.run((uv, "venv", "--quiet", place), timeout=120)
        process.run(
            (uv, "pip", "install", "--quiet", "--python", place / "bin" / "python", package), timeout=900
        )
        return place / "bin" / "python"

    return make


def written(folder: Path, name: str, **changed: Any) -> Path:
    target = targets.load(name)
    job = launching.job(target, **changed)
    output.write(targets.fill(target, job), target, job, folder)
    return folder


def both(folder: Path, name: str, file: str) -> list[Path]:
    """Write a job with few options, and one with all."""
    every = {**test_launch_manifests.everything(name), "image": launching.trainer(), "command": launching.ODD}
    return [
        written(folder / "few", name, accelerator="H100") / file,
        written(folder / "all", name, **every) / file,
    ]


def test_skypilot_reads_its_task(python: Callable[[str], Path], tmp_path: Path) -> None:
    files = both(tmp_path, "skypilot", "task.yaml")
    process.run((python("skypilot==0.14.1"), "-c", SKYPILOT % launching.REFERENCE, *files), timeout=120)


def test_dstack_reads_its_task(python: Callable[[str], Path], tmp_path: Path) -> None:
    files = both(tmp_path, "dstack", "task.dstack.yaml")
    process.run((python("dstack==0.22.5"), "-c", DSTACK % launching.REFERENCE, *files), timeout=120)


def test_kubernetes_knows_the_keys_and_every_pod(python: Callable[[str], Path], tmp_path: Path) -> None:
    files: list[Path] = []
    for name in test_launch_manifests.PODS:
        kinds = targets.load(name).header.launchers
        for launcher in (test_launch_manifests.WORDS[kind] for kind in kinds):
            every = {**test_launch_manifests.everything(name), "image": launching.trainer()}
            folder = written(tmp_path / name / launcher, name, launcher=launcher, **every)
            files += folder.glob("keys.yaml")
            documents = list(yaml.safe_load_all((folder / "job.yaml").read_text()))
            for part in test_launch_manifests.walk(documents):
                if isinstance(part, dict) and "containers" in part:
                    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": part}
                    path = tmp_path / f"pod{len(files)}.yaml"
                    path.write_text(json.dumps(pod))
                    files.append(path)
    assert len([path for path in files if path.name == "keys.yaml"]) == 3
    process.run((python("kubernetes-validate==1.37.0"), "-c", CORE, *files), timeout=120)
