import re
import sys
from pathlib import Path

import pytest

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.core import files, process
from imagebuilder.plan import Entry
from imagebuilder.plan.render import render
from imagebuilder.workflow import read_plan
from tests.unit import samples

TEMPLATE = files.template("Dockerfile.j2")


def rendered(**changes: object) -> str:
    files = (
        Entry(path="/etc/motd", kind="file", mode=0o644, text="no newline at the end"),
        Entry(path="/var/lib/job folder", kind="dir", mode=0o755),
        Entry(path="/usr/local/bin/x", kind="link", mode=0o777, text="/usr/bin/x"),
    )
    return render(plans.plan(select(samples.recipe(**changes)), samples.lock(), files), TEMPLATE)


@pytest.mark.parametrize("recipe", sorted(samples.RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_committed_dockerfile_of_a_recipe_is_current(recipe: Path) -> None:
    committed = samples.ROOT / "dockerfiles" / f"{recipe.stem}.Dockerfile"
    fresh = render(read_plan(recipe)[1], TEMPLATE)
    assert committed.read_text() == fresh, f"run: imagebuilder render {recipe} -o {committed}"


@pytest.mark.parametrize("recipe", sorted(samples.RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_linter_finds_nothing_but_what_has_a_reason(recipe: Path) -> None:
    place = samples.ROOT / "dockerfiles" / f"{recipe.stem}.Dockerfile"
    linter = Path(sys.executable).parent / "hadolint"
    result = process.run([linter, "--no-color", place], timeout=60, cwd=samples.ROOT, check=False)
    assert (result.code, result.stdout) == (0, "")


def test_the_linter_would_find_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:trixie\nRUN cd /tmp && apt-get install x\n")
    linter = Path(sys.executable).parent / "hadolint"
    settings = samples.ROOT / ".hadolint.yaml"
    result = process.run(
        [linter, "--config", settings, tmp_path / "Dockerfile"], timeout=60, cwd=tmp_path, check=False
    )
    assert result.code == 1
    assert "DL3003" in result.stdout


def test_an_example_of_cuda_11_renders_with_the_libraries_of_its_torch_and_an_older_gcc() -> None:
    text = render(read_plan(samples.ROOT / "examples" / "recipes" / "cuda11-torch.yaml")[1], TEMPLATE)
    for wheel in ("torch==2.0.1", "nvidia-cudnn-cu11==8.5.0.96", "nvidia-nccl-cu11==2.14.3"):
        assert f"'{wheel} --hash=sha256:" in text
    assert "    gcc-11=11.3.0-12 \\\n" in text
    assert "export NVIDIA_REQUIRE_CUDA='cuda>=11.7'" in text


def test_every_package_has_an_exact_version_and_every_wheel_a_hash() -> None:
    text = rendered()
    assert "    openmpi-bin=5.0.7-1 \\\n" in text
    assert re.search(r"'torch==2\.10\.0 --hash=sha256:[0-9a-f]{64}'", text)
    assert "--require-hashes" in text


def test_each_layer_of_wheels_is_a_stage_of_its_own_that_the_image_copies() -> None:
    text = rendered()
    stages = re.findall(r"^FROM installer AS (\S+)$", text, re.MULTILINE)
    copied = re.findall(r"^COPY --link --from=(\S+) /out/ /$", text, re.MULTILINE)
    assert stages == copied
    assert len(stages) == 2


def test_instructions_stand_on_lines_of_their_own() -> None:
    for word in ("ENV", "LABEL", "EXPOSE", "USER", "WORKDIR", "ENTRYPOINT"):
        assert len(re.findall(rf"^{word} ", rendered(), re.MULTILINE)) >= 1


def test_a_value_cannot_expand_or_break_out_of_its_quotes() -> None:
    assert r'X="a \"b\" \$HOME \\"' in rendered(env={"X": 'a "b" $HOME \\'})


def test_files_folders_and_links_arrive_with_their_modes() -> None:
    text = rendered()
    assert "/etc/motd\nno newline at the end\nIMAGEBUILDER_END_OF_FILE\n" in text
    assert "install -d -m 0755 '/var/lib/job folder'" in text
    assert "ln -sfn /usr/bin/x /usr/local/bin/x" in text


def test_no_frontend_is_fetched_and_no_place_is_named() -> None:
    assert "# syntax=" not in rendered()
    # A folder in the place of the base is this host's, not a place to fetch from.
    assert "://" not in rendered().replace("oci-layout://FOLDER", "")
