from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.registry.credentials import ANONYMOUS, Credentials, find

HOST = "registry.example:5000"


def write(folder: Path, config: object) -> dict[str, str]:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return {"DOCKER_CONFIG": str(folder)}


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def put_helper(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_no_config_is_nobody(tmp_path: Path) -> None:
    assert find(HOST, {"DOCKER_CONFIG": str(tmp_path)}) == ANONYMOUS
    assert find(HOST, {"HOME": str(tmp_path)}) == ANONYMOUS
    assert not ANONYMOUS


def test_home_holds_the_config(tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    write(tmp_path / ".docker", {"auths": {HOST: auth("alice:pa:ss")}})
    assert find(HOST, {"HOME": str(tmp_path)}) == Credentials(user="alice", password="pa:ss")


@pytest.mark.parametrize("key", [HOST, f"https://{HOST}", f"https://{HOST}/v1/", f"http://{HOST}/v2/"])
def test_hosts_as_tools_write_them(tmp_path: Path, key: str) -> None:
    assert find(HOST, write(tmp_path, {"auths": {key: auth("alice:secret")}})).password == "secret"


def test_another_host_gets_nothing(tmp_path: Path) -> None:
    auths = {f"x{HOST}": auth("a:1"), "registry.example": auth("a:2"), "registry.example:50": auth("a:3")}
    assert find(HOST, write(tmp_path, {"auths": auths})) == ANONYMOUS


def test_docker_hub_has_a_key_of_its_own(tmp_path: Path) -> None:
    environment = write(tmp_path, {"auths": {"https://index.docker.io/v1/": auth("alice:secret")}})
    assert find("docker.io", environment).user == "alice"


def test_an_identity_token(tmp_path: Path) -> None:
    environment = write(tmp_path, {"auths": {HOST: {"identitytoken": "abc", **auth("x:")}}})
    assert find(HOST, environment) == Credentials(identity_token="abc")


def test_the_hosts_helper_comes_before_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = 'read host; echo "{\\"Username\\":\\"%s\\",\\"Secret\\":\\"for $host\\"}"'
    put_helper(tmp_path, "one", reply % "one", monkeypatch)
    put_helper(tmp_path, "two", reply % "two", monkeypatch)
    environment = write(tmp_path, {"credHelpers": {HOST: "one"}, "credsStore": "two"})
    assert find(HOST, environment) == Credentials(user="one", password=f"for {HOST}")
    assert find("other.example", environment) == Credentials(user="two", password="for other.example")


def test_a_helper_with_an_identity_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_helper(tmp_path, "x", 'echo \'{"Username":"<token>","Secret":"abc"}\'', monkeypatch)
    assert find(HOST, write(tmp_path, {"credsStore": "x"})) == Credentials(identity_token="abc")


def test_a_helper_with_nothing_leaves_it_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_helper(tmp_path, "x", "echo credentials not found in native keychain; exit 1", monkeypatch)
    environment = write(tmp_path, {"credsStore": "x", "auths": {HOST: auth("alice:secret")}})
    assert find(HOST, environment).user == "alice"


def test_a_helper_that_talks_nonsense_keeps_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_helper(tmp_path, "x", "echo hunter2", monkeypatch)
    with pytest.raises(EnvironmentFault, match="docker login") as caught:
        find(HOST, write(tmp_path, {"credsStore": "x"}))
    assert "hunter2" not in str(caught.value)


def test_a_helper_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="docker-credential-nowhere"):
        find(HOST, write(tmp_path, {"credsStore": "nowhere"}))


def test_a_helpers_name_is_not_a_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a credential helper's name"):
        find(HOST, write(tmp_path, {"credsStore": "x/../../bin/sh"}))


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        {"auths": []},
        {"auths": {HOST: "x"}},
        {"auths": {HOST: {"auth": "%%%"}}},
        {"auths": {HOST: auth("no colon")}},
        {"credHelpers": 3},
    ],
)
def test_a_broken_config_is_an_error_with_its_place(tmp_path: Path, config: object) -> None:
    with pytest.raises(InputError) as caught:
        find(HOST, write(tmp_path, config))
    assert str(tmp_path / "config.json") in str(caught.value)


def test_no_secret_shows() -> None:
    assert "secret" not in repr(Credentials(user="alice", password="secret", identity_token="secret"))


def test_the_helper_of_docker_hub_has_the_key_of_its_entry(tmp_path: Path) -> None:
    config = {"credHelpers": {"https://index.docker.io/v1/": "no-such-helper"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EnvironmentFault, match="docker-credential-no-such-helper"):
        find("docker.io", {"DOCKER_CONFIG": str(tmp_path)})
