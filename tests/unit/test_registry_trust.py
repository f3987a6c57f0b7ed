"""Who gets the password of a registry, and how often a registry that is away is asked."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.core.retries import Budget
from imagebuilder.errors import RegistryError
from imagebuilder.host import http
from imagebuilder.host.site import Site
from imagebuilder.registry import Client, Options, parse
from imagebuilder.registry.blob import Blob, Upload
from imagebuilder.registry.certificates import Trust
from imagebuilder.registry.client import options_for
from imagebuilder.registry.credentials import Credentials
from tests.support.certificates import self_signed
from tests.support.fake_registry import FakeRegistry, Handler, serve

ALICE = Credentials(user="alice", password="secret")
MISSING = "sha256:" + "0" * 64
NAME = "registry.test"


def options(**changes: Any) -> Options:
    session = http.session({}, None, (), retries=False)
    fields = {"session": session, "credentials": ALICE, "attempts": 4, "pause": 0.001}
    return Options(**{**fields, **changes})


def client(host: str, **changes: Any) -> Client:
    return Client(parse(f"{host}/x"), options(**changes))


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let names below `test` lead to this host, so that a registry is not one of the loopback interface."""
    real = socket.getaddrinfo

    def resolve(host: str, *words: Any, **options: Any) -> Any:
        return real("127.0.0.1" if host.endswith(".test") else host, *words, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def elsewhere(registry: FakeRegistry) -> str:
    return registry.host.replace("127.0.0.1", NAME)


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_a_storage_host_that_asks_for_the_password_does_not_get_it(auth: str) -> None:
    with serve(FakeRegistry(auth=auth)) as registry, serve(FakeRegistry(auth="bearer")) as storage:

        def send_on(handler: Handler) -> bool:
            if "/blobs/" not in handler.path or "Authorization" not in handler.headers:
                return False
            handler.reply(307, headers={"Location": f"http://{storage.host}{handler.path}"})
            return True

        registry.interfere = send_on
        with pytest.raises(RegistryError, match=f"{storage.host}, which asks for a password; none was sent"):
            client(registry.host).request("GET", f"blobs/{MISSING}")
        assert storage.count("GET", "/blobs/") == 1
        assert storage.token_requests == []
        assert not any(line.endswith("!") for line in storage.log)


def test_an_upload_at_another_host_that_asks_for_the_password_does_not_get_it() -> None:
    with serve(FakeRegistry(auth="basic")) as registry, serve(FakeRegistry(auth="bearer")) as storage:
        made = client(registry.host)
        made.head_manifest("one")
        with pytest.raises(RegistryError, match="none was sent"):
            made.request("PUT", f"http://{storage.host}/v2/x/blobs/uploads/1", wanted=(201,))
        assert storage.token_requests == []
        assert not any(line.endswith("!") for line in storage.log)


@pytest.mark.usefixtures("named")
def test_an_untrusted_certificate_is_final_with_plain_http(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "own.pem", NAME)
    with serve(FakeRegistry(auth="basic"), certificate) as registry:
        with pytest.raises(RegistryError, match=f"the certificate of {NAME}.* is not trusted"):
            client(elsewhere(registry), insecure=True).head_manifest("one")
        assert registry.log == [], "nothing was sent by plain HTTP"


@pytest.mark.usefixtures("named")
def test_a_greeting_that_breaks_off_does_not_lead_to_plain_http() -> None:
    with serve(FakeRegistry(auth="basic"), "hang up") as registry:
        with pytest.raises(RegistryError, match="gave up after 4 attempts"):
            client(elsewhere(registry), insecure=True).head_manifest("one")
        assert registry.log == []


@pytest.mark.usefixtures("named")
def test_plain_http_is_spoken_where_tls_is_not() -> None:
    with serve(FakeRegistry(auth="basic")) as registry:
        assert not client(elsewhere(registry), insecure=True).head_manifest("one")
        assert any(line.endswith("!") for line in registry.log)
        with pytest.raises(RegistryError, match="does not speak TLS"):
            client(elsewhere(registry)).head_manifest("one")


@pytest.mark.usefixtures("named")
def test_tls_comes_first_where_plain_http_is_allowed(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "own.pem", NAME)
    with serve(FakeRegistry(auth="basic"), certificate) as registry:
        host = elsewhere(registry)
        made = client(host, insecure=True, trust={host: Trust(authorities=(certificate,))})
        assert not made.head_manifest("one")
        assert made.url("x").startswith("https://")


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("tls", [True, False])
def test_a_token_server_of_plain_http_is_for_registries_of_plain_http(tmp_path: Path, *, tls: bool) -> None:
    certificate = self_signed(tmp_path / "own.pem", NAME)
    with serve(FakeRegistry(auth="bearer"), certificate if tls else "plain") as registry:
        host = elsewhere(registry)
        made = client(host, insecure=True, trust={host: Trust(authorities=(certificate,))})
        if tls:
            with pytest.raises(RegistryError, match="wants the password sent over plain HTTP"):
                made.head_manifest("one")
        else:
            made.head_manifest("one")
        assert bool(registry.token_requests) is not tls


@pytest.mark.usefixtures("named")
def test_a_registry_on_this_host_sends_no_password_elsewhere_over_plain_http() -> None:
    with serve(FakeRegistry()) as tokens, serve(FakeRegistry()) as registry:

        def ask(handler: Handler) -> bool:
            realm = f'Bearer realm="http://{elsewhere(tokens)}/token"'
            handler.reply(401, headers={"WWW-Authenticate": realm})
            return True

        registry.interfere = ask
        with pytest.raises(RegistryError, match="wants the password sent over plain HTTP"):
            client(registry.host).head_manifest("one")
        assert tokens.log == []


# Retries


def away(status: int, *, but: str) -> Any:
    """Answer everything but this path with a status that passes."""

    def interfere(handler: Handler) -> bool:
        if handler.path == but:
            return False
        handler.reply(status)
        return True

    return interfere


def test_a_manifest_has_one_budget_of_tries() -> None:
    answered: list[str] = []

    def interfere(handler: Handler) -> bool:
        if handler.path == "/v2/":
            return False
        answered.append(handler.path)
        if len(answered) % 4:
            handler.reply(503)
            return True
        # One answer of four begins well, and breaks off.
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.close_connection = True
        return True

    with serve(FakeRegistry(interfere=interfere)) as registry:
        with pytest.raises(RegistryError, match=r"gave up after 4 attempts in \d+ s"):
            client(registry.host).get_manifest("one")
        assert len(answered) == 4


def test_a_layer_has_one_budget_of_tries(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"x" * 100)
    blob = Blob(digest=MISSING, size=100, path=path)
    with serve(FakeRegistry()) as registry:

        def refuse(handler: Handler) -> bool:
            if handler.command == "POST":
                handler.refuse(503, "UNAVAILABLE")
            return handler.command == "POST"

        registry.interfere = refuse
        with pytest.raises(RegistryError, match="gave up after 4 attempts"):
            Upload(client(registry.host), blob, "", lambda _: None).run()
        assert registry.count("POST", "/uploads/") == 4


def test_an_upload_whose_place_is_gone_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"x" * 100)
    blob = Blob(digest=f"sha256:{hashlib.sha256(b'x' * 100).hexdigest()}", size=100, path=path)
    with serve(FakeRegistry()) as registry:

        def lose_the_first(handler: Handler) -> bool:
            if not handler.path.endswith("/u1"):
                return False
            handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
            handler.reply(503)
            return True

        registry.interfere = lose_the_first
        made = client(registry.host, attempts=8)
        assert Upload(made, blob, "", lambda _: None).run() == "pushed"
        assert (registry.opened, made.retries) == (2, 4)


def test_the_session_of_a_registry_does_not_retry_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_RETRY_PAUSE", 0.001)
    with serve(FakeRegistry(interfere=away(503, but="/v2/"))) as registry:
        found = options_for(Site(), registry.host)
        few = dataclasses.replace(found, attempts=3, pause=0.001, credentials=ALICE)
        with pytest.raises(RegistryError, match="gave up after 3 attempts"):
            Client(parse(f"{registry.host}/x"), few).head_manifest("one")
        assert registry.count("HEAD", "/manifests/") == 3


def test_a_budget_ends_by_time_too() -> None:
    budget = Budget(attempts=1000, seconds=1.0, pause=0.3)
    assert 0.3 <= (budget.spend() or 0) <= 0.4
    assert budget.spend(asked=30.0) is None
    assert re.fullmatch("2 attempts in 0 s", str(budget))
    budget.progressed()
    assert budget.spend() is not None
