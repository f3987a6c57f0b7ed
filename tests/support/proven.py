"""An image of a shipped recipe and its lock, with a passing report, but with layers of a few bytes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from imagebuilder import lock as locks
from imagebuilder import lockfile, oci, platforms
from imagebuilder import plan as plans
from imagebuilder.attest import source as sources
from imagebuilder.attest.source import Source
from imagebuilder.lockfile import LockFile
from imagebuilder.smoke import report as reports
from imagebuilder.smoke.report import CheckResult, Host, Report
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import join_images, read_plans, read_recipe
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


def put_proven(store: Store, *, passed: bool = True) -> tuple[ImageRecord, Source]:
    """Put the image, its report and its source into a store."""
    source = sources.of_recipe(RECIPE)
    _, plan = source.read()
    return put_built(plan, store, passed=passed), source


def put_built(plan: plans.Plan, store: Store, *, passed: bool = True) -> ImageRecord:
    """Put an image of a plan into a store, of small layers, and a report on it."""
    records = []
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
        record = put_layer(store, files)
        store.put_layer(layer.key, record)
        records.append(record)
    image = oci.write_image(plan, records, store)
    reports.write(report_of(image, passed=passed), store.report(image.manifest))
    return image


def two_platforms(folder: Path) -> Path:
    """Write a recipe for two platforms and its lock: what the shipped one has, for arm64 as well."""
    path = folder / "both.yaml"
    text = RECIPE.read_text(encoding="utf-8").replace("name: cpu-mpi", "name: both")
    path.write_text(f"{text}platforms: [linux/arm64, linux/amd64]\n", encoding="utf-8")
    _, inputs = read_recipe(path)
    shipped = locks.read(locks.path_for(RECIPE))
    sections = tuple(
        shipped.model_copy(
            update={
                "recipe": "both",
                "architecture": name.partition("/")[2],
                "inputs": inputs[name],
                "debs": shipped.debs if name == platforms.DEFAULT else shipped.debs[1:],
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
    assert join_images(path, store) is not None
    return path


def report_of(image: ImageRecord, *, passed: bool = True) -> Report:
    """Make a report of one check between nodes."""
    check = CheckResult(
        name="mpirun",
        title="a sum over the nodes",
        criterion="all ranks have it",
        required=True,
        exchanges=True,
        status="passed" if passed else "failed",
        seconds=1.0,
    )
    return Report(
        tool="imagebuilder 0",
        recipe=image.name,
        lock=image.lock,
        digest=image.manifest,
        reference=f"{image.name}:{image.tag}",
        pins={},
        runtime="docker",
        nodes=2,
        mode="cpu",
        mode_reason="no GPU here",
        caveats=(),
        host=Host(cores=2, memory_bytes=1 << 30, gpus=(), engine="docker", engine_version="26.1"),
        checks=(check,),
        seconds=3.0,
        passed=passed,
    )
