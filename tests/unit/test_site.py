from pathlib import Path

import pytest

from imagebuilder.errors import InputError
from imagebuilder.host import settings
from imagebuilder.host.settings import AptSettings, IndexSettings
from imagebuilder.host.site import RegistrySite, Site, detect, redact


@pytest.fixture(autouse=True)
def bare_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has nothing set at all."""
    monkeypatch.setattr(settings, "proxies", lambda _: {})
    monkeypatch.setattr(settings, "ca_bundle", lambda _: None)
    monkeypatch.setattr(settings, "index_settings", lambda _: IndexSettings())
    monkeypatch.setattr(settings, "apt_settings", lambda _: AptSettings())


def site_file(folder: Path, text: str) -> Path:
    path = folder / "site.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@a.example/simple", "https://***@a.example/simple"),
        ("https://me:p@ss@a.example/simple", "https://***@a.example/simple"),
        ("https://token@a.example", "https://***@a.example"),
        (
            "from https://a:b@c.example to http://d:e@f.example/x",
            "from https://***@c.example to http://***@f.example/x",
        ),
        ("https://a.example/pool/@scope", "https://a.example/pool/@scope"),
    ],
)
def test_passwords_in_urls_are_masked(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_site_does_not_show_passwords() -> None:
    site = Site(
        proxies=(("https", "http://me:geheim@proxy.example:3128"),),
        index="https://me:geheim@index.example/simple",
        apt_options=(("Acquire::http::Proxy", "http://me:geheim@proxy.example"),),
    )
    assert "geheim" not in repr(site)
    assert "index.example/simple" in repr(site)


def test_a_bare_host_leaves_everything_to_the_tools() -> None:
    assert detect() == Site()
    assert Site().environment()["UV_INDEX_STRATEGY"] == "first-index"


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("{}", "unsafe-best-match"),
        ("wheel_folders: [wheels]", "unsafe-best-match"),
        ("extra_indexes: ['https://team.example/simple']", "first-index"),
        ("index_strategy: first-index", "first-index"),
        ("{extra_indexes: ['https://a.example'], index_strategy: unsafe-first-match}", "unsafe-first-match"),
    ],
)
def test_an_index_of_the_site_file_comes_first_and_those_of_pip_are_one(
    text: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = IndexSettings(extra_indexes=("https://partial.example/simple",))
    monkeypatch.setattr(settings, "index_settings", lambda _: host)
    (tmp_path / "wheels").mkdir()
    site = detect(site_file(tmp_path, f"{text}\n"))
    assert site.environment()["UV_INDEX_STRATEGY"] == strategy
    assert site.own_wheel_folders == ((str(tmp_path / "wheels"),) if "wheel_folders" in text else ())


def test_a_file_wins_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = IndexSettings(index="https://host.example", extra_indexes=("https://extra.example",), native=True)
    monkeypatch.setattr(settings, "index_settings", lambda _: host)
    monkeypatch.setattr(settings, "proxies", lambda _: {"http": "http://a:1", "https": "http://a:1"})
    apt = AptSettings(mirror="http://host.example/debian", options=(("Acquire::Retries", "3"),))
    monkeypatch.setattr(settings, "apt_settings", lambda _: apt)
    path = site_file(
        tmp_path,
        "proxies: {https: 'http://b:2'}\nindex: https://file.example/simple\n"
        "apt: {security_mirror: 'http://s.example', options: {'Acquire::Retries': '5'}}\n",
    )
    assert detect(path) == Site(
        proxies=(("http", "http://a:1"), ("https", "http://b:2")),
        index="https://file.example/simple",
        extra_indexes=("https://extra.example",),
        apt_mirror="http://host.example/debian",
        apt_security_mirror="http://s.example",
        apt_options=(("Acquire::Retries", "5"),),
        native_index=False,
    )


def test_a_file_can_turn_the_host_s_settings_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = IndexSettings(
        index="https://i.example", extra_indexes=("https://e.example",), wheel_folders=(".",), no_index=True
    )
    monkeypatch.setattr(settings, "index_settings", lambda _: host)
    monkeypatch.setattr(settings, "proxies", lambda _: {"http": "http://a:1"})
    text = "index: ''\nextra_indexes: []\nwheel_folders: []\nno_index: false\nproxies: {http: ''}\n"
    assert detect(site_file(tmp_path, text)) == Site()


def test_paths_in_a_file_count_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "ca.pem").touch()
    site = detect(site_file(tmp_path, "ca: ca.pem\nwheel_folders: [wheels]\n"))
    assert site.ca_bundle == tmp_path / "ca.pem"
    assert site.wheel_folders == (str(tmp_path / "wheels"),)
    assert site.apt_options == (("Acquire::https::CaInfo", str(tmp_path / "ca.pem")),)


def test_a_missing_wheel_folder_is_left_out_as_pip_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = detect(
        site_file(tmp_path, "wheel_folders: [gone]\nextra_indexes: ['file:///nonexistent/simple']\n")
    )
    assert (site.wheel_folders, site.extra_indexes) == ((), ())
    assert f"wheel folder {tmp_path}/gone does not exist and is ignored" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "indx: https://a.example\n",
            "site.yaml:1: indx: `indx` is not a known key\n  -> perhaps you meant `index`",
        ),
        (
            "find_links: [a]\n",
            "site.yaml:1: find_links: `find_links` is not a known key\n  -> use `wheel_folders`",
        ),
        ("\nindex: a.example\n", "site.yaml:2: index: `a.example` is not a URL"),
        ("index: 'https://me:pw@'\n", "site.yaml:1: index: `https://***@` is not a URL"),
        ("index: 'https://a.example:99999/'\n", "is not a URL"),
        ("extra_indexes: ['https://a.example', 'ftp://b']\n", "site.yaml:1: extra_indexes[1]: `ftp://b`"),
        ("extra_indexes: ['https://a.example/x y']\n", "holds white space"),
        ("apt:\n  mirror: deb.example\n", "site.yaml:2: apt.mirror: `deb.example` is not a URL"),
        (
            "apt: {options: {'Dpkg::Pre-Invoke': 'rm'}}\n",
            "`Dpkg::Pre-Invoke` is not an option that can be set here",
        ),
        ("ca: gone.pem\n", "site.yaml:1: ca: there is no file"),
        ("no_index: 'maybe'\n", "site.yaml:1: no_index"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        detect(site_file(tmp_path, text))
    assert message in str(error.value)
    assert "pw" not in str(error.value)


def test_tools_get_proxies_ca_and_index_by_variables(tmp_path: Path) -> None:
    env = Site(
        proxies=(("https", "http://p.example"), ("no_proxy", "localhost")),
        ca_bundle=tmp_path / "ca.pem",
        index="https://i.example/simple",
        extra_indexes=("https://a.example", "https://b.example"),
        wheel_folders=("/wheels",),
    ).environment()
    assert env["https_proxy"] == env["HTTPS_PROXY"] == "http://p.example"
    assert env["no_proxy"] == env["NO_PROXY"] == "localhost"
    assert env["SSL_CERT_FILE"] == str(tmp_path / "ca.pem")
    assert env["UV_DEFAULT_INDEX"] == "https://i.example/simple"
    assert env["UV_EXTRA_INDEX_URL"] == "https://a.example https://b.example"
    assert env["UV_FIND_LINKS"] == "/wheels"


def test_uv_keeps_reading_its_own_settings() -> None:
    env = Site(index="https://i.example/simple", native_index=True).environment()
    assert not any(name.startswith("UV_") for name in env)


def test_settings_of_single_registries(tmp_path: Path) -> None:
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / name).write_text(name)
    text = """
registries:
  registry.example:5000: {ca: ca.pem, client_cert: client.pem, client_key: client.key}
  lab.example: {plain_http: true}
"""
    found = dict(detect(site_file(tmp_path, text)).registries)
    assert found == {
        "registry.example:5000": RegistrySite(
            ca=tmp_path / "ca.pem", client=(tmp_path / "client.pem", tmp_path / "client.key")
        ),
        "lab.example": RegistrySite(plain_http=True),
    }


def test_what_is_wrong_with_a_registrys_settings_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "client.pem").write_text("")
    text = """registries:
  a.example: {ca: none.pem, client_cert: client.pem}
  b.example: {client_key: no.key}
"""
    with pytest.raises(InputError) as caught:
        detect(site_file(tmp_path, text))
    wheres = [problem.where.rpartition("site.yaml")[2] for problem in caught.value.problems]
    assert wheres == [
        ":2: registries.a.example.ca",
        ":2: registries.a.example",
        ":3: registries.b.example.client_key",
        ":3: registries.b.example",
    ]
