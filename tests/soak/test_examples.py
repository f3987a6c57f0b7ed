"""The example of a script: built, proven and trained on two containers, before and after a changed line."""

from __future__ import annotations

from pathlib import Path

from docker import DockerClient

from imagebuilder.store import Store
from tests.integration.test_examples import little_disk, require_training

__all__ = ["little_disk"]


def test_a_script_trains_on_two_containers_before_and_after_a_changed_line(
    store: Store, tmp_path: Path, engine: DockerClient
) -> None:
    require_training("script", store, tmp_path, engine)
