"""Load what a job over InfiniBand, RoCE or libfabric would load, without such a network.

libibverbs and NCCL open their providers and plugins when a job runs, and if one cannot be opened, they go on
over sockets. Here each is opened at once and with all its symbols (RTLD_NOW), in a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from pathlib import Path

import common

SECONDS = 10
MOST_FILES = 200
MOST_BYTES = 1 << 29
# Where hosts and operators put their plugins into containers: AWS, GKE, NVIDIA's container toolkit, HPC-X.
HOST_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/efa/lib",
    "/opt/aws-ofi-nccl/lib",
    "/usr/local/gib/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/nvidia/lib64",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
)
DRIVER = re.compile(r"lib(cuda|nvidia-ml)\.so")


def main() -> None:
    arguments = common.parser(ranks=False).parse_args()
    wanted = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    folders = searched(wanted)
    nccl = installed_nccl()
    plugins = found(folders, r"libnccl-(net|tuner|profiler|env)[^/]*\.so[.0-9]*")
    verbs = opened("libibverbs.so.1")
    fabric = opened("libfabric.so.1")
    own = {path: content(path) for path in plugins}
    common.say(
        arguments.nonce,
        verbs=verbs,
        fabric=fabric,
        providers=providers(verbs),
        plugins=[plugin(path, own[path], nccl) for path in plugins],
        cudart=opened("libcudart.so") if any(b"libcudart.so\0" in text for text in own.values()) else {},
        nccl=nccl,
        by_name=opened("libnccl.so.2") if nccl else {},
        copies=copies([nccl, "libibverbs.so.1", "libfabric.so.1", "libucp.so.0", *plugins]),
        search_path=wanted,
        host_folders=HOST_FOLDERS,
    )


def searched(wanted: list[str]) -> list[str]:
    """Return the folders that the loader searches, and those where hosts put plugins."""
    folders = [*wanted, *HOST_FOLDERS]
    for conf in sorted(Path("/etc/ld.so.conf.d").glob("*.conf"))[:50]:
        lines = conf.read_text(encoding="utf-8", errors="replace").splitlines()[:50]
        folders += [line.strip() for line in lines if line.startswith("/")]
    folders += ["/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    return list(dict.fromkeys(folders))


def found(folders: list[str], pattern: str) -> list[str]:
    """Return the files of a name, each once though several links lead to it."""
    files: dict[str, str] = {}
    for folder in folders:
        try:
            entries = sorted(Path(folder).iterdir())
        except OSError:
            continue
        for path in entries:
            if re.fullmatch(pattern, path.name) and path.is_file():
                files.setdefault(os.path.realpath(path), str(path))
    return list(files.values())[:MOST_FILES]


def installed_nccl() -> str:
    """Return the NCCL that torch loads: that of a wheel; "" if there is none."""
    for folder in sys.path:
        for path in sorted(Path(folder).glob("nvidia/nccl/lib/libnccl.so.2")):
            return os.path.realpath(path)
    return opened("libnccl.so.2")["path"]


def content(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return b""


def plugin(path: str, text: bytes, nccl: str) -> dict[str, object]:
    """Open a plugin, and compare the interfaces that it has with those that NCCL asks for."""
    name = re.match(r"libnccl-(net|tuner|profiler)", Path(path).name)
    symbol = {"net": b"ncclNetPlugin_v", "tuner": b"ncclTunerPlugin_v", "profiler": b"ncclProfiler_v"}
    if not name:
        return {"path": path, "error": opened(path)["error"], "has": [], "asked": []}
    pattern = re.compile(symbol[name[1]] + rb"([0-9]{1,3})")
    has, asked = (sorted(set(map(int, pattern.findall(each)))) for each in (text, content(nccl)))
    return {"path": path, "error": opened(path)["error"], "has": has, "asked": asked}


def providers(verbs: dict[str, str]) -> list[dict[str, str]]:
    """Open the provider of every driver that libibverbs would look for, where it looks for it."""
    if not verbs["path"]:
        return []
    place = re.search(rb"(/[\w./+-]+/lib)%s(-rdmav[0-9]{1,4}\.so)", content(verbs["path"]))
    if not place:
        return []
    entries = []
    for conf in sorted(Path("/etc/libibverbs.d").glob("*.driver"))[:MOST_FILES]:
        for line in conf.read_text(encoding="utf-8", errors="replace").splitlines()[:10]:
            words = line.split()
            if len(words) == 2 and words[0] == "driver":
                path = f"{place[1].decode()}{words[1]}{place[2].decode()}"
                entries.append({"name": words[1], "path": path, "error": opened(path)["error"]})
    return entries


def opened(name: str) -> dict[str, str]:
    """Open a library in a process of its own. Return its path, or the loader's error."""
    answer = apart([name])[name]
    return {"error": answer["error"], "path": mapped(answer["files"], name)}


def copies(names: list[str]) -> dict[str, list[str]]:
    """Open all libraries in one process, as a job would. Return files of libraries of which there is one."""
    alone = [name for name in dict.fromkeys(names) if name and not opened(name)["error"]]
    together = apart(alone).values()
    files = {path for entry in together for path in entry["files"]}
    kinds = {kind: [] for kind in ("libibverbs", "libfabric", "libnccl", "libucp")}
    for path in sorted({os.path.realpath(path) for path in files}):
        kind = Path(path).name.partition(".")[0]
        if kind in kinds:
            kinds[kind].append(path)
    return kinds


def apart(names: list[str]) -> dict[str, dict]:
    """Open libraries one after the other in a forked process: what they do there is over when it ends."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(SECONDS)
        answer = {}
        for name in names:
            try:
                ctypes.CDLL(name, mode=os.RTLD_NOW)
                answer[name] = {"error": "", "files": every_file()}
            except OSError as error:
                # A missing driver of this host is not a fault of the image.
                missing = "" if DRIVER.search(str(error)) else str(error)
                answer[name] = {"error": missing, "files": []}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        why = f"ended the process that opened it, with {code}"
        return {name: {"error": why, "files": []} for name in names}
    return json.loads(said)


def every_file() -> list[str]:
    """Return the shared libraries in this process's memory."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        paths = {"/" + line.rstrip("\n").partition("/")[2] for line in maps if "/" in line}
    return sorted(path for path in paths if ".so" in path)


def mapped(files: list[str], name: str) -> str:
    """Return the file that the loader took for a library."""
    start = Path(name).name.partition(".so")[0] + ".so"
    return next((path for path in files if Path(path).name.startswith(start)), "")


main()
