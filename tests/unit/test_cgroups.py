"""Which layouts of control groups stop crun, and what moves the controllers; from the texts of real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.errors import EnvironmentFault
from imagebuilder.host import cgroups
from imagebuilder.host.cgroups import Hybrid
from imagebuilder.host.engine import explained

VERSION_1 = """\
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
"""
HYBRID = VERSION_1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n"
VERSION_2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime 0 0\n"
ENABLED = """\
#subsys_name	hierarchy	num_cgroups	enabled
cpu	1	1	1
blkio	7	1	1
memory	4	40	1
hugetlb	0	1	1
rdma	0	1	0
"""


def look(mounts: str, controllers: str, enabled: str = ENABLED) -> Hybrid | None:
    files = {
        Path("/proc/self/mounts"): mounts,
        Path("/proc/cgroups"): enabled,
        Path("/sys/fs/cgroup/unified/cgroup.controllers"): controllers,
    }
    return cgroups.look(lambda path: files.get(path, ""))


@pytest.mark.parametrize(
    ("mounts", "controllers"),
    [(VERSION_1, ""), (VERSION_2, "cpu memory"), (HYBRID, ""), (HYBRID, "\n"), ("", "")],
    ids=["version 1", "version 2", "hybrid without controllers", "an empty line", "nothing mounted"],
)
def test_other_layouts_are_left_alone(mounts: str, controllers: str) -> None:
    assert look(mounts, controllers) is None


def test_what_version_2_still_holds_is_mounted_as_version_1() -> None:
    hybrid = look(HYBRID, "hugetlb io\n")
    assert hybrid == Hybrid(movable=("hugetlb", "blkio"))
    assert str(hybrid) == "hybrid: version 2 in /sys/fs/cgroup/unified still holds hugetlb, blkio"
    assert hybrid.commands == (
        ("mkdir", "-p", "/sys/fs/cgroup/hugetlb"),
        ("mount", "-t", "cgroup", "-o", "hugetlb", "cgroup", "/sys/fs/cgroup/hugetlb"),
        ("mkdir", "-p", "/sys/fs/cgroup/blkio"),
        ("mount", "-t", "cgroup", "-o", "blkio", "cgroup", "/sys/fs/cgroup/blkio"),
    )
    assert "mount -t cgroup -o hugetlb cgroup /sys/fs/cgroup/hugetlb" in hybrid.remedy


@pytest.mark.parametrize("enabled", [ENABLED, ""], ids=["switched off", "a kernel without version 1"])
def test_a_controller_that_version_1_lacks_leaves_runc(enabled: str) -> None:
    hybrid = look(HYBRID, "rdma", enabled)
    assert hybrid == Hybrid(movable=(), fixed=("rdma",))
    assert 'runtime = "runc"' in hybrid.remedy


def test_the_engines_error_says_what_it_is_and_the_way_on() -> None:
    from docker.errors import APIError

    said = f"crun: {cgroups.COMPLAINT}, drop all controllers from cgroupv2: OCI runtime error"
    with pytest.raises(EnvironmentFault) as caught, explained("starting the nodes"):
        raise APIError("500 Server Error", explanation=said)
    problem = caught.value.problems[0]
    assert problem.message == f"starting the nodes failed: {said}"
    assert "`imagebuilder doctor` names the commands" in problem.hint
