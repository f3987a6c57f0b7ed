"""Checkpoints that mean harm, or are damaged: refused, nothing run, no memory eaten, no traceback."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from imagebuilder.checkpoints import entries, machine
from imagebuilder.checkpoints.compare import Rules, compare
from imagebuilder.checkpoints.files import opened
from imagebuilder.checkpoints.tensor import Incomparable

CASES = Path(__file__).resolve().parents[1] / "cases" / "checkpoints"
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"


class Runs:
    """Unpickled by Python, this runs a command."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._reduced


def archive(path: Path, data: bytes, storage: bytes = struct.pack("<4f", 1, 2, 3, 4)) -> Path:
    """Write a file as torch.save does, around a pickle."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", data)
        file.writestr("x/byteorder", "little")
        file.writestr("x/data/0", storage)
    return path


def rebuilt(offset: int, shape: str, strides: str) -> bytes:
    """Write the pickle of one tensor; shape and strides are the operations that make the tuples."""
    call = b"ctorch._utils\n_rebuild_tensor_v2\n("
    numbers = pickle.dumps(offset, protocol=2)[2:-1]
    parts = [STORAGE, numbers, shape.encode("latin1"), strides.encode("latin1"), b"\x89N"]
    return b"\x80\x02" + call + b"".join(parts) + b"tR."


def read(path: Path) -> None:
    with opened(path) as found:
        compare(found, found, Rules())


def refused(path: Path) -> str:
    with pytest.raises(Incomparable) as caught:
        read(path)
    assert caught.value.exit_code == 2
    (problem,) = caught.value.problems
    assert str(path) in problem.where
    return problem.message


def test_the_bait_works_where_python_unpickles(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(Runs(os.mkdir, str(mark))))  # noqa: S301  (what the tests below are about)
    assert mark.is_dir()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("call", [os.mkdir, os.system, eval, exec, getattr, __import__, print, open])
def test_nothing_that_a_file_names_is_called(
    tmp_path: Path, protocol: int, call: Callable[..., object]
) -> None:
    mark = tmp_path / "ran"
    bait = Runs(call, str(mark))
    message = refused(archive(tmp_path / "x.pt", pickle.dumps({"a": bait}, protocol=protocol)))
    assert "names `" in message
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR.",
        b"(S'id'\nios\nsystem\n.",
        b"\x80\x02(cos\nsystem\nX\x02\x00\x00\x00ido.",
        b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85\x81.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00itemscos\nsystem\nsb.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.",
        b"\x80\x02c__builtin__\neval\n.",
        b"\x80\x02ctorch\nload\n.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
        b"\x80\x02ctorch\nfloat32\n)R.",
    ],
)
def test_no_operation_leads_to_a_call(tmp_path: Path, data: bytes) -> None:
    refused(archive(tmp_path / "x.pt", data))


def test_attributes_are_not_set(tmp_path: Path) -> None:
    # What torch hangs on a state dict; and on anything else it is refused.
    state = b"\x80\x02ccollections\nOrderedDict\n)R}X\x01\x00\x00\x00aK\x01sb."
    read(archive(tmp_path / "x.pt", state))
    refused(archive(tmp_path / "y.pt", rebuilt(0, "K\x04\x85", "K\x01\x85")[:-1] + b"}b."))


def test_a_tensor_that_is_as_it_should_be_is_read(tmp_path: Path) -> None:
    read(archive(tmp_path / "x.pt", rebuilt(0, "K\x04\x85", "K\x01\x85")))


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, "K\x05\x85", "K\x01\x85"),
        (1, "K\x04\x85", "K\x01\x85"),
        (0, "K\x02\x85", "K\x04\x85"),
        (-1, "K\x01\x85", "K\x01\x85"),
        (0, "J\xff\xff\xff\xff\x85", "K\x01\x85"),
        (0, "K\x02\x85", "J\xff\xff\xff\xff\x85"),
        (1 << 70, "K\x01\x85", "K\x01\x85"),
        (0, "J\xff\xff\xff\x7f\x85", "K\x00\x85"),
        (0, "K\x02K\x02\x86", "K\x01\x85"),
        (0, "\x88\x85", "K\x01\x85"),
        (0, "G?\xf0\x00\x00\x00\x00\x00\x00\x85", "K\x01\x85"),
        (0, "N", "N"),
        (0, "(" + "K\x01" * 65 + "t", "(" + "K\x01" * 65 + "t"),
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(
    tmp_path: Path, offset: int, shape: str, strides: str
) -> None:
    refused(archive(tmp_path / "x.pt", rebuilt(offset, shape, strides)))


def laughs(depth: int) -> object:
    value: object = ["ha"] * 10
    for _ in range(depth):
        value = [value] * 10
    return value


def cyclic() -> object:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (cyclic(), "nested more than"),
        ({"a.b": 1, "a": {"b": 2}}, "two entries that are called 'a.b'"),
        ({1: 1, "1": 2}, "two entries"),
        ({(1, 2): 1}, "neither text nor numbers"),
        ({10**5000: 1}, "neither text nor numbers"),
    ],
)
def test_structures_that_cannot_be_named_are_refused(tmp_path: Path, value: object, words: str) -> None:
    assert words in refused(archive(tmp_path / "x.pt", pickle.dumps(value, protocol=2)))


def test_a_file_that_names_itself_over_and_over_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "_MOST", 20_000)
    path = archive(tmp_path / "x.pt", pickle.dumps(laughs(10), protocol=2))
    assert path.stat().st_size < 2_000
    assert "more than 20000 entries" in refused(path)


def test_numbers_that_are_too_long_to_write_are_no_trouble(tmp_path: Path) -> None:
    one = archive(tmp_path / "1.pt", pickle.dumps({"a": 10**5000}, protocol=2))
    two = archive(tmp_path / "2.pt", pickle.dumps({"a": 10**5000 + 1}, protocol=2))
    with opened(one) as first, opened(two) as second:
        (found,) = compare(first, second, Rules()).differences
    assert found.values == ("a very large number",) * 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b".",
        b"\x80\x02}",
        b"\x80\x02}}.",
        b"\x80\x02h\x05.",
        b"\x80\x02r\xff\xff\xff\xff.",
        b"\x80\x02}r\xff\xff\xff\xffX\xff\xff\xff\x7f.",
        b"\x80\x02t.",
        b"\x80\x02(}s.",
        b"\x80\x02](K\x01u.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
        b"\x80\x02(\x86.",
    ],
)
def test_damaged_pickles_are_refused(tmp_path: Path, data: bytes) -> None:
    refused(archive(tmp_path / "x.pt", data))


def test_archives_that_torch_does_not_write_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", b"\x80\x02}." + b"\0" * 1000)
    assert "compressed" in refused(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", b"\x80\x02}.")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("x/data.pkl", b"\x80\x02].")
    assert "two parts of one name" in refused(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("other", b"")
    assert "not one of torch.save" in refused(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", b"\x80\x02}.")
        file.writestr("x/constants.pkl", b"\x80\x02}.")
    assert "TorchScript" in refused(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", b"\x80\x02}.")
        file.writestr("x/byteorder", "big")
    assert "big-endian" in refused(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", rebuilt(0, "K\x04\x85", "K\x01\x85"))
    assert "lacks its part 'data/0'" in refused(path)


def test_a_part_that_says_it_is_larger_than_the_file_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.pt", rebuilt(0, "J\xff\xff\xff\x7f\x85", "K\x01\x85"))
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 20 : entry + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    path.write_bytes(data)
    refused(path)


def header(entries: object) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack("<4f", 1, 2, 3, 4)


def entry(**changes: object) -> dict[str, object]:
    return {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}}


@pytest.mark.parametrize(
    "data",
    [
        header(entry(data_offsets=[0, 17])),
        header(entry(data_offsets=[4, 20])),
        header(entry(data_offsets=[-16, 0])),
        header(entry(data_offsets=[16, 0])),
        header(entry(data_offsets=[0])),
        header(entry(data_offsets=None)),
        header(entry(shape=[-4])),
        header(entry(shape=[1 << 62, 1 << 62])),
        header(entry(shape=[2] * 100)),
        header(entry(shape="4")),
        header(entry(shape=[True])),
        header(entry(dtype="F33")),
        header(entry(dtype=["F32"])),
        header({"a": []}),
        header(b'{"a": ' + b"[" * 100_000),
        header(b'{"a": 1, "a": 2}'),
        header(b"{\xff}"),
        header(b"{}")[:9],
        struct.pack("<Q", 1 << 63) + b"{}",
        struct.pack("<Q", 0) + b"{}",
    ],
)
def test_damaged_safetensors_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    refused(path)


def test_safetensors_as_they_should_be_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for metadata in ({}, {"buffer_names": "[1, {}]"}, {"buffer_names": "nonsense"}):
        path.write_bytes(header({**entry(), "__metadata__": metadata}))
        read(path)


@pytest.mark.parametrize("data", [b"", b"\x80\x02}.", b"text", b"\x7fELF" + bytes(100)])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    refused(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent.pt")
    assert "Is a directory" in refused(tmp_path)


@pytest.mark.parametrize("name", ["model.pt", "training-protocol-4.pt", "tensors.safetensors"])
def test_files_that_were_cut_off_or_changed_anywhere_are_read_or_refused(tmp_path: Path, name: str) -> None:
    whole = (CASES / name).read_bytes()
    chance = random.Random(20)  # noqa: S311  (no secret: the same damage each time)
    path = tmp_path / name
    refusals = 0
    for number in range(400):
        data = bytearray(whole)
        if number % 4 == 0:
            del data[chance.randrange(len(data)) :]
        for _ in range(chance.randrange(1, 6)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            read(path)
        except Incomparable:
            refusals += 1
    assert refusals > 40


def test_python_would_have_read_what_is_read_here_the_same() -> None:
    """Plain data gives what Python's own unpickler gives, for whatever it writes."""
    value: dict[str, object] = {
        "a": [1, -1, 1 << 40, 1 << 100, 1.5, None, True],
        "b": ({"c": "é\n"}, b"\x00\xff"),
        "d": [[], {}, ()],
    }
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps(value, protocol=protocol)
        assert machine.run(data, machine.CALLS, (), lambda _: None) == pickle.load(io.BytesIO(data))  # noqa: S301
