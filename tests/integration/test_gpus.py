"""The nodes of a smoke test get GPUs by CDI: a stand-in specification, on a Docker that knows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.store import Store
from tests.support import standin_gpus
from tests.support.servers import classic_docker


def test_each_node_gets_the_gpu_that_was_named_for_it_and_the_report_says_which(
    short_folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = short_folder / "cdi"
    folder.mkdir()
    with classic_docker(folder, cdi=standin_gpus.write(folder)) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        standin_gpus.require(store)
