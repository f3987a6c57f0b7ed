"""The user's own project: what is copied, what is refused, and that it is the same bytes everywhere."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from imagebuilder import cli
from imagebuilder.core.progress import LineProgress, no_advance
from imagebuilder.engines import embedded
from imagebuilder.engines.context import BuildContext
from imagebuilder.errors import BuildError, ImagebuilderError, InputError
from imagebuilder.host.site import Site
from imagebuilder.layers import project
from imagebuilder.plan import Plan, Project, ProjectLayer, User, render
from imagebuilder.store import LayerRecord, Store
from imagebuilder.workflow import check_recipe, read_locks
from imagebuilder.workflow.project import Copied
from tests.unit.samples import RECIPES

TRAINER = User(name="trainer", uid=1000, home="/home/trainer")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project" / "src"
    made.mkdir(parents=True)
    (made / "train.py").write_text("print('hi')\n")
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "run.sh").chmod(0o777)
    (made / "pkg").mkdir(mode=0o700)
    (made / "pkg" / "a.py").write_text("a = 1\n")
    (made / "pkg-2").write_text("")
    (made / "latest").symlink_to("pkg/a.py")
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def layer_of(folder: Path, target: str = "/workspace", user: User = TRAINER) -> ProjectLayer:
    return ProjectLayer(source="src", target=target, checksum=project.read(folder).checksum, user=user)


def built(folder: Path, store: Store, target: str = "/workspace") -> LayerRecord:
    return project.build_project_layer(layer_of(folder, target), folder, store, no_advance)


def members(record: LayerRecord, store: Store) -> list[tarfile.TarInfo]:
    with tarfile.open(store.blob(record.digest)) as tar:
        return tar.getmembers()


def names(folder: Path) -> list[str]:
    return [file.path for file in project.read(folder).files]


def refusal(folder: Path) -> str:
    with pytest.raises(ImagebuilderError) as caught:
        project.read(folder)
    assert isinstance(caught.value, InputError)
    return str(caught.value).replace(str(folder), "SRC")


def test_modes_owners_times_and_order_are_fixed(folder: Path, store: Store) -> None:
    rows = [
        (item.name, item.mode, item.uid, item.gid, item.mtime, item.linkname)
        for item in members(built(folder, store), store)
    ]
    assert rows == [
        ("workspace", 0o755, 1000, 0, 0, ""),
        ("workspace/latest", 0o777, 1000, 0, 0, "pkg/a.py"),
        ("workspace/pkg", 0o755, 1000, 0, 0, ""),
        ("workspace/pkg/a.py", 0o644, 1000, 0, 0, ""),
        ("workspace/pkg-2", 0o644, 1000, 0, 0, ""),
        ("workspace/run.sh", 0o755, 1000, 0, 0, ""),
        ("workspace/train.py", 0o644, 1000, 0, 0, ""),
    ]


def test_folders_above_have_the_system_s_modes_and_a_home_keeps_its_own(folder: Path, store: Store) -> None:
    def above(target: str) -> list[tuple[str, int, int]]:
        made = members(built(folder, store, target=target), store)
        return [(item.name, item.mode, item.uid) for item in made[:3]]

    assert above("/opt/team/app") == [
        ("opt", 0o755, 0),
        ("opt/team", 0o755, 0),
        ("opt/team/app", 0o755, 1000),
    ]
    assert above("/root/app")[:2] == [("root", 0o700, 0), ("root/app", 0o755, 1000)]
    assert above("/home/trainer/app")[0] == ("home/trainer/app", 0o755, 1000)


def copied_otherwise(folder: Path, other: Path) -> Path:
    """Copy a folder in another order, with other times, modes, and hard links where there were none."""
    other.mkdir(mode=0o770)
    for path in sorted(folder.rglob("*"), key=lambda path: path.name, reverse=True):
        place = other / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
        if path.is_symlink():
            place.symlink_to(path.readlink())
        elif path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(path.read_bytes())
            place.chmod(0o700 if os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else 0o600)
            os.utime(place, (1, 1))
    os.link(other / "train.py", other.parent / "another-name")
    return other


def test_the_same_files_give_the_same_layer_wherever_they_are(folder: Path, tmp_path: Path) -> None:
    for name in ("ä", "Z" * 255, "a b", "-x", "'\"", "$HOME", "10%"):
        (folder / name).write_text(name)
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    before = os.umask(0o077)
    try:
        again = copied_otherwise(folder, tmp_path / "elsewhere")
        assert built(again, two) == built(folder, one)
    finally:
        os.umask(before)
    (again / "train.py").write_text("print('ho')\n")
    assert built(again, two) != built(folder, one)


def test_a_program_in_another_locale_reads_the_same_names(folder: Path) -> None:
    (folder / "größe.py").write_text("")
    code = "import sys, pathlib; from imagebuilder.layers import project as p; "
    code += "print(p.read(pathlib.Path(sys.argv[1])).checksum)"
    for variables in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}):
        run = subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            env={**os.environ, **variables},
            text=True,
            capture_output=True,
            check=True,
        )
        assert run.stdout.strip() == project.read(folder).checksum


def test_git_and_what_the_rules_name_stay_out(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    (folder / "pkg" / ".git").write_text("gitdir: elsewhere")
    (folder / "data").mkdir()
    (folder / "data" / "large").write_text("x")
    (folder / "data" / "small").write_text("x")
    (folder / "empty").mkdir()
    (folder / ".dockerignore").write_text("data\n!data/small\npkg-2\nrun.sh\nempty\n!.git\n!empty/x\n")
    assert names(folder) == [".dockerignore", "data", "data/small", "latest", "pkg", "pkg/a.py", "train.py"]


def test_a_folder_of_which_nothing_is_copied_is_refused(folder: Path) -> None:
    (folder / ".dockerignore").write_text("*")
    assert refusal(folder) == "SRC: has no file to copy\n  -> look at its .dockerignore"


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


HINT = "name it in .dockerignore, or take it out of the folder"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_socket, "SRC/x: is a socket, which an image cannot hold"),
        (os.mkfifo, "SRC/x: is a named pipe, which an image cannot hold"),
        (lambda path: path.symlink_to("/etc/passwd"), "SRC/x: is a link that leaves the folder: /etc/passwd"),
        (lambda path: path.symlink_to("../x"), "SRC/x: is a link that leaves the folder: ../x"),
        (lambda path: path.symlink_to("pkg/../../x"), "SRC/x: is a link that leaves the folder: pkg/../../x"),
        (
            lambda path: path.symlink_to("a\nb"),
            "SRC/x: is a link to a path with control characters, a backslash, or another encoding than UTF-8",
        ),
    ],
)
def test_what_no_image_holds_is_refused(folder: Path, make: Callable[[Path], None], message: str) -> None:
    make(folder / "x")
    assert refusal(folder) == f"{message}\n  -> {HINT}"


def test_a_link_that_leaves_by_way_of_another_is_refused(folder: Path) -> None:
    (folder / "pkg" / "deep").symlink_to("..")
    (folder / "x").symlink_to("pkg/deep/../train.py")
    assert refusal(folder) == f"SRC/x: is a link that leaves the folder: pkg/deep/../train.py\n  -> {HINT}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (b"a\nb", r"SRC/a\nb: has a control character or half a surrogate pair in its path"),
        (b"\xff", r"SRC/\udcff: has a control character or half a surrogate pair in its path"),
        (b"a\\b", "SRC/a\\b: has a backslash in its path"),
        (b".wh.a", "SRC/.wh.a: would delete files: `.wh.` begins a whiteout"),
    ],
)
def test_a_name_that_no_layer_has_is_refused(folder: Path, name: bytes, message: str) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text("")
    assert refusal(folder) == f"{message}\n  -> rename it, or {HINT}"


def test_all_that_is_wrong_is_told_at_once(folder: Path) -> None:
    for number in range(30):
        os.mkfifo(folder / f"pipe{number:02}")
    assert refusal(folder).count("is a named pipe") == 20


def test_a_file_that_cannot_be_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def guarded(path: str, *words: int, **more: int) -> int:
        if path == "train.py":
            raise PermissionError(13, "Permission denied")
        return real(path, *words, **more)

    monkeypatch.setattr(os, "open", guarded)
    assert refusal(folder) == f"SRC/train.py: cannot be read: Permission denied\n  -> {HINT}"


def test_too_much_is_refused_before_it_is_read_and_the_largest_is_named(folder: Path) -> None:
    (folder / "data").mkdir()
    with (folder / "data" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert refusal(folder) == (
        "SRC: holds more than 1.1 GB: `data` alone has 1.1 TB\n"
        "  -> name in .dockerignore everything but code; mount data when the image runs"
    )


def test_too_many_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "MOST_FILES", 20)
    for number in range(20):
        (folder / "pkg" / str(number)).write_text("")
    assert refusal(folder).startswith("SRC: holds more than 20 files: `pkg` alone has 20 of them")


def test_folders_without_end_are_refused(folder: Path) -> None:
    (folder / "/".join("d" * 102)).mkdir(parents=True)
    assert "is more than 100 folders deep" in refusal(folder)


def test_rules_that_cannot_be_read_are_refused(folder: Path) -> None:
    rules = folder / ".dockerignore"
    rules.write_bytes(b"\xff")
    hint = "\n  -> make it a plain text file"
    assert refusal(folder) == f"SRC/.dockerignore: cannot be read: it is not UTF-8{hint}"
    rules.unlink()
    rules.symlink_to("/etc/passwd")
    assert refusal(folder).startswith("SRC/.dockerignore: cannot be read: Too many levels of symbolic links")
    rules.unlink()
    rules.write_bytes(b"#" * 300_000)
    assert refusal(folder) == "SRC/.dockerignore: is far too large\n  -> name folders instead of files"


def test_a_file_that_changes_while_it_is_read_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = project._stamp
    seen: list[object] = []

    def later(status: os.stat_result) -> tuple[int, ...]:
        seen.append(status)
        return (*real(status), len(seen))

    monkeypatch.setattr(project, "_stamp", later)
    assert refusal(folder).startswith(
        "SRC/pkg/a.py: changed while it was read\n  -> build again once nothing writes to it\n"
    )


def test_a_folder_that_changed_since_it_was_planned_is_not_built(folder: Path, store: Store) -> None:
    layer = layer_of(folder)
    (folder / "train.py").write_text("print('ho')\n")
    message = "your files: src -> /workspace: files changed while the image was built\n  -> build it again"
    with pytest.raises(BuildError) as caught:
        project.build_project_layer(layer, folder, store, no_advance)
    assert str(caught.value) == message
    with pytest.raises(BuildError) as caught:
        project.write_folder(layer, folder, folder.parent / "output")
    assert str(caught.value) == message


def test_a_user_id_that_no_header_holds_is_refused(folder: Path, store: Store) -> None:
    layer = replace(layer_of(folder), user=replace(TRAINER, uid=1 << 21))
    with pytest.raises(BuildError, match="the user id 2097152 does not fit into a tar header"):
        project.build_project_layer(layer, folder, store, no_advance)


def test_the_folder_for_docker_has_what_the_layer_has(folder: Path, tmp_path: Path) -> None:
    layer = layer_of(folder)
    project.write_folder(layer, folder, tmp_path / "copy")
    assert project.read(tmp_path / "copy").checksum == layer.checksum


# ---- in a recipe


@pytest.fixture
def recipe(folder: Path) -> Path:
    """A recipe in a folder of the project, with the lock of the shipped one."""
    recipes = folder.parent / "recipes"
    recipes.mkdir()
    path = recipes / "cpu-mpi.yaml"
    lines = "copy: [{from: ../src, to: /workspace}]\nworkdir: /workspace\ncommand: [python, train.py]\n"
    path.write_text((RECIPES / "cpu-mpi.yaml").read_text() + lines)
    shutil.copy(RECIPES / "cpu-mpi.lock", recipes)
    return path


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    argv = ["git", *identity, *words]
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(recipe: Path) -> Path:
    top = recipe.parents[1]
    git(top, "init", "-q")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "first")
    return top


def copied(recipe: Path) -> Copied:
    return read_locks(recipe).copied


def planned(recipe: Path) -> Plan:
    ((_, plan),) = read_locks(recipe).plans()
    return plan


def test_the_lock_does_not_notice_files_and_how_they_are_started(recipe: Path) -> None:
    plain = RECIPES / "cpu-mpi.yaml"
    before, after = planned(plain), planned(recipe)
    *below, own = after.layers
    assert tuple(below) == before.layers
    assert isinstance(own, ProjectLayer)
    assert own.title == "your files: ../src -> /workspace"
    assert (after.config.workdir, after.config.cmd) == ("/workspace", ("python", "train.py"))
    assert (before.config.workdir, before.config.cmd) == ("/home/trainer", ())
    labels = dict(after.config.labels)
    assert labels["org.imagebuilder.project"] == own.checksum
    assert Project.of_labels(labels).checksums == (own.checksum,)


def test_verbs_list_what_is_copied(repository: Path, recipe: Path, folder: Path) -> None:
    def said(*words: str | Path) -> str:
        result = CliRunner().invoke(cli.app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    (folder / "train.py").write_text("12345")
    (folder / "new.py").write_text("12")
    commit = git(repository, "rev-parse", "HEAD")
    names = ["latest", "new.py", "pkg/a.py", "pkg-2", "run.sh", "train.py"]
    line = f"files   6 of yours, 23 B, revision {commit[:12]} with 2 changed"
    for verb in ("check", "plan"):
        assert said(verb, recipe).splitlines()[-1] == line
    changed = ["../src/new.py", "../src/train.py"]
    row = {"source": "../src", "to": "/workspace", "files": 6, "bytes": 23, "names": None}
    summary = {"files": 6, "bytes": 23, "revision": f"{commit}-dirty", "uncommitted": changed}
    (checked,) = json.loads(said("check", recipe, "--json"))["result"]["recipes"]
    assert checked["copied"] == {**summary, "folders": [row]}
    (image,) = json.loads(said("plan", recipe, "--json"))["result"]["images"]
    assert image["copied"] == {**summary, "folders": [{**row, "names": names}]}
    (image,) = json.loads(said("plan", RECIPES / "cpu-mpi.yaml", "--json"))["result"]["images"]
    assert image["copied"] is None


def test_the_revision_is_the_commit_and_says_what_differs(
    repository: Path, recipe: Path, folder: Path
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert copied(recipe).project.revision == commit
    # What is not copied, or stays out, makes no difference.
    (repository / "README").write_text("new")
    (folder / ".dockerignore").write_text("*.log\n.dockerignore\n")
    (folder / "a.log").write_text("")
    assert copied(recipe).project.revision == commit
    (folder / "train.py").write_text("print('ho')\n")
    (folder / "new.py").write_text("")
    (folder / "run.sh").chmod(0o644)
    found = copied(recipe)
    assert found.project.revision == f"{commit}-dirty"
    assert found.uncommitted == ("../src/new.py", "../src/run.sh", "../src/train.py")
    labels = dict(planned(recipe).config.labels)
    assert labels["org.opencontainers.image.revision"] == f"{commit}-dirty"


def test_without_a_commit_there_is_no_revision(
    repository: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert copied(recipe).project.revision == ""
    monkeypatch.undo()
    shutil.rmtree(repository / ".git")
    git(repository, "init", "-q")
    assert copied(recipe) == replace(copied(recipe), commit="", uncommitted=())
    (repository / "other").write_text("")
    git(repository, "add", "other")
    git(repository, "commit", "-q", "-m", "of something else")
    assert copied(recipe).project.revision == ""


def test_nothing_that_a_repository_says_is_run(repository: Path, recipe: Path, folder: Path) -> None:
    """A stranger's clone: its settings name programs for everything that git may run."""
    trap = repository / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {repository}/sprung\ncat\n")
    trap.chmod(0o755)
    for key in (
        *("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass", "diff.external"),
        *("filter.x.clean", "filter.x.smudge", "filter.x.process", "diff.x.textconv", "diff.x.command"),
        *("credential.helper", "gpg.program", "core.gitProxy", "uploadpack.packObjectsHook"),
    ):
        git(repository, "config", key, str(trap))
    git(repository, "config", "core.hooksPath", str(repository))
    (folder / ".gitattributes").write_text("* filter=x diff=x\n")
    (folder / "train.py").write_text("print('ho')\n")
    # A clone that lacks an object would fetch it, with a program of its choice.
    git(repository, "config", "extensions.partialClone", "origin")
    git(repository, "config", "remote.origin.promisor", "true")
    git(repository, "config", "remote.origin.url", f"ext::{trap}")
    git(repository, "config", "protocol.ext.allow", "always")
    assert copied(recipe).project.revision.endswith("-dirty")
    tree = git(repository, "rev-parse", "HEAD:src")
    (repository / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    assert copied(recipe).project.revision == ""
    assert not (repository / "sprung").exists()


def as_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


def as_link(folder: Path) -> None:
    folder.rename(folder.parent / "x")
    folder.symlink_to("x")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (shutil.rmtree, "`SRC` cannot be read: No such file or directory"),
        (as_file, "`SRC` is not a folder"),
        (as_link, "`SRC` is a link"),
    ],
)
def test_check_looks_at_the_folders(recipe: Path, break_it: Callable[[Path], object], message: str) -> None:
    check_recipe(recipe)
    src = recipe.parents[1] / "src"
    break_it(src)
    with pytest.raises(InputError) as caught:
        check_recipe(recipe)
    assert (
        str(caught.value)
        .replace(str(src), "SRC")
        .startswith(f"{recipe}:{_line(recipe)}: copy[0].from: {message}\n")
    )
    recipe.with_suffix(".lock").unlink()
    with pytest.raises(InputError):
        check_recipe(recipe)


def _line(recipe: Path) -> int:
    return next(n for n, line in enumerate(recipe.read_text().splitlines(), 1) if line.startswith("copy:"))


def test_a_home_folder_is_no_project(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = recipe.read_text()
    for home in ("..", "../src/pkg"):
        recipe.write_text(text.replace("from: ../src", "from: .."))
        monkeypatch.setenv("HOME", str(recipe.parent / home))
        with pytest.raises(InputError) as caught:
            copied(recipe)
        assert str(caught.value).endswith(
            f"`{recipe.parents[1]}` contains your home folder\n  -> put the project into a folder of its own"
        )


def test_labels_of_another_recipe_s_image_lay_out_nothing(recipe: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_locks(recipe).plans(project=Project(checksums=("a", "b")))
    assert str(caught.value) == (
        f"{recipe}:{_line(recipe)}: copy: copies 1 folders, and checksums of 2 are given\n"
        "  -> build the image again"
    )


def small(plan: Plan) -> Plan:
    """Keep of a plan the layers that need no download."""
    return replace(plan, layers=plan.layers[-2:])


def test_a_changed_line_makes_one_layer_again(
    recipe: Path, folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = read_locks(recipe).file.sections[0]
    progress = LineProgress(io.StringIO())
    context = BuildContext(
        lock=lock, store=store, site=Site(), progress=progress, recipe_folder=recipe.parent
    )
    first = embedded.build(small(planned(recipe)), context)
    (folder / "train.py").write_text("print('ho')\n")
    # Nothing that fetches, resolves or makes other layers is even loaded.
    for name in ("imagebuilder.engines.schedule", "imagebuilder.engines.agreement"):
        monkeypatch.setitem(sys.modules, name, None)
    second = embedded.build(small(planned(recipe)), context)
    assert (second.made, second.reused, second.fetched) == (1, 1, 0)
    assert second.image.layers[0] == first.image.layers[0]
    assert second.image.layers[-1].title == "your files: ../src -> /workspace"
    assert second.image.layers[-1].record.digest != first.image.layers[-1].record.digest
    third = embedded.build(small(planned(recipe)), context)
    assert (third.made, third.image) == (0, second.image)


def test_the_dockerfile_copies_them_with_the_same_modes_and_owners(recipe: Path) -> None:
    from imagebuilder.core import files

    text = render.render(planned(recipe), files.template("Dockerfile.j2"))
    assert "#   --build-context project-1=../src\n" in text
    assert "FROM scratch AS project-1\nFROM os AS project-1-files\n" in text
    assert "RUN mkdir -p /\nCOPY --chown=1000:0 --from=project-1-files /out/ /workspace/\n" in text
    assert text.endswith(
        'WORKDIR /workspace\nENTRYPOINT ["/usr/bin/tini", "--", '
        '"/usr/local/bin/imagebuilder-entrypoint"]\nCMD ["python", "train.py"]\n'
    )
