"""Images in registries: names, credentials, the wire, and pushing.

reference.py    `host[:port]/path[:tag][@digest]`, parsed and checked
credentials.py  what `docker login` and `podman login` left behind
certificates.py authorities and client certificates, where Docker and Podman keep them
client.py       one registry over HTTP(S): sign-in, retries, errors that say what to do
blob.py         uploads one blob: links it, sends it, or resumes it
upload.py       pushes an image: first the blobs that are missing, then the manifest, then the tags
"""

from __future__ import annotations

from imagebuilder.core.reference import Reference, parse
from imagebuilder.registry.client import Client, Options, options_for
from imagebuilder.registry.upload import Destination, PushResult, push

__all__ = ["Client", "Destination", "Options", "PushResult", "Reference", "options_for", "parse", "push"]
