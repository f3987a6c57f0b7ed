"""Images a second on 1 and 2 nodes with 1 and 2 ranks each, torch beside Horovod in one image.

    python -m bench.scaling IMAGE [--out bench/scaling.md]

IMAGE is in the engine, and has torch and Horovod (examples/recipes/cpu-horovod.yaml). Nodes are containers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagebuilder.plan.sshkeys import make_keys
from tests.support.pods import SCRIPTS, docker, pods

CELLS = ((1, 1), (1, 2), (2, 1), (2, 2))
_NODES = ("node0", "node1")
_SECONDS = 60
_CAPTION = """\
# Scaling: torch beside Horovod

Made by `python -m bench.scaling` (`make bench-scaling`) in one run: the network of `examples/mnist` on
images in memory, 64 images a step and one thread for each rank, for {seconds:g} seconds each time, median of
{rounds} rounds (lowest to highest). Both train in one image ({versions}): torch with
DistributedDataParallel over gloo, started by torchrun; Horovod over MPI, started by horovodrun with
`mpi_yield_when_idle`. Nodes are containers of one host. All ranks of every run ended with equal weights.

**This host has {cores} cores, which all nodes share.** So {cores} ranks are the most that compute at the same
time. More ranks cannot be faster: their row shows what it costs to wait for a core. The figures say nothing
about hosts with GPUs, or with a network between them.

| nodes x ranks | torch, images/s | of 1x1 | Horovod, images/s | of 1x1 | Horovod / torch |
| --- | --: | --: | --: | --: | --: |
"""
_VERSIONS = "import torch, horovod; print(torch.__version__, horovod.__version__)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("image")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rates: dict[tuple[str, int, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder, pods(arguments.image) as job:
        names = [job.start(host, *_mount(Path(folder) / "keys")) for host in _NODES]
        docker("exec", names[0], "timeout", "60", "sh", "-c", "until ssh node1 true; do sleep 1; done")
        versions = docker("exec", names[0], "python", "-c", _VERSIONS).stdout.split()
        for number in range(arguments.rounds):
            for nodes, ranks in CELLS:
                for by, run in (("torch", by_torch), ("horovod", by_horovod)):
                    rate = measured(run(names[:nodes], ranks, arguments.seconds))
                    rates.setdefault((by, nodes, ranks), []).append(rate)
                    print(f"round {number}: {nodes}x{ranks} {by}: {rate:.0f} images/s", flush=True)
    table = page(rates, versions, arguments)
    print(table)
    if arguments.out:
        arguments.out.write_text(table, encoding="utf-8")
    return 0


def by_torch(names: list[str], ranks: int, seconds: float) -> str:
    """Start torchrun on every node; returns what they said."""

    def agent(node: int) -> str:
        place = (f"--nnodes={len(names)}", f"--node-rank={node}", f"--nproc-per-node={ranks}")
        master = ("--master-addr=node0", "--master-port=29500")
        return inside(names[node], "torchrun", *place, *master, *_script("torch", seconds))

    with ThreadPoolExecutor() as pool:
        return "".join(pool.map(agent, range(len(names))))


def by_horovod(names: list[str], ranks: int, seconds: float) -> str:
    hosts = ",".join(f"{host}:{ranks}" for host in _NODES[: len(names)])
    words = ("horovodrun", "--mpi", "-np", str(len(names) * ranks), "-H", hosts, "python")
    return inside(names[0], *words, *_script("horovod", seconds))


def inside(name: str, *words: str) -> str:
    """Run a command on a node with a time limit; ends the measurement if it fails."""
    limited = ("timeout", "-k", "5", str(_SECONDS), *words)
    # A rank of MPI that waits must not keep the core from another container's rank.
    variables = ("-e", "OMP_NUM_THREADS=1", "-e", "OMPI_MCA_mpi_yield_when_idle=1")
    result = docker("exec", *variables, name, *limited, check=False)
    if result.code:
        raise SystemExit(f"{words[0]} ended with {result.code}:\n{(result.stdout + result.stderr)[-2000:]}")
    return result.stdout


def measured(said: str) -> float:
    """Read what rank 0 says: images a second of all ranks."""
    (found,) = re.findall(r"answer (\{.*\})", said)
    answer = json.loads(found)
    if not answer["equal"]:
        raise SystemExit(f"the ranks ended with different weights: {found}")
    rate: float = answer["rate"]
    return rate


def page(
    rates: dict[tuple[str, int, int], list[float]], versions: list[str], arguments: argparse.Namespace
) -> str:
    cores = os.cpu_count() or 1
    named = f"torch {versions[0]}, Horovod {versions[1]}"
    text = _CAPTION.format(seconds=arguments.seconds, rounds=arguments.rounds, versions=named, cores=cores)
    median = {cell: statistics.median(found) for cell, found in rates.items()}
    for nodes, ranks in CELLS:
        cells = [f"{nodes}x{ranks}"]
        for by in ("torch", "horovod"):
            found, rate = rates[by, nodes, ranks], median[by, nodes, ranks]
            cells += [f"{rate:.0f} ({min(found):.0f} to {max(found):.0f})", f"{rate / median[by, 1, 1]:.2f}"]
        cells.append(f"{median['horovod', nodes, ranks] / median['torch', nodes, ranks]:.2f}")
        text += f"| {' | '.join(cells)} |\n"
    return text


def _script(by: str, seconds: float) -> tuple[str, ...]:
    return (f"{SCRIPTS}/throughput.py", by, str(seconds))


def _mount(keys: Path) -> tuple[str, ...]:
    """Make the nodes' keys, once, so that the image's user can read them."""
    if not keys.exists():
        make_keys(keys, name="nodes")
        for folder in (keys, keys.parent):
            folder.chmod(0o755)
        for path in keys.iterdir():
            path.chmod(0o444)
    return ("--shm-size", "1g", "-v", f"{keys}:/run/secrets/imagebuilder:ro")


if __name__ == "__main__":
    sys.exit(main())
