"""`inspect --html` and `diff --html`: they show what `--json` prints, and do nothing in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from imagebuilder import workflow
from imagebuilder.cli import app, pages
from imagebuilder.image.diff import ComparedLayer, Side
from imagebuilder.publish.attest import inspection
from imagebuilder.publish.attest.inspection import (
    AttachedDocument,
    IndexInspection,
    InspectedLayer,
    Inspection,
)
from imagebuilder.publish.attest.reports import AttachedReport
from imagebuilder.publish.attest.whole import Whole
from tests.support.pages import Parsed, require_inert
from tests.support.reports import HOSTILE

SCRIPT = "</title></style><script>document.title='owned'</script>"
DIGEST = "sha256:" + "ab" * 32


def image(**changes: Any) -> Inspection:
    layers = (
        ("debian trixie: base system", "debian", 300),
        ("torch 2.10.0", "torch", 900),
        ("mpi", "debian", 100),
    )
    parts: dict[str, Any] = {
        "reference": "registry.example/team/x:1",
        "platform": "linux/amd64",
        "place": "registry",
        "digest": DIGEST,
        "size": 1_300_000_000,
        "name": "x",
        "version": "1",
        "base": "debian:trixie",
        "lock": "cd" * 32,
        "tags": ("1", "latest"),
        "pins": {"torch": "2.10.0", "nccl": "2.27.5"},
        "loaded": {"torch": "2.10.0+cu128"},
        "layers": tuple(
            InspectedLayer(title=title, component=component, digest=DIGEST, size=size * 1_000_000)
            for title, component, size in layers
        ),
        "verdict": "passed",
        "report": "9 passed on 2 nodes, mode cpu",
        "signature": "present",
        "documents": (AttachedDocument(kind="provenance", digest=DIGEST, signed=True),),
        "others": ("application/x",),
    }
    return Inspection(**{**parts, **changes})


def shown(monkeypatch: pytest.MonkeyPatch, file: Path, found: object) -> tuple[str, Any]:
    """Run `inspect --html --json`; returns the page and the JSON."""
    monkeypatch.setattr(inspection, "inspect", lambda *_, **__: found)
    words = ["inspect", "registry.example/team/x:1", "--html", str(file), "--json"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stderr) == (0, f"wrote {file}\n"), result.output
    return file.read_text("utf-8"), json.loads(result.stdout)


def test_an_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused = AttachedReport(
        digest=DIGEST,
        verdict="failed",
        summary="3 passed, 6 skipped",
        refusals=("mode cpu instead of multi-gpu",),
        signed=True,
        signed_by=("prover.pub",),
    )
    page, _ = shown(monkeypatch, tmp_path / "x.html", image(reports=(refused,)))
    require_inert(page)
    words = Parsed(page).text
    assert "registry.example/team/x:1 linux/amd64: passed its smoke test" in words
    assert "Size 1.3 GB in 3 layers" in words
    assert "torch 1 layer torch 2.10.0: 900 MB 900 MB" in words
    assert "debian 2 layers debian trixie: base system: 300 MB mpi: 100 MB 400 MB" in words
    assert "Component Wanted Loaded in the test torch 2.10.0 2.10.0+cu128 nccl 2.27.5 \u2013" in words
    assert "Not a proof : 3 passed, 6 skipped mode cpu instead of multi-gpu" in words
    assert "signed by prover.pub" in words
    assert f"provenance {DIGEST} present application/x by another tool" in words


def test_an_index_has_a_part_for_each_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index = Whole.__new__(Whole)
    for name, value in {
        "reference": "registry.example/team/x:1",
        "digest": DIGEST,
        "lock": "",
        "signed": True,
    }.items():
        object.__setattr__(index, name, value)
    both = (image(), image(platform="linux/arm64", verdict="none", report="none is attached", loaded={}))
    page, told = shown(
        monkeypatch, tmp_path / "x.html", IndexInspection(index=index, tags=("1",), images=both)
    )
    require_inert(page)
    words = Parsed(page).text
    assert (
        "Image index registry.example/team/x:1 linux/amd64: passed its smoke test linux/arm64: not tested"
        in words
    )
    assert "Image for linux/arm64" in words
    assert len(told["result"]["images"]) == 2


@pytest.mark.parametrize("text", [SCRIPT, HOSTILE], ids=["script", "controls"])
def test_labels_and_names_are_shown_and_do_nothing(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layers = (InspectedLayer(title=text, component=text, digest=text, size=0),)
    report = AttachedReport(
        digest=text,
        verdict="passed",
        summary=text,
        refusals=(text,),
        gpus=(text,),
        signed=False,
        signed_by=(),
    )
    texts = dict.fromkeys(("reference", "name", "version", "base", "lock", "report", "policy"), text)
    hostile = image(
        **texts,
        tags=(text,),
        pins={text: text},
        loaded={text: text},
        layers=layers,
        others=(text,),
        reports=(report,),
    )
    page, _ = shown(monkeypatch, tmp_path / "x.html", hostile)
    require_inert(page)
    assert "<script" not in page


def test_a_difference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def part(identity: str, component: str, size: int, *, measured: bool = True) -> ComparedLayer:
        return ComparedLayer(
            identity=identity,
            title=f"{component} {identity}",
            component=component,
            size=size,
            measured=measured,
        )

    shared = part("base", "debian", 800_000_000)
    sides = {
        "a": Side(
            name="a",
            pins={"nccl": "2.27.5"},
            packages={"wheel nccl": "2.27.5 ab"},
            layers=(shared, part("1", "nccl", 5)),
        ),
        "b": Side(
            name="b",
            pins={"nccl": "2.28.9"},
            packages={f"wheel {SCRIPT}": "1"},
            layers=(shared, part("2", "nccl", 200_000_000), part("3", "python", 0, measured=False)),
        ),
    }
    monkeypatch.setattr(workflow, "side", lambda name, _: sides[name])
    file = tmp_path / "x.html"
    result = CliRunner().invoke(app, ["diff", "a", "b", "--html", str(file)])
    assert (result.exit_code, result.output) == (0, f"wrote {file}\n")
    page = file.read_text("utf-8")
    require_inert(page)
    assert "<script" not in page
    words = Parsed(page).text
    assert (
        "a → b A push of the second sends 200 MB to a registry that has the first. 800 MB are there already."
        in words
    )
    assert "nccl \u2212 nccl 1 5 B + nccl 2 200 MB 5 B 200 MB python + python 3 not known 0 B 0 B" in words
    assert "Name Before After nccl 2.27.5 2.28.9" in words
    assert "wheel nccl 2.27.5 ab gone" in words


def test_locks_have_no_layers_to_compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sides = {name: Side(name=name, pins={"nccl": name}, packages={}, layers=None) for name in ("1", "2")}
    monkeypatch.setattr(workflow, "side", lambda name, _: sides[name])
    CliRunner().invoke(app, ["diff", "1", "2", "--html", str(tmp_path / "x.html")])
    words = Parsed((tmp_path / "x.html").read_text("utf-8")).text
    assert "The layers are not compared: a lock alone does not define them." in words


def test_bars_are_as_wide_as_layers_are_large() -> None:
    layers = [
        {"component": component, "size": size}
        for component, size in (
            ("debian", 30),
            ("torch", 60),
            ("debian", 10),
            *((f"small{n}", 0) for n in range(6)),
        )
    ]
    assert [(round(part.start), round(part.width)) for part in pages.strip(layers)][:3] == [
        (0, 300),
        (300, 600),
        (900, 100),
    ]
    found = pages.shares(layers)
    assert [(one.component, one.size, one.colour) for one in found[:3]] == [
        ("torch", 60, 0),
        ("debian", 40, 1),
        ("small0", 0, 2),
    ]
    assert max(one.colour for one in found) == 5
    assert [round(part.width) for part in found[1].segments] == [500, 167]
    assert (pages.shares([]), pages.strip([])) == ((), ())
