"""What squashfs files hold besides an image's own files, and what stops their making, without mksquashfs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.errors import EnvironmentFault, ImagebuilderError, InputError, StoreError
from imagebuilder.image import squashfs
from imagebuilder.store import Store
from tests.support.images import put_image

CONFIG = {
    "Env": ["PATH=/opt/venv/bin:/bin", "GREETING=it's $HOME, a=b"],
    "Entrypoint": ["/usr/bin/tini", "--", "/start it"],
    "Cmd": ["python", "-c", "print('hi')"],
    "WorkingDir": "/work space",
}


def test_enroot_is_told_folder_command_and_variables() -> None:
    files = squashfs.start_files(CONFIG, "sample:1 sha256:0")
    assert files["etc/fstab"] == ""
    assert files["etc/environment"] == "PATH=/opt/venv/bin:/bin\nGREETING=it's $HOME, a=b\n"
    assert files["etc/rc"] == (
        "# sample:1 sha256:0\n"
        "cd '/work space' && unset OLDPWD || exit 1\n"
        "if [ -s /etc/rc.local ]; then\n"
        "    . /etc/rc.local\n"
        "fi\n"
        "if [ $# -gt 0 ]; then\n"
        "    exec /usr/bin/tini -- '/start it' \"$@\"\n"
        "else\n"
        "    exec /usr/bin/tini -- '/start it' python -c 'print('\"'\"'hi'\"'\"')'\n"
        "fi\n"
    )


@pytest.mark.parametrize(
    ("config", "words", "said"),
    [
        ({"Entrypoint": ["echo", "a b"], "Cmd": ["c"]}, [], "a b c\n"),
        ({"Entrypoint": ["echo", "a b"], "Cmd": ["c"]}, ["d  e"], "a b d  e\n"),
        ({"Cmd": ["echo", "c"]}, ["echo", "$HOME;x"], "$HOME;x\n"),
        ({"Cmd": ["echo", "c"]}, [], "c\n"),
    ],
)
def test_a_shell_starts_what_docker_would(config: dict[str, object], words: list[str], said: str) -> None:
    script = squashfs.start_files(config, "sample")[".singularity.d/runscript"]
    assert subprocess.check_output(["sh", "-c", script, "run", *words], text=True) == said


def test_in_apptainer_the_users_variables_come_first_and_path_does_not() -> None:
    script = squashfs.start_files(CONFIG, "sample")[".singularity.d/env/10-docker2singularity.sh"]
    printing = f'{script}\nprintf "%s|%s" "$PATH" "$GREETING"'
    for given, greeting in (({}, "it's $HOME, a=b"), ({"GREETING": "own"}, "own")):
        env = {"PATH": "/usr/bin:/bin", **given}
        assert subprocess.check_output(["sh", "-c", printing], text=True, env=env) == (
            f"/opt/venv/bin:/bin|{greeting}"
        )


def test_squashfs_tools_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault) as caught:
        squashfs.require_possible(Path("x.sqsh"), ["linux/amd64"])
    assert str(caught.value) == (
        "--output x.sqsh: `mksquashfs` is not installed, which writes squashfs\n"
        "  -> apt-get install squashfs-tools (4.5 or newer), or name a file that ends in .tar"
    )
    assert caught.value.exit_code == 2


def test_squashfs_holds_one_image_of_our_own_engine() -> None:
    with pytest.raises(InputError) as caught:
        squashfs.require_possible(Path("x.sqsh"), ["linux/amd64", "linux/arm64"])
    assert str(caught.value) == (
        "--output x.sqsh: squashfs holds one image, but the recipe has 2: linux/amd64, linux/arm64\n"
        "  -> name one with --platform, as in --platform linux/amd64"
    )
    with pytest.raises(InputError) as caught:
        squashfs.require_possible(Path("x.sqsh"), ["linux/amd64"], embedded=False)
    assert str(caught.value) == (
        "--output x.sqsh: only images of the embedded engine are written as squashfs\n"
        "  -> leave out --engine docker, or name a file that ends in .tar"
    )


def _program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program in the place of mksquashfs; it is called with `- DRAFT -tar ...`."""
    folder.mkdir()
    (folder / "mksquashfs").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "mksquashfs").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_file_appears_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store, out = Store(tmp_path / "store"), tmp_path / "out" / "x.sqsh"
    image = put_image(store, [{"etc/rc": b"old", "bin/a": b"a"}, {"bin/.wh.a": b"", "bin/b": b"->a"}])
    _program(tmp_path / "good", monkeypatch, 'tar -t > "$2"')
    squashfs.export(image, store, out)
    # In the order in which they are unpacked: folders, files, links. Files of the image give way to ours.
    assert out.read_text().split() == [
        *(".singularity.d/", ".singularity.d/env/", "bin/", "dev/", "etc/", "proc/", "sys/", "tmp/"),
        *(".singularity.d/env/10-docker2singularity.sh", ".singularity.d/runscript"),
        *("etc/environment", "etc/fstab", "etc/rc", "bin/b"),
    ]
    before = out.read_bytes()
    _program(
        tmp_path / "bad",
        monkeypatch,
        'echo half > "$2"; echo "Write failed: No space left on device"; exit 1',
    )
    with pytest.raises(StoreError) as caught:
        squashfs.export(image, store, out)
    assert str(caught.value) == f"{out}: the disk is full"
    _program(tmp_path / "worse", monkeypatch, "echo half > \"$2\"; echo 'no such compressor' >&2; exit 3")
    with pytest.raises(process.CommandError, match=r"ended with 3\nno such compressor$"):
        squashfs.export(image, store, out)
    assert [path.name for path in out.parent.iterdir()] == ["x.sqsh"]
    assert out.read_bytes() == before


def test_a_layer_that_lies_stops_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store, out = Store(tmp_path / "store"), tmp_path / "out" / "x.sqsh"
    image = put_image(store, [{"../../etc/cron.d/x": b"* * * * * root sh"}])
    _program(tmp_path / "good", monkeypatch, 'cat > "$2"')
    with pytest.raises(ImagebuilderError, match="leads out of the image"):
        squashfs.export(image, store, out)
    assert list(out.parent.iterdir()) == []
    store.blob(image.layers[0].record.digest).unlink()
    with pytest.raises(StoreError, match="is missing from the store\n  -> build the image again"):
        squashfs.export(image, store, out)
