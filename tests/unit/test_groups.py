"""Which packages share a layer: by purpose, whatever else is in the lock."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from imagebuilder.lock import file as lockfile
from imagebuilder.lock.model import Deb
from imagebuilder.plan import groups
from tests.unit import samples

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
MEGABYTE = 1_000_000


def deb(name: str, source: str, *, size: int = 1000, pool: str = "pool/main") -> Deb:
    path = f"{pool}/{source[0]}/{source}/{name}_1_amd64.deb"
    return samples.deb(name).model_copy(update={"path": path, "size": size})


def named(debs: Iterable[Deb]) -> dict[str, list[str]]:
    return {group.name: [deb.name for deb in group.debs] for group in groups.of(debs)}


def test_packages_go_by_their_source_and_the_base_comes_first() -> None:
    debs = (
        deb("openssh-server", "openssh", pool="pool/updates/main"),
        deb("gcc-14", "gcc-14"),
        deb("libstdc++6", "gcc-14"),
        deb("libnuma1", "numactl"),
        deb("htop", "htop"),
        deb("bash", "bash"),
        deb("nvidia-cuda-dev", "nvidia-cuda-toolkit", pool="pool/non-free"),
    )
    assert list(named(debs).items()) == [
        ("base", ["bash"]),
        ("ssh", ["openssh-server"]),
        ("compilers", ["gcc-14", "libstdc++6"]),
        ("mpi", ["libnuma1"]),
        ("cuda", ["nvidia-cuda-dev"]),
        ("other", ["htop"]),
    ]


def test_what_is_large_and_of_no_purpose_has_a_layer_of_its_own_but_not_without_end() -> None:
    large = [deb(f"big{n:02}", f"big{n:02}", size=(30 - n) * MEGABYTE) for n in range(12)]
    halves = [deb("half-a", "halves", size=5 * MEGABYTE), deb("half-b", "halves", size=5 * MEGABYTE)]
    found = named([*large, deb("small", "small")])
    alone = [f"source:big{n:02}" for n in range(8)]
    assert list(found) == [*alone, "other"]
    assert found["other"] == ["big08", "big09", "big10", "big11", "small"]
    assert named(halves) == {"source:halves": ["half-a", "half-b"]}


def test_a_package_more_moves_no_other_one() -> None:
    shipped = lockfile.read(RECIPES / "cuda12-torch-devel.lock").sections[0].debs
    before, after = named(shipped), named((*shipped, deb("htop", "htop")))
    assert {name: debs for name, debs in before.items() if name != "other"} == {
        name: debs for name, debs in after.items() if name != "other"
    }
    assert set(after["other"]) == {*before["other"], "htop"}


def test_an_archive_without_a_pool_has_packages_and_no_sources() -> None:
    alone = samples.deb("libnccl2").model_copy(update={"path": "libnccl2_2.27.5-1_amd64.deb"})
    below = samples.deb("libnccl2").model_copy(update={"path": "amd64/libnccl2_2.27.5-1_amd64.deb"})
    assert [groups.source(each) for each in (alone, below)] == ["libnccl2", "libnccl2"]


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.lock")), ids=lambda path: path.stem)
def test_of_a_shipped_lock_little_is_of_no_purpose(path: Path) -> None:
    debs = lockfile.read(path).sections[0].debs
    found = groups.of(debs)
    assert sorted(deb.name for group in found for deb in group.debs) == sorted(deb.name for deb in debs)
    assert sum(deb.size for group in found if group.name == "other" for deb in group.debs) < MEGABYTE
    assert len(found) <= 8
