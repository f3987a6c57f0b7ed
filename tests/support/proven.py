"""An image of a shipped recipe and its lock, with a passing report, but with layers of a few bytes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from imagebuilder import plan as plans
from imagebuilder.core import platforms
from imagebuilder.image import oci
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Deb, Lock, Wheel
from imagebuilder.smoke import report as reports
from imagebuilder.smoke.report import CheckResult, Host, Report
from imagebuilder.smoke.verdict import required
from imagebuilder.store import EMPTY_LAYER, ImageRecord, Store
from imagebuilder.workflow import join_images, read_locks, read_plans, read_recipe
from imagebuilder.workflow import source as sources
from imagebuilder.workflow.source import RecipeSource
from tests.support.images import put_layer

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "cpu-mpi.yaml"
COPYRIGHT = b"""Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: zlib

Files: *
License: Zlib

Files: debian/*
License: GPL-2+ or Artistic, and BSD-like

License: Zlib
 Do with it what you like.
"""


def put_proven(store: Store, *, passed: bool = True) -> tuple[ImageRecord, RecipeSource]:
    """Put the image, its report and its source into a store."""
    source = sources.of_recipe(RECIPE)
    _, plan = source.read()
    return put_built(plan, store, passed=passed), source


def put_built(plan: plans.Plan, store: Store, *, passed: bool = True) -> ImageRecord:
    """Put an image of a plan into a store, of small layers, and a report on it.

    As in a real image, the last layer of bytecode is empty.
    """
    records = []
    empty = [layer for layer in plan.layers if isinstance(layer, plans.BytecodeLayer)][-1:]
    for number, layer in enumerate(plan.layers):
        files = {f"layer{number}": bytes([number]) * 5000}
        if isinstance(layer, plans.OsPart) and layer.name == plans.STATE:
            files["./usr/share/doc/zlib1g/copyright"] = COPYRIGHT
            files["./usr/share/doc/gcc-14"] = b"->gcc-14-base"
            files["./usr/share/doc/gcc-14-base/copyright"] = b"Free text, as old packages have it."
            files["./usr/share/doc/zlib1g-dev"] = b"->zlib1g"
        elif isinstance(layer, plans.WheelLayer):
            for wheel in layer.wheels:
                place = f"opt/venv/lib/python3.13/site-packages/{wheel.name}-{wheel.version}.dist-info"
                files[f"{place}/METADATA"] = b"Metadata-Version: 2.4\nLicense-Expression: BSD-3-Clause\n\n"
        record = EMPTY_LAYER if layer in empty else put_layer(store, files)
        store.put_layer(layer.key, record)
        records.append(record)
    image = oci.write_image(plan, records, store)
    reports.write(report_of(image, passed=passed), store.report(image.manifest))
    return image


def debs_for_arm(lock: Lock) -> tuple[Deb, ...]:
    """Name the packages of a lock for amd64 as an archive names them for arm64."""
    return tuple(
        deb.model_copy(
            update={
                "architecture": deb.architecture.replace("amd64", "arm64"),
                "path": deb.path.replace("_amd64.deb", "_arm64.deb"),
            }
        )
        for deb in lock.debs
    )


def wheels_for_arm(lock: Lock) -> tuple[Wheel, ...]:
    """Name the wheels of a lock for amd64 as an index names them for arm64."""
    return tuple(
        wheel.model_copy(update={"file": wheel.file.replace("x86_64", "aarch64")}) for wheel in lock.wheels
    )


def two_platforms(folder: Path) -> Path:
    """Write a recipe for two platforms and its lock: what the shipped one has, for arm64 as well."""
    path = folder / "both.yaml"
    text = RECIPE.read_text(encoding="utf-8").replace("name: cpu-mpi", "name: both")
    path.write_text(f"{text}platforms: [linux/arm64, linux/amd64]\n", encoding="utf-8")
    _, inputs = read_recipe(path)
    shipped = lockfile.read(locks.path_for(RECIPE)).sections[0].knowing(())
    sections = tuple(
        shipped.model_copy(
            update={
                "recipe": "both",
                "architecture": name.partition("/")[2],
                "inputs": inputs[name],
                "debs": shipped.debs if name == platforms.DEFAULT else debs_for_arm(shipped)[1:],
                "wheels": shipped.wheels if name == platforms.DEFAULT else wheels_for_arm(shipped),
            }
        )
        for name in sorted(inputs)
    )
    lockfile.write(LockFile(sections=sections), locks.path_for(path))
    return path


def put_both(folder: Path, store: Store, *, proven: Collection[str] = platforms.KNOWN) -> Path:
    """Put the images of a recipe for two platforms and their index into a store; returns the recipe."""
    path = two_platforms(folder)
    source = sources.of_recipe(path)
    for _, plan in read_plans(path):
        image = put_built(plan, store)
        sources.remember(store, image.manifest, source)
        if plan.platform not in proven:
            store.report(image.manifest).unlink()
    assert join_images(read_locks(path), store) is not None
    return path


def report_of(image: ImageRecord, *, passed: bool = True) -> Report:
    """Make a report of every check that an image of `cpu-mpi` has to pass."""
    checks = tuple(
        CheckResult(
            name=name,
            title="a sum over the nodes" if name == "mpirun" else name,
            criterion="all ranks have it" if name == "mpirun" else "it holds",
            required=True,
            exchanges=name == "mpirun",
            status="passed" if passed or name != "mpirun" else "failed",
            seconds=1.0,
        )
        for name in ("mpirun", *sorted(required("docker", "cpu", {"openmpi": "5", "gcc": "14"}) - {"mpirun"}))
    )
    return Report(
        tool="imagebuilder 0",
        recipe=image.name,
        lock=image.lock,
        digest=image.manifest,
        config=image.config,
        reference=f"{image.name}:{image.tag}",
        pins={},
        runtime="docker",
        nodes=2,
        mode="cpu",
        mode_reason="no GPU here",
        caveats=(),
        host=Host(cores=2, memory_bytes=1 << 30, gpus=(), engine="docker", engine_version="26.1"),
        checks=checks,
        started="2026-01-02T03:04:05Z",
        seconds=3.0,
        passed=passed,
    )
