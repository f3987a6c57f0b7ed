"""A CUDA extension from its source: compiled by nvcc of CUDA 13's wheels, and imported, without a GPU."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from imagebuilder.plan import CompiledLayer
from imagebuilder.store import Store
from imagebuilder.workflow import read_plans
from tests.integration.test_examples import run
from tests.soak.test_compiled_frameworks import put

CONTAINER = struct.pack("<I", 0xBA55ED50)
MACHINE_CODE = 2  # 1 is PTX


def test_a_cuda_extension_is_compiled_and_imported_without_a_gpu(store: Store, tmp_path: Path) -> None:
    recipe = put(tmp_path, "cuda13-causal-conv1d")
    run("lock", recipe, store=store)
    # The build imports it, beside the image's torch, and looks for its symbols in the image's libraries.
    run("build", recipe, "--progress", "lines", store=store)
    ((_, plan),) = read_plans(recipe)
    (layer,) = [layer for layer in plan.layers if isinstance(layer, CompiledLayer)]
    record = store.layer(layer.wheel_key)
    assert record is not None
    with zipfile.ZipFile(store.blob(record.digest)) as wheel:
        (library,) = [name for name in wheel.namelist() if name.endswith(".so")]
        code = wheel.read(library)
    assert list(architectures(code)) == [(MACHINE_CODE, 90)] * 3


def architectures(library: bytes) -> Iterator[tuple[int, int]]:
    """Yield kind and architecture of what nvcc put into a library: a container for each `.cu` file."""
    at = library.find(CONTAINER)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", library, at + 6)
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, header, size = struct.unpack_from("<HHIQ", library, entry)
            yield kind, *struct.unpack_from("<I", library, entry + 28)
            entry += header + size
        at = library.find(CONTAINER, at)
