"""What the check of the fabric makes of the libraries of an image."""

from __future__ import annotations

from typing import Any

import pytest

from imagebuilder.smoke.checks import fabric

LOADS = {"error": "", "path": "/usr/lib/libibverbs.so.1"}
PLUGIN = {"path": "/usr/local/lib/libnccl-net.so", "error": "", "has": [6, 8], "asked": [8, 9]}
NCCL = "/opt/venv/lib/nccl/lib/libnccl.so.2"


def found(**change: Any) -> dict[str, Any]:
    return {
        "verbs": LOADS,
        "fabric": LOADS,
        "providers": [{"name": "mlx5", "path": "/usr/lib/libmlx5-rdmav34.so", "error": ""}],
        "plugins": [PLUGIN],
        "cudart": {},
        "nccl": NCCL,
        "by_name": {"error": "", "path": NCCL},
        "copies": {"libibverbs": ["/usr/lib/libibverbs.so.1.14.56.1"], "libfabric": []},
        "search_path": [],
        "host_folders": ["/usr/local/gib/lib64", "/usr/local/nvidia/lib64"],
        **change,
    }


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"verbs": {"error": "libibverbs.so.1: cannot open shared object file: No such file", "path": ""}},
        {"by_name": {"error": "libnccl.so.2: cannot open shared object file", "path": ""}},
        {"plugins": [{**PLUGIN, "has": [], "asked": []}]},
        {"cudart": {"error": "", "path": "/usr/lib/libcudart.so.12"}},
        {"search_path": ["/usr/local/nvidia/lib64", "/usr/local/gib/lib64"]},
        {"search_path": ["/usr/local/lib", "/usr/local/nvidia/lib64"]},
    ],
    ids=[
        "all",
        "no libibverbs",
        "no NCCL by name",
        "unknown interface",
        "libcudart",
        "only host",
        "host last",
    ],
)
def test_libraries_that_are_right_pass(change: dict[str, Any]) -> None:
    assert list(fabric.judge(found(**change))) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"verbs": {"error": "libnl-3.so.200: cannot open shared object file", "path": ""}},
            "libibverbs.so.1 does not load: libnl-3.so.200: cannot open shared object file",
        ),
        (
            {"providers": [{"name": "efa", "path": "/p", "error": "undefined symbol: x"}]},
            "the libibverbs provider efa does not load: undefined symbol: x",
        ),
        (
            {"plugins": [{**PLUGIN, "error": "undefined symbol: fi_x"}]},
            "NCCL's plugin /usr/local/lib/libnccl-net.so does not load: undefined symbol: fi_x",
        ),
        (
            {"plugins": [{**PLUGIN, "has": [3, 4]}]},
            (
                "NCCL's plugin /usr/local/lib/libnccl-net.so has the interface v3, v4, and this NCCL asks "
                "for v8, v9"
            ),
        ),
        (
            {"cudart": {"error": "libcudart.so: cannot open shared object file", "path": ""}},
            "a plugin opens `libcudart.so`, which is not found by that name",
        ),
        (
            {"copies": {"libibverbs": ["/a/libibverbs.so.1", "/b/libibverbs.so.1"]}},
            "a job loads 2 copies of libibverbs: /a/libibverbs.so.1, /b/libibverbs.so.1",
        ),
        (
            {"by_name": {"error": "", "path": "/usr/local/nvidia/lib64/libnccl.so.2"}},
            (
                "a program that opens libnccl.so.2 by name gets /usr/local/nvidia/lib64/libnccl.so.2, and "
                f"torch gets {NCCL}"
            ),
        ),
        (
            {"search_path": ["/usr/local/gib/lib64/", "/usr/local/lib"]},
            (
                "LD_LIBRARY_PATH has /usr/local/gib/lib64/, where hosts mount their libraries, before "
                "/usr/local/lib"
            ),
        ),
    ],
)
def test_each_fault_is_named(change: dict[str, Any], message: str) -> None:
    ((said, remedy),) = fabric.judge(found(**change))
    assert said == message
    assert remedy


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, "libibverbs.so.1, libfabric.so.1, 1 verbs providers, 1 NCCL plugins load"),
        (
            {"plugins": []},
            "libibverbs.so.1, libfabric.so.1, 1 verbs providers load; no plugin of NCCL in the image",
        ),
        (
            {"plugins": [], "providers": [], "nccl": "", "verbs": {"error": "x"}, "fabric": {"error": "x"}},
            "no libibverbs and no libfabric in the image",
        ),
    ],
)
def test_the_summary_says_what_was_opened(change: dict[str, Any], line: str) -> None:
    assert fabric.summary(found(**change)) == line
