from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from imagebuilder.engines import endpoint
from imagebuilder.engines.endpoint import Endpoint
from imagebuilder.store import ImageRecord, Store
from tests.support.images import put_image

TYPE = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def image(store: Store) -> ImageRecord:
    return put_image(store, [{"a": b"alpha" * 1000}, {"b": b"beta"}])


@pytest.fixture
def served(store: Store, image: ImageRecord) -> Iterator[Endpoint]:
    with endpoint.serve(image, store) as running:
        yield running


def url(served: Endpoint, place: str) -> str:
    host, _, path = served.repository.partition("/")
    return f"http://{host}/v2/{path}/{place}"


def blob(image: ImageRecord, layer: int = 0) -> str:
    return image.layers[layer].record.digest


def test_serves_the_manifest_by_tag_and_digest(served: Endpoint, store: Store, image: ImageRecord) -> None:
    for name in (image.tag, image.manifest):
        reply = requests.get(url(served, f"manifests/{name}"), timeout=5)
        assert reply.content == store.blob(image.manifest).read_bytes()
        assert reply.headers["Content-Type"] == TYPE
        assert reply.headers["Docker-Content-Digest"] == image.manifest
        head = requests.head(url(served, f"manifests/{name}"), timeout=5)
        assert (head.content, head.headers["Content-Length"]) == (b"", str(len(reply.content)))


def test_serves_blobs_and_counts_their_bytes(store: Store, image: ImageRecord) -> None:
    seen: list[int] = []
    with endpoint.serve(image, store, seen.append) as served:
        reply = requests.get(url(served, f"blobs/{blob(image)}"), timeout=5)
        assert reply.content == store.blob(blob(image)).read_bytes()
        requests.head(url(served, f"blobs/{blob(image)}"), timeout=5)
        # The server counts what it has sent, so the client may be first.
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            time.sleep(0.01)
    assert served.served == sum(seen) == image.layers[0].record.size


@pytest.mark.parametrize(
    ("asked", "start", "end"), [("bytes=0-9", 0, 10), ("bytes=5-", 5, None), ("bytes=3-99999999", 3, None)]
)
def test_serves_parts(
    served: Endpoint, store: Store, image: ImageRecord, asked: str, start: int, end: int | None
) -> None:
    whole = store.blob(blob(image)).read_bytes()
    reply = requests.get(url(served, f"blobs/{blob(image)}"), headers={"Range": asked}, timeout=5)
    assert (reply.status_code, reply.content) == (206, whole[start:end])
    assert reply.headers["Content-Range"] == f"bytes {start}-{(end or len(whole)) - 1}/{len(whole)}"


def test_refuses_parts_beyond_the_end(served: Endpoint, image: ImageRecord) -> None:
    reply = requests.get(url(served, f"blobs/{blob(image)}"), headers={"Range": "bytes=99999999-"}, timeout=5)
    assert reply.status_code == 416


def test_other_blobs_of_the_store_are_not_served(served: Endpoint, store: Store, image: ImageRecord) -> None:
    secret, _ = store.put_bytes(b"another image's")
    assert requests.get(url(served, f"blobs/{secret}"), timeout=5).status_code == 404
    for place in (f"blobs/../blobs/{blob(image)}", "manifests/latest", "tags/list", "blobs/"):
        raw = requests.Request("GET", url(served, "")).prepare()
        raw.url = url(served, place)
        assert requests.Session().send(raw, timeout=5).status_code == 404
    assert served.requests == 0


def test_the_word_is_needed_and_differs(served: Endpoint, store: Store, image: ImageRecord) -> None:
    host, word, name = served.repository.split("/")
    assert len(word) == 32
    assert requests.get(f"http://{host}/v2/{name}/manifests/{image.tag}", timeout=5).status_code == 404
    assert requests.get(f"http://{host}/v2/_catalog", timeout=5).status_code == 404
    with endpoint.serve(image, store) as other:
        assert other.repository.split("/")[1] != word


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_nothing_can_be_written(served: Endpoint, image: ImageRecord, method: str) -> None:
    place = url(served, f"manifests/{image.tag}")
    assert requests.request(method, place, data=b"{}", timeout=5).status_code == 501


def test_answers_a_tls_greeting_at_once_and_in_plain(served: Endpoint) -> None:
    host, _, port = served.repository.partition("/")[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert connection.recv(5) == b"HTTP/"


def test_listens_on_loopback_only_and_stops(store: Store, image: ImageRecord) -> None:
    with endpoint.serve(image, store) as served:
        assert served.server.server_address[0] == "127.0.0.1"
    with pytest.raises(requests.ConnectionError):
        requests.get(url(served, f"manifests/{image.tag}"), timeout=5)


def test_a_blob_that_vanished_is_not_there(served: Endpoint, store: Store, image: ImageRecord) -> None:
    store.blob(blob(image)).unlink()
    assert requests.get(url(served, f"blobs/{blob(image)}"), timeout=5).status_code == 404


def test_a_client_that_hangs_up_does_no_harm(tmp_path: Path) -> None:
    store = Store(tmp_path)
    image = put_image(store, [{"a": json.dumps(list(range(400_000))).encode()}])
    with endpoint.serve(image, store) as served:
        with requests.get(url(served, f"blobs/{blob(image)}"), stream=True, timeout=5) as reply:
            reply.raw.read(10)
        assert requests.get(url(served, f"manifests/{image.tag}"), timeout=5).ok
