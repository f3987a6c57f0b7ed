"""From a recipe to its lock, with the two resolvers stood in for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from imagebuilder.catalog import select
from imagebuilder.errors import ConflictError
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Archives, Deb
from imagebuilder.resolve.locking import make_lock
from imagebuilder.workflow.locking import _lock_changes
from tests.unit import samples

RECIPE = samples.recipe(pins={"gcc": "14"})
ALWAYS = {
    "python3": "3.13.7-1",
    "python3.13": "3.13.9-1",
    "openssh-server": "1:10.0p1-7",
    "gcc-14": "14.2.0-19",
}


@pytest.fixture
def times() -> Archives:
    """When the archives wrote their Release files; a test may change it."""
    return {"trixie": "2026-09-12T07:55:41Z", "trixie-security": "2026-11-21T00:53:03Z"}


@pytest.fixture(autouse=True)
def archive(monkeypatch: pytest.MonkeyPatch, times: Archives) -> dict[str, str]:
    """Package and version of what apt would choose; a test may change it."""
    versions = dict(ALWAYS)

    def resolve(_request: object, _site: object) -> tuple[tuple[Deb, ...], Archives]:
        return tuple(samples.deb(name, version) for name, version in versions.items()), dict(times)

    monkeypatch.setattr("imagebuilder.resolve.debian.resolve_debs", resolve)
    monkeypatch.setattr("imagebuilder.resolve.debian.glibc", lambda _debs: "2.41")
    monkeypatch.setattr("imagebuilder.resolve.python.resolve_wheels", lambda *_, **__: ((), ()))
    return versions


def test_a_version_is_that_of_the_package_which_does_the_work() -> None:
    # python3 only depends on the interpreter, and lags behind it in unstable.
    assert make_lock(select(RECIPE), Site(), None, None).pins == {
        "python": "3.13.9",
        "ssh": "10.0",
        "gcc": "14.2.0",
    }


def test_a_lock_that_fits_stays_though_the_archive_moved(archive: dict[str, str]) -> None:
    first = make_lock(select(RECIPE), Site(), None, None)
    archive["gcc-14"] = "14.3.0-1"
    assert make_lock(select(RECIPE), Site(), first, None) is first
    assert make_lock(select(RECIPE), Site(), first, ()).pins["gcc"] == "14.3.0"


def test_the_state_of_the_archives_is_recorded_and_the_newest_time_is_the_image_s(times: Archives) -> None:
    lock = make_lock(select(RECIPE), Site(), None, None)
    assert lock.archives == times
    assert lock.created == "2026-11-21T00:53:03Z"


def test_the_same_packages_of_a_newer_archive_change_nothing(
    archive: dict[str, str], times: Archives
) -> None:
    first = make_lock(select(RECIPE), Site(), None, None)
    times["trixie-security"] = "2026-11-28T00:00:00Z"
    assert make_lock(select(RECIPE), Site(), first, ()) == first
    archive["gcc-14"] = "14.3.0-1"
    assert make_lock(select(RECIPE), Site(), first, ()).created == "2026-11-28T00:00:00Z"


def test_a_lock_without_times_gets_them_with_the_next_upgrade(times: Archives) -> None:
    bare = make_lock(select(RECIPE), Site(), None, None).model_copy(update={"archives": {}})
    assert bare.created == "1970-01-01T00:00:00Z"
    assert make_lock(select(RECIPE), Site(), bare, ()).archives == times


def test_what_is_not_in_the_recipe_cannot_be_upgraded() -> None:
    with pytest.raises(ConflictError, match="`torch` cannot be upgraded"):
        make_lock(select(RECIPE), Site(), None, ("torch",))


def test_a_wheel_is_not_compared_with_a_debian_package_of_its_name() -> None:
    made = {"image": None, "sources": (), "overrides": (), "installed": (), "wheels": ()}
    deb, wheel = (
        SimpleNamespace(name="cmake", version="3.31.6-2"),
        SimpleNamespace(name="cmake", version="4.4.4"),
    )
    both = SimpleNamespace(**{**made, "installed": (deb,), "wheels": (wheel,)})
    alone = SimpleNamespace(**{**made, "installed": (deb,)})
    newer = SimpleNamespace(**{**made, "installed": (SimpleNamespace(name="cmake", version="4.0-1"),)})
    assert _lock_changes(both, alone) == ["cmake (wheel) 4.4.4 -> (gone)"]  # type: ignore[arg-type]
    assert _lock_changes(both, newer) == [  # type: ignore[arg-type]
        "cmake (Debian) 3.31.6-2 -> 4.0-1",
        "cmake (wheel) 4.4.4 -> (gone)",
    ]
