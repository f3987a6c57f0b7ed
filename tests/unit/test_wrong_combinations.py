"""Versions that cannot go together, kept as recipes: what a person is told of each, whole and fixed.

The wheels' index is a folder of tiny wheels with real metadata, which uv solves; the archive is a table.
`pytest --update-golden` writes the texts anew, to be read before they are committed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagebuilder import catalog, recipe
from imagebuilder.bases.read import Base
from imagebuilder.bases.system import System
from imagebuilder.catalog import select
from imagebuilder.debian import suites
from imagebuilder.errors import ConflictError, ImagebuilderError, InputError
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Archives, Deb, Source
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import archivepins, debian, debpins
from imagebuilder.resolve.locking import make_lock
from imagebuilder.resolve.request import Request
from tests.support.wheelfolder import put, put_sdist, torch_world
from tests.unit import samples

CASES = Path(__file__).parents[1] / "cases" / "conflicts"
WRONG = sorted(CASES.glob("*.yaml"))
# What a suite like trixie has, as far as the cases ask for it.
ARCHIVE: dict[str, tuple[str, ...]] = {
    "python3": ("3.13.5-1",),
    "python3.13": ("3.13.5-2",),
    "gcc-12": ("12.4.0-2",),
    "gcc-13": ("13.3.0-13",),
    "gcc-14": ("14.2.0-19",),
    "mpich": ("4.3.0+really4.2.1-1",),
    "nvidia-cuda-toolkit": ("12.4.131~12.4.1-2",),
    "openmpi-bin": ("5.0.7-1",),
    "openssh-server": ("1:10.0p1-7",),
    "rdma-core": ("56.1-1",),
}
SOURCES = {("openmpi", "bookworm"): "4.1.4-3", ("openmpi", "trixie"): "5.0.7-1"}
# What an archive like NVIDIA's has; and bases from a registry, as recipes name them: CUDA's version, glibc's,
# and the archives that they are set up for.
OTHER_ARCHIVE: dict[str, tuple[str, ...]] = {
    "cuda-cudart-12-8": ("12.8.57-1", "12.8.90-1"),
    "cuda-cudart-12-9": ("12.9.79-1",),
    "libcudnn9-cuda-12": ("9.8.0.87-1", "9.10.2.21-1"),
    "libnccl2": ("2.26.2-1+cuda12.8", "2.27.5-1+cuda12.8", "2.28.9-1+cuda12.9"),
}
BASES = {
    "nvidia/cuda:12.8.1-base-debian13": ("12.8.1", "2.41-12", ("nvidia-cuda",)),
    "nvidia/cuda:12.9.1-base-debian13": ("12.9.1", "2.41-12", ("nvidia-cuda",)),
    "debian:trixie-slim": ("", "2.41-12", ()),
    "registry.example.org/team/old:1": ("", "2.20-1", ()),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = torch_world(tmp_path_factory.mktemp("wheels"))
    put(folder, "needs-old-numpy", "1.0", ["numpy<2"])
    put(folder, "mpi4py", "4.1.1", tag="cp313-cp313-manylinux_2_28_x86_64")
    put_sdist(folder, "mpi4py", "4.1.1")
    put(folder, "newglibc", "1.0", tag="cp313-cp313-manylinux_2_99_x86_64")
    put(folder, "armonly", "1.0", tag="cp313-cp313-manylinux_2_28_aarch64")
    return Site(no_index=True, wheel_folders=(str(folder),))


@pytest.fixture(autouse=True)
def _archive(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Answer for apt from the table, with what the program itself says of a table that does not fit."""

    def resolve(
        request: Request, _site: Site, below: System | None = None
    ) -> tuple[tuple[Deb, ...], Archives]:
        suites.facts(request.distribution, request.suite)
        compilers = [name for name in request.packages if re.fullmatch(r"(g\+\+|gfortran)-1[234]", name)]
        known = {**dict.fromkeys((*_plain_packages(), *compilers), ("1.0-1",)), **ARCHIVE}
        if below is not None:
            names = {archive.name for archive in below.archives}
            known |= OTHER_ARCHIVE if names else {}
            installed = {package.name: package.version for package in below.packages}
            if others := archivepins.problems(request, known, installed, names):
                raise ConflictError.of(others)
        problems = debpins.unknown_packages(request, known) + debpins.unmet_pins(request, known, known)
        if problems:
            raise ConflictError.of(problems)
        names = {*(package.partition("=")[0] for package in request.packages), "python3.13"}
        debs = (samples.deb(name, known[name][0]) for name in sorted(names))
        return (samples.deb("libc6", "2.41-12"), *debs), {}

    def source_packages(
        _request: Request, name: str, suite: str, _site: Site
    ) -> tuple[tuple[Source, ...], Archives]:
        version = SOURCES.get((name, suite))
        if version is None:
            return (), {}
        file = f"{name}_{version.partition('-')[0]}.orig.tar.xz"
        found = Source(
            name=name,
            version=version,
            suite=suite,
            path=f"pool/main/{name[0]}/{name}/{file}",
            file=file,
            size=1,
            sha256="5" * 64,
        )
        return (found,), {}

    monkeypatch.setattr(debian, "resolve_debs", resolve)
    monkeypatch.setattr(debian, "source_packages", source_packages)
    monkeypatch.setattr(debian, "resolve_root", lambda *_: ((samples.deb("libc6", "2.41-12"),), {}))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "uv"))


def _plain_packages() -> set[str]:
    """Name the packages of the catalog that carry no version in their names: any suite has them."""
    parts = catalog.load().values()
    providers = [provider for part in parts for provider in part.providers]
    named = {name for provider in providers for name in (*provider.apt, *provider.devel_apt)}
    named |= {name for part in parts if part.build for name in (*part.build.apt, *part.build.needs)}
    return {name for name in named if "{" not in name}


def _base_of(loaded: Recipe) -> Base | None:
    if loaded.image is None:
        return None
    cuda, glibc, archives = BASES[loaded.image.name]
    packages = (samples.installed("libc6", glibc),)
    env = {"CUDA_VERSION": cuda} if cuda else {}
    image = samples.base_image(name=loaded.image.name, env=env, archives=archives, packages=packages)
    return samples.base(image)


def refusal(case: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> ImagebuilderError:
    monkeypatch.chdir(case.parent)
    path = Path(case.name)
    loaded, places = recipe.read(path, catalog.names())
    with pytest.raises((ConflictError, InputError)) as caught:
        make_lock(select(loaded, places), site, None, None, _base_of(loaded))
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG, ids=lambda path: path.stem)
def test_a_wrong_combination_is_refused_with_this_text(
    case: Path, site: Site, monkeypatch: pytest.MonkeyPatch, *, update_golden: bool
) -> None:
    error = refusal(case, site, monkeypatch)
    text = "".join(f"{problem}\n" for problem in error.problems)
    expected = case.with_suffix(".txt")
    if update_golden:
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")
    for problem in error.problems:
        assert re.match(rf"{case.stem}\.yaml:\d+: [a-z]", problem.where), problem.where
        assert problem.hint


def test_there_are_cases_and_a_text_for_each() -> None:
    assert len(WRONG) >= 30
    assert {path.stem for path in CASES.glob("*.txt")} == {path.stem for path in WRONG}
