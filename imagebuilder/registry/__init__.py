"""Images in registries: names, credentials, the wire, pushing, and the proof that a push asks for.

reference.py    `host[:port]/path[:tag][@digest]`, parsed and checked
credentials.py  what `docker login` left behind
certificates.py authorities and client certificates, where Docker and Podman keep them
client.py       one registry over HTTP(S): sign-in, retries, errors that say what to do
blob.py         one blob: linked, sent, resumed
upload.py       push: only missing blobs travel, the manifest after them, the tags last
proof.py        the gate: no push without a passing smoke test of exactly that digest
"""

from __future__ import annotations

from imagebuilder.registry.client import Client, Options
from imagebuilder.registry.proof import require_proof
from imagebuilder.registry.reference import Reference, parse
from imagebuilder.registry.upload import PushResult, push

__all__ = ["Client", "Options", "PushResult", "Reference", "parse", "push", "require_proof"]
