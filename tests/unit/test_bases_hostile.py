"""Bases that are odd, damaged or hostile: an error that says what is wrong, in little memory and time."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.bases import read, tree
from imagebuilder.bases.read import Base
from imagebuilder.core import process, tarstream
from imagebuilder.errors import BuildError, ImagebuilderError, InputError, RegistryError
from imagebuilder.host.site import Site
from imagebuilder.recipe import RegistryImage
from imagebuilder.store import Store
from tests.support import standin_base
from tests.support.fake_registry import FakeRegistry, serve
from tests.support.standin_base import Layer

RELEASE = b"ID=debian\nVERSION_CODENAME=trixie\n"
STATUS = b"Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.22\n"
SOUND: dict[str, bytes | str | None] = {"etc/os-release": RELEASE, "var/lib/dpkg/status": STATUS}
MIB = 1 << 20


def entry(name: str = "x", kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: Any) -> bytes:
    """Make one entry, also such as tarfile would not write: `fields` are a header's."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + content + bytes(-len(content) % 512)


def pax(content: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return entry("pax", kind, content)


def record(key: str, value: str) -> bytes:
    body = f" {key}={value}\n".encode()
    length = len(body) + len(str(len(body) + 3))
    return f"{length}".encode() + body if len(f"{length}") + len(body) == length else b"0 broken\n"


def with_(**files: bytes | str | None) -> bytes:
    """Make the tar of a sound base, some of whose files are other ones; `__` stands for a slash."""
    named = {
        "release": "etc/os-release",
        "status": "var/lib/dpkg/status",
        "passwd": "etc/passwd",
        "sources": "etc/apt/sources.list.d/x.sources",
        "list": "etc/apt/sources.list",
    }
    return standin_base.tar_of({**SOUND, **{named[key]: content for key, content in files.items()}})


def sound_and(*more: bytes) -> bytes:
    """Make the tar of a sound base with raw entries before it, so that nothing ends it early."""
    return b"".join(more) + standin_base.tar_of(SOUND)


def without(path: str, *more: bytes) -> bytes:
    return b"".join(more) + standin_base.tar_of({key: text for key, text in SOUND.items() if key != path})


def package(**changes: str) -> bytes:
    fields = {"Package": "bash", "Status": "install ok installed", "Version": "1", "Architecture": "amd64"}
    lines = [f"{key}: {value}\n" for key, value in {**fields, **changes}.items() if value]
    return STATUS + b"\n" + "".join(lines).encode()


@dataclass(frozen=True, kw_only=True)
class Odd:
    """One odd base: its tars, or its layers as they are; what its config says; and what is said of it."""

    says: str
    tar: Callable[[], bytes] = lambda: standin_base.tar_of(SOUND)
    blob: Callable[[bytes], bytes] | None = None
    layers: int = 1
    run: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    kind: type[ImagebuilderError] = InputError


ODD = {
    # Layers
    "no-tar": Odd(
        tar=lambda: b"hello, this is not a tar at all" * 40, says="layer 1 .*cannot be read", kind=BuildError
    ),
    "no-gzip": Odd(
        blob=lambda _: b"\x1f\x8b" + b"junk" * 100, says="layer 1 .*cannot be read", kind=BuildError
    ),
    "empty-blob": Odd(blob=lambda _: b"", says="does not say which system", kind=InputError, tar=lambda: b""),
    "empty-tar": Odd(tar=lambda: bytes(10240), says="does not say which system"),
    "gzip-with-garbage-behind": Odd(
        blob=lambda tar: gzip.compress(tar) + b"garbage", says="layer 1 .*cannot be read", kind=BuildError
    ),
    "cut-off": Odd(tar=lambda: entry(content=b"x" * 2000)[:-600], says="ends within a file", kind=BuildError),
    "other-tar": Odd(
        config={"rootfs": {"diff_ids": [f"sha256:{'0' * 64}"]}}, says="holds a tar with", kind=BuildError
    ),
    "path-that-leads-out": Odd(tar=lambda: sound_and(entry("../etc/x")), says="leads out", kind=BuildError),
    "link-that-leads-out": Odd(
        tar=lambda: sound_and(entry("x", tarfile.LNKTYPE, linkname="../../etc/shadow")),
        says="leads out",
        kind=BuildError,
    ),
    "link-to-nothing": Odd(
        tar=lambda: sound_and(entry("x", tarfile.LNKTYPE, linkname="nothing")),
        says="`x` is a link to `nothing`",
        kind=BuildError,
    ),
    "link-with-escapes": Odd(
        tar=lambda: sound_and(entry("x\x1b[31m\udcff", tarfile.LNKTYPE, linkname="\udcfe")),
        says=r"layer 1 .*`x\\x1b\[31m",
        kind=BuildError,
    ),
    "negative-size": Odd(
        tar=lambda: sound_and(entry(size=-512)), says="negative or far too large", kind=BuildError
    ),
    "endless-size": Odd(
        tar=lambda: sound_and(entry(size=1 << 62)), says="negative or far too large", kind=BuildError
    ),
    "endless-user": Odd(
        tar=lambda: sound_and(entry(uid=1 << 40)), says="negative or far too large", kind=BuildError
    ),
    "pax-negative-size": Odd(
        tar=lambda: sound_and(pax(record("size", "-512")), entry()),
        says="negative or far too large",
        kind=BuildError,
    ),
    "pax-size-of-5000-digits": Odd(
        tar=lambda: sound_and(pax(record("size", "9" * 5000)), entry()),
        says="negative or far too large",
        kind=BuildError,
    ),
    "pax-time-that-is-none": Odd(
        tar=lambda: sound_and(pax(record("mtime", "nan")), entry()),
        says="time that is not a number",
        kind=BuildError,
    ),
    "pax-length-of-5000-digits": Odd(
        tar=lambda: sound_and(pax(b"9" * 5000 + b" a=b\n"), entry()), says="damaged header", kind=BuildError
    ),
    "pax-of-digits": Odd(
        tar=lambda: sound_and(pax(b"1" * MIB), entry()), says="damaged header", kind=BuildError
    ),
    "pax-of-64-mib": Odd(
        tar=lambda: sound_and(pax(b"1" * (64 * MIB)), entry()), says="has a header of", kind=BuildError
    ),
    "long-name-of-64-mib": Odd(
        tar=lambda: sound_and(pax(b"n" * (64 * MIB), tarfile.GNUTYPE_LONGNAME), entry()),
        says="has a header of",
        kind=BuildError,
    ),
    "name-of-a-megabyte": Odd(
        tar=lambda: sound_and(pax(b"n/" * (MIB // 2), tarfile.GNUTYPE_LONGNAME), entry()),
        says="more than 4096 characters",
        kind=BuildError,
    ),
    "headers-in-headers": Odd(
        tar=lambda: sound_and(*[pax(record("path", "y"))] * 5000, entry()),
        says="more than 4 headers",
        kind=BuildError,
    ),
    "sparse": Odd(
        tar=lambda: sound_and(entry("x", tarfile.GNUTYPE_SPARSE)), says="sparse file", kind=BuildError
    ),
    "pax-sparse": Odd(
        tar=lambda: sound_and(pax(record("GNU.sparse.major", "1")), entry(content=b"999999999999\n" * 9)),
        says="sparse file",
        kind=BuildError,
    ),
    "folders-in-folders": Odd(
        tar=lambda: sound_and(entry("d/" * 40 + "x"), *deeper(300)), says="200 deep", kind=BuildError
    ),
    # Files that are read
    "release-is-a-folder": Odd(tar=lambda: with_(release=None), says="`etc/os-release` is not a file"),
    "release-links-to-itself": Odd(tar=lambda: with_(release="os-release"), says="does not say which system"),
    "release-links-nowhere": Odd(tar=lambda: with_(release="../nothing"), says="does not say which system"),
    "release-elsewhere": Odd(
        tar=lambda: with_(release="../opt/r") + entry("opt/r", content=RELEASE),
        says="does not say which system",
    ),
    "release-is-a-pipe": Odd(
        tar=lambda: without("etc/os-release", entry("etc/os-release", tarfile.FIFOTYPE)), says="is not a file"
    ),
    "release-is-a-device": Odd(
        tar=lambda: without("etc/os-release", entry("etc/os-release", tarfile.CHRTYPE)), says="is not a file"
    ),
    "release-is-absent": Odd(tar=lambda: without("etc/os-release"), says="does not say which system"),
    "release-is-not-utf-8": Odd(
        tar=lambda: with_(release=b"ID=\xff\xfe\nPRETTY_NAME=\xff\x1b[31m"), says="it holds"
    ),
    "release-of-100-mb": Odd(
        tar=lambda: with_(release=bytes(100 * MIB)), says="`etc/os-release` has 104857600 bytes"
    ),
    "alpine": Odd(
        tar=lambda: with_(release=b"ID=alpine\nPRETTY_NAME='Alpine Linux v3.22'\n"), says="it holds Alpine"
    ),
    "distroless": Odd(tar=lambda: without("var/lib/dpkg/status"), says="has no dpkg"),
    "status-is-a-folder": Odd(tar=lambda: with_(status=None), says="`var/lib/dpkg/status` is not a file"),
    "status-is-binary": Odd(tar=lambda: with_(status=bytes(range(256)) * 100), says="has no dpkg"),
    "package-without-version": Odd(
        tar=lambda: with_(status=package(Version="")), says="`bash` without a usable version"
    ),
    "package-with-odd-version": Odd(
        tar=lambda: with_(status=package(Version="-x y")), says="without a usable version"
    ),
    "package-without-name": Odd(tar=lambda: with_(status=package(Package="")), says="without a usable name"),
    "package-with-nul": Odd(
        tar=lambda: with_(status=package(Architecture="a\0")), says="without a usable architecture"
    ),
    "package-twice": Odd(
        tar=lambda: with_(status=package() + b"\n" + package()[len(STATUS) :]), says="`bash` twice"
    ),
    "packages-without-end": Odd(
        tar=lambda: with_(status=b"".join(package(Package=f"p{n}")[len(STATUS) :] for n in range(12_000))),
        says="more than 10000 packages",
    ),
    "other-architecture": Odd(
        tar=lambda: with_(status=STATUS.replace(b"amd64", b"s390x")), says="its system is for s390x"
    ),
    "passwd-is-a-folder": Odd(tar=lambda: with_(passwd=None), says="`etc/passwd` is not a file"),
    "user-with-nul": Odd(tar=lambda: with_(passwd=b"a\0b:x:1000:1000::/:/bin/sh\n"), says="unusable user `a"),
    "users-without-end": Odd(
        tar=lambda: with_(passwd=b"".join(b"u%d:x:1000:1:::\n" % n for n in range(2000))),
        says="more than 1000",
    ),
    "archives-without-end": Odd(
        tar=lambda: with_(
            sources=b"Types: deb\nURIs:%s\nSuites:%s\n"
            % tuple(
                b"".join(b" %s%d" % (text, n) for n in range(5000)) for text in (b"https://x.example/", b"s")
            )
        ),
        says="more than 200 archives",
    ),
    "archive-with-escapes": Odd(
        tar=lambda: with_(sources=b"Types: deb\nURIs: https://x.example/\x1b[31m\nSuites: s\n"),
        says="unusual characters",
    ),
    # Documents
    "env-is-an-object": Odd(run={"Env": {"A": "b"}}, says="`Env` is not a list"),
    "env-of-numbers": Odd(run={"Env": [1]}, says="`Env` is not a list of strings"),
    "env-without-end": Odd(run={"Env": [f"A{n}=1" for n in range(2000)]}, says="2000 variables"),
    "labels-are-a-list": Odd(run={"Labels": ["a"]}, says="`Labels` is not an object"),
    "labels-of-objects": Odd(run={"Labels": {"a": {}}}, says="`Labels` is not an object of strings"),
    "user-is-a-number": Odd(run={"User": 5}, says="its user cannot be written"),
    "user-of-two-lines": Odd(run={"User": "a\nUSER root"}, says="its user cannot be written"),
    "diff-id-is-none": Odd(config={"rootfs": {"diff_ids": ["sha256:1"]}}, says="layer 1 is not a sha256"),
    "diff-id-is-a-list": Odd(config={"rootfs": {"diff_ids": [[]]}}, says="layer 1 is not a sha256"),
    "no-diff-ids": Odd(config={"rootfs": {}}, says="what its layers are", kind=RegistryError),
    "one-diff-id-too-many": Odd(
        config={"rootfs": {"diff_ids": ["a", "b"]}}, says="what its layers are", kind=RegistryError
    ),
    "no-architecture": Odd(config={"architecture": None}, says="is an image for", kind=RegistryError),
    "a-layer-200-times": Odd(layers=200, says="has 200 layers"),
}


def deeper(count: int) -> Iterator[bytes]:
    """Go down by a link that is moved each time, so that no path is long."""
    here = "d"
    for _ in range(count):
        yield entry("l", tarfile.SYMTYPE, linkname=here)
        yield entry("l/e", tarfile.DIRTYPE)
        here = f"{here}/e"


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serve(FakeRegistry()) as running:
        yield running


def push(registry: FakeRegistry, odd: Odd) -> None:
    tar = odd.tar()
    layer = standin_base.layer(tar)
    if odd.blob is not None:
        layer = Layer(blob=odd.blob(tar), diff_id=standin_base.digest(tar), media_type=layer.media_type)
    put(registry, [layer] * odd.layers, odd.run, odd.config)


def put(registry: FakeRegistry, layers: Sequence[Layer], run: dict[str, Any], config: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(standin_base.config_of(layers, **run)), **config}).encode()
    manifest = {
        "schemaVersion": 2,
        "config": standin_base.descriptor(text, "application/vnd.oci.image.config.v1+json"),
        "layers": [item.descriptor for item in layers],
    }
    for data in (text, *(item.blob for item in layers)):
        registry.blobs["odd", standin_base.digest(data)] = data
    media_type = "application/vnd.oci.image.manifest.v1+json"
    registry.manifests["odd", "1"] = (media_type, json.dumps(manifest).encode())


def read_base(registry: FakeRegistry, folder: Path) -> Base:
    return read.read(RegistryImage(image=f"{registry.host}/odd:1"), "amd64", Site(), Store(folder / "store"))


@pytest.mark.parametrize("name", ODD)
def test_an_odd_base_is_refused_in_words(name: str, registry: FakeRegistry, tmp_path: Path) -> None:
    odd = ODD[name]
    push(registry, odd)
    before = time.process_time()
    with pytest.raises(ImagebuilderError, match=odd.says) as refused:
        read_base(registry, tmp_path)
    assert type(refused.value) is odd.kind
    (problem,) = refused.value.problems
    assert problem.where == "base: image"
    assert f"{registry.host}/odd:1" in problem.message
    assert str(problem).replace("\n", "").isprintable()
    assert len(str(problem)) < 1000
    assert time.process_time() - before < 10


def test_what_is_odd_but_harmless_is_read(registry: FakeRegistry, tmp_path: Path) -> None:
    """Names that are not UTF-8, whiteouts of everything, odd user ids, archives of other kinds."""
    passwd = "a:x:\u00b2:1::/:\nb:x:{}:1::/:\nc:x:1000:1::/:\nd\ne:x:-5:1::/:\n".format("9" * 5000)
    lines = b"deb cdrom:[Debian]/ trixie main\ndeb https://[::1/x trixie main\ndeb ssh://x.example/ / \n"
    sources = {
        f"etc/apt/sources.list.d/{name}": b"deb https://y.example/ /" for name in ("odd name.list", "ok.list")
    }
    first = standin_base.layer(
        entry("old") + entry("name-\udcff") + standin_base.tar_of({"etc/passwd": None})
    )
    second = standin_base.layer(
        entry(".wh..wh..opq")
        + entry(".wh.")
        + entry(".wh...")
        + entry("./", tarfile.DIRTYPE)
        + entry("/absolute", mtime=-1)
        + entry("fifo", tarfile.FIFOTYPE)
        + pax(record("comment", "x" * 50), tarfile.XGLTYPE)
        + standin_base.tar_of(
            {**SOUND, "etc/passwd": passwd.encode(), "etc/apt/sources.list": lines, **sources, "d.list": None}
        )
    )
    put(registry, [first, second, second], {"Env": None, "Labels": None, "User": None}, {"history": None})
    found = read_base(registry, tmp_path)
    assert found.image.accounts == {"c": 1000}
    assert found.image.archives == ("ok",)
    assert (found.image.env, found.image.labels, found.image.user) == ({}, {}, "")


def test_what_a_base_may_not_hand_down_is_left_out_and_said(
    registry: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loading = ("LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "ENV", "PERL5OPT")
    labels = {
        "org.imagebuilder.engine": "docker",
        "Org.ImageBuilder.pin.torch": "9",
        "maintainer": "somebody",
    }
    env = [*(f"{name}=/x" for name in loading), "LD_LIBRARY_PATH=/usr/local/nvidia/lib", "PYTHONUNBUFFERED=1"]
    put(registry, [standin_base.layer(standin_base.tar_of(SOUND))], {"Env": env, "Labels": labels}, {})
    image = read_base(registry, tmp_path).image
    assert image.env == {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib", "PYTHONUNBUFFERED": "1"}
    assert image.labels == {"maintainer": "somebody"}
    for name in (*loading, "org.imagebuilder.engine", "Org.ImageBuilder.pin.torch"):
        assert f"{name} is left out" in caplog.text


# Sizes that come from outside: in a process of their own, whose memory the kernel counts.


def peak_mib(blobs: Sequence[bytes], folder: Path) -> float:
    """Read layers as those of a base, in a process that may have 1 GiB; its peak, less what is imported."""
    for number, blob in enumerate(blobs):
        (folder / str(number)).write_bytes(blob)
    script = """
import resource, sys
from pathlib import Path
from imagebuilder.bases import read, system, tree
from imagebuilder.errors import ImagebuilderError
limit = 1 << 30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    system.of_tree(tree.read([(Path(name), "sha256:0") for name in sys.argv[1:]], system.wanted, "x"), "x")
except ImagebuilderError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""
    names = [str(folder / str(number)) for number in range(len(blobs))]
    said = process.run([sys.executable, "-c", script, *names], timeout=100).stdout
    assert said
    return int(said.split()[0]) / 1024


def zipped(*pieces: bytes, times: int = 1) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
        for _ in range(times):
            file.writelines(pieces)
    return out.getvalue()


LARGE = {
    "pax-header": lambda: zipped(entry("p", tarfile.XHDTYPE, size=1 << 29), *[bytes(MIB)] * 64),
    "pax-records": lambda: zipped(
        pax(b"".join(record(f"k{n}", "v") for n in range(60_000))), entry(), times=20
    ),
    "global-records": lambda: zipped(
        pax(b"".join(record(f"k{n}", "v") for n in range(60_000)), tarfile.XGLTYPE), entry(), times=20
    ),
    "long-name": lambda: zipped(entry("p", tarfile.GNUTYPE_LONGNAME, size=1 << 29), *[bytes(MIB)] * 64),
    "sparse-map": lambda: zipped(entry("p", tarfile.GNUTYPE_SPARSE), *[b"0\n" * (MIB // 2)] * 64),
    "kept-files": lambda: zipped(
        *(entry(f"usr/share/keyrings/{n}.gpg", content=bytes(15 * MIB)) for n in range(10))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_layer_of_a_megabyte_takes_no_gigabyte(name: str, tmp_path: Path) -> None:
    blob = LARGE[name]()
    assert len(blob) < 4 * MIB
    assert peak_mib([blob], tmp_path) < 300


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_layer_unpacks_to_so_much_and_no_more(
    kind: str, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarstream, "_SPARE", MIB)
    put(registry, [standin_base.layer(standin_base.tar_of({"x": bytes(8 * MIB)}), kind)], {}, {})
    with pytest.raises(BuildError, match=r"layer 1 .*it unpacks to more than"):
        read_base(registry, tmp_path)


@pytest.mark.parametrize(
    ("limit", "says"), [("_MOST_PATHS", "exceeds a limit"), ("_MOST_STEPS", "too many steps")]
)
def test_the_work_that_layers_make_is_counted(
    limit: str, says: str, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, limit, 50)
    put(registry, [standin_base.layer(sound_and(*deeper(60)))], {}, {})
    with pytest.raises(BuildError, match=f"layer 1 of the base: .*{says}"):
        read_base(registry, tmp_path)
