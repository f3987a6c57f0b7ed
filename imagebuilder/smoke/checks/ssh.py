"""ssh from every node to every other, as launchers do: no prompts, every host key checked."""

from __future__ import annotations

from itertools import permutations

from imagebuilder.smoke.checks import login_reason
from imagebuilder.smoke.nodes.cluster import Outcome
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 45
_KNOWN_HOSTS = "cat ~/.ssh/known_hosts /etc/ssh/ssh_known_hosts 2>/dev/null | cksum"

_ASKED = 3

_FIREWALL = "packets do not arrive: a firewall between the nodes blocks them, or sshd hangs"

# ssh's messages and what they mean here; the first match counts. It may not be in the last line.
_REMEDIES = {
    "UNPROTECTED PRIVATE KEY": "the entrypoint has to copy the private key with mode 0600",
    "IDENTIFICATION HAS CHANGED": "a known_hosts file in the image is in the way",
    "Host key verification failed": "known_hosts does not vouch for the host key; is one baked in?",
    "Permission denied": "the key is refused: look at AllowUsers, authorized_keys and the modes above it",
    "Connection refused": "nothing listens on the port that the image's ssh_config names: does sshd run?",
    "Could not resolve hostname": "see the check `names`",
    "timed out": _FIREWALL,
    "failed to run command": "ssh is not installed in the image",
}


def run(session: Session) -> Passed:
    before = _known_hosts(session)
    findings: list[Finding] = []
    ways = list(permutations(range(session.nnodes), 2))
    for here, there in ways:
        target = session.cluster.host(there)
        argv = session.ssh(target, "echo", session.nonce, "$(hostname)", "$(id -un)")
        outcome = session.run(here, argv, timeout=_SECONDS)
        node = session.nodes[here].name
        if not outcome.ok:
            findings.append(_failed(node, target, outcome))
        elif outcome.stdout.split() != [
            session.nonce,
            session.cluster.own_name(there),
            session.target.ssh_user,
        ]:
            findings.append(
                Finding(
                    node=node,
                    message=f"ssh {target} answered `{outcome.stdout.strip()[:200]}`, not only with its own "
                    f"name and the user {session.target.ssh_user}",
                    remedy="a shell's start-up file prints something, or ssh_config leads elsewhere",
                )
            )
    after = _known_hosts(session)
    if not findings and after != before:
        findings.append(
            Finding(
                node="",
                message="a known_hosts file changed: ssh accepted an unknown host key",
                remedy="the job's known_hosts must list all of its nodes (`@cert-authority`)",
            )
        )
    if findings:
        raise CheckFailed.because(*findings)
    return Passed(
        summary=f"{len(ways)} logins between nodes as {session.target.ssh_user}, host keys checked strictly"
    )


def _known_hosts(session: Session) -> list[str]:
    """Return the checksum of each node's known_hosts files."""
    # On a busy host, Docker sometimes loses the output of a short command. This one always has some.
    for _ in range(_ASKED):
        outcomes = session.run_everywhere(lambda _: ("sh", "-c", _KNOWN_HOSTS), timeout=_SECONDS)
        if all(outcome.stdout for outcome in outcomes):
            break
    return [outcome.stdout for outcome in outcomes]


def _failed(node: str, target: str, outcome: Outcome) -> Finding:
    said = (outcome.stderr + outcome.stdout).splitlines()
    told = [(line.strip(" @"), text) for sign, text in _REMEDIES.items() for line in said if sign in line]
    why, remedy = told[0] if told else (outcome.last_words, "the whole output is in the report")
    if outcome.timed_out:
        why = f"gave no answer within {outcome.seconds:.0f} s" + (f": {why}" if told else "")
        remedy = remedy if told else _FIREWALL
    return Finding(node=node, message=f"ssh {target}: {why}", remedy=remedy)


CHECK = Check(
    name="ssh",
    order=90,
    title="ssh between all nodes, in batch mode with strict host checking",
    criterion="every node reaches every other as the labelled user, with nothing but its name; no "
    "known_hosts file changes",
    run=run,
    skip=login_reason,
    required=lambda promise: promise.logins,
)
