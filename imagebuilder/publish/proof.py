"""Whether a smoke report proves an image: decided here, for every gate, every check and every verb.

What a report is worth by itself (which checks have to pass) is `imagebuilder.smoke.verdict`'s to say; that it
is about this very image is added here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from imagebuilder.core import platforms
from imagebuilder.errors import GateError
from imagebuilder.smoke import verdict
from imagebuilder.store import ImageRecord, Store


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a report says of one image.

    Attributes:
        data: the report's bytes.
        is_about_image: whether it names the image's digest.
        shortcoming: why it proves no image, whichever it is about; empty where it proves its own.
        summary: in a line, `8 of 12 checks passed on 2 nodes, mode cpu`.

    """

    data: bytes
    is_about_image: bool
    shortcoming: str
    summary: str

    @property
    def proves_image(self) -> bool:
        """Whether the report is about the image, and proves it."""
        return self.is_about_image and not self.shortcoming


def judge(data: bytes, digest: str) -> Proof:
    """Judge a report by what it says of the image with a digest.

    Raises:
        ValueError: the bytes are not a report.

    """
    return _judged(data, verdict.read(data), digest)


def in_store(image: ImageRecord, store: Store) -> Proof:
    """Judge the store's report on an image.

    Raises:
        OSError: it cannot be read; FileNotFoundError where the image was not tested.
        ValueError: it is not a report.

    """
    return _judged(*verdict.read_file(store.report(image.manifest)), image.manifest)


def shortcoming(reports: Iterable[bytes], digest: str) -> str:
    """Say why none of the reports attached to an image proves it; empty where one of them does."""
    reason = "no report of a smoke test is attached"
    for data in reports:
        try:
            proof = judge(data, digest)
        except ValueError as error:
            reason = str(error)
            continue
        if proof.proves_image:
            return ""
        reason = (
            proof.shortcoming
            if proof.is_about_image
            else "the report that is attached is about another image"
        )
    return reason


def require(image: ImageRecord, store: Store) -> None:
    """Let pass only an image of the store whose smoke test passed.

    Raises:
        GateError: there is no report for the image's digest, it is about another one, or it is not a proof.

    """
    path = store.report(image.manifest)
    elsewhere = "" if image.platform == platforms.own() else f" --platform {image.platform}"
    hint = f"run: imagebuilder smoke-test {image.name}{elsewhere}"
    try:
        proof = in_store(image, store)
    except FileNotFoundError:
        raise GateError(
            f"{image.name} was not proven: there is no smoke test of {image.manifest}",
            where=str(path),
            hint=f"{hint} (or push with --untested)",
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
            f"{image.name} is not proven: {proof.shortcoming}", where=str(path), hint=f"mend it, then {hint}"
        )


def _judged(data: bytes, report: verdict.Verdict, digest: str) -> Proof:
    return Proof(
        data=data,
        is_about_image=report.digest == digest,
        shortcoming=report.shortcoming,
        summary=str(report),
    )
