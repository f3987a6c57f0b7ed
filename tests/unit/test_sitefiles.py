"""The site's settings as secrets and arguments of a build: what they say, and where they do not go."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from imagebuilder.engines import sitefiles
from imagebuilder.host.site import Site
from imagebuilder.plan import OsLayer, User
from tests.unit import samples

LAYER = OsLayer(
    distribution="debian", suite="trixie", architecture="amd64", debs=(samples.deb("tini"),), python="3.13",
    user=User(name="root", uid=0, home="/root"),
)  # fmt: skip


def written(site: Site, folder: Path) -> dict[str, str]:
    return {name: path.read_text() for name, path in sitefiles.write(site, LAYER, folder)}


def test_a_site_without_settings_needs_nothing(tmp_path: Path) -> None:
    assert written(Site(), tmp_path) == {}
    assert sitefiles.arguments(Site()) == ()
    assert sitefiles.network(Site()) == ()


def test_every_setting_reaches_the_tool_that_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("certificates")
    site = Site(
        ca_bundle=tmp_path / "ca.pem",
        index="https://me:50%25@index.example/simple",
        extra_indexes=("https://a.example/simple", "https://b.example/simple"),
        wheel_folders=("https://wheels.example/", str(tmp_path)),
        apt_mirror="http://mirror.example/debian",
        apt_security_mirror="http://mirror.example/security",
        apt_options=(("Acquire::Retries", "5"), ("Acquire::https::CaInfo", str(tmp_path / "ca.pem"))),
    )
    found = written(site, tmp_path)
    assert found["ca"] == "certificates"
    assert found["pip"] == (
        "[global]\n"
        "index-url = https://me:50%25@index.example/simple\n"
        "extra-index-url =\n    https://a.example/simple\n    https://b.example/simple\n"
        # A folder of this host is none inside of a build.
        "find-links =\n    https://wheels.example/\n"
    )
    # The Dockerfile names the bundle's place inside of the build by itself.
    assert found["apt"] == 'Acquire::Retries "5";\n'
    assert "URIs: http://mirror.example/debian\nSuites: trixie trixie-updates\n" in found["sources"]
    assert "URIs: http://mirror.example/security\nSuites: trixie-security\n" in found["sources"]


def test_what_may_hold_a_password_is_closed_to_others(tmp_path: Path) -> None:
    site = Site(index="https://me:word@index.example/simple")
    ((_, file),) = sitefiles.write(site, LAYER, tmp_path)
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_a_mirror_has_the_sections_that_packages_are_from(tmp_path: Path) -> None:
    deb = samples.deb("firmware").model_copy(update={"path": "pool/non-free/y/y/y_1_amd64.deb"})
    site = Site(apt_mirror="http://m.example/debian", apt_security_mirror="http://m.example/security")
    ((_, file),) = sitefiles.write(site, dataclasses.replace(LAYER, debs=(deb,)), tmp_path)
    assert "Components: main non-free\n" in file.read_text()


def test_proxies_go_by_every_name_that_a_tool_reads() -> None:
    site = Site(proxies=(("https", "http://p:1"), ("no_proxy", "localhost,.example")))
    assert sitefiles.arguments(site) == (
        ("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", "localhost,.example"),
        ("https_proxy", "http://p:1"), ("no_proxy", "localhost,.example"),
    )  # fmt: skip
    assert sitefiles.network(site) == ()


def test_a_proxy_on_this_hosts_loopback_is_within_reach() -> None:
    assert sitefiles.network(Site(proxies=(("http", "http://127.0.0.1:3128"),))) == ("--network=host",)
