import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from imagebuilder.errors import FetchError
from imagebuilder.host import http
from imagebuilder.host.site import Site
from imagebuilder.resolve import wheelfile
from imagebuilder.resolve.uv import File, Target
from tests.support.fileserver import FileServer, serving
from tests.support.wheelfolder import put

NAME = "demo-1.0-py3-none-any.whl"
TARGET = Target(python="3.13", glibc="2.41", architecture="amd64", site=Site())


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_RETRY_PAUSE", 0.001)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    wheel = put(tmp_path, "demo", "1.0", ["other==1.2"], content=bytes(range(256)) * 1000)
    with serving() as state:
        state.files[f"/{NAME}"] = wheel.read_bytes()
        yield state


def file(server: FileServer, sha256: str = "", size: int = -1) -> File:
    return File(name=NAME, url=f"{server.url}/{NAME}", sha256=sha256, size=size)


def test_what_the_index_told_is_not_asked_again(server: FileServer) -> None:
    known = file(server, sha256="a" * 64, size=5)
    assert wheelfile.measure(known, Site().session()) is known
    assert server.seen == []


def test_a_missing_size_is_asked_for_without_the_file(server: FileServer) -> None:
    found = wheelfile.measure(file(server, sha256="a" * 64), Site().session())
    assert found.size == len(server.files[f"/{NAME}"])
    assert [method for method, _, _ in server.seen] == ["HEAD"]


def test_a_server_that_answers_no_head_is_asked_for_one_byte(server: FileServer) -> None:
    server.refusals[f"/{NAME}"] = [405]
    found = wheelfile.measure(file(server, sha256="a" * 64), Site().session())
    assert found.size == len(server.files[f"/{NAME}"])
    assert server.asked("Range") == ["", "bytes=0-0"]


def test_a_missing_hash_is_computed(server: FileServer) -> None:
    content = server.files[f"/{NAME}"]
    found = wheelfile.measure(file(server), Site().session())
    assert (found.sha256, found.size) == (hashlib.sha256(content).hexdigest(), len(content))


def test_a_file_that_is_gone_is_named(server: FileServer) -> None:
    server.files.clear()
    with pytest.raises(FetchError, match=r"demo-1\.0-py3-none-any\.whl cannot be fetched: 404"):
        wheelfile.measure(file(server, sha256="a" * 64), Site().session())


def test_metadata_beside_the_file_is_enough(server: FileServer) -> None:
    server.files[f"/{NAME}.metadata"] = (
        b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Dist: beside\n"
    )
    assert wheelfile.requires(file(server), Site().session()) == (Requirement("beside"),)
    assert [path for _, path, _ in server.seen] == [f"/{NAME}.metadata"]


def test_metadata_is_read_out_of_a_remote_wheel_by_parts(server: FileServer) -> None:
    assert wheelfile.requires(file(server), Site().session()) == (Requirement("other==1.2"),)
    content = len(server.files[f"/{NAME}"])
    parts = [value.removeprefix("bytes=").split("-") for value in server.asked("Range") if value]
    assert 0 < sum(int(last) - int(first) + 1 for first, last in parts) < content / 2


def test_a_server_without_parts_is_said_so(server: FileServer) -> None:
    server.ranges = False
    with pytest.raises(FetchError, match="the server does not give parts of a file"):
        wheelfile.requires(file(server), Site().session())


def test_metadata_of_a_local_wheel_is_read_in_place(tmp_path: Path) -> None:
    wheel = put(tmp_path, "local", "1.0", ["a>=1", "b; python_version < '3'"])
    found = wheelfile.requires(
        File(name=wheel.name, url=wheel.as_uri(), sha256="", size=-1), Site().session()
    )
    assert [item.name for item in found] == ["a", "b"]


def test_what_is_no_wheel_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken-1.0-py3-none-any.whl"
    broken.write_bytes(b"not a zip")
    with pytest.raises(FetchError, match=r"the metadata of broken-1\.0-py3-none-any\.whl cannot be read"):
        wheelfile.requires(File(name=broken.name, url=broken.as_uri(), sha256="", size=-1), Site().session())


@pytest.mark.parametrize(
    ("requirements", "found"),
    [
        (["nccl==1; sys_platform == 'linux'", "nccl==2; sys_platform == 'win32'"], ["==1"]),
        (["nccl==1; python_version < '3.10'", "nccl==2; python_version >= '3.10'"], ["==2"]),
        (["nccl==1; platform_machine == 'aarch64'"], []),
        (["nccl==1; extra == 'cuda'", "nccl==2; extra == 'cuda' and sys_platform == 'win32'"], ["==1"]),
        (["NCCL==1", "other==2"], ["==1"]),
    ],
)
def test_only_what_counts_on_the_target_is_demanded(requirements: list[str], found: list[str]) -> None:
    demands = wheelfile.demands([Requirement(text) for text in requirements], "nccl", TARGET)
    assert [str(demand.specifier) for demand in demands] == found
