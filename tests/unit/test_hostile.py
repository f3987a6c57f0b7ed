"""Each hole that a review with an attacker's eye found: closed, and what is said instead."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from imagebuilder.cli import base
from imagebuilder.core import jsontext, yamlfile
from imagebuilder.errors import FetchError, InputError, RegistryError, StoreError
from imagebuilder.fetch.download import Download, fetch
from imagebuilder.host import http
from imagebuilder.host.site import Site
from imagebuilder.lock import file as lockfile
from imagebuilder.publish.attest import licences
from imagebuilder.publish.leaks import rules
from imagebuilder.publish.leaks.layer import scan_layer
from imagebuilder.publish.leaks.text import Search
from imagebuilder.registry import Client, Options, body, faults, parse, pull, reader
from imagebuilder.registry.credentials import ANONYMOUS, Credentials
from imagebuilder.resolve import wheelfile
from imagebuilder.resolve.uv import File
from imagebuilder.smoke import report as reports
from imagebuilder.store import Store
from tests.support.fake_registry import FakeRegistry, Handler, serve
from tests.support.reports import hostile
from tests.support.wheels import make_wheel

CASES = Path(__file__).resolve().parents[1] / "cases" / "hostile"
OPTIONS = Options(session=requests.Session(), credentials=ANONYMOUS, attempts=2, pause=0.001)


def client(registry: FakeRegistry) -> Client:
    return Client(parse(f"{registry.host}/x"), OPTIONS)


def answering(data: bytes, status: int = 200, **headers: str) -> Callable[[Handler], bool]:
    """Answer everything but the front door with this."""

    def interfere(handler: Handler) -> bool:
        if handler.path == "/v2/":
            return False
        handler.close_connection = True
        handler.reply(status, data, {name.replace("_", "-"): value for name, value in headers.items()})
        return True

    return interfere


# Locks


@pytest.mark.parametrize("path", sorted((CASES / "lock").iterdir()), ids=lambda path: path.stem)
def test_a_hostile_lock_is_refused(path: Path) -> None:
    with pytest.raises(InputError) as refused:
        lockfile.loads(path.read_text(encoding="utf-8"), "x.lock")
    text = str(refused.value)
    assert base.shown(text) == text
    assert len(text) < 5000


def test_a_lock_that_never_ends_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "x.lock").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="far too large"):
        lockfile.read(tmp_path / "x.lock")


# JSON


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"0," * 2000 + b"0]", "more than 1000 values"),
        (b"x" * 20_000, "larger than 10000 bytes"),
        (b"\xff", "not UTF-8"),
        (b"{", "not JSON"),
        (b'{"a": 1, "A": 2}', "a key is given twice"),
        (b'{"a": {"b": 1, "b": 2}}', "a key is given twice"),
    ],
)
def test_json_that_somebody_wrote(data: bytes, words: str) -> None:
    limit = 200_000 if words.startswith("nested") else 10_000
    with pytest.raises(ValueError, match=words):
        jsontext.loads(
            data, limit=limit, most=1000 if words.startswith("more") else jsontext.MOST, unique=True
        )


def test_a_manifest_that_docker_would_read_differently(tmp_path: Path) -> None:
    del tmp_path
    for name in ("layers-twice", "layers-twice-in-another-case"):
        data = (CASES / "oci-documents" / f"{name}.json").read_bytes()
        with pytest.raises(RegistryError, match="a key is given twice"):
            reader.parse(reader.ImageManifest, data, "x")


# A registry's answers


def test_an_answer_that_never_ends() -> None:
    """Errors and tokens were read to their end, wherever that is."""
    with serve(FakeRegistry(interfere=answering(b"x" * (3 << 20), 403))) as registry:
        with pytest.raises(RegistryError, match="has more than 1048576 bytes"):
            client(registry).request("POST", "blobs/uploads/")
        with pytest.raises(RegistryError, match="does not let this account"):
            client(registry).get_manifest("one")


def test_a_packed_answer_is_unpacked_to_its_limit() -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)
    with (
        serve(FakeRegistry(interfere=answering(bomb, Content_Encoding="gzip"))) as registry,
        pytest.raises(RegistryError, match="larger than 4 MiB"),
    ):
        client(registry).get_manifest("one")


@contextmanager
def dripping() -> Iterator[str]:
    """Serve one answer, a byte at a time, for as long as anybody listens."""
    server = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            try:
                while True:
                    peer.sendall(b"x")
                    time.sleep(0.01)
            except OSError:
                return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    finally:
        server.close()
        thread.join(5)


def test_an_answer_has_a_time_limit_as_a_whole() -> None:
    with dripping() as url, requests.get(url, stream=True, timeout=5) as reply:
        began = time.monotonic()
        with pytest.raises(requests.ReadTimeout):
            body.read(reply, 1 << 20, seconds=0.2)
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("place", ["http://[", "ftp://127.0.0.1/x"])
def test_places_that_are_no_urls(place: str) -> None:
    with serve(FakeRegistry(interfere=answering(b"", 307, Location=place))) as registry:
        with pytest.raises(RegistryError, match="invalid URL"):
            client(registry).get_manifest("one")
        with pytest.raises(RegistryError, match="invalid URL"):
            client(registry).url(place)


def test_layers_never_travel_from_tls_to_plain_http() -> None:
    made = Client(parse("registry.example/x"), OPTIONS)
    made._origin = "https://registry.example"
    assert made.url("http://registry.example/upload") == "https://registry.example/upload"
    with pytest.raises(RegistryError, match="from TLS to plain HTTP, at elsewhere"):
        made.url("http://elsewhere.example/upload")


def test_a_digest_in_a_header_is_a_digest_or_nothing() -> None:
    def interfere(handler: Handler) -> bool:
        if handler.path == "/v2/":
            return False
        status = 200 if handler.command == "HEAD" else 404
        handler.reply(status, b"", {"Docker-Content-Digest": "sha256:\x1b[31m"})
        return True

    with serve(FakeRegistry(interfere=interfere)) as registry, pytest.raises(RegistryError) as refused:
        client(registry).head_manifest("one")
    assert "\x1b" not in str(refused.value)


def test_a_long_challenge_costs_no_time() -> None:
    for challenge in ("Bearer " + "a" * 60_000, 'Bearer realm="' + "a" * 60_000, 'Bearer a="' * 6000):
        front = answering(b"", 401, WWW_Authenticate=challenge)
        with serve(FakeRegistry(interfere=front)) as registry:
            began = time.monotonic()
            with pytest.raises(RegistryError):
                client(registry).head_manifest("one")
            assert time.monotonic() - began < 2


@pytest.mark.parametrize("said", [b"[" * 5000, b'{"token": ["a"]}', b'{"token": "a\\r\\nX: y"}', b"null"])
def test_tokens_that_are_none(said: bytes) -> None:
    def interfere(handler: Handler) -> bool:
        if handler.path.startswith("/token"):
            handler.reply(200, said)
            return True
        return False

    options = dataclasses.replace(OPTIONS, credentials=Credentials(user="alice", password="secret"))
    with (
        serve(FakeRegistry(interfere=interfere, auth="bearer")) as registry,
        pytest.raises(RegistryError, match=r"gave (no|a broken) token"),
    ):
        Client(parse(f"{registry.host}/x"), options).head_manifest("one")


@pytest.mark.parametrize(
    "value",
    ["9" * 400, "\u00b2", "-1", "Mon, 01 Jan 0001 00:00:00 -0000", "Fri, 31 Dec 9999 23:59:59 -2359", "x"],
)
def test_waits_that_are_no_numbers(value: str) -> None:
    reply = requests.Response()
    reply.headers["Retry-After"] = value
    assert 0 <= faults.retry_after(reply) < float("inf")


def test_errors_nested_deeper_than_anybody_reads() -> None:
    with (
        serve(FakeRegistry(interfere=answering(b'{"errors":' + b"[" * 5000, 403))) as registry,
        pytest.raises(RegistryError, match="does not let this account"),
    ):
        client(registry).request("POST", "blobs/uploads/")


def test_tags_that_lead_elsewhere_are_no_tags() -> None:
    listed = json.dumps({"tags": ["one", "../../y/manifests/two", "a b", "\x1b[31m", "-x"]}).encode()
    with serve(FakeRegistry(interfere=answering(listed))) as registry:
        assert reader.tags(client(registry)) == ("one",)


# Indexes and mirrors


def test_a_mirror_does_not_say_how_long_we_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_RETRY_PAUSE", 0.05)
    asked = []

    def interfere(handler: Handler) -> bool:
        asked.append(handler.path)
        handler.close_connection = True
        handler.reply(503, b"x" * 1000, {"Retry-After": "86400"})
        return True

    with serve(FakeRegistry(interfere=interfere)) as registry, http.session({}, None, ()) as session:
        began = time.monotonic()
        assert session.get(f"http://{registry.host}/x").status_code == 503
    assert len(asked) == 4
    assert time.monotonic() - began < 10


def test_a_mirror_that_sends_on_to_no_url(tmp_path: Path) -> None:
    with serve(FakeRegistry(interfere=answering(b"", 302, Location="http://["))) as registry:
        item = Download(name="demo", urls=(f"http://{registry.host}/x",), size=5, sha256="a" * 64)
        with pytest.raises(FetchError, match="demo cannot be fetched"):
            fetch([item], Store(tmp_path), Site(), lambda *_: None, lambda _: None)


def test_a_link_in_the_place_of_a_download_is_not_followed(tmp_path: Path) -> None:
    store, sha256 = Store(tmp_path / "store"), "a" * 64
    target = tmp_path / "precious"
    target.write_text("precious")
    place = store.download(sha256)
    place.parent.mkdir(parents=True)
    place.with_name(f"{sha256}.part").symlink_to(target)
    item = Download(name="demo", urls=((tmp_path / "x").as_uri(),), size=5, sha256=sha256)
    with pytest.raises(StoreError):
        fetch([item], store, Site(), lambda *_: None, lambda _: None)
    assert target.read_text() == "precious"


def test_a_link_in_the_place_of_a_base_s_layer_is_not_followed(tmp_path: Path) -> None:
    store, data = Store(tmp_path / "store"), b"layer"
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    target = tmp_path / "precious"
    target.write_text("p")
    place = store.download(digest.removeprefix("sha256:"))
    place.parent.mkdir(parents=True)
    place.with_name(f"{place.name}.part").symlink_to(target)
    layer = pull.Layer(digest=digest, diff_id=digest, size=len(data), media_type="x")
    with serve(FakeRegistry(blobs={("x", digest): data})) as registry, pytest.raises(StoreError):
        pull.fetch(client(registry), layer, store, lambda _: None)
    assert target.read_text() == "p"


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with store.in_use():
        pass
    (store.root / "locks" / "in-use").unlink()
    (store.root / "locks" / "in-use").symlink_to(tmp_path / "made")
    with pytest.raises(StoreError), store.in_use():
        pass
    assert not os.path.lexists(tmp_path / "made")


@pytest.mark.parametrize("path", sorted((CASES / "wheel-metadata").iterdir()), ids=lambda path: path.stem)
def test_metadata_of_hostile_wheels(path: Path) -> None:
    offered = File(name="demo-1.0-py3-none-any.whl", url=path.as_uri(), sha256="", size=-1)
    licences._metadata_of(path)
    if path.stem == "requirement-without-meaning":
        assert wheelfile.requires(offered, requests.Session())
    elif path.stem != "metadata-that-is-encrypted":
        with pytest.raises(FetchError):
            wheelfile.requires(offered, requests.Session())


def test_a_zip_directory_that_says_it_is_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size in the record at its end is what would be read into memory at once."""
    monkeypatch.setattr(wheelfile, "_remote_size", lambda *_: 1 << 40)
    remote = wheelfile._RemoteFile("https://index.example/x.whl", requests.Session())
    with pytest.raises(LookupError, match="is far too large"):
        remote.read(1 << 32)


def test_lengths_that_are_no_numbers(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {})
    with (
        serve(
            FakeRegistry(interfere=answering(wheel.read_bytes(), Content_Range="bytes 0-0/\u00b2"))
        ) as registry,
        http.session({}, None, ()) as session,
    ):
        offered = File(name=wheel.name, url=f"http://{registry.host}/{wheel.name}", sha256="a" * 64, size=-1)
        assert wheelfile.measure(offered, session).size == wheel.stat().st_size


# Layers and reports


@pytest.mark.parametrize("path", sorted((CASES / "layer").iterdir()), ids=lambda path: path.stem)
def test_hostile_layers_are_read_to_an_end(path: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    digest, _ = store.put_bytes(path.read_bytes())
    began, refused = time.monotonic(), 0
    for read in (
        lambda: scan_layer(store.blob(digest), Search(rules.load(), ())),
        lambda: licences.of_layer(store, digest),
    ):
        try:
            read()
        except StoreError:
            refused += 1
    assert time.monotonic() - began < 5
    assert refused or path.stem in {"deep-json-in-a-token.tar", "all-bits-set.tar"}


def test_reports_of_half_characters_can_be_written() -> None:
    text = reports.dumps(hostile())
    assert "\ud800" not in text
    assert reports.dumps(reports.Report.model_validate_json(text)) == text


# What people see


def test_nothing_that_is_printed_acts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    base.out("a\x1b[31mb\u202e\x9b\n\tc\udc80")
    base.err("\x07")
    base.complain(InputError("\x1b]0;x\x07", where="\r", hint="\b"))
    told = capsys.readouterr()
    assert told.out == "a\\x1b[31mb\\u202e\\x9b\n\tc\\udc80\n"
    assert all(char.isprintable() or char in "\n\t" for char in told.err)


def test_logs_act_on_no_terminal_either() -> None:
    record = logging.LogRecord("x", logging.WARNING, "x", 1, "said %s", ("\x1b[31m",), None)
    assert base._Shown("%(message)s").format(record) == "said \\x1b[31m"


# YAML


@pytest.mark.parametrize("path", sorted((CASES / "recipe").iterdir()), ids=lambda path: path.stem)
def test_hostile_recipes_are_refused_soon(path: Path) -> None:
    from imagebuilder import catalog, recipe

    began = time.monotonic()
    with pytest.raises(InputError) as refused:
        recipe.load(path, catalog.names())
    assert time.monotonic() - began < 10
    text = str(refused.value)
    assert base.shown(text) == text
    assert len(text) < 20_000


def test_yaml_of_too_many_values() -> None:
    with pytest.raises(InputError, match="more than 10000 values"):
        yamlfile.parse(b"[" + b"0," * 11_000 + b"0]", "x")
