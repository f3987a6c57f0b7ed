"""OS layers of what the archive has today, without the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from imagebuilder import catalog
from imagebuilder.catalog import select
from imagebuilder.fetch import download
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Deb
from imagebuilder.plan import OsLayer, User
from imagebuilder.recipe import load
from imagebuilder.resolve import debian
from imagebuilder.resolve.request import Request, request
from imagebuilder.store import Store

ROOT = Path(__file__).resolve().parents[2]
TRAINER = User(name="trainer", uid=1000, home="/home/trainer")


def asked() -> Request:
    """Say what the recipe cpu-mpi asks for."""
    return request(select(load(ROOT / "recipes" / "cpu-mpi.yaml", catalog.names())))


def small() -> Request:
    """Ask for the smallest system that the hooks can finish."""
    return dataclasses.replace(asked(), packages=("openssh-server", "python3", "python3-venv"), deb_pins=())


def layer_of(wanted: Request, debs: tuple[Deb, ...]) -> OsLayer:
    """Lay a request's packages out as a layer."""
    return OsLayer(
        distribution=wanted.distribution,
        suite=wanted.suite,
        architecture=wanted.architecture,
        debs=debs,
        user=TRAINER,
        python=wanted.python,
    )


def fetched(layer: OsLayer, store: Store, site: Site) -> dict[str, Path]:
    """Have the layer's packages in the store; gives their files."""
    urls = debian.locate_debs(layer.debs, layer.distribution, layer.suite, site)
    missing = [
        download.Download(name=deb.name, urls=urls[deb.sha256], size=deb.size, sha256=deb.sha256)
        for deb in layer.debs
        if not store.has_download(deb.sha256, deb.size)
    ]
    download.fetch(missing, store, site, lambda _sha256, _count: None, lambda _sha256: None)
    return {deb.sha256: store.download(deb.sha256) for deb in layer.debs}
