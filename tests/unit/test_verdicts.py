"""Verdicts on layers: one by a key that the site names spares reading the layer, others count nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imagebuilder.host.site import Site
from imagebuilder.publish import leaks, verdicts
from imagebuilder.publish.attest import envelope, licences
from imagebuilder.publish.leaks import rules
from imagebuilder.registry.cache import Cache
from imagebuilder.store import ImageRecord, Store
from tests.support.fake_registry import FakeRegistry, Handler, serve
from tests.support.images import put_image

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
METADATA = b"Metadata-Version: 2.4\nName: demo\nVersion: 1\nLicense-Expression: MIT\n"
SECRET = b"AWS_SECRET_ACCESS_KEY=" + b"wJalrXUtnFEMI" + b"/K7MDENG/bPxRfiCYzzqkTpLQw9"


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serve(FakeRegistry()) as running:
        yield running


@pytest.fixture
def site(registry: FakeRegistry) -> Site:
    return Site(cache=f"{registry.host}/team/cache")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store) -> ImageRecord:
    made = put_image(store, [{"opt/venv/lib/demo-1.dist-info/METADATA": METADATA}, {"opt/app/.env": SECRET}])
    leaks.scan(made, store)
    return made


def digests(image: ImageRecord) -> tuple[str, ...]:
    return tuple(layer.record.digest for layer in image.layers)


def taken(
    image: ImageRecord, folder: Path, site: Site, *keys: ec.EllipticCurvePrivateKey
) -> tuple[int, Store, list[str]]:
    """Take verdicts on a host that has no layer."""
    notes: list[str] = []
    other = Store(folder / "other")
    cache = Cache(site.cache, site, notes.append)
    count = verdicts.take(digests(image), cache, [key.public_key() for key in keys], other, ())
    return count, other, notes


def test_a_trusted_verdict_stands_for_reading_the_layer(
    image: ImageRecord, store: Store, site: Site, tmp_path: Path
) -> None:
    assert verdicts.put(digests(image), KEY, store, site, ()) == 2
    count, other, _ = taken(image, tmp_path, site, OTHER, KEY)
    assert count == 2
    assert verdicts.lacking(digests(image), other, (), attach=True) == ()
    for digest in digests(image):
        assert leaks.recall(other, digest) == leaks.recall(store, digest)
    assert leaks.recall(other, digests(image)[1]).findings  # type: ignore[union-attr]
    # With other data of this host to search for, too: the layer was not made here.
    assert (
        verdicts.lacking(digests(image), other, leaks.marks(site, tmp_path, other.root), attach=False) != ()
    )


@pytest.mark.parametrize("keys", [(), (OTHER,)])
def test_a_verdict_of_nobody_known_counts_nothing(
    image: ImageRecord,
    store: Store,
    site: Site,
    tmp_path: Path,
    keys: tuple[ec.EllipticCurvePrivateKey, ...],
) -> None:
    verdicts.put(digests(image), KEY, store, site, ())
    count, other, _ = taken(image, tmp_path, site, *keys)
    assert count == 0
    assert verdicts.lacking(digests(image), other, (), attach=False) == digests(image)


def test_a_verdict_on_another_layer_counts_nothing(
    image: ImageRecord, store: Store, site: Site, registry: FakeRegistry, tmp_path: Path
) -> None:
    """Somebody who may write to the cache puts the verdict on a clean layer under that of another."""
    verdicts.put(digests(image), KEY, store, site, ())
    clean, dirty = (verdicts.tag_of(digest) for digest in digests(image))
    registry.manifests["team/cache", dirty] = registry.manifests["team/cache", clean]
    assert taken(image, tmp_path, site, KEY)[0] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"rules": "0" * 64},
        {"scan": None},
        {"licences": {}},
        {"more": 1},
    ],
)
def test_a_malformed_or_old_verdict_counts_nothing(
    image: ImageRecord, store: Store, change: dict[str, object]
) -> None:
    digest = digests(image)[0]
    found = leaks.recall(store, digest)
    assert found is not None
    verdict = verdicts.Verdict(
        rules=rules.load().version, scan=found, licences=licences.of_layer(store, digest)
    )
    data = verdicts.statement(digest, verdict)
    assert verdicts.read(data, digest) == verdict
    document = json.loads(data)
    document["predicate"] |= change
    assert verdicts.read(json.dumps(document).encode(), digest) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"subject": 1}', b'{"subject": [{}]}', b"\xff"])
def test_what_is_no_statement_counts_nothing(data: bytes) -> None:
    assert verdicts.read(data, "sha256:" + "0" * 64) is None


def test_only_layers_that_are_here_are_signed(image: ImageRecord, store: Store, site: Site) -> None:
    first, second = digests(image)
    store.blob(first).unlink()
    assert verdicts.put((first, second), KEY, store, site, ()) == 1


def test_a_cache_that_fails_gives_no_verdict(
    image: ImageRecord, store: Store, site: Site, registry: FakeRegistry, tmp_path: Path
) -> None:
    verdicts.put(digests(image), KEY, store, site, ())

    def refuse(handler: Handler) -> bool:
        handler.refuse(403, "DENIED")
        return True

    registry.interfere = refuse
    count, _, notes = taken(image, tmp_path, site, KEY)
    assert count == 0
    assert len(notes) == 1
    assert "is not used any more: the registry does not let this account do that" in notes[0]


def test_the_site_names_the_signers(tmp_path: Path) -> None:
    path = tmp_path / "ci.pub"
    path.write_bytes(
        KEY.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    (key,) = verdicts.signers(dataclasses.replace(Site(), cache_signers=(path,)))
    sealed = envelope.seal(b"{}", KEY)
    assert envelope.unseal(sealed, key) == b"{}"
