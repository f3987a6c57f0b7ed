"""Signing keys: ECDSA on P-256, as `cosign generate-key-pair` writes them, or plain PKCS#8.

cosign's private keys are PKCS#8 in a NaCl secret box with a scrypt key; the box is JSON in a PEM block:
https://github.com/secure-systems-lab/go-securesystemslib/tree/main/encrypted.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuilder.core import installation
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.recipe.proof import ProofPolicy

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

Password = Callable[[], str]
"""Returns the password of a key; called only if the key has one."""

# The second label is that of cosign before version 2.
_BOXES = ("ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY")
_LIMIT = 65_536
# cosign uses 2^15 or 2^16; a larger value can only be an attack that wastes memory.
_MOST_SCRYPT_BYTES = 1 << 29


def load_private(path: Path, password: Password) -> EllipticCurvePrivateKey:
    """Read a private key.

    Raises:
        InputError: it is not a private key on P-256, or the password is wrong.
        EnvironmentFault: the libraries for signing are not installed.

    """
    _require_libraries()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    data = _read(path)
    try:
        if any(f"-----BEGIN {label}-----".encode() in data for label in _BOXES):
            key: Any = serialization.load_der_private_key(_opened(data, path, password), password=None)
        elif b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in data:
            key = serialization.load_pem_private_key(data, password().encode())
        else:
            key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            "is not a readable private key, or the password is wrong",
            where=str(path),
            hint="make one with: cosign generate-key-pair",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError(
            "is not an ECDSA key on P-256", where=str(path), hint="make one with: cosign generate-key-pair"
        )
    return key


def load_public(path: Path) -> EllipticCurvePublicKey:
    """Read a public key.

    Raises:
        InputError: it is not a public key on P-256.
        EnvironmentFault: the libraries for signing are not installed.

    """
    _require_libraries()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    data = _read(path)
    hint = "give the file that ends in .pub" if b"PRIVATE KEY-----" in data else ""
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError("is not a public key in PEM", where=str(path), hint=hint) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError("is not an ECDSA key on P-256", where=str(path))
    return key


def load_provers(policy: ProofPolicy, recipe: Path) -> dict[str, EllipticCurvePublicKey]:
    """Read the keys that a recipe names in `proof.signed_by`, by the name that it gives them.

    Raises:
        InputError: one of them cannot be read, or is not a public key on P-256.
        EnvironmentFault: the libraries for signing are not installed.

    """
    return {name: load_public(recipe.parent / name) for name in policy.signed_by}


def _require_libraries() -> None:
    for name in ("cryptography", "nacl"):
        if importlib.util.find_spec(name) is None:
            raise EnvironmentFault(
                f"signatures need the Python package `{name}`", hint=f"run: {installation.install('sign')}"
            )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT + 1)
    except OSError as error:
        raise InputError(f"the key cannot be read: {error.strerror}", where=str(path)) from None
    if len(data) > _LIMIT:
        raise InputError("is far too large for a key", where=str(path))
    return data


def _opened(pem: bytes, path: Path, password: Password) -> bytes:
    """Decrypt cosign's box; returns the PKCS#8 key in it."""
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    try:
        body = b"".join(line for line in pem.split(b"\n") if line.strip() and not line.startswith(b"-----"))
        box = json.loads(base64.b64decode(body, validate=False))
        params = box["kdf"]["params"]
        cost, block, lanes = int(params["N"]), int(params["r"]), int(params["p"])
        salt = base64.b64decode(box["kdf"]["salt"])
        sealed = base64.b64decode(box["cipher"]["nonce"]) + base64.b64decode(box["ciphertext"])
        ciphers = (box["kdf"]["name"], box["cipher"]["name"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise InputError("is damaged: it is not a key in cosign's format", where=str(path)) from None
    if ciphers != ("scrypt", "nacl/secretbox"):
        raise InputError(
            f"is encrypted in a way that cosign does not use: {printable(str(ciphers))}", where=str(path)
        )
    needed = 128 * block * (cost + lanes)
    if not 0 < needed <= _MOST_SCRYPT_BYTES or lanes > 16:
        raise InputError("needs more memory to decrypt than a valid key", where=str(path))
    try:
        secret = hashlib.scrypt(
            password().encode(), salt=salt, n=cost, r=block, p=lanes, maxmem=2 * needed + (1 << 20), dklen=32
        )
        return SecretBox(secret).decrypt(sealed)
    except (CryptoError, ValueError):
        raise InputError(
            "the password is wrong, or the key is damaged",
            where=str(path),
            hint="without a terminal, set COSIGN_PASSWORD",
        ) from None
