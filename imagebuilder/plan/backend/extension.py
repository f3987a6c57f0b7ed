"""Test the wheel that wheel.py has made: every library and symbol that its extensions need, and its import.

    extension.py BESIDE [MODULE...]

BESIDE is a folder that may hold more packages for the import. Runs in the same root as wheel.py, without a
network and without a GPU: the driver's own libraries are the only ones that may be missing.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

PLACE = Path("/build")
TRIED = PLACE / "tried"
DRIVER = re.compile(r"lib(?:cuda|nvidia-[a-z]+|nvcuvid)\.so(?:\.[0-9]+)*")
# Names of the driver's own functions, where one of its libraries is needed: cuInit, nvmlInit_v2.
OF_DRIVER = re.compile(r"(?:cu[A-Z]|nvml[A-Z])\w*")
SYSTEM = ("/usr/local/lib", "/usr/lib", "/lib", "/usr/lib64")
MOST = 20


def run(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries(*roots: Path) -> dict[str, Path]:
    """Return all shared libraries below some folders, by file name."""
    found: dict[str, Path] = {}
    for root in roots:
        for path in sorted(root.rglob("*.so*")):
            if re.search(r"\.so(?:\.[0-9.]+)?$", path.name):
                found.setdefault(path.name, path)
    return found


def symbols(path: Path, which: str) -> set[str]:
    """Return a library's dynamic symbols: `--defined-only`, or `--undefined-only` without weak ones."""
    names = set()
    for line in run("nm", "-D", "--format=posix", which, str(path)).splitlines():
        name, kind = line.split()[:2]
        if which == "--defined-only" or kind == "U":
            names.add(name.partition("@")[0])
    return names


def needed(path: Path) -> list[str]:
    """Return the libraries that a file is linked with."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-dW", str(path)))


def everything(path: Path, known: dict[str, Path]) -> tuple[set[str], set[str]]:
    """Return the names of all libraries that a file loads, and of those among them that nobody has."""
    names, missing, fresh = set(), set(), needed(path)
    while fresh:
        name = fresh.pop()
        if name in names or name in missing:
            continue
        if name in known:
            names.add(name)
            fresh += needed(known[name])
        else:
            missing.add(name)
    return names, missing


def problems(path: Path, known: dict[str, Path], exported: dict[Path, set[str]]) -> list[str]:
    """Say which libraries and symbols of an extension nothing in the image has."""
    shown = path.relative_to(TRIED)
    names, missing = everything(path, known)
    found = [
        f"{shown} needs the library {name}, which the image does not have"
        for name in sorted(missing)
        if not DRIVER.fullmatch(name)
    ]
    if found:
        return found
    wanted = symbols(path, "--undefined-only")
    for library in (Path(sys.executable).resolve(), *(known[name] for name in sorted(names))):
        if library not in exported:
            exported[library] = symbols(library, "--defined-only")
        wanted -= exported[library]
    if any(DRIVER.fullmatch(name) for name in missing):
        wanted = {name for name in wanted if not OF_DRIVER.fullmatch(name)}
    plain = run("c++filt", *sorted(wanted)[:MOST]).splitlines() if wanted else []
    linked = ", ".join(name for name in needed(path) if "torch" in name or "c10" in name)
    against = f" (it is linked with {linked})" if linked else ""
    return [f"{shown} needs the symbol {name}, which no library of the image has{against}" for name in plain]


def main() -> None:
    """Test the one wheel; problems go to stderr."""
    wheels = sorted((PLACE / "wheels").glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"the backend has left {len(wheels)} wheels, and not one")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(TRIED)
    site = next(Path(folder) for folder in sys.path if folder.endswith("site-packages"))
    known = libraries(TRIED, site, *(Path(folder) for folder in SYSTEM if Path(folder).is_dir()))
    exported: dict[Path, set[str]] = {}
    own = [path for path in libraries(TRIED).values() if path.read_bytes()[:4] == b"\x7fELF"]
    found = [line for path in own for line in problems(path, known, exported)]
    if found:
        raise SystemExit("\n".join(found[:MOST]))
    tops = {path.name.partition(".")[0] for path in TRIED.iterdir() if is_module(path)}
    modules = sys.argv[2:] or sorted(tops)
    code = "import sys, importlib; sys.path[:0] = sys.argv[1:3]\n"
    code += "for name in sys.argv[3:]: importlib.import_module(name)"
    ran = subprocess.run([sys.executable, "-s", "-c", code, str(TRIED), sys.argv[1], *modules], check=False)
    if ran.returncode:
        raise SystemExit(f"the wheel was made, and cannot be imported: {', '.join(modules)}")


def is_module(path: Path) -> bool:
    """Return whether something at the top of a wheel can be imported."""
    package = path.is_dir() and path.name.isidentifier() and (path / "__init__.py").exists()
    return package or (path.is_file() and path.suffix in {".py", ".so"} and not path.name.startswith("_"))


main()
