"""Decide whether a smoke report proves an image, for every gate, check and verb.

`imagebuilder.smoke.verdict` decides whether a report is a proof (which checks must pass). This module also
checks that it is about this image.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from imagebuilder.core import platforms
from imagebuilder.errors import GateError
from imagebuilder.smoke import reuse, verdict
from imagebuilder.smoke.reuse import ImageContent
from imagebuilder.store import ImageRecord, Store


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A report, judged for one image.

    Attributes:
        data: the report's bytes.
        is_about_image: whether it names the image's digest.
        shortcoming: why it is not a proof of this image; empty if it is.
        summary: one line, `8 of 12 checks passed on 2 nodes, mode cpu`.

    """

    data: bytes
    is_about_image: bool
    shortcoming: str
    summary: str

    @property
    def proves_image(self) -> bool:
        """Whether the report is about the image, and proves it."""
        return self.is_about_image and not self.shortcoming


def judge(data: bytes, image: ImageContent) -> Proof:
    """Judge a report for an image.

    Raises:
        ValueError: the bytes are not a report.

    """
    return _judged(data, verdict.read(data), image.digest, image)


def in_store(image: ImageRecord, store: Store) -> Proof:
    """Judge the store's report on an image.

    Raises:
        OSError: it cannot be read; FileNotFoundError if the image was not tested.
        ValueError: it is not a report.

    """
    content = reuse.stored(image.manifest, store)
    return _judged(*verdict.read_file(store.report(image.manifest)), image.manifest, content)


def shortcoming(reports: Iterable[bytes], image: ImageContent) -> str:
    """Return why none of the reports attached to an image proves it; empty if one does."""
    reason = "no smoke-test report is attached"
    for data in reports:
        try:
            proof = judge(data, image)
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
    """Refuse an image of the store whose smoke test did not pass.

    Raises:
        GateError: there is no report for the image's digest, or it is not a proof.

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
            f"{image.name} did not pass: {proof.shortcoming}", where=str(path), hint=f"fix it, then {hint}"
        )


def _judged(data: bytes, report: verdict.Verdict, digest: str, image: ImageContent | None) -> Proof:
    return Proof(
        data=data,
        is_about_image=report.digest == digest,
        shortcoming=reuse.shortcoming(report, image),
        summary=str(report),
    )
