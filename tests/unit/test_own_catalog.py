"""Catalog files beside a recipe: what they can say, what they must not, and how locks follow them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import pytest

from imagebuilder.catalog import own
from imagebuilder.cli import completion
from imagebuilder.core import labels as label_names
from imagebuilder.core import yamlfile
from imagebuilder.errors import InputError, LockError
from imagebuilder.host.site import detect
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.resolve import agreement
from imagebuilder.resolve.builds import locate_upstream
from imagebuilder.smoke import target as targets
from imagebuilder.workflow import check_recipe, read_plan, read_recipe, schemas
from imagebuilder.workflow.source import of_recipe
from tests.unit import samples
from tests.unit.test_exit_codes import exit_code

TOOL = """\
name: proctool
summary: procps, as a component of our own
providers:
  - apt: [procps]
env: {PROCTOOL_HOME: /usr/share/proctool}
probe: {command: [sh, -c, "ps --version | sed 's/.* //'"], compare: 2}
"""
EXAMPLE = samples.ROOT / "examples" / "catalog" / "aws-ofi-nccl.yaml"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The shipped recipe cpu-mpi, which also pins a component of its own folder, and its lock."""
    made = tmp_path / "cpu-mpi.yaml"
    text = (samples.RECIPES / "cpu-mpi.yaml").read_text(encoding="utf-8")
    made.write_text(text.replace("pins:\n", 'pins:\n  proctool: "4.0"\n'), encoding="utf-8")
    own.place(made, "proctool").parent.mkdir()
    own.place(made, "proctool").write_text(TOOL, encoding="utf-8")
    lock_again(made)
    return made


def lock_again(path: Path) -> None:
    """Write the lock that resolving would give, because the packages are the same."""
    (lock,) = lockfile.read(samples.RECIPES / "cpu-mpi.lock").sections
    selection, inputs = read_recipe(path)
    lock = lock.model_copy(update={"inputs": inputs["linux/amd64"], "catalog": selection.recorded})
    lock = lock.model_copy(update={"pins": agreement.pin_versions(selection, lock), "layers": ()})
    lockfile.write(LockFile(sections=(lock,)), locks.path_for(path))


def read(tmp_path: Path, text: str, name: str = "tool") -> own.OwnComponent:
    file = tmp_path / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    return own.read(file)


def refused(tmp_path: Path, text: str, name: str = "tool") -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, name)
    return [problem.message for problem in caught.value.problems]


def test_a_component_of_the_folder_is_pinned_locked_and_planned(path: Path) -> None:
    check_recipe(path, locked=True)
    lock, plan = read_plan(path)
    assert lock.pins["proctool"] == "4.0.4"
    assert dict(plan.config.env)["PROCTOOL_HOME"] == "/usr/share/proctool"
    labels = dict(plan.config.labels)
    assert labels[f"{label_names.PIN}proctool"] == "4.0.4"
    found = targets.from_labels("x", labels)
    assert [(name, probe.compare) for name, probe in found.probes] == [("proctool", 2)]
    assert dict(targets.expecting(found, ["proctool=4.0"]).pins)["proctool"] == "4.0"


def test_recipe_and_lock_suffice_elsewhere(path: Path) -> None:
    """As after a push: the lock holds the component, so its file need not travel beside the recipe."""
    source = of_recipe(path)
    shutil.rmtree(path.parent / own.FOLDER)
    lock, plan = source.read()
    assert (lock.pins["proctool"], "PROCTOOL_HOME" in dict(plan.config.env)) == ("4.0.4", True)
    assert source.parsed().not_secret == ()
    with pytest.raises(InputError, match="`proctool` is not a component"):
        check_recipe(path)


def test_a_comment_changes_nothing_and_a_changed_file_is_named(path: Path) -> None:
    file = own.place(path, "proctool")
    file.write_text(f"# by the platform team\n{TOOL}", encoding="utf-8")
    check_recipe(path)
    file.write_text(TOOL.replace("share", "lib"), encoding="utf-8")
    with pytest.raises(LockError) as caught:
        check_recipe(path)
    assert str(caught.value).replace(f"{path.parent}/", "") == (
        "cpu-mpi.lock: catalog/proctool.yaml asks for something else than when the recipe was locked\n"
        "  -> run: imagebuilder lock cpu-mpi.yaml"
    )


@pytest.mark.parametrize("forged", [{}, {"proctool": {"name": "proctool"}}, {"../../x": {}}, {"x": 1}])
def test_an_edited_lock_is_refused(path: Path, forged: Mapping[str, object]) -> None:
    place = locks.path_for(path)
    document = json.loads(place.read_text(encoding="utf-8"))
    samples.section(document)["catalog"] = forged
    place.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises((LockError, InputError), match="catalog"):
        check_recipe(path)


def test_files_of_components_that_are_not_pinned_are_never_read(path: Path) -> None:
    (path.parent / own.FOLDER / "sales.yaml").write_text("rows: [1.5, &a [*a]]\n", encoding="utf-8")
    (path.parent / own.FOLDER / "nccl.yaml").write_text("no component", encoding="utf-8")
    check_recipe(path)


def test_every_recipe_is_read_with_the_components_of_its_folder() -> None:
    """`catalog.names()` alone is for recipes that imagebuilder itself writes or ships, and for labels."""
    package = samples.ROOT / "imagebuilder"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "catalog.names()" in path.read_text(encoding="utf-8")
    }
    assert found == {"smoke/target.py", "workflow/adopt/requirements.py"}


def test_check_of_the_command_line_knows_the_folder(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("check", str(path)) == 0
    assert capsys.readouterr().out.startswith(f"{path}: ok, locked")


def test_a_shipped_component_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, TOOL.replace("proctool", "nccl"), "nccl")
    assert str(caught.value) == (
        f"{tmp_path}/nccl.yaml: would replace `nccl` of imagebuilder (imagebuilder/catalog/nccl.yaml)\n"
        "  -> give the component another name, and list the shipped one under `excludes:`"
    )


def test_a_recipe_with_such_a_file_is_refused(path: Path) -> None:
    shutil.copy(own.place(path, "proctool"), own.place(path, "openmpi"))
    with pytest.raises(InputError, match="would replace `openmpi` of imagebuilder"):
        check_recipe(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("name: other", "is not the file's name, `tool`"),
        ("include: always", "`include` is only for components of imagebuilder: a recipe names all"),
        ("fabrics: [efa]", "`fabrics` is only for components of imagebuilder: a recipe names all"),
        ("framework: {}", "`framework` is only for components of imagebuilder: its payloads"),
        ("needs: [ncll]", "`ncll` is not a component"),
        ("env: {LD_PRELOAD: /x.so}", "`LD_PRELOAD` belongs to the image"),
        ("env: {NCCL_DEBUG: INFO}", "`NCCL_DEBUG` belongs to a job or a host, not to an image"),
        ("env: {API_TOKEN: x}", "`API_TOKEN` looks like a secret"),
        ('env: {A: "x\\ny"}', "is longer than 4000 characters, or holds control characters"),
        ('links: {"/../etc/passwd": /x}', "`/../etc/passwd` is not the absolute path of a file"),
        ('links: {"/a$(id)": /x}', "`/a$(id)` is not the absolute path of a file"),
        ('links: {/a: "x\\nRUN id"}', "`x\\nRUN id` is not what a link can point to"),
        ("providers: [{apt: ['curl=1 -o x']}]", "`curl=1 -o x` is not a Debian package's name"),
        ("providers: [{wheel: '--index-url=x'}]", "`--index-url=x` is not a Python distribution's name"),
        ("providers: [{wheels: ['a @ https://x.example/a.whl']}]", "`a` is requested by URL"),
        ("providers: [{scripts: {/usr/bin/x: id}}]", "is not for components of a recipe's folder"),
        ('build: {steps: ["a\\nUSER 0"], needs: [], produces: [/x]}', "is not one line of shell"),
        ("build: {steps: [IMAGEBUILDER_END_OF_FILE], needs: [], produces: [/x]}", "is not one line of shell"),
        ("build: {steps: [make], needs: [], produces: ['/x; id']}", "is not the absolute path of a file"),
        ("build: {steps: [make], needs: ['-t=sid'], produces: [/x]}", "is not a Debian package's name"),
        (
            f"build: {{upstream: {{'1.0': {{url: 'file:///etc/x-1.tar', sha256: {'0' * 64}}}}}}}",
            "names a file of one host",
        ),
        ("probe: {command: [x], gpu: 1}", "must be true or false"),
        ("more: 1", "`more` is not a known key"),
    ],
)
def test_what_a_file_from_outside_must_not_have(tmp_path: Path, change: str, said: str) -> None:
    key = change.partition(":")[0]
    lines = {"name": "name: tool", "summary": "summary: a tool", "providers": "providers: [{apt: [curl]}]"}
    found = refused(tmp_path, "\n".join({**lines, key: change}.values()))
    assert any(said in message for message in found), found


def test_neither_size_nor_kind_of_a_file_matters_to_memory(tmp_path: Path) -> None:
    file = tmp_path / "tool.yaml"
    file.write_text(TOOL + "#" * 70_000, encoding="utf-8")
    with pytest.raises(InputError, match="is not a file of at most 64000 bytes"):
        own.read(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(InputError, match="is not a file of at most"):
        own.read(file)
    assert "has more than 200 items" in "".join(
        refused(tmp_path / "..", f"name: many\nsummary: x\nneeds: [{'cuda, ' * 201}]\nbuild: {{}}", "many")
    )


def test_without_providers_a_component_is_compiled(path: Path) -> None:
    text = (
        "name: proctool\nsummary: x\nbuild: {steps: [make], needs: [pkgconf], produces: [/usr/local/bin],\n"
        f" upstream: {{'4.0': {{url: 'https://host.example/p-4.0.tar.gz', sha256: {'a' * 64}}}}}}}\n"
    )
    own.place(path, "proctool").write_text(text, encoding="utf-8")
    selection, _ = read_recipe(path)
    assert selection.by_name["proctool"].built is not None
    lock = samples.lock(catalog=selection.recorded)
    source = locks.Source(
        name="proctool", version="4.0", file="p-4.0.tar.gz", size=1, sha256="a" * 64, upstream=True
    )
    found = locate_upstream([source], lock, detect(None))
    assert found == {"a" * 64: ("https://host.example/p-4.0.tar.gz",)}


def test_a_site_lends_its_files_and_a_failure_returns_them(tmp_path: Path) -> None:
    folder, recipe = tmp_path / "site", tmp_path / "recipes" / "x.yaml"
    folder.mkdir()
    recipe.parent.mkdir()
    recipe.write_text('pins: {proctool: "4.0"}\n', encoding="utf-8")
    (folder / "proctool.yaml").write_text(TOOL, encoding="utf-8")
    (folder / "other.yaml").write_text("wrong", encoding="utf-8")
    (tmp_path / "site.yaml").write_text("catalog: site\n", encoding="utf-8")
    site = detect(tmp_path / "site.yaml")
    lent = own.borrowed(recipe, site.catalog)
    lent.__enter__()
    assert own.place(recipe, "proctool").is_file()
    error = LockError("cannot be resolved")
    assert not lent.__exit__(LockError, error, None)
    assert not own.place(recipe, "proctool").exists()
    with own.borrowed(recipe, site.catalog) as notes:
        pass
    (note,) = notes
    place = own.place(recipe, "proctool")
    assert note == f"{place} is a copy of the site's {folder}/proctool.yaml; keep it beside the recipe"
    with own.borrowed(recipe, site.catalog) as notes:
        assert notes == ()
    (folder / "proctool.yaml").write_text(TOOL.replace("procps,", "ps,"), encoding="utf-8")
    with own.borrowed(recipe, site.catalog) as notes:
        assert [note.rpartition("; ")[2] for note in notes] == ["remove it to take the site's"]
    assert own.place(recipe, "proctool").read_text(encoding="utf-8") == TOOL


def test_build_knows_the_site_s_components_before_it_locks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, recipe = tmp_path / "site", tmp_path / "x.yaml"
    folder.mkdir()
    (folder / "proctool.yaml").write_text(TOOL, encoding="utf-8")
    (tmp_path / "site.yaml").write_text("catalog: site\n", encoding="utf-8")
    text = 'name: x\nbase: debian:trixie\npython: "3.13"\npins: {proctool: "4.0"}\n'
    recipe.write_text(text, encoding="utf-8")
    words = ("build", str(recipe), "--platform", "linux/arm64", "--store", str(tmp_path / "store"))
    assert exit_code(*words, "--site", str(tmp_path / "site.yaml")) == 3
    assert "is not for linux/arm64" in capsys.readouterr().err
    assert exit_code(*words) == 3
    assert "`proctool` is not a component that can be pinned" in capsys.readouterr().err


def test_a_site_without_that_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("catalog: no-such\n", encoding="utf-8")
    with pytest.raises(InputError, match="there is no folder"):
        detect(tmp_path / "site.yaml")


def test_the_schema_and_the_shell_know_the_folder_s_components(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = schemas.recipe(path.parent / own.FOLDER)["properties"]["pins"]["properties"]
    assert pins["proctool"]["description"] == "procps, as a component of our own"
    assert "proctool" not in schemas.recipe()["properties"]["pins"]["properties"]
    monkeypatch.chdir(path.parent)
    assert completion.component("proc") == ["proctool="]
    assert exit_code("schema", "--catalog", "catalog") == 0
    assert "proctool" in capsys.readouterr().out
    assert exit_code("schema", "--catalog-file") == 0
    schema = json.loads(capsys.readouterr().out)
    for file in (EXAMPLE, own.place(path, "proctool")):
        data = json.loads(json.dumps(yamlfile.read(file).data))
        jsonschema.validate(data, schema)
    assert exit_code("schema", "--catalog", "absent") == 3


def test_the_shipped_example_is_right() -> None:
    component = own.read(EXAMPLE)
    assert component.providers == ()
    assert component.build is not None


def test_a_damaged_probe_in_a_label_is_refused() -> None:
    labels = {
        **dict.fromkeys((label_names.LOCK, label_names.SSH_PORT, label_names.SSH_USER), "22"),
        f"{label_names.PIN}proctool": "4",
        f"{label_names.PROBE}proctool": '{"command": "id"}',
    }
    with pytest.raises(InputError, match="is not a probe"):
        targets.from_labels("x", labels)
    # Nobody tells imagebuilder how to ask its own components.
    del labels[f"{label_names.PROBE}proctool"]
    labels[f"{label_names.PROBE}nccl"] = '{"command": ["echo", "2.27.5"]}'
    assert targets.from_labels("x", labels).probes == ()


def test_trying_a_component_that_is_not_there_or_has_no_probe(tmp_path: Path) -> None:
    folder = ("--catalog", str(tmp_path))
    assert exit_code("catalog", "test", "absent=1", *folder) == 3
    (tmp_path / "tool.yaml").write_text(
        "name: tool\nsummary: x\nproviders: [{apt: [curl]}]\n", encoding="utf-8"
    )
    assert exit_code("catalog", "test", "tool=1", *folder) == 3
    assert exit_code("catalog", "test", "tool=1", *folder, "--with", "cuda") == 3
