"""Where tools run: which way is chosen, how files travel, and how the image of the tools is made."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker.errors import DockerException, ImageNotFound

from imagebuilder.core.process import Result
from imagebuilder.core.streams import IterReader
from imagebuilder.errors import BuildError, EnvironmentFault, InputError
from imagebuilder.host import engine as engines
from imagebuilder.host import tools
from imagebuilder.host.site import Site, ToolsSite, detect
from imagebuilder.host.tools import HOST, container, image
from imagebuilder.smoke.nodes import packing


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that alone is searched for tools, with all of them in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in tools.NEEDED:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(tools, "_path", lambda: str(folder))
    return folder


def auto() -> Site:
    return Site(tools=ToolsSite(where="auto"))


def test_a_host_with_the_tools_uses_its_own(path: Path) -> None:
    assert path.is_dir()
    assert tools.missing() == ()
    assert tools.choose_tools(auto()) == HOST


@pytest.mark.parametrize("name", tools.NEEDED)
def test_a_host_that_lacks_one_uses_a_container_for_all(name: str, path: Path) -> None:
    (path / name).unlink()
    assert tools.missing() == (name,)
    assert tools.choose_tools(auto()).contained


@pytest.mark.parametrize(("where", "contained"), [("host", False), ("container", True)])
def test_the_site_decides_whatever_there_is(where: Any, contained: bool, path: Path) -> None:
    for tool in path.iterdir():
        tool.unlink()
    assert tools.choose_tools(Site(tools=ToolsSite(where=where))).contained == contained


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("tools: {where: container, image: 'mirror.example:5000/debian:trixie'}\n")
    assert detect(file).tools == ToolsSite(where="container", image="mirror.example:5000/debian:trixie")
    assert detect(file, tools="host").tools.where == "host"
    assert detect().tools == ToolsSite(where="auto", image="debian:trixie-slim")


def test_a_word_that_is_no_place_is_refused() -> None:
    with pytest.raises(InputError, match="`docker` is none of auto, host, container"):
        detect(tools="docker")


@pytest.mark.parametrize("name", ["", "-v", "Debian", "a b", "x\n"])
def test_a_name_that_is_no_image_s_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(f"tools: {{image: {name!r}}}\n".replace("'", '"'))
    with pytest.raises(InputError, match=r"is not an image's name"):
        detect(file)


def test_on_this_host_the_folder_is_the_folder(tmp_path: Path) -> None:
    with HOST.open(tmp_path, network=False) as sandbox:
        assert sandbox.folder == tmp_path
        assert not sandbox.contained
        assert sandbox.is_root == (os.geteuid() == 0)
        sandbox.copy_in("nothing")
        said = sandbox.run(["sh", "-c", "pwd; echo $X; echo made >made"], timeout=30, env={"X": "1"}).stdout
        sandbox.copy_out("made")
        assert said.split() == [str(tmp_path.resolve()), "1"]
        assert sandbox.has(tmp_path / "made")
        assert not sandbox.has(tmp_path / "not made")


def unpacked(stream: Sequence[bytes]) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
        return {member.name: member for member in tar}


def test_files_travel_as_root_s_with_the_folders_above_them(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    (tmp_path / "a" / "other").write_text("y")
    found = unpacked(list(container._packed(tmp_path, ["a/b"])))
    assert set(found) == {"a", "a/b", "a/b/file"}
    assert {(member.uid, member.gid, member.uname) for member in found.values()} == {(0, 0, "")}
    assert "a/other" in unpacked(list(container._packed(tmp_path, [""])))


def test_what_is_sent_to_an_engine_ends_where_its_reader_ends(tmp_path: Path) -> None:
    """Podman answers "broken pipe" if its reader has ended before it got everything."""
    (tmp_path / "file").write_text("x" * 512)
    of_a_folder = b"".join(container._packed(tmp_path, [""]))
    of_data = packing.pack([packing.Item(path="/file", mode=0o644, data=b"x" * 512)], (0, 0))
    for archive in (of_a_folder, of_data):
        assert archive[-1536:] == b"x" * 512 + bytes(1024)


def tar_of(*members: tuple[str, bytes | None]) -> tarfile.TarFile:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            info.size = len(content or b"")
            tar.addfile(info, io.BytesIO(content or b""))
    blocks = iter([buffer.getvalue()[:700], buffer.getvalue()[700:]])
    return tarfile.open(fileobj=cast("io.BytesIO", IterReader(blocks)), mode="r|")


def test_what_comes_back_goes_where_it_was_asked_for(tmp_path: Path) -> None:
    with tar_of(("out", None), ("out/deep", None), ("out/deep/file", b"x" * 3000)) as tar:
        container._unpack(tar, tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "file").read_bytes() == b"x" * 3000
    with tar_of(("layer.tar", b"bytes")) as tar:
        container._unpack(tar, tmp_path / "layer.tar")
    assert (tmp_path / "layer.tar").read_bytes() == b"bytes"


def test_an_archive_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with tar_of(("out/../../stolen", b"x")) as tar, pytest.raises(BuildError, match="has an entry"):
        container._unpack(tar, tmp_path / "place" / "out")
    assert not (tmp_path.parent / "stolen").exists()


class FakeSandbox:
    """A container that keeps what it was asked; commands that hold a word of `failing` fail."""

    def __init__(self, *, lacking: str = "mmdebstrap", failing: str = "nothing") -> None:
        self.ran: list[tuple[str, dict[str, str]]] = []
        self.files: dict[str, bytes] = {}
        self.modes: dict[str, int] = {}
        self.container = "c"
        self.kept: list[tuple[str, str]] = []
        self._lacking, self._failing = lacking, failing
        api = SimpleNamespace(commit=lambda _id, repository, tag: self.kept.append((repository, tag)))
        self.engine = SimpleNamespace(client=SimpleNamespace(api=api))

    def put(self, place: str, data: bytes, mode: int = 0o600) -> None:
        self.files[place] = data
        self.modes[place] = mode

    def run(self, argv: Sequence[str], *, timeout: float, env: Any = None, check: bool = True) -> Result:
        assert timeout
        line = " ".join(argv)
        self.ran.append((line, dict(env or {})))
        if "command -v" in line:
            return Result(argv=tuple(argv), code=0, stdout=self._lacking, stderr="")
        code = 100 if self._failing in line and not check else 0
        return Result(
            argv=tuple(argv), code=code, stdout="", stderr="E: http://me:secret@mirror.example" * code
        )


def test_the_tools_are_installed_at_a_fixed_version_through_the_site(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("CA")
    site = Site(
        proxies=(("http", "http://proxy.example:3128"),),
        ca_bundle=ca,
        apt_options=(("Acquire::Retries", "3"), ("Acquire::https::CaInfo", str(ca))),
    )
    sandbox = FakeSandbox()
    name = image.make("sha256:base", sandbox, site)  # type: ignore[arg-type]
    installing, env = next(entry for entry in sandbox.ran if " install " in entry[0])
    assert "mmdebstrap=1.5.7-*" in installing
    assert f"-c {image._CONF}" in installing
    assert env["http_proxy"] == "http://proxy.example:3128"
    assert sandbox.files == {
        image._CA: b"CA",
        image._CONF: f'Acquire::Retries "3";\nAcquire::https::CaInfo "{image._CA}";\n'.encode(),
    }
    assert all(place in sandbox.ran[-1][0] for place in sandbox.files), (
        "the CA is removed before the image is kept"
    )
    assert [":".join(entry) for entry in sandbox.kept] == [name]
    assert name.startswith("imagebuilder-tools:")


def test_no_password_is_an_argument_nor_in_a_file_for_others() -> None:
    sandbox = FakeSandbox()
    site = Site(
        apt_mirror="http://me:geheim@mirror.example/debian",
        apt_options=(("Acquire::http::Proxy", "http://me:geheim@proxy.example"),),
        proxies=(("http", "http://me:geheim@proxy.example"),),
    )
    image.make("sha256:base", sandbox, site)  # type: ignore[arg-type]
    assert not [line for line, _ in sandbox.ran if "geheim" in line]
    assert b"geheim" in sandbox.files[image._CONF]
    assert {sandbox.modes[place] for place, data in sandbox.files.items() if b"geheim" in data} == {0o600}
    assert {env["MIRROR"] for _, env in sandbox.ran if "MIRROR" in env} == {site.apt_mirror}


def test_a_mirror_of_another_distribution_gives_way_to_the_image_s_own_sources() -> None:
    sandbox = FakeSandbox(failing="imagebuilder.list")
    image.make("sha256:base", sandbox, Site(apt_mirror="http://mirror.example/ubuntu"))  # type: ignore[arg-type]
    asked = [line for line, _ in sandbox.ran if line.startswith("apt-get")]
    assert ["imagebuilder.list" in line for line in asked] == [True, False, False]
    assert len(sandbox.kept) == 1


def test_an_installation_that_fails_says_so_without_passwords() -> None:
    sandbox = FakeSandbox(failing="update")
    with pytest.raises(EnvironmentFault) as caught:
        image.make("sha256:base", sandbox, Site())  # type: ignore[arg-type]
    assert "mmdebstrap could not be installed" in str(caught.value)
    assert "tools: {image: ...}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert sandbox.kept == []


def test_an_image_that_is_not_debian_s_is_refused() -> None:
    with pytest.raises(EnvironmentFault, match="has no apt-get"):
        image.make("sha256:base", FakeSandbox(lacking="apt-get mmdebstrap"), Site())  # type: ignore[arg-type]


def engine(images: Any) -> Any:
    return SimpleNamespace(client=SimpleNamespace(images=images), kind="docker")


def raising(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_an_image_of_another_machine_is_pulled_for_the_right_one() -> None:
    pulled: list[str] = []

    def pull(name: str, *, platform: str) -> Any:
        pulled.append(f"{name} {platform}")
        return SimpleNamespace(id="sha256:right")

    found = SimpleNamespace(id="sha256:wrong", attrs={"Architecture": "arm64"})
    fake = engine(SimpleNamespace(get=lambda _name: found, pull=pull))
    assert image.find(fake, "debian:trixie-slim", "linux/amd64") == "sha256:right"
    assert pulled == ["debian:trixie-slim linux/amd64"]
    found.attrs["Architecture"] = "amd64"
    assert image.find(fake, "debian:trixie-slim", "linux/amd64") == "sha256:wrong"


def test_an_image_that_cannot_be_pulled_names_the_setting() -> None:
    images = SimpleNamespace(get=raising(ImageNotFound("no")), pull=raising(DockerException("no route")))
    with pytest.raises(EnvironmentFault) as caught:
        image.find(engine(images), "debian:trixie-slim", "linux/amd64")
    assert "cannot pull: no route" in str(caught.value)
    assert "tools: {image: ...}" in str(caught.value)


def test_the_image_s_key_changes_with_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    one = image._name("sha256:1")
    assert image._name("sha256:2") != one
    monkeypatch.setattr(image, "PACKAGES", ("mmdebstrap=1.6-*",))
    assert image._name("sha256:1") != one


@pytest.mark.parametrize("network", [True, False])
def test_a_container_is_given_no_right_to_mount_or_to_make_devices(
    network: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    class Api:
        def create_host_config(self, **settings: Any) -> dict[str, Any]:
            asked.update(settings)
            return {}

        def create_container(self, *_words: Any, host_config: dict[str, Any], **_settings: Any) -> None:
            asked.update(host_config)
            raise DockerException("enough")

    monkeypatch.setattr("imagebuilder.host.leftovers.remove", lambda *_words: None)
    engine: Any = SimpleNamespace(kind="docker", client=SimpleNamespace(api=Api()))
    with (
        pytest.raises(EnvironmentFault, match="enough"),
        container._started(engine, "image", tmp_path, network=network, shares=()),
    ):
        pass
    assert not {"SYS_ADMIN", "MKNOD", "SYS_CHROOT"} & set(asked.get("cap_add", ()))
    assert not {"MaskedPaths", "ReadonlyPaths", "privileged", "devices"} & set(asked)
    assert not any("unmask" in word for word in asked.get("security_opt", ()))
    if not network:
        assert (asked["network_mode"], asked["cap_drop"]) == ("none", ["ALL"])
    else:
        assert not {"cap_add", "security_opt"} & set(asked)


class Api:
    """An engine that says something on both streams."""

    closed = False

    def exec_create(self, container: str, argv: list[str], **settings: object) -> dict[str, object]:
        self.asked = (container, argv, settings)
        return {"Id": "handle"}

    def exec_start(self, _handle: object, **_settings: object) -> Api:
        self._response = self
        return self

    def __iter__(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        yield from ((b"one ", None), (None, b"warning"), (b"two \xff", None))

    def exec_inspect(self, _handle: object) -> dict[str, int]:
        return {"ExitCode": 3}

    def close(self) -> None:
        self.closed = True


def test_a_command_in_a_container_is_read_to_its_end() -> None:
    api = Api()
    ended = engines.execute(api, "box", ["a", "b"], workdir="/srv")
    assert (ended.code, ended.stdout, ended.stderr) == (3, "one two \N{REPLACEMENT CHARACTER}", "warning")
    assert (api.asked, api.closed) == (("box", ["a", "b"], {"workdir": "/srv"}), True)
    assert engines.execute(Api(), "box", ["a"], keep=5).stdout == "two \N{REPLACEMENT CHARACTER}"
