"""`slim: true` with the suite's MPI: nothing needs what is left out, and Open MPI works over UCX itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from docker import DockerClient
from docker.models.containers import Container

from tests.integration.conftest import ROOT, Built

INSIDE = (ROOT / "tests" / "support" / "slim_inside.py").read_text()
# Each rank sums 8 MB with the other, so a message is larger than what UCX sends eagerly.
RING = """
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
total = numpy.zeros(1 << 20)
world.Allreduce(numpy.full(1 << 20, world.rank + 1.0), total)
beside = world.sendrecv(world.rank, dest=(world.rank + 1) % world.size, source=(world.rank - 1) % world.size)
assert (total == 3).all() and beside == 1 - world.rank
print(f"rank {world.rank} of {world.size}", flush=True)
"""
# Without these settings Open MPI refuses UCX on hosts without InfiniBand.
OVER_UCX = (
    *("mpirun", "-n", "2", "--oversubscribe", "--mca", "pml", "ucx", "--mca", "pml_ucx_verbose", "10"),
    *("--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"),
)
# A package with a manual, a licence and a list of changes.
LATER = """
cd $(mktemp -d)
mkdir -p later/DEBIAN later/usr/share/man/man1 later/usr/share/doc/later
printf 'Package: later\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n' >later/DEBIAN/control
for file in man/man1/later.1 doc/later/copyright doc/later/NEWS; do echo x >later/usr/share/$file; done
dpkg-deb --build --root-owner-group later >/dev/null
dpkg --install later.deb >/dev/null 2>&1
ls /usr/share/man/man1 /usr/share/doc/later
"""


@pytest.fixture(scope="module")
def container(built: Built, engine: DockerClient) -> Iterator[Container]:
    recipe = (ROOT / "recipes" / "cpu-mpi.yaml").read_text()
    reference = built(recipe.replace("name: cpu-mpi", "name: slim-mpi") + "slim: true\n")
    running = engine.containers.run(
        reference, ["sleep", "600"], detach=True, environment={"IMAGEBUILDER_SSHD": "off"}
    )
    yield running
    running.remove(force=True)


def said(container: Container, *command: str, user: str = "trainer") -> str:
    code, output = container.exec_run(list(command), user=user)
    assert isinstance(output, bytes)
    assert code == 0, output.decode()
    return output.decode()


def test_no_file_needs_what_is_left_out_and_the_rest_is_whole(container: Container) -> None:
    found = json.loads(said(container, "python", "-c", INSIDE, user="root"))
    gone = found.pop("left out")
    assert {"libLLVM-17.so.1", "libamdhip64.so.5", "libuct_rocm.so.0", "libz3.so.4"} <= set(gone)
    assert {name.partition(".so")[0] for name in gone} == {
        *("libLLVM-17", "libamd_comgr", "libamdhip64", "libhsa-runtime64", "libhsakmt", "libz3"),
        *("libucm_rocm", "libuct_rocm", "libucx_perftest_rocm"),
    }
    assert found == {"needed": [], "without licence": [], "RECORD": [], "manuals": 0}


def test_dpkg_apt_and_pip_find_nothing_missing(container: Container) -> None:
    assert said(container, "dpkg", "--audit") == ""
    assert "E:" not in said(container, "apt-get", "check", user="root")
    assert said(container, "python", "-m", "pip", "check") == "No broken requirements found.\n"


@pytest.mark.parametrize("transports", ["tcp,self", "sm,self"])
def test_open_mpi_works_over_ucx(container: Container, transports: str) -> None:
    output = said(container, *OVER_UCX, "-x", f"UCX_TLS={transports}", "python", "-c", RING)
    assert "created ucp context" in output
    assert [f"rank {rank} of 2" in output for rank in (0, 1)] == [True, True]


def test_a_package_that_is_installed_later_brings_its_licence_and_no_manual(container: Container) -> None:
    assert said(container, "sh", "-ec", LATER, user="root").split() == [
        "/usr/share/doc/later:",
        "copyright",
        "/usr/share/man/man1:",
    ]
