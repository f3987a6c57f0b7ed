from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from imagebuilder.errors import GateError, InputError, RegistryError, StoreError
from imagebuilder.publish import proof
from imagebuilder.registry import Client, Options, faults, parse
from imagebuilder.registry.credentials import ANONYMOUS, Credentials
from imagebuilder.smoke import report as reports
from imagebuilder.store import ImageRecord, Store
from tests.support.fake_registry import FakeRegistry, Handler, serve
from tests.support.images import noise, put_image
from tests.support.proven import report_of
from tests.support.pushing import push

ALICE = Credentials(user="alice", password="secret")
BIG = bytes(range(256)) * 16_384
NOISE = noise(7, 300_000)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serve(FakeRegistry()) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store) -> ImageRecord:
    return put_image(store, [{"a": BIG}, {"b": NOISE}])


def options(credentials: Credentials = ANONYMOUS, attempts: int = 4) -> Options:
    return Options(session=requests.Session(), credentials=credentials, attempts=attempts, pause=0.01)


def test_pushes_blobs_then_the_manifest_then_tags(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    counted: list[int] = []
    result = push(
        image, store, f"{registry.host}/team/torch:one", ["two"], options=options(), advance=counted.append
    )
    assert result.digest == image.manifest
    assert result.reference == f"{registry.host}/team/torch@{image.manifest}"
    assert result.tags == ("one", "two")
    assert (result.pushed_blobs, result.reused_blobs) == (3, 0)
    assert result.pushed_bytes == registry.received == sum(map(len, registry.blobs.values()))
    assert sum(counted) == image.size
    for name in ("one", "two", image.manifest):
        assert registry.manifests["team/torch", name][1] == store.blob(image.manifest).read_bytes()
    puts = [line for line in registry.log if line.startswith("PUT")]
    assert [line.rpartition("/")[2] for line in puts[-3:]] == [image.manifest, "one", "two"]
    assert all("/blobs/uploads/" in line for line in puts[:-3])


def test_a_second_push_sends_nothing(registry: FakeRegistry, store: Store, image: ImageRecord) -> None:
    push(image, store, f"{registry.host}/torch:x", options=options())
    registry.log.clear()
    result = push(image, store, f"{registry.host}/torch:x", options=options())
    assert (result.pushed_bytes, result.pushed_blobs, result.reused_blobs) == (0, 0, 3)
    assert {line.split()[0] for line in registry.log} == {"GET", "HEAD"}


def test_blobs_of_another_repository_are_linked(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    push(image, store, f"{registry.host}/one:x", options=options())
    before = registry.received
    result = push(image, store, f"{registry.host}/two:x", options=options())
    assert (result.mounted_blobs, result.pushed_bytes, registry.received) == (3, 0, before)


def test_a_link_that_fails_becomes_an_upload(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    push(image, store, f"{registry.host}/one:x", options=options())
    registry.blobs.clear()
    result = push(image, store, f"{registry.host}/two:x", options=options())
    assert (result.mounted_blobs, result.pushed_blobs) == (0, 3)


def test_a_refused_link_becomes_an_upload(registry: FakeRegistry, store: Store, image: ImageRecord) -> None:
    push(image, store, f"{registry.host}/one:x", options=options())

    def refuse_links(handler: Handler) -> bool:
        if "from=one" in handler.path:
            handler.refuse(403, "DENIED")
            return True
        return False

    registry.interfere = refuse_links
    assert push(image, store, f"{registry.host}/two:x", options=options()).pushed_blobs == 3


def test_a_cut_upload_goes_on_where_it_stopped(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    registry.cut_after = 100_000
    counted: list[int] = []
    result = push(image, store, f"{registry.host}/torch:x", options=options(), advance=counted.append)
    assert registry.received == result.pushed_bytes
    assert sum(counted) == image.size


def test_a_cut_upload_begins_anew_where_the_registry_kept_nothing(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    registry.cut_after, registry.resumable = 100_000, False
    counted: list[int] = []
    result = push(image, store, f"{registry.host}/torch:x", options=options(), advance=counted.append)
    assert registry.received == result.pushed_bytes + 100_000
    assert sum(counted) == image.size


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_registry_is_asked_again(
    registry: FakeRegistry, store: Store, image: ImageRecord, status: int
) -> None:
    failing = {"HEAD": 1, "POST": 2, "PATCH": 1, "PUT": 1}

    def fail_first(handler: Handler) -> bool:
        with registry.lock:
            if not failing.get(handler.command):
                return False
            failing[handler.command] -= 1
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        handler.reply(status, headers={"Retry-After": "0"})
        return True

    registry.interfere = fail_first
    push(image, store, f"{registry.host}/torch:x", options=options())
    assert registry.manifests["torch", "x"]
    assert not any(failing.values())


def test_gives_up_in_the_end(registry: FakeRegistry, store: Store, image: ImageRecord) -> None:
    def fail(handler: Handler) -> bool:
        if handler.command == "POST":
            handler.refuse(503, "UNAVAILABLE")
        return handler.command == "POST"

    registry.interfere = fail
    with pytest.raises(RegistryError, match="503"):
        push(image, store, f"{registry.host}/torch:x", options=options(attempts=2))
    assert not registry.manifests


def test_basic_sign_in(registry: FakeRegistry, store: Store, image: ImageRecord) -> None:
    registry.auth = "basic"
    push(image, store, f"{registry.host}/torch:x", options=options(ALICE))
    assert registry.manifests["torch", "x"]


@pytest.mark.parametrize("credentials", [ALICE, Credentials(identity_token="refresh-1")])
def test_token_sign_in(
    registry: FakeRegistry, store: Store, image: ImageRecord, credentials: Credentials
) -> None:
    registry.auth = "bearer"
    push(image, store, f"{registry.host}/torch:x", options=options(credentials))
    assert registry.manifests["torch", "x"]
    assert len(registry.token_requests) == 1
    assert registry.token_requests[0]["scope"] == ["repository:torch:pull,push"]
    assert registry.token_requests[0]["service"] == ["fake"]


def test_a_token_that_runs_out_is_renewed(registry: FakeRegistry, store: Store, image: ImageRecord) -> None:
    registry.auth = "bearer"

    def expire(handler: Handler) -> bool:
        if handler.command == "PATCH" and registry.token == "token-1":
            registry.token = "token-2"
        return False

    registry.interfere = expire
    push(image, store, f"{registry.host}/torch:x", options=options(ALICE))
    assert registry.manifests["torch", "x"]
    assert len(registry.token_requests) >= 2


@pytest.mark.parametrize("auth", ["basic", "bearer"])
@pytest.mark.parametrize("credentials", [ANONYMOUS, Credentials(user="alice", password="wrong-pw")])
def test_a_wrong_password_says_how_to_sign_in(
    registry: FakeRegistry, store: Store, image: ImageRecord, auth: str, credentials: Credentials
) -> None:
    registry.auth = auth
    with pytest.raises(RegistryError) as caught:
        push(image, store, f"{registry.host}/torch:x", options=options(credentials))
    assert f"docker login {registry.host}" in str(caught.value)
    assert "wrong-pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "DENIED", "does not let this account"),
        (404, "NAME_UNKNOWN", "no such repository"),
        (400, "NAME_INVALID", "does not take that repository's name"),
        (413, "", "client_max_body_size"),
        (405, "UNSUPPORTED", "read-only"),
    ],
)
def test_refusals_say_what_to_do(
    registry: FakeRegistry, store: Store, image: ImageRecord, status: int, code: str, words: str
) -> None:
    def refuse(handler: Handler) -> bool:
        if handler.command == "POST":
            handler.refuse(status, code, "because \x1b[31mred")
        return handler.command == "POST"

    registry.interfere = refuse
    with pytest.raises(RegistryError) as caught:
        push(image, store, f"{registry.host}/torch:x", options=options())
    assert words in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "\n  -> " in str(caught.value)


def test_nothing_listens(store: Store, image: ImageRecord) -> None:
    with serve(FakeRegistry()) as gone:
        host = gone.host
    with pytest.raises(RegistryError, match="nothing listens"):
        push(image, store, f"{host}/torch:x", options=options())


def test_another_server_is_not_a_registry(registry: FakeRegistry, store: Store, image: ImageRecord) -> None:
    def web_page(handler: Handler) -> bool:
        handler.reply(404, b"<html>")
        return True

    registry.interfere = web_page
    with pytest.raises(RegistryError, match="is not a registry"):
        push(image, store, f"{registry.host}/torch:x", options=options())


def test_credentials_do_not_follow_a_redirect(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    registry.auth = "basic"
    with serve(FakeRegistry()) as other:
        push(image, store, f"{other.host}/torch:x", options=options())
        other.log.clear()

        def send_on(handler: Handler) -> bool:
            if "/manifests/" not in handler.path or "Authorization" not in handler.headers:
                return False
            handler.reply(307, headers={"Location": f"http://{other.host}{handler.path}"})
            return True

        registry.interfere = send_on
        client = Client(parse(f"{registry.host}/torch"), options(ALICE))
        assert client.get_manifest("x").digest == image.manifest
        assert other.count("GET", "/manifests/x") == 1
        assert not any(line.endswith("!") for line in other.log)


def test_an_upload_at_another_host_gets_no_credentials(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    registry.auth = "basic"
    with serve(FakeRegistry()) as other:

        def elsewhere(handler: Handler) -> bool:
            if handler.command != "POST" or "Authorization" not in handler.headers:
                return False
            handler.reply(202, headers={"Location": f"http://{other.host}/v2/torch/blobs/uploads/none"})
            return True

        registry.interfere = elsewhere
        with pytest.raises(RegistryError):
            push(image, store, f"{registry.host}/torch:x", options=options(ALICE, attempts=1))
        assert other.count("PATCH", "/uploads/none") > 0
        assert not any(line.endswith("!") for line in other.log)


def test_a_manifest_must_be_what_its_digest_says(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    push(image, store, f"{registry.host}/torch:x", options=options())
    registry.manifests["torch", image.manifest] = ("application/json", b"{}")
    with pytest.raises(RegistryError, match="gave a manifest with the digest"):
        Client(parse(f"{registry.host}/torch"), options()).get_manifest(image.manifest)


def test_a_manifest_has_a_limit(registry: FakeRegistry, store: Store, image: ImageRecord) -> None:
    push(image, store, f"{registry.host}/torch:x", options=options())
    registry.manifests["torch", "huge"] = ("application/json", b" " * (4 * 1024 * 1024 + 1))
    with pytest.raises(RegistryError, match="larger than 4 MiB"):
        Client(parse(f"{registry.host}/torch"), options()).get_manifest("huge")


def test_head_of_what_is_not_there(registry: FakeRegistry) -> None:
    assert not Client(parse(f"{registry.host}/torch"), options()).head_manifest("missing")


def test_a_blob_that_is_gone(registry: FakeRegistry, store: Store, image: ImageRecord) -> None:
    store.blob(image.layers[0].record.digest).unlink()
    with pytest.raises(StoreError, match="gone or damaged"):
        push(image, store, f"{registry.host}/torch:x", options=options())
    assert not registry.log


def test_a_blob_with_a_flipped_bit(registry: FakeRegistry, store: Store, image: ImageRecord) -> None:
    path = store.blob(image.layers[0].record.digest)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(StoreError, match="gone or damaged"):
        push(image, store, f"{registry.host}/torch:x", options=options())
    assert not registry.manifests


@pytest.mark.parametrize("reference", ["host.example/torch", "host.example/torch@sha256:" + "a" * 64])
def test_a_push_needs_a_tag(store: Store, image: ImageRecord, reference: str) -> None:
    with pytest.raises(InputError):
        push(image, store, reference, options=options())


def test_a_tag_that_stands_for_another_image_stays(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    push(image, store, f"{registry.host}/torch:cu12", ["latest"], options=options())
    other = put_image(store, [{"c": b"other"}])
    before, sent = dict(registry.manifests), registry.received
    with pytest.raises(GateError, match="the tag cu12 points to another image") as caught:
        push(other, store, f"{registry.host}/torch:cu12", ["latest", "new"], options=options())
    assert [problem.where for problem in caught.value.problems] == [
        f"{registry.host}/torch:{tag}" for tag in ("cu12", "latest")
    ]
    assert all("--move" in problem.hint for problem in caught.value.problems)
    assert (registry.manifests, registry.received) == (before, sent)
    moved = push(other, store, f"{registry.host}/torch:cu12", ["latest", "new"], options=options(), move=True)
    assert moved.moved == (("cu12", image.manifest), ("latest", image.manifest))
    assert registry.manifests["torch", "latest"] == registry.manifests["torch", other.manifest]


def test_an_image_s_own_tags_follow_it_and_others_stay(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    push(image, store, f"{registry.host}/torch:torch2.10", ["cu12"], options=options())
    other = put_image(store, [{"c": b"other"}])
    result = push(other, store, f"{registry.host}/torch:torch2.10", options=options(), own=("torch2.10",))
    assert result.moved == (("torch2.10", image.manifest),)
    with pytest.raises(GateError, match="the tag cu12") as caught:
        push(
            other, store, f"{registry.host}/torch:torch2.10", ["cu12"], options=options(), own=("torch2.10",)
        )
    assert len(caught.value.problems) == 1


def test_an_own_tag_of_another_recipe_s_image_stays_and_both_are_named(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    reference = f"{registry.host}/torch:torch2.10"
    push(image, store, reference, options=options(), own=("torch2.10",))
    other = put_image(store, [{"c": b"other"}], name="other")
    before = dict(registry.manifests)
    with pytest.raises(GateError) as caught:
        push(other, store, reference, options=options(), own=("torch2.10",))
    assert registry.manifests == before
    (problem,) = caught.value.problems
    assert problem.message == (
        f"the tag torch2.10 points to another image, {image.manifest} of the recipe `sample`, "
        "and this one is of `other`"
    )
    assert "--move" in problem.hint
    moved = push(other, store, reference, options=options(), own=("torch2.10",), move=True)
    assert moved.moved == (("torch2.10", image.manifest),)


@pytest.mark.parametrize("config", [b"{}", b'{"config": {"Labels": null}}', b"no JSON"])
def test_an_own_tag_of_another_tool_s_image_stays(
    config: bytes, registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
    registry.blobs["torch", digest] = config
    kind = "application/vnd.oci.image.manifest.v1+json"
    named = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": len(config)}
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": named, "layers": []}
    data = json.dumps(manifest).encode()
    for name in ("x", f"sha256:{hashlib.sha256(data).hexdigest()}"):
        registry.manifests["torch", name] = (kind, data)
    with pytest.raises(GateError, match="without the name of a recipe, and this one is of `sample`"):
        push(image, store, f"{registry.host}/torch:x", options=options(), own=("x",))


def test_a_tag_that_somebody_else_sets_meanwhile_is_not_moved(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    other = put_image(store, [{"c": b"other"}])
    push(other, store, f"{registry.host}/torch:other", options=options())

    def set_meanwhile(handler: Handler) -> bool:
        if handler.command == "PUT" and image.manifest in handler.path:
            registry.manifests["torch", "x"] = registry.manifests["torch", "other"]
        return False

    registry.interfere = set_meanwhile
    with pytest.raises(GateError, match="points to another image"):
        push(image, store, f"{registry.host}/torch:x", options=options())
    assert registry.manifests["torch", "x"] == registry.manifests["torch", "other"]


def test_after_a_failure_a_layer_travels_in_pieces(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    limit = 65_536

    def refuse_large(handler: Handler) -> bool:
        if handler.command != "PATCH" or int(handler.headers["Content-Length"]) <= limit:
            return False
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.reply(413)
        return True

    registry.interfere = refuse_large
    result = push(image, store, f"{registry.host}/torch:x", options=replace(options(), chunk=limit))
    assert registry.manifests["torch", "x"]
    assert registry.received == result.pushed_bytes
    assert result.resent_bytes > 0
    assert registry.count("PATCH", "/uploads/") > 4


def test_a_manifest_that_breaks_off_is_read_again(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    push(image, store, f"{registry.host}/torch:x", options=options())
    broken: list[str] = []

    def break_off(handler: Handler) -> bool:
        if handler.command != "GET" or "/manifests/" not in handler.path or broken:
            return False
        broken.append(handler.path)
        data = registry.manifests["torch", "x"][1]
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:100])
        handler.close_connection = True
        return True

    registry.interfere = break_off
    assert Client(parse(f"{registry.host}/torch"), options()).get_manifest("x").digest == image.manifest
    assert broken


def test_a_token_server_that_is_overloaded_is_asked_again(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    registry.auth = "bearer"
    refused: list[str] = []

    def overloaded(handler: Handler) -> bool:
        if not handler.path.startswith("/token") or len(refused) > 1:
            return False
        refused.append(handler.path)
        handler.reply(503)
        return True

    registry.interfere = overloaded
    result = push(image, store, f"{registry.host}/torch:x", options=options(ALICE))
    assert (len(refused), result.retries) == (2, 2)


def test_a_registry_that_breaks_at_the_first_greeting_is_asked_again(
    registry: FakeRegistry, store: Store, image: ImageRecord
) -> None:
    broken: list[str] = []

    def break_off(handler: Handler) -> bool:
        handler.close_connection = handler.path == "/v2/" and len(broken) < 2
        broken.append(handler.path)
        return handler.close_connection

    registry.interfere = break_off
    assert push(image, store, f"{registry.host}/torch:x", options=options()).retries > 0


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("7", 7, 7),
        ("", 0, 0),
        ("soon", 0, 0),
        ("-3", 0, 0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 10**7, 10**10),
    ],
)
def test_how_long_a_registry_asks_to_wait(value: str, low: float, high: float) -> None:
    reply = requests.Response()
    reply.headers["Retry-After"] = value
    assert low <= faults.retry_after(reply) <= high


def test_no_push_without_proof(store: Store, image: ImageRecord) -> None:
    with pytest.raises(GateError, match="imagebuilder smoke-test sample"):
        proof.require(image, store)


def checks(**changes: object) -> list[dict[str, object]]:
    """Give the checks of a passing report, the first of them changed."""
    first, *others = json.loads(reports.dumps(report_of(IMAGE)))["checks"]
    return [{**first, **changes}, *others]


DIGEST = "sha256:" + "a" * 64
IMAGE = ImageRecord(
    name="x", manifest=DIGEST, config=DIGEST, size=1, tag="x", tags=("x",), lock="", layers=()
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"passed": False}, "contradicts itself"),
        ({"passed": "yes"}, "cannot be read"),
        ({"config": "", "digest": "sha256:" + "b" * 64}, "about another image"),
        ({"checks": []}, "required checks did not run: clock, contents, disk, environment"),
        ({"checks": checks(status="failed")}, "the smoke test failed"),
        ({"checks": checks(status="failed", required=False)}, "the smoke test failed"),
        ({"checks": checks(status="skipped")}, "required checks did not run: mpirun"),
        ({"checks": checks()[:-2]}, "required checks did not run: ssh"),
        ({"checks": checks(exchanges=False)}, "computed nothing together"),
        ({"pins": {"torch": "2.10.0"}}, "did not run: collectives, control, rendezvous"),
        ({"runtime": "process"}, "without containers"),
    ],
)
def test_no_push_without_a_passing_report(
    store: Store, image: ImageRecord, change: dict[str, object], words: str
) -> None:
    """`passed: true` proves nothing by itself: the verdict follows from the checks."""
    path = store.report(image.manifest)
    path.parent.mkdir(parents=True)
    reports.write(report_of(image), path)
    proof.require(image, store)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(GateError, match=words):
        proof.require(image, store)
    path.write_text("not JSON")
    with pytest.raises(GateError, match="cannot be read"):
        proof.require(image, store)
