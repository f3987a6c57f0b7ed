"""Checkpoints of an image's own torch, compared on a host that has none: the same answers as torch gives."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder import process
from tests.integration.conftest import ROOT, Built

# Saves two states in which some tensors differ, and says what torch itself finds in them.
_SAVE = """
import base64, io, json, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 10))
model = model.to(torch.bfloat16)
model[3] = model[3].float()
optimizer = torch.optim.AdamW(model.parameters())
sum(p.float().square().sum() for p in model.parameters()).backward()
optimizer.step()
def state():
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    return {"model": tensors, "optimizer": optimizer.state_dict()}
def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return base64.b64encode(file.getvalue()).decode()
one = state()
with torch.no_grad():
    model[0].weight += 0.01 * torch.randn_like(model[0].weight)
    model[3].weight[4, 7] += 1
    model[1].running_var += 1
two = state()
found = {}
for name, a in one["model"].items():
    b = two["model"][name]
    if not torch.equal(a, b):
        difference = (a.double() - b.double()).abs()
        found["model." + name] = [
            int((a != b).sum()), float(difference.max()), [int(i) for i in (a != b).nonzero()[0]]
        ]
print(json.dumps({"one": saved(one), "two": saved(two), "found": found, "version": torch.__version__}))
"""


@pytest.fixture(scope="module")
def said(built: Built, engine: DockerClient) -> dict[str, object]:
    reference = built(ROOT / "recipes" / "cuda12-torch.yaml")
    output = engine.containers.run(reference, ["python", "-c", _SAVE], remove=True, network_mode="none")
    answer: dict[str, object] = json.loads(output.splitlines()[-1])
    return answer


def test_what_torch_finds_is_found_without_torch(said: dict[str, object], tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(base64.b64decode(str(said[name])))
    program = Path(sys.executable).parent / "imagebuilder"
    command: list[str | Path] = [program, "compare-checkpoints", "--json", tmp_path / "one"]
    same = process.run([*command, tmp_path / "one"], timeout=60, check=False)
    assert same.code == 0, same.stdout
    other = process.run([*command, tmp_path / "two"], timeout=60, check=False)
    assert other.code == 1, other.stderr
    (comparison,) = json.loads(other.stdout)
    rows = {row["name"]: row for row in comparison["differences"]}
    expected = said["found"]
    assert isinstance(expected, dict)
    assert rows.keys() == expected.keys() == {"model.0.weight", "model.1.running_var", "model.3.weight"}
    for name, (count, furthest, index) in expected.items():
        assert (rows[name]["count"], rows[name]["index"]) == (count, index), name
        assert rows[name]["max_abs"] == pytest.approx(furthest, rel=1e-12), name
    assert rows["model.1.running_var"]["kind"] == "buffer"
    assert comparison["counts"]["optimizer"]["equal"] > 10
