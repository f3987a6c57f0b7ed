"""Servers that mean harm: a registry, a token server, a package index; and what an image has attached."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import random
import socketserver
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imagebuilder.core import retries
from imagebuilder.fetch import download
from imagebuilder.host import http
from imagebuilder.host.site import Site
from imagebuilder.publish.attest import bundle, inspection, publish, published, verification
from imagebuilder.publish.attest.bundle import KINDS, SOURCE
from imagebuilder.publish.attest.published import Attachment, Published
from imagebuilder.publish.attest.verification import VerifyTask
from imagebuilder.registry import Client, Options, parse, reader
from imagebuilder.registry.credentials import Credentials
from imagebuilder.resolve import wheelfile
from imagebuilder.resolve.uv import File
from imagebuilder.store import Store
from tests.fuzz.mutation import TOKENS, any_bytes, json_document
from tests.support.fake_registry import FakeRegistry, Handler, serve
from tests.support.proven import put_proven
from tests.support.pushing import push
from tests.unit.test_attest_signing_keys import boxed

Run = Callable[[bytes, Path], None]

_KNOWN = Credentials(user="alice", password="secret")
# More than any reader here may hold, and little enough to send.
_FLOOD = bytes(24 << 20)
_STATUSES = (200, 201, 202, 204, 206, 301, 302, 307, 400, 401, 403, 404, 413, 416, 429, 500, 503, 599, 999)
_PLACES = (
    "http://[", "https://127.0.0.1:1/x", "http://127.0.0.1:1/x", "//127.0.0.1:1/", "/v2/", "", "file:///etc/passwd",
    "../../../../x", "\x1b[31m", "ftp://127.0.0.1/", "http://user:word@127.0.0.1:1/", "?",
    "http://\xb2/", "a" * 9000,
)  # fmt: skip
_HEADERS = (
    *(("Location", place) for place in _PLACES),
    *(("Link", f"<{place}>; rel=next") for place in _PLACES),
    ("Link", "<" * 60_000),
    *(("Docker-Content-Digest", text) for text in ("", "sha256:x", "\x1b[2J", "sha256:" + "0" * 64)),
    *(
        ("Retry-After", text)
        for text in ("-1", "9" * 400, "\xb2", "Fri, 31 Dec 9999 23:59:59 -0000", "1e9", "x")
    ),
    *(("Content-Length", text) for text in ("0", "5", "\xb2", "-1", "99999999999")),
    *(("Content-Range", text) for text in ("bytes 0-1/\xb2", "bytes 5-", "0-0", "9" * 300)),
    *(("Range", text) for text in ("0-99999999999", "0-", "5-0", "0-\xb2")),
    ("Content-Encoding", "gzip"),
    ("Content-Encoding", "br"),
    ("Content-Type", "application/vnd.oci.image.index.v1+json"),
    ("Content-Type", "\x1b[31m"),
    ("Transfer-Encoding", "chunked"),
    ("WWW-Authenticate", 'Bearer realm="http://['),
    ("WWW-Authenticate", 'Bearer realm="' + "a" * 50_000),
    ("WWW-Authenticate", "a" * 60_000),
    ("WWW-Authenticate", "Basic"),
    ("OCI-Subject", "sha256:x"),
)


@functools.cache
def _bomb() -> bytes:
    packing = zlib.compressobj(9, wbits=31)
    return b"".join([*(packing.compress(bytes(1 << 20)) for _ in range(200)), packing.flush()])


def no_session() -> requests.Session:
    """Give a session for readers that need none, for their files are on this host."""
    return requests.Session()


def keys() -> tuple[bytes, ...]:
    """Make signing keys as people have them."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    return (
        key.private_bytes(pem, pkcs8, serialization.NoEncryption()),
        key.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"word")),
        public,
        boxed(),
    )


def documents(folder: Path) -> tuple[tuple[bytes, ...], Callable[[bytes], None]]:
    """Give what is attached to an image, and what verifies the image with one of them replaced."""
    store = Store(folder / "store")
    image, source = put_proven(store)
    made = bundle.documents(image, store, source)
    manifest = reader.parse(reader.ImageManifest, store.blob(image.manifest).read_bytes(), "x")
    config = json.loads(store.blob(image.config).read_bytes())
    kinds = [kind for kind in KINDS if kind != SOURCE]

    def check(data: bytes) -> None:
        kind = kinds[zlib.crc32(data) % len(kinds)]
        files = {document.kind: document.files for document in made} | {kind: {kind.files[0][0]: data}}
        found = Published(
            reference=parse("registry.example/x:y"),
            digest=image.manifest,
            size=1,
            manifest=manifest,
            config=config,
            attachments=tuple(
                Attachment(kind=own, digest=image.manifest, files=given, signed=True)
                for own, given in files.items()
            ),
            others=(),
            signed=True,
        )
        task = VerifyTask(published=found, keyed=False, own=None, store=store)
        verification.verify(task, cast("Client", _Answering()))

    documents = (data for document in made if document.kind != SOURCE for data in document.files.values())
    return tuple(documents), check


class _Answering:
    """A client whose registry has everything."""

    def request(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(status_code=200)


@contextlib.contextmanager
def spoilt(folder: Path) -> Iterator[Run]:
    """Serve an image with all that goes with it; each run spoils answers as its input says."""
    key = ec.generate_private_key(ec.SECP256R1())
    store = Store(folder / "store")
    image, source = put_proven(store)
    with _patient(), serve(FakeRegistry()) as server:
        repository = f"{server.host}/team/cpu"
        writer = Client(parse(repository), _options(), "pull,push")
        subject = bundle.subject_of(image, store)
        publish.attach(writer, subject, bundle.documents(image, store, source), key)
        push(image, store, repository, ["one"], options=_options())
        manifests, blobs = dict(server.manifests), dict(server.blobs)

        def run(data: bytes, _inside: Path) -> None:
            rng = random.Random(data)  # noqa: S311 repeatable test data
            server.manifests, server.blobs = dict(manifests), dict(blobs)
            server.lists_referrers = rng.random() < 0.5
            server.auth = rng.choice(("", "basic", "bearer"))
            _rewrite(rng, server)
            server.interfere = functools.partial(_spoil, rng, rng.choice((0.0, 0.05, 0.3)))
            match rng.randrange(3):
                case 0:
                    inspection.from_registry(published.open_image(f"{repository}:one", _options()), store)
                case 1:
                    client = published.open_image(f"{repository}:one", _options())
                    found = published.read(client, key.public_key())
                    verification.verify(
                        VerifyTask(published=found, keyed=rng.random() < 0.5, own=None, store=store), client
                    )
                case _:
                    name = f"{server.host}/team/other"
                    push(
                        image, store, name, ["two"], options=_options(), move=rng.random() < 0.5,
                        attach=lambda made: publish.attach(made, subject, (), key),
                    )  # fmt: skip

        yield run


def _rewrite(rng: random.Random, server: FakeRegistry) -> None:
    """Replace a document by a mutant under its right digest, as who may push can."""
    for _ in range(rng.randrange(3)):
        (place, name), (media_type, data) = rng.choice(list(server.manifests.items()))
        made = json_document(rng, data, [data])
        server.manifests[place, name] = (media_type, made)
        server.manifests[place, f"sha256:{hashlib.sha256(made).hexdigest()}"] = (media_type, made)
    if rng.random() < 0.3:
        key = rng.choice(list(server.blobs))
        server.blobs[key] = any_bytes(rng, server.blobs[key][:100_000], [b"x"])


def _spoil(rng: random.Random, chance: float, handler: Handler) -> bool:
    """Let this answer go out in another way than it should."""
    if rng.random() < chance:
        handler.reply = functools.partial(_wrong, rng, handler)  # type: ignore[method-assign]
    else:
        vars(handler).pop("reply", None)
    return False


def _wrong(
    rng: random.Random, handler: Any, status: int, data: bytes = b"", headers: dict[str, str] | None = None
) -> None:
    given = {**(headers or {})}
    for _ in range(rng.choice((0, 1, 1, 2))):
        name, value = rng.choice(_HEADERS)
        given[name] = value
    match rng.randrange(7):
        case 0:
            data = rng.choice(TOKENS)
        case 1:
            data = any_bytes(rng, data, [b"{}"])
        case 2:
            data, given["Content-Encoding"] = _bomb(), "gzip"
        case 3:
            data = _FLOOD
        case 4:
            data = b"[" * 200_000
        case _:
            pass
    status = rng.choice(_STATUSES) if rng.random() < 0.5 else status
    with contextlib.suppress(OSError, ValueError):
        handler.send_response(status, rng.choice(("OK", "\x1b[31m", "x" * 500)))
        for name, value in given.items():
            handler.send_header(name, value)
        if "Content-Length" not in given and "Transfer-Encoding" not in given:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data)
    handler.close_connection = True


@contextlib.contextmanager
def challenging(folder: Path) -> Iterator[Run]:
    """Serve a registry whose challenge is an input's first line, and whose token server says the rest."""
    assert folder.is_dir()
    state = {"challenge": b"", "said": b""}

    def interfere(handler: Handler) -> bool:
        handler.close_connection = True
        if handler.path.startswith("/token"):
            handler.reply(200, state["said"])
        elif "Authorization" in handler.headers:
            handler.refuse(404, "MANIFEST_UNKNOWN")
        else:
            text = state["challenge"].replace(b"TOKEN", handler.registry.host.encode())
            handler.reply(401, headers={"WWW-Authenticate": text.decode("latin-1")})
        return True

    with _patient(), serve(FakeRegistry(interfere=interfere)) as server:

        def run(data: bytes, _inside: Path) -> None:
            state["challenge"], _, state["said"] = data.partition(b"\n")
            Client(parse(f"{server.host}/x"), _options()).head_manifest("one")

        yield run


@dataclass(kw_only=True)
class _Mirror:
    """What a mirror has, and how often it answers wrongly."""

    wheel: bytes
    rng: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 repeatable test data
    chance: float = 0.0


class _MirrorHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: _Mirror

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is http.server's
        """Stay quiet."""

    def do_GET(self) -> None:
        state, wheel = self.state, self.state.wheel
        start, end, status, headers = 0, len(wheel), 200, {}
        if (asked := self.headers.get("Range", "")).startswith("bytes="):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end, status = int(first), int(last or len(wheel) - 1) + 1, 206
            headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(wheel)}"}
        if state.rng.random() < state.chance:
            _wrong(state.rng, self, status, wheel[start:end], headers)
        elif self.path.endswith(".metadata"):
            self._plain(404, b"", {})
        else:
            self._plain(status, wheel[start:end], headers)

    do_HEAD = do_GET  # noqa: N815 - the name is http.server's

    def _plain(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextlib.contextmanager
def mirror(folder: Path, wheel: bytes) -> Iterator[Run]:
    """Serve a wheel; each run spoils answers as its input says."""
    assert folder.is_dir()
    state = _Mirror(wheel=wheel)
    handler = type("BoundHandler", (_MirrorHandler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    digest = hashlib.sha256(wheel).hexdigest()
    url = f"http://127.0.0.1:{server.server_port}/demo-1.0-py3-none-any.whl"

    def run(data: bytes, inside: Path) -> None:
        rng = random.Random(data)  # noqa: S311 repeatable test data
        state.rng, state.chance = rng, rng.choice((0.0, 0.3, 0.7))
        file = File(name="demo-1.0-py3-none-any.whl", url=url, sha256=rng.choice(("", digest)), size=-1)
        with http.session({}, None, ()) as session:
            match rng.randrange(3):
                case 0:
                    wheelfile.measure(file, session)
                case 1:
                    wheelfile.requires(file, session)
                case _:
                    item = download.Download(name="demo", urls=(url,), size=len(wheel), sha256=digest)
                    store = Store(inside / "store")
                    download.fetch([item], store, Site(), lambda *_: None, lambda _: None)
                    assert store.download(digest).read_bytes() == wheel

    try:
        with _patient():
            yield run
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _options() -> Options:
    return Options(session=requests.Session(), credentials=copy.copy(_KNOWN), attempts=2, pause=0.001)


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """Wait for no server longer than a moment, and let servers lose their peers without a word."""
    before = retries._LONGEST_PAUSE, http._RETRY_PAUSE, download._PAUSE
    retries._LONGEST_PAUSE, http._RETRY_PAUSE, download._PAUSE = 0.01, 0.001, 0.001
    quiet = vars(socketserver.BaseServer)["handle_error"]
    setattr(socketserver.BaseServer, "handle_error", _ignored)  # noqa: B010 - mypy takes it for a mistake
    try:
        yield
    finally:
        retries._LONGEST_PAUSE, http._RETRY_PAUSE, download._PAUSE = before
        setattr(socketserver.BaseServer, "handle_error", quiet)  # noqa: B010


def _ignored(_server: Any, _request: Any, _address: Any) -> None:
    """Say nothing of a peer that hung up."""
