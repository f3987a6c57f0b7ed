"""Check what this host has and lacks for each verb, and the command that fixes it.

Every check tries the real thing: it asks the engine, makes a namespace, resolves a package. A crash in one
becomes a finding, never a traceback.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from imagebuilder.core import platforms, process
from imagebuilder.core.progress import human
from imagebuilder.core.yamlfile import printable
from imagebuilder.debian import suites
from imagebuilder.errors import EnvironmentFault, ImagebuilderError, Problem
from imagebuilder.host import cgroups, emulation, tools
from imagebuilder.host.site import Site, detect, redact
from imagebuilder.store import Store

Status = Literal["ok", "warning", "missing"]

# For a torch image: its wheels, layers, Debian packages, and the temporary tar. Below the first figure, not
# even a small image fits.
_STORE_LEAST = 2_000_000_000
_STORE_GOOD = 20_000_000_000
# The size of such an image, unpacked in the engine.
_ENGINE_GOOD = 15_000_000_000
# Kernel settings that prevent users from making namespaces: file, the value that does, and the setting that
# helps.
_SYSCTLS = (
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
_INSTALL_LIMIT = 1800.0  # seconds; an engine is some 100 MB of packages


@dataclass(frozen=True, kw_only=True)
class HostFinding:
    """The state of one thing that verbs need.

    Attributes:
        name: of the thing.
        status: `warning` if only some uses need it.
        detail: what was seen, in one line, without credentials.
        verbs: the verbs that need it.
        remedy: the command that fixes it; empty if nothing is wrong.
        packages: the Debian packages that fix it, for `fix`.

    """

    name: str
    status: Status
    detail: str
    verbs: tuple[str, ...]
    remedy: str = ""
    packages: tuple[str, ...] = ()


def examine() -> tuple[HostFinding, ...]:
    """Examine this host; takes some seconds, mostly to wait for the index."""
    checks = {
        "machine": _machine,
        "tools": _tools,
        "archive keys": _keyrings,
        "namespaces": _namespaces,
        "store": _store,
        "engine": _engine,
        "cgroups": _cgroups,
        "docker buildx": _buildx,
        "network": _network,
    }
    with ThreadPoolExecutor(len(checks)) as pool:
        found = pool.map(_careful, checks, checks.values())
        return tuple(finding for findings in found for finding in findings)


def fix(findings: Iterable[HostFinding] | None = None) -> Iterator[str]:
    """Install the missing Debian packages; yields what is being done.

    Raises:
        EnvironmentFault: this is not Debian, or the user is not root; the message has the command to run.
        CommandError: apt-get failed.

    """
    found = examine() if findings is None else findings
    packages = sorted({package for finding in found for package in finding.packages})
    if not packages:
        yield "nothing to install"
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if not shutil.which("apt-get"):
        raise EnvironmentFault(
            f"missing: {', '.join(packages)}; without apt-get this host's own tools have to install them",
            hint="on another system the packages may have other names",
        )
    if os.geteuid() != 0:
        raise EnvironmentFault(
            f"installing {', '.join(packages)} needs root", hint=f"run: sudo {shlex.join(command)}"
        )
    env = {"DEBIAN_FRONTEND": "noninteractive", **detect().environment()}
    yield "updating the lists of packages: apt-get update"
    process.run(["apt-get", "-q", "update"], timeout=_INSTALL_LIMIT, env=env)
    yield f"installing: {shlex.join(command)}"
    process.run(command, timeout=_INSTALL_LIMIT, env=env)


def lines(findings: Iterable[HostFinding]) -> Iterator[str]:
    """Format findings as text; below each problem, the command that fixes it."""
    rows = tuple(findings)
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        yield f"{row.status:<8} {row.name:<{width}}  {row.detail}  [{', '.join(row.verbs)}]"
        if row.remedy:
            yield f"{'':<8} {'':<{width}}  -> {row.remedy}"
    missing = sum(row.status == "missing" for row in rows)
    warnings = sum(row.status == "warning" for row in rows)
    yield f"{missing} missing, {warnings} to look at" if missing or warnings else "nothing is missing"
    if any(row.packages for row in rows):
        yield "as root, `imagebuilder doctor --fix` installs the Debian packages"


def _careful(name: str, check: Callable[[], Iterable[HostFinding]]) -> tuple[HostFinding, ...]:
    try:
        return tuple(check())
    except Exception as error:  # noqa: BLE001  (a doctor that falls over helps nobody)
        detail = redact(f"could not be examined: {error}")
        return (_amiss(name, "warning", detail, ("every verb",), "imagebuilder -vv doctor says more"),)


def _ok(name: str, detail: str, verbs: tuple[str, ...]) -> HostFinding:
    return HostFinding(name=name, status="ok", detail=_one_line(detail), verbs=verbs)


def _amiss(name: str, status: Status, detail: str, verbs: tuple[str, ...], remedy: str) -> HostFinding:
    return HostFinding(name=name, status=status, detail=_one_line(detail), verbs=verbs, remedy=remedy)


def _package(name: str, package: str, detail: str, verbs: tuple[str, ...]) -> HostFinding:
    remedy = f"apt-get install {package}"
    return HostFinding(
        name=name, status="missing", detail=detail, verbs=verbs, remedy=remedy, packages=(package,)
    )


def _machine() -> Iterator[HostFinding]:
    verbs = ("build", "smoke-test")
    system, machine = platform.system(), platform.machine()
    detail = f"{_release_name() or system}, {machine}, {os.cpu_count()} cores"
    own = platforms.own()
    foreign = [name for name in platforms.KNOWN if name != own]
    if system == "Linux" and own:
        able = [name for name in foreign if emulation.runs(name)]
        lacking = [name for name in foreign if name not in able]
        detail += f"; also builds {', '.join(able)} (emulated)" if able else ""
        detail += f"; {', '.join(lacking)} only with qemu-user-static" if lacking else ""
        yield _ok("machine", detail, verbs)
    elif _container():
        yield _ok("machine", f"{detail}; Linux programs run in containers", verbs)
    else:
        remedy = "start Docker or Podman: Linux programs then run in containers"
        yield _amiss("machine", "missing", detail, verbs, remedy)


def _tools() -> Iterator[HostFinding]:
    engine = _container()
    for name, verbs, package in (
        ("apt-get", ("lock",), "apt"),
        ("mmdebstrap", ("lock", "build"), "mmdebstrap"),
        ("dpkg-deb", ("build",), "dpkg"),
        ("ssh-keygen", ("keys",), "openssh-client"),
    ):
        path = shutil.which(name)
        if path:
            yield _ok(name, path, verbs)
        elif engine and name in tools.NEEDED:
            yield _stood_in(
                name, package, f"is not installed: all such tools run in a container of {engine}", verbs
            )
        else:
            yield _package(name, package, "is not installed", verbs)
    yield _uv()
    yield _squashfs()


def _squashfs() -> HostFinding:
    """Look for mksquashfs. Only one format of `build --output` needs it, so it is never missing."""
    name, verbs = "mksquashfs", ("build --output NAME.sqsh",)
    return _ok(name, shutil.which(name) or "not installed: apt-get install squashfs-tools", verbs)


def _container() -> str:
    """Return the engine whose containers have the tools that this host lacks; "" if none is lacking."""
    if not tools.missing():
        return ""
    from imagebuilder.smoke import engine as engines  # late: it loads the docker SDK

    try:
        with engines.connect("auto") as engine:
            return engine.kind
    except EnvironmentFault:
        return ""


def _stood_in(name: str, package: str, detail: str, verbs: tuple[str, ...]) -> HostFinding:
    if not shutil.which("apt-get"):
        return _ok(name, detail, verbs)
    # Installing it would be faster than a container.
    return replace(_package(name, package, detail, verbs), status="warning")


def _uv() -> HostFinding:
    import uv  # late: a damaged installation must be a finding, not a failed import

    try:
        return _ok("uv", str(uv.find_uv_bin()), ("lock", "build"))
    except FileNotFoundError:
        detail = "its program is missing from the installed package"
        return _amiss("uv", "missing", detail, ("lock", "build"), "pip install --force-reinstall uv")


def _keyrings() -> Iterator[HostFinding]:
    """Check archive keys: one distribution's are needed, those of others only for recipes with that base."""
    if _container():
        return  # its image has them
    verbs = ("lock", "build")
    known = suites.known()
    some = any(Path(facts.keyring).is_file() for facts in known.values())
    for distribution, facts in known.items():
        name, path = f"{distribution} keys", Path(facts.keyring)
        if path.is_file():
            yield _ok(name, str(path), verbs)
        elif some:
            remedy = f"apt-get install {facts.keyring_package}"
            detail = f"{path} is not there: only a base of {distribution} needs it"
            yield _amiss(name, "warning", detail, verbs, remedy)
        else:
            yield _package(name, facts.keyring_package, f"{path} is not there", verbs)


def _namespaces() -> Iterator[HostFinding]:
    """Check user namespaces, in which programs of the image run, also if root builds."""
    if _container():
        return  # the engine's root can make namespaces
    verbs = ("build",)
    if os.geteuid() == 0:
        result = process.run(
            ["unshare", "--user", "--mount", "--pid", "--fork", "true"], timeout=20, check=False
        )
        if result.code == 0:
            yield _ok("namespaces", "root may make user namespaces", verbs)
        else:
            detail = f"root may not make user namespaces: {result.stderr}"
            remedy = _setting() or (
                "in a container, give it `--security-opt seccomp=unconfined --security-opt "
                "apparmor=unconfined`, or build outside of it"
            )
            yield _amiss("namespaces", "missing", detail, verbs, remedy)
        return
    if not shutil.which("newuidmap"):
        yield _package("uidmap", "uidmap", "newuidmap is not installed", verbs)
    if not shutil.which("mmdebstrap"):
        return  # already reported, and needed to make the namespace
    result = process.run(["mmdebstrap", "--unshare-helper", "true"], timeout=20, check=False)
    if result.code == 0:
        yield _ok("namespaces", "this user may make user namespaces", verbs)
    else:
        detail = f"this user may not make user namespaces: {result.stderr}"
        yield _amiss("namespaces", "missing", detail, verbs, _namespace_remedy())


def _setting() -> str:
    """Return the kernel setting to change; "" if it is not a known one."""
    found = (setting for path, bad, setting in _SYSCTLS if _read(path).strip() == bad)
    return next((f"sudo sysctl -w {setting}" for setting in found), "")


def _namespace_remedy() -> str:
    if setting := _setting():
        return setting
    user = pwd.getpwuid(os.getuid()).pw_name
    if not re.search(rf"^(?:{re.escape(user)}|{os.getuid()}):", _read("/etc/subuid"), re.MULTILINE):
        return f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
    return "build as root, or ask the administrator of this host to allow user namespaces"


def _store() -> Iterator[HostFinding]:
    verbs = ("build", "push", "cache")
    root = Store.default().root
    place = next(folder for folder in (root, *root.parents) if folder.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        remedy = "set IMAGEBUILDER_STORE to a folder of your own"
        yield _amiss("store", "missing", f"{place} is not writable", verbs, remedy)
        return
    free = shutil.disk_usage(place).free
    detail = f"{root}, {human(free)} free"
    if free >= _STORE_GOOD:
        yield _ok("store", detail, verbs)
    else:
        status: Status = "warning" if free >= _STORE_LEAST else "missing"
        remedy = "imagebuilder cache prune --keep 20GB, or set IMAGEBUILDER_STORE to a folder with more room"
        yield _amiss("store", status, f"{detail}; a CUDA image needs {human(_STORE_GOOD)}", verbs, remedy)


def _engine() -> Iterator[HostFinding]:
    from imagebuilder.smoke import engine as engines  # late: it loads the docker SDK

    verbs = ("build --load", "smoke-test")
    try:
        with engines.connect("auto") as engine:
            info = engine.client.info()
            kind, version, gpus = engine.kind, engine.version, bool(engine.gpu_routes)
    except EnvironmentFault as error:
        yield _no_engine(error.problems[0], verbs)
        return
    containerd = "io.containerd" in str(info.get("DriverStatus"))
    yield _ok("engine", f"{kind} {version}, {'containerd' if containerd else 'classic'} image store", verbs)
    yield from _engine_room(Path(str(info.get("DockerRootDir") or "/nowhere")), verbs)
    yield _gpu(offered=gpus)


def _cgroups() -> Iterator[HostFinding]:
    """Check for the cgroup layout in which Podman's default runtime starts no containers; Docker's does."""
    if shutil.which("podman") and (hybrid := cgroups.look(lambda path: _read(str(path)))):
        detail = f"{hybrid}: crun, Podman's default runtime, starts no container"
        yield _amiss("cgroups", "warning", detail, ("smoke-test --runtime podman",), hybrid.remedy)


def _no_engine(problem: Problem, verbs: tuple[str, ...]) -> HostFinding:
    socket, message = Path("/var/run/docker.sock"), problem.message
    if os.environ.get("DOCKER_HOST") or " context " in message:
        remedy = problem.hint
    elif socket.exists() and not os.access(socket, os.W_OK):
        remedy = "sudo usermod -aG docker $USER, then sign in again"
    elif shutil.which("dockerd"):
        remedy = "sudo systemctl start docker"
    elif shutil.which("podman"):
        remedy = "systemctl --user start podman.socket"
    else:
        return _package("engine", "docker.io", message, verbs)
    return _amiss("engine", "missing", message, verbs, remedy)


def _engine_room(folder: Path, verbs: tuple[str, ...]) -> Iterator[HostFinding]:
    """Check the engine's disk; its folder may be on another machine or not readable for this user."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return
    if free < _ENGINE_GOOD:
        detail = f"{folder}, {human(free)} free; a CUDA image needs {human(_ENGINE_GOOD)}"
        yield _amiss("engine's disk", "warning", detail, verbs, "docker image prune, or a larger disk")


def _buildx() -> Iterator[HostFinding]:
    """Check buildx, which only `build --engine docker` needs, so it is never reported as missing.

    `fix` does not install it, because not every suite has a package.
    """
    from imagebuilder.engines import buildx  # late, like everything that a single check needs

    name, verbs = "docker buildx", ("build --engine docker",)
    if not shutil.which("docker"):
        yield _ok(name, "not installed; the embedded engine does not need it", verbs)
        return
    try:
        builder = buildx.look_up(start=False)
    except EnvironmentFault as error:
        problem = error.problems[0]
        yield _amiss(name, "warning", problem.message, verbs, problem.hint)
        return
    runs = f"BuildKit {builder.version}" if builder.version else "which the first build starts"
    if builder.driver == "docker":
        store = "merges layers" if builder.merges else "classic image store: changed layers are copied again"
        runs = f"engine {builder.version}, {store}"
    yield _ok(name, f"{builder.buildx}, builder {builder.name} ({builder.driver}): {runs}", verbs)


def _gpu(*, offered: bool) -> HostFinding:
    verbs = ("smoke-test",)
    driver = re.search(r"Kernel Module +(?:for \S+ +)?([0-9.]+)", _read("/proc/driver/nvidia/version"))
    if not driver:
        return _ok("gpu", "no NVIDIA driver here: the smoke test runs in cpu mode", verbs)
    if offered:
        return _ok("gpu", f"NVIDIA driver {driver[1]}, and the engine offers its GPUs", verbs)
    detail = f"NVIDIA driver {driver[1]}, but the engine does not offer its GPUs to containers"
    remedy = "install the NVIDIA container toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker"
    return _amiss("gpu", "warning", detail, verbs, remedy)


def _network() -> Iterator[HostFinding]:
    verbs = ("lock", "build", "push")
    try:
        site = detect()
    except ImagebuilderError as error:
        remedy = error.problems[0].hint or "correct the setting"
        yield _amiss("site", "missing", redact(str(error.problems[0].message)), verbs, remedy)
        return
    yield _ok("site", redact(_surroundings(site)), verbs)
    yield _index(site)


def _surroundings(site: Site) -> str:
    """Describe the settings for downloads in one line, without those at their default."""
    said = [f"{name} {'proxy ' if name != 'no_proxy' else ''}{value}" for name, value in site.proxies]
    said += [f"CA {site.ca_bundle}"] if site.ca_bundle else []
    said += [f"index {site.index}"] if site.index else []
    said += [f"extra index {index}" for index in site.extra_indexes]
    said += [f"wheel folder {folder}" for folder in site.wheel_folders]
    said += ["wheel folders only"] if site.no_index else []
    said += [f"apt mirror {site.apt_mirror}"] if site.apt_mirror else []
    return ", ".join(said) or "no proxy, the tools' own defaults"


def _index(site: Site) -> HostFinding:
    """Resolve one package with the index, as `lock` does."""
    from imagebuilder.resolve import uv as solver  # late: it loads uv

    verbs = ("lock", "build")
    question = solver.SolveRequest(requirements=("pip",), dependencies=False)
    target = solver.Target(python="3.13", glibc="2.36", architecture="amd64", site=site)
    try:
        solver.solve(question, target)
    except (ImagebuilderError, solver.UnsolvableError) as error:
        hint = error.problems[0].hint if isinstance(error, ImagebuilderError) else ""
        remedy = hint or (
            "write `index:`, `proxies:` or `ca:` into a file for --site "
            "(`imagebuilder schema --site-file` describes its keys)"
        )
        return _amiss("package index", "missing", redact(str(error).partition("\n")[0]), verbs, remedy)
    return _ok("package index", "answers", verbs)


def _release_name() -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.MULTILINE)
    return found[1] if found else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
