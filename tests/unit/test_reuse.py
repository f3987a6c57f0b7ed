"""Results that a report takes over from an earlier one: honest ones are accepted, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagebuilder import __version__
from imagebuilder.core import labels as label_names
from imagebuilder.errors import GateError
from imagebuilder.image import oci
from imagebuilder.lock import model as locks
from imagebuilder.plan import Plan, Project
from imagebuilder.publish import proof
from imagebuilder.smoke import report as reports
from imagebuilder.smoke import reuse, verdict
from imagebuilder.smoke.report import CheckResult, Earlier, Report
from imagebuilder.smoke.run import _Place, _results_of
from imagebuilder.smoke.target import SmokeOptions, SmokeTarget
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow.source import RecipeSource
from tests.support import proven
from tests.support.images import put_layer
from tests.support.recipes import like_shipped

COPY = "copy: [{from: ../src, to: /workspace}]\n"
NOT_HERE = "`training` did not run on this image, and "
WHEN = "2026-01-02T03:04:05Z"
TRAINING = CheckResult(
    name="training",
    title="a training",
    criterion="it learns",
    required=False,
    exchanges=True,
    status="passed",
    summary="it learnt",
    evidence={"losses": [1.0, 0.5]},
    seconds=7.0,
)


class Images:
    """Images of one recipe in a store, each with other files of the user's."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "store")
        self.path = like_shipped(folder, "own", {"pip: [": f"{COPY}pip: ["})

    def plan(self, number: int, more: str = "") -> Plan:
        source = RecipeSource(recipe=self.path.read_text() + more, lock=locks.path_for(self.path).read_text())
        own = Project(checksums=(f"{number:064x}",), revision=f"{number:040x}")
        return source.read("linux/amd64", own)[1]

    def built(self, number: int, more: str = "") -> ImageRecord:
        return proven.put_built(self.plan(number, more), self.store)

    def content(self, image: ImageRecord) -> reuse.ImageContent:
        found = reuse.stored(image.manifest, self.store)
        assert found is not None
        return found

    def find(self, image: ImageRecord) -> Earlier | None:
        return reuse.find(self.content(image), self.store, image.name)

    def tested(self, image: ImageRecord, **changes: Any) -> Report:
        """Write a report of an image on which all checks ran."""
        plain = proven.report_of(image)
        fields = {"checks": (*plain.checks, TRAINING), "started": WHEN, **changes}
        return self.write(image, plain.model_copy(update=fields))

    def taken(self, image: ImageRecord, earlier: Earlier) -> Report:
        """Write a report of an image for which the training did not run again."""
        plain = proven.report_of(image)
        own = reuse.taken(TRAINING, earlier.report)
        fields = {"checks": (*plain.checks, own), "started": "2026-01-03T03:04:05Z", "earlier": earlier}
        return self.write(image, plain.model_copy(update=fields))

    def write(self, image: ImageRecord, report: Report) -> Report:
        reports.write(report, self.store.report(image.manifest))
        return report


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path)


def found(images: Images, image: ImageRecord) -> Earlier:
    earlier = images.find(image)
    assert earlier is not None
    return earlier


def test_results_hold_where_only_the_user_s_files_changed(images: Images) -> None:
    first = images.built(1)
    images.tested(first)
    second = images.built(2)
    report = images.taken(second, found(images, second))
    proof.require(second, images.store)
    (own,) = [check for check in report.checks if check.reused]
    assert (own.summary, own.evidence, own.seconds, own.steps) == ("it learnt", TRAINING.evidence, 0.0, ())
    assert own.reused == reports.Reused(digest=first.manifest, started=WHEN)
    count = len(report.checks)
    assert proof.in_store(second, images.store).summary == (
        f"{count} passed (1 of them reused from {first.manifest[:19]}) on 2 nodes, mode cpu"
    )
    lines = "\n".join(reports.lines(report, width=1000))
    assert f"reused from {first.manifest[:19]} of {WHEN}: it learnt" in lines
    assert (
        f"reused: training did not run; they passed at {WHEN} on {first.manifest}, from which this image "
        "differs only in your own files"
    ) in lines


def test_what_was_reused_is_reused_from_where_it_ran(images: Images) -> None:
    first, second = images.built(1), images.built(2)
    images.tested(first)
    images.taken(second, found(images, second))
    # The first image and its report are gone from the store, as after `cache prune`.
    images.store.report(first.manifest).unlink()
    images.store.blob(first.manifest).unlink()
    third = images.built(3)
    report = images.taken(third, found(images, third))
    assert report.earlier is not None
    assert (report.earlier.report.digest, report.earlier.report.started) == (first.manifest, WHEN)
    proof.require(third, images.store)


def test_the_newest_report_counts(images: Images) -> None:
    first, second, third = images.built(1), images.built(2), images.built(3)
    images.tested(second, started="2026-01-05T00:00:00Z")
    images.tested(first)
    assert found(images, third).report.digest == first.manifest


@pytest.mark.parametrize(
    "changes",
    [
        {"passed": False, "checks": (TRAINING.model_copy(update={"status": "failed"}),)},
        {"checks": (TRAINING,)},
        {"recipe": "other"},
    ],
)
def test_no_result_is_taken_from_a_report_that_proves_nothing(
    images: Images, changes: dict[str, Any]
) -> None:
    first, second = images.built(1), images.built(2)
    images.tested(first, **changes)
    images.store.report(second.manifest).unlink()
    assert images.find(second) is None


def test_a_damaged_report_or_image_is_passed_over(images: Images) -> None:
    first, second = images.built(1), images.built(2)
    images.tested(first)
    images.store.report(second.manifest).write_text("{")
    assert found(images, second).report.digest == first.manifest
    images.store.blob(first.config).write_text("{}")
    assert images.find(second) is None


@pytest.mark.parametrize("more", ["command: [python]\n", "workdir: /workspace\n", "checks: {training: x}\n"])
def test_another_config_is_another_image(images: Images, more: str) -> None:
    images.tested(images.built(1))
    assert images.find(images.built(2, more)) is None


def test_the_same_image_is_tested_again_in_full(images: Images) -> None:
    first = images.built(1)
    images.tested(first)
    assert images.find(first) is None


def test_a_recipe_can_ask_for_all_checks(images: Images) -> None:
    first = images.built(1, "proof: {reuse: nothing}\n")
    images.tested(first)
    assert images.find(images.built(2, "proof: {reuse: nothing}\n")) is None


def lower_layers_differ(images: Images) -> ImageRecord:
    """Make an image of the same recipe, in which one of the lower layers has other bytes."""
    plan = images.plan(7)
    records = [
        images.store.layer(layer.key) or put_layer(images.store, {"own": b"new"}) for layer in plan.layers
    ]
    records[0] = put_layer(images.store, {"bin/sh": b"another"})
    return oci.write_image(plan, records, images.store)


def test_other_lower_layers_are_another_image(images: Images) -> None:
    first = images.built(1)
    images.tested(first)
    other = lower_layers_differ(images)
    assert images.find(other) is None
    # Somebody writes the report by hand.
    second = images.built(2)
    images.taken(other, found(images, second))
    with pytest.raises(GateError) as caught:
        proof.require(other, images.store)
    assert caught.value.problems[0].message == (
        f"own did not pass: `training` did not run on this image, and {first.manifest} differs from it in "
        "more than the user's own files"
    )


def check(report: dict[str, Any], name: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(entry for entry in report["checks"] if entry["name"] == name)
    return entry


def claim(report: dict[str, Any], name: str) -> None:
    check(report, name)["reused"] = check(report, "training")["reused"]


def fail(report: dict[str, Any], name: str) -> None:
    check(report, name)["status"] = "failed"
    report["passed"] = False


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda report: report.pop("earlier"),
            "`training` is said to be reused, and the earlier report is missing",
        ),
        (
            lambda report: fail(report["earlier"]["report"], "training"),
            "`training` is said to be reused, and the earlier report is not a proof: the smoke test failed",
        ),
        (
            lambda report: check(report, "training").update(summary="it learnt more"),
            "`training` is said to be reused, and the earlier report says something else",
        ),
        (
            lambda report: check(report, "training")["evidence"].update(losses=[0.0]),
            "`training` is said to be reused, and the earlier report says something else",
        ),
        (
            lambda report: check(report, "training")["reused"].update(started="2026-02-02T00:00:00Z"),
            "`training` is said to be reused, and the earlier report says something else",
        ),
        (
            lambda report: check(report, "training")["reused"].update(digest="sha256:" + "0" * 64),
            "`training` is said to be reused, and the earlier report says something else",
        ),
        (
            lambda report: report["earlier"]["report"]["checks"].pop(),
            "`training` is said to be reused, and the earlier report says something else",
        ),
        (
            lambda report: claim(report, "clock"),
            "`clock` is said to be reused, and it has to run on every image",
        ),
        (
            lambda report: check(report["earlier"]["report"], "clock").update(
                reused={"digest": "sha256:" + "0" * 64, "started": WHEN}
            ),
            "`training` is said to be reused, and not all checks of the earlier report ran",
        ),
        (
            lambda report: report["earlier"]["report"].update(nodes=3),
            "`training` is said to be reused, and the earlier test ran in another way",
        ),
        (
            lambda report: (
                report["earlier"]["report"].update(digest="sha256:" + "0" * 64)
                or check(report, "training")["reused"].update(digest="sha256:" + "0" * 64)
            ),
            f"{NOT_HERE}the earlier report is not about the manifest beside it",
        ),
        (
            lambda report: report["earlier"].update(config="{}"),
            f"{NOT_HERE}the earlier image's config is not the one that its manifest names",
        ),
        (
            lambda report: report["earlier"].update(manifest="[" * 100),
            f"{NOT_HERE}the earlier image's manifest cannot be read",
        ),
    ],
)
def test_a_report_that_was_written_by_hand_is_refused(
    images: Images, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    first, second = images.built(1), images.built(2)
    images.tested(first)
    images.taken(second, found(images, second))
    path = images.store.report(second.manifest)
    report = json.loads(path.read_text())
    change(report)
    path.write_text(json.dumps(report))
    with pytest.raises(GateError) as caught:
        proof.require(second, images.store)
    assert caught.value.problems[0].message == f"own did not pass: {message}"


def test_a_report_with_reused_results_does_not_pass_where_the_recipe_asks_for_all(images: Images) -> None:
    first, second = images.built(1), images.built(2)
    images.tested(first)
    earlier = found(images, second)
    strict = images.built(2, "proof: {reuse: nothing}\n")
    images.taken(strict, earlier)
    with pytest.raises(GateError, match=r"and its recipe says `proof: {reuse: nothing}`"):
        proof.require(strict, images.store)


def test_a_report_without_the_recipe_s_own_training_does_not_pass(images: Images) -> None:
    image = images.built(1, "checks: {training: python train.py}\n")
    images.tested(image)
    with pytest.raises(GateError, match="own did not pass: required checks did not run: own-training"):
        proof.require(image, images.store)


def test_a_report_without_the_recipe_s_own_tests_does_not_prove(images: Images) -> None:
    labels = {label_names.TESTS: "b" * 64}
    ran = TRAINING.model_copy(update={"name": "own-tests", "evidence": {"checksum": "b" * 64}})
    other = ran.model_copy(update={"evidence": {"checksum": "c" * 64}})
    skipped = ran.model_copy(update={"status": "skipped"})
    image = images.built(1)

    def problem(*checks: CheckResult) -> str:
        plain = proven.report_of(image)
        report = reports.dumps(plain.model_copy(update={"checks": (*plain.checks, *checks)}))
        return reuse.shortcoming(verdict.read(report.encode()), labels, None)

    assert problem() == "required checks did not run: own-tests"
    assert problem(skipped) == "required checks did not run: own-tests"
    assert problem(other) == "other tests ran than those that the recipe names"
    assert problem(ran) == ""


def test_an_image_whose_layers_are_unknown_reuses_nothing(images: Images) -> None:
    first, second = images.built(1), images.built(2)
    images.tested(first)
    images.taken(second, found(images, second))
    images.store.blob(second.manifest).unlink()
    with pytest.raises(GateError, match="`training` did not run on this image, and its layers are not known"):
        proof.require(second, images.store)


@pytest.mark.parametrize(
    ("options", "place", "count"),
    [
        ({}, {}, 1),
        ({"nodes": 3}, {}, 0),
        ({"nproc_per_node": 2}, {}, 0),
        ({}, {"mode": "multi-gpu"}, 0),
        ({}, {"runtime": "podman"}, 0),
    ],
)
def test_results_hold_for_a_run_of_the_same_kind(
    images: Images, options: dict[str, Any], place: dict[str, Any], count: int
) -> None:
    first, second = images.built(1), images.built(2)
    report = images.tested(first, tool=f"imagebuilder {__version__}")
    target = SmokeTarget(reference="own", recipe="own", lock="", pins=())
    where: dict[str, Any] = {"runtime": "docker", "mode": "cpu", "mode_reason": "", "host": report.host}
    taken = _results_of(found(images, second), target, SmokeOptions(**options), _Place(**{**where, **place}))
    assert list(taken).count("training") == count


@pytest.mark.parametrize(
    "asked",
    [
        {"again": True},
        {"only": frozenset({"names"})},
        {"transport": "ib"},
        {"min_busbw": 1.0},
        {"shm_bytes": 1},
    ],
)
def test_what_a_report_does_not_record_must_be_as_usual(asked: dict[str, Any]) -> None:
    assert SmokeOptions().may_reuse
    assert not SmokeOptions(**asked).may_reuse
