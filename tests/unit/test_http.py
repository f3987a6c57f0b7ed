import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

import imagebuilder
from imagebuilder.host.http import bypasses_proxy
from imagebuilder.host.site import Site
from tests.support.fileserver import FileServer, serving


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as state:
        state.files["/simple/a.whl"] = b"wheel"
        yield state


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_session_says_who_asks_and_takes_no_advice_from_the_environment(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
    assert Site().session().get(f"{server.url}/simple/a.whl").content == b"wheel"
    assert server.asked("User-Agent") == [f"imagebuilder/{imagebuilder.__version__}"]


def test_the_proxy_is_used(server: FileServer) -> None:
    server.files["/file"] = b"by proxy"
    site = Site(proxies=(("http", server.url),))
    # A proxy gets the whole URL as the path.
    assert site.session().get("http://archive.example/file").status_code == 404
    assert server.seen[-1][1] == "http://archive.example/file"


def test_a_host_of_no_proxy_is_asked_directly(server: FileServer) -> None:
    site = Site(proxies=(("http", "http://127.0.0.1:9"), ("no_proxy", "localhost,127.0.0.0/8")))
    assert site.session().get(f"{server.url}/simple/a.whl").content == b"wheel"


@pytest.mark.parametrize(
    ("host", "no_proxy", "direct"),
    [
        ("mirror.example.org", "example.org", True),
        ("mirror.example.org", ".example.org", True),
        ("mirror.example.org", "*.example.org", True),
        ("example.org", ".example.org", True),
        ("notexample.org", "example.org", False),
        ("10.1.2.3", "10.0.0.0/8 192.168.0.0/16", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("anything", "*", True),
        ("anything", "", False),
    ],
)
def test_no_proxy_knows_domains_and_networks(host: str, no_proxy: str, direct: bool) -> None:
    assert bypasses_proxy(host, no_proxy) is direct


def test_credentials_of_the_index_go_to_files_on_its_host(server: FileServer) -> None:
    index = server.url.replace("://", "://me:p%40ss@") + "/simple"
    Site(index=index).session().get(f"{server.url}/simple/a.whl")
    assert server.asked("Authorization") == [basic("me", "p@ss")]


def test_credentials_of_the_index_stay_there_on_a_redirect(server: FileServer) -> None:
    index = server.url.replace("://", "://me:pass@") + "/simple"
    with serving() as other:
        other.files["/a.whl"] = b"elsewhere"
        server.redirects["/simple/b.whl"] = other.url.replace("127.0.0.1", "localhost") + "/a.whl"
        assert Site(index=index).session().get(f"{server.url}/simple/b.whl").content == b"elsewhere"
        assert server.asked("Authorization") == [basic("me", "pass")]
        assert other.asked("Authorization") == [""]


def test_netrc_is_read(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    Site().session().get(f"{server.url}/simple/a.whl")
    assert server.asked("Authorization") == [basic("me", "secret")]


@pytest.mark.parametrize(
    "place", ["http://localhost:{port}/a.whl", "http://me:secret@127.0.0.1:{port}/a.whl"]
)
def test_a_redirect_gets_no_credentials_of_its_own_either(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine localhost login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with serving() as other:
        other.files["/a.whl"] = b"elsewhere"
        server.redirects["/simple/b.whl"] = place.format(port=other.url.rpartition(":")[2])
        assert Site().session().get(f"{server.url}/simple/b.whl").content == b"elsewhere"
        assert other.asked("Authorization") == [""]


def test_another_port_is_another_host(server: FileServer) -> None:
    index = server.url.replace("://", "://me:pass@") + "/simple"
    with serving() as other:
        other.files["/a.whl"] = b"elsewhere"
        server.redirects["/simple/b.whl"] = f"{other.url}/a.whl"
        Site(index=index).session().get(f"{server.url}/simple/b.whl")
        assert (server.asked("Authorization"), other.asked("Authorization")) == ([basic("me", "pass")], [""])


def test_who_retries_by_itself_gets_a_session_that_does_not(server: FileServer) -> None:
    server.refusals["/simple/a.whl"] = [503]
    assert Site().session(retries=False).get(f"{server.url}/simple/a.whl").status_code == 503
    assert len(server.seen) == 1


def test_the_site_s_ca_counts_whatever_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
    session = Site(ca_bundle=tmp_path / "ca.pem").session()
    settings = session.merge_environment_settings("https://a.example", {}, None, None, None)
    assert settings["verify"] == str(tmp_path / "ca.pem")
