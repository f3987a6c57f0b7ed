"""The example that trains as people do: rate by world size, checkpoints, TensorBoard, all of MNIST."""

from __future__ import annotations

import shutil
from pathlib import Path

from docker import DockerClient

from imagebuilder.smoke.data import all_digits
from imagebuilder.smoke.report import read
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, remove_images
from tests.integration.test_examples import own, run
from tests.support.pods import docker

EVENTS = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("/output/events")
events.Reload()
print(*sorted(events.Tags()["scalars"]), sep=",")
print(*(f"{event.value:.3f}" for event in events.Scalars("learning rate")[:7]))
print(*(event.step for event in events.Scalars("accuracy")))
"""


def test_it_learns_mnist_goes_on_from_its_checkpoint_and_tensorboard_reads_it(
    store: Store, engine: DockerClient, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "examples" / "mnist", tmp_path / "mnist")
    recipe, report = tmp_path / "mnist" / "recipes" / "mnist.yaml", tmp_path / "report.json"
    run("build", recipe, "--load", "--progress", "lines", store=store)
    # Other checks are required too, so the test as a whole does not pass.
    check = ("--mode", "cpu", "--check", "own-training", "--report", report)
    run("smoke-test", recipe, *check, store=store, code=1)
    assert own(read(report)).status == "passed"
    assert [entry["host"] for entry in own(read(report)).evidence["ranks"]] == ["node0", "node1"]

    image = store.image("mnist")
    assert image is not None
    output = tmp_path / "output"
    output.mkdir()
    output.chmod(0o777)
    mounts = ("-v", f"{all_digits(store)}:/data.tgz:ro", "-v", f"{output}:/output", "-e", "OMP_NUM_THREADS=1")
    words = ("run", "--rm", "-e", "IMAGEBUILDER_SSHD=off", *mounts, f"mnist:{image.tag}")
    script = ("torchrun", "--nproc-per-node=2", "train.py", "--data=/data.tgz", "--output=/output")
    try:
        first = docker(*words, *script, "--epochs=1").stdout
        second = docker(*words, *script, "--epochs=2").stdout
        events = docker(*words, "python", "-W", "ignore", "-c", EVENTS).stdout.splitlines()
    finally:
        remove_images(engine, "mnist")
    reached = [float(said.partition("accuracy=")[2].split()[0]) for said in (first, second)]
    # One rank learns at 0.05, two at 0.1, after 50 steps.
    assert "epoch 0: 2 ranks, learning rate 0.10" in first
    assert [line.partition(":")[0] for line in second.splitlines() if line.startswith("epoch")] == ["epoch 1"]
    assert 0.95 < reached[0] < reached[1]
    assert events[-3:] == [
        "accuracy,learning rate,loss",
        "0.050 0.060 0.070 0.080 0.090 0.100 0.100",
        "468 936",
    ]
