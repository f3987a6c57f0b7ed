"""The user's own package: its pyproject.toml, lock and layer, and what its backend may hand over."""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path
from typing import Any

import pytest

from imagebuilder import plan as plans
from imagebuilder.catalog import Selection, select
from imagebuilder.core import files
from imagebuilder.core.progress import LineProgress
from imagebuilder.engines.context import BuildContext
from imagebuilder.engines.schedule import check_wheels
from imagebuilder.errors import BuildError, InputError, LockError
from imagebuilder.host.site import Site
from imagebuilder.layers import package
from imagebuilder.layers.package import build_package_layer, wheel_name
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import rules
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import Lock, ProjectBuild
from imagebuilder.plan import PackageLayer, Plan, Project, backend, render
from imagebuilder.recipe.requirements import Package, read_package
from imagebuilder.resolve import agreement, closure
from imagebuilder.resolve.request import request
from imagebuilder.store import LayerRecord, Store
from tests.support import wheelfolder
from tests.support.wheels import locked as locked_wheel
from tests.support.wheels import make_wheel, unpack
from tests.unit import samples

LISTED_AS = "and is listed as setuptools"
TOOLS = (samples.wheel("setuptools", "80.9"),)
BUILD = ProjectBuild(name="trainer", requires=("setuptools>=77",), wheels=TOOLS)
PYTHON = tuple(
    samples.deb(name)
    for name in ("libc6", "libpython3.13-minimal", "libpython3.13-stdlib", "libssl3t64", "python3.13-minimal")
)
OTHERS = (samples.deb("openmpi-bin", "5.0.7-1"), samples.deb("python3", "3.13.5-1"))
GOOD = """
[build-system]
requires = ["setuptools>=77", "wheel; python_version < '3'"]
[project]
name = "My.Trainer"
version = "1.02"
"""


def locked(**changes: object) -> Lock:
    debs = tuple(sorted((*PYTHON, *OTHERS), key=lambda deb: deb.name))
    return samples.lock(**{"debs": debs, "project": BUILD, **changes})


def selected(**changes: object) -> Selection:
    selection = select(samples.recipe(project="..", **changes))
    return dataclasses.replace(selection, package=Package(name="trainer", requires=("setuptools>=77",)))


def planned(lock: Lock, checksum: str = "c" * 64) -> Plan:
    return plans.plan(selected(), lock, (), Project(package=checksum))


def layer(lock: Lock | None = None, checksum: str = "c" * 64) -> PackageLayer:
    (found,) = (item for item in planned(lock or locked(), checksum).layers if isinstance(item, PackageLayer))
    return found


def test_pyproject_says_name_version_and_what_builds_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(GOOD)
    assert read_package(tmp_path, "pyproject.toml", "x.yaml:4: project") == Package(
        name="my-trainer", version="1.2", requires=("setuptools>=77", 'wheel; python_version < "3"')
    )


def test_without_a_build_system_it_is_setuptools(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "a"\ndynamic = ["version"]\n')
    found = read_package(tmp_path, "pyproject.toml", "x")
    assert (found.requires, found.version) == (("setuptools>=40.8.0",), "")


NO_NAME = 'FILE:1: has no `name` under [project]\n  -> write it as in name = "trainer"'
TWO = """\
FILE:2: `../evil` is not the name of a package
  -> write it as in name = "trainer"
FILE:3: `x` is not a version
  -> write it as in version = "1.2.0\""""
NO_LIST = """\
FILE:2: [build-system] has no list `requires`
  -> write it as in requires = ["setuptools>=77"]"""
NO_REQUIREMENTS = """\
FILE:3: `-r evil.txt` is not a requirement
  -> write it as in "setuptools>=77"
FILE:4: `a` is asked for by URL or path
  -> write a version instead: a lock names no URL or path (put your own wheel into \
a folder that `wheel_folders:` in a file for --site names)"""
LISTED = """\
[build-system]
requires = [
  "-r evil.txt",
  "a @ https://evil.example/a.whl",
]
[project]
name = "a"
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[project]\n", NO_NAME),
        ('[project]\nname = "../evil"\nversion = "x"\n', TWO),
        ('[build-system]\nrequires = "hatchling"\n[project]\nname = "a"\n', NO_LIST),
        (LISTED, NO_REQUIREMENTS),
    ],
)
def test_a_bad_pyproject_is_refused_with_its_lines(text: str, said: str, tmp_path: Path) -> None:
    (file := tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_package(tmp_path, "pyproject.toml", "x")
    assert str(caught.value) == said.replace("FILE", str(file))


def test_a_setup_py_alone_does_not_say_what_builds_it(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    with pytest.raises(InputError) as caught:
        read_package(tmp_path, "pyproject.toml", "x.yaml:4: project")
    assert str(caught.value) == (
        f"x.yaml:4: project: {tmp_path}/pyproject.toml is missing, and a setup.py does not say what "
        "it is built with\n"
        "  -> write it beside setup.py: [build-system] (requires, build-backend) and [project] (name)"
    )


def test_its_own_pyproject_is_a_requirement_file_of_the_recipe() -> None:
    recipe = samples.recipe(project={"from": "..", "extras": ("train",)}, requirements=("more.txt",))
    assert [(file.file, file.extras) for file in recipe.requirement_files] == [
        ("more.txt", ()),
        ("../pyproject.toml", ("train",)),
    ]
    with pytest.raises(ValueError, match="is under `requirements:`, and is read for `project:` in any case"):
        samples.recipe(project="..", requirements=("../pyproject.toml",))


def test_a_recipe_without_a_package_keeps_its_checksum() -> None:
    plain = request(select(samples.recipe()))
    assert plain.project is None
    assert request(selected()).checksum() != plain.checksum()


def test_the_lock_is_written_and_read_with_its_build_requirements() -> None:
    file = LockFile(sections=(locked(),))
    text = lockfile.dumps(file)
    assert lockfile.loads(text, "x.lock") == file
    assert '   "project": {\n    "name": "trainer",\n    "requires": [\n     "setuptools>=77"\n    ],' in text
    assert "setuptools" in {item.name for item in locked().files}
    assert '"project"' not in lockfile.dumps(LockFile(sections=(samples.lock(),)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "numpy"}, "x.lock: wheels[0]: `numpy` is the name of the project itself"),
        ({"name": "setuptools"}, "x.lock: project.wheels[0]: `setuptools` is the name of the project itself"),
        (
            {"wheels": (TOOLS[0].model_copy(update={"version": "81"}),)},
            f"x.lock: project.wheels[0].file: `{TOOLS[0].file}` is setuptools 80.9, {LISTED_AS} 81",
        ),
        (
            {"wheels": (*TOOLS, samples.wheel("evil"))},
            "x.lock: project.wheels: is not in order of names",
        ),
    ],
)
def test_a_lock_that_contradicts_itself_is_refused(change: dict[str, Any], said: str) -> None:
    lock = locked(project=BUILD.model_copy(update=change))
    with pytest.raises(LockError) as caught:
        rules.require(lock, "x.lock")
    assert [f"{item.where}: {item.message}" for item in caught.value.problems] == [said]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (None, ["project: is missing, and the recipe's project is trainer"]),
        (
            BUILD.model_copy(update={"name": "torchvision"}),
            ["project.name: is not what the pyproject.toml of your package says"],
        ),
        (
            BUILD.model_copy(update={"requires": ()}),
            ["project.requires: is not what the pyproject.toml of your package says"],
        ),
        (
            BUILD.model_copy(update={"wheels": ()}),
            ["project.wheels: does not have setuptools, and `setuptools>=77` is asked for"],
        ),
        (
            BUILD.model_copy(update={"wheels": (samples.wheel("setuptools", "70"),)}),
            ["project.wheels: has setuptools 70, and `setuptools>=77` is asked for"],
        ),
    ],
)
def test_a_lock_with_other_build_requirements_is_refused(build: ProjectBuild | None, said: list[str]) -> None:
    with pytest.raises(LockError) as caught:
        agreement.require(selected(), locked(project=build), "x.lock")
    told = [f"{item.where}: {item.message}" for item in caught.value.problems]
    assert [text for text in told if ": project" in text] == [f"x.lock: {text}" for text in said]


def test_a_lock_with_a_project_that_no_recipe_has_is_refused() -> None:
    with pytest.raises(LockError, match="project: is there, and the recipe has no project"):
        agreement.require(select(samples.recipe()), locked(), "x.lock")


def test_a_build_requirement_that_nothing_asks_for_is_refused_before_it_runs(tmp_path: Path) -> None:
    evil, tools = make_wheel(tmp_path, {}, "evil"), make_wheel(tmp_path, {}, "setuptools", "80.9")
    wheels = (samples.wheel("evil"), samples.wheel("setuptools", "80.9"))
    files = {wheel.sha256: path for wheel, path in zip(wheels, (evil, tools), strict=True)}
    asked = closure.of_project(request(selected()), locked())
    with pytest.raises(LockError, match=r"nothing in the lock requires evil 1\.0"):
        closure.require(wheels, closure.read(wheels, files), asked, "project.wheels")


def test_what_its_wheel_requires_has_to_be_in_the_lock(tmp_path: Path) -> None:
    extras = ("more; extra == 'train'", "other; extra == 'docs'")
    needs = ("numpy", "torch>=3", "left-pad", "windows; sys_platform == 'win32'", *extras)
    wheel = wheelfolder.put(tmp_path, "trainer", "1.0", needs)
    found = closure.lacking(wheel, ("train",), request(selected()), locked())
    assert found == ("torch>=3", "left-pad", "more")


def test_its_layer_comes_last_and_its_key_is_of_its_files_its_build_and_python() -> None:
    one, other = planned(locked()), planned(locked(), "d" * 64)
    assert isinstance(one.layers[-1], PackageLayer)
    assert [a.key == b.key for a, b in zip(one.layers, other.layers, strict=True)] == [
        *([True] * (len(one.layers) - 1)),
        False,
    ]
    same = locked(wheels=(samples.wheel("numpy", "2.0"),), debs=(*PYTHON, samples.deb("python3", "3.13.9-1")))
    assert layer(same).key == layer().key
    newer = BUILD.model_copy(update={"wheels": (samples.wheel("setuptools", "81"),)})
    python = tuple(deb for deb in PYTHON if deb.name != "libssl3t64")
    for changed in (locked(project=newer), locked(debs=(*python, *OTHERS))):
        assert layer(changed).key != layer().key
    assert layer().wheel_key != layer().key


def test_a_compiler_in_the_image_is_there_for_the_backend_too() -> None:
    assert {deb.name for deb in layer().packages} == {deb.name for deb in PYTHON}
    debs = (*PYTHON, *OTHERS, samples.deb("gcc"), samples.deb("python3.13-dev"))
    assert layer(locked(debs=debs)).packages == debs


def test_a_dockerfile_builds_it_in_a_stage_of_its_own_without_a_network() -> None:
    text = render.render(planned(locked()), files.template("Dockerfile.j2"))
    assert "#   --build-context package=..\n" in text
    stage = text.partition("FROM installer AS package-wheel\n")[2].partition("\n# ---- ")[0]
    assert f"'setuptools==80.9 --hash=sha256:{TOOLS[0].sha256}'" in stage
    # The scripts that the embedded engine runs, whole.
    for name in backend.NAMES:
        assert f"/build/{name}\n{backend.script(name)}IMAGEBUILDER_END_OF_FILE\n" in stage
    assert stage.partition("/build/wheel.py\n")[2].endswith(
        """main()
IMAGEBUILDER_END_OF_FILE

RUN --network=none --mount=type=bind,from=package-files,source=/out,target=/build/project \\
    sh /build/environment.sh /build/venv/bin/python -s /build/wheel.py
RUN --network=none umask 002; \\
    /installer/bin/python -m pip --python /opt/venv/bin/python install --prefix /out/opt/venv \\
      --no-deps --no-compile --no-index --find-links /build/wheels 'trainer'
"""
    )
    assert text.count("COPY --link --from=package-wheel /out/ /\n") == 1


def folder(tmp_path: Path, version: str = 'version = "1.0"') -> Path:
    (source := tmp_path / "source").mkdir()
    (source / "pyproject.toml").write_text(f'[project]\nname = "trainer"\n{version}\n')
    return source


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("torch", "1.0", "the backend made a wheel of torch 1.0, but pyproject.toml is of trainer 1.0"),
        ("trainer", "2.0", "the backend made a wheel of trainer 2.0, but pyproject.toml is of trainer 1.0"),
    ],
)
def test_the_wheel_of_another_package_or_version_is_refused(
    name: str, version: str, said: str, tmp_path: Path
) -> None:
    source, wheel = folder(tmp_path), make_wheel(tmp_path, {}, name, version)
    with pytest.raises(BuildError) as caught:
        package._require_own(layer(), source, wheel)
    assert str(caught.value) == f"{source}: {said}\n  -> say the same name and version in both places"


def test_a_dynamic_version_is_the_wheel_s(tmp_path: Path) -> None:
    source = folder(tmp_path, 'dynamic = ["version"]')
    package._require_own(layer(), source, make_wheel(tmp_path, {}, "trainer", "3.4"))


def test_what_is_not_a_file_is_not_read_as_a_wheel(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("of this host")
    (link := tmp_path / "link").symlink_to(secret)
    (place := tmp_path / "folder").mkdir()
    os.mkfifo(pipe := tmp_path / "pipe")
    for product in (link, place, pipe, tmp_path / "absent"):
        with pytest.raises(BuildError) as caught:
            package._checked_copy(Path("/src"), product, tmp_path / "copy")
        assert str(caught.value) == "/src: the backend left no wheel of at most 1 GiB"
    assert not (tmp_path / "copy").exists()


def test_a_wheel_without_a_folder_of_its_own_is_refused(tmp_path: Path) -> None:
    from tests.support.wheels import write_zip

    for members in ({"a.py": b""}, {"a-1.dist-info/METADATA": b"", "b-1.dist-info/METADATA": b""}):
        with pytest.raises(BuildError, match=r"does not have exactly one `.dist-info` folder"):
            wheel_name(write_zip(tmp_path / "x.whl", members))


def kept(store: Store, wheel: Path) -> LayerRecord:
    with store.writer() as writer:
        writer.write(wheel.read_bytes())
        digest, size = writer.commit()
    return LayerRecord(digest=digest, diff_id=digest, size=size, unpacked=size, media_type="x")


def test_its_wheel_is_unpacked_as_all_others_are(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    wheel = make_wheel(tmp_path, {"trainer/main.py": b"x = 1\n"}, "trainer")
    record = build_package_layer(layer(), kept(store, wheel), store, lambda _count: None)
    site = "opt/venv/lib/python3.13/site-packages"
    assert f"{site}/trainer/main.py" in unpack(record, store)


@pytest.mark.parametrize("path", ["../../../../../etc/passwd", "trainer-1.0.data/data/bin/python"])
def test_a_hostile_wheel_of_a_backend_is_refused(path: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    wheel = make_wheel(tmp_path, {path: b"x"}, "trainer")
    with pytest.raises(BuildError, match=r"trainer-1\.0-py3-none-any\.whl: "):
        build_package_layer(layer(), kept(store, wheel), store, lambda _count: None)


def test_its_wheel_may_not_write_what_another_wheel_writes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    numpy = make_wheel(tmp_path, {"numpy/core.py": b"x = 1\n"}, "numpy")
    own = make_wheel(tmp_path, {"numpy/core.py": b"evil\n"}, "trainer")
    lock = locked(wheels=(locked_wheel(numpy),))
    plan = planned(lock)
    store.take_download(numpy, lock.wheels[0].sha256)
    store.put_layer(layer(lock).wheel_key, kept(store, own))
    context = BuildContext(lock=lock, store=store, site=Site(), progress=LineProgress(io.StringIO()))
    with pytest.raises(BuildError) as caught:
        check_wheels(plan, context)
    assert str(caught.value) == (
        "numpy-1.0-py3-none-any.whl and trainer-1.0-py3-none-any.whl: both write "
        "`/venv/lib/python3/site-packages/numpy/core.py`, with different content\n"
        "  -> leave one of them out of the recipe, or choose versions that agree"
    )
