"""Compiling, for real: a component in a root of its own; and nvcc and an older gcc in an image."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker import DockerClient
from docker.models.containers import Container

from imagebuilder import catalog, recipe
from imagebuilder.catalog import select
from imagebuilder.core.progress import no_advance
from imagebuilder.fetch import download
from imagebuilder.host.site import detect
from imagebuilder.layers.built import build_built_layer
from imagebuilder.lock.model import Source
from imagebuilder.plan import BuiltLayer, OsLayer, User
from imagebuilder.resolve import debian
from imagebuilder.resolve.request import request
from imagebuilder.store import LayerRecord, Store
from tests.integration.conftest import ROOT, Built

# What a configure script likes to write down, in a program that says it.
PROGRAM = r"""
#include <stdio.h>
int main(void) { return printf("%s %s %s\n", WHO, __FILE__, __DATE__) < 0; }
"""
STEPS = (
    # No network: nothing but the loopback interface, and that one is down.
    '[ "$(sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d " ")" = lo ]',
    """$CC -O2 -g -DWHO="\\"$(whoami)@$(uname -n):$HOSTNAME:$USER\\"" -o hello "$PWD/hello.c" """,
    'install -D hello "$DESTDIR/usr/local/bin/hello"',
    'date >"$DESTDIR/notes"',
)
# The smallest image with a compiler of CUDA, and with an older gcc than the suite's own.
DEVEL = """
name: cuda13-devel
base: debian:trixie
python: "3.13"
pins:
  cuda: "13.0"
  gcc: "13"
devel: true
"""
CUDA = r"""
#include <cstdio>
#include <cub/cub.cuh>
__global__ void squares(long *out) { out[threadIdx.x] = threadIdx.x * threadIdx.x; }
int main() {
    int version = 0;
    cudaRuntimeGetVersion(&version);
    squares<<<1, 32>>>(nullptr);
    std::printf("runtime %d\n", version);
}
"""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A component to compile, and the files of its packages and its source by sha256."""

    layer: BuiltLayer
    downloads: dict[str, Path]

    def build(self, store: Store) -> LayerRecord:
        return build_built_layer(self.layer, self.downloads, (), store, no_advance)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Bench:
    archive = tmp_path_factory.mktemp("source") / "hello.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("hello-1.0/hello.c")
        member.size = len(PROGRAM)
        tar.addfile(member, io.BytesIO(PROGRAM.encode()))
    asked = request(select(recipe.load(ROOT / "recipes" / "cpu-mpi.yaml", catalog.names())))
    site = detect()
    debs, _ = debian.resolve_root(asked, ("gcc-14", "libc6-dev"), (), site)
    urls = debian.locate_debs(debs, asked.distribution, asked.suite, site)
    missing = [
        download.Download(name=deb.name, urls=urls[deb.sha256], size=deb.size, sha256=deb.sha256)
        for deb in debs
        if not store.has_download(deb.sha256, deb.size)
    ]
    download.fetch(missing, store, site, lambda _sha256, _count: None, lambda _sha256: None)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    source = Source(name="hello", version="1.0-1", file="hello.tar.gz", size=1, sha256=digest)
    root = OsLayer(
        distribution=asked.distribution,
        suite=asked.suite,
        architecture=asked.architecture,
        debs=debs,
        user=User(name="root", uid=0, home="/root"),
        python=asked.python,
        venv="",
    )
    layer = BuiltLayer(
        component="hello",
        version="1.0",
        root=root,
        below=(),
        wheels=(),
        sources=(source,),
        env=(("CC", "gcc-14"),),
        steps=STEPS,
        produces=("usr/local/bin",),
    )
    files = {deb.sha256: store.download(deb.sha256) for deb in debs}
    return Bench(layer=layer, downloads={**files, source.sha256: archive})


def test_a_compiled_component_knows_nothing_of_this_host(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it comes out the same twice, on other hosts too: soak."""
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("HOSTNAME", "elsewhere")
    store = Store(tmp_path / "store")
    made = bench.build(store)

    with gzip.open(store.blob(made.digest)) as stream, tarfile.open(fileobj=stream) as tar:
        assert tar.getnames() == ["usr", "usr/local", "usr/local/bin", "usr/local/bin/hello"]
        file = tar.extractfile("usr/local/bin/hello")
        assert file is not None
        content = file.read()
    assert b"root@localhost:localhost:root" in content
    assert b"/usr/src/hello-1.0/hello.c" in content
    assert b"Jan  1 1970" in content
    for secret in (str(tmp_path), os.uname().nodename, "somebody", "elsewhere"):
        assert secret.encode() not in content


@pytest.fixture(scope="module")
def devel(built: Built, engine: DockerClient) -> Iterator[Container]:
    container = engine.containers.run(built(DEVEL), ["sleep", "600"], detach=True)
    yield container
    container.remove(force=True)


def said(container: Container, command: str) -> str:
    """Run a command of the shell in /tmp; all that it prints."""
    code, output = container.exec_run(["bash", "-ec", command], workdir="/tmp")
    assert isinstance(output, bytes)
    text = output.decode()
    assert code == 0, text
    return text


@pytest.mark.parametrize("name", ["gcc", "g++", "gfortran", "cc", "c++", "cpp", "f77", "f95", "gcov"])
def test_every_name_of_a_compiler_is_the_older_one(devel: Container, name: str) -> None:
    for shell in ("bash -c", "bash -lc", "env -i /bin/bash -lc"):
        assert " 13.3." in said(devel, f"{shell} '{name} --version'").splitlines()[0]


def test_the_older_compilers_make_programs(devel: Container) -> None:
    said(devel, "echo 'int main(void) { return 0; }' >a.c && cc -flto a.c -o a && ./a")
    threads = "#include <thread>\\nint main() { std::thread([]{}).join(); }\\n"
    said(devel, f"printf '{threads}' >b.cc && c++ b.cc -o b && ./b")
    said(devel, "printf 'program c\n  print *, 6*7\nend program\n' >c.f90 && f95 c.f90 -o c && ./c")


def test_nvcc_compiles_for_a_gpu_and_what_it_makes_finds_its_library(devel: Container) -> None:
    assert "release 13.0" in said(devel, "nvcc --version")
    said(devel, f"cat >squares.cu <<'END'\n{CUDA}\nEND\nnvcc -arch=sm_90 squares.cu -o static")
    # Without a driver only what needs none can be asked: the version of the runtime itself.
    assert said(devel, "./static") == "runtime 13000\n"
    said(devel, "nvcc -arch=sm_90 -cudart shared squares.cu -o shared")
    # /lib is /usr/lib, where the link is.
    assert "libcudart.so.13 => /lib/libcudart.so.13" in said(devel, "ldd shared")
    assert said(devel, "./shared") == "runtime 13000\n"
    sections = said(devel, "readelf -SW static")
    assert ".nv_fatbin" in sections


def test_a_plain_compiler_links_with_the_runtime(devel: Container) -> None:
    text = "#include <cuda_runtime_api.h>\nint main() { int n; return cudaRuntimeGetVersion(&n); }\n"
    said(
        devel, f"printf '{text}' >plain.cc && g++ plain.cc -I$CUDA_HOME/include -lcudart -o plain && ./plain"
    )
