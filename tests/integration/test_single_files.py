"""Podman fetches the files of a layer that it lacks, by the layer's table of contents."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.pull.nodes import PartialPodman
from imagebuilder.core import documents
from imagebuilder.core.process import run
from imagebuilder.core.progress import no_advance
from imagebuilder.image import layout, oci
from imagebuilder.layers.stargz import compress_tar
from imagebuilder.store import LayerRecord, Store
from tests.support.servers import RegistryServer
from tests.support.wheels import dice, make_wheel, splice, unpack

_GET = re.compile(r'"GET /v2/demo/blobs/(sha256:[0-9a-f]{64}) HTTP/1.1" (200|206) ([0-9]+) ')
FILES = {
    "demo/__init__.py": b"",
    "demo/lib.so": dice(1).randbytes(2_000_000),
    "demo/other.so": dice(2).randbytes(1_000_000),
    "demo/changed.py": b"number = 1\n",
    **{f"demo/{number}.py": b"value = %d\n" % number * number for number in range(300)},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RegistryServer]:
    (tmp_path / "registry").mkdir()
    log = {"level": "warn", "accesslog": {"disabled": False}}
    server = RegistryServer(tmp_path / "registry", extra={"log": log})
    server.start()
    yield server
    server.stop()


@pytest.fixture
def node(short_folder: Path) -> Iterator[PartialPodman]:
    node = PartialPodman(short_folder / "podman")
    node.renew()
    yield node
    run(["umount", "-R", node.folder / "root" / "overlay"], timeout=60, check=False)
    node.stop()


def test_an_update_costs_the_changed_files(
    server: RegistryServer, node: PartialPodman, short_folder: Path
) -> None:
    store = Store(short_folder / "store")
    changed = {**FILES, "demo/changed.py": b"number = 2\n", "demo/new.py": b"new = 1\n" * 9}
    for tag, files in (("one", FILES), ("two", changed)):
        (short_folder / tag).mkdir()
        record = splice([make_wheel(short_folder / tag, files)], store)
        _push(record, store, short_folder / tag / "layout", f"{server.host}/demo:{tag}")
        before = len((server.folder / "log").read_text())
        node.pull(f"{server.host}/demo:{tag}")
        got = _GET.findall((server.folder / "log").read_text()[before:])
        fetched = [int(size) for digest, _, size in got if digest == record.digest]
        assert {status for digest, status, _ in got if digest == record.digest} == {"206"}
        assert _files(_root(node, f"{server.host}/demo:{tag}")) == {
            path: (entry.mode, entry.data) for path, entry in unpack(record, store).items()
        }
        if tag == "one":
            assert sum(fetched) > 3_000_000
        else:
            # The table, the footer, RECORD and two small files, of a layer of three megabytes.
            assert sum(fetched) < 60_000


def test_owners_and_times_are_kept(server: RegistryServer, node: PartialPodman, short_folder: Path) -> None:
    entries = [
        _entry("home", tarfile.DIRTYPE, 0o755, uid=1000, gid=7, mtime=1),
        _entry("home/module.py", tarfile.REGTYPE, 0o600, uid=1000, gid=7, mtime=2),
        _entry("home/agent", tarfile.REGTYPE, 0o2755, uid=0, gid=101, mtime=3),
    ]
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writer:
        for entry in entries:
            writer.addfile(entry, io.BytesIO(b"data") if entry.size else None)
    tar.seek(0)
    store = Store(short_folder / "store")
    record = compress_tar(tar, store, no_advance)
    _push(record, store, short_folder / "layout", f"{server.host}/demo:one")
    node.pull(f"{server.host}/demo:one")
    root = _root(node, f"{server.host}/demo:one")
    for entry in entries:
        found = (root / entry.name).lstat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (entry.uid, entry.gid, entry.mode)
        # Podman sets the time of a folder before it writes into it.
        assert found.st_mtime == entry.mtime or entry.isdir()
    assert f'blobs/{record.digest} HTTP/1.1" 206 ' in (server.folder / "log").read_text()


def _entry(name: str, kind: bytes, mode: int, *, uid: int, gid: int, mtime: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid, entry.mtime = kind, mode, uid, gid, mtime
    entry.size = 4 if kind == tarfile.REGTYPE else 0
    return entry


def _push(record: LayerRecord, store: Store, folder: Path, name: str) -> None:
    config = documents.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [record.diff_id]},
        }
    )
    manifest = oci.manifest_document(config, [record])
    blobs: dict[str, Path | bytes] = {record.digest: store.blob(record.digest)}
    blobs |= {documents.digest_of(config): config, documents.digest_of(manifest): manifest}
    layout.write_folder(
        layout.Layout(blobs=blobs, manifests=[oci.descriptor(oci.MANIFEST_TYPE, manifest)]),
        folder,
    )
    run(["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{folder}", f"docker://{name}"], timeout=60)


def _root(node: PartialPodman, image: str) -> Path:
    storage = {"CONTAINERS_STORAGE_CONF": str(node.folder / "storage.conf")}
    return Path(run(["podman", "image", "mount", image], timeout=60, env=storage).stdout.strip())


def _files(root: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for path in root.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (path.stat().st_mode & 0o7777, data)
    return found
