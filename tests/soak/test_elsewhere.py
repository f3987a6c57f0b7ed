"""A shipped recipe in another place: the same digest, with more packages than the small one has."""

from __future__ import annotations

from imagebuilder.store import Store
from tests.integration.conftest import ROOT
from tests.integration.test_elsewhere import require_same_digest


def test_a_shipped_recipe_has_the_same_digest_elsewhere(store: Store) -> None:
    require_same_digest(ROOT / "recipes" / "cpu-mpi.yaml", store)
