"""Pushing to real registries, and reading back what was pushed with somebody else's tool."""

from __future__ import annotations

import base64
import json
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from imagebuilder.core.process import Result, run
from imagebuilder.errors import RegistryError
from imagebuilder.host.site import detect
from imagebuilder.publish.leaks import marks, scan
from imagebuilder.registry import Client, Options, parse
from imagebuilder.registry.certificates import Trust
from imagebuilder.registry.credentials import ANONYMOUS, Credentials
from imagebuilder.store import ImageRecord, Store
from tests.integration.conftest import Built
from tests.support import token_server
from tests.support.answers import result
from tests.support.images import noise, put_image
from tests.support.planted import Maker
from tests.support.pushing import push
from tests.support.servers import PASSWORD, USER, RegistryServer, registry_server
from tests.unit.samples import RECIPES


@pytest.fixture
def images(tmp_path: Path) -> Store:
    return Store(tmp_path / "images")


@pytest.fixture
def image(images: Store) -> ImageRecord:
    return put_image(images, [{"a": noise(1, 3_000_000)}, {"b": noise(2, 1_000_000)}])


def skopeo(verb: str, *words: str) -> str:
    return run(["skopeo", verb, *words], timeout=120).stdout


def test_push_and_read_back(registry: str, images: Store, image: ImageRecord, tmp_path: Path) -> None:
    first = push(image, images, f"{registry}/push/plain:one", ["two"])
    assert (
        first.pushed_bytes
        == sum(layer.record.size for layer in image.layers) + images.blob(image.config).stat().st_size
    )
    seen = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{registry}/push/plain:two"))
    assert seen["Digest"] == image.manifest
    assert seen["Labels"] == {"org.imagebuilder.recipe": "sample", "org.imagebuilder.test": "one"}
    assert {"one", "two"} <= set(seen["RepoTags"])
    # A copy reads every blob and checks its digest.
    skopeo("copy", "--src-tls-verify=false", f"docker://{registry}/push/plain:one", f"oci:{tmp_path}/copy:x")
    copied = sorted(path.name for path in (tmp_path / "copy/blobs/sha256").iterdir())
    assert f"{image.manifest.removeprefix('sha256:')}" in copied


def test_a_second_push_sends_no_blob(registry: str, images: Store, image: ImageRecord) -> None:
    push(image, images, f"{registry}/push/again:x")
    again = push(image, images, f"{registry}/push/again:x")
    assert (again.pushed_bytes, again.pushed_blobs, again.reused_blobs) == (0, 0, 3)


def test_only_the_changed_layer_travels(registry: str, images: Store, image: ImageRecord) -> None:
    push(image, images, f"{registry}/push/change:x")
    changed = put_image(images, [{"a": noise(1, 3_000_000)}, {"b": noise(3, 500_000)}], label="two")
    result = push(changed, images, f"{registry}/push/change:x", move=True)
    assert result.moved == (("x", image.manifest),)
    config = images.blob(changed.config).stat().st_size
    assert result.pushed_bytes == changed.layers[1].record.size + config
    assert Client(parse(f"{registry}/push/change"), Options()).head_manifest("x") == changed.manifest


def test_another_repository_links_the_blobs(registry: str, images: Store, image: ImageRecord) -> None:
    push(image, images, f"{registry}/push/from:x")
    result = push(image, images, f"{registry}/push/to:x")
    assert (result.mounted_blobs, result.pushed_bytes) == (3, 0)
    skopeo("copy", "--src-tls-verify=false", f"docker://{registry}/push/to:x", f"oci:{images.root}/copy:x")


def docker_config(folder: Path, host: str, password: str) -> None:
    folder.mkdir()
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def trusting(server: RegistryServer) -> Options:
    session = requests.Session()
    session.verify = str(server.ca)
    return Options(session=session)


def test_password_and_private_authority(
    secure_registry: RegistryServer,
    images: Store,
    image: ImageRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docker_config(tmp_path / "docker", secure_registry.host, PASSWORD)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    target = f"{secure_registry.host}/push/secure:x"
    assert push(image, images, target, options=trusting(secure_registry)).pushed_blobs == 3
    again = push(image, images, target, options=trusting(secure_registry))
    assert (again.pushed_bytes, again.reused_blobs) == (0, 3)
    seen = skopeo(
        "inspect",
        "--cert-dir",
        str(secure_registry.folder / "trust"),
        "--creds",
        f"{USER}:{PASSWORD}",
        f"docker://{target}",
    )
    assert json.loads(seen)["Digest"] == image.manifest


def test_an_authority_that_nobody_knows(
    secure_registry: RegistryServer, images: Store, image: ImageRecord
) -> None:
    with pytest.raises(RegistryError, match="is not trusted") as caught:
        push(image, images, f"{secure_registry.host}/push/secure:x")
    assert "`ca:`" in str(caught.value)


@pytest.mark.parametrize("password", ["", "wrong"])
def test_a_wrong_password(
    secure_registry: RegistryServer,
    images: Store,
    image: ImageRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    password: str,
) -> None:
    docker_config(tmp_path / "docker", secure_registry.host, password)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with pytest.raises(RegistryError, match=f"docker login {secure_registry.host}"):
        push(image, images, f"{secure_registry.host}/push/secure:x", options=trusting(secure_registry))


@pytest.mark.parametrize("way", ["certs.d", "site"])
def test_client_certificates(
    images: Store, image: ImageRecord, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    server = RegistryServer(folder, secure=True, clients=True)
    assert server.ca
    server.start()
    try:
        alice = Credentials(user=USER, password=PASSWORD)
        target = f"{server.host}/push/clients:x"
        with pytest.raises(RegistryError):
            push(image, images, target, options=replace(trusting(server), credentials=alice, attempts=1))
        if way == "certs.d":
            place = tmp_path / "home" / ".docker" / "certs.d" / server.host
            place.mkdir(parents=True)
            shutil.copy(server.ca, place / "ca.crt")
            shutil.copy(folder / "client.crt", place / "client.cert")
            shutil.copy(folder / "client.key", place / "client.key")
            options = Options(home=tmp_path / "home", credentials=alice)
        else:
            trust = Trust(authorities=(server.ca,), client=(folder / "client.crt", folder / "client.key"))
            options = Options(trust={server.host: trust}, home=tmp_path, credentials=alice)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/ssl/certs/ca-certificates.crt")
        assert push(image, images, target, options=options).pushed_blobs == 3
    finally:
        server.stop()


def test_tokens(images: Store, image: ImageRecord, tmp_path: Path) -> None:
    alice = Options(credentials=Credentials(user=USER, password=PASSWORD))
    with token_server.serve(tmp_path) as tokens:
        server = RegistryServer(tmp_path, extra=tokens.settings)
        server.start()
        try:
            push(image, images, f"{server.host}/push/one:x", options=alice)
            assert tokens.asked == [["repository:push/one:pull,push"]]
            linked = push(image, images, f"{server.host}/push/two:x", options=alice)
            assert (linked.mounted_blobs, linked.pushed_bytes) == (3, 0)
            assert tokens.asked[-1] == ["repository:push/two:pull,push", "repository:push/one:pull"]
            # A registry allows a minute of difference between clocks, so this token is refused at once.
            tokens.seconds = -70
            with pytest.raises(RegistryError, match="sign in"):
                push(image, images, f"{server.host}/push/one:y", options=alice)
            with pytest.raises(RegistryError, match="docker login"):
                push(image, images, f"{server.host}/push/one:y", options=Options(credentials=ANONYMOUS))
        finally:
            server.stop()


def test_the_registry_is_killed_in_the_middle_and_comes_back(tmp_path: Path, images: Store) -> None:
    image = put_image(images, [{"a": noise(1, 64_000_000)}, {"b": noise(2, 1_000_000)}])
    (tmp_path / "registry").mkdir()
    with registry_server(tmp_path / "registry") as server:
        counted: list[int] = []
        killed = threading.Event()

        def restart() -> None:
            server.kill()
            killed.set()
            server.start()

        restarting = threading.Thread(target=restart)

        def advance(size: int) -> None:
            counted.append(size)
            # Only the large layer comes to this much.
            if sum(counted) > 20_000_000 and not killed.is_set() and not restarting.ident:
                restarting.start()
                assert killed.wait(30)

        result = push(image, images, f"{server.host}/push/killed:x", advance=advance)
        restarting.join()
        assert killed.is_set()
        assert sum(counted) == image.size
        assert result.digest == image.manifest
        skopeo(
            "copy",
            "--src-tls-verify=false",
            f"docker://{server.host}/push/killed:x",
            f"oci:{tmp_path}/copy:x",
        )


def imagebuilder(*words: str | Path) -> Result:
    """Run the command line: exit code, and what it says."""
    program = Path(sys.executable).parent / "imagebuilder"
    return run([program, *words], timeout=300, check=False)


def test_the_command_line_refuses_says_why_and_records_what_is_waived(
    registry: str, images: Store, tmp_path: Path
) -> None:
    secret = Maker(3, tmp_path).all()
    files = {item.path: item.text for item in (secret[".netrc"], secret["OpenSSH key"])}
    put_image(images, [files, {"root/.wh..netrc": b""}], name="leaky")
    target = f"{registry}/push/leaky:x"
    # Nobody built it from a recipe, so there is nothing to attach.
    words = ("push", "leaky", target, "--no-attach", "--store", images.root, "--json", "--progress", "lines")
    refused = imagebuilder(*words)
    assert refused.code == 10
    for part in ("there is no smoke test", "root/.netrc:", "root/.ssh/id_ed25519:", "--allow-baked-keys"):
        assert part in refused.stderr
    assert secret[".netrc"].secret.decode() not in refused.stdout + refused.stderr
    assert not Client(parse(f"{registry}/push/leaky"), Options()).head_manifest("x")
    # Nothing but its recipe says that a file holds no secret, and this image has none.
    still = imagebuilder(*words, "--untested", "--allow-baked-keys")
    assert (still.code, "not_secret:" in still.stderr) == (10, True)
    put_image(images, [{secret["OpenSSH key"].path: secret["OpenSSH key"].text}], name="leaky")
    pushed = imagebuilder(*words, "--untested", "--allow-baked-keys")
    assert pushed.code == 0, pushed.stderr
    record = result(pushed.stdout)
    flags = [item["flag"] for item in record["waivers"]]
    assert flags == ["--untested", "--allow-baked-keys"]
    assert pushed.stderr.count("warning: --") == 2
    # Another image under the same tag: refused, with nothing sent, unless it is asked for.
    put_image(images, [{"other": b"1"}], name="leaky")
    still = imagebuilder(*words, "--untested")
    assert (still.code, "points to another image" in still.stderr) == (10, True)
    moved = imagebuilder(*words, "--untested", "--move")
    assert [tag for tag, _ in result(moved.stdout)["moved"]] == ["x", "tag1", "0" * 12]


def test_a_shipped_image_holds_no_secret(built: Built, store: Store) -> None:
    """cuda12-torch is searched by its push in test_main_job."""
    built(RECIPES / "cpu-mpi.yaml")
    image = store.image("cpu-mpi")
    assert image
    found = scan(image, store, marks(detect(), Path("/home/builder"), store.root))
    assert [f"{title}: {finding}" for title, finding in found.findings] == []
    assert found.files > 10_000
    assert found.bytes == sum(layer.record.unpacked for layer in image.layers)
    again = scan(image, store, marks(detect(), Path("/home/builder"), store.root))
    assert (again.read, again.files, again.bytes) == (0, found.files, found.bytes)
