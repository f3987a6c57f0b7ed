"""Secrets in images: every file of every layer is read before a push, also those that later layers delete.

rules.yaml  the formats, as data; known.yaml  test keys of public packages that are no secret
rules.py    reads both
checks.py   what tells a secret from something that only looks like it
host.py     what of this host must not be in an image: its paths, its authorities, its passwords
text.py     one piece of text against the rules
layer.py    one layer, streamed
image.py    all layers and the config of an image; results are remembered by layer
"""

from __future__ import annotations

from imagebuilder.leaks.host import Mark, marks
from imagebuilder.leaks.image import Scan, scan
from imagebuilder.leaks.rules import Finding

__all__ = ["Finding", "Mark", "Scan", "marks", "scan"]
