"""`--json` prints one document, and nothing beside it: an envelope with the verb's result, or its error.

conftest.py holds every envelope that a unit test prints against the schema of its verb. Successes of verbs
that need a registry are in test_platforms.py (push, join, inspect), test_proofs.py (promote) and
test_attest_published.py (verify).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from typer.testing import CliRunner

from imagebuilder import workflow
from imagebuilder.cli import app, results
from imagebuilder.fetch import locked
from imagebuilder.lock import file as lockfile
from imagebuilder.smoke.report import CheckResult, Finding
from imagebuilder.store import Store
from imagebuilder.workflow import LockUpdate, doctor, trial
from tests.support import proven
from tests.unit.test_exit_codes import CASES_OF, Case, commands, exit_code, here

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "cpu-mpi.yaml"


def said(*words: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)["result"]


def envelope(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = exit_code(*words, "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["version"], found["ok"]) == (1, code == 0)
    assert (found["error"] or {"code": 0})["code"] == code
    return found


def verbs_with_json() -> set[str]:
    """List the verbs that have the option, as the command line knows them."""
    options = {name: {option.name for option in command.params} for name, command in commands()}
    return {name for name, found in options.items() if "as_json" in found}


def test_every_verb_with_json_has_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(results.RESULTS) == verbs_with_json()
    for verb in results.RESULTS:
        assert exit_code("schema", "--json", verb) == 0
        described = json.loads(capsys.readouterr().out)
        jsonschema.Draft202012Validator.check_schema(described)
        assert described["properties"]["command"] == {"const": verb}
        # A schema that accepts anything would prove nothing.
        assert not jsonschema.Draft202012Validator(described).is_valid({"version": 1, "command": verb})
        assert not jsonschema.Draft202012Validator(described["$defs"]["Failure"]).is_valid({})


def test_a_verb_without_json_has_no_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("schema", "--json", "keys") == 3
    hint = f"choose one of {', '.join(results.RESULTS)}"
    assert capsys.readouterr().err == f"error: --json: no verb `keys` has --json\n  -> {hint}\n"
    assert exit_code("schema", "--json", "check", "--site-file") == 3


@pytest.mark.parametrize("verb", sorted(results.RESULTS))
def test_a_wrong_option_is_answered_in_json(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = envelope(capsys, *verb.split(), "--no-such-option")
    where = f"imagebuilder {verb}"
    assert found["command"] == verb
    assert found["result"] is None
    problem = {"message": "No such option: --no-such-option", "where": where, "hint": ""}
    assert found["error"] == {"code": 2, "problems": [problem]}


CASES = [case for case in CASES_OF if case[0] in results.RESULTS]


@pytest.mark.parametrize(
    ("verb", "code", "arguments"), CASES, ids=[f"{verb}-{code}" for verb, code, _ in CASES]
)
def test_whatever_becomes_of_a_verb_is_one_envelope(
    verb: str,
    code: int,
    arguments: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = arguments(here(tmp_path, monkeypatch))
    found = envelope(capsys, *verb.split(), *words)
    assert found["command"] == verb
    assert (found["error"] or {"code": 0})["code"] == code
    # Either the verb says what became of its work, or the error says what is wrong.
    assert found["result"] is not None or found["error"]["problems"][0]["message"]


def test_an_interrupted_verb_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workflow, "read_locks", interrupt)
    found = envelope(capsys, "plan", here(tmp_path, monkeypatch).recipe)
    problem = {"message": "interrupted", "where": "", "hint": ""}
    assert found["error"] == {"code": 130, "problems": [problem]}


def test_a_result_of_an_earlier_verb_is_not_printed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert envelope(capsys, "cache", "ls", "--store", str(tmp_path))["result"] is not None
    assert envelope(capsys, "cache", "ls", "--no-such-option")["result"] is None


def test_build(tmp_path: Path) -> None:
    recipe, store = tmp_path / "cpu-mpi.yaml", Store(tmp_path / "store")
    for suffix in (".yaml", ".lock"):
        shutil.copy(RECIPE.with_suffix(suffix), tmp_path)
    lockfile.write(lockfile.read(recipe.with_suffix(".lock")).plain, recipe.with_suffix(".lock"))
    image = proven.put_built(workflow.read_plan(recipe)[1], store)
    words = ("--store", store.root, "--tools", "host", "--progress", "lines")
    told = said("build", recipe, *words)
    assert (told["digest"], told["reference"], told["copied"]) == (image.manifest, "", None)
    (row,) = told["images"]
    assert (row["digest"], row["layers_made"], row["layers"]) == (image.manifest, 0, len(image.layers))


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("missing", 2)])
def test_doctor(status: doctor.Status, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor.HostFinding(name="tools", status=status, detail="d", verbs=("build",))
    monkeypatch.setattr(doctor, "examine", lambda: (finding,))
    (told,) = said("doctor", code=code)["findings"]
    assert (told["name"], told["status"], told["verbs"]) == ("tools", status, ["build"])


def test_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lockfile.read(RECIPE.with_suffix(".lock"))
    current = LockUpdate(previous=made, made=made)
    monkeypatch.setattr(workflow, "update_lock", lambda *_, **__: current)
    told = said("lock", RECIPE)
    assert (told["written"], told["changes"]) == (False, [])
    first = LockUpdate(previous=None, made=made, notes=("worth knowing",))
    monkeypatch.setattr(workflow, "update_lock", lambda *_, **__: first)
    told = said("lock", RECIPE)
    assert told["written"]
    assert told["changes"]
    assert told["notes"] == ["worth knowing"]
    (platform,) = told["platforms"]
    assert platform["platform"] == "linux/amd64"
    assert platform["pins"]["openmpi"] == "5.0.7"
    assert platform["debs"] > 100


def test_update(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Store(tmp_path)
    side = workflow.side(str(RECIPE), store)
    updated = workflow.Updated(
        before=side, after=side, moved={"openmpi": ("5.0.6", "5.0.7")}, left={"gcc": "not asked for"}
    )
    monkeypatch.setattr(workflow, "update_pins", lambda *_, **__: updated)
    told = said("update", RECIPE, "--dry-run", "--store", tmp_path)
    assert told["moved"] == {"openmpi": {"before": "5.0.6", "after": "5.0.7"}}
    assert told["left"] == {"gcc": "not asked for"}
    assert (told["written"], told["same"]) == (False, True)


def test_fetch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locked, "fetch", lambda *_, **__: None)
    told = said("fetch", RECIPE, "--store", tmp_path, "--progress", "lines")
    (row,) = told["recipes"]
    assert row["fetched_bytes"] == row["bytes"] > 10**7
    assert (row["architecture"], told["store"]) == ("amd64", str(tmp_path))


@pytest.mark.parametrize(("status", "code"), [("passed", 0), ("failed", 1)])
def test_a_component(status: Literal["passed", "failed"], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"node0": "2.12.0", "node1": "2.12.0" if status == "passed" else ""}
    check = CheckResult(
        name="pins",
        title="",
        criterion="",
        required=True,
        exchanges=False,
        status=status,
        findings=()
        if status == "passed"
        else (Finding(node="node1", message="hwmap: no answer", remedy=""),),
        evidence={"hwmap": {"pin": "2.12", "nodes": answers}},
        seconds=1.0,
    )
    monkeypatch.setattr(trial, "try_component", lambda *_, **__: check)
    told = said("catalog", "test", "hwmap=2.12", "--progress", "lines", code=code)
    assert told == {
        "name": "hwmap",
        "pin": "2.12",
        "passed": status == "passed",
        "versions": answers,
        "problems": [] if status == "passed" else ["node1: hwmap: no answer"],
    }


def test_the_cache(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest, _ = store.put_bytes(b"blob")
    assert said("cache", "verify", "--store", tmp_path)["damages"] == []
    store.blob(digest).chmod(0o644)
    store.blob(digest).write_bytes(b"else")
    result = CliRunner().invoke(app, ["cache", "verify", "--json", "--store", str(tmp_path)])
    assert result.exit_code != 0
    (damage,) = json.loads(result.stdout)["result"]["damages"]
    assert damage["path"] == str(store.blob(digest))
    assert said("cache", "verify", "--fix", "--store", tmp_path)["removed"]
    store.put_bytes(b"blob")
    assert said("cache", "prune", "--all", "--store", tmp_path) == {
        "pruned": {"files": 1, "bytes": 4},
        "dry_run": False,
    }
