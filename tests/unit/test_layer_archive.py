from __future__ import annotations

import gzip
import io
import tarfile
import zlib

import pytest

from imagebuilder.layers import archive
from tests.support.wheels import dice, read_tar


@pytest.mark.parametrize("size", [0, 1, 65534, 65535, 65536, 200_000])
def test_stored_blocks_are_deflate(size: int) -> None:
    data = dice(size).randbytes(size)
    assert zlib.decompress(archive.stored_blocks(data, last=True), -15) == data


def test_members_one_after_the_other_are_one_stream() -> None:
    members = [archive.packed_member(data) for data in (b"ab", b"", b"c")]
    assert gzip.decompress(b"".join(members)) == b"abc"


@pytest.mark.parametrize(
    "path",
    [
        "short",
        "x" * 100,
        "x" * 101,
        "d" * 155 + "/" + "f" * 100,
        "d" * 156 + "/" + "f" * 100,
        "d/" * 130 + "f",
        "d" * 90 + "/" + "e" * 120,
        "größe/ü",
        "ü" * 100,
    ],
)
def test_paths_of_every_length(path: str) -> None:
    headers = (
        archive.directory(path, 0o755),
        archive.regular(f"{path}2", 0o640, 0),
        archive.symlink(f"{path}3", path),
    )
    found = read_tar(b"".join(headers) + archive.TAR_END)
    assert list(found) == [path, f"{path}2", f"{path}3"]
    assert found[path].mode == 0o755
    assert found[f"{path}2"].mode == 0o640
    assert found[f"{path}3"].data == path.encode()


@pytest.mark.parametrize("size", [0o77777777777, 0o77777777777 + 1, 50 << 30])
def test_sizes_beyond_octal(size: int) -> None:
    header = archive.regular("big", 0o644, size)
    info = tarfile.TarInfo.frombuf(header[-512:], "utf-8", "strict")
    with tarfile.open(fileobj=io.BytesIO(header)) as tar:
        # A tar cut off after its header: the size is known before the content is missed.
        first = tar.next()
    assert first is not None
    assert first.size == size
    assert info.size == (size if size < 8**11 else 0)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("a/b.c", ""),
        ("größe", ""),
        ("/a", "absolute"),
        ("a/../b", "`..`"),
        ("a\\b", "backslash"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("a\udc80", "half a surrogate pair"),
        ("", "has an empty part"),
        ("a/", "has an empty part"),
        ("./a", "has an empty part"),
        ("a/.wh..wh..opq", ".wh."),
        ("ü" * 128, "too long"),
        ("a/" * 2047 + "aa", "too long"),
    ],
)
def test_paths_that_may_not_be(path: str, problem: str) -> None:
    found = archive.path_problem(path)
    assert problem in found
    assert bool(found) == bool(problem)


def test_tars_of_both_releases_of_gnu_tar_become_the_same() -> None:
    def written(device: bytes) -> io.BytesIO:
        """Write a tar with these device numbers, as one release of GNU tar does."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in ("./plain", "./" + "long" * 60, "./last"):
                info = tarfile.TarInfo(path)
                info.size = 700
                tar.addfile(info, io.BytesIO(b"x" * 700))
        with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as tar:
            places = [member.offset_data - 512 for member in tar]
        data = bytearray(buffer.getvalue())
        for place in places:
            header = data[place : place + 512]
            header[329:345] = device
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
            data[place : place + 512] = header
        return io.BytesIO(bytes(data))

    older, newer = written(b"0000000\0" * 2), written(bytes(16))
    before = older.getvalue()
    assert newer.getvalue() != before
    for file in (older, newer):
        archive.settle_headers(file)
        assert file.getvalue() == before
        assert file.tell() == 0
    with tarfile.open(fileobj=newer) as tar:
        assert [len(member.name) for member in tar] == [7, 242, 6]


def test_numbers_of_devices_stay() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("dev/tty")
        info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 5, 0
        tar.addfile(info)
    before = buffer.getvalue()
    buffer.seek(0)
    archive.settle_headers(buffer)
    assert buffer.getvalue() == before
