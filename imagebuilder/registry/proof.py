"""The gate before a push: the smoke test's report on exactly these bytes."""

from __future__ import annotations

from imagebuilder import jsontext, platforms
from imagebuilder.errors import GateError
from imagebuilder.store import ImageRecord, Store

_LIMIT = 16_000_000


def require_proof(image: ImageRecord, store: Store) -> None:
    """Let pass only an image whose smoke test passed.

    Raises:
        GateError: there is no report for the image's digest, it is about another one, or it says no.

    """
    path = store.report(image.manifest)
    elsewhere = "" if image.platform == platforms.own() else f" --platform {image.platform}"
    hint = f"run: imagebuilder smoke-test {image.name}{elsewhere}"
    try:
        with path.open("rb") as file:
            report = jsontext.loads(file.read(_LIMIT + 1), limit=_LIMIT)
    except FileNotFoundError:
        raise GateError(
            f"{image.name} was not proven: there is no smoke test of {image.manifest}",
            where=str(path),
            hint=f"{hint} (or push with --untested)",
        ) from None
    except (OSError, ValueError) as error:
        raise GateError(
            f"the smoke test's report cannot be read: {type(error).__name__}", where=str(path), hint=hint
        ) from error
    if not isinstance(report, dict) or report.get("digest") != image.manifest:
        raise GateError("the report is about another image", where=str(path), hint=hint)
    if report.get("passed") is not True:
        raise GateError(f"{image.name} failed its smoke test", where=str(path), hint=f"mend it, then {hint}")
