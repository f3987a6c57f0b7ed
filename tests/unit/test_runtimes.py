"""What a recipe says of the runtimes that pull its image, and what `push` then warns of."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from imagebuilder import recipe as recipes
from imagebuilder.errors import InputError
from imagebuilder.recipe import runtimes
from tests.unit import samples

PAGE = (samples.ROOT / "docs" / "how-to" / "pull.md").read_text()


@pytest.mark.parametrize(
    ("stated", "zstd", "said"),
    [
        ("docker 20.10", True, "docker 20.10 cannot pull layers packed with zstd (23.0 can)"),
        ("docker 20.10", False, ""),
        ("docker 23.0.1", True, ""),
        ("containerd 1.4.13", True, "(1.5 can)"),
        ("containerd 1.10", True, ""),  # as numbers, not as text
        ("cri-o 1.15", True, "(1.15.3 can)"),
        ("cri-o 1.15.10", True, ""),
        ("enroot 3.5", True, "(4.0 can): set ENROOT_GZIP_PROGRAM=zstd"),
        ("enroot 4", True, ""),
        ("apptainer 1.4.5", True, "(1.5 can): give it a file of `imagebuilder build"),
        ("singularity 4.3", True, "whether singularity 4.3 can pull layers packed with zstd is not known"),
        ("singularity 4.3", False, ""),
        ("enroot 3.5", False, ""),
        ("soci 0.13.9", False, "make none before 0.14"),
        ("soci 0.14.0", False, ""),
        ("soci 0.13.9", True, ""),
    ],
)
def test_a_runtime_that_cannot_read_an_image_is_named(stated: str, zstd: bool, said: str) -> None:
    found = list(runtimes.warnings([stated, "podman 5.4"], zstd=zstd))
    assert len(found) == bool(said)
    assert all(said in text for text in found)


@pytest.mark.parametrize(
    "stated",
    [
        "docker",
        "docker 20.x",
        "docker  20",
        "rocket 1.0",
        "docker 20.10\x1b[31m",
        "docker " + "1" * 5000,
        20.10,
    ],
)
def test_another_word_is_refused_with_the_names_that_are_known(tmp_path: Path, stated: object) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"name: r\nbase: debian:trixie\nhosts: {{runtimes: [{json.dumps(stated)}]}}\n")
    with pytest.raises(InputError, match=r"hosts\.runtimes\[0\]") as error:
        recipes.load(path, frozenset())
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 2_000


def test_at_most_a_hundred_are_stated() -> None:
    with pytest.raises(ValidationError, match="too_long"):
        samples.recipe(hosts={"runtimes": ("docker 20.10",) * 101})


def test_the_page_and_the_comparison_have_the_same_versions() -> None:
    table = PAGE[PAGE.index("### What reads it") : PAGE.index("### Which parameters")]
    rows = [line.lower().split("|")[1:3] for line in table.splitlines() if line.startswith("|")][2:]
    told = set()
    for who, what in rows:
        names = [name for name in runtimes.ZSTD if re.search(rf"\b{name}\b", who)]
        assert names, who
        # What the page says of umoci and of Docker's own containerd is in other words.
        versions = set(re.findall(r"since \[?([0-9.]*[0-9])", what)) or {""}
        expected = {runtimes.ZSTD[name] for name in names}
        assert versions <= expected, who
        told |= {(name, version) for name in names for version in versions if runtimes.ZSTD[name] == version}
    assert told == set(runtimes.ZSTD.items())
