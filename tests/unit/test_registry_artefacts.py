"""Attaching to an image: with the referrers API, with the tag that stands in for it, and in bad company."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from imagebuilder.core import documents
from imagebuilder.errors import RegistryError
from imagebuilder.registry import Client, Options, artefacts, parse, reader
from imagebuilder.registry.artefacts import Artefact, ArtefactBlob
from imagebuilder.registry.credentials import ANONYMOUS
from imagebuilder.registry.reader import OCI_INDEX, OCI_MANIFEST, Descriptor
from tests.support.fake_registry import FakeRegistry, Handler, serve

DIGEST = f"sha256:{'a' * 64}"
SUBJECT = Descriptor(media_type=OCI_MANIFEST, digest=DIGEST, size=100)


@pytest.fixture(params=[False, True], ids=["tag", "api"])
def registry(request: pytest.FixtureRequest) -> Iterator[FakeRegistry]:
    with serve(FakeRegistry(lists_referrers=request.param)) as running:
        yield running


@pytest.fixture
def old() -> Iterator[FakeRegistry]:
    with serve(FakeRegistry()) as running:
        yield running


def client(registry: FakeRegistry) -> Client:
    options = Options(session=requests.Session(), credentials=ANONYMOUS, attempts=3, pause=0.01)
    return Client(parse(f"{registry.host}/team/x"), options, "pull,push")


def artefact(data: bytes = b"{}", kind: str = "application/x.test") -> Artefact:
    return Artefact(
        artifact_type=kind,
        subject=SUBJECT,
        parts=(ArtefactBlob(media_type=kind, data=data, annotations={"title": "a"}),),
        annotations={"about": "tests"},
    )


def test_the_manifest_is_as_the_specification_has_it() -> None:
    manifest = json.loads(artefact(b"data").manifest())
    assert manifest["config"] == {
        "mediaType": "application/vnd.oci.empty.v1+json",
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "size": 2,
    }
    assert manifest["artifactType"] == "application/x.test"
    assert manifest["subject"] == {"mediaType": OCI_MANIFEST, "digest": DIGEST, "size": 100}
    assert [layer["size"] for layer in manifest["layers"]] == [4]


def test_what_is_attached_is_listed(registry: FakeRegistry) -> None:
    there = client(registry)
    digests = set(artefacts.attach(there, [artefact(b"one"), artefact(b"two")]))
    assert len(digests) == 2
    assert {item.digest for item in reader.referrers(there, DIGEST)} == digests
    assert {item.artifact_type for item in reader.referrers(there, DIGEST)} == {"application/x.test"}
    assert (("team/x", reader.fallback_tag(DIGEST)) in registry.manifests) != registry.lists_referrers


def test_attaching_again_changes_nothing(registry: FakeRegistry) -> None:
    there = client(registry)
    first = artefacts.attach(there, [artefact()])
    before, sent = dict(registry.manifests), registry.count("PUT", "")
    assert artefacts.attach(there, [artefact()]) == first
    assert registry.manifests == before
    assert registry.count("PUT", "") == sent
    # The other blob is that of the empty config, which is the same for all.
    assert artefacts.attach(there, [artefact(b"more")])
    assert registry.count("POST", "/blobs/uploads/") == 2


def test_nothing_attached(registry: FakeRegistry) -> None:
    assert artefacts.attach(client(registry), []) == ()
    assert reader.referrers(client(registry), DIGEST) == ()


def test_entries_of_others_are_kept(old: FakeRegistry) -> None:
    foreign = {
        "mediaType": OCI_MANIFEST,
        "digest": f"sha256:{'b' * 64}",
        "size": 7,
        "annotations": {"x": "y"},
    }
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [foreign]}
    tag = reader.fallback_tag(DIGEST)
    old.manifests["team/x", tag] = (OCI_INDEX, json.dumps(index).encode())
    artefacts.attach(client(old), [artefact()])
    rows = json.loads(old.manifests["team/x", tag][1])["manifests"]
    assert rows[0] == foreign
    assert len(rows) == 2


def test_two_at_once_lose_nothing(old: FakeRegistry) -> None:
    tag = reader.fallback_tag(DIGEST)
    foreign = {"mediaType": OCI_MANIFEST, "digest": f"sha256:{'b' * 64}", "size": 7}
    index = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [foreign]}).encode()
    seen: list[str] = []

    def overwrite(handler: Handler) -> bool:
        # Just after our list, somebody else puts theirs, made before ours was there.
        if handler.command == "GET" and handler.path.endswith(tag) and seen == ["PUT"]:
            seen.append("GET")
            old.manifests["team/x", tag] = (OCI_INDEX, index)
        if handler.command == "PUT" and handler.path.endswith(tag):
            seen.append("PUT")
        return False

    old.interfere = overwrite
    (digest,) = artefacts.attach(client(old), [artefact()])
    rows = json.loads(old.manifests["team/x", tag][1])["manifests"]
    assert {row["digest"] for row in rows} == {digest, foreign["digest"]}


def test_a_tag_that_is_taken(old: FakeRegistry) -> None:
    old.manifests["team/x", reader.fallback_tag(DIGEST)] = (OCI_MANIFEST, b"{}")
    with pytest.raises(RegistryError, match="is not a list of artefacts"):
        artefacts.attach(client(old), [artefact()])


def test_an_upload_that_is_forgotten_is_done_again(old: FakeRegistry) -> None:
    forgotten: list[str] = []

    def forget(handler: Handler) -> bool:
        if handler.command == "PUT" and "digest=" in handler.path and not forgotten:
            forgotten.append(handler.path)
            handler._drain()
            handler.refuse(404, "BLOB_UPLOAD_UNKNOWN")
            return True
        return False

    old.interfere = forget
    artefacts.put_blob(client(old), b"data")
    assert ("team/x", documents.digest_of(b"data")) in old.blobs
    assert forgotten


def blob(registry: FakeRegistry, data: bytes, **changes: Any) -> Descriptor:
    digest = documents.digest_of(data)
    registry.blobs["team/x", digest] = data
    fields = {"media_type": "text/plain", "digest": digest, "size": len(data)}
    return Descriptor(**{**fields, **changes})


def test_blobs_are_held_to_digest_size_and_limit(old: FakeRegistry) -> None:
    there = client(old)
    assert reader.blob(there, blob(old, b"right")) == b"right"
    with pytest.raises(RegistryError, match="other bytes"):
        reader.blob(there, blob(old, b"longer than announced", size=4))
    with pytest.raises(RegistryError, match="too large"):
        reader.blob(there, blob(old, b"x", size=1 << 40))
    wrong = blob(old, b"wrong")
    old.blobs["team/x", wrong.digest] = b"other"
    with pytest.raises(RegistryError, match="other bytes"):
        reader.blob(there, wrong)


def test_a_blob_without_end_is_not_read_to_its_end(old: FakeRegistry) -> None:
    announced = blob(old, b"small")
    old.blobs["team/x", announced.digest] = b"x" * 50_000_000
    with pytest.raises(RegistryError, match="other bytes"):
        reader.blob(client(old), announced)


def test_a_blob_that_is_cut_is_read_again(old: FakeRegistry) -> None:
    announced = blob(old, b"data" * 1000)
    cut: list[str] = []

    def cut_once(handler: Handler) -> bool:
        if handler.command == "GET" and announced.digest in handler.path and not cut:
            cut.append(handler.path)
            handler.send_response(200)
            handler.send_header("Content-Length", "4000")
            handler.end_headers()
            handler.wfile.write(b"data" * 10)
            handler.close_connection = True
            return True
        return False

    old.interfere = cut_once
    assert reader.blob(client(old), announced) == b"data" * 1000
    assert cut


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{}", "schemaVersion"),
        (b"[]", "not a document"),
        (b"\xff", "not a document"),
        (b'{"schemaVersion": 2, "config": {"mediaType": "x", "digest": "md5:1", "size": 1}}', "digest"),
        (b'{"schemaVersion": 2, "config": {"mediaType": "x", "digest": "../../x", "size": 1}}', "digest"),
        (b'{"schemaVersion": 2, "config": "\x1b[31m"}', "not a document"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not a document"),
    ],
)
def test_manifests_that_are_none(old: FakeRegistry, data: bytes, words: str) -> None:
    old.manifests["team/x", "tag"] = (OCI_MANIFEST, data)
    with pytest.raises(RegistryError, match=words) as refused:
        reader.image_manifest(client(old), "tag")
    assert "\x1b" not in str(refused.value)


def test_an_index_is_not_an_image(old: FakeRegistry) -> None:
    old.manifests["team/x", "tag"] = (OCI_INDEX, b"{}")
    with pytest.raises(RegistryError, match="not the manifest of one image"):
        reader.image_manifest(client(old), "tag")


def answer(data: bytes, headers: dict[str, str], part: str) -> Callable[[Handler], bool]:
    def interfere(handler: Handler) -> bool:
        if part in handler.path:
            handler.reply(200, data, headers)
            return True
        return False

    return interfere


def test_tags_come_in_pages(old: FakeRegistry) -> None:
    def pages(handler: Handler) -> bool:
        if "tags/list" not in handler.path:
            return False
        if "last=b" in handler.path:
            handler.reply(200, b'{"tags": ["c"]}')
        else:
            link = '</v2/team/x/tags/list?last=b&n=2>; rel="next"'
            handler.reply(200, b'{"tags": ["a", "b"]}', {"Link": link})
        return True

    old.interfere = pages
    assert reader.tags(client(old)) == ("a", "b", "c")


def test_pages_do_not_lead_elsewhere_or_on_for_ever(old: FakeRegistry) -> None:
    old.interfere = answer(
        b'{"tags": ["a"]}', {"Link": '<http://elsewhere.example/v2/>; rel="next"'}, "tags/list"
    )
    assert reader.tags(client(old)) == ("a",)
    old.interfere = answer(
        b'{"tags": ["a"]}', {"Link": '</v2/team/x/tags/list?again>; rel="next"'}, "tags/list"
    )
    assert reader.tags(client(old)) == ("a",)
    assert old.count("GET", "tags/list?again") == 99


def test_a_list_has_a_limit(old: FakeRegistry) -> None:
    old.interfere = answer(b" " * 5_000_000, {}, "referrers/")
    with pytest.raises(RegistryError, match="4 MiB"):
        reader.referrers(client(old), DIGEST)
