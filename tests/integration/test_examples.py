"""The example projects: built, proven and trained on two containers, before and after a changed line.

The example `script` trains in tests/soak/test_examples.py.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.core import process
from imagebuilder.publish import proof
from imagebuilder.smoke.report import CheckResult, Report, read
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, remove_images

PROGRAM = Path(sys.executable).parent / "imagebuilder"
LONG = {"rendezvous", "collectives", "training", "replicas", "control", "failure"}
# The recipe, a file of the user's with a line to change, and the metric that the training prints.
EXAMPLES = {
    "ddp-package": ("src/tinyddp/train.py", "default=20", "default=25", "accuracy"),
    "script": ("src/train.py", "STEPS = 200", "STEPS = 300", "loss"),
}


def run(*words: str | Path, store: Store, code: int = 0) -> process.Result:
    result = process.run([PROGRAM, *words, "--store", store.root], timeout=3000, check=False)
    assert result.code == code, result.stdout + result.stderr
    return result


def smoke_tested(recipe: Path, store: Store) -> Report:
    """Build a recipe's image and test it."""
    run("build", recipe, "--progress", "lines", store=store)
    run("smoke-test", recipe, "--mode", "cpu", store=store)
    image = store.image(recipe.stem)
    assert image is not None
    return read(store.report(image.manifest))


def own(report: Report) -> CheckResult:
    return next(check for check in report.checks if check.name == "own-training")


@pytest.fixture(autouse=True)
def little_disk(engine: DockerClient) -> Iterator[None]:
    """Leave none of their images behind."""
    yield
    for name in EXAMPLES:
        remove_images(engine, name)


def test_a_package_trains_on_two_containers_before_and_after_a_changed_line(
    store: Store, tmp_path: Path, engine: DockerClient
) -> None:
    require_training("ddp-package", store, tmp_path, engine)


def require_training(name: str, store: Store, tmp_path: Path, engine: DockerClient) -> None:
    """Build, prove and run an example; change a line, and do it again."""
    file, old, new, metric = EXAMPLES[name]
    # Under another path, without git: the image is the same.
    shutil.copytree(ROOT / "examples" / name, tmp_path / name)
    recipe = tmp_path / name / "recipes" / f"{name}.yaml"
    first = smoke_tested(recipe, store)
    assert first.passed
    assert [entry["host"] for entry in own(first).evidence["ranks"]] == ["node0", "node1"]
    assert list(own(first).evidence["metrics"]) == [metric]

    path = tmp_path / name / file
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    second = smoke_tested(recipe, store)
    assert second.digest != first.digest
    assert {check.name for check in second.checks if check.reused} == LONG
    assert own(second).reused is None
    image = store.image(name)
    assert image is not None
    proof.require(image, store)
    # The command of the recipe trains, on one node.
    reference = f"{name}:{image.tag}"
    said: bytes = engine.containers.run(reference, remove=True, environment={"IMAGEBUILDER_SSHD": "off"})
    assert f"imagebuilder-metric: {metric}=" in said.decode()


def test_a_rank_that_fails_in_an_example_is_named(store: Store, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "script", tmp_path / "script")
    path = tmp_path / "script" / "src" / "train.py"
    path.write_text(f"import os, sys\nif os.environ['RANK'] == '1': sys.exit(3)\n{path.read_text()}")
    recipe = tmp_path / "script" / "recipes" / "script.yaml"
    run("build", recipe, "--progress", "lines", store=store)
    told = tmp_path / "report.json"
    words = ("--mode", "cpu", "--check", "own-training", "--report", told)
    run("smoke-test", recipe, *words, store=store, code=1)
    assert [(finding.node, finding.message) for finding in own(read(told)).findings] == [
        ("node1", "rank 1 of 2 ended with 3, and printed nothing")
    ]
