"""The doctor, on hosts that lack one thing or another."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagebuilder.core import process
from imagebuilder.core.process import CommandError, Result
from imagebuilder.debian import suites
from imagebuilder.errors import EnvironmentFault, FetchError
from imagebuilder.host.site import Site
from imagebuilder.resolve import uv as solver
from imagebuilder.smoke import engine as engines
from imagebuilder.workflow import doctor


class Host:
    """A host that has everything; a test takes away what it is about."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.store.mkdir()
        self.uid = 0
        self.missing: set[str] = set()
        self.failing: dict[str, str] = {}
        self.answers = {
            "docker buildx version": "github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3",
            "docker buildx inspect": "Name:   default\nDriver: docker\n",
            "docker version": "26.1.5+dfsg1",
            "docker info": '[["driver-type","io.containerd.snapshotter.v1"]]',
        }
        self.files = {"/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n'}
        self.free = 100 * 10**9
        self.site = Site()
        self.engine: Callable[[], Any] = engine
        self.index_error: Exception | None = None
        self.ran: list[str] = []

    def which(self, name: str, **_path: str) -> str | None:
        return None if name in self.missing else f"/usr/bin/{name}"

    def run(self, argv: Sequence[object], **options: object) -> Result:
        line = " ".join(map(str, argv))
        self.ran.append(line)
        said = next((text for start, text in self.failing.items() if line.startswith(start)), "")
        answer = next((text for start, text in self.answers.items() if line.startswith(start)), "")
        result = Result(argv=(line,), code=1 if said else 0, stdout=answer, stderr=said)
        if said and options.get("check", True):
            raise CommandError(result, "ended with 1")
        return result

    @contextlib.contextmanager
    def connect(self, _runtime: str) -> Iterator[Any]:
        yield self.engine()

    def solve(self, *_question: object) -> None:
        if self.index_error:
            raise self.index_error


def engine(*, store: str = "io.containerd.snapshotter.v1", gpus: bool = False) -> Any:
    info = {"DriverStatus": [["driver-type", store]], "DockerRootDir": "/var/lib/docker"}
    client = SimpleNamespace(info=lambda: info)
    return SimpleNamespace(
        client=client, kind="docker", version="26.1.5", gpu_routes=("cdi",) if gpus else ()
    )


def no_engine() -> Any:
    raise EnvironmentFault(
        "no container engine answers (tried unix:///var/run/docker.sock)",
        hint="start the engine that DOCKER_HOST names, or unset DOCKER_HOST",
    )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    fake = Host(tmp_path)
    keys = tmp_path / "keys.gpg"
    keys.touch()
    known = {"debian": SimpleNamespace(keyring=str(keys), keyring_package="debian-archive-keyring")}
    monkeypatch.setattr(suites, "known", lambda: known)
    monkeypatch.setattr(shutil, "which", fake.which)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=fake.free))
    monkeypatch.setattr(process, "run", fake.run)
    monkeypatch.setattr(os, "geteuid", lambda: fake.uid)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "_read", lambda path: fake.files.get(path, ""))
    monkeypatch.setattr(doctor, "detect", lambda: fake.site)
    monkeypatch.setattr(engines, "connect", fake.connect)
    monkeypatch.setattr(solver, "solve", fake.solve)
    monkeypatch.setenv("IMAGEBUILDER_STORE", str(fake.store))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return fake


def found(name: str) -> doctor.HostFinding:
    (finding,) = (finding for finding in doctor.examine() if finding.name == name)
    return finding


def test_a_complete_host_lacks_nothing(host: Host) -> None:
    findings = doctor.examine()
    assert {finding.status for finding in findings} == {"ok"}
    assert not any(finding.remedy or finding.packages for finding in findings)
    assert list(doctor.lines(findings))[-1] == "nothing is missing"
    assert {line for line in host.ran if not line.startswith("docker ")} == {
        "unshare --user --mount --pid --fork true"
    }


@pytest.mark.parametrize(
    ("tool", "verb", "package"),
    [
        ("apt-get", "lock", "apt"),
        ("mmdebstrap", "build", "mmdebstrap"),
        ("dpkg-deb", "build", "dpkg"),
        ("ssh-keygen", "keys", "openssh-client"),
    ],
)
def test_a_missing_tool_names_its_package_and_who_needs_it(
    host: Host, tool: str, verb: str, package: str
) -> None:
    host.missing.add(tool)
    host.engine = no_engine
    finding = found(tool)
    assert (finding.status, finding.packages) == ("missing", (package,))
    assert verb in finding.verbs
    assert finding.remedy == f"apt-get install {package}"


def test_cgroups_that_stop_podman_are_a_warning_with_the_command(host: Host) -> None:
    host.files |= {
        "/proc/self/mounts": "tmpfs /sys/fs/cgroup tmpfs rw\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw\n",
        "/proc/cgroups": "#subsys_name hierarchy num_cgroups enabled\nhugetlb 0 1 1\n",
        "/sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n",
    }
    finding = found("cgroups")
    assert (finding.status, finding.verbs) == ("warning", ("smoke-test --runtime podman",))
    assert "version 2 in /sys/fs/cgroup/unified still holds hugetlb" in finding.detail
    assert "mount -t cgroup -o hugetlb cgroup /sys/fs/cgroup/hugetlb" in finding.remedy
    host.missing.add("podman")
    assert "cgroups" not in {each.name for each in doctor.examine()}


def test_tools_that_a_container_has_are_not_missing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fedora or macOS, with Docker: nothing to do."""
    host.missing |= {"apt-get", "mmdebstrap", "dpkg-deb", "unshare", "newuidmap"}
    host.uid = 1000
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(suites, "known", lambda: pytest.fail("the image has the keys"))
    findings = doctor.examine()
    assert {finding.status for finding in findings} == {"ok"}
    assert "run in a container of docker" in next(f.detail for f in findings if f.name == "mmdebstrap")
    assert not any("mmdebstrap" in line or "unshare" in line for line in host.ran)


def test_on_debian_the_missing_tool_can_be_installed_although_a_container_has_it(host: Host) -> None:
    host.missing.add("mmdebstrap")
    finding = found("mmdebstrap")
    assert (finding.status, finding.packages) == ("warning", ("mmdebstrap",))
    assert found("apt-get").status == "ok"


def test_without_tools_and_without_an_engine_both_ways_out_are_named(host: Host) -> None:
    host.missing |= {"apt-get", "mmdebstrap"}
    host.engine = no_engine
    assert found("mmdebstrap").status == "missing"
    assert "systemctl start docker" in found("engine").remedy


def test_missing_archive_keys_are_a_package_too(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"debian": SimpleNamespace(keyring="/nowhere/keys.gpg", keyring_package="debian-archive-keyring")}
    monkeypatch.setattr(suites, "known", lambda: known)
    assert host.uid == 0
    assert found("debian keys").packages == ("debian-archive-keyring",)


def test_keys_of_another_distribution_are_only_looked_at(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.gpg").touch()
    known = {
        "debian": SimpleNamespace(
            keyring=str(tmp_path / "keys.gpg"), keyring_package="debian-archive-keyring"
        ),
        "ubuntu": SimpleNamespace(keyring="/nowhere/keys.gpg", keyring_package="ubuntu-keyring"),
    }
    monkeypatch.setattr(suites, "known", lambda: known)
    assert host.uid == 0
    assert found("debian keys").status == "ok"
    assert found("ubuntu keys").status == "warning"
    assert found("ubuntu keys").remedy == "apt-get install ubuntu-keyring"


def test_root_without_user_namespaces_is_told_what_a_container_has_to_allow(host: Host) -> None:
    host.failing["unshare"] = "unshare: unshare failed: Operation not permitted"
    finding = found("namespaces")
    assert finding.status == "missing"
    assert "Operation not permitted" in finding.detail
    assert "seccomp=unconfined" in finding.remedy
    host.files["/proc/sys/user/max_user_namespaces"] = "0\n"
    assert "user.max_user_namespaces=" in found("namespaces").remedy


def test_a_user_with_namespaces_needs_no_root(host: Host) -> None:
    host.uid = 1000
    assert found("namespaces").status == "ok"
    assert "mmdebstrap --unshare-helper true" in host.ran
    assert not any(line.startswith("unshare") for line in host.ran)


@pytest.mark.parametrize(
    ("file", "text", "remedy"),
    [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0\n", "kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            "apparmor_restrict_unprivileged_userns=0",
        ),
        ("/proc/sys/user/max_user_namespaces", "0\n", "user.max_user_namespaces="),
        ("/etc/subuid", "somebody:100000:65536\n", "usermod --add-subuids"),
    ],
)
def test_a_user_without_namespaces_is_told_which_setting_it_is(
    host: Host, file: str, text: str, remedy: str
) -> None:
    host.uid = 1000
    host.failing["mmdebstrap"] = "unshare failed"
    host.files[file] = text
    finding = found("namespaces")
    assert finding.status == "missing"
    assert remedy in finding.remedy


def test_a_user_without_newuidmap_is_told_the_package(host: Host) -> None:
    host.uid = 1000
    host.missing.add("newuidmap")
    assert found("uidmap").packages == ("uidmap",)


@pytest.mark.parametrize(("free", "status"), [(10**11, "ok"), (10**10, "warning"), (10**9, "missing")])
def test_the_store_wants_room(host: Host, free: int, status: str) -> None:
    host.free = free
    assert found("store").status == status


def test_a_store_that_cannot_be_written_is_missing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != host.store)
    finding = found("store")
    assert (finding.status, finding.detail) == ("missing", f"{host.store} is not writable")


@pytest.mark.parametrize(("store", "said"), [("io.containerd.snapshotter.v1", "containerd"), ("", "classic")])
def test_the_engine_tells_its_version_and_where_images_go(host: Host, store: str, said: str) -> None:
    host.engine = lambda: engine(store=store)
    assert found("engine").detail == f"docker 26.1.5, {said} image store"


def test_a_host_without_an_engine_is_told_to_install_one(host: Host) -> None:
    host.engine = no_engine
    host.missing |= {"dockerd", "podman"}
    finding = found("engine")
    assert (finding.status, finding.packages) == ("missing", ("docker.io",))


@pytest.mark.parametrize(
    ("missing", "variable", "remedy"),
    [
        ({"podman"}, "", "systemctl start docker"),
        ({"dockerd"}, "", "podman.socket"),
        (set(), "tcp://elsewhere:2375", "DOCKER_HOST"),
    ],
)
def test_an_engine_that_is_there_is_started_not_installed(
    host: Host, monkeypatch: pytest.MonkeyPatch, missing: set[str], variable: str, remedy: str
) -> None:
    host.engine = no_engine
    host.missing |= missing
    monkeypatch.setenv("DOCKER_HOST", variable)
    monkeypatch.setattr(os, "access", lambda _path, _mode: True)
    finding = found("engine")
    assert not finding.packages
    assert remedy in finding.remedy


def test_the_builder_in_use_is_told_and_none_is_started(host: Host) -> None:
    assert (
        found("docker buildx").detail == "0.13, builder default (docker): engine 26.1.5+dfsg1, merges layers"
    )
    assert "docker buildx inspect" in host.ran


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("Driver: docker\n", "engine 26.1.5+dfsg1, classic image store: changed layers are copied again"),
        ("Driver: docker-container\n\nBuildKit version: v0.23.2\n", "BuildKit v0.23.2"),
        ("Driver: docker-container\n\nStatus: inactive\n", "which the first build starts"),
    ],
)
def test_each_kind_of_builder_has_its_own_words(host: Host, driver: str, said: str) -> None:
    host.answers["docker buildx inspect"] = f"Name: farm\n{driver}"
    host.answers["docker info"] = '[["Backing Filesystem","extfs"]]'
    finding = found("docker buildx")
    assert finding.status == "ok"
    assert finding.detail.endswith(f": {said}")


@pytest.mark.parametrize(
    ("command", "answer", "message", "remedy"),
    [
        (
            "docker buildx version",
            "github.com/docker/buildx v0.7.1 x",
            "buildx 0.7 is too old",
            "docker-buildx",
        ),
        ("docker version", "20.10.24+dfsg1", "Docker Engine 20.10.24+dfsg1 is too old", "upgrade Docker"),
        (
            "docker buildx inspect",
            "Name: f\nDriver: remote\n\nBuildKit version: v0.9.3\n",
            "BuildKit v0.9.3 is too old",
            "--builder",
        ),
    ],
)
def test_what_is_too_old_for_the_docker_engine_is_a_warning(
    host: Host, command: str, answer: str, message: str, remedy: str
) -> None:
    host.answers[command] = answer
    finding = found("docker buildx")
    assert (finding.status, finding.packages) == ("warning", ())
    assert message in finding.detail
    assert remedy in finding.remedy


def test_docker_without_buildx_is_a_warning_and_no_docker_is_none(host: Host) -> None:
    host.failing["docker buildx version"] = "docker: 'buildx' is not a docker command."
    finding = found("docker buildx")
    assert (finding.status, finding.detail) == ("warning", "docker has no `buildx`")
    assert "docker-buildx" in finding.remedy
    host.missing.add("docker")
    assert found("docker buildx").status == "ok"


def test_gpus_that_the_engine_does_not_offer_are_a_warning(host: Host) -> None:
    host.files["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX Kernel Module  570.86.15  Thu\n"
    assert found("gpu").status == "warning"
    assert "570.86.15" in found("gpu").detail
    host.engine = lambda: engine(gpus=True)
    assert found("gpu").status == "ok"


def test_the_network_is_told_without_credentials(host: Host) -> None:
    host.site = Site(
        proxies=(("https", "http://me:secret@proxy.example:3128"), ("no_proxy", "localhost")),
        index="https://me:secret@index.example/simple",
    )
    host.index_error = FetchError("https://me:secret@index.example/simple does not answer", hint="is it up?")
    text = "\n".join(doctor.lines(doctor.examine()))
    assert "https proxy http://***@proxy.example:3128, no_proxy localhost" in text
    assert "secret" not in text
    assert found("package index").status == "missing"
    assert found("package index").remedy == "is it up?"


def test_a_check_that_breaks_is_a_finding(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("line one\nline two \x1b[31m")

    host.engine = broken
    monkeypatch.setattr(suites, "known", broken)
    finding = found("engine")
    assert finding.status == "warning"
    assert finding.detail == r"could not be examined: line one line two \x1b[31m"
    assert found("archive keys").status == "warning"


def test_fix_installs_every_missing_package_at_once(host: Host) -> None:
    host.missing |= {"mmdebstrap", "ssh-keygen"}
    said = list(doctor.fix())
    assert host.ran[-2:] == [
        "apt-get -q update",
        "apt-get install -y --no-install-recommends mmdebstrap openssh-client",
    ]
    assert said[-1] == "installing: apt-get install -y --no-install-recommends mmdebstrap openssh-client"


def test_fix_on_a_complete_host_runs_nothing(host: Host) -> None:
    assert list(doctor.fix()) == ["nothing to install"]
    assert not any("apt-get" in line for line in host.ran)


def test_fix_needs_root_and_says_the_command(host: Host) -> None:
    host.uid = 1000
    host.missing.add("ssh-keygen")
    with pytest.raises(
        EnvironmentFault, match="sudo apt-get install -y --no-install-recommends openssh-client"
    ):
        list(doctor.fix())


def test_fix_needs_apt(host: Host) -> None:
    host.missing |= {"apt-get", "ssh-keygen"}
    host.engine = no_engine
    with pytest.raises(EnvironmentFault, match="apt, openssh-client"):
        list(doctor.fix())


def test_lines_put_the_remedy_under_what_is_amiss(host: Host) -> None:
    host.missing.add("ssh-keygen")
    text = list(doctor.lines(doctor.examine()))
    row = next(number for number, line in enumerate(text) if "ssh-keygen" in line)
    assert text[row].startswith("missing")
    assert text[row].endswith("[keys]")
    assert text[row + 1].strip() == "-> apt-get install openssh-client"
    assert text[-2:] == [
        "1 missing, 0 to look at",
        "as root, `imagebuilder doctor --fix` installs the Debian packages",
    ]
