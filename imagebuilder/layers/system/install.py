"""Makes the OS layer: mmdebstrap installs the locked Debian packages, without a daemon or a network.

mmdebstrap makes a folder for the new root in a user namespace, starts no services, and writes a sorted tar.
The packages are installed by dpkg alone, from mmdebstrap's hooks (layers/hooks/system). The host's apt is not
used, because the order of installation, and with it user ids and much else, would depend on its version.
Programs in the new root run in separate namespaces that contain only this root
(layers/hooks/shared/confine.pl).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

from imagebuilder.core import platforms, process
from imagebuilder.core.process import CommandError
from imagebuilder.core.progress import Advance
from imagebuilder.debian import suites
from imagebuilder.errors import BuildError, EnvironmentFault, InputError, LockError, Problem
from imagebuilder.host import aptmirrors, emulation
from imagebuilder.host.tools import HOST, Sandbox, Tools
from imagebuilder.layers import hooks
from imagebuilder.layers.archive import settle_headers
from imagebuilder.layers.stargz import compress_tar
from imagebuilder.layers.system import debs as order
from imagebuilder.layers.system import incremental
from imagebuilder.layers.system.split import reduced, split
from imagebuilder.plan import OsLayer, OsPart, UpperOsLayer
from imagebuilder.plan.slim import libraries
from imagebuilder.store import LayerRecord, Store, check_bytes, explained, link_or_copy

log = logging.getLogger(__name__)

HANDED = "imagebuilder"  # the folder with the files that a build hands in; in the root it has the same name
_TAR = "layer.tar"
_ROOTS = "roots"  # where confine.pl mounts memory
_LIMIT = 3600.0  # seconds; a set of 240 packages takes one minute, a slow disk ten
_LOCK_AGAIN = "the lock was changed, or its archive changed a file: lock the recipe again"
_SPARE = 256 << 20  # bytes beside the packages' files: caches, dpkg's database, modules compiled by packages
_TAIL = 12  # lines of a log that an error shows
_DOCTOR = "`imagebuilder doctor` checks it"
_EXTRACT = '--setup-hook=sh "$1/imagebuilder/hooks/extract.sh" "$1"'
_FINISH = ('--customize-hook=sh "$1/imagebuilder/hooks/finish.sh" "$1"',)
_FAILED_PACKAGE = re.compile(r"dpkg: error processing (?:package|archive) (\S+) \(")
_NO_NAMESPACE = re.compile(r"unshare(?: failed)?: .*not permitted|newuidmap|subuid")


def build_os_layer(
    layer: OsLayer, debs: Mapping[str, Path], store: Store, advance: Advance, tools: Tools = HOST
) -> LayerRecord:
    """Install the layer's packages into an empty root, with its user and an empty venv.

    Args:
        layer: the packages, the user and the venv.
        debs: the file of every package, by hex sha256.
        store: the blob and all temporary files are written to it.
        advance: called with the bytes of the layer's tar, at the end.
        tools: run mmdebstrap and dpkg.

    Raises:
        DamagedDownloadError: a download is no longer the locked package.
        BuildError: a package's script failed, or the packages do not fit together.
        EnvironmentFault: mmdebstrap is missing, or this user may not create namespaces.

    """
    with _installed(layer, debs, store, tools) as tar:
        return compress_tar(tar, store, advance)


def build_os_parts(
    parts: Sequence[OsPart], debs: Mapping[str, Path], store: Store, advance: Advance, tools: Tools = HOST
) -> tuple[LayerRecord, ...]:
    """Install a system as `build_os_layer` does, and make a layer of each of its parts.

    Args:
        parts: all parts of one system, from `plan.parts`.
        debs: the file of every package, by hex sha256.
        store: the blobs and all temporary files are written to it.
        advance: called with the bytes of the layers' tars, at the end.
        tools: run mmdebstrap and dpkg.

    Returns:
        The records of the parts, in their order.

    Raises:
        ImagebuilderError: as `build_os_layer` does.

    """
    homes = {deb.name: part.name for part in parts for deb in part.debs}
    with _installed(parts[0].system, debs, store, tools) as tar:
        tars = split(tar, homes, parts[0].system.slim)
        return tuple(compress_tar(cast("BinaryIO", tars[part.name]), store, advance) for part in parts)


@contextlib.contextmanager
def _installed(layer: OsLayer, debs: Mapping[str, Path], store: Store, tools: Tools) -> Iterator[BinaryIO]:
    """Make a root of a layer's packages; yields its tar, or on a base the tar of the changes."""
    with store.work() as folder, tools.open(folder, network=False) as sandbox:
        needed = hand_in(layer, debs, folder, sandbox, tools)
        if isinstance(layer, UpperOsLayer):
            sandbox.copy_in(*incremental.lay_out(layer, store, folder, folder / HANDED))
            run_in_root(layer, sandbox, incremental.last_hooks(sandbox.folder / _TAR))
        else:
            run_in_root(layer, sandbox, _FINISH, _TAR, memory=needed)
        slim = layer.slim if isinstance(layer, UpperOsLayer) else None
        base = incremental.base_paths(folder / HANDED) if slim else frozenset()
        shutil.rmtree(folder / HANDED)
        sandbox.copy_out(_TAR)
        with (folder / _TAR).open("r+b") as stream:
            settle_headers(stream)
            yield cast("BinaryIO", reduced(stream, slim, base)) if slim else stream


def hand_in(layer: OsLayer, debs: Mapping[str, Path], folder: Path, sandbox: Sandbox, tools: Tools) -> int:
    """Write the files that a root needs: hooks, packages, their rounds, and the image's sources for apt.

    They are copied to `HANDED` in the folder, because the namespace's user may not be able to read this
    user's folders.

    Returns:
        The bytes that the packages need while they are installed, an estimate: as files, and as archives
        without compression.

    Raises:
        DamagedDownloadError: a download is no longer the locked package.
        LockError: a file contains another package than its lock entry says, a dependency is missing, or
            nothing requires a package.
        EnvironmentFault: mmdebstrap is missing, or this user may not create namespaces.

    """
    _require_namespaces(sandbox)
    handed = folder / HANDED
    _copy_in(layer, debs, handed)
    sandbox.copy_in(f"{HANDED}/debs", f"{HANDED}/hooks")
    if sandbox.is_root:
        _require_user_namespace(sandbox)
    packages = _packages(layer, sandbox)
    _lay_out(handed, packages)
    # The image gets the distribution's default mirrors; the site's may be private to this host.
    mirrors = aptmirrors.default(layer.distribution, layer.suite, layer.architecture, tools)
    (handed / "sources").write_text(
        suites.sources(layer.distribution, layer.suite, mirrors), encoding="utf-8"
    )
    sandbox.copy_in(f"{HANDED}/rounds", f"{HANDED}/sources")
    return 2 * sum(package.unpacked for package in packages) + _SPARE


def relations(
    layer: OsLayer, debs: Mapping[str, Path], store: Store, tools: Tools = HOST
) -> tuple[order.Package, ...]:
    """Read the control fields of a layer's packages.

    Raises:
        DamagedDownloadError: a download is no longer the locked package.
        EnvironmentFault: dpkg is missing.

    """
    with store.work() as folder, tools.open(folder, network=False) as sandbox:
        _copy_in(layer, debs, folder / HANDED)
        sandbox.copy_in(f"{HANDED}/debs")
        return _packages(layer, sandbox)


def run_in_root(
    layer: OsLayer, sandbox: Sandbox, last: Sequence[str], output: str = "", memory: int = 0
) -> None:
    """Install a layer's packages into a new root, and run the last hooks.

    Args:
        layer: the packages.
        sandbox: has the files from `hand_in`.
        last: options of mmdebstrap for hooks that run after the installation.
        output: name of the tar of the whole root, in the sandbox's folder; "" to write none.
        memory: if there is room for twice as many bytes, make the root in memory; 0 makes it on the disk.

    Raises:
        BuildError: a package's script or a hook failed, or the packages do not fit together.
        EnvironmentFault: this host does not allow namespaces.

    """
    env = _environment(layer)
    if sandbox.is_root:
        # mmdebstrap makes the root in TMPDIR. Only root's user namespace can reach the sandbox's folder.
        env["TMPDIR"] = str(sandbox.folder)
        size = _room(sandbox) // 2 if memory else 0
        if memory and size >= memory:
            more = {"IMAGEBUILDER_MEMORY": str(size), "TMPDIR": str(sandbox.folder / _ROOTS)}
            with contextlib.suppress(_FullError):
                _run(layer, sandbox, last, output, env | more)
                return
    _run(layer, sandbox, last, output, env)


class _FullError(Exception):
    """A package needs more memory than it states."""


def _run(layer: OsLayer, sandbox: Sandbox, last: Sequence[str], output: str, env: Mapping[str, str]) -> None:
    try:
        # Run in /, because the namespace's user may not enter the sandbox's folder, and find(1) returns to
        # where it started.
        sandbox.run(_command(layer, sandbox, last, output), timeout=_LIMIT, env=env, cwd=Path("/"))
    except CommandError as error:
        if "IMAGEBUILDER_MEMORY" in env and os.strerror(errno.ENOSPC) in error.result.stderr:
            log.info("the packages need more memory than they state: installing them on the disk")
            raise _FullError from error
        raise _explain(error, layer) from error


def _room(sandbox: Sandbox) -> int:
    """Return the bytes of memory that a root may take where commands run; 0 if that is unknown."""
    script = sandbox.folder / HANDED / "hooks" / "room.sh"
    said = sandbox.run(["sh", script], timeout=60, check=False).stdout.strip()
    return int(said) if said.isdecimal() else 0


def _copy_in(layer: OsLayer, debs: Mapping[str, Path], folder: Path) -> None:
    for part in ("debs", "rounds", "hooks"):
        (folder / part).mkdir(parents=True)
    hooks.hand_in("system", folder / "hooks")
    for deb in layer.debs:
        check_bytes(debs[deb.sha256], deb.sha256, Path(deb.path).name)
        place = folder / "debs" / f"{deb.name}.deb"
        with explained(place):
            link_or_copy(debs[deb.sha256], place)


def _packages(layer: OsLayer, sandbox: Sandbox) -> tuple[order.Package, ...]:
    """Read the control fields of all packages with one command: in a container each command takes time.

    No package has run anything at this point, so a package that differs from the lock never runs.
    """
    debs = sorted(layer.debs, key=lambda deb: deb.name)
    names = [deb.name for deb in debs]
    fields = " ".join(order.FIELDS)
    script = f'for deb; do dpkg-deb --field "$deb" {fields} || exit; printf "\\0"; done'
    files = [sandbox.folder / HANDED / "debs" / f"{name}.deb" for name in names]
    # Reading a package starts four processes, so every core gets a part of them.
    share = max(-(-len(files) // process.cores()), 1)
    slices = [files[start : start + share] for start in range(0, len(files), share)]
    with ThreadPoolExecutor(len(slices) or 1) as pool:
        answers = pool.map(
            lambda part: sandbox.run(["sh", "-c", script, "sh", *part], timeout=60 + len(part)).stdout, slices
        )
        said = "".join(answers)
    packages = tuple(order.parse_package(control) for control in said.split("\0")[:-1])
    problems = order.problems(packages, debs)
    if layer.asked and not isinstance(layer, UpperOsLayer):
        always = suites.facts(layer.distribution, layer.suite).packages
        asked = [package.partition("=")[0] for package in (*always, *layer.asked)]
        problems += order.closure_problems(packages, asked)
    if problems:
        raise LockError.of([Problem(message=text, where="debs", hint=_LOCK_AGAIN) for text in problems])
    if layer.slim:
        _refuse_needed(layer, packages)
    return packages


def _refuse_needed(layer: OsLayer, packages: Sequence[order.Package]) -> None:
    """Refuse to leave out libraries that some package needs beside the one that brings them in vain."""
    needed = order.dependents(packages, *libraries(layer.debs))
    if needed:
        raise InputError.of(
            [
                Problem(
                    message=f"leaves out the libraries of {name}, which {package} needs",
                    where="slim",
                    hint=f"leave what brings {package} out of `apt:`, or remove `slim: true`",
                )
                for package, name in needed
            ]
        )


def _lay_out(folder: Path, packages: Sequence[order.Package]) -> None:
    """Write the order in which the packages are installed."""
    for number, names in enumerate(order.rounds(packages)):
        lines = "".join(f"{name}.deb\n" for name in names)
        (folder / "rounds" / f"{number:02}").write_text(lines, encoding="utf-8")


def _command(layer: OsLayer, sandbox: Sandbox, last: Sequence[str], output: str) -> tuple[str, ...]:
    start: tuple[str, ...] = ("mmdebstrap", "--mode=unshare")
    # mmdebstrap itself removes and writes files in the new root, and could follow a package's links to the
    # host.
    handed = shlex.quote(str(sandbox.folder / HANDED))
    copy = f"copy-in {handed} /"
    hide: tuple[str, ...] = (f'--setup-hook=perl "$1/{HANDED}/hooks/{hooks.CONFINE}" around "$1"',)
    if sandbox.is_root:
        # For root, mmdebstrap does not create a user namespace: the host's root would install the packages.
        start, hide = (*_as_another_user(sandbox), "mmdebstrap", "--mode=root"), ()
        copy = f'cp -R {handed} "$1/"'
    above = isinstance(layer, UpperOsLayer)
    return (
        *start,
        "--variant=custom",
        f"--architectures={layer.architecture}",
        "--format=tar" if output else "--format=null",
        # Skip apt and its update, because there are no sources; device nodes, because engines make them;
        # mmdebstrap's check for emulators, because emulation.py does it; mounts, because each command in the
        # root has its own. On a base also skip the replacements of programs, which would count as changes.
        "--skip=update,check/qemu,chroot/mount,"
        + ("cleanup,chroot/policy-rc.d,chroot/start-stop-daemon" if above else "cleanup/apt,output/dev"),
        f"--setup-hook={copy}",
        *hide,
        *(incremental.setup_hooks(sandbox.folder) if above else (_EXTRACT,)),
        '--essential-hook=sh "$1/imagebuilder/hooks/install.sh" "$1"',
        *last,
        layer.suite,
        str(sandbox.folder / output) if output else os.devnull,
        # This source is never read; without it mmdebstrap would use its default.
        "deb copy:///imagebuilder ./",
    )


def _environment(layer: OsLayer) -> dict[str, str]:
    return {
        # Every file in the layer has time 0, as in all other layers.
        "SOURCE_DATE_EPOCH": "0",
        # Capabilities are the only extended attribute that packages set. Others come from this host (SELinux
        # labels) or its file system (access lists). mmdebstrap 1.5 packs the empty folder dev, and 1.3 does
        # not.
        "TAR_OPTIONS": "--xattrs-include=security.capability --exclude=./dev",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        # The first round was unpacked without dpkg, so its dependencies look missing. On a base, changed
        # configuration files are kept.
        "IMAGEBUILDER_FORCE": "--force-confdef,confold"
        if isinstance(layer, UpperOsLayer)
        else "--force-depends",
        "IMAGEBUILDER_USER": layer.user.name,
        "IMAGEBUILDER_UID": str(layer.user.uid),
        "IMAGEBUILDER_HOME": layer.user.home,
        "IMAGEBUILDER_VENV": layer.venv,
        "IMAGEBUILDER_SOURCES": f"{layer.distribution}.sources",
    }


def _as_another_user(sandbox: Sandbox) -> tuple[str, ...]:
    """Return the start of a command that runs, for root, as another user who is root in a namespace."""
    return ("perl", str(sandbox.folder / HANDED / "hooks" / hooks.CONFINE), "tools", str(sandbox.folder))


def _require_user_namespace(sandbox: Sandbox) -> None:
    """Check that root can create a user namespace: a kernel or a container may refuse it."""
    try:
        sandbox.run([*_as_another_user(sandbox), "true"], timeout=60)
    except CommandError as error:
        raise hooks.refused(error) or error from error


def _require_namespaces(sandbox: Sandbox) -> None:
    """Check, before minutes of work, that this user may create namespaces."""
    try:
        probe = ("--version",) if sandbox.is_root else ("--unshare-helper", "true")
        sandbox.run(["mmdebstrap", *probe], timeout=60)
    except EnvironmentFault as error:
        raise EnvironmentFault(str(error), hint=suites.INSTALL_HINT.format("mmdebstrap")) from error
    except CommandError as error:
        raise EnvironmentFault(
            f"this user may not create user namespaces, which the OS layer needs:\n{error}",
            hint="install uidmap, give the user a range in /etc/subuid and /etc/subgid, or build as root; "
            + _DOCTOR,
        ) from error


def _explain(error: CommandError, layer: OsLayer) -> BuildError | EnvironmentFault:
    """Return an error that names the package that failed, with the output of its script."""
    lines = error.result.stderr.splitlines()
    title = f"{layer.distribution} {layer.suite}"
    for number, line in enumerate(lines):
        if failed := _FAILED_PACKAGE.search(line):
            name = Path(failed[1]).name.removesuffix(".deb")
            return BuildError(
                f"the package {name} could not be installed:\n" + _log_of(name, lines[: number + 2]),
                where=title,
                hint="leave it out of `apt:`, or lock another version of it",
            )
    if any("Exec format error" in line for line in lines):
        return emulation.fault(platforms.of(layer.architecture), "the kernel does not run its programs")
    if fault := hooks.refused(error, title):
        return fault
    if any(_NO_NAMESPACE.search(line) for line in lines):
        return EnvironmentFault(
            "this host does not allow the namespaces that the OS layer needs:\n" + "\n".join(lines[-_TAIL:]),
            where=title,
            hint="in a container, give it `--security-opt seccomp=unconfined --security-opt "
            f"apparmor=unconfined`, or build outside of it; {_DOCTOR}",
        )
    # Leave out mmdebstrap's progress: the last lines of a hook or a tool say what went wrong. Its word of a
    # signal that ended it stays.
    noise = ("I: ", "W: skipping creation of ./dev/", "E: mmdebstrap failed", "E: setup failed")
    said = [line for line in lines if "received signal" in line or not line.startswith(noise)]
    return BuildError("making the system failed:\n" + "\n".join(said[-_TAIL:]), where=title, hint=_DOCTOR)


def _log_of(package: str, lines: Sequence[str]) -> str:
    """Return the lines since dpkg began with a package, at most the last `_TAIL`."""
    begins = (f"Setting up {package} ", f"Preparing to unpack {package}.deb ")
    start = max((number for number, line in enumerate(lines) if line.startswith(begins)), default=0)
    return "\n".join(lines[start:][-_TAIL:])
