"""Images that imagebuilder did not build: the engine makes them from ordinary Dockerfiles."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from docker import DockerClient
from docker.errors import ImageNotFound

from imagebuilder.store import Store
from tests.support import standin_base

# As little as nodes need to start: what looks like a Python without a framework.
NO_PYTHON = """\
FROM {base}
RUN printf '#!/bin/sh\\nexit 3\\n' >/usr/local/bin/python3 && chmod 755 /usr/local/bin/python3
"""
# An engine in a container.
PODMAN = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends podman crun netavark \\
aardvark-dns nftables iptables
"""
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
# torch by pip, and what its author set to debug it once.
PIP_TORCH = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip
COPY wheels /wheels
RUN pip install --break-system-packages --no-index --find-links /wheels torch numpy && rm -rf /wheels
ENV GLOO_SOCKET_IFNAME=ib0 NCCL_DEBUG=INFO
"""
# A prefix with a Python and libraries of its own, as conda makes it, and ssh for a cluster.
CONDA = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv openssh-server openssh-client
COPY wheels /wheels
RUN python3 -m venv --copies /opt/conda \
&& /opt/conda/bin/pip install --no-index --find-links /wheels torch numpy && rm -rf /wheels
ENV PATH=/opt/conda/bin:$PATH CONDA_PREFIX=/opt/conda
"""
# On top of an image of imagebuilder whose user is not root: root is left where it should be given back.
FORGOTTEN_USER = """\
FROM {base}
USER root
RUN touch /opt/mine
"""


@contextlib.contextmanager
def minimal(engine: DockerClient, store: Store, suite: str = standin_base.SUITE) -> Iterator[str]:
    """Import a minimal Debian into the engine; yields its name."""
    with _named(engine) as name:
        data = standin_base.minimal_debian(store.root / "bases", suite)
        repository, _, tag = name.partition(":")
        engine.api.import_image_from_data(data, repository=repository, tag=tag)
        yield name


@contextlib.contextmanager
def built(engine: DockerClient, dockerfile: str, base: str, context: Path | None = None) -> Iterator[str]:
    """Build a Dockerfile on a base, with the files of a folder; yields the image's name."""
    with _named(engine) as name, tempfile.TemporaryDirectory() as empty:
        folder = context or Path(empty)
        (folder / "Dockerfile").write_text(dockerfile.format(base=base))
        engine.images.build(path=str(folder), tag=name, network_mode="host", rm=True)
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
