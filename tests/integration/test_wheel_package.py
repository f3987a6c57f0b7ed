"""The wheel of imagebuilder itself: what travels in it, and that it works without a checkout."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import pytest
import uv

from imagebuilder.core import process
from imagebuilder.host.site import detect

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command: list[str | Path] = [uv.find_uv_bin(), "build", "--wheel", "--quiet", "--out-dir", folder, ROOT]
    process.run(command, timeout=300, env=detect().environment())
    (built,) = folder.glob("*.whl")
    return built


def test_everything_that_the_program_reads_is_in_the_wheel(wheel: Path) -> None:
    listed = process.run(
        ["git", "ls-files", "-z", "imagebuilder", "recipes", "dockerfiles/Dockerfile.j2"],
        timeout=60,
        cwd=ROOT,
    )
    committed = {
        name
        for name in listed.stdout.split("\0")
        if (ROOT / name).is_file() and Path(name).name != "README.md"
    }
    expected = {
        name if name.startswith("imagebuilder/") else f"imagebuilder/_share/{name}" for name in committed
    }
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


def test_nothing_but_the_package_is_in_the_wheel(wheel: Path) -> None:
    assert {name.split("/")[0].split("-")[0] for name in zipfile.ZipFile(wheel).namelist()} == {
        "imagebuilder",
        "imagebuilder_dl",
    }


def test_a_package_index_shows_a_readme_without_links_to_pages_that_it_does_not_have(wheel: Path) -> None:
    file = zipfile.ZipFile(wheel)
    (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
    shown = file.read(name).decode().partition("\n\n")[2]
    assert shown.startswith("# imagebuilder\n")
    assert "\n## More\n" not in shown
    assert [link for link in re.findall(r"\]\(([^)]+)\)", shown) if not link.startswith("https://")] == []


def test_the_installed_wheel_works(wheel: Path, tmp_path: Path) -> None:
    venv, target = tmp_path / "venv", tmp_path / "target"
    environment = detect().environment() | {"VIRTUAL_ENV": str(venv)}
    process.run([uv.find_uv_bin(), "venv", "--quiet", venv], timeout=60, env=environment)
    # Compiled, as pip does: hooks and payloads too, beside which their bytecode then lies.
    install: list[str | Path] = [uv.find_uv_bin(), "pip", "install", "--quiet", "--compile-bytecode", wheel]
    process.run(install, timeout=300, env=environment)
    program = venv / "bin" / "imagebuilder"
    # Far from the checkout, so that nothing of it can be found.
    said = process.run([program, "init", target, "--recipe", "cuda12-torch"], timeout=60, cwd=tmp_path).stdout
    assert f"wrote {target}/cuda12-torch.yaml" in said
    assert {path.name for path in target.iterdir()} == {"cuda12-torch.yaml", "recipe.schema.json"}
    checked = process.run([program, "check", target / "cuda12-torch.yaml"], timeout=60, cwd=tmp_path)
    assert "ok, not locked yet" in checked.stdout
    assert os.fspath(ROOT) not in said
    assert list(venv.glob("lib/*/site-packages/imagebuilder/layers/hooks/system/__pycache__"))
    script = "import sys, pathlib; from imagebuilder.layers import hooks\n"
    script += "hooks.hand_in('system', pathlib.Path(sys.argv[1]))"
    (tmp_path / "hooks").mkdir()
    process.run([venv / "bin" / "python", "-c", script, tmp_path / "hooks"], timeout=60, cwd=tmp_path)
    ours = ROOT / "imagebuilder" / "layers" / "hooks"
    assert {path.name for path in (tmp_path / "hooks").iterdir()} == {
        path.name for part in ("system", "shared") for path in (ours / part).iterdir() if path.is_file()
    }
