"""An image of a shipped recipe and its lock, with a passing report, but with layers of a few bytes."""

from __future__ import annotations

from pathlib import Path

from imagebuilder import oci
from imagebuilder import plan as plans
from imagebuilder.attest import source as sources
from imagebuilder.attest.source import Source
from imagebuilder.smoke import report as reports
from imagebuilder.smoke.report import CheckResult, Host, Report
from imagebuilder.store import ImageRecord, Store
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
    records = []
    for number, layer in enumerate(plan.layers):
        files = {f"layer{number}": bytes([number]) * 5000}
        if isinstance(layer, plans.OsLayer):
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
    return image, source


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
