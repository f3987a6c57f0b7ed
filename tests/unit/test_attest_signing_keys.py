"""Signing keys: what cosign writes, what openssl writes, and what neither would."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from nacl.secret import SecretBox

from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.publish.attest import signing_keys

PASSWORD = "correct horse"
KEY = ec.generate_private_key(ec.SECP256R1())
DER = KEY.private_bytes(
    serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)


def boxed(
    der: bytes = DER, *, label: str = "SIGSTORE", n: int = 1024, r: int = 8, **changes: object
) -> bytes:
    """Lock a key up as cosign does, but cheaply."""
    salt, nonce = b"s" * 32, b"n" * 24
    secret = hashlib.scrypt(PASSWORD.encode(), salt=salt, n=1024, r=8, p=1, dklen=32)
    box = {
        "kdf": {
            "name": "scrypt",
            "params": {"N": n, "r": r, "p": 1},
            "salt": base64.b64encode(salt).decode(),
        },
        "cipher": {"name": "nacl/secretbox", "nonce": base64.b64encode(nonce).decode()},
        "ciphertext": base64.b64encode(SecretBox(secret).encrypt(der, nonce).ciphertext).decode(),
        **changes,
    }
    body = base64.encodebytes(json.dumps(box).encode())
    head = f"ENCRYPTED {label} PRIVATE KEY"
    return f"-----BEGIN {head}-----\n".encode() + body + f"-----END {head}-----\n".encode()


def unasked() -> str:
    pytest.fail("nobody is to be asked for a password")


def written(folder: Path, data: bytes) -> Path:
    path = folder / "a.key"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("label", ["SIGSTORE", "COSIGN"])
def test_keys_of_cosign(tmp_path: Path, label: str) -> None:
    found = signing_keys.load_private(written(tmp_path, boxed(label=label)), lambda: PASSWORD)
    assert found.private_numbers() == KEY.private_numbers()


def test_plain_and_locked_pkcs8(tmp_path: Path) -> None:
    plain = KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    assert signing_keys.load_private(written(tmp_path, plain), unasked).private_numbers() == (
        KEY.private_numbers()
    )
    locked = KEY.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
    path = written(tmp_path, locked)
    assert signing_keys.load_private(path, lambda: PASSWORD).private_numbers() == KEY.private_numbers()
    with pytest.raises(InputError, match="password is wrong"):
        signing_keys.load_private(path, lambda: "wrong")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a readable private key"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "not a readable private key"),
        (b"x" * 100_000, "far too large"),
        (boxed(kdf={}), "damaged"),
        (boxed(cipher={"name": "rot13", "nonce": "AAAA"}), "encrypted in a way that cosign does not use"),
        (boxed(ciphertext="AAAA"), "password is wrong, or the key is damaged"),
        (boxed(n=1 << 30), "more memory to decrypt than a valid key"),
        (boxed(n=-1), "more memory to decrypt than a valid key"),
        (boxed(n=1000), "password is wrong, or the key is damaged"),
        (boxed(b"no key"), "not a readable private key"),
        (b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n%%%\n", "damaged"),
    ],
)
def test_keys_that_are_none(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        signing_keys.load_private(written(tmp_path, data), lambda: PASSWORD)


def test_the_wrong_password(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="password is wrong") as refused:
        signing_keys.load_private(written(tmp_path, boxed()), lambda: "wrong")
    assert "COSIGN_PASSWORD" in str(refused.value)


def test_other_curves_are_refused(tmp_path: Path) -> None:
    for key in (ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()):
        der = key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with pytest.raises(InputError, match="P-256"):
            signing_keys.load_private(written(tmp_path, boxed(der)), lambda: PASSWORD)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        with pytest.raises(InputError, match="P-256"):
            signing_keys.load_public(written(tmp_path, public))


def test_public_keys(tmp_path: Path) -> None:
    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    found = signing_keys.load_public(written(tmp_path, public))
    assert found.public_numbers() == KEY.public_key().public_numbers()
    with pytest.raises(InputError, match=r"\.pub") as refused:
        signing_keys.load_public(written(tmp_path, boxed()))
    assert "not a public key" in str(refused.value)
    with pytest.raises(InputError, match="cannot be read"):
        signing_keys.load_public(tmp_path / "nothing.pub")


def test_without_the_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EnvironmentFault, match="cryptography") as refused:
        signing_keys.load_public(tmp_path / "a.pub")
    assert refused.value.problems[0].hint.startswith("run: uv pip install --python ")
    assert refused.value.problems[0].hint.endswith("[sign]'")
