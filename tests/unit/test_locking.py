"""From a recipe to its lock, with the two resolvers stood in for."""

from __future__ import annotations

import pytest

from imagebuilder.catalog import select
from imagebuilder.errors import ConflictError
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Deb
from imagebuilder.resolve.locking import make_lock
from tests.unit import samples

RECIPE = samples.recipe(pins={"gcc": "14"})
ALWAYS = {
    "python3": "3.13.7-1",
    "python3.13": "3.13.9-1",
    "openssh-server": "1:10.0p1-7",
    "gcc-14": "14.2.0-19",
}


@pytest.fixture(autouse=True)
def archive(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Package and version of what apt would choose; a test may change it."""
    versions = dict(ALWAYS)

    def resolve(_request: object, _site: object) -> tuple[Deb, ...]:
        return tuple(samples.deb(name, version) for name, version in versions.items())

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


def test_what_is_not_in_the_recipe_cannot_be_upgraded() -> None:
    with pytest.raises(ConflictError, match="`torch` cannot be upgraded"):
        make_lock(select(RECIPE), Site(), None, ("torch",))
