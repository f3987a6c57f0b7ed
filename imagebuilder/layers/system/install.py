"""The OS layer: the locked Debian packages, configured, by mmdebstrap without a daemon or a network.

mmdebstrap gives the frame: a folder for the new root, in a user namespace, no services, a sorted tar. The
packages go in by dpkg alone, from its hooks (layers/hooks/system): apt on the host would choose the order of
installation, and with it user ids and much else, by its own version. Whatever runs in the new root runs in
namespaces of its own, of which that is the only root (layers/hooks/shared/confine.pl).
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from imagebuilder.core import platforms
from imagebuilder.core.process import CommandError
from imagebuilder.core.progress import Advance
from imagebuilder.debian import suites
from imagebuilder.errors import BuildError, EnvironmentFault, LockError, Problem
from imagebuilder.host import aptmirrors, emulation
from imagebuilder.host.tools import HOST, Sandbox, Tools
from imagebuilder.layers import hooks
from imagebuilder.layers.archive import compress_tar, settle_headers
from imagebuilder.layers.system import debs as order
from imagebuilder.layers.system import incremental
from imagebuilder.layers.system.split import split
from imagebuilder.plan import OsLayer, OsPart, UpperOsLayer
from imagebuilder.store import LayerRecord, Store, check_bytes, explained, link_or_copy

log = logging.getLogger(__name__)

HANDED = "imagebuilder"  # the folder, and in the root too, that holds what the build handed in
_TAR = "layer.tar"
_LIMIT = 3600.0  # seconds; a set of 240 packages takes one minute, a slow disk ten
_LOCK_AGAIN = "the lock was changed, or its archive changed a file: lock the recipe again"
_TAIL = 12  # lines of a log that an error shows
_DOCTOR = "`imagebuilder doctor` looks into it"
_EXTRACT = '--setup-hook=sh "$1/imagebuilder/hooks/extract.sh" "$1"'
_FINISH = ('--customize-hook=sh "$1/imagebuilder/hooks/finish.sh" "$1"',)
_FAILED_PACKAGE = re.compile(r"dpkg: error processing (?:package|archive) (\S+) \(")
_NO_NAMESPACE = re.compile(r"unshare(?: failed)?: .*not permitted|newuidmap|subuid")


def build_os_layer(
    layer: OsLayer, debs: Mapping[str, Path], store: Store, advance: Advance, tools: Tools = HOST
) -> LayerRecord:
    """Install the layer's packages into an empty root, with its user and an empty venv.

    Args:
        layer: what to install.
        debs: file of every package, by hex sha256.
        store: where the layer's blob and all temporary files go.
        advance: told the bytes of the layer's tar, which is there at the end.
        tools: where mmdebstrap and dpkg run.

    Raises:
        DamagedDownloadError: a package is not the locked one any more.
        BuildError: a package's own script failed, or the packages do not fit together.
        EnvironmentFault: mmdebstrap is missing, or this user may not make namespaces.

    """
    with _installed(layer, debs, store, tools) as tar:
        return compress_tar(tar, store, advance)


def build_os_parts(
    parts: Sequence[OsPart], debs: Mapping[str, Path], store: Store, advance: Advance, tools: Tools = HOST
) -> tuple[LayerRecord, ...]:
    """Install a system as `build_os_layer` does, and make a layer of each of its parts.

    Args:
        parts: all those of one system, as `plan.parts` gives them.
        debs: file of every package, by hex sha256.
        store: where the layers' blobs and all temporary files go.
        advance: told the bytes of the layers' tars, which are there at the end.
        tools: where mmdebstrap and dpkg run.

    Returns:
        The records of the parts, in their order.

    Raises:
        ImagebuilderError: as `build_os_layer` does.

    """
    homes = {deb.name: part.name for part in parts for deb in part.debs}
    with _installed(parts[0].system, debs, store, tools) as tar:
        tars = split(tar, homes)
        return tuple(compress_tar(cast("BinaryIO", tars[part.name]), store, advance) for part in parts)


@contextmanager
def _installed(layer: OsLayer, debs: Mapping[str, Path], store: Store, tools: Tools) -> Iterator[BinaryIO]:
    """Make a root of a layer's packages; gives its tar, or that of what changed in the base below."""
    with store.work() as folder, tools.open(folder, network=False) as sandbox:
        hand_in(layer, debs, folder, sandbox, tools)
        if isinstance(layer, UpperOsLayer):
            sandbox.copy_in(*incremental.lay_out(layer, store, folder, folder / HANDED))
            run_in_root(layer, sandbox, incremental.last_hooks(sandbox.folder / _TAR))
        else:
            run_in_root(layer, sandbox, _FINISH, _TAR)
        shutil.rmtree(folder / HANDED)
        sandbox.copy_out(_TAR)
        with (folder / _TAR).open("r+b") as stream:
            settle_headers(stream)
            yield stream


def hand_in(layer: OsLayer, debs: Mapping[str, Path], folder: Path, sandbox: Sandbox, tools: Tools) -> None:
    """Lay out what goes into a root: the hooks, the packages, their rounds, and apt's sources of the image.

    All is copied to `HANDED` in the folder, because a namespace's user may not be able to read this user's
    folders.

    Raises:
        DamagedDownloadError: a package is not the locked one any more.
        LockError: a file holds another package than it is locked as, or one is missing or too many.
        EnvironmentFault: mmdebstrap is missing, or this user may not make namespaces.

    """
    _require_namespaces(sandbox)
    handed = folder / HANDED
    _copy_in(layer, debs, handed)
    sandbox.copy_in(f"{HANDED}/debs", f"{HANDED}/hooks")
    if sandbox.is_root:
        _require_user_namespace(sandbox)
    _lay_out(handed, _packages(layer, sandbox))
    # The distribution's own mirrors, not the site's: those are nobody's business but this host's.
    mirrors = aptmirrors.default(layer.distribution, layer.suite, layer.architecture, tools)
    (handed / "sources").write_text(
        suites.sources(layer.distribution, layer.suite, mirrors), encoding="utf-8"
    )
    sandbox.copy_in(f"{HANDED}/rounds", f"{HANDED}/sources")


def relations(
    layer: OsLayer, debs: Mapping[str, Path], store: Store, tools: Tools = HOST
) -> tuple[order.Package, ...]:
    """Read what a layer's packages say of themselves.

    Raises:
        DamagedDownloadError: a package is not the locked one any more.
        EnvironmentFault: there is no dpkg.

    """
    with store.work() as folder, tools.open(folder, network=False) as sandbox:
        _copy_in(layer, debs, folder / HANDED)
        sandbox.copy_in(f"{HANDED}/debs")
        return _packages(layer, sandbox)


def run_in_root(layer: OsLayer, sandbox: Sandbox, last: Sequence[str], output: str = "") -> None:
    """Make a root of a layer's packages, and do in it what the last hooks say.

    Args:
        layer: what is installed.
        sandbox: where it was handed in.
        last: options of mmdebstrap that come after the packages are installed.
        output: in the sandbox's folder, the tar of the whole root; "" where only the hooks count.

    Raises:
        BuildError: a package's own script or a hook failed, or the packages do not fit together.
        EnvironmentFault: this host does not allow it.

    """
    # mmdebstrap's root goes to a folder that its user namespace can reach; only root's reaches here.
    env = _environment(layer) | ({"TMPDIR": str(sandbox.folder)} if sandbox.is_root else {})
    try:
        # Not in the sandbox's folder: a namespace's user may not be there, and find(1) wants to come back.
        sandbox.run(_command(layer, sandbox, last, output), timeout=_LIMIT, env=env, cwd=Path("/"))
    except CommandError as error:
        raise _explain(error, layer) from error


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
    """Read the packages' own fields, all with one command: in a container each one takes its time.

    Nothing of a package has run by then: one that is not what the lock says never does.
    """
    debs = sorted(layer.debs, key=lambda deb: deb.name)
    names = [deb.name for deb in debs]
    fields = " ".join(order.FIELDS)
    script = f'for deb; do dpkg-deb --field "$deb" {fields} || exit; printf "\\0"; done'
    files = [sandbox.folder / HANDED / "debs" / f"{name}.deb" for name in names]
    said = sandbox.run(["sh", "-c", script, "sh", *files], timeout=60 + len(files)).stdout
    packages = tuple(order.parse_package(control) for control in said.split("\0")[:-1])
    problems = order.problems(packages, debs)
    if layer.asked and not isinstance(layer, UpperOsLayer):
        always = suites.facts(layer.distribution, layer.suite).packages
        asked = [package.partition("=")[0] for package in (*always, *layer.asked)]
        problems += order.closure_problems(packages, asked)
    if problems:
        raise LockError.of([Problem(message=text, where="debs", hint=_LOCK_AGAIN) for text in problems])
    return packages


def _lay_out(folder: Path, packages: Sequence[order.Package]) -> None:
    """Write in which order the packages are installed."""
    for number, names in enumerate(order.rounds(packages)):
        lines = "".join(f"{name}.deb\n" for name in names)
        (folder / "rounds" / f"{number:02}").write_text(lines, encoding="utf-8")


def _command(layer: OsLayer, sandbox: Sandbox, last: Sequence[str], output: str) -> tuple[str, ...]:
    start: tuple[str, ...] = ("mmdebstrap", "--mode=unshare")
    # mmdebstrap removes and writes files in the new root itself, and would follow a package's links.
    hide: tuple[str, ...] = (f'--setup-hook=perl "$1/{HANDED}/hooks/{hooks.CONFINE}" around "$1"',)
    if sandbox.is_root:
        # By itself mmdebstrap makes no user namespace for root: this host's root would install.
        start, hide = (*_as_another_user(sandbox), "mmdebstrap", "--mode=root"), ()
    above = isinstance(layer, UpperOsLayer)
    return (
        *start,
        "--variant=custom",
        f"--architectures={layer.architecture}",
        "--format=tar" if output else "--format=null",
        # No update and no apt at all: there are no sources. No device nodes: an engine makes its own.
        # Whether the packages' programs run here was looked into before (emulation.py): mmdebstrap would want
        # a tool of its own for that. What it would put in place of a base's programs would count as changed.
        # No mounts: each command in the root gets its own.
        "--skip=update,check/qemu,chroot/mount,"
        + ("cleanup,chroot/policy-rc.d,chroot/start-stop-daemon" if above else "cleanup/apt,output/dev"),
        f"--setup-hook=copy-in {shlex.quote(str(sandbox.folder / HANDED))} /",
        *hide,
        *(incremental.setup_hooks(sandbox.folder) if above else (_EXTRACT,)),
        '--essential-hook=sh "$1/imagebuilder/hooks/install.sh" "$1"',
        *last,
        layer.suite,
        str(sandbox.folder / output) if output else os.devnull,
        # A source that is never read, in place of mmdebstrap's default.
        "deb copy:///imagebuilder ./",
    )


def _environment(layer: OsLayer) -> dict[str, str]:
    return {
        # Every time in the layer is the epoch itself, as in all other layers.
        "SOURCE_DATE_EPOCH": "0",
        # The one extended attribute that belongs to a file. Others are this host's (a label of SELinux) or
        # depend on its file system (access lists). No dev: mmdebstrap 1.5 packs the empty folder, 1.3 not.
        "TAR_OPTIONS": "--xattrs-include=security.capability --exclude=./dev",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        # What is unpacked already, but unknown to dpkg, is forced in; a base's changed settings stay.
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
    """Begin a command that root runs as a user without files on this host, who is root in a namespace."""
    return ("perl", str(sandbox.folder / HANDED / "hooks" / hooks.CONFINE), "tools", str(sandbox.folder))


def _require_user_namespace(sandbox: Sandbox) -> None:
    """Make sure that root can have one: a kernel or a container may refuse."""
    try:
        sandbox.run([*_as_another_user(sandbox), "true"], timeout=60)
    except CommandError as error:
        raise hooks.refused(error) or error from error


def _require_namespaces(sandbox: Sandbox) -> None:
    """Make sure, before minutes of work, that this user may make a root of their own."""
    try:
        probe = ("--version",) if sandbox.is_root else ("--unshare-helper", "true")
        sandbox.run(["mmdebstrap", *probe], timeout=60)
    except EnvironmentFault as error:
        raise EnvironmentFault(str(error), hint=suites.INSTALL_HINT.format("mmdebstrap")) from error
    except CommandError as error:
        raise EnvironmentFault(
            f"this user may not make user namespaces, which the OS layer needs:\n{error}",
            hint="install uidmap, give the user a range in /etc/subuid and /etc/subgid, or build as root; "
            + _DOCTOR,
        ) from error


def _explain(error: CommandError, layer: OsLayer) -> BuildError | EnvironmentFault:
    """Say which package failed, in the words of its own script."""
    lines = error.result.stderr.splitlines()
    where = f"{layer.distribution} {layer.suite}"
    for number, line in enumerate(lines):
        if found := _FAILED_PACKAGE.search(line):
            name = Path(found[1]).name.removesuffix(".deb")
            return BuildError(
                f"the package {name} could not be installed:\n" + _log_of(name, lines[: number + 2]),
                where=where,
                hint="leave it out of `apt:`, or lock another version of it",
            )
    if any("Exec format error" in line for line in lines):
        return emulation.fault(platforms.of(layer.architecture), "the kernel does not run its programs")
    if fault := hooks.refused(error, where):
        return fault
    if any(_NO_NAMESPACE.search(line) for line in lines):
        return EnvironmentFault(
            "this host does not let the OS layer have a root of its own:\n" + "\n".join(lines[-_TAIL:]),
            where=where,
            hint="in a container, give it `--security-opt seccomp=unconfined --security-opt "
            f"apparmor=unconfined`, or build outside of it; {_DOCTOR}",
        )
    # mmdebstrap's own progress says nothing; what a hook or a tool said last is the reason.
    noise = ("I: ", "W: skipping creation of ./dev/", "E: mmdebstrap failed", "E: setup failed")
    said = [line for line in lines if not line.startswith(noise)]
    return BuildError("making the system failed:\n" + "\n".join(said[-_TAIL:]), where=where, hint=_DOCTOR)


def _log_of(package: str, lines: Sequence[str]) -> str:
    """Keep what was said since dpkg began with a package, at most the last lines of it."""
    begins = (f"Setting up {package} ", f"Preparing to unpack {package}.deb ")
    start = max((number for number, line in enumerate(lines) if line.startswith(begins)), default=0)
    return "\n".join(lines[start:][-_TAIL:])
