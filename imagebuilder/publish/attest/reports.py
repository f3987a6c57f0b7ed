"""The smoke reports that are attached to an image in a registry: what each shows, and whether it is a proof.

An image may have any number: one for each host that tested it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from imagebuilder.errors import GateError
from imagebuilder.publish import proof
from imagebuilder.publish.attest.bundle import REPORT
from imagebuilder.publish.attest.published import Attachment, Published
from imagebuilder.recipe.proof import ProofPolicy

# A signature with the key that the image must be signed with counts like one with a key of `proof.signed_by`.
_THE_KEY = "the key of the image"


@dataclass(frozen=True, kw_only=True)
class AttachedReport:
    """One report. All but `digest`, `refusals` and the signatures is what the report itself says.

    Attributes:
        digest: of the attached document's manifest.
        verdict: `passed`, `failed`, or `none` if it is not a report on this image.
        summary: the verdict in one line.
        refusals: why it is not the proof that the recipe demands; empty if it is.
        mode: how tensors were sent.
        nodes: how many there were.
        gpus, driver: of the host; empty without GPUs.
        transport: the network that NCCL used; empty if that is not known.
        loaded: the version of each pin that its nodes loaded, by component.
        busbw: of the largest allreduce, in 10^9 bytes a second; 0 if none was timed.
        started: when the test began.
        signed: whether it has a signature, with the image's key if one was given, else with any.
        signed_by: the given keys that have signed it.

    """

    digest: str
    verdict: str
    summary: str
    refusals: tuple[str, ...]
    mode: str = ""
    nodes: int = 0
    gpus: tuple[str, ...] = ()
    driver: str = ""
    transport: str = ""
    busbw: float = 0.0
    loaded: Mapping[str, str] = field(default_factory=dict)
    started: str = ""
    signed: bool
    signed_by: tuple[str, ...]

    def __str__(self) -> str:
        """Describe it in one line; its texts come from the registry and are not escaped here."""
        if self.verdict == "none":
            return self.summary
        gpus = [f"{count} x {name}" for name, count in Counter(self.gpus).items()]
        words = (
            self.mode,
            f"{self.nodes} nodes",
            *gpus,
            self.driver and f"driver {self.driver}",
            self.transport and f"over {self.transport}",
            f"{self.busbw:.2f} GB/s" if self.busbw else "",
            self.started,
            self.signature,
        )
        return ", ".join(word for word in words if word)

    @property
    def signature(self) -> str:
        """Who has signed it, in words."""
        if self.signed_by:
            return f"signed by {' and '.join(self.signed_by)}"
        return "signed" if self.signed else "not signed"


def attached(
    image: Published, policy: ProofPolicy | None = None, *, keyed: bool = False
) -> tuple[AttachedReport, ...]:
    """List the reports of an image.

    Args:
        image: the image, as it was read with the keys that count.
        policy: what a report must show; by default what the image's label demands.
        keyed: whether the image was read with the key that it must be signed with.

    """
    return tuple(
        _listed(item, image, policy, keyed=keyed) for item in image.attachments if item.kind == REPORT
    )


def lacking(image: Published, policy: ProofPolicy | None = None, *, keyed: bool = False) -> tuple[str, ...]:
    """Return why none of an image's reports is the proof that is demanded; empty if one is.

    If several are attached, each reason names its report.
    """
    found = attached(image, policy, keyed=keyed)
    if any(not report.refusals for report in found):
        return ()
    if not found:
        return ("no smoke-test report is attached",)
    if len(found) == 1:
        return found[0].refusals
    return tuple(f"report {report.digest[:19]}: {', '.join(report.refusals)}" for report in found)


def judged(
    item: Attachment, image: Published, policy: ProofPolicy, *, keyed: bool
) -> tuple[proof.Proof, tuple[str, ...]]:
    """Judge one attached report; returns it with the reasons why it is not the proof that is demanded.

    Raises:
        ValueError: it is not a report.

    """
    found = proof.judge(item.data, image.content)
    signers = (*item.signed_by, *((_THE_KEY,) if keyed and item.signed else ()))
    return found, found.refusals(policy, signers)


def _listed(item: Attachment, image: Published, policy: ProofPolicy | None, *, keyed: bool) -> AttachedReport:
    made = AttachedReport(
        digest=item.digest,
        verdict="none",
        summary="",
        refusals=(),
        signed=item.signed,
        signed_by=item.signed_by,
    )
    damaged: tuple[str, ...] = ()
    try:
        policy = policy or proof.policy_of(image.labels, str(image.reference))
    except GateError as error:
        policy, damaged = ProofPolicy(), (error.problems[0].message,)
    try:
        found, refusals = judged(item, image, policy, keyed=keyed)
    except ValueError as error:
        return replace(made, summary=str(error), refusals=(*damaged, str(error)))
    made = replace(made, refusals=(*damaged, *refusals))
    if not found.is_about_image:
        return replace(made, summary=refusals[0])
    report = found.report
    return replace(
        made,
        verdict="failed" if found.shortcoming else "passed",
        summary=found.summary,
        mode=report.mode,
        nodes=report.nodes,
        gpus=report.host.gpus,
        driver=report.host.driver,
        transport=report.transport,
        busbw=report.busbw,
        loaded=report.loaded,
        started=report.started,
    )
