"""A stand-in for NVIDIA's images and package archive: a small base in a registry, tiny packages on a server.

The base is Debian itself, made by mmdebstrap and kept in a store, with two layers on top: a package of CUDA's
runtime on hold, the settings of NVIDIA's archive, and something deleted. Its layers are gzip and zstd.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from backports import zstd

from imagebuilder.core import process
from tests.support.fileserver import FileServer

SUITE = "trixie"
ARCHIVE_FILE = "etc/apt/sources.list.d/cuda-debian13-x86_64.list"
KEYRING = "usr/share/keyrings/cuda-archive-keyring.gpg"
OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker"
# What the packages of NVIDIA's archive are called, with versions as it writes them.
PACKAGES = (
    ("cuda-cudart-12-8", "12.8.57-1"),
    ("cuda-cudart-12-8", "12.8.90-1"),
    ("libcudnn9-cuda-12", "9.8.0.87-1"),
    ("libcudnn9-cuda-12", "9.10.2.21-1"),
    ("libnccl2", "2.25.1-1+cuda12.8"),
    ("libnccl2", "2.26.2-1+cuda12.8"),
    ("libnccl2", "2.27.5-1+cuda12.8"),
    ("libnccl2", "2.27.5-1+cuda12.9"),
)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer to be pushed: its blob, the digest of the tar inside, and its media type."""

    blob: bytes
    diff_id: str
    media_type: str

    @property
    def descriptor(self) -> dict[str, Any]:
        return descriptor(self.blob, self.media_type)


def descriptor(data: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer(tar: bytes, kind: str = "gzip") -> Layer:
    """Pack a tar as registries hold it: `gzip` under Docker's name, `zstd` or plain `tar` under OCI's."""
    match kind:
        case "gzip":
            packed, media_type = gzip.compress(tar, 1, mtime=0), f"{DOCKER}.image.rootfs.diff.tar.gzip"
        case "zstd":
            packed, media_type = zstd.compress(tar), f"{OCI}.layer.v1.tar+zstd"
        case _:
            packed, media_type = tar, f"{OCI}.layer.v1.tar"
    return Layer(blob=packed, diff_id=digest(tar), media_type=media_type)


def tar_of(files: Mapping[str, bytes | str | None]) -> bytes:
    """Make a tar of files, links (a text) and folders (None), in the order given."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.mode = 0o644
            if content is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, str):
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, content, 0o777
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


def minimal_debian(cache: Path, suite: str = SUITE) -> bytes:
    """Give the tar of a minimal Debian: made once, and then kept."""
    kept = cache / f"{suite}-minimal.tar"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        draft = cache / f"{suite}-draft.tar"
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "mmdebstrap", "--mode=root"]
        options = ["--variant=apt", "--skip=output/dev", '--aptopt=Acquire::Languages "none"']
        process.run([*command, *options, suite, draft], timeout=600, env={"SOURCE_DATE_EPOCH": "0"})
        draft.rename(kept)
    return kept.read_bytes()


def make_packages(folder: Path) -> dict[tuple[str, str], Path]:
    """Make the tiny packages: a library each, whose file says its version."""
    made = {}
    for name, version in PACKAGES:
        root = folder / f"{name}_{version}"
        library = root / f"usr/lib/x86_64-linux-gnu/{name}.so"
        library.parent.mkdir(parents=True)
        library.write_text(f"{name} {version}\n")
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nSection: libs\nPriority: optional\n"
            f"Maintainer: Nobody <nobody@example.org>\nDescription: stand-in for {name}\n"
        )
        target = folder / f"{name}_{version}_amd64.deb"
        env = {"SOURCE_DATE_EPOCH": "0"}
        process.run(["dpkg-deb", "--build", "--root-owner-group", root, target], timeout=60, env=env)
        shutil.rmtree(root)
        made[name, version] = target
    return made


def serve_archive(server: FileServer, debs: Mapping[tuple[str, str], Path], signer: Signer) -> None:
    """Put an archive without suites, as NVIDIA's is, on a web server: packages, their list, its signature."""
    blocks = []
    for path in debs.values():
        data = path.read_bytes()
        server.files[f"/cuda/{path.name}"] = data
        control = process.run(["dpkg-deb", "--field", path], timeout=60).stdout
        sha256 = hashlib.sha256(data).hexdigest()
        blocks.append(f"{control}Filename: ./{path.name}\nSize: {len(data)}\nSHA256: {sha256}\n")
    packages = "\n".join(blocks).encode()
    release = (
        f"Origin: stand-in\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n"
        f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages\n"
    )
    server.files["/cuda/Packages"] = packages
    server.files["/cuda/InRelease"] = signer.sign(release)


class Signer:
    """A key of the test's own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        home.mkdir(mode=0o700)
        self._gpg("--quick-generate-key", "stand-in", "ed25519", "sign", "never")
        self.public = self._home / "public.gpg"
        self._gpg("--output", str(self.public), "--export")

    def sign(self, text: str) -> bytes:
        return self._gpg("--clearsign", text=text).encode()

    def close(self) -> None:
        process.run(["gpgconf", "--homedir", self._home, "--kill", "all"], timeout=60, check=False)

    def _gpg(self, *words: str, text: str = "") -> str:
        options = ("--batch", "--pinentry-mode", "loopback", "--passphrase", "")
        command = ("gpg", "--homedir", str(self._home), *options, *words)
        return process.run(command, timeout=120, stdin=text).stdout


def nvidia_layers(base: bytes, deb: Path, key: bytes) -> tuple[Layer, Layer]:
    """Make what NVIDIA's images have on top of a distribution: its archive's settings, and a held package."""
    with tarfile.open(fileobj=io.BytesIO(base)) as tar:
        names = {name.removeprefix("./") for name in tar.getnames()}
        held = tar.extractfile("./var/lib/dpkg/status")
        assert held is not None
        status = held.read().decode()
    assert "usr/share/doc/apt/copyright" in names
    settings = tar_of(
        {
            ARCHIVE_FILE: b"deb [signed-by=/"
            + KEYRING.encode()
            + b"] https://archive.example/cuda/debian13 /\n",
            KEYRING: key,
            "usr/share/doc/apt/.wh.copyright": b"",
        }
    )
    control = process.run(["dpkg-deb", "--field", deb], timeout=60).stdout
    first, _, rest = control.partition("\n")
    library = "usr/lib/x86_64-linux-gnu/cuda-cudart-12-8.so"
    content = b"cuda-cudart-12-8 12.8.57-1\n"
    md5sum = hashlib.md5(content, usedforsecurity=False).hexdigest()
    package = tar_of(
        {
            library: content,
            "var/lib/dpkg/status": f"{status}\n{first}\nStatus: hold ok installed\n{rest}".encode(),
            "var/lib/dpkg/info/cuda-cudart-12-8.list": f"/.\n/{library}\n".encode(),
            "var/lib/dpkg/info/cuda-cudart-12-8.md5sums": f"{md5sum}  {library}\n".encode(),
            "opt/base-tool": b"#!/bin/sh\n",
        }
    )
    return layer(settings, "zstd"), layer(package)


def config_of(layers: Sequence[Layer], architecture: str = "amd64", **run: object) -> bytes:
    document = {
        "architecture": architecture,
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [item.diff_id for item in layers]},
    }
    return json.dumps(document).encode()


class Pusher:
    """Puts images into a registry byte by byte, also such as no tool would push."""

    def __init__(self, url: str, repository: str) -> None:
        self._base = f"{url}/v2/{repository}"

    def image(self, layers: Sequence[Layer], config: bytes, tag: str = "") -> dict[str, Any]:
        """Push layers, config and manifest; returns the manifest's descriptor."""
        for data in (*(item.blob for item in layers), config):
            self._blob(data)
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{DOCKER}.distribution.manifest.v2+json",
            "config": descriptor(config, f"{DOCKER}.container.image.v1+json"),
            "layers": [item.descriptor for item in layers],
        }
        return self.manifest(manifest, tag)

    def index(self, entries: Mapping[str, dict[str, Any]], tag: str) -> dict[str, Any]:
        """Push a list of platforms: `linux/amd64` and the descriptor of its manifest."""
        manifests = []
        for platform, entry in entries.items():
            system, _, architecture = platform.partition("/")
            manifests.append({**entry, "platform": {"os": system, "architecture": architecture}})
        media_type = f"{DOCKER}.distribution.manifest.list.v2+json"
        return self.manifest({"schemaVersion": 2, "mediaType": media_type, "manifests": manifests}, tag)

    def manifest(self, document: Mapping[str, Any], tag: str) -> dict[str, Any]:
        data = json.dumps(document).encode()
        media_type = str(document["mediaType"])
        url = f"{self._base}/manifests/{tag or digest(data)}"
        reply = requests.put(url, data=data, headers={"Content-Type": media_type}, timeout=60)
        reply.raise_for_status()
        return descriptor(data, media_type)

    def delete(self, name: str) -> None:
        requests.delete(f"{self._base}/manifests/{name}", timeout=60).raise_for_status()

    def _blob(self, data: bytes) -> None:
        if requests.head(f"{self._base}/blobs/{digest(data)}", timeout=60).status_code == 200:
            return
        place = requests.post(f"{self._base}/blobs/uploads/", timeout=60).headers["Location"]
        mark = "&" if "?" in place else "?"
        headers = {"Content-Type": "application/octet-stream"}
        url = f"{place}{mark}digest={digest(data)}"
        requests.put(url, data=data, headers=headers, timeout=120).raise_for_status()
