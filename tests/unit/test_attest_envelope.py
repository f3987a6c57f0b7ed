"""Statements in DSSE envelopes, held against the protocol's own words, and against traps."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from imagebuilder.publish.attest import envelope

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
STATEMENT = b'{"_type": "https://in-toto.io/Statement/v1"}'


def changed(**values: Any) -> bytes:
    return json.dumps({**json.loads(envelope.seal(STATEMENT, KEY)), **values}).encode()


def test_what_is_signed_is_what_the_protocol_says() -> None:
    """The example of DSSE's protocol.md."""
    encoded = envelope._signed("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    sealed = json.loads(envelope.seal(STATEMENT, KEY))
    (row,) = sealed["signatures"]
    signed = envelope._signed(sealed["payloadType"], base64.b64decode(sealed["payload"]))
    KEY.public_key().verify(base64.b64decode(row["sig"]), signed, ec.ECDSA(hashes.SHA256()))


def test_a_statement_comes_out_as_it_went_in() -> None:
    assert envelope.unseal(envelope.seal(STATEMENT, KEY), KEY.public_key()) == STATEMENT
    assert envelope.unseal(envelope.seal(STATEMENT, KEY), OTHER.public_key()) is None


def test_one_good_signature_among_others_is_enough() -> None:
    rows = [json.loads(envelope.seal(STATEMENT, key))["signatures"][0] for key in (OTHER, KEY)]
    assert envelope.unseal(changed(signatures=rows), KEY.public_key()) == STATEMENT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"[" * 5000,
        b"\xff",
        changed(payload=base64.b64encode(b"{}").decode()),
        changed(payload="%"),
        changed(payload=5),
        changed(payloadType="text/plain"),
        changed(signatures=[]),
        changed(signatures={}),
        changed(signatures=[{"sig": "AAAA"}]),
        changed(signatures=[{"sig": None}]),
        changed(signatures=["x"]),
        changed(signatures=[{"sig": "AAAA"}] * 40 + json.loads(changed())["signatures"]),
        changed()[:-1] + b', "PAYLOAD": ""}',
    ],
)
def test_what_is_no_envelope_of_this_key(data: bytes) -> None:
    assert envelope.unseal(data, KEY.public_key()) is None
