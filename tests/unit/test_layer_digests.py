"""The digests of layers, written down: a machine that runs these tests proves that it makes the same bytes.

A digest that changes here changes the digest of every image that was built before.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest

from imagebuilder.core.progress import no_advance
from imagebuilder.image import repack
from imagebuilder.layers import archive
from imagebuilder.layers.files import build_files_layer
from imagebuilder.layers.stargz import compress_tar
from imagebuilder.plan import Entry, FilesLayer
from imagebuilder.store import LayerRecord, Store
from tests.support.wheels import splice

# A wheel is given as bytes: a layer has its deflate streams, and another zlib would write other ones.
WHEEL = """
UEsDBBQAAAAIAAU5plgFxhA9CwAAAPAAAAAJAAAAZGVtby9hLnB5S1SwVTDkShwxJABQSwMEFAAAAAgABTmmWNRuNo0pAAAALgAAABsAAABk
ZW1vLTEuMC5kaXN0LWluZm8vTUVUQURBVEHzTS1JTEksSdQNSy0qzszPs1Iw0jPk8kvMTbVSSEnNzeeCixvqGXABAFBLAwQUAAAACAAFOaZY
sNzjokwAAABLAAAAGAAAAGRlbW8tMS4wLmRpc3QtaW5mby9XSEVFTAvPSE3N0Q1LLSrOzM+zUjDUM+ByT81LLUosyS+yUihJLS7hCsrPL9H1
LNYNKC1KzclMAooWlaZyhSSmWykUVBrr5uXnpeom5lVyAQBQSwMEFAAAAAgABTmmWNwbEU7BAAAA/gAAABkAAABkZW1vLTEuMC5kaXN0LWlu
Zm8vUkVDT1JEbczdFoEwAADge8+ykunHjYtQw0rUsmM3nc5ZCFlZYT09N+58D/DxohLDXK8VkOccWvY0yoIrLErnwTU6hg1J9nXus8lFTrpr
Um2FsvjTrZJDzVIATWPAv4E20g2dl7LVyvtRDEOPuAuXuL9yg8W9PrHt7dDOWhOVfoZ32a4ZaTQtMLRwn0sDjTvyeqXAtP+NdOl5wa9D0Zoe
EVaZdFgcttUjVGv/uVq+e2GcArY/I0oVaWZ2J4Bj/etibx7FCwAGH1BLAQIUAxQAAAAIAAU5plgFxhA9CwAAAPAAAAAJAAAAAAAAAAAAAACk
gQAAAABkZW1vL2EucHlQSwECFAMUAAAACAAFOaZY1G42jSkAAAAuAAAAGwAAAAAAAAAAAAAApIEyAAAAZGVtby0xLjAuZGlzdC1pbmZvL01F
VEFEQVRBUEsBAhQDFAAAAAgABTmmWLDc46JMAAAASwAAABgAAAAAAAAAAAAAAKSBlAAAAGRlbW8tMS4wLmRpc3QtaW5mby9XSEVFTFBLAQIU
AxQAAAAIAAU5pljcGxFOwQAAAP4AAAAZAAAAAAAAAAAAAACkgRYBAABkZW1vLTEuMC5kaXN0LWluZm8vUkVDT1JEUEsFBgAAAAAEAAQADQEA
AA4CAAAAAA==
"""
DATA = b"".join(b"line %d\n" % number for number in range(300_000))
TAR = archive.regular("f", 0o644, len(DATA)) + DATA + archive.padding(len(DATA)) + archive.TAR_END
SETTINGS = (
    Entry(path="/etc/profile.d/a.sh", kind="file", mode=0o644, text="export A=ü\n" * 20),
    Entry(path="/usr/local/bin/gcc", kind="link", mode=0o777, text="/usr/bin/gcc-14"),
)
# Of each layer: its digest, diffID and table of contents, and its digest when packed with zstd.
KNOWN = {
    "wheel": (
        "sha256:1522a86b8ae3c30987d70cfbf9b2a9272fd1a5d393763fb0b62d2ecec1f15dc9",
        "sha256:ff6f25f0bc19cc75569771b4dae7276d172c552a0d5ee03a5cb8d6f89fc42c42",
        "sha256:c6831707ef6f487e6317f4aef5be00dfd9756dd7db2bcb2513ceb3fdfec6db9e",
        "sha256:460ab7d5d6cb0c6c2c902d178e8388c19500d7f951b9d96ff2dd08e1a5aed61f",
    ),
    "tar": (
        "sha256:033c444ec21877785a73344f109fd6b799d6dfee8a48c1c9fc990b89184783dd",
        "sha256:5a0e98d09d30f75f2372af44b6a47277dfe2759c35e2b7e5ca6ace88fda6728c",
        "sha256:10160a8d3864eda1e11abf4214d991f736d887b9f34be14bf07a09d36b212004",
        "sha256:1821d6ea54d1d8ae85d2dac3980f1a4b7f3fcf141008043137cd4e575e0e1f85",
    ),
    "tar without table": (
        "sha256:803409676a37cc525845bec72619971258fd6f2bded53009a30daaf079f39ab1",
        "sha256:c3be2837fd68d9b6d48818bf737ec79d374160e194eb88e677fe091e784f8f42",
        "",
        "sha256:cd4925d398e44e1dc036aceb4b1940d8e1e29239e320757680aa8f51ad4cccc0",
    ),
    "settings": (
        "sha256:48f46d87b9b78b8ce27199b7ed18a4edff27d098643123c1dac3864217453e6f",
        "sha256:a83f3b99258ee8286fbabe61841638d0f3d4bd3052e4c83d44bc1d15cf4e877b",
        "sha256:ccc71648d17871bad8e558ee1e6b11ad9c34958be603124aef8a7f1332663463",
        "sha256:fa05eca0115794b647d6b6b9c7fa8ea23c9c606a16e8c2a438bd0adac60ce2fd",
    ),
}


def made(kind: str, folder: Path, store: Store) -> LayerRecord:
    if kind == "wheel":
        wheel = folder / "demo-1.0-py3-none-any.whl"
        wheel.write_bytes(base64.b64decode(WHEEL))
        return splice([wheel], store)
    if kind == "settings":
        return build_files_layer(FilesLayer(name="settings", entries=SETTINGS), store)
    return compress_tar(io.BytesIO(TAR), store, no_advance, table=kind == "tar")


@pytest.mark.parametrize("kind", KNOWN)
def test_the_bytes_of_a_layer_are_known(kind: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    record = made(kind, tmp_path, store)
    packed = repack.compress(record, store)
    assert (record.digest, record.diff_id, record.toc, packed.digest) == KNOWN[kind]
    assert packed.diff_id == record.diff_id
