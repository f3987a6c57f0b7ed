"""`init --from-image`: what is read out of an image, and the recipe that is written for it."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound
from typer.testing import CliRunner

from imagebuilder import catalog, cli
from imagebuilder import recipe as recipes
from imagebuilder.bases import inventory, tree
from imagebuilder.bases.images import Image
from imagebuilder.bases.inventory import Inventory, Mpi
from imagebuilder.core import files
from imagebuilder.core import labels as label_names
from imagebuilder.errors import BuildError, ConflictError, ImagebuilderError, InputError, RegistryError
from imagebuilder.host import engine as engines
from imagebuilder.host.engine import Engine
from imagebuilder.recipe import Recipe
from imagebuilder.registry import reader
from imagebuilder.store import Store
from imagebuilder.workflow import check_recipe
from imagebuilder.workflow.adopt import images, requirements
from tests.support.fake_registry import FakeRegistry, serve
from tests.support.standin_base import config_of, descriptor, digest, layer, tar_of

RELEASE = b"ID=debian\nVERSION_CODENAME=trixie\n"
Files = dict[str, bytes | str | None]


def package(name: str, version: str = "1.0-1", **fields: str) -> str:
    said = {"Package": name, "Status": "install ok installed", "Architecture": "amd64", "Version": version}
    more = {key.replace("_", "-"): text for key, text in fields.items()}
    return "".join(f"{key}: {text}\n" for key, text in {**said, **more}.items()) + "\n"


def status(*packages: str) -> bytes:
    essential = package("dpkg", "1.22", Essential="yes", Depends="libc6") + package("libc6", "2.41-12")
    return (essential + "".join(packages)).encode()


def dist(
    site: str, name: str, version: str, *, requested: bool = True, needs: str = "", **files: bytes
) -> Files:
    folder = f"{site}/{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    made: Files = {
        f"{folder}/METADATA": f"Name: {name}\nVersion: {version}\n{requires}".encode(),
        f"{folder}/INSTALLER": b"pip\n",
    }
    return {
        **made,
        **({f"{folder}/REQUESTED": b""} if requested else {}),
        **{f"{folder}/{key.replace('__', '.')}": text for key, text in files.items()},
    }


def read(files: Files, **config: Any) -> Inventory:
    whole: Files = {"etc/os-release": RELEASE, "var/lib/dpkg/status": status(), **files}
    stream = io.BytesIO(tar_of(whole))
    return inventory.of_tree(tree.read_stream(stream, inventory.wanted, "x:1"), config, "x:1")


def written(folder: Path, files: Files, platform: str = "linux/amd64", **config: Any) -> tuple[Recipe, str]:
    """Write the recipe of an image, and read it as `check` does."""
    image = Image(place="docker's sha256:0123", platform=platform, contents=read(files, **config))
    path = folder / "sample.yaml"
    text = images.of_image(image, path, "x:1").text()
    path.write_text(text, encoding="utf-8")
    check_recipe(path)
    _, _, notes = text.partition("# Left out or changed:\n")
    joined = "\n".join(line.removeprefix("# ") for line in notes.splitlines()).replace("\n  ", " ")
    return recipes.load(path, catalog.own.names(path)), joined


VENV = "opt/venv/lib/python3.13/site-packages"
OWN = (
    "If it is your own, get its folder: `project: FOLDER` installs the package, and `copy:` copies the files "
    "into the image. A wheel of it can also be put into a folder that "
    "`wheel_folders:` in a file for --site names."
)


def test_the_user_s_own_package_is_left_out_and_what_it_needs_is_not(tmp_path: Path) -> None:
    files: Files = {
        **dist(VENV, "My_Trainer", "1.0", requested=False, needs="numpy>=2"),
        **dist(VENV, "numpy", "2.3.0", requested=False, needs="tabulate"),
        **dist(VENV, "tabulate", "0.9.0", requested=False),
        **dist(VENV, "rich", "14.0.0", requested=False),
        # Not by an installer: copied, or by `setup.py install` and `setup.py develop`.
        f"{VENV}/copied-2.0.dist-info/METADATA": b"Requires-Dist: einops\n",
        **dist(VENV, "einops", "0.8.1", requested=False),
        f"{VENV}/legacy-3.0-py3.13.egg-info/PKG-INFO": b"",
        f"{VENV}/by_old_pip-4.0-py3.13.egg-info/installed-files.txt": b"",
        f"{VENV}/Edited.egg-link": b"/src\n.",
    }
    labels = {"org.imagebuilder.package": f"my-trainer {'0' * 64}"}
    recipe, notes = written(tmp_path, files, Labels=labels, Env=["PATH=/opt/venv/bin:/usr/bin"])
    assert recipe.pip == ("by-old-pip==4.0", "einops==0.8.1", "numpy==2.3.0", "rich==14.0.0")
    assert notes == (
        f"- Installed from a folder, so perhaps on no index: edited, my-trainer 1.0. {OWN}\n"
        f"- Installed from an unknown place, so perhaps on no index: copied 2.0, legacy 3.0. {OWN}"
    )


def test_torch_by_pip_with_its_libraries(tmp_path: Path) -> None:
    files = {
        **dist(VENV, "torch", "2.10.0+cu128"),
        **dist(VENV, "nvidia_cuda_runtime_cu12", "12.8.90", requested=False),
        **dist(VENV, "nvidia_cudnn_cu12", "9.10.2.21", requested=False),
        **dist(VENV, "nvidia_nccl_cu12", "2.27.5", requested=False),
        **dist(VENV, "nvidia_cublas_cu12", "12.8.4.1", requested=False),
        **dist(VENV, "Hugging_Face.hub", "0.30.0rc1"),
        **dist(VENV, "numpy", "2.3.0", requested=False),
        **dist(VENV, "pip", "25.0"),
        **dist(VENV, "mine", "0.1", direct_url__json=b'{"dir_info": {"editable": true}, "url": "file:///x"}'),
        **dist(
            VENV, "theirs", "0.2", direct_url__json=b'{"vcs_info": {"vcs": "git"}, "url": "https://u:p@h"}'
        ),
    }
    recipe, notes = written(tmp_path, files, Env=["PATH=/opt/venv/bin:/usr/bin"])
    assert (recipe.name, recipe.base, recipe.python) == ("sample", "debian:trixie", "3.13")
    assert recipe.pins == {"cuda": "12.8", "cudnn": "9.10.2", "nccl": "2.27.5", "torch": "2.10.0"}
    assert recipe.pip == ("hugging-face-hub==0.30.0rc1",)
    assert notes == (
        f"- Installed from a folder, so perhaps on no index: mine 0.1. {OWN}\n"
        f"- Installed from a repository, so perhaps on no index: theirs 0.2. {OWN}\n"
        "- Builds that the usual index does not have: torch 2.10.0+cu128. The version is kept without what "
        "follows `+`; for the same build, name its index in a site file."
    )


def test_mpi_compilers_and_packages_by_apt(tmp_path: Path) -> None:
    packages = status(
        package("openmpi-bin", "5.0.7-1", Depends="libopenmpi40"),
        package("libopenmpi40", "5.0.7-1"),
        package("build-essential", Depends="gcc (>= 4:12), g++, libfoo | libbar"),
        package("gcc", "4:14.2.0-1", Depends="gcc-14 (>= 14.2)"),
        package("g++", "4:14.2.0-1", Depends="gcc"),
        package("gcc-14", "14.2.0-19"),
        package("gcc-12", "12.4.0-1"),
        package("openssh-server", "1:10.0p1-7"),
        # MXNet's wheel needs it, and so do others.
        package("libgomp1", "14.2.0-19"),
        package("git", "1:2.47", Depends="virtual-perl"),
        package("perl", Provides="virtual-perl (= 5)"),
        package("vim", Recommends="vim-runtime", Priority="important"),
        package("mount", Priority="required"),
        package("vim-runtime"),
        package("one", Depends="two"),
        package("two", Depends="one"),
    )
    auto = b"Package: vim-runtime\nArchitecture: amd64\nAuto-Installed: 1\n"
    recipe, notes = written(
        tmp_path,
        {
            "var/lib/dpkg/status": packages,
            "var/lib/apt/extended_states": auto,
            "etc/ssh/ssh_host_ed25519_key": b"secret",
            "etc/ssh/ssh_host_ed25519_key.pub": b"public",
            "root/.ssh/id_rsa": b"secret",
            "workspace/train.py": b"",
            "opt/tool/bin/x": b"",
            "usr/local/lib/x": b"",
        },
        Cmd=["python3", "train.py"],
        Entrypoint=["/start.sh"],
        WorkingDir="/workspace",
        Volumes={"/data": {}},
    )
    assert recipe.pins == {"gcc": "14", "openmpi": "5.0.7"}
    # Of the two that need each other, one is enough.
    assert recipe.apt == ("build-essential", "gcc-12", "git", "libgomp1", "one", "vim")
    assert (recipe.ssh.user, recipe.workdir, recipe.command) == ("root", "/workspace", ())
    assert notes == (
        "- Packages installed because others recommend them: vim-runtime. A recipe installs no recommended "
        "packages; name under `apt:` those that you need.\n"
        '- ENTRYPOINT ["/start.sh"] with CMD ["python3", "train.py"]: an image has an entrypoint of its own, '
        "which starts sshd or `command:`. Put what it ran there into `command:`.\n"
        "- Volumes of the image's config: a recipe has no key for it.\n"
        "- Private ssh keys (etc/ssh/ssh_host_ed25519_key, root/.ssh/id_rsa): no layer holds one. Host keys "
        "are made when a container starts, and `imagebuilder keys` makes those of a job.\n"
        "- Folders that no package accounts for: /workspace, /opt/tool. `copy:` puts folders of your project "
        "into the image."
    )


def test_an_environment_of_conda(tmp_path: Path) -> None:
    site = "opt/conda/lib/python3.11/site-packages"
    history = (
        b"==> 2025-01-01 <==\n# cmd: conda create\n"
        b"# update specs: ['python=3.11', 'conda-forge::scipy', \"PyYAML[version='>=6']\"]\n"
    )
    files: Files = {
        "opt/conda/conda-meta/history": history,
        "opt/conda/conda-meta/scipy-1.15.2-py311.json": b"{}",
        "opt/conda/pkgs/numpy-1/lib/python3.11/site-packages/cached-1.0.dist-info/METADATA": b"",
        **dist(site, "scipy", "1.15.2", requested=False),
        **dist(site, "PyYAML", "6.0.2", requested=False),
        **dist(site, "numpy", "2.2.0", requested=False),
        **dist(site, "einops", "0.8.1"),
    }
    recipe, notes = written(tmp_path, files, Env=["PATH=/opt/conda/bin:/usr/bin", "CONDA_DIR=/opt/conda"])
    assert (recipe.base, recipe.python) == ("debian:bookworm", "3.11")
    assert recipe.pip == ("einops==0.8.1", "pyyaml==6.0.2", "scipy==1.15.2")
    assert recipe.env == {}
    assert notes == (
        "- debian:trixie has Python 3.13. The base is debian:bookworm, because it has the image's Python "
        "3.11.\n"
        "- What conda put into /opt/conda: Python packages come as wheels of the index; compilers, libraries "
        "and programs have to come by a pin or by `apt:`."
    )


@pytest.mark.parametrize(("python", "elsewhere"), [("3.12", " ubuntu:noble has Python 3.12."), ("3.9", "")])
def test_a_suite_stays_where_pins_are_of_its_packages(python: str, elsewhere: str, tmp_path: Path) -> None:
    files = {
        "var/lib/dpkg/status": status(package("mpich", "4.3.0+really4.2.1-1")),
        **dist(f"usr/local/lib/python{python}/site-packages", "einops", "0.8.1"),
    }
    recipe, notes = written(tmp_path, files)
    assert (recipe.base, recipe.python, recipe.pins) == ("debian:trixie", "3.13", {"mpich": "4.2.1"})
    says = f"- Python {python}: debian:trixie has Python 3.13, and a recipe takes its suite's."
    assert notes == says + elsewhere


def test_cuda_and_nccl_by_nvidia_s_packages(tmp_path: Path) -> None:
    nvidia = {"Maintainer": "cudatools <cudatools@nvidia.com>"}
    files: Files = {
        "var/lib/dpkg/status": status(
            package("cuda-cudart-12-8", "12.8.90-1", **nvidia),
            package("libnccl2", "2.26.2-1+cuda12.8", **nvidia),
            package("libcublas-12-8", "12.8.4.1-1", **nvidia),
        ),
        "etc/apt/sources.list.d/cuda.list": b"deb https://archive.example/cuda /\n",
        "etc/apt/sources.list.d/team.list": b"deb https://team.example stable main\n",
    }
    recipe, notes = written(
        tmp_path, files, Env=["CUDA_VERSION=12.8.1", "NV_X=1", "NVIDIA_VISIBLE_DEVICES=all"]
    )
    assert recipe.pins == {"cuda": "12.8", "nccl": "2.26.2"}
    assert recipe.apt == ()
    assert recipe.env == {}
    assert notes == (
        "- Packages of NVIDIA's archive (cuda-cudart-12-8, libcublas-12-8, libnccl2): the pins bring CUDA's "
        "runtime, cuDNN and NCCL, torch's wheels bring the other libraries, and `devel: true` brings nvcc "
        "and headers.\n"
        "- The package archives team: a recipe on a suite has the distribution's own. `base: {image: ...}` "
        "keeps those of an image."
    )


def test_a_cuda_that_the_catalog_does_not_have(tmp_path: Path) -> None:
    files = {
        **dist(VENV, "torch", "2.1.0"),
        **dist(VENV, "nvidia_cuda_runtime_cu10", "10.2.89", requested=False),
        **dist(VENV, "nvidia_nccl_cu10", "2.19.3", requested=False),
    }
    recipe, notes = written(tmp_path, files, Env=["CUDA_VERSION=10.2.0"])
    assert recipe.pins == {"cuda": "11", "torch": "2.1.0"}
    assert notes == (
        "- CUDA runtime libraries (cuda 10.2): the catalog has cuda 11 and 12 and 13, so 11 is pinned; "
        "packages for cuda 10 are left out."
    )


def test_an_mpi_that_was_compiled(tmp_path: Path) -> None:
    files: Files = {
        "opt/ompi/bin/ompi_info": b"",
        "opt/ompi/lib/pkgconfig/ompi.pc": b"prefix=/opt/ompi\nVersion: 4.1.5\n",
        "usr/local/bin/mpichversion": b"",
    }
    recipe, notes = written(tmp_path, files)
    assert read(files).mpi == (
        Mpi(component="openmpi", version="4.1.5", prefix="opt/ompi"),
        Mpi(component="mpich", version="", prefix="usr/local"),
    )
    assert recipe.pins == {"openmpi": "5.0.7"}
    assert notes.startswith(
        "- openmpi 4.1.5 in /opt/ompi: pinned is 5.0.7, the version of debian:trixie; `build: [openmpi]` "
        "compiles it.\n"
        '- mpich of an unknown version in /usr/local: mpich "4.2.1" and openmpi "5.0.7" cannot be in one '
        "image: both bring `mpirun` and libmpi.\n"
    )


def test_debian_s_own_python_packages_go_where_the_image_s_python_sees_them(tmp_path: Path) -> None:
    files: Files = {
        "var/lib/dpkg/status": status(
            package("python3", "3.13.5-1"),
            package("python3-numpy", "1:2.2.4+ds-1"),
            package("python3-dev", "3.13.5-1"),
            package("python3-apt"),
        ),
        "usr/lib/python3/dist-packages/numpy-2.2.4.egg-info": b"",
        "usr/local/lib/python3.13/dist-packages/einops-0.8.1.dist-info/METADATA": b"",
        "usr/local/lib/python3.13/dist-packages/rich-14.0.dist-info/METADATA": (
            b"Name: rich\nRequires-Dist: markdown-it-py>=2\nRequires-Dist: einops; extra == 'x'\n\n"
            b"Requires-Dist: einops\n"
        ),
        "usr/local/lib/python3.13/dist-packages/markdown_it_py-3.0.dist-info/METADATA": b"",
        **{
            f"usr/local/lib/python3.13/dist-packages/{name}.dist-info/INSTALLER": b"pip"
            for name in ("einops-0.8.1", "rich-14.0", "markdown_it_py-3.0")
        },
    }
    recipe, notes = written(tmp_path, files)
    assert recipe.pip == ("einops==0.8.1", "numpy==2.2.4", "rich==14.0")
    assert recipe.apt == ("python3-apt", "python3-dev")
    assert notes == (
        "- Debian's Python packages (python3-numpy) are not seen by the image's own Python: they are under "
        "`pip:`."
    )


def test_the_user_and_the_variables(tmp_path: Path) -> None:
    env = [
        "PATH=/usr/bin",
        "HF_HOME=/data/hf",
        "NO=1",
        'QUOTE=a"b: {c} # d',
        "LD_PRELOAD=/x.so",
        "WANDB_API_KEY=abc",
        "INDEX=https://me:pw@host/simple",
        "LINES=a\nname: evil",
        "A B=1",
        "no equals",
        f"LONG={'x' * 600}",
    ]
    recipe, notes = written(
        tmp_path, {"etc/passwd": b"app:x:1000:1000::/home/app:/bin/sh\n"}, User="1000:0", Env=env
    )
    assert (recipe.ssh.user, recipe.ssh.port) == ("app", 2222)
    assert recipe.env == {"HF_HOME": "/data/hf", "NO": "1", "QUOTE": 'a"b: {c} # d'}
    assert notes == (
        "- Variables that look like secrets, are not plain text or too long: A B, INDEX, LINES, LONG, "
        "WANDB_API_KEY, no equals. Give them to the container when it starts.\n"
        "- Variables that make programs load or run something: LD_PRELOAD. Set them under `env:` if that is "
        "meant."
    )


@pytest.mark.parametrize(
    ("command", "carried"),
    [
        (["python", "-m", "app", 'a"b: #'], ("python", "-m", "app", 'a"b: #')),
        (["/bin/bash"], ()),
        (["/usr/sbin/sshd", "-D"], ()),
    ],
)
def test_the_command(command: list[str], carried: tuple[str, ...], tmp_path: Path) -> None:
    recipe, notes = written(tmp_path, {}, Cmd=command, WorkingDir="/root")
    assert (recipe.command, recipe.workdir, notes) == (carried, None, "")


def test_an_image_for_another_machine(tmp_path: Path) -> None:
    recipe, _ = written(tmp_path, {}, platform="linux/arm64")
    assert recipe.platforms == ("linux/arm64",)


@pytest.mark.parametrize(
    ("release", "message"),
    [
        (b'ID=alpine\nPRETTY_NAME="Alpine Linux v3.22"\n', "it holds Alpine Linux v3.22"),
        (b'ID="rhel"\nPRETTY_NAME="Red Hat Enterprise Linux 9"\n', "it holds Red Hat Enterprise Linux 9"),
        (b"ID=ubuntu\nVERSION_CODENAME=focal\n", "x:1 holds ubuntu focal, which is not known here"),
    ],
)
def test_a_system_that_recipes_cannot_have(release: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read({"etc/os-release": release})


# Images are anybody's: what they say ends up in a file that people build from.

HOSTILE = "x\nbase: debian:sid\n#\u2028\x85\x1b[31m\ud800"


def test_no_name_of_an_image_leaves_its_comment(tmp_path: Path) -> None:
    files: Files = {
        f"opt/{HOSTILE.encode(errors='ignore').decode()}/x": b"",
        f"{VENV}/evil\nbase: x-1.0.dist-info/METADATA": b"",
        **dist(VENV, "fine", "1.0", direct_url__json=b"\xff{" * 10),
    }
    recipe, notes = written(
        tmp_path,
        files,
        Cmd=[HOSTILE],
        WorkingDir=HOSTILE,
        User=HOSTILE,
        Env=[f"{HOSTILE}=1", f"OK={HOSTILE}", "PATH=" + ":" * 10_000],
        Volumes=HOSTILE,
    )
    assert (recipe.base, recipe.pip, recipe.env, recipe.ssh.user) == ("debian:trixie", (), {}, "root")
    text = (tmp_path / "sample.yaml").read_text(encoding="utf-8")
    keys = [line for line in text.splitlines() if not line.startswith("#")]
    assert keys == ['name: "sample"', 'base: "debian:trixie"', 'python: "3.13"', ""]
    assert "WORKDIR x\\nbase: debian:sid\\n#\\u2028\\x85\\x1b[31m\\ud800: is not UTF-8." in notes
    assert "Installed from an address, so perhaps on no index: fine 1.0." in notes


@pytest.mark.parametrize(
    "config",
    [
        {"Env": "PATH=/x", "Cmd": "sh", "User": 7, "WorkingDir": ["/"], "Entrypoint": {"a": 1}},
        {"Env": [1, None, {}], "Cmd": [None], "Volumes": 1, "User": None},
    ],
)
def test_a_config_of_other_types_is_no_trouble(config: dict[str, Any], tmp_path: Path) -> None:
    recipe, _ = written(tmp_path, {}, **config)
    assert recipe.env == {}


def test_more_than_a_recipe_holds_is_said(tmp_path: Path) -> None:
    many = [package(f"p{number:04}-{'x' * 180}") for number in range(500)]
    files: Files = {"var/lib/dpkg/status": status(*many)}
    for number in range(800):
        files |= dist(VENV, f"w{number:04}{'y' * 100}", "1.0")
    for number in range(60):
        files[f"opt/{number}{'z' * 200}/x"] = b""
    env = [f"V{number}={'é' * 400}" for number in range(100)]
    recipe, notes = written(tmp_path, files, Env=env)
    assert len(recipe.apt) > 300
    assert len(recipe.pip) > 500
    assert len(recipe.env) == 50
    assert "Debian packages that a recipe cannot name, or that are too many: p03" in notes
    assert (tmp_path / "sample.yaml").stat().st_size < 250_000


def test_links_among_an_image_s_files_lead_nowhere(tmp_path: Path) -> None:
    """Not to this host, and not round and round."""
    files: Files = {
        "opt/venv": "/",
        "var/lib/apt/extended_states": "/etc/hostname",
        "etc/ssh/sshd_config": "sshd_config",
        f"usr/{VENV}/x-1.0.dist-info": "/etc",
        "usr/lib/python3/dist-packages": "../python3",
    }
    assert written(tmp_path, files)[0].apt == ()


def test_a_package_list_of_long_chains_takes_no_time() -> None:
    chain = [package(f"p{number}", Depends=f"p{number + 1}") for number in range(5000)]
    assert read({"var/lib/dpkg/status": status(*chain, package("p5000", Depends="p0"))}).manual == ("p0",)


def test_the_image_s_own_tar_is_read_with_limits() -> None:
    info = tarfile.TarInfo("a/../../etc/passwd")
    with pytest.raises(Exception, match="leads out of the image"):
        tree.read_stream(io.BytesIO(info.tobuf() + bytes(1024)), inventory.wanted, "x:1")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("ubuntu", "ubuntu"),
        ("registry.example:5000/Team/My_Train.x:1.2@sha256:00", "my-train-x"),
        ("sha256:0123", "image"),
        ("___", "image"),
        ("a" * 300, "a" * 100),
    ],
)
def test_a_recipe_is_called_like_its_image(asked: str, name: str) -> None:
    assert images.name_of_image(asked) == name
    assert recipes.is_name(name)


# Where an image is found.


def pushed(registry: FakeRegistry, files: Files, **config: Any) -> str:
    """Put an image of one layer into a registry; returns its name."""
    only = layer(tar_of({"etc/os-release": RELEASE, "var/lib/dpkg/status": status(), **files}), "zstd")
    described = config_of([only], **config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": reader.OCI_MANIFEST,
        "config": descriptor(described, "application/vnd.oci.image.config.v1+json"),
        "layers": [only.descriptor],
    }
    for data in (only.blob, described):
        registry.blobs["team/train", digest(data)] = data
    registry.manifests["team/train", "1"] = (reader.OCI_MANIFEST, json.dumps(manifest).encode())
    return f"{registry.host}/team/train:1"


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


@pytest.mark.usefixtures("no_engine")
def test_an_image_of_a_registry(tmp_path: Path) -> None:
    with serve(FakeRegistry()) as registry:
        name = pushed(registry, dist(VENV, "einops", "0.8.1"), Env=["A=b"])
        said = CliRunner().invoke(
            cli.app, ["init", str(tmp_path), "--from-image", name, "--store", str(tmp_path / "store")]
        )
    path = tmp_path / "train.yaml"
    assert said.output == (
        f"wrote {path}\nwrote {tmp_path / 'recipe.schema.json'}\nnext: imagebuilder lock {path}\n"
    )
    recipe = recipes.load(path, catalog.names())
    assert (recipe.name, recipe.pip, recipe.env) == ("train", ("einops==0.8.1",), {"A": "b"})


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("image", "platform", "kind", "message"),
    [
        ("gone", "", RegistryError, "the registry has no such image .*; no local engine answers"),
        ("1", "linux/arm64", RegistryError, "is an image for linux/amd64, not for linux/arm64"),
        ("1", "linux/sparc", InputError, "`linux/sparc` is not a platform that images are made for"),
        ("a b", "", InputError, "`a b` is not a tag"),
    ],
)
def test_an_image_that_is_not_there(
    image: str, platform: str, kind: type[ImagebuilderError], message: str, tmp_path: Path
) -> None:
    with serve(FakeRegistry()) as registry:
        name = pushed(registry, {}).rpartition(":")[0]
        with pytest.raises(kind, match=message):
            images.read_image(f"{name}:{image}", Path("x.yaml"), platform, None, Store(tmp_path))


@pytest.mark.usefixtures("no_engine")
def test_a_system_that_is_not_debian_s_is_named_with_its_image(tmp_path: Path) -> None:
    with serve(FakeRegistry()) as registry:
        name = pushed(registry, {"etc/os-release": b'ID=alpine\nPRETTY_NAME="Alpine Linux v3.22"\n'})
        with pytest.raises(InputError) as caught:
            images.read_image(name, Path("x.yaml"), "", None, Store(tmp_path))
    assert str(caught.value) == (
        f"{name}: {name} is not a base that packages can be added to: it holds Alpine Linux v3.22\n"
        "  -> choose an image of debian or ubuntu"
    )


def test_a_recipe_that_exists_is_kept_and_no_image_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("mine\n", encoding="utf-8")
    said = CliRunner().invoke(cli.app, ["init", str(tmp_path), "--from-image", "team/train:1"])
    assert str(said.exception) == f"{tmp_path}/train.yaml: already exists\n  -> --force overwrites it"
    said = CliRunner().invoke(
        cli.app, ["init", "--from-image", "x", "--from-requirements", "requirements.txt"]
    )
    assert str(said.exception) == (
        "imagebuilder init: --recipe, --from-image and --from-requirements exclude each other\n"
        "  -> keep one of them"
    )


class FakeEngine:
    """The engine's client, as far as an image is read: it cannot start anything."""

    def __init__(self, tar: bytes, architecture: str = "amd64") -> None:
        self._tar, self._architecture = tar, architecture
        self.created: list[dict[str, Any]] = []
        self.images = self.api = self
        self.containers = self.networks = SimpleNamespace(list=lambda **_: [])

    def get(self, name: str) -> SimpleNamespace:
        if not name.startswith("train"):
            raise ImageNotFound("no such image")
        attributes = {"Os": "linux", "Architecture": self._architecture, "Id": "sha256:0123456789abcdef"}
        return SimpleNamespace(attrs={**attributes, "Config": {"Env": ["A=b"]}})

    def create_container(self, image: str, **settings: Any) -> dict[str, str]:
        self.created.append({"image": image, **settings})
        return {"Id": "c"}

    def export(self, container: str, chunk_size: int) -> Iterator[bytes]:
        assert (container, chunk_size) == ("c", 1 << 20)
        return (self._tar[start : start + 700] for start in range(0, len(self._tar), 700))


def with_engine(patch: pytest.MonkeyPatch, client: FakeEngine) -> None:
    @contextlib.contextmanager
    def connect(_: str) -> Iterator[Engine]:
        offered = {"version": "1", "cores": 1, "memory_bytes": 1}
        yield Engine(client=client, kind="docker", **offered)  # type: ignore[arg-type]

    patch.setattr(engines, "connect", connect)


SOUND = tar_of({"etc/os-release": RELEASE, "var/lib/dpkg/status": status(), **dist(VENV, "einops", "0.8.1")})


def test_an_image_of_the_engine_is_read_from_a_container_that_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeEngine(SOUND)
    with_engine(monkeypatch, client)
    draft = images.read_image("train:1", Path("train.yaml"), "", None, Store(tmp_path))
    assert (draft.fields["pip"], draft.fields["env"]) == (["einops==0.8.1"], {"A": "b"})
    assert "docker's sha256:0123456789ab" in draft.origin
    (made,) = client.created
    assert (made["image"], made["command"], made["network_disabled"]) == ("train:1", ["none"], True)


@pytest.mark.parametrize(
    ("client", "platform", "kind", "message"),
    [
        (FakeEngine(SOUND, "s390x"), "", InputError, "docker has it for linux/s390x, not for linux/amd64 or"),
        (FakeEngine(SOUND), "linux/arm64", InputError, "docker has it for linux/amd64, not for linux/arm64"),
        (FakeEngine(SOUND[:1000]), "", BuildError, "train: its files cannot be read: "),
    ],
)
def test_an_image_of_the_engine_that_cannot_be_read(
    client: FakeEngine,
    platform: str,
    kind: type[ImagebuilderError],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_engine(monkeypatch, client)
    with pytest.raises(kind, match=message):
        images.read_image("train", Path("x.yaml"), platform, None, Store(tmp_path))


# Requirement files.


def made_for(folder: Path, file: str, text: str) -> tuple[Recipe, str]:
    """Write the recipe of a requirement file into a folder beside it, and read it as `check` does."""
    (folder / file).write_text(text, encoding="utf-8")
    draft = requirements.of_requirements(folder / file, folder / "recipes" / "sample.yaml")
    (folder / "recipes").mkdir(exist_ok=True)
    path = folder / "recipes" / "sample.yaml"
    path.write_text(draft.text(), encoding="utf-8")
    check_recipe(path)
    return recipes.load(path, catalog.names()), "\n".join(draft.notes)


PROCTOOL = (
    "name: proctool\nsummary: procps\nproviders: [{apt: [procps]}]\nprobe: {command: [ps], compare: 2}\n"
)


def test_components_of_the_folder_beside_the_recipe_are_pinned(tmp_path: Path) -> None:
    """A package is found by itself; what was compiled by the label of an image of imagebuilder."""
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "proctool.yaml").write_text(PROCTOOL, encoding="utf-8")
    compiled = files.resources("recipes").parent / "examples" / "catalog" / "aws-ofi-nccl.yaml"
    (tmp_path / "catalog" / "aws-ofi-nccl.yaml").write_bytes(compiled.read_bytes())
    debs = status(package("procps", "2:4.0.4-9"))
    labels = {
        f"{label_names.PIN}aws-ofi-nccl": "1.14.0",
        f"{label_names.PIN}sales": "1",
        f"{label_names.PIN}x": "\x1b[31m",
    }
    recipe, notes = written(tmp_path, {"var/lib/dpkg/status": debs}, Labels=labels)
    assert recipe.pins == {"aws-ofi-nccl": "1.14.0", "proctool": "4.0"}
    assert "The image's labels pin sales 1, which no catalog file describes." in notes


def test_a_file_beside_the_recipe_that_is_no_component_is_named(tmp_path: Path) -> None:
    (tmp_path / "recipes" / "catalog").mkdir(parents=True)
    (tmp_path / "recipes" / "catalog" / "sales.yaml").write_text("rows: 1\n", encoding="utf-8")
    recipe, notes = made_for(tmp_path, "requirements.txt", "einops\n")
    assert recipe.pins == {}
    assert (
        f"Not taken for a component: {tmp_path}/recipes/catalog/sales.yaml:1: name: `name` is missing."
        in notes
    )


def test_a_requirement_file_stays_where_it_is_and_its_components_are_pinned(tmp_path: Path) -> None:
    text = "torch==2.10.0\nnumpy>=2\nmpi4py==4.1.1 ; python_version >= '3'\nnvidia-nccl-cu12>2\n"
    recipe, notes = made_for(tmp_path, "requirements.txt", text)
    assert (recipe.base, recipe.python) == ("debian:trixie", "3.13")
    assert recipe.requirements == ("../requirements.txt",)
    shipped = recipes.load(files.resources("recipes") / "cuda12-torch.yaml", catalog.names()).pins
    beside = {name: shipped[name] for name in ("cuda", "cudnn", "nccl")}
    assert recipe.pins == {"torch": "2.10.0", "mpi4py": "4.1.1", **beside}
    assert (recipe.pip, notes) == ((), "")


def test_the_python_that_a_project_takes(tmp_path: Path) -> None:
    text = """
[project]
name = "x"
version = "1"
requires-python = ">=3.10,<3.12"
dependencies = ["torch==2.0.1+cu118", "einops"]
"""
    recipe, notes = made_for(tmp_path, "pyproject.toml", text)
    assert (recipe.base, recipe.python) == ("debian:bookworm", "3.11")
    assert recipe.pins == {"torch": "2.0.1"}
    assert notes == (
        "Builds that the usual index does not have: torch 2.0.1+cu118. Name their index in a site file."
    )


def test_what_a_torch_takes_that_no_shipped_recipe_has_is_left_to_the_lock(tmp_path: Path) -> None:
    recipe, notes = made_for(tmp_path, "requirements.in", "torch==2.0.1\n")
    assert recipe.pins == {"torch": "2.0.1"}
    assert notes == (
        "CUDA, cuDNN and NCCL: which ones the wheels of torch 2.0.1 take is not known offline. "
        "`imagebuilder lock` finds them; pin them then, so that the smoke test checks them."
    )


@pytest.mark.parametrize(
    ("file", "text", "kind", "message"),
    [
        ("deps.cfg", "", InputError, r"deps\.cfg: is not named like a requirement file\n"),
        (
            "requirements.txt",
            "x @ https://h/x.whl",
            InputError,
            r"requirements\.txt:1: `x` is asked for by URL",
        ),
        (
            "pyproject.toml",
            '[project]\nname="x"\nversion="1"\nrequires-python="<3"',
            ConflictError,
            "python: is",
        ),
        ("gone/requirements.txt", "", InputError, "cannot be read: No such file"),
    ],
)
def test_a_file_that_no_recipe_can_be_made_for(
    file: str, text: str, kind: type[ImagebuilderError], message: str, tmp_path: Path
) -> None:
    if "/" not in file:
        (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(kind, match=message):
        requirements.of_requirements(tmp_path / file, tmp_path / "recipes" / "sample.yaml")


def test_a_recipe_for_requirements_is_called_like_its_project(tmp_path: Path) -> None:
    (tmp_path / "My Project").mkdir()
    file = tmp_path / "My Project" / "requirements.txt"
    file.write_text("einops\n", encoding="utf-8")
    said = CliRunner().invoke(cli.app, ["init", str(tmp_path / "r"), "--from-requirements", str(file)])
    assert said.output.startswith(f"wrote {tmp_path}/r/my-project.yaml\n")
    assert said.output.endswith(f"next: imagebuilder lock {tmp_path}/r/my-project.yaml\n")
