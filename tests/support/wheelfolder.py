"""A folder of tiny wheels with real metadata: an index for resolving without a network."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

LINUX = "platform_system == 'Linux'"


def put(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    *,
    tag: str = "py3-none-any",
    content: bytes = b"",
) -> Path:
    """Write one wheel: its metadata, and one file with the given content."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-{tag}.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name.replace('-', '_')}.py", content)
        archive.writestr(f"{stem}.dist-info/METADATA", metadata)
        archive.writestr(f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def put_index(folder: Path, *packages: tuple[str, str]) -> str:
    """Write an index (PEP 503) of wheels, as name and version; gives its address."""
    for name, version in packages:
        project = folder / name
        project.mkdir(parents=True, exist_ok=True)
        put(project, name, version)
        names = sorted(path.name for path in project.glob("*.whl"))
        (project / "index.html").write_text("".join(f'<a href="{each}">{each}</a>' for each in names))
    return folder.as_uri()


def put_sdist(folder: Path, name: str, version: str) -> Path:
    """Write one source archive: its metadata, and nothing to build."""
    path = folder / f"{name.replace('-', '_')}-{version}.tar.gz"
    data = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n".encode()
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(f"{name}-{version}/PKG-INFO")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return path


def torch_world(folder: Path) -> Path:
    """Fill a folder with a torch for CUDA 12, one for CUDA 13, and what they load."""
    for version in ("12.8.90", "12.9.79"):
        put(folder, "nvidia-cuda-runtime-cu12", version)
    for version in ("9.9.0.52", "9.10.2.21", "9.24.0.43"):
        put(folder, "nvidia-cudnn-cu12", version, ["nvidia-cublas-cu12"])
    for version in ("2.26.2", "2.27.5", "2.28.9"):
        put(folder, "nvidia-nccl-cu12", version)
    put(folder, "nvidia-cublas-cu12", "12.8.4.1")
    put(folder, "nvidia-cuda-runtime", "13.0.96")
    put(folder, "nvidia-cudnn-cu13", "9.19.0.56")
    put(folder, "nvidia-nccl-cu13", "2.28.9")
    put(folder, "cuda-toolkit", "13.0.2", ['nvidia-cuda-runtime==13.0.*; extra == "cudart"'])
    linux = "manylinux_2_28_x86_64"
    for version, nccl in (("2.9.1", "2.26.2"), ("2.10.0", "2.27.5")):
        needs = [
            f"nvidia-cuda-runtime-cu12==12.8.90; {LINUX}",
            f"nvidia-cudnn-cu12==9.10.2.21; {LINUX}",
            f"nvidia-nccl-cu12=={nccl}; {LINUX}",
            "nvidia-cublas-cu12==12.8.4.1",
            "filelock",
        ]
        put(folder, "torch", version, needs, tag=f"cp313-cp313-{linux}")
    needs = [
        "cuda-toolkit[cudart]==13.0.2",
        "nvidia-cudnn-cu13==9.19.0.56",
        "nvidia-nccl-cu13==2.28.9",
        "filelock",
    ]
    put(folder, "torch", "2.11.0", needs, tag=f"cp313-cp313-{linux}")
    put(folder, "torch", "2.1.2", ["filelock"], tag=f"cp311-cp311-{linux}")
    for name, version in (
        ("numpy", "2.3.0"),
        ("pip", "25.3"),
        ("filelock", "3.19.1"),
        ("filelock", "3.20.0"),
    ):
        put(folder, name, version)
    put(folder, "tensorboard", "2.20.0", ["numpy", "markdown"])
    put(folder, "markdown", "3.9")
    return folder
