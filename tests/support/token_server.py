"""A token server for a real registry, after https://distribution.github.io/distribution/spec/auth/jwt/."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from imagebuilder.core.process import run
from tests.support.servers import PASSWORD, USER

SERVICE, ISSUER = "test registry", "test issuer"


@dataclass
class TokenServer:
    """`seconds`: how long a token holds; `asked`: the scopes of every request that was granted."""

    folder: Path
    seconds: int = 300
    url: str = ""
    asked: list[list[str]] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, object]:
        """The registry's part: where to send clients, and whose tokens to take."""
        certificate = str(self.folder / "token.crt")
        token = {"realm": self.url, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": certificate}
        return {"auth": {"token": token}}

    def token(self, scopes: list[str]) -> str:
        """Sign what is asked for: `repository:name:pull,push` and the like."""
        now = int(time.time())
        access = [
            {"type": kind, "name": name, "actions": actions.split(",")}
            for kind, name, actions in (scope.split(":") for scope in scopes)
        ]
        claims = {
            "iss": ISSUER, "sub": USER, "aud": SERVICE, "jti": secrets.token_hex(8), "access": access,
            "iat": now, "nbf": now - 10, "exp": now + self.seconds,
        }  # fmt: skip
        lines = (self.folder / "token.crt").read_text().splitlines()
        header = {"typ": "JWT", "alg": "RS256", "x5c": ["".join(line for line in lines if "-" not in line)]}
        text = f"{_encode(json.dumps(header).encode())}.{_encode(json.dumps(claims).encode())}"
        name = self.folder / secrets.token_hex(8)
        name.write_text(text)
        signature = name.with_suffix(".sig")
        run(
            ["openssl", "dgst", "-sha256", "-sign", self.folder / "token.key", "-out", signature, name],
            timeout=60,
        )
        return f"{text}.{_encode(signature.read_bytes())}"


@contextmanager
def serve(folder: Path) -> Iterator[TokenServer]:
    words = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=token"]
    run(["openssl", "req", *words, "-keyout", folder / "token.key", "-out", folder / "token.crt"], timeout=60)
    state = TokenServer(folder=folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            if self.headers.get("Authorization") != wanted:
                self.send_error(401)
                return
            scopes = parse_qs(urlsplit(self.path).query).get("scope", [])
            state.asked.append(scopes)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"token": state.token(scopes)}).encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is http.server's
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/token"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
