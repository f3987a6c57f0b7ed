"""A host without apt and mmdebstrap: they run in a container, to the same bytes, and nothing of it stays."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.core.progress import no_advance
from imagebuilder.errors import EnvironmentFault, LockError
from imagebuilder.host.engine import Engine
from imagebuilder.host.site import Site, ToolsSite, detect
from imagebuilder.host.tools import Tools, choose_tools
from imagebuilder.host.tools.image import REPOSITORY
from imagebuilder.layers.system.install import build_os_layer
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, SmallOs
from tests.support import escape, programs, smokeruns
from tests.support.escape import ATTEMPTS, ON_A_BUILD

PROGRAM = Path(sys.executable).parent / "imagebuilder"
NAME = f"imagebuilder-test-tools-{os.getpid()}"
# Holds a container and has work going on in it, until it is killed.
HOLD = """
import sys
from pathlib import Path
from imagebuilder.host.site import Site, ToolsSite
from imagebuilder.host.tools import Tools
tools = Tools(site=Site(tools=ToolsSite(image=sys.argv[1])))
with tools.open(Path(sys.argv[2]), network=False) as sandbox:
    sandbox.run(["sleep", "600"], timeout=600)
"""


@pytest.fixture(scope="module")
def site_file(
    connected: Engine, small_os: SmallOs, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A site whose tools come from an image of Debian without mmdebstrap: the first use installs it."""
    client = connected.client
    client.api.import_image_from_file(str(store.blob(small_os.record.digest)), repository=NAME)
    path = tmp_path_factory.mktemp("site") / "site.yaml"
    path.write_text(f"tools: {{image: '{NAME}:latest'}}\n")
    before = {tag for image in client.images.list(name=REPOSITORY) for tag in image.tags}
    yield path
    made = {tag for image in client.images.list(name=REPOSITORY) for tag in image.tags} - before
    for name in (*made, NAME):
        client.images.remove(name, force=True)


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH with neither apt nor dpkg nor mmdebstrap on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "env", "git"):
        (folder / name).symlink_to(shutil.which(name) or "/nowhere")
    return str(folder)


@pytest.fixture
def tools(site_file: Path) -> Tools:
    return choose_tools(detect(site_file, tools="container"))


def test_a_host_without_the_tools_writes_the_same_lock(
    site_file: Path, bare_path: str, tmp_path: Path
) -> None:
    locks = {}
    for where, words, path in (
        ("host", (), os.environ["PATH"]),
        ("container", ("--site", site_file), bare_path),
    ):
        recipe = tmp_path / where / "cpu-mpi.yaml"
        recipe.parent.mkdir()
        shutil.copy(ROOT / "recipes" / recipe.name, recipe)
        result = process.run([PROGRAM, "-v", "lock", recipe, *words], timeout=600, env={"PATH": path})
        assert ("run in a container" in result.stderr) == (where == "container")
        locks[where] = recipe.with_suffix(".lock").read_bytes()
    assert locks["container"] == locks["host"]


def test_the_os_layer_made_in_a_container_is_the_same_bytes(
    small_os: SmallOs, tools: Tools, tmp_path: Path
) -> None:
    """Although these are another release of mmdebstrap and tar, wherever this host is not Debian trixie."""
    store = Store(tmp_path / "store")
    assert build_os_layer(small_os.layer, small_os.debs, store, no_advance, tools) == small_os.record
    assert list((store.root / "work").iterdir()) == []


def test_a_package_s_script_does_not_get_out_of_the_container_either(
    small_os: SmallOs, tools: Tools, tmp_path: Path
) -> None:
    (folder := tmp_path / "outside").mkdir()
    store = Store(tmp_path / "store")
    with escape.outside(folder) as outside:
        program = outside.program(f"/{escape.REPORT}", hooks=True)
        layer, debs = escape.hostile(small_os.layer, small_os.debs, program, tmp_path)
        found = escape.told(build_os_layer(layer, debs, store, no_advance, tools), store)
        outside.assert_untouched()
    # The container's /proc/sys cannot be written: there a user namespace within the namespace stays possible.
    escape.assert_held(found, (ATTEMPTS | ON_A_BUILD) - {"user namespace"}, installing=True)


def test_the_container_can_neither_mount_nor_make_devices(tools: Tools, tmp_path: Path) -> None:
    with tools.open(tmp_path, network=False) as sandbox:
        status = sandbox.run(["cat", "/proc/self/status"], timeout=60).stdout
        (said,) = (line for line in status.splitlines() if line.startswith("CapBnd:"))
        # CHOWN, DAC_OVERRIDE, FOWNER, SETGID, SETUID, SETFCAP; not SYS_ADMIN (21), not MKNOD (27).
        assert int(said.split()[1], 16) == sum(1 << number for number in (0, 1, 3, 6, 7, 31))
        shown = sandbox.run(
            ["sh", "-c", "head -c 1 /proc/kcore | wc -c; ls /sys/firmware"], timeout=60
        ).stdout
        assert shown.split() == ["0"]
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
            assert sandbox.run(["sh", "-c", f": >>{path}"], timeout=60, check=False).code != 0


def test_a_file_that_holds_another_package_is_refused_in_a_container_too(
    small_os: SmallOs, tools: Tools, tmp_path: Path
) -> None:
    others = [deb for deb in small_os.layer.debs if deb.name != "bash"]
    (bash,) = (deb for deb in small_os.layer.debs if deb.name == "bash")
    layer = dataclasses.replace(small_os.layer, debs=(*others, bash.model_copy(update={"name": "brush"})))
    with pytest.raises(LockError, match=r"holds bash \S+ amd64, not brush "):
        build_os_layer(layer, small_os.debs, Store(tmp_path / "store"), no_advance, tools)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_container_ends_with_the_program_however_that_ends(
    sent: signal.Signals, tools: Tools, connected: Engine, tmp_path: Path
) -> None:
    assert tools.site is not None
    words: list[str | Path] = [sys.executable, "-c", HOLD, tools.site.tools.image, tmp_path]
    with programs.running(words, limit=120) as child:
        smokeruns.await_nodes(connected, child.pid)
        time.sleep(0.5)
        child.send_signal(sent)
        child.wait(60)
    until = time.monotonic() + 30
    while smokeruns.left(connected, child.pid):
        assert time.monotonic() < until, "a container is still there"
        time.sleep(0.2)


def test_a_command_that_outruns_its_limit_is_ended(tools: Tools, connected: Engine, tmp_path: Path) -> None:
    started = time.monotonic()
    with (
        pytest.raises(process.CommandError, match=r"`sleep 100` did not end within 1 s"),
        tools.open(tmp_path, network=False) as sandbox,
    ):
        sandbox.run(["sleep", "100"], timeout=1)
    assert time.monotonic() - started < 30
    assert not smokeruns.left(connected, os.getpid())


def test_files_go_in_and_out_and_commands_are_told_apart(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "file").write_text("grüße")
    with tools.open(tmp_path, network=False) as sandbox:
        sandbox.copy_in("in")
        sandbox.run(
            ["sh", "-c", "mkdir out && cat in/deep/file in/deep/file >out/twice && id -u >&2"], timeout=60
        )
        sandbox.copy_out("out")
        assert (tmp_path / "out" / "twice").read_text() == "grüßegrüße"
        failed = sandbox.run(["sh", "-c", "echo no >&2; exit 3"], timeout=60, check=False)
        assert (failed.code, failed.stderr) == (3, "no\n")
        assert sandbox.run(["env"], timeout=60, env={"X": "1 2"}).stdout.count("X=1 2\n") == 1
        with pytest.raises(EnvironmentFault, match="`no-such-tool` is not in the image of the tools"):
            sandbox.run(["no-such-tool"], timeout=60)
        # Without a network: not even the loopback has an address.
        assert sandbox.run(["cat", "/proc/net/route"], timeout=60).stdout.count("\n") <= 1


def test_an_image_that_cannot_be_had_names_the_setting(connected: Engine, tmp_path: Path) -> None:
    tools = Tools(site=Site(tools=ToolsSite(image="127.0.0.1:1/none:1")))
    with pytest.raises(EnvironmentFault) as caught, tools.open(tmp_path, network=False):
        pass
    assert f"which {connected.kind} does not have and cannot pull" in str(caught.value)
    assert "tools: {image: ...}" in str(caught.value)


def test_without_tools_and_without_an_engine_both_ways_out_are_named(bare_path: str, tmp_path: Path) -> None:
    recipe = tmp_path / "cpu-mpi.yaml"
    shutil.copy(ROOT / "recipes" / recipe.name, recipe)
    nowhere = {"PATH": bare_path, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    result = process.run([PROGRAM, "lock", recipe], timeout=60, env=nowhere, check=False)
    assert result.code == EnvironmentFault.exit_code
    assert "no container engine answers" in result.stderr
    assert "start Docker or Podman, or install the tools" in result.stderr
    assert "Traceback" not in result.stderr
    assert not recipe.with_suffix(".lock").exists()
