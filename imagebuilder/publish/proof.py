"""Decide whether a smoke report proves an image, for every gate, check and verb.

`imagebuilder.smoke.verdict` decides whether a report is a proof (which checks must pass). This module also
checks that it is about this image, and that it shows what the image's recipe demands (`proof:`). The demands
are in a label of the image, so the image's digest covers them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from imagebuilder.core import labels as label_names
from imagebuilder.core import platforms
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import GateError
from imagebuilder.recipe.proof import ProofPolicy, of_label
from imagebuilder.smoke import reuse, verdict
from imagebuilder.smoke.reuse import ImageContent
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import labels

# From weak to strong.
_MODES = ("cpu", "one-gpu-shared", "multi-gpu")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A report, judged for one image.

    Attributes:
        data: the report's bytes.
        report: what it says.
        is_about_image: whether it names the digest of the image's manifest, or of its config: that names
            the tars of all layers, so other manifests with it only pack them in another way.
        shortcoming: why it is not a proof of this image; empty if it is.

    """

    data: bytes
    report: verdict.Verdict
    is_about_image: bool
    shortcoming: str

    @property
    def proves_image(self) -> bool:
        """Whether the report is about the image, and proves it."""
        return self.is_about_image and not self.shortcoming

    @property
    def summary(self) -> str:
        """The result in one line: `8 passed, 4 skipped on 2 nodes, mode cpu`."""
        return str(self.report)

    def refusals(self, policy: ProofPolicy, signers: Collection[str]) -> tuple[str, ...]:
        """Return each reason why this report is not the proof that a recipe demands; empty if it is.

        Args:
            policy: what the recipe demands.
            signers: those of the policy's keys that have signed the report.

        """
        if not self.is_about_image:
            return (f"it is about another image, {printable(self.report.digest[:80])}",)
        found = self.report
        mode = _MODES.index(found.mode) if found.mode in _MODES else -1
        unsigned = bool(policy.signed_by) and not signers
        wanted = (
            (bool(self.shortcoming), self.shortcoming),
            (mode < _MODES.index(policy.mode), f"mode {printable(found.mode)} instead of {policy.mode}"),
            (found.nodes < policy.nodes, f"{found.nodes} nodes instead of {policy.nodes}"),
            (
                policy.transport not in ("any", found.transport),
                f"transport {printable(found.transport) or 'unknown'} instead of {policy.transport}",
            ),
            (
                found.busbw < policy.min_busbw,
                f"a bus bandwidth of {found.busbw:.2f} GB/s instead of {policy.min_busbw}",
            ),
            (
                found.runtime == "job" and not signers and not unsigned,
                "it was read from a log, for which a key must vouch: name one in `proof: {signed_by: [...]}`",
            ),
            (unsigned, f"it is not signed with {' or '.join(policy.signed_by)}"),
        )
        return tuple(reason for refused, reason in wanted if refused)


def judge(data: bytes, image: ImageContent) -> Proof:
    """Judge a report for an image.

    Raises:
        ValueError: the bytes are not a report.

    """
    return _judged(data, (image.digest, image.config_digest), image.labels, image)


def in_store(image: ImageRecord, store: Store) -> Proof:
    """Judge the store's report on an image.

    Raises:
        OSError: it cannot be read; FileNotFoundError if the image was not tested.
        StoreError: the image's config cannot be read.
        ValueError: it is not a report.

    """
    data, _ = verdict.read_file(store.report(image.manifest))
    content = reuse.stored(image.manifest, store)
    return _judged(data, (image.manifest, image.config), labels(image, store), content)


def policy_of(found: Mapping[str, str], where: str) -> ProofPolicy:
    """Return what the recipe of an image demands of a report, from the image's labels.

    Raises:
        GateError: the label is damaged.

    """
    try:
        return of_label(found.get(label_names.PROOF, ""))
    except ValueError as error:
        raise GateError(
            f"its label {label_names.PROOF} {printable(str(error))}",
            where=where,
            hint="build the image again, with this version of imagebuilder",
        ) from None


def require(image: ImageRecord, store: Store, signers: Collection[str] = ()) -> None:
    """Refuse an image of the store whose smoke test did not pass, or not as its recipe demands.

    Args:
        image: the image.
        store: has the report.
        signers: those of the recipe's keys (`proof.signed_by`) that the push signs the report with.

    Raises:
        GateError: there is no report for the image's digest, or it is not the proof that the recipe demands.

    """
    path = store.report(image.manifest)
    elsewhere = "" if image.platform == platforms.own() else f" --platform {image.platform}"
    hint = f"run: imagebuilder smoke-test {image.name}{elsewhere}"
    try:
        proof = in_store(image, store)
    except FileNotFoundError:
        raise GateError(
            f"{image.name} was not tested: there is no smoke test of {image.manifest}",
            where=str(path),
            hint=f"{hint} (or push with --candidate, and prove it elsewhere; or with --untested)",
        ) from None
    except OSError as error:
        raise GateError(
            f"the smoke test's report cannot be read: {error.strerror}", where=str(path), hint=hint
        ) from error
    except ValueError as error:
        raise GateError(
            f"the smoke test's report cannot be read: it {error}", where=str(path), hint=hint
        ) from None
    if not proof.is_about_image:
        raise GateError("the report is about another image", where=str(path), hint=hint)
    if proof.shortcoming:
        raise GateError(
            f"{image.name} did not pass: {proof.shortcoming}", where=str(path), hint=f"fix it, then {hint}"
        )
    policy = policy_of(labels(image, store), image.name)
    if lacking := proof.refusals(policy, signers):
        raise GateError(
            f"{image.name} passed, but not as its recipe demands: {', '.join(lacking)}",
            where=str(path),
            hint="push it with --candidate, prove it where that can be shown, then promote it",
        )


def _judged(
    data: bytes, digests: tuple[str, str], found: Mapping[str, str], image: ImageContent | None
) -> Proof:
    report = verdict.read(data)
    manifest, config = digests
    return Proof(
        data=data,
        report=report,
        is_about_image=report.digest == manifest or (bool(report.config) and report.config == config),
        shortcoming=reuse.shortcoming(report, found, image),
    )
