"""What a run was made on, without names of hosts: processors, memory, disk, versions."""

from __future__ import annotations

import platform
import re
import shutil
from pathlib import Path

import imagebuilder
from imagebuilder.core import process
from imagebuilder.errors import ImagebuilderError

_TOOLS = {
    "Docker engine": ["dockerd", "--version"],
    "buildx": ["docker", "buildx", "version"],
    "mmdebstrap": ["mmdebstrap", "--version"],
}


def described() -> dict[str, str]:
    """Name what the figures depend on."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    found = {
        "processors": f"{process.cores()} cores" + (f", {model[1]}" if model else ""),
        "memory": f"{int(memory[1]) / 1024**2:.0f} GiB" if memory else "?",
        "disk": f"{_file_system(Path.cwd())}, {shutil.disk_usage('.').total / 1e9:.0f} GB",
        "kernel": platform.release().partition("-")[0],
        "Python": platform.python_version(),
        "imagebuilder": imagebuilder.__version__,
    }
    for name, command in _TOOLS.items():
        try:
            text = process.run(command, timeout=60).stdout
        except ImagebuilderError:
            continue
        version = re.search(r"\d+\.\d+[\w.+~]*", text)
        found[name] = version[0] if version else text.strip()
    return found


def _file_system(folder: Path) -> str:
    """Find the type of the file system that a folder is on: the longest mount point wins."""
    rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    fitting = [row for row in rows if folder.is_relative_to(row[1])]
    return max(fitting, key=lambda row: len(row[1]))[2]
