"""The GPUs of a host, as nvidia-smi lists them, and which node gets which. Pure: text in, values out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import EnvironmentFault
from imagebuilder.smoke.report import Mode

QUERY = ("--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader")
# As `--gpus` names one: its number in nvidia-smi's list, or its uuid.
NAME = re.compile(r"[0-9]{1,3}|GPU-[0-9a-f-]{8,60}")
_ROW = re.compile(r"([0-9]{1,3}), ([^,]{1,80}), (.{1,200}), ([^,]{1,40})")
_MOST = 1024


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU: its number in nvidia-smi's list, its uuid and name; `id` is what it is requested by."""

    index: int
    uuid: str
    name: str
    id: str


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """GPUs, and the version of the driver that all share; `lacking` says why there are none, if known."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    lacking: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(gpu.name for gpu in self.gpus)


def parse(said: str) -> Gpus:
    r"""Read the answer to `QUERY`; lines that are something else are left out.

    >>> parse("No devices were found\n1, GPU-7f3c8a52, NVIDIA H100 80GB HBM3, 570.86.15\n").gpus
    (Gpu(index=1, uuid='GPU-7f3c8a52', name='NVIDIA H100 80GB HBM3', id='1'),)
    """
    rows = [match for line in said.splitlines()[:_MOST] if (match := _ROW.fullmatch(line.strip()))]
    gpus = (Gpu(index=int(row[1]), uuid=printable(row[2]), name=printable(row[3]), id=row[1]) for row in rows)
    return Gpus(gpus=tuple(gpus), driver=printable(rows[0][4]) if rows else "")


def choose(found: Gpus, asked: Sequence[str], where: str) -> Gpus:
    """Return the GPUs that `--gpus` names, in its order; all if it names none.

    Args:
        found: what there is.
        asked: numbers and uuids, or `all`; may be empty.
        where: what offers them, for the message.

    Raises:
        EnvironmentFault: there is no such GPU.

    """
    if not asked:
        return found
    if not found.gpus:
        raise EnvironmentFault(f"{where} offers no GPU", where="--gpus", hint=found.lacking)
    if asked == ("all",):
        return found
    by_name = {name: gpu for gpu in found.gpus for name in (str(gpu.index), gpu.uuid)}
    if missing := [name for name in asked if name not in by_name]:
        offered = ", ".join(f"{gpu.index} ({gpu.uuid}, {gpu.name})" for gpu in found.gpus)
        raise EnvironmentFault(
            f"{where} has no GPU {' or '.join(missing)}", where="--gpus", hint=f"it offers {offered}"
        )
    return dataclasses.replace(
        found, gpus=tuple(dataclasses.replace(by_name[name], id=name) for name in asked)
    )


def of_node(gpus: Sequence[Gpu], mode: Mode, node: int, ranks: int) -> tuple[Gpu, ...]:
    """Return a node's GPUs: one for each of its ranks, in order, or the first one, which all ranks share."""
    if mode == "multi-gpu":
        return tuple(gpus[node * ranks : (node + 1) * ranks])
    return tuple(gpus[:1]) if mode == "one-gpu-shared" else ()
