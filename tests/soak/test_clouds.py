"""torchrun with the variables that SkyPilot and dstack give to the nodes of a job."""

from __future__ import annotations

import pytest

from tests.integration.conftest import ROOT, Built
from tests.integration.test_peers import ONE_THREAD, require_learnt
from tests.support.pods import SCRIPTS, cloud_variables, docker, given, pods

# The command lines of their documentation.
CLOUDS = {
    "skypilot": 'torchrun --nnodes="$SKYPILOT_NUM_NODES" --nproc_per_node="$SKYPILOT_NUM_GPUS_PER_NODE" '
    '--node_rank="$SKYPILOT_NODE_RANK" --master_addr="$(echo "$SKYPILOT_NODE_IPS" | head -n1)" '
    "--master_port=8008 ",
    "dstack": 'torchrun --nproc-per-node="$DSTACK_GPUS_PER_NODE" --node-rank="$DSTACK_NODE_RANK" '
    '--nnodes="$DSTACK_NODES_NUM" --master-addr="$DSTACK_MASTER_NODE_IP" --master-port=12345 ',
}


@pytest.mark.parametrize("cloud", sorted(CLOUDS))
def test_torchrun_with_the_variables_of_a_cloud(cloud: str, built: Built) -> None:
    with pods(built(ROOT / "recipes" / "cuda12-torch.yaml")) as job:
        names = [job.start(f"node{rank}", *ONE_THREAD) for rank in range(2)]
        addresses = [job.address(name) for name in names]
        script = f"{CLOUDS[cloud]} {SCRIPTS}/ddp_torchrun.py --snapshot=/tmp/snapshot.pt"
        command = [[name, "bash", "-c", script] for name in names]
        values = [given(cloud_variables(addresses, rank)) for rank in range(2)]
        docker("exec", "-d", *values[1], *command[1])
        log = docker("exec", *values[0], *command[0]).stdout
    require_learnt(log)
