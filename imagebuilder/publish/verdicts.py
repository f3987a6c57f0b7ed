"""Verdicts: what the search for secrets found in a layer, and its licences, signed and kept in the cache.

    sha256-<hex of the layer>.<12 digits of the rules' version>     an artefact with one DSSE envelope

A host that pushes an image whose layers stay in the cache then needs none of their bytes. It believes a
verdict only if a key signed it that its site names (`cache_signers:`), for this layer and these rules. Who
signs has the layer, and has searched it, also for data of its own host, or believes a signer of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from imagebuilder.core import documents
from imagebuilder.core.reference import parse
from imagebuilder.host.site import Site
from imagebuilder.publish import leaks
from imagebuilder.publish.attest import envelope, licences, signing_keys
from imagebuilder.publish.attest.licences import LayerLicences
from imagebuilder.publish.leaks import LayerScan, rules
from imagebuilder.registry.cache import Cache, SmallArtefact, put_artefacts
from imagebuilder.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://imagebuilder.invalid/layer-verdict/v1"
ARTEFACT_TYPE = "application/vnd.imagebuilder.verdict.v1"


@checked_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Verdict:
    """What a signer found in a layer: rules of the search, its result, and the layer's licences."""

    rules: str
    scan: LayerScan
    licences: LayerLicences


_VERDICT = TypeAdapter(Verdict)


def tag_of(digest: str) -> str:
    """Return the tag of a layer's verdict by the present rules."""
    return f"{digest.replace(':', '-')}.{rules.load().version[:12]}"


def statement(digest: str, verdict: Verdict) -> bytes:
    """Return the in-toto statement about a layer."""
    return documents.dumps(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": "layer", "digest": {"sha256": digest.removeprefix("sha256:")}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": _VERDICT.dump_python(verdict, mode="json"),
        }
    )


def read(data: bytes, digest: str) -> Verdict | None:
    """Read a statement that a trusted key signed; None if it is about another layer, or by other rules."""
    try:
        found = json.loads(data)
        hashes = [subject["digest"]["sha256"] for subject in found["subject"]]
        if (found["_type"], found["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            return None
        verdict = _VERDICT.validate_python(found["predicate"])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
        return None
    about = hashes == [digest.removeprefix("sha256:")]
    return verdict if about and verdict.rules == rules.load().version else None


def signers(site: Site) -> tuple[EllipticCurvePublicKey, ...]:
    """Read the keys whose verdicts this site believes.

    Raises:
        InputError: one of them is not a public key on P-256.
        EnvironmentFault: the libraries for signing are not installed.

    """
    return tuple(signing_keys.load_public(path) for path in site.cache_signers)


def take(
    digests: Sequence[str],
    cache: Cache,
    keys: Sequence[EllipticCurvePublicKey],
    store: Store,
    marks: Sequence[leaks.Mark],
) -> int:
    """Fetch the verdicts of layers, and keep the trusted ones in the store as if the layers were read here.

    Returns:
        The number of layers with a trusted verdict.

    """
    tags = {tag_of(digest): digest for digest in digests}
    found = cache.read_artefacts(tuple(tags), ARTEFACT_TYPE) if keys else {}
    taken = 0
    for tag, sealed in found.items():
        opened = (envelope.unseal(sealed, key) for key in keys)
        verdict = next((read(data, tags[tag]) for data in opened if data is not None), None)
        if verdict is not None:
            leaks.remember(store, tags[tag], verdict.scan, marks)
            licences.remember(store, tags[tag], verdict.licences)
            taken += 1
    return taken


def put(
    digests: Iterable[str],
    key: EllipticCurvePrivateKey,
    store: Store,
    site: Site,
    marks: Sequence[leaks.Mark],
) -> int:
    """Sign the results for layers that this host has read, and put them into the cache.

    Returns:
        The number of verdicts; layers without a kept result have none.

    Raises:
        RegistryError: the cache refused, is full, broke or cannot be reached.
        StoreError: a layer cannot be read.

    """
    made: dict[str, SmallArtefact] = {}
    for digest in digests:
        found = leaks.recall(store, digest, marks)
        if found is not None and store.has_blob(digest):
            verdict = Verdict(
                rules=rules.load().version, scan=found, licences=licences.of_layer(store, digest)
            )
            sealed = envelope.seal(statement(digest, verdict), key)
            made[tag_of(digest)] = SmallArtefact(
                artifact_type=ARTEFACT_TYPE, media_type=envelope.ENVELOPE_TYPE, data=sealed
            )
    put_artefacts(made, parse(site.cache), site)
    return len(made)


def lacking(
    digests: Sequence[str], store: Store, marks: Sequence[leaks.Mark], *, attach: bool
) -> tuple[str, ...]:
    """Return the layers that a push has to read: nothing is known of their secrets, or of their licences."""
    return tuple(
        digest
        for digest in digests
        if leaks.recall(store, digest, marks) is None or (attach and licences.recall(store, digest) is None)
    )
