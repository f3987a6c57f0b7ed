"""Start ssh in containers of an image that imagebuilder did not build, as a job's operator would.

The Kubeflow MPI operator mounts a job's keys at ~/.ssh and starts sshd in place of the image's entrypoint. So
does this. The image's own sshd_config and ssh_config hold. Nothing is installed.
"""

from __future__ import annotations

import shlex

from imagebuilder.plan.sshkeys import NODE_ALIAS
from imagebuilder.smoke.nodes import packing
from imagebuilder.smoke.nodes.cluster import FOLDER
from imagebuilder.smoke.nodes.discovery import NodeFacts

_PORTS = {True: 22, False: 2222}
LOG = f"{FOLDER}/sshd.log"
_HOST_KEY = "ssh_host_ed25519_key"
# Arguments of sh: keeps the container running. While it waits, sh reaps what orphaned ranks leave.
IDLE = ("-c", "while :; do sleep 1000 & wait $!; done")


def port(facts: NodeFacts) -> int:
    """Return the port that sshd gets: only root may listen on 22."""
    return _PORTS[facts.uid == 0]


def files(run_id: str, facts: NodeFacts) -> tuple[packing.Item, ...]:
    """Return the job's keys: the user's in ~/.ssh, the host's in the smoke folder."""
    folder = f"{facts.home}/.ssh"
    lines = ["Host node*", f"    HostKeyAlias {NODE_ALIAS}", f"    Port {port(facts)}"]
    items = [packing.Item(path=folder, mode=0o700)]
    for item in packing.keys(run_id):
        name = item.path.rpartition("/")[2]
        if item.data is not None:
            place = FOLDER if name.startswith(_HOST_KEY) else folder
            items.append(packing.Item(path=f"{place}/{name}", mode=0o600, data=item.data))
    config = ("\n".join(lines) + "\n").encode()
    return (*items, packing.Item(path=f"{folder}/config", mode=0o600, data=config))


def sshd(facts: NodeFacts) -> tuple[str, ...]:
    """Return the command that starts sshd with the job's host key; what it says goes to LOG."""
    key = f"{FOLDER}/{_HOST_KEY}"
    options = ("-D", "-e", "-p", str(port(facts)), "-h", key)
    settings = ("-o", f"HostCertificate={key}-cert.pub", "-o", "PidFile=none")
    # PAM's account check reads /etc/shadow. Only root may, so any other user's sshd would refuse every login.
    without_pam = () if facts.uid == 0 else ("-o", "UsePAM=no")
    command = shlex.join((facts.sshd, *options, *settings, *without_pam))
    return ("sh", "-c", f"exec {command} >{LOG} 2>&1")
