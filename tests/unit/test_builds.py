"""What compiled components are made from: which source, which packages, and what stays in a lock."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.core import files, process
from imagebuilder.errors import ConflictError, FetchError
from imagebuilder.host.site import Site
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Archives, Build, Deb, Source
from imagebuilder.plan import BuiltLayer
from imagebuilder.plan.render import render
from imagebuilder.resolve import debian
from imagebuilder.resolve.builds import locate_sdists, resolve_builds
from imagebuilder.resolve.request import Request, request
from tests.support.wheelfolder import put, put_sdist
from tests.unit import samples

SHOWN = f"""\
Package: openmpi
Binary: openmpi-bin
Version: 5.0.7-1
Files:
 {"1" * 32} 25635992 openmpi_5.0.7.orig.tar.xz
Checksums-Sha256:
 {"2" * 64} 2777 openmpi_5.0.7-1.dsc
 {"3" * 64} 25635992 openmpi_5.0.7.orig.tar.xz
 {"4" * 64} 68744 openmpi_5.0.7-1.debian.tar.xz
Directory: pool/main/o/openmpi

Package: openmpi
Version: 5.0.6-1
Checksums-Sha256:
 {"5" * 64} 1 openmpi_5.0.6.orig.tar.xz
Directory: pool/main/o/openmpi
"""
IMAGE = (samples.deb("apt"), samples.deb("libc6", "2.41-12"))
GCC = samples.deb("gcc").model_copy(update={"sha256": "e" * 64})
RECIPE = samples.recipe(pins={"openmpi": "5.0"}, build=("openmpi",))
ARCHIVED = "2026-11-21T00:53:03Z"


def source(version: str, suite: str) -> Source:
    file = f"openmpi_{version.partition('-')[0]}.orig.tar.xz"
    digest = f"{int(version.replace('.', '').partition('-')[0]):064d}"
    return Source(
        name="openmpi", version=version, suite=suite, path=f"pool/main/o/openmpi/{file}", file=file,
        size=1, sha256=digest,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def archive(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    """Versions of Open MPI's source by suite; a test may change them."""
    offered = {"bookworm": ("4.1.4-3",), "trixie": ("5.0.6-1", "5.0.7-1")}

    def source_packages(
        _request: Request, _name: str, suite: str, _site: Site
    ) -> tuple[tuple[Source, ...], Archives]:
        if suite == "sid":
            raise FetchError("the package index of debian sid could not be fetched")
        return tuple(source(version, suite) for version in offered[suite]), {suite: ARCHIVED}

    monkeypatch.setattr(debian, "source_packages", source_packages)
    monkeypatch.setattr(debian, "resolve_root", lambda *_: ((*IMAGE, GCC), {"trixie": ARCHIVED}))
    return offered


def resolve(recipe: object = RECIPE, keep: tuple[Build, ...] = (), **more: object) -> Build:
    return resolve_builds(request(select(recipe)), IMAGE, Site(), keep, **more)[0]  # type: ignore[arg-type]


def test_debian_s_answer_is_read_without_its_own_additions() -> None:
    found = debian._parse_sources(SHOWN, "trixie")
    assert [(item.version, item.sha256, item.size) for item in found] == [
        ("5.0.7-1", "3" * 64, 25635992),
        ("5.0.6-1", "5" * 64, 1),
    ]
    assert found[0].path == "pool/main/o/openmpi/openmpi_5.0.7.orig.tar.xz"
    assert found[0].suite == "trixie"


def test_the_newest_source_that_fits_is_taken_and_only_its_own_packages_are_added() -> None:
    build = resolve()
    assert build.version == "5.0.7"
    assert build.system == ("apt", "libc6")
    assert build.debs == (GCC,)
    assert {"gcc", "g++", "libucx-dev", "make"} <= set(build.packages)


def test_a_version_of_another_suite_is_compiled_in_the_base_s_own_packages() -> None:
    build = resolve(samples.recipe(pins={"openmpi": "4.1.4"}, build=("openmpi",)))
    assert build.sources[0].suite == "bookworm"
    assert build.archives == {"bookworm": ARCHIVED, "trixie": ARCHIVED}


def test_a_version_that_no_suite_has_comes_with_those_there_are() -> None:
    with pytest.raises(ConflictError) as caught:
        resolve(samples.recipe(pins={"openmpi": "9.9"}, build=("openmpi",)))
    assert str(caught.value) == (
        'sample: pins.openmpi: no suite of debian has the source of openmpi "9.9"\n'
        '  -> there is "5.0.6" (trixie) or "5.0.7" (trixie) or "4.1.4" (bookworm)'
    )


def test_the_base_s_own_suite_has_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise FetchError("no index")

    monkeypatch.setattr(debian, "source_packages", refuse)
    with pytest.raises(FetchError):
        resolve()


def test_a_pinned_compiler_compiles_it() -> None:
    recipe = samples.recipe(pins={"openmpi": "5.0", "gcc": "13"}, build=("openmpi",))
    packages = request(select(recipe)).builds[0].packages
    assert {"gcc-13", "g++-13"} <= set(packages)
    assert "gcc" not in packages


def test_what_is_locked_stays_until_it_may_move(archive: dict[str, tuple[str, ...]]) -> None:
    locked = resolve()
    archive["trixie"] = ("5.0.9-1",)
    assert resolve(keep=(locked,)) == locked
    assert resolve(keep=(locked,), upgrade=("other",)) == locked
    assert resolve(keep=(locked,), upgrade=("openmpi",)).version == "5.0.9"
    assert resolve(keep=(locked,), upgrade=()).version == "5.0.9"
    other = locked.model_copy(update={"packages": ("make",)})
    assert resolve(keep=(other,)).version == "5.0.9"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("4.0.3", "4.1.1"):
        put(folder, "mpi4py", version, tag="cp313-cp313-manylinux_2_28_x86_64")
        put_sdist(folder, "mpi4py", version)
    for name, version in (("cython", "3.1"), ("setuptools", "80.0"), ("pip", "25.3"), ("wheel", "0.45")):
        put(folder, name, version)
    return Site(no_index=True, wheel_folders=(str(folder),))


def test_an_sdist_comes_with_the_wheels_that_build_it(index: Site) -> None:
    recipe = samples.recipe(pins={"openmpi": "5.0", "mpi4py": "4.0"}, build=("mpi4py", "openmpi"))
    mpi, python = resolve_builds(request(select(recipe)), IMAGE, index)
    assert (mpi.component, python.component) == ("openmpi", "mpi4py")
    assert python.version == "4.0.3"
    assert [wheel.name for wheel in python.wheels] == ["cython", "pip", "setuptools", "wheel"]
    assert python.sources[0].path == ""
    url = locate_sdists(python.sources, "3.13", "2.41", index)[python.sources[0].sha256][0]
    assert url.endswith("/mpi4py-4.0.3.tar.gz")


def test_an_sdist_with_other_bytes_than_the_locked_ones_is_refused(index: Site) -> None:
    wanted = Source(name="mpi4py", version="4.1.1", file="mpi4py-4.1.1.tar.gz", size=1, sha256="0" * 64)
    with pytest.raises(FetchError, match="or has other bytes under that name"):
        locate_sdists((wanted,), "3.13", "2.41", index)


def built_lock() -> locks.Lock:
    plain: tuple[Deb, ...] = (*IMAGE, samples.deb("python3"))
    build = resolve()
    against = Build(
        component="mpi4py",
        version="4.1.1",
        packages=("python3-dev",),
        system=("libc6",),
        debs=(GCC,),
        wheels=(samples.wheel("cython", "3.1"),),
        sources=(
            Source(name="mpi4py", version="4.1.1", file="mpi4py-4.1.1.tar.gz", size=1, sha256="9" * 64),
        ),
    )
    return samples.lock(debs=plain, builds=(build, against))


def test_a_lock_with_builds_survives_and_one_without_is_as_before() -> None:
    lock = built_lock()
    assert lockfile.loads(lockfile.dumps(LockFile(sections=(lock,))), "x").sections[0] == lock
    assert '"builds"' not in lockfile.dumps(LockFile(sections=(samples.lock(),)))
    assert {"e" * 64, "9" * 64} <= {file.sha256 for file in lock.files}
    assert len(lock.files) == len({file.sha256 for file in lock.files})


def built_layers() -> list[BuiltLayer]:
    recipe = samples.recipe(pins={"openmpi": "5.0", "mpi4py": "4.1"}, build=("mpi4py", "openmpi"))
    return [x for x in plans.plan(select(recipe), built_lock(), ()).layers if isinstance(x, BuiltLayer)]


def test_each_is_a_layer_that_knows_what_it_is_compiled_against() -> None:
    mpi, python = built_layers()
    assert python.below == (mpi,)
    assert mpi.title == "openmpi 5.0.7, compiled"
    assert [deb.name for deb in mpi.root.debs] == ["apt", "gcc", "libc6"]
    assert (mpi.root.venv, python.root.venv) == ("", "/opt/venv")
    assert python.produces[0] == "opt/venv/lib/python3.13/site-packages/mpi4py"
    assert "usr/local/lib" in mpi.produces


def test_what_else_is_in_the_image_does_not_compile_it_again() -> None:
    recipe = samples.recipe(pins={"openmpi": "5.0", "mpi4py": "4.1"}, build=("mpi4py", "openmpi"))
    lock = built_lock()
    more = lock.model_copy(update={"debs": (*lock.debs, samples.deb("htop"))})
    keys = {layer.key for layer in plans.plan(select(recipe), more, ()).layers}
    assert {layer.key for layer in built_layers()} <= keys


def test_the_dockerfile_has_a_stage_for_each(tmp_path: Path) -> None:
    recipe = samples.recipe(pins={"openmpi": "5.0", "mpi4py": "4.1"}, build=("mpi4py", "openmpi"))
    text = render(plans.plan(select(recipe), built_lock(), ()), files.template("Dockerfile.j2"))
    assert "FROM debian:trixie AS compiled-openmpi" in text
    assert "COPY --from=compiled-openmpi /out/ /\n" in text
    assert "apt-get source --download-only --only-source openmpi=5.0.7-1" in text
    assert f"'mpi4py==4.1.1 --hash=sha256:{'9' * 64}'" in text
    assert text.count("RUN --network=none") == 2
    assert "COPY --link --from=compiled-mpi4py /out/ /" in text
    assert "make install-strip\n" in text
    # mpi4py is in the venv, which root's group may write; Open MPI is not.
    assert text.count("\nchmod -R g=u /out/opt/venv\nIMAGEBUILDER_END_OF_FILE\n") == 1
    # A folder in the place of the base is this host's, not a place to fetch from.
    assert "://" not in text.replace("oci-layout://FOLDER", "")
    (tmp_path / "Dockerfile").write_text(text)
    linter = Path(sys.executable).parent / "hadolint"
    settings = samples.ROOT / ".hadolint.yaml"
    said = process.run([linter, "--config", settings, tmp_path / "Dockerfile"], timeout=60, check=False)
    assert (said.code, said.stdout) == (0, "")


def test_the_request_of_a_recipe_without_builds_hashes_as_before() -> None:
    plain = samples.recipe()
    asked = request(select(plain))
    assert asked.checksum() == dataclasses.replace(asked, builds=()).checksum()
    assert samples.recipe(hosts={"driver": "570.26"}).checksum() == plain.checksum()
    assert samples.recipe(devel=True).checksum() != plain.checksum()
