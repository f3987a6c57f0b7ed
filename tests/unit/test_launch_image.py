"""What an image knows of itself: read from its config, which nobody vouches for."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from imagebuilder.errors import InputError
from imagebuilder.launch import image as images
from tests.unit import launching

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a name as user": ({"User": "root"}, "its user is `root`, which is not a number"),
    "a large uid": ({"User": "4294967295"}, "its user is `4294967295`, which is not a number"),
    "an odd folder": ({"WorkingDir": "/a b"}, "its working folder is `/a b`"),
    "a command as text": ({"Cmd": "run"}, "its command is not a list of texts"),
    "numbers as command": ({"Cmd": [1]}, "its command is not a list of texts"),
    "variables as text": ({"Env": "A=b"}, "its command is not a list of texts"),
    "root as another": ({"User": "1000:0"}, "it runs as uid 1000, and its ssh user is `root`"),
    "a hostile user": (
        {"labels": {"org.imagebuilder.ssh.user": "$(id)"}},
        "its label `org.imagebuilder.ssh.user` is not a user's name",
    ),
    "a hostile port": (
        {"labels": {"org.imagebuilder.ssh.port": "22;id"}},
        "its label `org.imagebuilder.ssh.port` is `22;id`, which is not a port",
    ),
    "a hostile version": (
        {"labels": {"org.imagebuilder.pin.torch": "1\n- evil: x"}},
        "its label `org.imagebuilder.pin.torch` is not a version",
    ),
    "a hostile component": (
        {"labels": {"org.imagebuilder.pin.a\nb": "1"}},
        "its label `org.imagebuilder.pin.a\\nb` is not a version",
    ),
    "another tool's": ({"Labels": {}}, "this is not an image of imagebuilder"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_damaged_config_is_refused(case: str) -> None:
    changed, message = WRONG[case]
    with pytest.raises(InputError, match=re.escape(f"{launching.REFERENCE}: {message}")):
        launching.image(**changed)


def test_an_image_says_what_it_is() -> None:
    found = launching.image(Cmd=["python", "-V"])
    assert (found.repository, found.digest) == ("registry.example/team/cuda12", launching.DIGEST)
    assert (found.user, found.uid, found.home, found.port) == ("root", 0, "/root", 22)
    assert found.command == ("python", "-V")
    assert (found.mpi, tuple(found.launchers), found.uses_gpus) == ("openmpi", ("torchrun",), True)
    assert (found.needs("driver"), found.needs("gpus")) == ("570.26 or newer", "7.0 to 12.0")
    assert found.needs("python") == ""


def test_another_user_has_its_own_places() -> None:
    found = launching.trainer()
    assert (found.user, found.uid, found.home, found.port) == ("trainer", 1000, "/home/trainer", 2222)
    assert found.state == "/tmp/imagebuilder-trainer"


def engine_with(**attrs: Any) -> Any:
    found = SimpleNamespace(id=f"sha256:{'b' * 64}", attrs={"Config": launching.config(), **attrs})
    client = SimpleNamespace(images=SimpleNamespace(get=lambda _name: found))
    return SimpleNamespace(client=client, kind="docker")


def test_an_engines_image_is_named_by_its_digest_in_a_registry() -> None:
    entries = [f"b.example/x@{launching.DIGEST}", f"a.example/x@{launching.DIGEST}"]
    engine = engine_with(RepoDigests=entries)
    assert images.from_engine(engine, "x", "").reference == entries[1]
    assert images.from_engine(engine, "x", "b.example/x").reference == entries[0]
    with pytest.raises(InputError, match=r"x: docker does not know its digest in c\.example/x"):
        images.from_engine(engine, "x", "c.example/x")


def test_an_engines_image_that_no_registry_has_is_named_by_its_id() -> None:
    found = images.from_engine(engine_with(), "x", "")
    assert (found.reference, found.pullable) == (f"sha256:{'b' * 64}", False)
