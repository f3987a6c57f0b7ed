"""A registry in memory that can be told to misbehave, for what no real one does on demand."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

_UPLOAD = re.compile(r"/v2/(.+)/blobs/uploads/([0-9a-z]*)")
_BLOB = re.compile(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})")
_MANIFEST = re.compile(r"/v2/(.+)/manifests/(.+)")
_TAGS = re.compile(r"/v2/(.+)/tags/list")
_REFERRERS = re.compile(r"/v2/(.+)/referrers/(sha256:[0-9a-f]{64})")


@dataclass
class FakeRegistry:
    """Its state, open to tests.

    Attributes:
        blobs, manifests: by repository and name.
        log: method and path of every request, with `!` for those with credentials.
        received: bytes of layers that came in.
        opened: how many uploads were begun.
        interfere: called with a handler before each request is served; True when it has dealt with it.
        cut_after: cut one upload that is larger than this after so many bytes; 0 for none.
        resumable: keep what came before a cut.
        auth: "", "basic" or "bearer".
        lists_referrers: have the referrers API; older registries have none.

    """

    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    received: int = 0
    opened: int = 0
    interfere: Callable[[Handler], bool] = lambda _handler: False
    cut_after: int = 0
    resumable: bool = True
    auth: str = ""
    lists_referrers: bool = False
    token: str = "token-1"
    token_requests: list[dict[str, list[str]]] = field(default_factory=list)
    host: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, method: str, part: str) -> int:
        return sum(line.startswith(f"{method} ") and part in line for line in self.log)


class _Server(ThreadingHTTPServer):
    """Serves TLS and plain HTTP at one port, or hangs up on who speaks TLS."""

    greeting: Literal["plain", "hang up"] | Path = "plain"

    def finish_request(self, request: Any, client_address: Any) -> None:
        # The first byte of a TLS greeting (RFC 8446, section 5.1).
        if self.greeting != "plain" and request.recv(1, socket.MSG_PEEK) == b"\x16":
            if not isinstance(self.greeting, Path):
                return
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.greeting)
            with (
                suppress(ssl.SSLError, ConnectionError),  # the client does not trust the certificate
                context.wrap_socket(request, server_side=True) as secure,
            ):
                super().finish_request(secure, client_address)
            return
        super().finish_request(request, client_address)


@contextmanager
def serve(
    registry: FakeRegistry, tls: Literal["plain", "hang up"] | Path = "plain"
) -> Iterator[FakeRegistry]:
    """Serve on a free port of 127.0.0.1; `registry.host` says which.

    Args:
        registry: what to serve.
        tls: what becomes of who speaks TLS: an answer in plain text, none, or TLS with this certificate.

    """
    handler = type("BoundHandler", (Handler,), {"registry": registry})
    server = _Server(("127.0.0.1", 0), handler)
    server.greeting = tls
    registry.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: FakeRegistry
    # Headers and body go out as two small packets, and the second one would wait 40 ms for an answer.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is http.server's
        """Stay quiet."""

    def reply(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, code: str, message: str = "no") -> None:
        self.reply(status, json.dumps({"errors": [{"code": code, "message": message}]}).encode())

    def do_any(self) -> None:
        shop, url = self.registry, urlsplit(self.path)
        with shop.lock:
            shop.log.append(f"{self.command} {self.path}{' !' if 'Authorization' in self.headers else ''}")
        if shop.interfere(self):
            return
        if url.path == "/token":
            self._token(parse_qs(url.query))
        elif not self._signed_in():
            kinds = {
                "basic": 'Basic realm="fake"',
                "bearer": f'Bearer realm="http://{shop.host}/token",service="fake",scope="repository:x:pull"',
            }
            self._drain()
            self.reply(401, headers={"WWW-Authenticate": kinds[shop.auth]})
        elif url.path == "/v2/":
            self.reply(200)
        elif found := _UPLOAD.fullmatch(url.path):
            self._upload(found[1], found[2], parse_qs(url.query))
        elif found := _BLOB.fullmatch(url.path):
            data = shop.blobs.get((found[1], found[2]))
            self.reply(200, data) if data is not None else self.refuse(404, "BLOB_UNKNOWN")
        elif found := _MANIFEST.fullmatch(url.path):
            self._manifest(found[1], found[2])
        elif found := _TAGS.fullmatch(url.path):
            tags = [name for place, name in shop.manifests if place == found[1] and ":" not in name]
            self.reply(200, json.dumps({"name": found[1], "tags": tags}).encode())
        elif shop.lists_referrers and (found := _REFERRERS.fullmatch(url.path)):
            self._list_referrers(found[1], found[2])
        else:
            self.reply(404)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_any  # noqa: N815 - the names are http.server's

    def _signed_in(self) -> bool:
        wanted = {
            "": None,
            "basic": "Basic " + base64.b64encode(b"alice:secret").decode(),
            "bearer": f"Bearer {self.registry.token}",
        }[self.registry.auth]
        return wanted is None or self.headers.get("Authorization") == wanted

    def _token(self, query: dict[str, list[str]]) -> None:
        body = self._drain().decode()
        self.registry.token_requests.append({**query, **parse_qs(body)})
        known = "Basic " + base64.b64encode(b"alice:secret").decode()
        if self.headers.get("Authorization") == known or "refresh_token=refresh-1" in body:
            self.reply(200, json.dumps({"token": self.registry.token}).encode())
        else:
            self.refuse(401, "UNAUTHORIZED")

    def _drain(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _upload(self, repository: str, name: str, query: dict[str, list[str]]) -> None:
        shop = self.registry
        if self.command == "POST":
            digest = query.get("mount", [""])[0]
            source = (query.get("from", [""])[0], digest)
            if source in shop.blobs:
                shop.blobs[repository, digest] = shop.blobs[source]
                self.reply(201)
                return
            with shop.lock:
                shop.opened += 1
                name = f"u{shop.opened}"
                shop.uploads[name] = b""
            self.reply(202, headers={"Location": f"/v2/{repository}/blobs/uploads/{name}"})
        elif name not in shop.uploads:
            self._drain()
            self.refuse(404, "BLOB_UPLOAD_UNKNOWN")
        elif self.command == "GET":
            there = len(shop.uploads[name])
            if shop.resumable:
                self.reply(204, headers={"Range": f"0-{max(there - 1, 0)}"})
            else:
                del shop.uploads[name]
                self.refuse(416, "RANGE_INVALID")
        elif self.command == "PATCH":
            self._receive(repository, name)
        else:
            digest = query["digest"][0]
            data = shop.uploads.pop(name) + self._drain()
            if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
                self.refuse(400, "DIGEST_INVALID")
                return
            shop.blobs[repository, digest] = data
            self.reply(201)

    def _receive(self, repository: str, name: str) -> None:
        shop, length = self.registry, int(self.headers["Content-Length"])
        start = int((self.headers.get("Content-Range") or "0-").partition("-")[0])
        if start != len(shop.uploads[name]):
            self._drain()
            self.refuse(416, "RANGE_INVALID")
            return
        with shop.lock:
            cut = shop.cut_after if shop.cut_after < length else 0
            shop.cut_after = 0 if cut else shop.cut_after
        data = self.rfile.read(cut or length)
        shop.received += len(data)
        shop.uploads[name] += data
        if cut:
            self.close_connection = True
            return
        self.reply(202, headers={"Location": f"/v2/{repository}/blobs/uploads/{name}"})

    def _manifest(self, repository: str, name: str) -> None:
        shop = self.registry
        if self.command == "PUT":
            data = self._drain()
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            parts = json.loads(data)
            blobs = [parts["config"], *parts["layers"]] if "config" in parts else []
            wanted = [blob["digest"] for blob in blobs]
            if any((repository, part) not in shop.blobs for part in wanted):
                self.refuse(400, "MANIFEST_BLOB_UNKNOWN")
                return
            for key in (digest, name):
                shop.manifests[repository, key] = (self.headers["Content-Type"], data)
            headers = {"Docker-Content-Digest": digest}
            if self.registry.lists_referrers and "subject" in parts:
                headers["OCI-Subject"] = parts["subject"]["digest"]
            self.reply(201, headers=headers)
        elif (repository, name) in shop.manifests:
            media_type, data = shop.manifests[repository, name]
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            self.reply(200, data, {"Content-Type": media_type, "Docker-Content-Digest": digest})
        else:
            self.refuse(404, "MANIFEST_UNKNOWN")

    def _list_referrers(self, repository: str, subject: str) -> None:
        rows = []
        for (place, name), (media_type, data) in self.registry.manifests.items():
            if place == repository and name.startswith("sha256:"):
                parts = json.loads(data)
                if parts.get("subject", {}).get("digest") == subject:
                    row = {"mediaType": media_type, "digest": name, "size": len(data)}
                    rows.append({**row, "artifactType": parts.get("artifactType", "")})
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": rows,
        }
        self.reply(200, json.dumps(index).encode())
