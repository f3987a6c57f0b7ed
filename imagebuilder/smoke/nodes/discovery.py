"""Find out what a node has that no label tells: its user, a Python with a framework, ssh and sshd.

Images that imagebuilder did not build keep Python anywhere: in a venv, in a conda prefix, in the system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.smoke.nodes.cluster import Command, Node

_SECONDS = 120.0
_LINE = "@found "
_NUMBERS = frozenset({"uid", "cores", "memory"})
_PATH = re.compile(r"/[\x21-\x7e]{0,1000}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
# payload/common.py and its users need it.
_OLDEST = "3.9"

# The first Python that has a framework counts, else the first one that runs: whoever starts a job names it.
_SCRIPT = r"""
folder=$1
try() {
    timeout 30 "$1" -c '
import importlib.util, sys
if sys.version_info < (3, 9): sys.exit(1)
names = open(sys.argv[1]).read().split()
sys.exit(0 if any(importlib.util.find_spec(name) for name in names) else 3)
' "$folder/frameworks.txt" >/dev/null 2>&1
}
plain= python=
for path in "${VIRTUAL_ENV:-}/bin/python" "${CONDA_PREFIX:-}/bin/python" "$(command -v python)" \
    "$(command -v python3)" ~/.venv/bin/python /venv/bin/python /opt/*/bin/python /opt/*/*/bin/python \
    /app/.venv/bin/python /workspace/.venv/bin/python /usr/local/bin/python3 /usr/bin/python3; do
    case $path in /bin/python) continue ;; esac
    [ -x "$path" ] || continue
    try "$path"
    case $? in
        0) python=$path; break ;;
        3) [ -n "$plain" ] || plain=$path ;;
    esac
done
echo "@found user $(id -un 2>/dev/null)"
echo "@found uid $(id -u)"
echo "@found home $(cd ~ 2>/dev/null && pwd)"
echo "@found host $(uname -n)"
echo "@found cores $(nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"
echo "@found memory $(sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo)"
echo "@found python ${python:-$plain}"
echo "@found ssh $(command -v ssh)"
for path in "$(command -v sshd)" /usr/sbin/sshd /usr/local/sbin/sshd; do
    [ -x "$path" ] && echo "@found sshd $path" && break
done
true
"""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What a node has; empty where it has nothing.

    Attributes:
        user, uid: whose processes run there. The name is empty if the system has none for the number.
        home: the user's home folder.
        host: the node's own host name.
        python: path of the interpreter that the test uses.
        ssh, sshd: paths of both programs.
        cores, memory_bytes: of the host; 0 if unknown.

    """

    user: str
    uid: int
    home: str
    host: str
    python: str
    ssh: str
    sshd: str
    cores: int = 0
    memory_bytes: int = 0


def discover(node: Node, folder: str) -> NodeFacts:
    """Ask a node. Its answers are checked: an image may print anything.

    Raises:
        InputError: no shell runs there, or it has no Python.

    """
    outcome = node.run(Command(argv=("sh", "-c", _SCRIPT, "sh", folder), timeout=_SECONDS))
    found = parse(outcome.stdout)
    if not outcome.ok or not found.get("uid"):
        raise InputError(
            f"it could not be asked what it has: {printable(outcome.last_words)}",
            where=node.name,
            hint="the test needs `sh`, `timeout` (coreutils) and Python there",
        )
    facts = NodeFacts(
        user=_matching(_NAME, found.get("user", "")),
        uid=int(found["uid"]),
        home=_matching(_PATH, found.get("home", "")),
        host=_matching(_NAME, found.get("host", "")) or node.name,
        python=_matching(_PATH, found.get("python", "")),
        ssh=_matching(_PATH, found.get("ssh", "")),
        sshd=_matching(_PATH, found.get("sshd", "")),
        cores=int(found.get("cores", 0)),
        memory_bytes=int(found.get("memory", 0)) << 10,
    )
    if not facts.python:
        raise InputError(
            f"no Python of at least {_OLDEST} was found there, neither on PATH nor in a venv or conda prefix",
            where=node.name,
            hint="set `ENV PATH=/where/it/is/bin:$PATH` in the image's Dockerfile",
        )
    return facts


def parse(text: str) -> dict[str, str]:
    r"""Read the script's answers. An answer that should be a number, but is not, is left out.

    >>> parse("@found uid 1000\nwelcome\n@found python /opt/conda/bin/python")
    {'uid': '1000', 'python': '/opt/conda/bin/python'}
    """
    rows = (line.removeprefix(_LINE).partition(" ") for line in text.splitlines() if line.startswith(_LINE))
    return {
        key: value for key, _, value in rows if key not in _NUMBERS or re.fullmatch(r"[0-9]{1,10}", value)
    }


def _matching(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) else ""
