"""What is tested, read from an image's labels; and the options."""

from __future__ import annotations

from typing import Any

import pytest

from imagebuilder.errors import InputError
from imagebuilder.smoke.target import Scaling, SmokeOptions, expecting, from_image, from_labels

LABELS = {
    "org.opencontainers.image.title": "demo",
    "org.imagebuilder.lock": "a" * 64,
    "org.imagebuilder.ssh.port": "2222",
    "org.imagebuilder.ssh.user": "trainer",
    "org.imagebuilder.pin.torch": "2.10.0",
    "org.imagebuilder.pin.nccl": "2.27.5",
}


def test_labels_say_what_an_image_promises() -> None:
    target = from_labels("demo:1", LABELS, digest="sha256:d")
    assert (target.recipe, target.lock, target.digest) == ("demo", "a" * 64, "sha256:d")
    assert (target.ssh_port, target.ssh_user) == (2222, "trainer")
    assert target.pins == (("nccl", "2.27.5"), ("torch", "2.10.0"))
    assert (target.pin("nccl"), target.pin("gcc")) == ("2.27.5", "")


def test_all_missing_labels_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        from_labels("python:3.13", {})
    for label in ("org.imagebuilder.lock", "org.imagebuilder.ssh.port", "ssh.user", "org.imagebuilder.pin."):
        assert label in str(caught.value)
    assert str(caught.value).startswith("python:3.13: ")


@pytest.mark.parametrize("port", ["ssh", "0", "65536", "-1", "22 "])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(InputError, match="not a port"):
        from_labels("demo:1", {**LABELS, "org.imagebuilder.ssh.port": port})


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"mode": "gpu"}, "--mode"),
        ({"runtime": "lxc"}, "--runtime"),
        ({"nodes": 1}, "--nodes"),
        ({"patience": 0}, "patience"),
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError, match=where):
        SmokeOptions(**wrong)


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ({"nproc_per_node": 0}, "--nproc-per-node"),
        ({"nproc_per_node": 9}, "--nproc-per-node"),
        ({"transport": "carrier pigeon"}, "--transport"),
        ({"min_busbw": -1.0}, "--min-busbw"),
        ({"min_busbw": float("nan")}, "--min-busbw"),
    ],
)
def test_options_that_cannot_be_run_are_refused(words: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        SmokeOptions(**words)
    assert str(caught.value).startswith(where)


@pytest.mark.parametrize(
    ("words", "where"),
    [({"epochs": 0}, "--epochs"), ({"epochs": 101}, "--epochs"), ({"workload": "gpt"}, "--workload")],
)
def test_a_table_that_cannot_be_run_is_refused(words: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        Scaling(asked=True, **words)
    assert str(caught.value).startswith(where)


def test_an_image_of_others_promises_nothing() -> None:
    target = from_image("pytorch:1", {"maintainer": "somebody"}, entrypoint=["/start.sh"])
    assert (target.origin, target.pins, target.lock) == ("foreign", (), "")
    assert target.entrypoint == ("/start.sh",)


def test_a_damaged_label_makes_no_image_of_others() -> None:
    with pytest.raises(InputError, match="this is not an image of imagebuilder"):
        from_image("demo:1", {"org.imagebuilder.lock": "a" * 64})


def test_expected_versions_become_pins() -> None:
    target = expecting(from_image("x:1", {}), ["nccl=2.27.5", "torch=2.10.0+cu128"])
    assert target.pins == (("nccl", "2.27.5"), ("torch", "2.10.0+cu128"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nccl", "--expect: `nccl` is not a component and a version"),
        ("nccl=", "--expect: `nccl=` is not a component and a version"),
        ("nccl=2;3", "--expect: `nccl=2;3` is not a component and a version"),
        ("numpy=2.0", "--expect: `numpy` is not a component whose version can be asked"),
    ],
)
def test_an_expectation_that_nothing_can_answer_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        expecting(from_image("x:1", {}), [text])
    assert str(caught.value).startswith(message)
