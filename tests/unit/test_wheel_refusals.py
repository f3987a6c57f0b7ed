"""Wheels that must not be spliced: each is refused with its reason, and nothing of it stays in the store."""

from __future__ import annotations

import io
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import pytest

from imagebuilder.core.progress import no_advance
from imagebuilder.errors import BuildError, StoreError
from imagebuilder.layers.wheels.collisions import check_collisions
from imagebuilder.layers.wheels.layer import build_wheel_layer
from imagebuilder.plan import WheelLayer
from imagebuilder.store import DamagedDownloadError, Store
from tests.support.wheels import File, encoded, locked, make_wheel, splice, standard, write_zip

NAME = "demo-1.0-py3-none-any.whl"
TARGET = "demo/victim.py"
CONTENT = b"value = 1\n" * 50


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def refused(path: Path, store: Store, message: str, member: str = "") -> None:
    with pytest.raises(BuildError) as caught:
        splice([path], store)
    text = str(caught.value)
    assert message in text
    assert NAME in text
    assert member in text
    assert not list(store.root.glob("blobs/sha256/*"))
    assert not list(store.root.glob("work/*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/etc/passwd", "is an absolute path"),
        ("../../bin/sh", "leads out of its folder"),
        ("demo/../../x", "leads out of its folder"),
        ("demo\\x.py", "has a backslash"),
        ("demo/\x1b[31m.py", "has a control character"),
        ("demo//x.py", "has an empty part or `.` in its path"),
        ("./x.py", "has an empty part or `.` in its path"),
        ("demo/.wh.x.py", "would delete files"),
        ("demo/" + "x" * 256, "has too long a path"),
        ("demo-1.0.data/nowhere/x", "is for an unknown place"),
        ("demo-1.0.data/data/pyvenv.cfg", "would replace a part of the venv"),
        ("demo-1.0.data/scripts/python3", "would replace a part of the venv"),
        ("demo-1.0.data/purelib/demo/victim.py", "would be written twice"),
        ("demo/victim.py/x", "a file in the first only"),
        ("demo-1.0.data/data/bin/python/x", "would replace a part of the venv"),
        ("demo-1.0.data/data/pyvenv.cfg/x", "would replace a part of the venv"),
        ("demo-1.0.data/data/lib64", "would replace a part of the venv"),
        ("demo-1.0.data/data/bin", "would replace a part of the venv"),
        ("demo-1.0.data/data/lib", "would replace a part of the venv"),
        ("demo-1.0.data/data/lib/python3.13/site-packages", "would replace a part of the venv"),
        ("demo-1.0.data/purelib/other-1.0.dist-info/METADATA", "would be written into `other-1.0.dist-info`"),
        ("demo-1.0.data/purelib/demo-1.0.dist-info/REQUESTED", "would be written into `demo-1.0.dist-info`"),
    ],
)
def test_paths(tmp_path: Path, store: Store, name: str, message: str) -> None:
    refused(make_wheel(tmp_path, {TARGET: CONTENT, name: b"x"}), store, message)


def test_a_name_with_nul(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {"demo/aXb.py": b"x"})
    path.write_bytes(path.read_bytes().replace(b"demo/aXb.py", b"demo/a\0b.py"))
    refused(path, store, "has a control character", "demo/a\\x00b.py")


@pytest.mark.parametrize(
    ("mode", "message"),
    [(stat.S_IFLNK | 0o777, "is a symbolic link"), (stat.S_IFIFO | 0o644, "is a special file")],
)
def test_other_than_files(tmp_path: Path, store: Store, mode: int, message: str) -> None:
    refused(make_wheel(tmp_path, {TARGET: File(data=b"/etc/passwd", mode=mode)}), store, message, TARGET)


def test_a_folder_with_content(tmp_path: Path, store: Store) -> None:
    folder = File(data=b"x", mode=stat.S_IFDIR | 0o755)
    refused(make_wheel(tmp_path, {"demo/": folder}), store, "is a folder with content")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(tmp_path: Path, store: Store, method: int) -> None:
    path = make_wheel(tmp_path, {TARGET: File(data=CONTENT, method=method)})
    refused(path, store, f"is compressed by method {method}", TARGET)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicates(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(TARGET, b"other")
    refused(path, store, "occurs twice", TARGET)


# What a member's two headers say, and what its data is, changed one at a time.


def directory_entry(data: bytes) -> int:
    return data.index(b"PK\x01\x02", data.rindex(b"PK\x03\x04"))


def patched(
    tmp_path: Path,
    *,
    central: Callable[[bytearray, int], None] | None = None,
    local: Callable[[bytearray, int], None] | None = None,
) -> Path:
    """Make a wheel whose first member is TARGET, and change its headers."""
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    data = bytearray(path.read_bytes())
    if local:
        local(data, 0)
    if central:
        central(data, directory_entry(bytes(data)))
    path.write_bytes(data)
    return path


def put(offset: int, layout: str, value: int) -> Callable[[bytearray, int], None]:
    return lambda data, start: struct.pack_into(layout, data, start + offset, value)


def test_encrypted(tmp_path: Path, store: Store) -> None:
    refused(patched(tmp_path, central=put(8, "<H", 1)), store, "is encrypted", TARGET)


def test_encrypted_by_its_own_header(tmp_path: Path, store: Store) -> None:
    refused(patched(tmp_path, local=put(6, "<H", 1)), store, "is compressed in another way", TARGET)


def test_another_method_in_its_own_header(tmp_path: Path, store: Store) -> None:
    refused(patched(tmp_path, local=put(8, "<H", 0)), store, "is compressed in another way", TARGET)


def test_another_name_in_its_own_header(tmp_path: Path, store: Store) -> None:
    refused(
        patched(tmp_path, local=put(30, "<B", ord("X"))), store, "has another name in its own header", "Xemo/"
    )


def test_another_size_in_its_own_header(tmp_path: Path, store: Store) -> None:
    refused(
        patched(tmp_path, local=put(22, "<I", 7)), store, "has another size or CRC in its own header", TARGET
    )


def test_an_offset_to_nowhere(tmp_path: Path, store: Store) -> None:
    refused(patched(tmp_path, central=put(42, "<I", 3)), store, "is not where the zip directory says", TARGET)


def both(offset: int, layout: str, value: int) -> dict[str, Callable[[bytearray, int], None]]:
    """Change a field in both headers; its offset in the directory is two more than in the member's own."""
    return {"local": put(offset, layout, value), "central": put(offset + 2, layout, value)}


def test_another_crc(tmp_path: Path, store: Store) -> None:
    refused(patched(tmp_path, **both(14, "<I", 1)), store, "has another CRC", TARGET)


def test_less_than_announced(tmp_path: Path, store: Store) -> None:
    path = patched(tmp_path, **both(22, "<I", len(CONTENT) + 1))
    data = path.read_bytes().replace(f",{len(CONTENT)}\n".encode(), f",{len(CONTENT) + 1}\n".encode())
    path.write_bytes(data)
    with pytest.raises(BuildError, match=r"according to RECORD|unpacks to 500 bytes, not 501"):
        splice([path], store)


def broken(tmp_path: Path, packed: bytes, *, size: int = len(CONTENT), data: bytes = CONTENT) -> Path:
    """Make a wheel with a member whose data is given as it stands in the zip."""
    path = tmp_path / NAME
    files = standard("demo", "1.0", {TARGET: data})
    rest = {name: file for name, file in files.items() if name != TARGET}
    rest["demo-1.0.dist-info/RECORD"] = f"{TARGET},sha256={encoded(data)},\n".encode()
    write_zip(path, {TARGET: File(data=packed, method=zipfile.ZIP_STORED), **rest})
    raw = bytearray(path.read_bytes())
    for start, shift in ((0, 0), (directory_entry(bytes(raw)), 2)):
        struct.pack_into("<H", raw, start + shift + 8, zipfile.ZIP_DEFLATED)
        struct.pack_into("<I", raw, start + shift + 14, zlib.crc32(data))
        struct.pack_into("<I", raw, start + shift + 22, size)
    path.write_bytes(raw)
    return path


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def test_the_way_these_members_are_made_is_sound(tmp_path: Path, store: Store) -> None:
    assert splice([broken(tmp_path, deflated(CONTENT))], store).unpacked > len(CONTENT)


def test_size_below_the_truth_stops_at_it(tmp_path: Path, store: Store) -> None:
    bomb = deflated(bytes(50_000_000))
    refused(
        broken(tmp_path, bomb, data=bytes(1000), size=1000),
        store,
        "unpacks to more than 1000 bytes",
        TARGET,
    )


def test_size_above_the_truth(tmp_path: Path, store: Store) -> None:
    path = broken(tmp_path, deflated(CONTENT), size=len(CONTENT) + 9)
    refused(path, store, f"unpacks to {len(CONTENT)} bytes, not {len(CONTENT) + 9}", TARGET)


def test_bytes_after_the_end(tmp_path: Path, store: Store) -> None:
    refused(broken(tmp_path, deflated(CONTENT) + b"more"), store, "has bytes after the end", TARGET)


def test_data_that_does_not_end(tmp_path: Path, store: Store) -> None:
    refused(broken(tmp_path, deflated(CONTENT)[:-3]), store, "does not end", TARGET)


def test_data_that_is_not_deflate(tmp_path: Path, store: Store) -> None:
    refused(broken(tmp_path, b"\xff" * 64), store, "does not unpack", TARGET)


def test_overlapping_members(tmp_path: Path, store: Store) -> None:
    path = patched(tmp_path, **both(18, "<I", 400))
    refused(path, store, "overlaps what follows it", TARGET)


# What the metadata says.


def test_another_hash_in_record(tmp_path: Path, store: Store) -> None:
    files = standard("demo", "1.0", {TARGET: CONTENT})
    record = files["demo-1.0.dist-info/RECORD"]
    assert isinstance(record, bytes)
    files["demo-1.0.dist-info/RECORD"] = record.replace(encoded(CONTENT).encode(), encoded(b"other").encode())
    refused(write_zip(tmp_path / NAME, files), store, "has another sha256 than in the wheel's RECORD", TARGET)


def test_another_size_in_record(tmp_path: Path, store: Store) -> None:
    files = standard("demo", "1.0", {TARGET: CONTENT})
    record = files["demo-1.0.dist-info/RECORD"]
    assert isinstance(record, bytes)
    files["demo-1.0.dist-info/RECORD"] = record.replace(b",500\n", b",501\n")
    refused(write_zip(tmp_path / NAME, files), store, "has 500 bytes, but 501 according to RECORD", TARGET)


@pytest.mark.parametrize("missing", ["WHEEL", "METADATA", "RECORD"])
def test_missing_metadata(tmp_path: Path, store: Store, missing: str) -> None:
    files = standard("demo", "1.0", {TARGET: CONTENT})
    del files[f"demo-1.0.dist-info/{missing}"]
    refused(write_zip(tmp_path / NAME, files), store, "is missing", f"demo-1.0.dist-info/{missing}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"Wheel-Version: 2.0\nRoot-Is-Purelib: true\n", "has wheel format 2.0; this version knows 1.x"),
        (b"Root-Is-Purelib: true\n", "has no valid Wheel-Version"),
        (b"Wheel-Version: 1.0\n", "has no valid Root-Is-Purelib"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_wheel_versions(tmp_path: Path, store: Store, text: bytes, message: str) -> None:
    files = {**standard("demo", "1.0", {}), "demo-1.0.dist-info/WHEEL": text}
    refused(write_zip(tmp_path / NAME, files), store, message)


def test_no_dist_info(tmp_path: Path, store: Store) -> None:
    refused(write_zip(tmp_path / NAME, {TARGET: CONTENT}), store, "has no .dist-info folder")


def test_several_dist_infos(tmp_path: Path, store: Store) -> None:
    refused(
        make_wheel(tmp_path, {"other-1.0.dist-info/METADATA": b""}), store, "has several .dist-info folders"
    )


def test_a_second_dist_info_in_other_letters(tmp_path: Path, store: Store) -> None:
    refused(make_wheel(tmp_path, {"other-1.0.DIST-INFO/x": b""}), store, "has several .dist-info folders")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (b"Name: other\nVersion: 1.0\n", "names other 1.0, but the file name says demo 1.0"),
        (b"Name: demo\nVersion: 2.0\n", "names demo 2.0, but the file name says demo 1.0"),
        (b"Name: demo\nVersion: soon\n", "names demo soon, but the file name says demo 1.0"),
        (b"Name: demo\nName: other\nVersion: 1.0\n", "needs exactly one Name and one Version"),
        (b"Name: demo\n", "needs exactly one Name and one Version"),
    ],
)
def test_metadata_of_another(tmp_path: Path, store: Store, metadata: bytes, message: str) -> None:
    files = {**standard("demo", "1.0", {}), "demo-1.0.dist-info/METADATA": metadata}
    refused(write_zip(tmp_path / NAME, files), store, message, "demo-1.0.dist-info/METADATA")


def test_a_metadata_folder_of_another_version(tmp_path: Path, store: Store) -> None:
    files = standard("demo", "2.0", {})
    files["demo-2.0.dist-info/METADATA"] = b"Name: demo\nVersion: 1.0\n"
    refused(write_zip(tmp_path / NAME, files), store, "names demo 2.0, but the file name says demo 1.0")


def test_two_hashes_of_one_file_in_record(tmp_path: Path, store: Store) -> None:
    files = standard("demo", "1.0", {TARGET: CONTENT})
    own = files["demo-1.0.dist-info/RECORD"]
    assert isinstance(own, bytes)
    files["demo-1.0.dist-info/RECORD"] = own + f"{TARGET},sha256={encoded(b'x')},\n".encode()
    refused(write_zip(tmp_path / NAME, files), store, "has two different hashes in RECORD", TARGET)


@pytest.mark.parametrize(
    ("name", "size"), [("WHEEL", 1 << 20), ("entry_points.txt", 1 << 20), ("RECORD", 16 << 20)]
)
def test_metadata_that_is_far_too_large(tmp_path: Path, store: Store, name: str, size: int) -> None:
    files = {**standard("demo", "1.0", {}), f"demo-1.0.dist-info/{name}": b"\n" * (size + 1)}
    refused(write_zip(tmp_path / NAME, files), store, f"is too large: {size + 1} bytes", name)


def test_the_dist_info_of_another(tmp_path: Path, store: Store) -> None:
    path = write_zip(tmp_path / NAME, standard("other", "1.0", {}))
    refused(path, store, "belongs to another distribution, not to demo")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[console_scripts]\nrun = demo\n", "has a command without a function"),
        (b"[console_scripts]\n../run = demo:main\n", "is not a name for a command"),
        (b"run = demo:main\n", "cannot be read"),
    ],
)
def test_entry_points(tmp_path: Path, store: Store, text: bytes, message: str) -> None:
    refused(make_wheel(tmp_path, {"demo-1.0.dist-info/entry_points.txt": text}), store, message)


# The file itself.


@pytest.mark.parametrize("data", [b"", b"not a zip file at all", b"PK\x05\x06" + bytes(10)])
def test_no_zip_file(tmp_path: Path, store: Store, data: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(data)
    refused(path, store, "is not a zip file")


def end_of(data: bytes | bytearray) -> int:
    return len(data) - 22


def test_a_directory_size_that_hides_behind_its_own_counts(tmp_path: Path, store: Store) -> None:
    """The number of files spells the record's signature: searched from the end, it is found first."""
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    data = bytearray(path.read_bytes())
    end = end_of(data)
    data[end + 8 : end + 12] = b"PK\x05\x06"
    struct.pack_into("<I", data, end + 12, (32 << 20) + 1)
    path.write_bytes(data)
    refused(path, store, "two readers may see different files")


def lengthened(path: Path, place: int, more: bytes) -> Path:
    """Put bytes into a wheel, and mend all offsets after them."""
    data = path.read_bytes()
    directory = struct.unpack_from("<I", data, end_of(data) + 16)[0]
    new = bytearray(data[:place] + more + data[place:])
    at = directory + len(more)
    struct.pack_into("<I", new, end_of(new) + 16, at)
    while new[at : at + 4] == b"PK\x01\x02":
        offset = struct.unpack_from("<I", new, at + 42)[0]
        struct.pack_into("<I", new, at + 42, offset + len(more) if offset >= place else offset)
        at += 46 + sum(struct.unpack_from("<HHH", new, at + 28))
    path.write_bytes(new)
    return path


def second_member(path: Path) -> int:
    return path.read_bytes().index(b"PK\x03\x04", 4)


def test_bytes_before_the_first_file(tmp_path: Path, store: Store) -> None:
    path = lengthened(make_wheel(tmp_path, {TARGET: CONTENT}), 0, b"#!/bin/sh\n")
    refused(path, store, "has 10 bytes before its first file: two readers may see different files")


def test_a_program_in_front_of_the_whole_file(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    refused(path, store, "has a comment, several parts, or other bytes beside its directory")


def test_bytes_between_files(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    other = make_wheel(tmp_path / "..", {"demo/hidden.py": b"x"}).read_bytes()
    hidden = other[: other.index(b"PK\x03\x04", 4)]
    refused(
        lengthened(path, second_member(path), hidden),
        store,
        f"is followed by {len(hidden)} bytes that belong to no file",
        TARGET,
    )


def test_bytes_between_the_last_file_and_the_directory(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    data = path.read_bytes()
    lengthened(path, struct.unpack_from("<I", data, end_of(data) + 16)[0], b"abc")
    refused(path, store, "is followed by 3 bytes that belong to no file", "RECORD")


@pytest.mark.parametrize("more", [b"x", b"PK\x05\x06" + bytes(18)])
def test_bytes_after_the_end_of_the_file(tmp_path: Path, store: Store, more: bytes) -> None:
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    path.write_bytes(path.read_bytes() + more)
    refused(
        path,
        store,
        "is not a zip file"
        if len(more) == 1
        else "has a comment, several parts, or other bytes beside its directory",
    )


def test_a_comment(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"x" * 30
    refused(path, store, "is not a zip file")


def test_a_number_of_files_that_is_wrong(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    data = bytearray(path.read_bytes())
    struct.pack_into("<HH", data, end_of(data) + 8, 3, 3)
    path.write_bytes(data)
    refused(path, store, "lists 4 files")


class Unseekable(io.RawIOBase):
    """A pipe: zipfile then writes sizes after the data."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(data)


def streamed(tmp_path: Path) -> Path:
    out = Unseekable()
    with zipfile.ZipFile(cast("IO[bytes]", out), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in standard("demo", "1.0", {TARGET: CONTENT}).items():
            assert isinstance(data, bytes)
            archive.writestr(name, data)
    (tmp_path / NAME).write_bytes(out.data)
    return tmp_path / NAME


def test_sizes_that_follow_the_data(tmp_path: Path, store: Store) -> None:
    path = streamed(tmp_path)
    assert splice([path], store).unpacked > len(CONTENT)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.index(b"PK\x07\x08") + 12, 501)
    path.write_bytes(data)
    refused(path, Store(tmp_path / "other"), "is not followed by its own size and CRC alone", TARGET)


def with_extra(tmp_path: Path, extra: bytes, *, central: bool) -> Path:
    path = tmp_path / NAME
    files = standard("demo", "1.0", {TARGET: CONTENT})
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            assert isinstance(data, bytes)
            info = zipfile.ZipInfo(name)
            if name == TARGET:
                info.extra = extra
            archive.writestr(info, data)
            if not central:
                info.extra = b""
    return path


@pytest.mark.parametrize("central", [False, True])
def test_another_name_in_an_extra_field(tmp_path: Path, store: Store, *, central: bool) -> None:
    name = b"demo/other.py"
    field = struct.pack("<BI", 1, zlib.crc32(TARGET.encode())) + name
    extra = struct.pack("<HH", 0x7075, len(field)) + field
    path = with_extra(tmp_path, extra, central=central)
    refused(path, store, "has another name in an extra field (Unicode Path)", TARGET)


@pytest.mark.parametrize("which", ["local", "central"])
def test_a_name_in_utf8_in_one_header_only(tmp_path: Path, store: Store, which: str) -> None:
    path = make_wheel(tmp_path, {"demo/\u00e9.py": CONTENT})
    data = bytearray(path.read_bytes())
    flags = 7 if which == "local" else directory_entry(bytes(data)) + 9
    assert data[flags] == 8
    data[flags] = 0
    path.write_bytes(data)
    refused(path, store, "has a name in UTF-8 in one of its headers only")


def test_other_sizes_in_the_extra_field_of_its_own_header(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {TARGET: File(data=CONTENT, zip64=True)})
    splice([path], Store(tmp_path / "other"))
    data = bytearray(path.read_bytes())
    place = data.index(struct.pack("<HHQ", 1, 16, len(CONTENT)))
    struct.pack_into("<Q", data, place + 4, len(CONTENT) + 1)
    path.write_bytes(data)
    refused(path, store, "has another size or CRC in its own header", TARGET)


def crc_twin(data: bytes, wanted: int) -> bytes:
    """Change the last four bytes of some data so that its CRC-32 is another one's."""
    # CRC-32 is linear: each bit of those bytes flips certain bits of it, and 32 of them can be solved for.
    head = data[:-4]
    base = zlib.crc32(head + bytes(4))
    rows = [(zlib.crc32(head + (1 << bit).to_bytes(4, "little")) ^ base, 1 << bit) for bit in range(32)]
    target, solution = base ^ wanted, 0
    for bit in range(32):
        pivot = next(index for index, (value, _) in enumerate(rows) if value >> bit & 1)
        value, made_of = rows.pop(pivot)
        rows = [(v ^ value, m ^ made_of) if v >> bit & 1 else (v, m) for v, m in rows]
        if target >> bit & 1:
            target, solution = target ^ value, solution ^ made_of
    return head + solution.to_bytes(4, "little")


def test_two_files_of_one_path_with_one_size_and_crc(tmp_path: Path, store: Store) -> None:
    evil = crc_twin(b"value = 6\n" * 50, zlib.crc32(CONTENT))
    assert (len(evil), zlib.crc32(evil)) == (len(CONTENT), zlib.crc32(CONTENT))
    assert evil != CONTENT
    one = make_wheel(tmp_path, {"shared/x.py": CONTENT})
    two = make_wheel(tmp_path, {"shared/x.py": evil}, name="other")
    with pytest.raises(BuildError, match=r"both write .*shared/x.py., with different content"):
        splice([one, two], store)
    with pytest.raises(BuildError, match=r"both write .*shared/x.py., with different content"):
        check_collisions({one.name: one, two.name: two})


def test_a_record_that_lies_about_a_file_that_another_wheel_writes_too(tmp_path: Path, store: Store) -> None:
    """Of the earlier wheel that file is not unpacked, so only a look at what it holds tells."""
    files = standard("demo", "1.0", {"shared/x.py": b"other = 1\n" * 50})
    own = files["demo-1.0.dist-info/RECORD"]
    assert isinstance(own, bytes)
    lie = own.replace(encoded(b"other = 1\n" * 50).encode(), encoded(CONTENT).encode())
    one = write_zip(tmp_path / NAME, {**files, "demo-1.0.dist-info/RECORD": lie})
    two = make_wheel(tmp_path, {"shared/x.py": CONTENT}, name="other")
    with pytest.raises(BuildError, match="with different content"):
        splice([one, two], store)


def test_other_bytes_than_the_locked_ones(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    wheel = locked(path)
    layer = WheelLayer(component="python", wheels=(wheel,), python="3.13")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(DamagedDownloadError, match=f"is not the locked file.*{wheel.sha256}"):
        build_wheel_layer(layer, {wheel.sha256: path}, store, no_advance)


def test_a_file_that_is_not_there(tmp_path: Path, store: Store) -> None:
    path = make_wheel(tmp_path, {TARGET: CONTENT})
    wheel = locked(path)
    layer = WheelLayer(component="python", wheels=(wheel,), python="3.13")
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        build_wheel_layer(layer, {wheel.sha256: tmp_path / "absent"}, store, no_advance)


CASES = Path(__file__).resolve().parents[1] / "cases" / "hostile" / "wheel"


@pytest.mark.parametrize("case", sorted(CASES.iterdir()), ids=lambda path: path.stem)
def test_hostile_wheels_that_were_kept(tmp_path: Path, store: Store, case: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(case.read_bytes())
    refused(path, store, "")


# What is left of a layer that was not finished.


def test_a_refusal_in_the_middle_ends_its_threads(tmp_path: Path, store: Store) -> None:
    before = threading.active_count()
    later = {
        f"demo/z{number}.bin": File(data=bytes(2_000_000), method=zipfile.ZIP_STORED) for number in range(20)
    }
    path = make_wheel(tmp_path, {TARGET: CONTENT, **later})
    path.write_bytes(path.read_bytes().replace(bytes(1000), bytes(999) + b"!", 1))
    refused(path, store, "has another CRC")
    assert threading.active_count() == before


def test_a_build_that_is_cancelled_leaves_nothing(tmp_path: Path, store: Store) -> None:
    def cancel(_count: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    data = File(data=bytes(5_000_000), method=zipfile.ZIP_STORED)
    with pytest.raises(KeyboardInterrupt):
        splice([make_wheel(tmp_path, {TARGET: data})], store, cancel)
    assert threading.active_count() == before
    assert not list(store.root.glob("blobs/sha256/*"))
    assert not list(store.root.glob("work/*"))
