"""Images that imagebuilder did not build: the engine makes them from ordinary Dockerfiles."""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Iterator

from docker import DockerClient
from docker.errors import ImageNotFound

from imagebuilder.store import Store
from tests.support import standin_base

# As a beginner writes it: the packages leave host keys in the image, and mpirun refuses root.
OPENMPI = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends openmpi-bin libopenmpi-dev \
openssh-server openssh-client python3 python3-mpi4py && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["/bin/sh", "-c", "exit 3"]
"""
# The same repaired, with another user, and with a setting of one host.
TRAINER = """\
FROM {base}
RUN rm /etc/ssh/ssh_host_* && useradd -m trainer
ENV GLOO_SOCKET_IFNAME=ib0
USER trainer
"""
# On top of an image of imagebuilder whose user is not root: root is left where it should be given back.
FORGOTTEN_USER = """\
FROM {base}
USER root
RUN touch /opt/mine
"""


@contextlib.contextmanager
def minimal(engine: DockerClient, store: Store) -> Iterator[str]:
    """Import a minimal Debian into the engine; yields its name."""
    with _named(engine) as name:
        data = standin_base.minimal_debian(store.root / "bases")
        repository, _, tag = name.partition(":")
        engine.api.import_image_from_data(data, repository=repository, tag=tag)
        yield name


@contextlib.contextmanager
def built(engine: DockerClient, dockerfile: str, base: str) -> Iterator[str]:
    """Build a Dockerfile on a base; yields the image's name."""
    with _named(engine) as name:
        text = dockerfile.format(base=base).encode()
        engine.images.build(fileobj=io.BytesIO(text), tag=name, network_mode="host", rm=True)
        yield name


@contextlib.contextmanager
def _named(engine: DockerClient) -> Iterator[str]:
    name = f"imagebuilder-test-{uuid.uuid4().hex[:12]}:1"
    try:
        yield name
    finally:
        # A build that failed has left no image.
        with contextlib.suppress(ImageNotFound):
            engine.images.remove(name, force=True)
