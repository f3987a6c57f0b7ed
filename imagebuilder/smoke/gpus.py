"""The GPUs of a host, as nvidia-smi lists them. Pure: text in, values out."""

from __future__ import annotations

from dataclasses import dataclass

QUERY = ("--query-gpu=name,driver_version", "--format=csv,noheader")


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The name of each GPU, and the version of the driver that all share; empty without GPUs."""

    names: tuple[str, ...] = ()
    driver: str = ""


def parse(said: str) -> Gpus:
    r"""Read the answer to `QUERY`.

    >>> parse("NVIDIA H100 80GB HBM3, 570.86.15\nNVIDIA H100 80GB HBM3, 570.86.15\n")
    Gpus(names=('NVIDIA H100 80GB HBM3', 'NVIDIA H100 80GB HBM3'), driver='570.86.15')
    """
    rows = [line.strip().rpartition(", ") for line in said.splitlines() if line.strip()]
    return Gpus(names=tuple(name for name, _, _ in rows), driver=rows[0][2] if rows else "")
