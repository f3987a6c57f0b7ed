from __future__ import annotations

import pytest

from imagebuilder.core.reference import Reference, is_loopback, parse
from imagebuilder.errors import InputError

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "host", "path", "tag", "digest"),
    [
        ("localhost:5000/team/torch:1.0", "localhost:5000", "team/torch", "1.0", ""),
        ("registry.example/torch", "registry.example", "torch", "", ""),
        ("REGISTRY.example/torch", "registry.example", "torch", "", ""),
        ("[::1]:5000/torch:x", "[::1]:5000", "torch", "x", ""),
        (f"registry.example/a/b@{DIGEST}", "registry.example", "a/b", "", DIGEST),
        (f"registry.example/a/b:t@{DIGEST}", "registry.example", "a/b", "t", DIGEST),
        ("team/torch:1", "docker.io", "team/torch", "1", ""),
        ("torch", "docker.io", "library/torch", "", ""),
        ("localhost/a__b.c-d--e", "localhost", "a__b.c-d--e", "", ""),
    ],
)
def test_reads_names_as_docker_does(text: str, host: str, path: str, tag: str, digest: str) -> None:
    assert parse(text) == Reference(host=host, path=path, tag=tag, digest=digest)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("https://registry.example/torch", "holds a scheme"),
        ("registry.example/Torch", "is not a repository's name"),
        ("registry.example/", "is not a repository's name"),
        ("registry.example/a//b", "is not a repository's name"),
        ("registry.example/../etc", "is not a repository's name"),
        ("registry.example:99999/torch", "is not a registry's host"),
        ("registry.example:/torch", "is not a registry's host"),
        ("regis\x1btry.example/torch", "is not a registry's host"),
        ("registry.example/torch:", "is not a tag"),
        ("registry.example/torch:-x", "is not a tag"),
        ("registry.example/torch@sha256:abc", "is not a digest"),
        ("registry.example/" + "a" * 256, "is not a repository's name"),
        ("", "is not a repository's name"),
    ],
)
def test_refuses_what_is_not_a_name(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "->" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_docker_hub_is_served_by_another_host() -> None:
    assert parse("team/torch").endpoint == "registry-1.docker.io"
    assert parse("registry.example/torch").endpoint == "registry.example"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:5000", "127.0.0.1:1", "127.1.2.3", "[::1]", "[::1]:5000"]
)
def test_knows_this_host(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example", "128.0.0.1", "127.0.0.1.example:5000", "[::2]:5000"])
def test_knows_other_hosts(host: str) -> None:
    assert not is_loopback(host)
