"""Rules of the project that no other tool knows: what may be committed, who imports what, who prints."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder import catalog, errors, recipe
from imagebuilder.catalog import select
from imagebuilder.core import process
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as lock
from imagebuilder.resolve import request

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "imagebuilder"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
LOCKS = sorted((ROOT / "recipes").glob("*.lock"))

# Imports go to the left only (docs: values flow from the recipe to the registry). A name covers all that is
# in it; a dotted one stands for itself.
ORDER = (
    *("errors", "core", "recipe", "catalog", "debian", "host", "lock", "plan"),
    *("store", "registry", "bases", "resolve", "fetch"),
    *("layers", "image", "engines", "smoke", "launch", "workflow", "publish", "cli"),
)
# What would make a pure module depend on more than its arguments.
IMPURE = frozenset(
    {
        "os",
        "time",
        "datetime",
        "random",
        "secrets",
        "socket",
        "subprocess",
        "tempfile",
        "shutil",
        "pathlib",
        "io",
    }
    | {"requests", "urllib", "http", "docker", "uuid", "getpass", "platform", "locale", "threading"}
)
# Scripts that run inside an image, where there is no library to leave the printing to.
INSIDE = ("smoke/payload/", "plan/files/", "layers/hooks/system/", "layers/hooks/bytecode/")

# Processes that run our own code and no command: the search for secrets is one interpreter's work a core.
# A script inside a build's root has the standard library alone.
WORKERS = frozenset(
    {("publish.leaks.image", "multiprocessing.get_context"), ("plan.backend.extension", "subprocess")}
)

# Escaped as they are, the patterns do not match their own text.
HOSTS = re.compile(
    r"deb\.debian\.org|security\.debian\.org|snapshot\.debian\.org|archive\.ubuntu\.com"
    r"|pypi\.org|pypi\.python\.org|pythonhosted\.org|pypi\.nvidia\.com|download\.pytorch\.org"
    r"|registry\.npmjs\.org",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"/[w]ork/(?:main|shared|steering|\.)|/root/\.pyenv|/Users/[a-z]")


def modules() -> list[Path]:
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.relative_to(PACKAGE).as_posix().startswith((*INSIDE, "__main__"))
    ]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def rank(module: str) -> int:
    """Give a module's place in the order: its own, or its package's."""
    words = module.split(".")
    while words and ".".join(words) not in ORDER:
        words.pop()
    assert words, f"{module} is not in the order of imports: add it to ORDER"
    return ORDER.index(".".join(words))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Give line and dotted name of everything that a file imports, late imports too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def own_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Give line and module, without the package's name, of what a file imports from this package."""
    for line, name in imports(path):
        words = name.split(".")
        while len(words) > 1 and not any(
            PACKAGE.joinpath(*words[1:]).with_suffix(suffix).exists() for suffix in (".py", "")
        ):
            words.pop()
        if words[0] == "imagebuilder" and len(words) > 1:
            yield line, ".".join(words[1:])


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_go_to_the_left_only(path: Path) -> None:
    module = name_of(path)
    if not module or module == "__init__":
        assert list(own_imports(path)) == []
        return
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module} imports {other}, which is to its right"
        for line, other in own_imports(path)
        if rank(other) > rank(module)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["plan/layer.py", "plan/config.py", "plan/layout.py", "plan/render.py"])
def test_pure_modules_import_nothing_of_the_world(name: str) -> None:
    path = PACKAGE / name
    found = {module.split(".")[0]: line for line, module in imports(path)}
    assert not IMPURE & set(found), f"{path.relative_to(ROOT)} imports what a pure module must not"
    opened = [line for line, called in calls(path) if called in ("open", "input", "print")]
    assert not opened, f"{path.relative_to(ROOT)}:{opened} reads or writes"


def calls(path: Path) -> Iterator[tuple[int, str]]:
    """Give line and dotted name of everything that a file calls."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


@pytest.mark.parametrize("path", [path for path in modules() if path.parent.name != "cli"], ids=name_of)
def test_only_the_command_line_prints_or_exits(path: Path) -> None:
    forbidden = re.compile(
        r"print|pprint|exit|quit|input|(sys|os)\.(_?exit|abort)|sys\.(stdout|stderr)\.\w+|(rich\.)?print|typer\.\w+"
    )
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {called}()"
        for line, called in calls(path)
        if forbidden.fullmatch(called)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("cli/*.py")), ids=name_of)
def test_the_command_line_decides_nothing_of_what_is_published(path: Path) -> None:
    """It turns options into requests and prints: publish/ speaks to registries and compares digests."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for line, name in own_imports(path)
        if name.split(".")[0] == "registry"
    ]
    digest = re.compile(r"\b(digest|manifest|checksum|sha256)s?\b")
    wrong += [
        f"{path.relative_to(ROOT)}:{node.lineno}: compares {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and digest.search(ast.unparse(node))
    ]
    assert wrong == []


@pytest.mark.parametrize("path", [path for path in modules() if path.name != "process.py"], ids=name_of)
def test_every_subprocess_goes_through_process_run(path: Path) -> None:
    started = re.compile(r"os\.(system|popen|exec\w+|spawn\w+|posix_spawnp?|fork|forkpty)|pty\.\w+")
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {called}()"
        for line, called in calls(path)
        if started.fullmatch(called)
    ]
    wrong += [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for line, name in imports(path)
        if name.split(".")[0] in ("subprocess", "multiprocessing", "pty", "asyncio")
        # Framed messages over a socket: it starts no process.
        and not name.startswith("multiprocessing.connection.")
        and (name_of(path), name) not in WORKERS
    ]
    assert wrong == []


@pytest.mark.parametrize("path", [path for path in modules() if name_of(path) != "core.labels"], ids=name_of)
def test_label_names_are_spelt_in_one_module(path: Path) -> None:
    texts = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for line, text in texts
        if text.startswith(("org.imagebuilder.", "org.opencontainers."))
    ]
    assert wrong == []


def committed() -> list[Path]:
    listed = process.run(["git", "ls-files", "-z"], timeout=60, cwd=ROOT).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_committed_file_names_a_package_host_or_a_path_of_a_machine() -> None:
    wrong = []
    for path in committed():
        text = path.read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            found = HOSTS.search(line) or MACHINE_PATHS.search(line)
            if found:
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {found[0]}")
    assert wrong == []


@pytest.mark.parametrize("host", HOSTS.pattern.replace("\\", "").split("|"))
def test_the_pattern_finds_each_host(host: str) -> None:
    assert HOSTS.search(f"see https://{host}/simple")
    assert not HOSTS.search(f"see https://{host.replace('.', '-')}.example.com")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_loads_and_points_editors_at_the_schema(path: Path) -> None:
    recipe.load(path, catalog.names())
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=recipe.schema.json"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_has_a_lock_that_is_in_step(path: Path) -> None:
    loaded = recipe.load(path, catalog.names())
    lock.require_in_step(
        lockfile.read(lock.path_for(path)).sections[0], request.request(select(loaded)).checksum(), path
    )


def test_every_lock_belongs_to_a_recipe() -> None:
    assert {path.stem for path in LOCKS} <= {path.stem for path in RECIPES}


def test_what_is_generated_is_current() -> None:
    generator = ROOT / "bin" / "generate_docs.py"
    result = process.run([sys.executable, generator, "--check"], timeout=60, check=False)
    assert result.code == 0, f"{result.stdout}{result.stderr}run: make docs"


def error_classes() -> list[type[errors.ImagebuilderError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, errors.ImagebuilderError)]


def documented_codes() -> dict[int, str]:
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (?:`(\w+)`)?", text, re.MULTILINE)
    return {int(code): name for code, name in rows}


def test_every_kind_of_error_has_an_exit_code_of_its_own() -> None:
    codes = [kind.exit_code for kind in error_classes()]
    assert len(set(codes)) == len(codes)
    assert not set(codes) & {0, errors.INTERRUPTED}


def test_every_exit_code_is_documented_and_no_other() -> None:
    expected = {kind.exit_code: kind.__name__ for kind in error_classes()}
    assert documented_codes() == {0: "", **expected, errors.INTERRUPTED: ""}


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn = dict(re.findall(r"[├└]── (\w+) +(\d+)", errors.__doc__ or ""))
    kinds = {kind.__name__: str(kind.exit_code) for kind in error_classes()}
    assert drawn == {name: code for name, code in kinds.items() if name != "ImagebuilderError"}


def links() -> list[tuple[Path, str]]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")
    return [(page, link) for page in pages for link in found.findall(page.read_text(encoding="utf-8"))]


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}" for page, link in links() if not (page.parent / link).exists()
    ]
    assert broken == []


def shown_texts(path: Path) -> Iterator[str]:
    """Give every text constant of a module but its docstrings: what it may print."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_message_names_a_page_because_the_wheel_holds_none() -> None:
    named = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted((ROOT / "imagebuilder").rglob("*.py"))
        for text in shown_texts(path)
        if re.search(r"docs/(?:how-to|reference|explanation|tutorial)|\b[\w-]+\.md\b(?!.*://)", text)
    ]
    assert named == []
