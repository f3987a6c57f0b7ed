import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.errors import FetchError
from imagebuilder.fetch import download
from imagebuilder.fetch.download import Download, fetch
from imagebuilder.host import http
from imagebuilder.host.site import Site
from imagebuilder.store import Store
from tests.support.fileserver import FileServer, serving

CONTENT = bytes(range(256)) * 20_000  # 5 MB: several pieces


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSE", 0.001)
    monkeypatch.setattr(http, "_RETRY_PAUSE", 0.001)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as state:
        yield state


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


class Told:
    """What the callbacks were told."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.finished: list[str] = []

    def advance(self, sha256: str, count: int) -> None:
        self.bytes[sha256] += count


def one(*urls: str, content: bytes = CONTENT, name: str = "big.whl") -> Download:
    return Download(name=name, urls=urls, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def get(store: Store, *downloads: Download, site: Site | None = None) -> Told:
    told = Told()
    fetch(downloads, store, site or Site(), told.advance, told.finished.append)
    return told


def test_many_files_arrive_and_are_told_of_once_each(server: FileServer, store: Store) -> None:
    contents = [CONTENT[: 1000 * number] for number in range(1, 20)]
    server.files = {f"/{len(content)}": content for content in contents}
    items = [one(f"{server.url}/{len(content)}", content=content) for content in contents]
    told = get(store, *items, items[0])
    assert sorted(told.finished) == sorted(item.sha256 for item in items)
    assert told.bytes == {item.sha256: item.size for item in items}
    assert [store.download(item.sha256).read_bytes() for item in items] == contents


def test_what_is_there_is_not_asked_for(server: FileServer, store: Store) -> None:
    server.files["/big"] = CONTENT
    item = one(f"{server.url}/big")
    get(store, item)
    server.seen.clear()
    told = get(store, item)
    assert (told.finished, told.bytes, server.seen) == ([item.sha256], {}, [])


def test_a_broken_connection_goes_on_where_it_ended(server: FileServer, store: Store) -> None:
    server.files["/big"] = CONTENT
    server.breaks["/big"] = [2_000_000, 1_000_000]
    item = one(f"{server.url}/big")
    told = get(store, item)
    assert store.download(item.sha256).read_bytes() == CONTENT
    first, second, third = server.asked("Range")
    assert first == ""
    assert 0 < int(second.strip("bytes=-")) < int(third.strip("bytes=-")) < len(CONTENT)
    assert told.bytes[item.sha256] == len(CONTENT)


def test_an_earlier_run_is_continued(server: FileServer, store: Store) -> None:
    server.files["/big"] = CONTENT
    item = one(f"{server.url}/big")
    part = store.download(item.sha256).with_name(f"{item.sha256}.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:3_000_000])
    told = get(store, item)
    assert server.asked("Range") == ["bytes=3000000-"]
    assert told.bytes[item.sha256] == len(CONTENT)
    assert not part.exists()


def test_a_server_without_ranges_is_asked_for_all_again(server: FileServer, store: Store) -> None:
    server.files["/big"] = CONTENT
    server.ranges = False
    server.breaks["/big"] = [2_000_000]
    item = one(f"{server.url}/big")
    told = get(store, item)
    assert store.download(item.sha256).read_bytes() == CONTENT
    assert told.bytes[item.sha256] == len(CONTENT)


def test_a_damaged_part_is_thrown_away_and_fetched_anew(server: FileServer, store: Store) -> None:
    server.files["/big"] = CONTENT
    item = one(f"{server.url}/big")
    part = store.download(item.sha256).with_name(f"{item.sha256}.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1_000_000)
    get(store, item)
    assert store.download(item.sha256).read_bytes() == CONTENT
    assert server.asked("Range") == ["bytes=1000000-", ""]


def test_other_bytes_of_the_same_length_are_refused(server: FileServer, store: Store) -> None:
    other = b"x" * len(CONTENT)
    server.files["/big"] = other
    item = one(f"{server.url}/big")
    with pytest.raises(FetchError) as error:
        get(store, item)
    assert f"wanted sha256 {item.sha256}, got {hashlib.sha256(other).hexdigest()}" in str(error.value)
    assert len(server.seen) == 2  # one retry
    assert list(store.download(item.sha256).parent.iterdir()) == []


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b"<html>please sign in</html>"])
def test_another_length_is_refused_before_it_is_fetched(
    content: bytes, server: FileServer, store: Store
) -> None:
    server.files["/big"] = content
    with pytest.raises(
        FetchError, match=rf"big\.whl cannot be fetched: wanted 5120000 bytes, .* has {len(content)}"
    ):
        get(store, one(f"{server.url}/big"))


def test_a_busy_server_is_asked_again(server: FileServer, store: Store) -> None:
    server.files["/big"] = CONTENT
    server.refusals["/big"] = [503, 502, 503, 503, 500, 429]
    item = one(f"{server.url}/big")
    assert get(store, item).finished == [item.sha256]


def test_a_file_has_one_budget_of_tries(server: FileServer, store: Store) -> None:
    server.files["/big"] = CONTENT
    server.refusals["/big"] = [503] * 100
    with pytest.raises(FetchError, match=r"503 .*; gave up after 8 attempts in \d+ s"):
        get(store, one(f"{server.url}/big"))
    assert len(server.seen) == 8


def test_the_next_place_is_tried(server: FileServer, store: Store) -> None:
    server.files["/mirror/big"] = CONTENT
    item = one(f"{server.url}/gone", f"{server.url}/mirror/big")
    get(store, item)
    assert [path for _, path, _ in server.seen] == ["/gone", "/mirror/big"]


def test_a_file_that_is_gone_names_itself_and_where_it_was(server: FileServer, store: Store) -> None:
    with pytest.raises(
        FetchError, match=r"big\.whl cannot be fetched: 404 Not Found from http://127.0.0.1"
    ) as error:
        get(store, one(f"{server.url}/gone"))
    assert error.value.problems[0].hint


def test_every_failed_file_is_named_and_the_rest_arrives(server: FileServer, store: Store) -> None:
    server.files["/big"] = CONTENT
    good = one(f"{server.url}/big")
    bad = [one(f"{server.url}/{name}", content=name.encode(), name=name) for name in ("a.deb", "b.deb")]
    with pytest.raises(FetchError) as error:
        get(store, bad[0], good, bad[1])
    assert sorted(problem.message.split()[0] for problem in error.value.problems) == ["a.deb", "b.deb"]
    assert store.has_download(good.sha256, good.size)


def test_no_server_at_all_is_said_so(store: Store) -> None:
    with serving() as state:
        url = state.url
    with pytest.raises(FetchError, match="the connection is refused"):
        get(store, one(f"{url}/big"))


def test_a_wheel_folder_is_read_and_checked(tmp_path: Path, store: Store) -> None:
    wheel = tmp_path / "a wheel+cpu.whl"
    wheel.write_bytes(CONTENT)
    item = one(wheel.as_uri())
    assert get(store, item).bytes[item.sha256] == len(CONTENT)
    assert store.download(item.sha256).read_bytes() == CONTENT
    wheel.write_bytes(b"y" * len(CONTENT))
    assert store.download(item.sha256).read_bytes() == CONTENT  # not the same file on disk


def test_a_missing_local_file_is_named(tmp_path: Path, store: Store) -> None:
    with pytest.raises(FetchError, match=r"gone\.whl does not exist"):
        get(store, one((tmp_path / "gone.whl").as_uri()))


def test_a_password_never_shows(server: FileServer, store: Store) -> None:
    url = server.url.replace("://", "://me:geheim@")
    with pytest.raises(FetchError) as error:
        get(store, one(f"{url}/gone"))
    assert "geheim" not in str(error.value)
    assert "***@127.0.0.1" in str(error.value)


def test_an_error_in_a_callback_ends_the_whole_at_once(server: FileServer, store: Store) -> None:
    server.files["/big"] = CONTENT
    server.silent.add("/slow")

    def cancel(_sha256: str, _count: int) -> None:
        raise KeyboardInterrupt

    items = [one(f"{server.url}/slow", content=b"slow"), one(f"{server.url}/big")]
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fetch(items, store, Site(), cancel, lambda _: None)
    assert time.monotonic() - started < 5
    assert not any(
        thread.name.startswith("download") and not thread.daemon for thread in threading.enumerate()
    )
    server.silent.clear()
    server.release.set()
    get(store, *items[1:])
    assert store.download(items[1].sha256).read_bytes() == CONTENT
