"""Secrets in images: every file of every layer is read before a push, also those that later layers delete.

rules.yaml   the formats, as data; known.yaml has examples and test keys that everybody has
rules.py     reads both
checks.py    what tells a secret from something that only looks like it
named.py     values without a format: their name and the kind of file decide
host.py      what of this host must not be in an image: its paths, its authorities, its passwords
words.py     many words in one pass
decoded.py   UTF-16, base64, the values of Kubernetes' Secrets
text.py      one piece of text against the rules
archives.py  what is in archives and compressed files, within bounds
layer.py     one layer, streamed
image.py     all layers, the config, what is attached; results are remembered by layer
"""

from __future__ import annotations

from imagebuilder.publish.leaks.host import Mark, marks
from imagebuilder.publish.leaks.image import Scan, scan, scan_documents
from imagebuilder.publish.leaks.layer import Note
from imagebuilder.publish.leaks.rules import SecretFinding

__all__ = ["Mark", "Note", "Scan", "SecretFinding", "marks", "scan", "scan_documents"]
