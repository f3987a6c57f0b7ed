"""Tests that take long; `make soak` runs them. They stand on what the integration tests stand on."""

from tests.integration.conftest import (
    built,
    connected,
    engine,
    registry,
    registry_process,
    short_folder,
    store,
)

__all__ = ["built", "connected", "engine", "registry", "registry_process", "short_folder", "store"]
