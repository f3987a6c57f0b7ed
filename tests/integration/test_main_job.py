"""The main job on real input: cuda12-torch built, proven on two nodes, pushed; and what it promises."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.core.process import Result
from imagebuilder.core.progress import no_advance
from imagebuilder.errors import INTERRUPTED, GateError, InputError
from imagebuilder.fetch import locked
from imagebuilder.host.site import detect
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.smoke.report import read
from imagebuilder.store import ImageRecord, Store, cache
from tests.integration.conftest import ROOT, Built
from tests.support import layers, programs
from tests.support.answers import built_image
from tests.support.answers import result as result_of
from tests.support.servers import registry_server

RECIPE = ROOT / "recipes" / "cuda12-torch.yaml"
PROGRAM = Path(sys.executable).parent / "imagebuilder"
PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s+[A-Za-z0-9+/=\s]{64}")


def imagebuilder(
    *words: str | Path, store: Store, check: bool = True, env: dict[str, str] | None = None
) -> Result:
    return process.run([PROGRAM, *words, "--store", store.root], timeout=3000, env=env, check=check)


def build(recipe: Path, store: Store, env: dict[str, str] | None = None) -> dict[str, object]:
    result = imagebuilder("build", recipe, "--json", "--progress", "lines", store=store, env=env)
    made: dict[str, object] = built_image(result.stdout)
    return made


def record(store: Store, name: str) -> ImageRecord:
    image = store.image(name)
    assert image is not None
    return image


@pytest.fixture(scope="module")
def image(store: Store) -> ImageRecord:
    """cuda12-torch, built here from its committed lock."""
    build(RECIPE, store)
    return record(store, "cuda12-torch")


@pytest.fixture(scope="module")
def proven(image: ImageRecord, store: Store) -> ImageRecord:
    """The same, with a smoke test that passed."""
    result = imagebuilder("smoke-test", RECIPE, "--mode", "cpu", store=store, check=False)
    assert result.code == 0, result.stdout + result.stderr
    return image


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """A registry of this module's own: what it holds is gigabytes, and goes when the module is done."""
    with tempfile.TemporaryDirectory(prefix="registry-") as folder, registry_server(Path(folder)) as running:
        yield running.host


def test_a_second_build_has_nothing_to_do_and_takes_no_time(image: ImageRecord, store: Store) -> None:
    # Of three, because other tests keep this host busy.
    again = [build(RECIPE, store) for _ in range(3)]
    assert {made["digest"] for made in again} == {image.manifest}
    assert {made["layers_made"] for made in again} == {0}
    assert min(float(str(made["seconds"])) for made in again) < 1.0


def test_the_two_node_proof_covers_every_layer_of_the_stack(proven: ImageRecord, store: Store) -> None:
    report = read(store.report(proven.manifest))
    status = {check.name: check.status for check in report.checks}
    assert report.passed
    assert report.mode == "cpu"
    assert any("NCCL not exercised" in caveat for caveat in report.caveats)
    skipped = {name for name, found in status.items() if found == "skipped"}
    unasked = {"transport", "nccl-tests", "own-training", "own-tests", "scaling"}
    assert skipped == unasked, "all others can run"
    assert set(status.values()) == {"passed", "skipped"}


def test_what_loads_is_what_the_lock_says(proven: ImageRecord, store: Store) -> None:
    lock = lockfile.read(locks.path_for(RECIPE)).sections[0]
    pins = next(c for c in read(store.report(proven.manifest)).checks if c.name == "pins")
    found = {name: entry["nodes"] for name, entry in pins.evidence.items() if name != "not asked"}
    assert set(found) == set(lock.pins)
    for name, parts in {
        "torch": 3,
        "cuda": 2,
        "cudnn": 3,
        "nccl": 3,
        "gcc": 3,
        "openmpi": 3,
        "python": 3,
    }.items():
        pinned = lock.pins[name].split(".")[:parts]
        for node in ("node0", "node1"):
            assert found[name][node].partition("+")[0].split(".") == pinned, (name, node, found[name])


def test_an_unproven_image_is_not_pushed_unless_that_is_said(
    store: Store, registry: str, tmp_path: Path
) -> None:
    recipe = copied(ROOT / "recipes" / "cpu-mpi.yaml", tmp_path, lambda text: text + "env: {UNPROVEN: '1'}\n")
    build_changed(recipe, store)
    refused = imagebuilder("push", recipe, f"{registry}/unproven", store=store, check=False)
    assert refused.code == GateError.exit_code
    assert "imagebuilder smoke-test" in refused.stderr
    imagebuilder("push", recipe, f"{registry}/unproven", "--untested", store=store)


def test_a_proven_image_is_pushed_and_another_nccl_pushes_nccl_alone(
    proven: ImageRecord, store: Store, registry: str, tmp_path: Path
) -> None:
    first = result_of(imagebuilder("push", RECIPE, f"{registry}/team/torch", "--json", store=store).stdout)
    assert first["digest"] == proven.manifest
    # The repository has another name than the recipe.
    assert "cuda12-torch-torch2.10.0-cu12.8-py3.13-trixie" in first["tags"]
    again = result_of(imagebuilder("push", RECIPE, f"{registry}/team/torch", "--json", store=store).stdout)
    assert again["pushed_bytes"] == 0

    other = copied(RECIPE, tmp_path, lambda text: text.replace('"2.27.5"', '"2.28.9"') + "override: [nccl]\n")
    build_changed(other, store)
    digests = {layer.record.digest for layer in proven.layers}
    changed = [
        layer
        for layer in record(store, f"{proven.name}-changed").layers
        if layer.record.digest not in digests
    ]
    assert [layer.component for layer in changed] == ["nccl"]
    words = ("push", other, f"{registry}/team/torch", "--untested", "--json")
    pushed = result_of(imagebuilder(*words, store=store).stdout)
    assert (pushed["moved"], set(pushed["tags"]) & set(first["tags"])) == ([], set())
    wheel = next(
        w for w in lockfile.read(locks.path_for(other)).sections[0].wheels if w.name == "nvidia-nccl-cu12"
    )
    assert wheel.version == "2.28.9"
    assert wheel.size < pushed["pushed_bytes"] < 1.02 * wheel.size


def build_changed(recipe: Path, store: Store) -> dict[str, object]:
    process.run([PROGRAM, "lock", recipe], timeout=600)
    return build(recipe, store)


def copied(recipe: Path, folder: Path, change: Callable[[str], str]) -> Path:
    shutil.copy(locks.path_for(recipe), folder)
    path = folder / recipe.name
    # Under a name of its own: tests after this one find the shipped recipe's image in the store as it was.
    renamed = recipe.read_text().replace(f"name: {recipe.stem}", f"name: {recipe.stem}-changed")
    path.write_text(change(renamed))
    return path


def test_ctrl_c_ends_the_installation_and_leaves_nothing_half_written(store: Store, tmp_path: Path) -> None:
    recipe = ROOT / "recipes" / "cpu-mpi.yaml"
    build(recipe, store)
    other = Store(tmp_path / "store")
    lock = lockfile.read(recipe.with_suffix(".lock")).sections[0]
    locked.copy((*lock.debs, *lock.wheels), store, other)
    command: list[str | Path] = [PROGRAM, "build", recipe, "--progress", "lines", "--store", other.root]
    with programs.running(command) as child:
        assert child.stderr is not None
        assert any(line.startswith("installing") for line in child.stderr)
        time.sleep(5)
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
        assert child.wait(60) == INTERRUPTED
    assert said.endswith("interrupted: no half-written file was left\n")
    assert "Traceback" not in said
    assert list((other.root / "work").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert other.image("cpu-mpi") is None
    assert cache.verify(other, no_advance) == ()


def test_no_layer_holds_a_private_key_or_anything_of_the_host(image: ImageRecord, store: Store) -> None:
    site = detect()
    places = [place.encode() for place in (site.index, *site.extra_indexes, *site.wheel_folders) if place]
    # A line from the middle of each authority that this host trusts besides everybody's.
    authorities = [
        path.read_bytes().split()[5] for path in Path("/usr/local/share/ca-certificates").glob("*.crt")
    ]
    keys, traces, seen = [], [], 0
    for path, content in layers.files(image, store):
        seen += 1
        if PRIVATE_KEY.search(content) or re.search(r"ssh_host_\w+_key$", path):
            keys.append(path)
        traces += [path for mark in (*places, *authorities) if mark in content]
    assert seen > 20_000
    assert keys == []
    assert traces == []


@pytest.mark.parametrize("recipe", ["cpu-mpi", "cuda12-torch"])
def test_people_can_install_more_on_top(recipe: str, built: Built) -> None:
    reference = built(ROOT / "recipes" / f"{recipe}.yaml")
    ca = detect().ca_bundle
    mounts = ["-v", f"{ca}:/ca.crt:ro", "-e", "SSL_CERT_FILE=/ca.crt", "-e", "PIP_CERT=/ca.crt"] if ca else []
    script = (
        "pip install -q --upgrade 'mpi4py==4.1.0' uv && uv pip install -q 'mpi4py==4.1.1' six && "
        "pip uninstall -q -y six && pip check && python -c 'import mpi4py; print(mpi4py.__version__)'"
    )
    command = ["docker", "run", "--rm", *mounts, reference, "bash", "-euc", script]
    assert process.run(command, timeout=600).stdout.split()[-1] == "4.1.1"


def test_modules_are_compiled_already_as_the_image_s_own_python_compiles_them(built: Built) -> None:
    reference = built(ROOT / "recipes" / "cpu-mpi.yaml")
    script = """
        site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        python -v -c 'import numpy' 2>/tmp/log
        grep -c "^# $site/.*[.]pyc matches $site/" /tmp/log
        # Nothing was compiled or written: no module's code came from its source.
        if grep -E "^# (wrote|could not create|bytecode is stale)|^# code object from .*[.]py'?$" /tmp/log |
            grep -F "$site/" >&2; then exit 1; fi
        # Once more by compileall, with the place in the image and the time of the sources there.
        mkdir -p /tmp/again/opt
        cp -a /opt/venv /tmp/again/opt/
        cd "/tmp/again$site"
        find . -name __pycache__ -prune -exec rm -r {} +
        PYTHONHASHSEED=0 python -W ignore -m compileall -qq -s /tmp/again -p / "/tmp/again$site" || true
        diff -r . "$site" >&2
    """
    command = ["docker", "run", "--rm", "--entrypoint", "bash", reference, "-euc", script]
    assert int(process.run(command, timeout=600).stdout) > 50


def test_a_changed_recipe_is_not_built_from_its_old_lock(store: Store, tmp_path: Path) -> None:
    recipe = copied(RECIPE, tmp_path, lambda text: text.replace('"2.27.5"', '"2.28.9"'))
    result = imagebuilder("build", recipe, store=store, check=False)
    assert result.code == 5
    assert f"run: imagebuilder lock {recipe}" in result.stderr


def test_bad_input_has_an_exit_code_of_its_kind_and_no_traceback(store: Store, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: bad\nbase: debian:trixie\npython: 3.13\npins: {cuad: '12.8'}\n")
    result = imagebuilder("build", bad, store=store, check=False)
    assert result.code == InputError.exit_code
    assert f"{bad}:3: python" in result.stderr
    assert "perhaps you meant `cuda`" in result.stderr
    assert "Traceback" not in result.stderr
