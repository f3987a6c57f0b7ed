"""What is inside the layers of an image in a store."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from isal import igzip

from imagebuilder.store import ImageRecord, Store


def files(image: ImageRecord, store: Store) -> Iterator[tuple[str, bytes]]:
    """Every regular file of every layer, also those that a later layer covers: path and content."""
    for layer in image.layers:
        with (
            igzip.IGzipFile(store.blob(layer.record.digest)) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            for member in tar:
                if member.isreg():
                    content = tar.extractfile(member)
                    assert content is not None
                    yield member.name, content.read()
