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
        "sha256:8dce30a3516e068b841a5cb3e4c9f0513b9256e197669d09f16f45af75dbe013",
        "sha256:09e5a22ad8bdd994081d1cea331359a97896d299ead0ae1ad45454277eb9a8c8",
        "sha256:c007bfac76af157e93b4b442dcbecbb442c8ffe4309fb9dbc684deed4010b9b3",
        "sha256:acd755186ec62febf4ad2ef8e95f260c2afbe05b892a5b991bb8ebaea1664be2",
    ),
    "tar": (
        "sha256:130f4d185a5d971d688c8e0d0c32a9d770148323be906b29a7b686704723925a",
        "sha256:6eea136d7f9c92827df8c763558b9a895bb1d2bca6724098a5d3abace656559f",
        "sha256:ab2ff6dccc660b73854224e8dbea23c3d88bf2c7ce9caebf453d8bf636527eff",
        "sha256:e26132563f281f47c64a95d0843e37a22504f01d0bbf13c10798b035d0d55228",
    ),
    "tar without table": (
        "sha256:803409676a37cc525845bec72619971258fd6f2bded53009a30daaf079f39ab1",
        "sha256:c3be2837fd68d9b6d48818bf737ec79d374160e194eb88e677fe091e784f8f42",
        "",
        "sha256:cd4925d398e44e1dc036aceb4b1940d8e1e29239e320757680aa8f51ad4cccc0",
    ),
    "settings": (
        "sha256:4ada16631b75db143143bb2e7589e8f39e027d08cbbfc7bc0d34272de225f969",
        "sha256:b51905e4d99c4e135d81cf23182b6f0712c2b79a4c3d787edefdde3e475c4c4a",
        "sha256:3fddf83e310cc351cf4d0e63794add1307253ad980548557525a197e989148ba",
        "sha256:3ec84a28792a67703b1915a6293c4583c279e2ffc9c3cf20528fd36b50bc6abb",
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
