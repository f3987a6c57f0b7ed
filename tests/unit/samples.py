"""Small values that many tests start from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from imagebuilder.bases.read import Base
from imagebuilder.bases.system import Archive, System
from imagebuilder.lock import file as lockfile
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import BaseImage, BaseLayer, Deb, Installed, Lock, Wheel
from imagebuilder.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"


def recipe(**changes: object) -> Recipe:
    """A recipe with one pin of each kind: a wheel's and a Debian package's."""
    fields: dict[str, object] = {
        "name": "sample",
        "base": "debian:trixie",
        "python": "3.13",
        "pins": {"torch": "2.10.0", "openmpi": "5.0.7"},
    }
    return Recipe.model_validate({**fields, **changes})


def wheel(name: str, version: str = "1.0", *, size: int = 1000, component: str = "python") -> Wheel:
    return Wheel(
        name=name,
        version=version,
        file=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
        size=size,
        sha256=hashlib.sha256(name.encode()).hexdigest(),
        component=component,
    )


def deb(name: str, version: str = "1.0-1", architecture: str = "amd64") -> Deb:
    return Deb(
        name=name,
        version=version,
        architecture=architecture,
        path=f"pool/main/{name[0]}/{name}/{name}_{version}_{architecture}.deb",
        size=1000,
        sha256=hashlib.sha256(name.encode()).hexdigest(),
    )


def lock(**changes: object) -> Lock:
    fields: dict[str, object] = {
        "inputs": "0" * 64,
        "recipe": "sample",
        "base": "debian:trixie",
        "architecture": "amd64",
        "python": "3.13",
        "pins": {"torch": "2.10.0", "cuda": "12.8.90", "openmpi": "5.0.7"},
        "packages": ("openmpi-bin", "python3"),
        "wheels": (wheel("numpy"), wheel("torch", "2.10.0", component="torch")),
        "debs": (deb("openmpi-bin", "5.0.7-1"), deb("python3", "3.13.5-1")),
    }
    return Lock.model_validate({**fields, **changes})


def lock_document(lock: Lock) -> dict[str, Any]:
    """Return the file of a lock for one platform, as JSON."""
    document: dict[str, Any] = json.loads(lockfile.dumps(LockFile(sections=(lock,))))
    return document


def section(document: dict[str, Any]) -> dict[str, Any]:
    """Return the only section of a lock file."""
    found: dict[str, Any]
    (found,) = document["platforms"].values()
    return found


def installed(name: str, version: str = "1.0-1") -> Installed:
    return Installed(name=name, version=version, architecture="amd64")


def base_layer(digit: str = "a") -> BaseLayer:
    return BaseLayer(
        digest=f"sha256:{digit * 64}",
        diff_id=f"sha256:{'f' + digit * 63}",
        size=1000,
        media_type="application/vnd.oci.image.layer.v1.tar+gzip",
    )


def base_image(**changes: object) -> BaseImage:
    """A base with a package of CUDA's runtime and NVIDIA's archive, as NVIDIA's images are."""
    fields: dict[str, object] = {
        "name": "nvidia/cuda:12.8.1-base-debian13",
        "digest": f"sha256:{'b' * 64}",
        "env": {
            "CUDA_VERSION": "12.8.1",
            "PATH": "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib",
        },
        "labels": {"maintainer": "somebody"},
        "accounts": {},
        "archives": ("nvidia-cuda",),
        "layers": (base_layer("a"), base_layer("c")),
        "packages": (installed("cuda-cudart-12-8", "12.8.57-1"), installed("libc6", "2.41-12")),
    }
    return BaseImage.model_validate({**fields, **changes})


def base(image: BaseImage | None = None, suite: str = "trixie") -> Base:
    found = image or base_image()
    archives = tuple(
        Archive(name=name, uri="https://archive.example", suite="/", components=(), keys=b"", trusted=True)
        for name in found.archives
    )
    system = System(
        distribution="debian",
        suite=suite,
        architecture="amd64",
        status="",
        packages=found.packages,
        archives=archives,
        accounts=found.accounts,
    )
    return Base(image=found, system=system)
