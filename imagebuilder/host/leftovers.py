"""Remove containers and networks: at the end of a run, and those of earlier runs that were killed."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import requests
from docker.errors import APIError, DockerException, NotFound

from imagebuilder.core import labels as label_names
from imagebuilder.host.engine import Engine, explained

log = logging.getLogger(__name__)

# A container also has its image's labels, so labels alone do not prove who started it. Its name does not come
# from the image: name and label have to agree.
_NAME = "imagebuilder-"
_LONGEST_RUN = 3600
# Seconds that the engine may take to remove a container after it has begun to.
_REMOVAL = 60


def labels(run_id: str, patience: float) -> dict[str, str]:
    """Make the labels of everything that a run starts."""
    return {
        label_names.RUN: run_id,
        label_names.RUN_OWNER: f"{_host()}:{os.getpid()}-{_start_of(os.getpid())}",
        label_names.RUN_DEADLINE: str(int(time.time() + _LONGEST_RUN * max(patience, 1.0))),
    }


def name(run_id: str) -> str:
    """Return the name of what a run starts; further things have names that continue after a `-`."""
    return f"{_NAME}{run_id}"


def sweep(engine: Engine) -> None:
    """Remove what a run left behind if its process is dead or its deadline is over.

    Raises:
        EnvironmentFault: the engine cannot list its containers and networks.

    """
    with explained("looking for what earlier runs left"):
        things = _containers(engine, label_names.RUN) + _networks(engine, label_names.RUN)
        labelled = [(thing, _labels(thing)) for thing in things]
        dead = {
            of[label_names.RUN]
            for thing, of in labelled
            if _is_of(thing, of[label_names.RUN]) and is_left_behind(of)
        }
    for run_id in sorted(dead):
        log.info("removing what run %s left behind", run_id)
        remove(engine, run_id)


def is_left_behind(of: dict[str, str]) -> bool:
    """Return whether the labels of a container or network show that its run is over."""
    host, _, process = of.get(label_names.RUN_OWNER, "").partition(":")
    deadline = of.get(label_names.RUN_DEADLINE, "")
    over = deadline.isdecimal() and int(deadline) < time.time()
    return over or (host == _host() and not _is_alive(process))


def remove(engine: Engine, run_id: str) -> None:
    """Remove everything that a run started, found by label and name: also what was made as it was stopped.

    Signals are ignored meanwhile: a second Ctrl-C does not interrupt the removal.
    """
    label = f"{label_names.RUN}={run_id}"
    with _uninterrupted(), contextlib.ExitStack() as problems:
        problems.enter_context(_reported(f"what run {run_id} started"))
        for container in (thing for thing in _containers(engine, label) if _is_of(thing, run_id)):
            _try(partial(_remove_container, container), f"container {container.name}")
        for network in (thing for thing in _networks(engine, label) if _is_of(thing, run_id)):
            _try(network.remove, f"network {network.name}")


def _remove_container(container: Any) -> None:
    try:
        container.remove(force=True, v=True)
    except APIError as error:
        # The engine is already removing it: an auto-remove container has just ended.
        if error.status_code != HTTPStatus.CONFLICT:
            raise
        container.wait(condition="removed", timeout=_REMOVAL)


def _try(action: Callable[[], object], what: str) -> None:
    with contextlib.suppress(NotFound), _reported(what):
        action()


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    try:
        yield
    except NotFound:
        raise
    except (DockerException, requests.RequestException) as error:
        log.warning("%s could not be removed: %s; the next run tries again", what, error)


def _containers(engine: Engine, label: str) -> list[Any]:
    return list(engine.client.containers.list(all=True, filters={"label": label}, ignore_removed=True))


def _networks(engine: Engine, label: str) -> list[Any]:
    return list(engine.client.networks.list(filters={"label": label}))


def _is_of(thing: Any, run_id: str) -> bool:
    """Return whether a container or network has a name that the run gave."""
    return bool(run_id) and f"{thing.name}-".startswith(f"{name(run_id)}-")


def _labels(thing: Any) -> dict[str, str]:
    return thing.attrs.get("Labels") or thing.attrs.get("Config", {}).get("Labels") or {}


def _host() -> str:
    """Return a hash that identifies this boot of this host and this pid namespace."""
    words = [platform.node()]
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        words = [boot, str(Path("/proc/self/ns/pid").readlink())]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _start_of(pid: int) -> str:
    """Return when a process started, in the kernel's ticks: pids are reused."""
    try:
        # The second field is the program's name in parentheses and may hold spaces; the start is the 22nd.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "0"


def _is_alive(process: str) -> bool:
    pid, _, start = process.partition("-")
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # alive, but another user's
    return _start_of(int(pid)) == start


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore signals; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
