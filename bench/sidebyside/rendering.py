"""hpccm beside our renderer: seconds to write a Dockerfile, and what each says to versions that clash.

hpccm (NVIDIA's HPC Container Maker) writes Dockerfiles from a Python recipe of building blocks. It is
installed into a virtual environment that is thrown away.
"""

from __future__ import annotations

import shutil
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

from bench.sidebyside import samples
from bench.sidebyside.engine import HOUR
from bench.sidebyside.samples import Sample
from bench.sidebyside.sides import PROGRAM
from imagebuilder.core import process
from imagebuilder.store import Store

# The building blocks nearest to recipes/cuda12-torch.yaml; the second line of pip cannot be installed.
_GOOD = """\
Stage0 += baseimage(image='nvidia/cuda:12.8.1-devel-ubuntu24.04')
Stage0 += gnu(version='14')
Stage0 += openmpi(version='5.0.7', cuda=True)
Stage0 += pip(packages=['torch==2.10.0', 'mpi4py==4.1.1'], pip='pip3')
"""
_WRONG = _GOOD.replace("'torch==2.10.0'", "'torch==2.10.0', 'nvidia-nccl-cu12==2.28.9'")
RENDER, REFUSE = "render", "render: a wrong combination"


def measure(recipe: str, source: Path, folder: Path, store: Store, number: int) -> Iterator[Sample]:
    """Yield samples of both programs; the combination is another NCCL than torch asks for.

    Args:
        recipe: name of the recipe that is measured.
        source: `recipes/cuda12-torch.yaml`, whatever is measured: hpccm is given its like.
        folder: for the virtual environment.
        store: for locking.
        number: of the round.

    """
    folder.mkdir(parents=True)
    try:
        hpccm = _install(folder)
        wrong = folder / source.name
        wrong.write_text(source.read_text().replace('nccl: "2.27.5"', 'nccl: "2.28.9"'))
        for name, text in (("good", _GOOD), ("wrong", _WRONG)):
            (folder / f"{name}.py").write_text(text)
        commands: list[tuple[str, str, list[str | Path]]] = [
            (RENDER, "hpccm", [hpccm, "--recipe", folder / "good.py"]),
            (RENDER, "imagebuilder", [PROGRAM, "render", source]),
            (REFUSE, "hpccm", [hpccm, "--recipe", folder / "wrong.py"]),
            (REFUSE, "imagebuilder", [PROGRAM, "lock", wrong, "--store", store.root]),
        ]
        for work, side, command in commands:
            started = time.monotonic()
            result = process.run(command, timeout=HOUR, check=False)
            seconds = time.monotonic() - started
            said = next(iter(result.stderr.strip().splitlines()), "")
            said = said.replace(f"{folder}/", "")
            note = f"exit code {result.code}" + (f": {said}" if result.code else "")
            yield Sample(
                recipe=recipe,
                work=work,
                side=side,
                round=number,
                values={samples.SECONDS: seconds},
                note=note,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _install(folder: Path) -> Path:
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    uv = Path(sys.executable).parent / "uv"
    process.run([uv, "pip", "install", "--quiet", "--python", python, "hpccm", "setuptools"], timeout=HOUR)
    return folder / "venv" / "bin" / "hpccm"
