"""The engine that `docker` uses, and the credentials that `podman login` leaves."""

from __future__ import annotations

import base64
import hashlib
import json
import tomllib
from pathlib import Path

import pytest

from imagebuilder.core.installation import DISTRIBUTION, command
from imagebuilder.errors import EnvironmentFault, ImagebuilderError
from imagebuilder.host import clients, engine
from imagebuilder.registry.credentials import ANONYMOUS, find


def put(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def put_context(folder: Path, name: str, host: str, **endpoint: object) -> Path:
    """Write a context as `docker context create` does; returns the folder of its certificates."""
    word = hashlib.sha256(name.encode()).hexdigest()
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host, **endpoint}}}
    put(folder / "contexts/meta" / word / "meta.json", meta)
    return folder / "contexts/tls" / word / "docker"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DOCKER_HOST", "CONTAINER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".docker"


def tried(runtime: str = "auto") -> str:
    with pytest.raises(EnvironmentFault) as caught, engine.connect(runtime):
        pass
    return caught.value.problems[0].message


def test_no_settings_are_the_default_socket(home: Path) -> None:
    assert clients.current_context() is None
    put(home / "config.json", {"currentContext": "default"})
    assert clients.current_context() is None


def test_the_context_in_use_is_the_only_engine_that_is_tried(home: Path) -> None:
    put(home / "config.json", {"currentContext": "rootless"})
    put_context(home, "rootless", "unix:///nowhere/of/mine.sock")
    said = "(tried unix:///nowhere/of/mine.sock of the context rootless)"
    assert tried() == f"no container engine answers {said}"
    assert tried("docker") == f"no docker answers {said}"


def test_a_variable_comes_before_the_context_in_use(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / "config.json", {"currentContext": "one"})
    put_context(home, "one", "unix:///one.sock")
    put_context(home, "two", "unix:///two.sock")
    monkeypatch.setenv("DOCKER_CONTEXT", "two")
    assert tried() == "no container engine answers (tried unix:///two.sock of the context two)"
    # As for docker: an address comes before both.
    monkeypatch.setenv("DOCKER_HOST", "unix:///three.sock")
    assert tried() == "no container engine answers (tried unix:///three.sock)"


def test_a_context_needs_no_config_file_and_is_not_read_from_the_current_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    put_context(home.parent, "mine", "tcp://attacker.example:2375")
    with pytest.raises(EnvironmentFault, match="there is no context `mine`"):
        clients.current_context()
    put_context(home, "mine", "ssh://me@build.example")
    assert clients.current_context() == clients.DockerContext(name="mine", address="ssh://me@build.example")


def test_a_context_brings_its_certificates(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    folder = put_context(home, "far", "tcp://far.example:2376", SkipTLSVerify=False)
    context = clients.current_context()
    assert context is not None
    assert engine._tls(context) == {}
    files = [put(folder / f"{name}.pem", "x") for name in ("ca", "cert", "key")]
    context = clients.current_context()
    assert context is not None
    tls = engine._tls(context)["tls"]
    assert tls.ca_cert == str(files[0])
    assert tls.cert == (str(files[1]), str(files[2]))
    assert tls.verify is True
    # A CA alone is enough for an engine that asks for no certificate.
    files[2].unlink()
    context = clients.current_context()
    assert context is not None
    assert engine._tls(context)["tls"].cert is None


@pytest.mark.parametrize("meta", ["{", "[]", {}, {"Endpoints": []}, {"Endpoints": {"docker": {"Host": 3}}}])
def test_a_broken_context_is_an_error_with_its_place(home: Path, meta: object) -> None:
    put(home / "config.json", {"currentContext": "x"})
    folder = put_context(home, "x", "unix:///x.sock")
    path = put(home / "contexts/meta" / folder.parent.name / "meta.json", meta)
    with pytest.raises(ImagebuilderError) as caught:
        clients.current_context()
    assert str(path) in str(caught.value)


def test_an_unknown_context_is_named_with_the_way_back(home: Path) -> None:
    put(home / "config.json", {"currentContext": "gone\x1b[2J"})
    with pytest.raises(EnvironmentFault) as caught:
        clients.current_context()
    assert str(caught.value) == (
        f"{home}/config.json: currentContext: there is no context `gone\\x1b[2J`\n"
        "  -> `docker context ls` lists them; for the default engine: docker context use default"
    )


def test_a_misspelt_context_is_answered_with_the_nearest_and_the_variable(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_context(home, "colima", "unix:///x.sock")
    monkeypatch.setenv("DOCKER_CONTEXT", "colma")
    with pytest.raises(EnvironmentFault) as caught:
        clients.current_context()
    assert str(caught.value) == (
        "DOCKER_CONTEXT: there is no context `colma`\n  -> perhaps you meant `colima`; "
        "`docker context ls` lists them; for the default engine: unset DOCKER_CONTEXT"
    )


def login(user: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:secret".encode()).decode()}


def test_podmans_credentials_are_read_beside_dockers(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    assert find("one.example", environment) == ANONYMOUS
    put(tmp_path / ".config/containers/auth.json", {"auths": {"one.example": login("config")}})
    assert find("one.example", environment).user == "config"
    put(tmp_path / "run/containers/auth.json", {"auths": {"one.example": login("runtime")}})
    assert find("one.example", environment).user == "runtime"
    put(tmp_path / ".docker/config.json", {"auths": {"one.example": login("docker")}})
    assert find("one.example", environment).user == "docker"
    other = put(tmp_path / "other.json", {"auths": {"one.example": login("named")}})
    assert find("one.example", {**environment, "REGISTRY_AUTH_FILE": str(other)}).user == "named"


def test_podman_may_have_credentials_for_a_part_of_a_registry(tmp_path: Path) -> None:
    auths = {"quay.io/team": login("team"), "quay.io/team/torch": login("torch"), "quay.io": login("all")}
    path = put(tmp_path / "auth.json", {"auths": auths})
    environment = {"HOME": str(tmp_path), "REGISTRY_AUTH_FILE": str(path)}
    users = [
        find("quay.io", environment, path=name).user
        for name in ("team/torch", "team/other", "teams/torch", "team/torch/x")
    ]
    assert users == ["torch", "team", "all", "torch"]
    put(path, {"auths": {"quay.io/team": login("team")}})
    assert find("quay.io", environment, path="others/torch") == ANONYMOUS


def test_the_distribution_is_called_as_pyproject_says() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"] == {"imagebuilder": "imagebuilder.cli:main"}


CHECKOUT = json.dumps({"url": "file:///home/me/my%20code", "dir_info": {"editable": True}})
WHEEL = json.dumps({"url": "file:///srv/imagebuilder_dl-0.1.0-py3-none-any.whl", "archive_info": {}})


@pytest.mark.parametrize(
    ("recorded", "file", "pip", "words"),
    [
        (None, "", True, "PREFIX/bin/python -m pip install 'imagebuilder-dl[sign]'"),
        (None, "", False, "uv pip install --python PREFIX/bin/python 'imagebuilder-dl[sign]'"),
        (None, "uv-receipt.toml", False, "uv tool install 'imagebuilder-dl[sign]'"),
        (None, "pipx_metadata.json", False, "pipx install --force 'imagebuilder-dl[sign]'"),
        (CHECKOUT, "", True, "PREFIX/bin/python -m pip install -e '/home/me/my code[sign]'"),
        (
            WHEEL,
            "uv-receipt.toml",
            False,
            "uv tool install 'imagebuilder-dl[sign] @ file:///srv/imagebuilder_dl-0.1.0-py3-none-any.whl'",
        ),
    ],
)
def test_an_extra_is_added_as_the_program_was_installed(
    recorded: str | None, file: str, pip: bool, words: str, tmp_path: Path
) -> None:
    if file:
        put(tmp_path / file, "")
    said = command("sign", recorded=recorded, prefix=tmp_path, python=f"{tmp_path}/bin/python", pip=pip)
    assert said == words.replace("PREFIX", str(tmp_path))


def test_an_extra_for_one_run_of_uvx() -> None:
    prefix = Path("/home/me/.cache/uv/archive-v0/x1y2")
    said = command("sign", recorded=None, prefix=prefix, python="python", pip=False)
    assert said == "uvx --from 'imagebuilder-dl[sign]' imagebuilder"
