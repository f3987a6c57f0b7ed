"""The gates before a push: what must hold of an image, and what is written down where somebody waives it.

    recipe       the image is what its recipe and lock say now     --out-of-step
    smoke-test   a smoke test of exactly these bytes passed        --untested
    secrets      no secret is in any layer, in the config, or      `not_secret:` in the recipe, file by file
                 in what is attached
    baked-keys   no ssh key is either                              --allow-baked-keys
    signature    what is joined under a signature has one itself   --unsigned-parts

A gate that is waived is tried all the same: only what it would have refused makes a `Waiver`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from imagebuilder.errors import GateError, ImagebuilderError, Problem
from imagebuilder.publish.leaks import SecretFinding
from imagebuilder.recipe import NotSecret

FLAGS = {
    "recipe": "--out-of-step",
    "smoke-test": "--untested",
    "baked-keys": "--allow-baked-keys",
    "signature": "--unsigned-parts",
}
# Where ssh looks for keys: those of users, and those that a host proves itself with.
_SSH = re.compile(r"(?:^|/)(?:\.ssh/[^/]+|etc/ssh/ssh_host_[a-z0-9]+_key|etc/imagebuilder/keys/[^/]+)$")
_KEY_RULES = frozenset({"private-key", "putty-private-key"})
_SHOWN = 20
_TAKE_OUT = "take it out and build again; a file that a later layer deletes is still there"

Placed = tuple[str, SecretFinding]


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A gate that said no, and was waived.

    Attributes:
        gate: its name.
        flag: the option that waived it, or `not_secret` for a file that the recipe names.
        reason: what the gate said, in one line; no secret.

    """

    gate: str
    flag: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Review:
    """Findings, less those in files that the recipe names.

    Attributes:
        findings: that are left, each with the title of its layer.
        waivers: one for each file that was left out.
        unused: what the recipe names, and no finding is in.

    """

    findings: tuple[Placed, ...]
    waivers: tuple[Waiver, ...]
    unused: tuple[NotSecret, ...]


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


def require_no_secrets(findings: Sequence[Placed]) -> None:
    """Refuse an image in which something secret was found, but for ssh keys.

    Args:
        findings: with the title of the layer that each is in.

    Raises:
        GateError: each finding with its layer and path, and never the secret itself; and what a recipe has to
            say where it is not secret.

    """
    refused = [item for item in findings if not is_baked_key(item[1])]
    if not refused:
        return
    problems = _problems(refused, _TAKE_OUT)
    files = {(finding.path, finding.file): None for _, finding in refused[:_SHOWN]}
    problems.append(
        Problem(
            message="if it is not secret, say so in the recipe, with the reason:\n" + _pasted(list(files))
        )
    )
    raise GateError.of(problems)


def review(findings: Sequence[Placed], reviewed: Sequence[NotSecret]) -> Review:
    """Leave out the findings in files that a recipe names, by path and content."""
    known = {(item.path, item.sha256): item for item in reviewed}
    used = {key: known[key] for _, finding in findings if (key := (finding.path, finding.file)) in known}
    return Review(
        findings=tuple(item for item in findings if (item[1].path, item[1].file) not in known),
        waivers=tuple(
            Waiver(
                gate="secrets", flag="not_secret", reason=f"{item.path} (sha256 {item.sha256}): {item.reason}"
            )
            for item in used.values()
        ),
        unused=tuple(item for key, item in known.items() if key not in used),
    )


def _pasted(files: Sequence[tuple[str, str]]) -> str:
    """Write the YAML that names files in a recipe; their reasons are for a person to write."""
    rows = [f'  - path: {json.dumps(path)}\n    sha256: "{digest}"\n    reason: ""' for path, digest in files]
    return "\n".join(["not_secret:", *rows])


def require_no_baked_keys(findings: Sequence[Placed]) -> None:
    """Refuse an image with ssh keys in it: they are everybody's who can pull it.

    Raises:
        GateError: each key with its layer and path.

    """
    found = [item for item in findings if is_baked_key(item[1])]
    if found:
        hint = f"{_TAKE_OUT} (or {FLAGS['baked-keys']})"
        raise GateError.of(_problems(found, hint))


def is_baked_key(finding: SecretFinding) -> bool:
    """Tell whether a finding is a key where ssh looks for it."""
    return finding.rule in _KEY_RULES and bool(_SSH.search(finding.path))


def _problems(found: Sequence[Placed], hint: str) -> list[Problem]:
    problems = [
        Problem(message=str(finding), where=f"layer `{title}`", hint=hint)
        for title, finding in found[:_SHOWN]
    ]
    if len(found) > _SHOWN:
        problems.append(Problem(message=f"{len(found) - _SHOWN} more findings of this kind"))
    return problems
