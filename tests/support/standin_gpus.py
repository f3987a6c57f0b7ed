"""A stand-in for a host's GPUs: a CDI specification with devices, a variable, a library and nvidia-smi.

`require` checks what a smoke test does with them, whichever the engine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagebuilder.errors import EnvironmentFault
from imagebuilder.host.site import Site
from imagebuilder.smoke import engine as engines
from imagebuilder.smoke.engine import Engine
from imagebuilder.smoke.nodes.cluster import Cluster, Command
from imagebuilder.smoke.report import Report
from imagebuilder.smoke.run import Watch, run_smoke
from imagebuilder.smoke.target import SmokeOptions
from imagebuilder.store import Store
from tests.support import otherimages

LIBRARY = "/usr/lib/x86_64-linux-gnu/libstandin-cuda.so.1"
DEVICE = "/dev/imagebuilder-gpu"
NAME = "Stand-in GPU"
DRIVER = "570.86.15"
_SEEN = f"STANDIN_DRIVER=570.86.15\na library\n{DEVICE}{{}}\n"

# As the real one does in a container: it numbers what it finds there from 0.
_NVIDIA_SMI = f"""#!/bin/sh
case "$*" in *--query-gpu=index,uuid,name,driver_version*) ;; *) exit 2 ;; esac
number=0
for device in {DEVICE}*; do
    [ -c "$device" ] || continue
    echo "$number, GPU-0000000${{device#{DEVICE}}}-cd1, {NAME}, {DRIVER}"
    number=$((number + 1))
done
[ "$number" != 0 ] || {{ echo "No devices were found"; exit 6; }}
"""


def uuid(index: int) -> str:
    return f"GPU-0000000{index}-cd1"


def write(folder: Path, count: int = 4) -> Path:
    """Write the specification and what it mounts; returns the folder for the engine's settings.

    Each GPU is named by its number and by its uuid, as `nvidia-ctk cdi generate` does; only the number of the
    last one is missing.
    """
    tools, specs = folder / "driver", folder / "cdi"
    tools.mkdir()
    specs.mkdir()
    (tools / "nvidia-smi").write_text(_NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    (tools / "library").write_text("a library\n")
    mounts = {"nvidia-smi": "/usr/bin/nvidia-smi", "library": LIBRARY}
    # Like /dev/null, so that reading and writing it does no harm.
    nodes = [
        {"path": f"{DEVICE}{number}", "type": "c", "major": 1, "minor": 3, "permissions": "rw"}
        for number in range(count)
    ]
    names = [(str(number), [node]) for number, node in enumerate(nodes[:-1])]
    names += [(uuid(number), [node]) for number, node in enumerate(nodes)]
    specification = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": devices}}
            for name, devices in [*names, ("all", nodes)]
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", f"STANDIN_DRIVER={DRIVER}"],
            "mounts": [
                {
                    "hostPath": str(tools / name),
                    "containerPath": path,
                    "options": ["ro", "nosuid", "nodev", "bind"],
                }
                for name, path in mounts.items()
            ],
        },
    }
    (specs / "nvidia.json").write_text(json.dumps(specification))
    return specs


def require(store: Store) -> None:
    """Check that the engine gives each node its GPU from this specification, as the report says."""
    with (
        engines.connect("auto") as engine,
        otherimages.minimal(engine.client, store) as base,
        otherimages.built(engine.client, otherimages.NO_PYTHON, base) as image,
    ):
        _require(engine, image, store)


def _require(engine: Engine, image: str, store: Store) -> None:
    report, seen = _tested(engine, image, store, "0", uuid(3))
    assert seen == [_SEEN.format(number) for number in (0, 3)], seen
    assert (report.mode, report.host.gpus, report.host.driver) == ("multi-gpu", (NAME, NAME), DRIVER), report
    assert [(gpu.node, gpu.index, gpu.uuid, gpu.name) for gpu in report.gpus] == [
        ("node0", 0, uuid(0), NAME),
        ("node1", 3, uuid(3), NAME),
    ], report.gpus
    # One that all share, and those that are there, without names.
    report, seen = _tested(engine, image, store, "2")
    assert seen == [_SEEN.format(2)] * 2, seen
    assert [(gpu.node, gpu.index) for gpu in report.gpus] == [("node0", 2), ("node1", 2)], report.gpus
    assert (report.mode, report.host.gpus) == ("one-gpu-shared", (NAME,)), report
    report, _ = _tested(engine, image, store, "all")
    assert [gpu.index for gpu in report.gpus] == [0, 1], report.gpus
    with pytest.raises(EnvironmentFault) as missing:
        _tested(engine, image, store, "0", "7")
    offered = ", ".join(f"{number} ({uuid(number)}, {NAME})" for number in range(4))
    expected = f"--gpus: {engine.kind} here has no GPU 7\n  -> it offers {offered}"
    assert str(missing.value) == expected, missing.value
    # nvidia-smi lists it, and the specification does not name it.
    with pytest.raises(EnvironmentFault) as unnamed:
        _tested(engine, image, store, "0", "3")
    assert "unresolvable CDI devices nvidia.com/gpu=3" in str(unnamed.value), unnamed.value
    assert str(unnamed.value).endswith(
        "-> a CDI specification on the engine's host has to name them: run there `nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml`"
    ), unnamed.value


def _tested(engine: Engine, image: str, store: Store, *gpus: str) -> tuple[Report, list[str]]:
    """Run one check, which the image fails; returns the report, and what each node was started with."""
    seen: list[str] = []

    def look(cluster: Cluster) -> None:
        # Engines start further commands without the specification's variables.
        script = f"tr '\\0' '\\n' </proc/1/environ | grep STANDIN; cat {LIBRARY}; ls {DEVICE}*"
        command = Command(argv=("sh", "-c", script), timeout=30)
        for node in cluster.nodes:
            # Podman on a busy host loses an answer now and then.
            answers = (node.run(command).stdout for _ in range(4))
            seen.append(next(filter(None, answers), ""))

    target = engines.look_up(engine, image)
    options = SmokeOptions(gpus=gpus, only=frozenset({"limits"}))
    return run_smoke(target, options, store=store, site=Site(), watch=Watch(started=look)), seen
