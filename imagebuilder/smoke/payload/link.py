"""Do the compiled parts fit together: the loader's view of the extension modules, imports, a convolution.

A library that misses another one is a failure only where Python would load it: wheels carry plugins for
hardware that most hosts lack (of NVSHMEM, of cuFile). A missing symbol version of the C library is
always one.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import common

# The driver's own libraries come from the host, never from the image.
DRIVER = re.compile(r"lib(cuda|nvidia-[a-z]+|nvcuvid)\.so")
EXTENSION = re.compile(r"\.(cpython-[^/]*|abi3)\.so$")
SHARED = re.compile(r"\.so(\.[0-9]+)*$")
SECONDS = 40


def main() -> None:
    arguments = common.parser().parse_args()
    files = shared_objects()
    missing, versions, swept = sweep(files)
    # The library is elsewhere in the venv: the package first loads it by its path.
    present = {path.name for path in files}
    lacking = {
        path: sorted(name for name in names if name not in present and not DRIVER.match(name))
        for path, names in missing.items()
    }
    lacking = {path: names for path, names in lacking.items() if names}
    # mpi4py has one module for each MPI implementation, and imports the one that fits.
    whole = {stem(path) for path in files if is_extension(path) and path not in missing}
    broken = {path for path in lacking if is_extension(path) and stem(path) not in whole}
    failures = imports(arguments.device)
    common.say(
        arguments.nonce,
        swept=swept,
        of=len(files),
        versions=versions[:10],
        broken={shorten(path): lacking[path] for path in sorted(broken)[:10]},
        plugins={shorten(path): names for path, names in sorted(lacking.items()) if path not in broken},
        imports=failures,
        convolution="" if "torch" in failures else convolve(arguments.device),
    )


def shared_objects() -> list[Path]:
    folders = sorted(
        {Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    )
    return [path for folder in folders for path in sorted(folder.rglob("*.so*")) if SHARED.search(path.name)]


def sweep(files: list[Path]) -> tuple[dict[Path, list[str]], list[str], int]:
    """Ask the loader which libraries it would not find, a few files at a time, until the time is up."""
    missing: dict[Path, list[str]] = {}
    versions: set[str] = set()
    swept = 0
    until = time.monotonic() + SECONDS
    # Extension modules first, because only for them a missing library is a failure.
    ordered = sorted(files, key=lambda path: (not is_extension(path), path))
    for start in range(0, len(ordered), 20):
        if time.monotonic() > until:
            break
        part = ordered[start : start + 20]
        done = subprocess.run(
            ["ldd", *map(str, part)], capture_output=True, text=True, errors="replace", check=False
        )
        current = part[0]
        for line in done.stdout.splitlines():
            if not line.startswith("\t") and line.endswith(":"):
                current = Path(line[:-1])
            elif "=> not found" in line:
                missing.setdefault(current, []).append(line.split()[0])
        versions |= {line.strip() for line in done.stderr.splitlines() if "version `" in line}
        swept += len(part)
    return missing, sorted(versions), swept


def imports(device: str) -> dict[str, str]:
    """Import every package that has compiled parts. Return those that fail, and why."""
    failures = {}
    for name in compiled_packages():
        try:
            if name == "mpi4py":
                # mpi4py's compiled part is its module MPI, whose import must not start MPI here.
                importlib.import_module("mpi4py").rc.initialize = False
                importlib.import_module("mpi4py.MPI")
            else:
                importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever an import may raise, it is the finding
            # A missing driver of this host is not a fault of the image.
            if device != "cpu" or not DRIVER.search(str(error)):
                failures[name] = f"{type(error).__name__}: {error}"[:500]
    return failures


def compiled_packages() -> list[str]:
    names = set()
    for distribution in metadata.distributions():
        for path in distribution.files or ():
            if EXTENSION.search(str(path)):
                top = path.parts[0].partition(".")[0]
                # Private top-level modules are imported by their own packages.
                if top.isidentifier() and not top.startswith("_"):
                    names.add(top)
    return sorted(names)


def convolve(place: str) -> str:
    """Compute a convolution forward and backward: only here do mismatched parts of cuDNN show on a GPU."""
    try:
        import torch
    except ModuleNotFoundError:
        return ""
    try:
        device = torch.device(place)
        image = torch.arange(2 * 3 * 16 * 16, dtype=torch.float32, device=device).reshape(2, 3, 16, 16) / 1536
        image.requires_grad_()
        weight = torch.ones(4, 3, 3, 3, device=device, requires_grad=True)
        torch.nn.functional.conv2d(image, weight, padding=1).sum().backward()
    except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
        return f"fails: {type(error).__name__}: {error}"[:500]
    # Every inner pixel meets all nine taps of four filters.
    inner = image.grad[:, :, 1:-1, 1:-1]
    return "ok" if torch.allclose(inner, torch.full_like(inner, 36.0)) else "gives wrong gradients"


def is_extension(path: Path) -> bool:
    return EXTENSION.search(path.name) is not None


def stem(path: Path) -> tuple[Path, str]:
    """Return a module's folder and its name up to the first dot, which all variants of a module share."""
    return path.parent, path.name.partition(".")[0]


def shorten(path: Path) -> str:
    return re.split(r"(?:site|dist)-packages/", str(path))[-1]


main()
