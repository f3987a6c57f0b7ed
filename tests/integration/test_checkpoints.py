"""Checkpoints compared by an image's own torch: what differs, and files that mean harm or are damaged."""

from __future__ import annotations

import base64
import json
import os
import pickle
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from imagebuilder.core import process
from tests.integration.conftest import ROOT, Built
from tests.support import answers

# Saves checkpoints, and says what torch itself finds in the first two of them.
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
files = {}
def save(name, value, **how):
    file = io.BytesIO()
    torch.save(value, file, **how)
    files[name] = base64.b64encode(file.getvalue()).decode()
def state():
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    return {"model": tensors, "optimizer": optimizer.state_dict(), "epoch": 3, "names": {"a"}, "none": None}
one = state()
with torch.no_grad():
    model[0].weight += 0.01 * torch.randn_like(model[0].weight)
    model[3].weight[4, 7] += 1
    model[1].running_var += 1
two = {**state(), "epoch": 4}
found = {}
for name, a in one["model"].items():
    b = two["model"][name]
    if not torch.equal(a, b):
        difference = (a.double() - b.double()).abs()
        found["model." + name] = [
            int((a != b).sum()), float(difference.max()), [int(i) for i in (a != b).nonzero()[0]]
        ]
save("one.pt", one)
save("two.pt", two)
save("one-old-format.pt", one, _use_new_zipfile_serialization=False)
save("module.pt", model)
save("sparse.pt", {"a": torch.eye(2).to_sparse()})
save("expanded.pt", {"a": torch.zeros(1).expand(1 << 30)})

base = torch.arange(12).reshape(3, 4)
names = "float64 float32 float16 bfloat16 complex64 complex128 float8_e4m3fn int64 int16 uint8 uint64 bool"
types = {name: (base / 7).to(getattr(torch, name)) for name in names.split()}
views = {"turned": base.float().T, "steps": torch.arange(90.0)[3::7], "empty": torch.zeros(0, 3)}
save("types.pt", {**types, **views, "scalar": torch.tensor(3.5), "conj": types["complex64"].conj()})
nan, inf, edge = float("nan"), float("inf"), 1 << 62
a = {"zero": torch.tensor([0.0]), "nan": torch.tensor([nan, 1]), "inf": torch.tensor([inf, inf])}
b = {"zero": torch.tensor([-0.0]), "nan": torch.tensor([nan, nan]), "inf": torch.tensor([inf, -inf])}
a |= {"long": torch.tensor([edge, edge]), "some": torch.ones(2, 2)}
a["big"] = torch.tensor([0], dtype=torch.uint64)
b |= {"long": torch.tensor([edge + 1, -edge]), "some": torch.tensor([[1.0, 1], [1.25, 1]])}
b["big"] = torch.tensor([2**64 - 1], dtype=torch.uint64)
a |= {"freq": torch.ones(1), "mine": nn.Parameter(torch.ones(1)), "listed": torch.ones(1)}
b |= {name: tensor.clone() for name, tensor in a.items() if name not in b}
listed = {"buffer_names": ["listed"], "mask": torch.ones(2, dtype=torch.bool)}
more = {"shape": torch.ones(2), "dtype": torch.ones(2), "gone": torch.ones(2)}
save("edge-a.pt", {**a, **listed, **more})
more = {"shape": torch.ones(3), "dtype": torch.ones(2).half(), "new": torch.ones(2)}
save("edge-b.pt", {**b, **listed, **more})
print(json.dumps({"files": files, "found": found}))
"""


class Compare:
    """The verb, in an image that has torch, on files of a folder."""

    def __init__(self, reference: str, folder: Path, found: dict[str, Any]) -> None:
        self.folder, self.found = folder, found
        self._place = ("--image", reference, "--store", folder / "store")

    def __call__(self, *words: str | Path) -> process.Result:
        program = Path(sys.executable).parent / "imagebuilder"
        return process.run(
            [program, "compare-checkpoints", *words, *self._place], timeout=300, cwd=self.folder, check=False
        )

    def rows(self, *words: str) -> dict[str, dict[str, Any]]:
        """What differs between two files, by name."""
        result = self(*words, "--json")
        assert result.code == 1, result.stderr
        (pair,) = answers.result(result.stdout)["pairs"]
        return {row["name"]: row for row in pair["comparison"]["differences"]}

    def refused(self, name: str) -> str:
        """The one line of an error, and what to do if anything, about a file."""
        result = self(name, name)
        assert (result.code, result.stdout) == (2, ""), result.stderr
        first, *rest = result.stderr.removeprefix("error: ").splitlines()
        assert all(line.startswith("  -> ") for line in rest), result.stderr
        return first


@pytest.fixture(scope="module")
def compare(built: Built, engine: DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Compare:
    reference = built(ROOT / "recipes" / "cuda12-torch.yaml")
    output = engine.containers.run(reference, ["python", "-c", _SAVE], remove=True, network_mode="none")
    said = json.loads(output.splitlines()[-1])
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, text in said["files"].items():
        (folder / name).write_bytes(base64.b64decode(text))
    return Compare(reference, folder, said["found"])


def test_what_torch_finds_is_told(compare: Compare) -> None:
    rows = compare.rows("one.pt", "two.pt")
    assert rows.keys() == {*compare.found, "epoch"}
    for name, (count, furthest, index) in compare.found.items():
        assert (rows[name]["count"], rows[name]["index"]) == (count, index), name
        assert rows[name]["max_abs"] == pytest.approx(furthest, rel=1e-12), name
    assert rows["model.1.running_var"]["kind"] == "buffer"
    assert (rows["epoch"]["kind"], rows["epoch"]["first"], rows["epoch"]["other"]) == ("value", "3", "4")


def test_a_file_equals_itself_in_another_format(compare: Compare) -> None:
    result = compare("one.pt", "one.pt", "one-old-format.pt", "--json")
    assert result.code == 0, result.stdout + result.stderr
    one, other = answers.result(result.stdout)["pairs"]
    assert one["equal"]
    assert other["comparison"]["counts"] == one["comparison"]["counts"]
    assert one["comparison"]["counts"]["optimizer"]["equal"] > 10
    assert compare("types.pt", "types.pt").code == 0


def test_kinds_and_measures_at_the_edges(compare: Compare) -> None:
    rows = compare.rows("edge-a.pt", "edge-b.pt")
    assert {name: (row["kind"], row["what"]) for name, row in rows.items()} == {
        **dict.fromkeys(("zero", "nan", "inf", "some"), ("parameter", "numbers")),
        **dict.fromkeys(("long", "big"), ("buffer", "numbers")),
        "shape": ("parameter", "shape"),
        "dtype": ("parameter", "dtype"),
        "gone": ("parameter", "missing"),
        "new": ("parameter", "extra"),
    }
    # Every bit counts; what is no number has no distance; 64-bit integers are subtracted as they are.
    assert (rows["zero"]["count"], rows["zero"]["max_abs"]) == (1, 0.0)
    assert [rows["nan"][key] for key in ("count", "not_finite", "max_abs", "index")] == [1, 1, None, [1]]
    assert (rows["inf"]["count"], rows["inf"]["relative"]) == (1, None)
    assert (rows["long"]["max_abs"], rows["big"]["max_abs"]) == (float(1 << 63), float(2**64 - 1))
    assert rows["long"]["values"] == [str(1 << 62), str((1 << 62) + 1)]
    keys = ("count", "of", "max_abs", "relative", "index", "values")
    assert [rows["some"][key] for key in keys] == [1, 4, 0.25, 0.2, [1, 0], ["1", "1.25"]]
    assert (rows["dtype"]["first"], rows["dtype"]["other"]) == ("float32 [2]", "float16 [2]")


def test_tolerances_and_kinds_that_are_asked_for(compare: Compare) -> None:
    rows = compare.rows("edge-a.pt", "edge-b.pt", "--atol", "0.25")
    assert {"zero", "some"}.isdisjoint(rows)
    assert {"nan", "inf", "long"} <= rows.keys()
    rows = compare.rows("edge-a.pt", "edge-b.pt", "--only", "buffer", "--buffer", "n?*")
    assert rows.keys() == {"long", "big", "nan", "new"}
    result = compare("edge-a.pt", "edge-a.pt", "--json", "--buffer", "freq")
    (counts,) = [row["comparison"]["counts"] for row in answers.result(result.stdout)["pairs"]]
    # `mine` is a torch.nn.Parameter, `listed` is in the file's own list, a mask cannot be trained.
    assert counts["buffer"]["equal"] == len(("long", "big", "freq", "listed", "mask"))


class Runs:
    """Unpickled by Python, this makes a folder; the ones of torch would be called the same way."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._reduced


def _archive(value: object, **parts: bytes) -> Callable[[Path], None]:
    """Write a file as torch.save does, around a pickle."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if parts else zipfile.ZIP_STORED) as file:
            data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=2)
            file.writestr("x/data.pkl", data)
            for name, content in {"byteorder": b"little", "version": b"3\n", **parts}.items():
                file.writestr(f"x/{name}", content)

    return write


def _safetensors(header: object) -> Callable[[Path], None]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return lambda path: _put(path, struct.pack("<Q", len(text)) + text + struct.pack("<4f", 1, 2, 3, 4))


def _put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _laughs() -> object:
    value: object = ["ha"] * 10
    for _ in range(10):
        value = [value] * 10
    return value


def _cyclic() -> object:
    value: list[object] = []
    value.append(value)
    return value


_ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "call": (_archive({"a": Runs(os.mkdir, "/tmp/ran")}), "names `posix.mkdir`, which torch does not load"),
    "laughs": (_archive(_laughs()), "has more than 200000 entries"),
    "cyclic": (_archive(_cyclic()), "is nested more than 64 deep"),
    "twice": (_archive({"a.b": 1, "a": {"b": 2}}), "has two entries that are called 'a.b'"),
    "keys": (_archive({(1, 2): 1}), "has a dict with keys that are neither text nor numbers"),
    "bomb": (_archive(b"\x80\x02X\xff\xff\xff\x7f" + bytes(1 << 24), more=b"x"), "cannot be read: "),
    "cut": (lambda path: _put(path, b"PK\x03\x04" + bytes(60)), "is neither a file of torch.save"),
    "text": (
        lambda path: _put(path, b"just some text, and no checkpoint"),
        "is neither a file of torch.save",
    ),
    "empty": (lambda path: _put(path, b""), "is neither a file of torch.save"),
    "header": (_safetensors(b'{"a": ' + b"[" * 100_000), "has a damaged header: RecursionError"),
    "beyond": (
        _safetensors({"a": {**_ENTRY, "data_offsets": [4, 20]}}),
        "place or size cannot be",
    ),
    "negative": (_safetensors({"a": {**_ENTRY, "shape": [-2, -2]}}), "place or size cannot be"),
    "again": (_safetensors(b'{"a": {}, "a": {}}'), "a name stands there twice"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_mean_harm_or_are_damaged_are_one_line(compare: Compare, name: str) -> None:
    write, words = HOSTILE[name]
    write(compare.folder / name)
    said = compare.refused(name)
    assert said.startswith(f"{name}: ")
    assert words in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("module.pt", "names `torch.nn.modules.container.Sequential`, which torch does not load as weights"),
        ("sparse.pt", "holds a tensor that is not plain (sparse_coo, on cpu): 'a'"),
        ("expanded.pt", "repeats the elements of 'a' to more than 1 GiB"),
    ],
)
def test_what_torch_can_load_and_nobody_can_compare_is_refused(
    compare: Compare, name: str, words: str
) -> None:
    assert compare.refused(name) == f"{name}: {words}"


def test_safetensors_are_read(compare: Compare) -> None:
    header = {"a": _ENTRY, "b": {**_ENTRY, "shape": [0, 2], "data_offsets": [16, 16]}}
    metadata = {"__metadata__": {"buffer_names": '["a"]'}}
    _safetensors(header)(compare.folder / "plain.safetensors")
    _safetensors({**header, **metadata})(compare.folder / "listed.safetensors")
    result = compare("plain.safetensors", "listed.safetensors", "--json")
    (pair,) = answers.result(result.stdout)["pairs"]
    assert (result.code, pair["comparison"]["counts"]["buffer"]["equal"]) == (0, 1)


def test_nothing_of_the_host_is_inside(compare: Compare, engine: DockerClient) -> None:
    result = compare("one.pt", "absent.pt")
    assert (result.code, result.stderr) == (
        2,
        "error: absent.pt: cannot be read: No such file or directory\n",
    )
    ended: dict[str, str | list[str] | bool] = {"label": "org.imagebuilder.run", "status": "exited"}
    until = time.monotonic() + 30
    # One of a smoke test beside this one goes in a moment.
    while left := engine.containers.list(all=True, filters=ended, ignore_removed=True):
        assert time.monotonic() < until, [container.name for container in left]
        time.sleep(0.2)


def test_an_image_without_torch_says_so(compare: Compare, built: Built, tmp_path: Path) -> None:
    without = Compare(built(ROOT / "recipes" / "cpu-mpi.yaml"), compare.folder, {})
    result = without("one.pt", "one.pt")
    assert result.code == 2
    assert "this Python cannot import torch" in result.stderr
    assert without("one.pt", tmp_path / "x").code == 2
