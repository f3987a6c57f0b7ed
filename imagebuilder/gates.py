"""The gates before a push: what must hold of an image, and what is written down where somebody waives it.

    recipe       the image is what its recipe and lock say now     --out-of-step
    smoke-test   a smoke test of exactly these bytes passed        --untested
    secrets      no secret is in any layer or in the config        --allow-secrets
    baked-keys   no ssh key is either                              --allow-baked-keys

A gate that is waived is tried all the same: only what it would have refused makes a `Waiver`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from imagebuilder.errors import GateError, ImagebuilderError, Problem
from imagebuilder.leaks import Finding, Scan

FLAGS = {
    "recipe": "--out-of-step",
    "smoke-test": "--untested",
    "secrets": "--allow-secrets",
    "baked-keys": "--allow-baked-keys",
}
# Where ssh looks for keys: those of users, and those that a host proves itself with.
_SSH = re.compile(r"(?:^|/)(?:\.ssh/[^/]+|etc/ssh/ssh_host_[a-z0-9]+_key|etc/imagebuilder/keys/[^/]+)$")
_KEY_RULES = frozenset({"private-key", "putty-private-key"})
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A gate that said no, and was waived.

    Attributes:
        gate: its name, a key of `FLAGS`.
        flag: the option that waived it.
        reason: what the gate said, in one line; no secret.

    """

    gate: str
    flag: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A name, and what raises an error where the image may not pass."""

    name: str
    check: Callable[[], object]


def pass_all(gates: Sequence[Gate], waived: Collection[str]) -> tuple[Waiver, ...]:
    """Try every gate.

    Args:
        gates: in the order in which their findings are told.
        waived: names of those that may say no.

    Returns:
        what was waived.

    Raises:
        ImagebuilderError: the one gate's own error; a GateError with all findings where several say no.

    """
    waivers: list[Waiver] = []
    refusals: list[ImagebuilderError] = []
    for gate in gates:
        try:
            gate.check()
        except ImagebuilderError as error:
            if gate.name in waived:
                reason = error.problems[0].message
                more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
                waivers.append(Waiver(gate=gate.name, flag=FLAGS[gate.name], reason=f"{reason}{more}"))
            else:
                refusals.append(error)
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        raise GateError.of([problem for error in refusals for problem in error.problems])
    return tuple(waivers)


def require_no_secrets(scan: Scan) -> None:
    """Refuse an image in which something secret was found, but for ssh keys.

    Raises:
        GateError: each finding with its layer and path, and never the secret itself.

    """
    _refuse([item for item in scan.findings if not is_baked_key(item[1])], "secrets")


def require_no_baked_keys(scan: Scan) -> None:
    """Refuse an image with ssh keys in it: they are everybody's who can pull it.

    Raises:
        GateError: each key with its layer and path.

    """
    _refuse([item for item in scan.findings if is_baked_key(item[1])], "baked-keys")


def is_baked_key(finding: Finding) -> bool:
    """Tell whether a finding is a key where ssh looks for it."""
    return finding.rule in _KEY_RULES and bool(_SSH.search(finding.path))


def _refuse(found: Sequence[tuple[str, Finding]], gate: str) -> None:
    if not found:
        return
    hint = f"take it out and build again; a file that a later layer deletes is still there (or {FLAGS[gate]})"
    problems = [
        Problem(message=str(finding), where=f"layer `{title}`", hint=hint)
        for title, finding in found[:_SHOWN]
    ]
    if len(found) > _SHOWN:
        problems.append(Problem(message=f"{len(found) - _SHOWN} more findings of this kind"))
    raise GateError.of(problems)
