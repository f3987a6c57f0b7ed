"""Names of the labels and annotations that imagebuilder writes and reads.

The image specification gives the first group (image-spec 1.1, annotations.md); the second is this tool's own.
"""

from __future__ import annotations

from collections.abc import Mapping

OCI = "org.opencontainers."
OCI_IMAGE = f"{OCI}image."
TITLE = f"{OCI_IMAGE}title"
VERSION = f"{OCI_IMAGE}version"
BASE_NAME = f"{OCI_IMAGE}base.name"
BASE_DIGEST = f"{OCI_IMAGE}base.digest"
REVISION = f"{OCI_IMAGE}revision"
CREATED = f"{OCI_IMAGE}created"
# In the index of an OCI layout: the image's tag.
REF_NAME = f"{OCI_IMAGE}ref.name"

OWN = "org.imagebuilder."
# The checksum of the lock: of one platform's section on an image, of the whole file on an index.
LOCK = f"{OWN}lock"
# The recipe's name: it tells whose image a tag stands for. The title is free text.
RECIPE = f"{OWN}recipe"
# Checksums of the user's own files: one for each folder that the recipe copies, in its order.
PROJECT = f"{OWN}project"
# The user's own package: its name, and the checksum of its folder.
PACKAGE = f"{OWN}package"
# Which engine made the image, where that matters.
ENGINE = f"{OWN}engine"
# The user's own training check, as JSON.
TRAINING = f"{OWN}check.training"
# The checksum of the user's own tests.
TESTS = f"{OWN}check.tests"
# What the recipe demands of a smoke report, as JSON; not there if any passing report will do.
PROOF = f"{OWN}proof"
SSH_PORT = f"{OWN}ssh.port"
SSH_USER = f"{OWN}ssh.user"
SSH_KEYS = f"{OWN}ssh.keys"
# Followed by a component's name.
PIN = f"{OWN}pin."
# Followed by a component's name: how to ask a component that imagebuilder does not have for its version, as
# JSON.
PROBE = f"{OWN}probe."
# Followed by the name of a variable that belongs to a job or a host: the recipe's reason for setting it.
ALLOWED_ENV = f"{OWN}allowed-env."
# Not on images but on a layer's descriptor: the digest of the layer's table of contents (`layers.stargz`).
TOC = "containerd.io/snapshot/stargz/toc.digest"
# Not on images but on containers and networks: which run started them.
RUN = f"{OWN}run"
RUN_OWNER = f"{RUN}.owner"
# Seconds since the epoch after which things count as left behind, whoever made them: an owner on another
# host, or before a restart of this one, cannot be asked.
RUN_DEADLINE = f"{RUN}.deadline"


def pins(labels: Mapping[str, str]) -> dict[str, str]:
    """Return component and version of every pin that an image's labels name, sorted by component."""
    return {name.removeprefix(PIN): labels[name] for name in sorted(labels) if name.startswith(PIN)}


def allowed_env(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the job's variables that the image's recipe allows, each with its reason."""
    return {
        name.removeprefix(ALLOWED_ENV): labels[name]
        for name in sorted(labels)
        if name.startswith(ALLOWED_ENV)
    }
