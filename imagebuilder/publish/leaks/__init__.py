"""Search images for secrets before a push: every file of every layer, also files that later layers delete.

rules.yaml   the formats, as data; known.yaml has published examples and test keys
rules.py     reads both
checks.py    distinguishes secrets from text that only looks like one
named.py     values without a format: decides by their name and the kind of file
host.py      data of this host that must not be in an image: paths, certificates, passwords
words.py     searches for many words in one pass
decoded.py   UTF-16, base64, the values of Kubernetes' Secrets
text.py      applies the rules to one piece of text
archives.py  reads archives and compressed files, within limits
layer.py     searches one layer as a stream
image.py     searches all layers, the config and attached documents; keeps results by layer
"""

from __future__ import annotations

from imagebuilder.publish.leaks.host import Mark, marks
from imagebuilder.publish.leaks.image import Scan, recall, remember, scan, scan_documents
from imagebuilder.publish.leaks.layer import LayerScan, Note
from imagebuilder.publish.leaks.rules import SecretFinding

__all__ = [
    "LayerScan",
    "Mark",
    "Note",
    "Scan",
    "SecretFinding",
    "marks",
    "recall",
    "remember",
    "scan",
    "scan_documents",
]
