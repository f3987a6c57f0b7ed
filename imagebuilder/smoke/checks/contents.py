"""Packages, user, files and services, checked with testinfra."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from imagebuilder.plan import VENV
from imagebuilder.smoke.checks import container_reason
from imagebuilder.smoke.nodes import foreign
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

if TYPE_CHECKING:
    from testinfra.host import Host

_START_SECONDS = 20
_SECONDS = 30
_ENTRYPOINT = "/usr/local/bin/imagebuilder-entrypoint"
_PACKAGES = ("openssh-server", "openssh-client", "tini")


def run(session: Session) -> Passed:
    # Late: testinfra imports much of pytest.
    from imagebuilder.smoke.inspection import inspect

    if session.target.origin == "foreign":
        return _foreign(session)
    findings: list[Finding] = list(_entrypoint(session))
    versions: dict[str, dict[str, str]] = {}
    until = time.monotonic() + _START_SECONDS * session.options.patience
    for index, node in enumerate(session.nodes):
        host = inspect(session, index)
        if not _await_sshd(session, host, index, until):
            findings.append(_no_sshd(session, index))
        if session.cluster.state(index)[0]:
            packages = {name: host.package(name) for name in _PACKAGES}
            versions[node.name] = {name: p.version if p.is_installed else "" for name, p in packages.items()}
            problems = [*_packages(versions[node.name]), *_user_and_files(session, host)]
            findings += [Finding(node=node.name, message=text, remedy=remedy) for text, remedy in problems]
    if findings:
        raise CheckFailed.because(*findings)
    return Passed(
        summary=f"sshd listens on port {session.target.ssh_port}, {session.target.ssh_user} can write to "
        "the venv, no host key in the image",
        evidence=versions,
    )


def _entrypoint(session: Session) -> Iterator[Finding]:
    """Yield a finding if a derived image has another entrypoint than its base."""
    found = session.target.entrypoint
    if session.target.origin == "derived" and _ENTRYPOINT not in found:
        yield Finding(
            node="",
            message=f"the entrypoint is {shlex.join(found)[:200] or 'empty'}, not that of the base: no job's "
            "keys are taken, and no sshd is started",
            remedy="leave ENTRYPOINT out of the Dockerfile, and put the program into CMD",
        )


def _foreign(session: Session) -> Passed:
    """Check an image that imagebuilder did not build: sshd, if it has one, and private keys in layers."""
    findings: list[Finding] = []
    target = session.target
    until = time.monotonic() + _START_SECONDS * session.options.patience
    for index, node in enumerate(session.nodes):
        if target.has_ssh and not _await_port(session, index, until):
            log = session.run(index, ("tail", "-n", "5", foreign.LOG), timeout=_SECONDS).stdout.strip()
            findings.append(
                Finding(
                    node=node.name,
                    message=f"sshd does not start on port {target.ssh_port}; it says: {log or '(nothing)'}",
                    remedy="a job that starts sshd in this image, as the MPI operator does, gets the same: "
                    "add what it lacks in the Dockerfile",
                )
            )
    listed = session.run(0, ("sh", "-c", "ls /etc/ssh/ssh_host_*_key"), timeout=_SECONDS)
    if keys := listed.stdout.split():
        message = f"the image holds private host keys: {', '.join(keys)[:300]}"
        remedy = "everybody who can pull the image could pose as its nodes: delete them in the same RUN"
        findings.append(Finding(node="", message=message, remedy=remedy))
    if findings:
        raise CheckFailed.because(*findings)
    login = f"sshd listens on port {target.ssh_port}" if target.has_ssh else "no ssh and sshd"
    return Passed(
        summary=f"Python is {session.cluster.python[0]}, the user {target.ssh_user or 'has no name'}; "
        f"{login}, no host key in the image"
    )


def _await_port(session: Session, index: int, until: float) -> bool:
    """Wait for sshd in an image that may lack every tool: the kernel's tables list what listens (0A)."""
    pattern = f":{session.target.ssh_port:04X} [0-9A-F]*:0000 0A"
    argv = ("grep", "-q", pattern, "/proc/net/tcp", "/proc/net/tcp6")
    while session.cluster.state(index)[0]:
        if session.run(index, argv, timeout=_SECONDS).stdout == "" and session.steps[-1].exit_code == 0:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.25)
    return False


def _packages(versions: dict[str, str]) -> list[tuple[str, str]]:
    return [
        (f"the package {name} is not installed", "build the image again from its lock")
        for name, version in versions.items()
        if not version
    ]


def _user_and_files(session: Session, host: Host) -> list[tuple[str, str]]:
    problems = []
    user = session.target.ssh_user
    if not host.user(user).exists:
        problems.append(
            (f"the user `{user}`, which the image's labels name, does not exist", "see `ssh:` in the recipe")
        )
    running = host.run("id -un").stdout.strip()
    if host.user(user).exists and running != user:
        remedy = f"end the Dockerfile with `USER {user}`, as in `USER root`, `RUN ...`, `USER {user}`"
        text = f"the image's user is `{running}`, and its base's sshd and keys are those of `{user}`"
        problems.append((text, remedy))
    if not host.file(VENV).is_directory:
        problems.append((f"{VENV} is missing", "the image lacks its venv: build it again"))
    elif host.run("test -w %s", f"{VENV}/bin").rc != 0:
        remedy = (
            "the venv must have group 0 and mode 0775, and the user must be in group 0, so that pip works"
        )
        problems.append((f"the image's user cannot write to {VENV}", remedy))
    # Keys in the image itself, not those that the entrypoint made or copied at start.
    keys = host.run("ls /etc/ssh/ssh_host_*_key").stdout.split()
    if keys:
        remedy = "everybody who can pull the image could pose as its nodes: remove the keys where it is built"
        problems.append((f"the image holds private host keys: {', '.join(keys)}", remedy))
    return problems


def _await_sshd(session: Session, host: Host, index: int, until: float) -> bool:
    """Wait for sshd, which has just been started; uses iproute2's ss, which the image has."""
    while session.cluster.state(index)[0]:
        said = host.run("ss -Hltn sport = :%s", str(session.target.ssh_port))
        if said.rc == 0 and said.stdout.strip():
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.25)
    return False


def _no_sshd(session: Session, index: int) -> Finding:
    running, tail = session.cluster.state(index)
    if not running:
        return Finding(
            node=session.nodes[index].name,
            message=f"the container ended by itself; its log: {tail or '(empty)'}",
            remedy="without a command, the entrypoint must keep sshd in the foreground",
        )
    return Finding(
        node=session.nodes[index].name,
        message=f"nothing listens on port {session.target.ssh_port}: sshd does not run; the log: "
        f"{tail or '(empty)'}",
        remedy="the image's entrypoint starts sshd: keep it, and run it as the image's user",
    )


CHECK = Check(
    name="contents",
    order=10,
    title="packages, user, venv and sshd in each container",
    criterion=f"sshd listens on the labelled port within {_START_SECONDS} s; the packages, the user and a "
    "venv that the user can write to are there; no private host key is in the image. An image that "
    "imagebuilder did not build needs no sshd, but one that it has must start",
    run=run,
    skip=container_reason,
    required=lambda promise: promise.started,
)
