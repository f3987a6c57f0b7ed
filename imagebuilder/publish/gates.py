"""The gates before a push: what an image must fulfil, and a record of every gate that is waived.

    recipe       the image matches its current recipe and lock      --out-of-step
    smoke-test   a smoke test of exactly these bytes passed         --untested
    secrets      no secret is in a layer, the config, or an         `not_secret:` in the recipe, file by file
                 attached document
    baked-keys   no ssh key is in a layer                           --allow-baked-keys
    signature    images joined by a signed index are signed         --unsigned-parts

A waived gate is still checked: there is a `Waiver` only if it would have refused the image.
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
# Where ssh looks for keys: user keys and host keys.
_SSH = re.compile(r"(?:^|/)(?:\.ssh/[^/]+|etc/ssh/ssh_host_[a-z0-9]+_key|etc/imagebuilder/keys/[^/]+)$")
_KEY_RULES = frozenset({"private-key", "putty-private-key"})
_SHOWN = 20
_TAKE_OUT = "remove it and build again; a file that a later layer deletes is still in the image"

Placed = tuple[str, SecretFinding]


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A gate that refused the image, and was waived.

    Attributes:
        gate: its name.
        flag: the option that waived it, or `not_secret` for a file that the recipe names.
        reason: of the gate, in one line, without the secret.

    """

    gate: str
    flag: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Review:
    """Findings, without those in files that the recipe has reviewed.

    Attributes:
        findings: the remaining ones, each with the title of its layer.
        waivers: one for each reviewed file with a finding.
        unused: reviewed files without a finding.

    """

    findings: tuple[Placed, ...]
    waivers: tuple[Waiver, ...]
    unused: tuple[NotSecret, ...]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A name, and a function that raises an error if the image must not be pushed."""

    name: str
    check: Callable[[], object]


def pass_all(gates: Sequence[Gate], waived: Collection[str]) -> tuple[Waiver, ...]:
    """Try every gate.

    Args:
        gates: in the order in which to report their findings.
        waived: names of the gates that may refuse.

    Returns:
        The waived refusals.

    Raises:
        ImagebuilderError: the error of the gate that refused; a GateError with all findings if several did.

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
    """Refuse an image with a secret. ssh keys have their own gate.

    Args:
        findings: each with the title of its layer.

    Raises:
        GateError: lists each finding with layer and path, without the secret itself, and the entry for the
            recipe if it is a false positive.

    """
    refused = [item for item in findings if not is_baked_key(item[1])]
    if not refused:
        return
    problems = _problems(refused, _TAKE_OUT)
    files = {(finding.path, finding.file): None for _, finding in refused[:_SHOWN]}
    problems.append(
        Problem(
            message="if it is not a secret, add this to the recipe, with the reason:\n" + _pasted(list(files))
        )
    )
    raise GateError.of(problems)


def review(findings: Sequence[Placed], reviewed: Sequence[NotSecret]) -> Review:
    """Leave out findings in files that the recipe has reviewed, by path and sha256."""
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
    """Return the YAML entries for a recipe; a person fills in the reasons."""
    rows = [f'  - path: {json.dumps(path)}\n    sha256: "{digest}"\n    reason: ""' for path, digest in files]
    return "\n".join(["not_secret:", *rows])


def require_no_baked_keys(findings: Sequence[Placed]) -> None:
    """Refuse an image with ssh keys: everybody who can pull it gets them.

    Raises:
        GateError: lists each key with its layer and path.

    """
    found = [item for item in findings if is_baked_key(item[1])]
    if found:
        hint = f"{_TAKE_OUT} (or {FLAGS['baked-keys']})"
        raise GateError.of(_problems(found, hint))


def is_baked_key(finding: SecretFinding) -> bool:
    """Return True if a finding is a key in a place where ssh looks for keys."""
    return finding.rule in _KEY_RULES and bool(_SSH.search(finding.path))


def _problems(found: Sequence[Placed], hint: str) -> list[Problem]:
    problems = [
        Problem(message=str(finding), where=f"layer `{title}`", hint=hint)
        for title, finding in found[:_SHOWN]
    ]
    if len(found) > _SHOWN:
        problems.append(Problem(message=f"{len(found) - _SHOWN} more findings of this kind"))
    return problems
