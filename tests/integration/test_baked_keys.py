"""An image with its ssh key baked in (docs/explanation/ssh.md): its nodes meet, and the report says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.core.process import Result, run
from imagebuilder.store import Store
from tests.integration.conftest import Built
from tests.support import recipes
from tests.support.answers import built_image, result

PROGRAM = Path(sys.executable).parent / "imagebuilder"
BAKED = "ssh: {port: 2222, user: trainer, keys: baked}"


def imagebuilder(*words: str | Path, check: bool = True) -> Result:
    return run([PROGRAM, *words], timeout=600, check=check)


@pytest.fixture(scope="module")
def recipe(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped recipe under another name, with a baked key and the same packages."""
    built(recipes.SHIPPED)
    return recipes.like_shipped(tmp_path_factory.mktemp("baked"), "baked-key", {recipes.SSH: BAKED})


def test_baked_keys_from_build_to_push(
    recipe: Path, store: Store, engine: DockerClient, registry: str
) -> None:
    options = ("--store", store.root)
    first = imagebuilder("build", recipe, "--load", "--json", *options)
    assert "everybody who can pull the image can log in" in first.stderr
    made = built_image(first.stdout)
    try:
        # Random, but made once for each lock.
        again = built_image(imagebuilder("build", recipe, "--json", *options).stdout)
        assert again["digest"] == made["digest"]
        checks = ("--check", "contents", "--check", "ssh", "--check", "mpirun")
        tested = result(imagebuilder("smoke-test", recipe, "--json", *checks, *options, check=False).stdout)
        status = {row["name"]: row["status"] for row in tested["checks"]}
        assert (status["contents"], status["ssh"], status["mpirun"]) == ("passed", "passed", "passed")
        assert any("ssh key in a layer" in caveat for caveat in tested["caveats"])
        push = ("push", recipe, f"{registry}/baked/key", "--untested", "--no-attach", *options)
        refused = imagebuilder(*push, check=False)
        assert refused.code == 10
        assert "etc/imagebuilder/keys/id_ed25519" in refused.stderr
        assert "--allow-baked-keys" in refused.stderr
        assert imagebuilder(*push, "--allow-baked-keys", check=False).code == 0
        key = engine.containers.run(
            made["reference"], ["cat", "/etc/imagebuilder/keys/id_ed25519"], entrypoint="", remove=True
        )
        assert b"PRIVATE KEY" in key
        assert key.decode() not in first.stdout + first.stderr + refused.stderr
    finally:
        engine.images.remove(made["reference"], force=True)
