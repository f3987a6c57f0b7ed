"""The fabric: providers and plugins for InfiniBand, RoCE and EFA, all opened without such a network.

If one of them does not load, NCCL goes on over sockets: the job runs, many times slower, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 120
_SLOW = "a job with this image would run over sockets, without an error"
_FOUNDATIONS = {"verbs": "libibverbs.so.1", "fabric": "libfabric.so.1"}


def run(session: Session) -> Passed:
    # All nodes run one image.
    outcome = session.run(0, session.script("fabric.py"), timeout=_SECONDS)
    session.require_ok([outcome])
    said = session.said(outcome)
    node = session.nodes[0].name
    if not said:
        raise CheckFailed("the script that opens the libraries gave no answer", node=node)
    findings = [
        Finding(node=node, message=message, remedy=f"{_SLOW}: {remedy}")
        for message, remedy in judge(said[-1])
    ]
    if findings:
        raise CheckFailed.because(*findings)
    return Passed(summary=summary(said[-1]), evidence=said[-1])


def judge(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the libraries of an image, and what to do about each."""
    for key, name in _FOUNDATIONS.items():
        error = found[key]["error"]
        if error and not _absent(error, name):
            yield f"{name} does not load: {error}", "install the Debian package that has what is missing"
    for provider in found["providers"]:
        if provider["error"]:
            yield (
                f"the libibverbs provider {provider['name']} does not load: {provider['error']}",
                "libibverbs and its providers must be of one rdma-core; install them from one place",
            )
    yield from _plugins(found["plugins"])
    if found["cudart"] and found["cudart"]["error"]:
        yield (
            "a plugin opens `libcudart.so`, which is not found by that name",
            "link /usr/lib/libcudart.so to the image's libcudart.so.*, as `fabric: [efa]` does",
        )
    for kind, paths in found["copies"].items():
        if len(paths) > 1:
            yield (
                f"a job loads {len(paths)} copies of {kind}: {', '.join(paths)}",
                "keep one: providers and plugins find their devices in only one of them",
            )
    yield from _nccl(found)
    yield from _search_path(found["search_path"], found["host_folders"])


def summary(found: Mapping[str, Any]) -> str:
    """Say what was opened."""
    loaded = [name for key, name in _FOUNDATIONS.items() if not found[key]["error"]]
    if found["providers"]:
        loaded.append(f"{len(found['providers'])} verbs providers")
    if found["plugins"]:
        loaded.append(f"{len(found['plugins'])} NCCL plugins")
    nccl = "; no plugin of NCCL in the image" if found["nccl"] and not found["plugins"] else ""
    return (f"{', '.join(loaded)} load" if loaded else "no libibverbs and no libfabric in the image") + nccl


def _absent(error: str, name: str) -> bool:
    """Return whether the library itself is not in the image, rather than one that it needs."""
    return error.startswith(f"{name}: cannot open shared object file")


def _plugins(plugins: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for plugin in plugins:
        if plugin["error"]:
            yield (
                f"NCCL's plugin {plugin['path']} does not load: {plugin['error']}",
                "build it for this image's libfabric and CUDA, and put what it needs where the loader looks",
            )
        elif plugin["has"] and plugin["asked"] and not set(plugin["has"]) & set(plugin["asked"]):
            has, asked = (", ".join(f"v{n}" for n in plugin[key]) for key in ("has", "asked"))
            yield (
                f"NCCL's plugin {plugin['path']} has the interface {has}, and this NCCL asks for {asked}",
                "take a release of the plugin for this NCCL",
            )


def _nccl(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    by_name = found["by_name"].get("path", "")
    if by_name and by_name != found["nccl"]:
        yield (
            f"a program that opens libnccl.so.2 by name gets {by_name}, and torch gets {found['nccl']}",
            "leave folders with another NCCL out of LD_LIBRARY_PATH, or name them last",
        )


def _search_path(wanted: Sequence[str], host_folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the folders for a host's mounts that LD_LIBRARY_PATH has before the image's own."""
    last = max(
        (index for index, folder in enumerate(wanted) if not _is_host(folder, host_folders)), default=-1
    )
    for folder in wanted[: last + 1]:
        if _is_host(folder, host_folders):
            yield (
                f"LD_LIBRARY_PATH has {folder}, where hosts mount their libraries, before {wanted[last]}",
                "name it last: what a host mounts there would replace the image's own libraries",
            )


def _is_host(folder: str, host_folders: Sequence[str]) -> bool:
    return str(PurePosixPath(folder)) in host_folders


CHECK = Check(
    name="fabric",
    order=45,
    title="every libibverbs provider, libfabric and every NCCL plugin opened with RTLD_NOW",
    criterion="all of them load; a job loads one libibverbs, libfabric and NCCL; plugins have an interface "
    "that NCCL asks for; LD_LIBRARY_PATH has folders of the host last",
    run=run,
    # Without containers, what is loaded is this host's.
    required=lambda promise: promise.contained,
)
