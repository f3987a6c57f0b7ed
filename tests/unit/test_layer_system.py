"""The OS layer: the order of installation, what mmdebstrap is told, and what its failures mean."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from imagebuilder import plan as plans
from imagebuilder.core import process
from imagebuilder.core.progress import no_advance
from imagebuilder.debian import suites
from imagebuilder.errors import BuildError, EnvironmentFault, LockError
from imagebuilder.host import aptmirrors
from imagebuilder.layers import archive, hooks
from imagebuilder.layers.system import debs as order
from imagebuilder.layers.system import install
from imagebuilder.layers.system.install import build_os_layer, build_os_parts
from imagebuilder.lock.model import Deb
from imagebuilder.plan import OsLayer, User
from imagebuilder.store import DamagedDownloadError, Store
from tests.support import contents


def package(
    name: str, *, depends: str = "", pre: str = "", provides: str = "", extra: str = ""
) -> order.Package:
    return order.parse_package(
        f"Package: {name}\nDepends: {depends}\nPre-Depends: {pre}\nProvides: {provides}\n{extra}\n"
    )


def test_relations_are_read_as_names() -> None:
    read = package("a", depends="libc6 (>= 2.36), b:any | c (<< 1)", pre="d [amd64]", provides="e (= 1), f")
    assert read.depends == (("libc6",), ("b", "c"))
    assert read.pre_depends == (("d",),)
    assert read.provides == ("e", "f")
    assert not read.essential


def test_essential_packages_and_all_that_they_need_come_first() -> None:
    found = order.rounds(
        [
            package("zlib"),
            package("bash", depends="base, shell-data", extra="Essential: yes"),
            package("data", provides="shell-data"),
            package("base", pre="zlib"),
            package("python3", depends="zlib"),
        ]
    )
    assert found == (("base", "bash", "data", "zlib"), ("python3",))


def test_what_a_package_needs_before_it_is_unpacked_is_in_an_earlier_round() -> None:
    found = order.rounds(
        [
            package("bash", extra="Essential: yes"),
            package("a", pre="m"),
            package("m", depends="n", pre="x | z"),
            package("n"),
            package("z"),
        ]
    )
    assert found == (("bash",), ("z",), ("m", "n"), ("a",))


def test_a_base_is_what_is_essential_or_named_and_what_these_need() -> None:
    packages = [
        package("libc6"),
        package("dash", depends="libc6", extra="Essential: yes"),
        package("apt", depends="libapt | other", pre="keys"),
        package("libapt", depends="libc6"),
        package("keyring", provides="keys"),
        package("openmpi", depends="apt"),
    ]
    assert order.base(packages, ["apt", "not-there"]) == {"libc6", "dash", "apt", "libapt", "keyring"}


def test_the_order_does_not_depend_on_that_of_the_packages() -> None:
    packages = [
        package("bash", extra="Essential: yes"),
        package("one", provides="x"),
        package("two", provides="x"),
        package("user", pre="x"),
    ]
    assert order.rounds(packages) == order.rounds(packages[::-1])


def test_pre_dependencies_in_a_circle_do_not_hang() -> None:
    found = order.rounds([package("a", pre="b"), package("b", pre="a")])
    assert found == (("a", "b"),)


# Stands in for the tools: mmdebstrap keeps its arguments and environment, then writes the tar it was given.
FAKE_MMDEBSTRAP = """\
#!/bin/sh
here=$(dirname "$0")
case $1 in
--version) exit 0 ;;
--unshare-helper) cat "$here/helper_says" >&2; exit "$(cat "$here/helper_code")" ;;
esac
printf '%s\\n' "$@" >"$here/argv"
env >"$here/env"
for word; do
    case $word in
    --setup-hook=copy-in*) folder=${word#*copy-in }; cp -r "${folder% /}" "$here/handed" ;;
    --setup-hook=cp*) folder=${word#*cp -R }; cp -r "${folder% *}" "$here/handed" ;;
    *.tar) cp "$here/tar" "$word" ;;
    esac
done
if [ -n "$IMAGEBUILDER_MEMORY" ] && [ -s "$here/full" ]; then
    rm -r "$here/handed"
    cat "$here/full" >&2
    exit 25
fi
cat "$here/says" >&2
exit "$(cat "$here/code")"
"""
FAKE_DPKG_DEB = (
    '#!/bin/sh\nprintf "Package: %s\\nVersion: 1\\nArchitecture: amd64\\nEssential: yes\\n" "$(cat "$2")"\n'
)
# Of `perl confine.pl tools FOLDER COMMAND...` it keeps the words, and runs the command.
FAKE_PERL = """\
#!/bin/sh
here=$(dirname "$0")
printf '%s\\n' "$@" >"$here/confined"
cat "$here/confine_says" >&2
[ ! -s "$here/confine_says" ] || exit 1
shift 3
exec "$@"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put fake tools first on the path; files beside them hold their answers."""
    folder = tmp_path / "tools"
    folder.mkdir()
    scripts = {"mmdebstrap": FAKE_MMDEBSTRAP, "dpkg-deb": FAKE_DPKG_DEB, "perl": FAKE_PERL}
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    answers = {"says": "", "code": "0", "helper_says": "", "helper_code": "0", "confine_says": ""}
    for name, text in answers.items():
        (folder / name).write_text(text)
    with tarfile.open(folder / "tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("etc/x"), io.BytesIO())
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    mirrors = suites.Mirrors(main="http://archive.example/debian", security="http://secure.example/debian")
    monkeypatch.setattr(aptmirrors, "default", lambda *_words: mirrors)
    return folder


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def layer(names: Iterable[str] = ("bash", "python3")) -> OsLayer:
    debs = tuple(
        Deb(name=name, version="1", architecture="amd64", path=f"pool/{name}", size=1, sha256=digest(name))
        for name in names
    )
    return OsLayer(
        distribution="debian",
        suite="trixie",
        architecture="amd64",
        debs=debs,
        user=User(name="trainer", uid=1000, home="/home/trainer"),
        python="3.13",
    )


def files(tmp_path: Path, wanted: OsLayer) -> dict[str, Path]:
    found = {}
    for deb in wanted.debs:
        found[deb.sha256] = tmp_path / deb.name
        found[deb.sha256].write_text(deb.name)
    return found


def build(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    record = build_os_layer(layer(), files(tmp_path, layer()), store, no_advance)
    assert store.has_blob(record.digest, record.size)
    return store


def test_the_tar_becomes_a_layer_and_no_temporary_file_remains(tools: Path, tmp_path: Path) -> None:
    store = build(tmp_path)
    assert (tools / "argv").exists()
    assert list((store.root / "work").iterdir()) == []


def test_one_run_gives_a_layer_for_each_part(tools: Path, tmp_path: Path) -> None:
    listed = b"/.\n/etc\n/etc/x\n"
    with tarfile.open(tools / "tar", "w") as tar:
        for name, content in {
            "./etc/x": b"",
            "./var/lib/dpkg/info/bash.list": listed,
            "./var/lib/dpkg/info/bash.md5sums": b"d41d8cd98f00b204e9800998ecf8427e  etc/x\n",
            "./var/lib/dpkg/status": b"Package: bash\n",
        }.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    store = Store(tmp_path / "store")
    parts = plans.parts(layer())
    assert [part.name for part in parts] == ["base", "other", plans.STATE]
    read: list[int] = []
    records = build_os_parts(parts, files(tmp_path, layer()), store, read.append)
    found = [sorted(contents.of_layers([store.blob(record.digest)])) for record in records]
    info = "var/lib/dpkg/info/bash"
    assert found == [["etc/x", f"{info}.list", f"{info}.md5sums"], [], ["var/lib/dpkg/status"]]
    assert sum(read) == 7 * 512 + len(records) * len(archive.TAR_END)
    assert list((store.root / "work").iterdir()) == []


def test_mmdebstrap_fetches_nothing_and_solves_nothing(tools: Path, tmp_path: Path) -> None:
    build(tmp_path)
    argv = (tools / "argv").read_text().splitlines()
    assert "--variant=custom" in argv
    assert any(word.startswith("--skip=update,") for word in argv)
    assert not any(word.startswith("--include") for word in argv)
    assert not any("http" in word for word in argv)
    assert f"--mode={'root' if os.geteuid() == 0 else 'unshare'}" in argv


def test_time_zone_and_locale_of_the_host_do_not_count(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12345")
    build(tmp_path)
    env = (tools / "env").read_text().splitlines()
    assert {"TZ=UTC", "LC_ALL=C.UTF-8", "SOURCE_DATE_EPOCH=0", "IMAGEBUILDER_USER=trainer"} <= set(env)


def test_the_image_gets_the_distribution_s_own_mirrors_and_the_hooks_the_packages(
    tools: Path, tmp_path: Path
) -> None:
    build(tmp_path)
    handed = tools / "handed"
    assert "URIs: http://archive.example/debian\n" in (handed / "sources").read_text()
    assert (handed / "rounds" / "00").read_text() == "bash.deb\npython3.deb\n"
    assert (handed / "debs" / "python3.deb").read_text() == "python3"
    assert {hook.name for hook in (handed / "hooks").iterdir()} >= {
        "extract.sh",
        "confine.pl",
        "inside.sh",
        "install.sh",
        "finish.sh",
    }


def test_a_file_that_holds_another_package_is_refused(tools: Path, tmp_path: Path) -> None:
    python2 = tmp_path / "python2"
    python2.write_text("python2")
    wrong = layer()
    wrong = dataclasses.replace(
        wrong,
        debs=tuple(
            deb.model_copy(update={"sha256": digest("python2")}) if deb.name == "python3" else deb
            for deb in wrong.debs
        ),
    )
    debs = {**files(tmp_path, layer()), digest("python2"): python2}
    with pytest.raises(LockError, match=r"pool/python3 holds python2 1 amd64, not python3 1 amd64"):
        build_os_layer(wrong, debs, Store(tmp_path / "store"), no_advance)
    assert not (tools / "argv").exists()


def test_a_package_that_rotted_in_the_store_is_not_installed(tools: Path, tmp_path: Path) -> None:
    debs = files(tmp_path, layer())
    debs[digest("python3")].write_text("pyth0n3")
    with pytest.raises(DamagedDownloadError, match="is not the locked file"):
        build_os_layer(layer(), debs, Store(tmp_path / "store"), no_advance)
    assert not (tools / "argv").exists()


def test_a_failed_package_is_named_with_the_end_of_its_log(tools: Path, tmp_path: Path) -> None:
    (tools / "code").write_text("25")
    (tools / "says").write_text(
        "Setting up tini (0.19) ...\nSetting up broken (1.0) ...\nno such device\n"
        "dpkg: error processing package broken (--install):\n"
        " installed broken package post-installation script subprocess returned error exit status 3\n"
        "I: removing tempdir\nE: mmdebstrap failed to run\n"
    )
    with pytest.raises(BuildError) as caught:
        build(tmp_path)
    text = str(caught.value)
    assert "the package broken could not be installed" in text
    assert "no such device" in text
    assert "exit status 3" in text
    assert "tini" not in text
    assert list((tmp_path / "store" / "work").iterdir()) == []


def test_a_signal_that_ended_the_installation_is_named(tools: Path, tmp_path: Path) -> None:
    (tools / "code").write_text("25")
    said = "I: main() received signal TERM: waiting for setup..."
    (tools / "says").write_text(f"I: running hooks\n{said}\nE: mmdebstrap failed to run\n")
    with pytest.raises(BuildError) as caught:
        build(tmp_path)
    assert caught.value.problems[0].message == f"making the system failed:\n{said}"


def test_a_host_without_namespaces_is_told_so(tools: Path, tmp_path: Path) -> None:
    (tools / "code").write_text("25")
    (tools / "says").write_text("unshare: unshare failed: Operation not permitted\n")
    with pytest.raises(EnvironmentFault, match="seccomp=unconfined"):
        build(tmp_path)


def test_a_user_s_mmdebstrap_hides_the_host_before_anything_runs(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    build(tmp_path)
    hooks = [word for word in (tools / "argv").read_text().splitlines() if word.startswith("--setup-hook=")]
    assert hooks[0].startswith("--setup-hook=copy-in ")
    assert hooks[1] == '--setup-hook=perl "$1/imagebuilder/hooks/confine.pl" around "$1"'


def test_root_installs_as_another_user_in_namespaces_of_their_own(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    build(tmp_path)
    script, how, folder, program, mode, *_ = (tools / "confined").read_text().splitlines()
    assert (script, how) == (f"{folder}/imagebuilder/hooks/confine.pl", "tools")
    assert (program, mode) == ("mmdebstrap", "--mode=root")
    # What mmdebstrap would mount in the root is the host's.
    argv = (tools / "argv").read_text().splitlines()
    (skipped,) = (word for word in argv if word.startswith("--skip="))
    assert "chroot/mount" in skipped.removeprefix("--skip=").split(",")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def _room(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(install, "_room", lambda _sandbox: size)


@pytest.mark.usefixtures("root")
def test_the_root_is_in_memory_where_there_is_twice_the_room(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two packages of 1 GiB each, as files and as archives, and the spare 256 MiB.
    (tools / "dpkg-deb").write_text(FAKE_DPKG_DEB.replace("Essential", "Installed-Size: 1048576\\nEssential"))
    needed = (4 << 30) + (256 << 20)
    _room(monkeypatch, 2 * needed)
    build(tmp_path)
    env = (tools / "env").read_text().splitlines()
    assert f"IMAGEBUILDER_MEMORY={needed}" in env
    assert next(line for line in env if line.startswith("TMPDIR=")).endswith("/roots")
    _room(monkeypatch, 2 * needed - 2)
    shutil.rmtree(tools / "handed")
    build_os_layer(layer(), files(tmp_path, layer()), Store(tmp_path / "second"), no_advance)
    env = (tools / "env").read_text().splitlines()
    assert not any(line.startswith("IMAGEBUILDER_MEMORY=") for line in env)
    assert not any(line.startswith("TMPDIR=") and line.endswith("/roots") for line in env)


@pytest.mark.usefixtures("root")
def test_packages_that_need_more_memory_than_they_state_are_installed_on_the_disk(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _room(monkeypatch, 1 << 40)
    (tools / "full").write_text("dpkg: error: cannot copy extracted data: No space left on device\n")
    build(tmp_path)
    assert "IMAGEBUILDER_MEMORY" not in (tools / "env").read_text()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 8 << 30),
        ({"memory.max": "max"}, 8 << 30),
        # A limit of 2 GiB, of which 1 GiB is used, half of that for cached files.
        ({"memory.max": str(2 << 30), "memory.current": str(1 << 30)}, (1 << 30) + (512 << 20)),
        ({"memory.max": "1", "memory.current": str(1 << 30)}, 0),
    ],
)
def test_the_room_is_that_of_the_machine_or_of_the_closest_limit(
    tmp_path: Path, limits: Mapping[str, str], expected: int
) -> None:
    script = Path(hooks.__file__).parent / "system" / "room.sh"
    above = tmp_path / "sys/fs/cgroup/ci.slice"
    for name in ("proc/self/cgroup", "proc/meminfo", "sys/fs/cgroup/ci.slice/job/memory.max"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {8 << 20} kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/ci.slice/job\n")
    for name, text in {**limits, "memory.stat": f"anon 7\ninactive_file {512 << 20}"}.items():
        (above / name).write_text(f"{text}\n")
    said = process.run(["sh", script, tmp_path], timeout=10).stdout
    # mawk rounds numbers that need more than 31 bits to six digits.
    assert int(said) == pytest.approx(expected, rel=1e-5)


def test_a_package_becomes_a_plain_archive_with_the_same_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, folder = tmp_path / "bin", tmp_path / "a root" / "imagebuilder"
    for part in ("debs", "rounds", "hooks"):
        (folder / part).mkdir(parents=True)
    tools.mkdir()
    (folder / "rounds" / "00").write_text("odd.deb\neven.deb\nbroken.deb\n")
    for name in ("odd", "even", "broken"):
        (folder / "debs" / f"{name}.deb").write_text(name)
    (tools / "dpkg-deb").write_text(
        '#!/bin/sh\n[ "$(cat "$2")" != broken ] || exit 2\nprintf %s "${1#--}$(cat "$2")"\n'
    )
    (tools / "dpkg-deb").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    script = Path(hooks.__file__).parent / "system" / "ahead.pl"
    process.run(["perl", script, "first", folder.parent], timeout=30)
    assert (folder / "debs" / "broken.deb").read_text() == "broken"
    for name in ("odd", "even"):
        assert _members((folder / "debs" / f"{name}.deb").read_bytes()) == {
            "debian-binary": b"2.0\n",
            "control.tar": f"ctrl-tarfile{name}".encode(),
            "data.tar": f"fsys-tarfile{name}".encode(),
        }
    assert sorted(path.name for path in (folder / "debs").iterdir()) == ["broken.deb", "even.deb", "odd.deb"]


def test_unpacking_in_the_background_ends_when_it_is_told_and_at_what_dpkg_has_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, tools = tmp_path / "root", tmp_path / "bin"
    folder = root / "imagebuilder"
    for place in (folder / "debs", folder / "rounds", folder / "hooks", root / "var/lib/dpkg/info", tools):
        place.mkdir(parents=True)
    (folder / "rounds" / "00").write_text("first.deb\n")
    (folder / "rounds" / "01").write_text("a.deb\nb.deb\nc.deb\n")
    for name in ("first", "a", "b", "c"):
        (folder / "debs" / f"{name}.deb").write_text(name)
    (root / "var/lib/dpkg/info/b:amd64.list").write_text("")
    (tools / "dpkg-deb").write_text('#!/bin/sh\nexec cat "$2"\n')
    (tools / "dpkg-deb").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    script = Path(hooks.__file__).parent / "system" / "ahead.pl"
    process.run(["perl", script, "start", root], timeout=30)
    deadline = time.monotonic() + 30
    while (folder / "debs/c.deb").read_bytes() == b"c" and time.monotonic() < deadline:
        time.sleep(0.01)
    process.run(["perl", script, "stop", root], timeout=30)
    assert (folder / "debs/c.deb").read_bytes().startswith(b"!<arch>\n")
    assert [(folder / f"debs/{name}.deb").read_text() for name in ("first", "a", "b")] == ["first", "a", "b"]
    # A program that hangs does not hold up the end.
    (root / "var/lib/dpkg/info/b:amd64.list").unlink()
    (tools / "dpkg-deb").write_text("#!/bin/sh\nexec sleep 600\n")
    process.run(["perl", script, "start", root], timeout=30)
    process.run(["perl", script, "stop", root], timeout=30)
    assert (folder / "debs/b.deb").read_text() == "b"


def _members(archive: bytes) -> dict[str, bytes]:
    assert archive.startswith(b"!<arch>\n")
    found, at = {}, 8
    while at < len(archive):
        header = archive[at : at + 60]
        assert header.endswith(b"`\n")
        size = int(header[48:58])
        found[header[:16].decode().strip()] = archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    return found


def test_a_host_that_gives_root_no_user_namespace_gets_no_plain_chroot_instead(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tools / "confine_says").write_text("confine: the kernel refuses unshare: No space left on device\n")
    with pytest.raises(EnvironmentFault, match="No space left on device") as caught:
        build(tmp_path)
    hint = caught.value.problems[0].hint
    assert "max_user_namespaces" in hint
    assert "--tools container" in hint
    assert not (tools / "argv").exists()


def test_a_base_without_a_shell_is_not_taken_for_a_host_without_namespaces(
    tools: Path, tmp_path: Path
) -> None:
    (tools / "code").write_text("25")
    (tools / "says").write_text("confine: cannot run sh: No such file or directory\n")
    with pytest.raises(BuildError, match="cannot run sh"):
        build(tmp_path)


def test_no_hook_runs_a_program_of_the_root_but_inside() -> None:
    """After the first command nothing in the root is trusted: neither its programs nor its links."""
    layers = Path(hooks.__file__).parent
    for script in (*layers.glob("system/*.sh"), *layers.glob("built/*.sh")):
        assert not re.search(r"\b(chroot|unshare|nsenter)\b", script.read_text()), script
    for name in ("system/finish.sh", "system/finish_upper.sh", "built/compile.sh"):
        lines = (layers / name).read_text().splitlines()
        touched = [
            line.strip() for line in lines if '"$root' in line and not line.strip().startswith((".", "#"))
        ]
        allowed = {
            'rm -rf "$root/imagebuilder"',
            'mkdir "$root/imagebuilder/product"',
            'for layer in "$root"/imagebuilder/below/*; do',
        }
        assert set(touched) <= allowed, name


def test_a_machine_that_cannot_run_the_packages_programs_is_told_so(tools: Path, tmp_path: Path) -> None:
    (tools / "code").write_text("2")
    (tools / "says").write_text("chroot: failed to run command 'sh': Exec format error\n")
    with pytest.raises(EnvironmentFault, match="qemu-user-static"):
        build(tmp_path)


def test_a_user_without_subordinate_ids_is_told_before_the_work_begins(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tools / "helper_code").write_text("25")
    (tools / "helper_says").write_text("W: /etc/subuid is empty\n")
    with pytest.raises(EnvironmentFault) as caught:
        build(tmp_path)
    assert "/etc/subuid is empty" in str(caught.value)
    assert "uidmap" in str(caught.value)
    assert not (tools / "argv").exists()


def test_without_mmdebstrap_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(EnvironmentFault, match="apt-get install mmdebstrap"):
        build(tmp_path)
