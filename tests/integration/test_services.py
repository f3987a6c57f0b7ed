"""scripts/services, in a network of its own so that the host's stays as it is."""

from __future__ import annotations

from pathlib import Path

from imagebuilder.core.process import run

SERVICES = Path(__file__).resolve().parents[2] / "scripts" / "services"

# In one namespace, one after the other; what each step prints is looked at below.
SCRIPT = r"""
set -eu
ip link set lo up
services="$1 --own --folder $2"
engine() { sed -n 's/export DOCKER_HOST=//p'; }
$services start >first
DOCKER_HOST=$(engine <first); export DOCKER_HOST
echo "store: $(docker info --format '{{.DriverStatus}}')"
$services start >second
cmp first second && echo "started once"
pid=$(cat "$(dirname "${DOCKER_HOST#unix://}")/docker.pid")
kill -9 "$pid"
while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
# The pid of a killed engine may belong to somebody else by now.
echo $$ >"$(dirname "${DOCKER_HOST#unix://}")/docker.pid"
$services start >third
cmp first third && echo "started after a crash: $(docker info --format '{{.ID}}' | wc -l)"
$services status >status && echo "both answer"
$services stop
kill -0 $$ && echo "nobody else was ended"
unset DOCKER_HOST
if $services status | grep -q "none answers"; then echo "stopped"; fi
"""


def test_starts_once_survives_a_crash_and_stops(short_folder: Path, tmp_path: Path) -> None:
    folder = short_folder / "services"
    command: list[str | Path] = ["unshare", "--net", "bash", "-c", SCRIPT, "bash", SERVICES, folder]
    said = run(command, timeout=300, cwd=tmp_path).stdout
    assert "io.containerd.snapshotter" in said
    for line in (
        "started once",
        "started after a crash: 1",
        "both answer",
        "nobody else was ended",
        "stopped",
    ):
        assert line in said.splitlines()
    assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]
