"""Take over results from an earlier report, if only the user's own files changed since.

The earlier image must have the same layers below those files, and the same config but for their checksums and
their commit. The new report holds the earlier one whole, with that image's manifest and config: so everybody
can check this again, without the earlier image.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagebuilder.core import labels as label_names
from imagebuilder.core.documents import digest_of
from imagebuilder.errors import StoreError
from imagebuilder.plan import Project
from imagebuilder.recipe.proof import of_label
from imagebuilder.smoke import report as reports
from imagebuilder.smoke import verdict
from imagebuilder.smoke.report import CheckResult, Earlier, Report, Reused
from imagebuilder.smoke.verdict import EarlierVerdict, Verdict
from imagebuilder.store import Store

# A store keeps a report for each image that was tested; only the newest ones are read.
_MOST = 20
# Labels that change with the user's own files.
_CHANGING = (label_names.PROJECT, label_names.PACKAGE, label_names.REVISION)


@dataclass(frozen=True, kw_only=True)
class ImageContent:
    """What an image is made of.

    Attributes:
        digest: of its manifest.
        config_digest: of its config; with a good report on it, each packing of the image is proven.
        layers: their digests, the lowest first.
        config: its config document.

    """

    digest: str
    config_digest: str
    layers: tuple[str, ...]
    config: Mapping[str, Any]

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels in the config; empty if it has none."""
        run = self.config.get("config")
        found = run.get("Labels") if isinstance(run, dict) else None
        return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}

    @property
    def below(self) -> Mapping[str, Any]:
        """The config with the diffIDs of its layers, without what belongs to the user's own files.

        How a layer is packed does not count: whoever unpacks it checks its diffID.

        Raises:
            ValueError: the labels name more such layers than there are.

        """
        labels = self.labels
        own = _own_layers(labels, len(self.layers))
        config = copy.deepcopy(dict(self.config))
        diff_ids = config.get("rootfs", {}).get("diff_ids", [])
        if len(diff_ids) != len(self.layers):
            raise ValueError("manifest and config have different numbers of layers")
        config["rootfs"]["diff_ids"] = [text for index, text in enumerate(diff_ids) if index not in own]
        # How many folders are copied counts, what is in them does not.
        config["own"] = [len(Project.of_labels(labels).checksums), label_names.PACKAGE in labels]
        config["config"]["Labels"] = {name: text for name, text in labels.items() if name not in _CHANGING}
        return config


def of_documents(manifest: str, config: str) -> ImageContent:
    """Read the documents of an image.

    Raises:
        ValueError: they are not a manifest and its config.

    """
    try:
        found, run = json.loads(manifest), json.loads(config)
        wanted = found["config"]["digest"]
        layers = tuple(str(layer["digest"]) for layer in found["layers"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("the earlier image's manifest cannot be read") from None
    if wanted != digest_of(config.encode()) or not isinstance(run, dict):
        raise ValueError("the earlier image's config is not the one that its manifest names")
    return ImageContent(
        digest=digest_of(manifest.encode()), config_digest=str(wanted), layers=layers, config=run
    )


def stored(digest: str, store: Store) -> ImageContent | None:
    """Read an image of the store; None if the store does not have it."""
    documents = _documents(digest, store)
    try:
        return of_documents(*documents) if documents else None
    except ValueError:
        return None


def shortcoming(report: Verdict, labels: Mapping[str, str], image: ImageContent | None) -> str:
    """Say why a report does not prove this image; empty if it does.

    Args:
        report: about the image's digest.
        labels: the image's.
        image: what it is made of; None if unknown, then nothing may be reused.

    """
    if problem := report.shortcoming(label_names.pins(labels)):
        return problem
    passed = {check.name for check in report.checks if check.status == "passed"}
    if labels.get(label_names.TRAINING) and verdict.OWN_TRAINING not in passed:
        return f"required checks did not run: {verdict.OWN_TRAINING}"
    if problem := _tests_problem(report, labels.get(label_names.TESTS, "")):
        return problem
    reused = [check.name for check in report.checks if check.reused]
    if not reused or report.earlier is None:
        return ""
    problem = _difference(report.earlier, image)
    names = f"`{reused[0]}`" + (f" and {len(reused) - 1} more checks" if reused[1:] else "")
    return f"{names} did not run on this image, and {problem}" if problem else ""


def _tests_problem(report: Verdict, checksum: str) -> str:
    """Say why a report does not show that the recipe's own tests passed; empty if it does, or names none."""
    ran = [check for check in report.checks if check.name == verdict.OWN_TESTS and check.status == "passed"]
    if not checksum:
        return ""
    if not ran:
        return f"required checks did not run: {verdict.OWN_TESTS}"
    same = all(check.evidence.get("checksum") == checksum for check in ran)
    return "" if same else "other tests ran than those that the recipe names"


def _difference(then: EarlierVerdict, image: ImageContent | None) -> str:
    """Say why results of another image do not hold for this one; empty if they do."""
    if image is None:
        return "its layers are not known here"
    try:
        if _forbidden(image):
            return "its recipe says `proof: {reuse: nothing}`"
        earlier = of_documents(then.manifest, then.config)
        same = earlier.below == image.below
    except ValueError as error:
        return str(error)
    if earlier.digest != then.report.digest:
        return "the earlier report is not about the manifest beside it"
    return "" if same else f"{earlier.digest} differs from it in more than the user's own files"


def find(image: ImageContent, store: Store, recipe: str) -> Earlier | None:
    """Find the newest report in the store whose results hold for this image too; None if there is none."""
    try:
        if _forbidden(image) or not _own_layers(image.labels, len(image.layers)):
            return None
        there = sorted((store.root / "reports").glob("*.json"), key=lambda path: -path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None
    for path in there[:_MOST]:
        try:
            report = reports.parse(reports.read_bytes(path), Report)
        except (OSError, ValueError):
            continue
        found = _earlier(report, store) if report.recipe == recipe else None
        if found and found.report.digest != image.digest and _holds(found, image):
            return found
    return None


def taken(check: CheckResult, earlier: Report) -> CheckResult:
    """Return an earlier result as a new report has it: no command ran, and no time passed."""
    return check.model_copy(
        update={"reused": Reused(digest=earlier.digest, started=earlier.started), "steps": (), "seconds": 0.0}
    )


def _forbidden(image: ImageContent) -> bool:
    return of_label(image.labels.get(label_names.PROOF, "")).reuse == "nothing"


def _own_layers(labels: Mapping[str, str], count: int) -> frozenset[int]:
    """Return the positions of the layers of the user's own files; see `plan.layout.plan` for the order."""
    copies = len(Project.of_labels(labels).checksums)
    own = set(range(count - copies, count))
    if label_names.PACKAGE in labels:
        keys = labels.get(label_names.SSH_KEYS) == "baked"
        own.add(count - copies - 1 - keys)
    if own and min(own) < 0:
        raise ValueError("the labels name more layers than the image has")
    return frozenset(own)


def _earlier(report: Report, store: Store) -> Earlier | None:
    """Return the report in which all checks really ran: this one, or the one that it took results from."""
    if report.earlier is not None:
        return report.earlier
    documents = _documents(report.digest, store)
    return Earlier(manifest=documents[0], config=documents[1], report=report) if documents else None


def _holds(earlier: Earlier, image: ImageContent) -> bool:
    """Return True if a new report with the results of the earlier one proves the image."""
    try:
        found = verdict.read(reports.dumps(earlier.report).encode())
        then = of_documents(earlier.manifest, earlier.config)
        same = then.digest == earlier.report.digest and then.below == image.below
    except ValueError:
        return False
    return same and not found.earlier and not found.shortcoming(label_names.pins(image.labels))


def _documents(digest: str, store: Store) -> tuple[str, str] | None:
    """Read an image's manifest and config from the store; None if they are gone or damaged."""
    try:
        manifest = store.blob(digest).read_text(encoding="utf-8")
        config = store.blob(json.loads(manifest)["config"]["digest"]).read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError, StoreError):
        return None
    return manifest, config
