"""What integration tests stand on. Nothing here is ever skipped: what is missing is an error."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker import DockerClient
from xdist.scheduler import LoadScopeScheduling

from imagebuilder.core import labels, process
from imagebuilder.core.progress import no_advance
from imagebuilder.host.site import detect
from imagebuilder.layers.system.install import build_os_layer
from imagebuilder.plan import OsLayer
from imagebuilder.resolve import debian
from imagebuilder.smoke import engine as engines
from imagebuilder.smoke.engine import Engine
from imagebuilder.store import LayerRecord, Store
from tests.support import oslayer
from tests.support.answers import built_image
from tests.support.servers import RegistryServer, registry_server

ROOT = Path(__file__).resolve().parents[2]
# A first build fetches gigabytes.
_BUILD_SECONDS = 3600

# Of two processes (`-n 2`) each takes a group of modules, runs it to its end, and takes the
# next. A module that is not named here is a group alone. Without these groups both would make or wait for the
# same things, or start nodes at the same time, whose ranks spin on every core.
GROUPS = {
    "nodes with torch": (
        "test_any_image",
        "test_checkpoints",
        "test_examples",
        "test_gpus",
        "test_launched",
        "test_main_job",
        "test_peers",
        "test_real_nodes",
        "test_runtimes",
        "test_smoke_cleanup",
        "test_smoke_controls",
    ),
    "small system": ("test_confinement", "test_os_layer", "test_tools"),
    "small recipe": (
        "test_compile",
        "test_elsewhere",
        "test_engines",
        "test_prove_elsewhere",
        "test_published",
    ),
}

Built = Callable[[Path | str], str]
"""Builds a recipe, given by its path or its text, loads it, and returns what the engine knows it by."""


class Grouped(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out whole groups of modules, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(Path(nodeid.partition("::")[0]).stem)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Grouped:
    config.option.loadscopereorder = False
    return Grouped(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put groups of several modules first, in the order of GROUPS."""
    # A module that was renamed would be alone, and nobody would see it.
    named = [module for modules in GROUPS.values() for module in modules]
    assert [module for module in named if not Path(__file__).with_name(f"{module}.py").exists()] == []
    first = list(GROUPS)
    items.sort(key=lambda item: [*first, _group(item.path.stem)].index(_group(item.path.stem)))


def _group(module: str) -> str:
    return next((name for name, modules in GROUPS.items() if module in modules), module)


@pytest.fixture(scope="session")
def connected() -> Iterator[Engine]:
    """The engine that answers, as the program sees it. `scripts/services start` starts one."""
    with engines.connect("auto") as found:
        yield found


@pytest.fixture(scope="session")
def engine(connected: Engine) -> DockerClient:
    """The SDK's client of that engine."""
    return connected.client


def remove_images(client: DockerClient, recipe: str) -> None:
    """Remove every image of a recipe from the engine. One with torch takes 12 GB there."""
    for image in client.images.list(all=True, filters={"label": f"{labels.RECIPE}={recipe}"}):
        client.images.remove(str(image.id), force=True)


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder for the sockets of servers: their paths may have 107 bytes, and pytest's are longer."""
    with tempfile.TemporaryDirectory(prefix="ib-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def registry_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A registry of plain HTTP."""
    with registry_server(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session")
def registry(registry_process: RegistryServer) -> str:
    """Host and port of a registry of plain HTTP."""
    return registry_process.host


@pytest.fixture(scope="session")
def secure_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A registry with TLS of an authority of its own, and a password (`servers.USER`, `servers.PASSWORD`)."""
    with registry_server(tmp_path_factory.mktemp("secure"), secure=True) as running:
        yield running


@pytest.fixture(scope="session")
def store() -> Store:
    """One store for the whole session, and for later ones: downloads are reused."""
    return Store(Path(os.environ.get("IMAGEBUILDER_TEST_STORE") or ROOT / ".cache" / "test-store"))


@dataclass(frozen=True, kw_only=True)
class SmallOs:
    """A small OS layer, what it is made from, and how it came out on this host."""

    layer: OsLayer
    debs: dict[str, Path]
    record: LayerRecord


@pytest.fixture(scope="session")
def small_os(store: Store) -> SmallOs:
    """A small system, made by this host's own tools."""
    site = detect(tools="host")
    wanted = oslayer.small()
    layer = oslayer.layer_of(wanted, debian.resolve_debs(wanted, site)[0])
    debs = oslayer.fetched(layer, store, site)
    return SmallOs(layer=layer, debs=debs, record=build_os_layer(layer, debs, store, no_advance))


@pytest.fixture(scope="session")
def built(store: Store, connected: Engine, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build by the command line, each recipe once a session, into the engine of `connected`."""
    assert connected.client.ping()
    references: dict[str, str] = {}
    folder = tmp_path_factory.mktemp("recipes")

    def build(recipe: Path | str) -> str:
        text = recipe.read_text() if isinstance(recipe, Path) else recipe
        if text not in references:
            references[text] = _build(_written(recipe, folder), store)
        return references[text]

    return build


def _written(recipe: Path | str, folder: Path) -> Path:
    """Put a recipe, and its lock where it has one, where the test may write."""
    if isinstance(recipe, str):
        place = folder / f"{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.yaml"
        place.write_text(recipe)
        return place
    for path in recipe.parent.glob(f"{recipe.stem}.*"):
        shutil.copy(path, folder)
    return folder / recipe.name


def _build(path: Path, store: Store) -> str:
    program = Path(sys.executable).parent / "imagebuilder"
    command: list[str | Path] = [
        program,
        "build",
        path,
        "--load",
        "--json",
        "--progress",
        "lines",
        "--store",
        store.root,
    ]
    result = process.run(command, timeout=_BUILD_SECONDS)
    reference: str = built_image(result.stdout)["reference"]
    assert reference, result.stdout
    return reference
