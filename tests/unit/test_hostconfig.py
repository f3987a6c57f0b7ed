from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.host import settings
from imagebuilder.host.settings import IndexSettings

BOOKWORM = 'ID=debian\nVERSION_CODENAME="bookworm"\n'
SOURCES = """\
# a comment
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main contrib
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / ".config/pip").mkdir(parents=True)
    (folder / ".config/uv").mkdir()
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host without any setting of apt."""

    def no_apt(*_args: object, **_options: object) -> process.Result:
        return process.Result(argv=("apt-config",), code=0, stdout="", stderr="")

    monkeypatch.setattr(process, "run", no_apt)
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text(BOOKWORM)
    return tmp_path


def pip(home: Path, **variables: str) -> IndexSettings:
    return settings.index_settings({"HOME": str(home), "XDG_CONFIG_DIRS": str(home), **variables})


def test_lower_case_proxies_win() -> None:
    env = {
        "http_proxy": "http://a:1",
        "HTTP_PROXY": "http://b:2",
        "HTTPS_PROXY": "http://c:3",
        "NO_PROXY": "d",
    }
    assert settings.proxies(env) == {"http": "http://a:1", "https": "http://c:3", "no_proxy": "d"}


def test_one_proxy_can_be_for_all() -> None:
    assert settings.proxies({"ALL_PROXY": "http://a:1"}) == {"http": "http://a:1", "https": "http://a:1"}


def test_the_first_ca_bundle_that_exists_counts(tmp_path: Path, home: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    env = {"HOME": str(home), "SSL_CERT_FILE": "/nonexistent", "CURL_CA_BUNDLE": str(bundle)}
    assert settings.ca_bundle(env) == bundle


def test_pip_s_own_certificate_setting_counts(tmp_path: Path, home: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    (home / ".config/pip/pip.conf").write_text(f"[global]\ncert = {bundle}\n")
    assert settings.ca_bundle({"HOME": str(home)}) == bundle


def test_pip_s_files_are_merged_section_by_section(home: Path) -> None:
    (home / ".pip").mkdir()
    (home / ".pip/pip.conf").write_text(
        "[global]\nindex-url = https://old.example/simple\nextra_index_url =\n  https://a.example\n"
        "  https://b.example\n"
    )
    (home / ".config/pip/pip.conf").write_text(
        "[install]\nfind-links = /wheels /more\n[global]\nindex-url = https://new.example/simple\n"
    )
    assert pip(home) == IndexSettings(
        index="https://new.example/simple",
        extra_indexes=("https://a.example", "https://b.example"),
        wheel_folders=("/wheels", "/more"),
    )


def test_pip_s_variables_win_over_its_files(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://file.example\nno-index = no\n")
    found = pip(home, PIP_INDEX_URL="https://env.example", PIP_NO_INDEX="1")
    assert (found.index, found.no_index) == ("https://env.example", True)


def test_pip_can_be_told_to_read_no_files(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://file.example\n")
    assert pip(home, PIP_CONFIG_FILE="/dev/null") == IndexSettings()


def test_a_named_file_and_the_venv_s_file_come_last(home: Path, tmp_path: Path) -> None:
    for name in ("venv", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pip.conf").write_text(f"[global]\nindex-url = https://{name}.example\n")
    assert pip(home, VIRTUAL_ENV=str(tmp_path / "venv")).index == "https://venv.example"
    own = {"VIRTUAL_ENV": str(tmp_path / "venv"), "PIP_CONFIG_FILE": str(tmp_path / "own/pip.conf")}
    assert pip(home, **own).index == "https://own.example"


def test_a_broken_file_of_pip_is_passed_over(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / ".config/pip/pip.conf").write_text("no section here\n")
    assert pip(home) == IndexSettings()
    assert "pip.conf is not read" in caplog.text


def test_uv_s_settings_win_over_pip_s(home: Path) -> None:
    found = pip(
        home,
        PIP_INDEX_URL="https://pip.example",
        UV_DEFAULT_INDEX="main=https://uv.example/simple",
        UV_INDEX="https://a.example corp=https://b.example",
        UV_FIND_LINKS="/wheels,/more",
    )
    assert found == IndexSettings(
        index="https://uv.example/simple",
        extra_indexes=("https://a.example", "https://b.example"),
        wheel_folders=("/wheels", "/more"),
        native=True,
    )


def test_uv_s_file_is_known(home: Path) -> None:
    (home / ".config/uv/uv.toml").write_text(
        '[[index]]\nurl = "https://main.example"\ndefault = true\n[[index]]\nurl = "https://extra.example"\n'
    )
    found = pip(home, PIP_INDEX_URL="https://pip.example")
    assert (found.index, found.extra_indexes, found.native) == (
        "https://main.example",
        ("https://extra.example",),
        True,
    )


def test_uv_s_file_without_an_index_leaves_pip_s_settings(home: Path) -> None:
    (home / ".config/uv/uv.toml").write_text("native-tls = true\n")
    assert pip(home, PIP_INDEX_URL="https://pip.example").index == "https://pip.example"


def test_the_host_s_mirrors_are_found_in_deb822(root: Path) -> None:
    (root / "etc/apt/sources.list.d/debian.sources").write_text(SOURCES)
    found = settings.apt_settings("debian", root)
    assert (found.mirror, found.security_mirror) == (
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
    )


def test_the_host_s_mirrors_are_found_in_one_line_notation(root: Path) -> None:
    (root / "etc/apt/sources.list").write_text(
        "#deb http://commented.example/debian bookworm main\n"
        "deb-src http://source.example/debian bookworm main\n"
        "deb [arch=amd64 trusted=yes] http://mirror.example/debian bookworm main contrib # mine\n"
        "deb http://mirror.example/security bookworm-security main\n"
    )
    found = settings.apt_settings("debian", root)
    assert (found.mirror, found.security_mirror) == (
        "http://mirror.example/debian",
        "http://mirror.example/security",
    )


@pytest.mark.parametrize(
    "line",
    [
        "deb https://docker.example/linux/debian bookworm stable",
        "deb https://vendor.example/apt vendor-bookworm main",
        "deb [signed-by=/usr/share/keyrings/vendor.gpg] https://vendor.example bookworm main",
        "deb https://vendor.example/flat ./",
        "deb http://mirror.example/debian trixie main",
        "deb cdrom:[disc]/ bookworm main",
    ],
)
def test_other_people_s_archives_are_no_mirrors(line: str, root: Path) -> None:
    (root / "etc/apt/sources.list.d/a.list").write_text(f"{line}\n")
    found = settings.apt_settings("debian", root)
    assert (found.mirror, found.security_mirror) == ("", "")


def test_a_disabled_source_does_not_count(root: Path) -> None:
    (root / "etc/apt/sources.list.d/debian.sources").write_text(
        SOURCES.replace("Types", "Enabled: no\nTypes")
    )
    assert settings.apt_settings("debian", root).mirror == ""


def test_a_host_of_another_distribution_has_no_mirror_for_the_base(root: Path) -> None:
    (root / "etc/apt/sources.list.d/debian.sources").write_text(SOURCES)
    assert settings.apt_settings("ubuntu", root) == settings.AptSettings()


def test_a_list_of_mirrors_gives_its_first(root: Path) -> None:
    mirrors = root / "mirrors.list"
    mirrors.write_text("http://one.example/debian priority:1\nhttp://two.example/debian\n")
    (root / "etc/apt/sources.list").write_text(f"deb mirror+file:{mirrors} bookworm main\n")
    assert settings.apt_settings("debian", root).mirror == "http://one.example/debian"


def test_only_options_about_reaching_a_mirror_are_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = (
        'Acquire "";\nAcquire::http "";\nAcquire::http::Proxy "http://proxy.example:3128/";\n'
        'Acquire::Retries "3";\nAcquire::Check-Valid-Until "false";\nAcquire::Languages:: "none";\n'
        'Acquire::AllowInsecureRepositories "1";\nAPT::Get::AllowUnauthenticated "1";\n'
    )

    def dumped(*_args: object, **_options: object) -> process.Result:
        return process.Result(argv=("apt-config",), code=0, stdout=dump, stderr="")

    monkeypatch.setattr(process, "run", dumped)
    assert dict(settings.apt_settings("debian", root).options) == {
        "Acquire::http::Proxy": "http://proxy.example:3128/",
        "Acquire::Retries": "3",
        "Acquire::Check-Valid-Until": "false",
    }
