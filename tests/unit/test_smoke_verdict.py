"""The rule that every gate and verb holds a smoke report to: which checks an image has to pass."""

from __future__ import annotations

import pytest

from imagebuilder.smoke.verdict import required

TORCH, MPI, MPICH, GCC = ("torch", "2.10.0"), ("openmpi", "5.0.7"), ("mpich", "4.3"), ("gcc", "14")

# What each of them adds: nobody takes a check from this list by a change of the check alone.
ALWAYS = frozenset({"clock", "disk", "limits", "link", "pins"})
IN_CONTAINERS = frozenset({"contents", "environment", "fabric", "names", "settings", "ssh"})
WITH_TORCH = frozenset({"collectives", "control", "failure", "rendezvous", "replicas", "training"})
WITH_MPI = frozenset({"failure", "mpirun"})


@pytest.mark.parametrize("runtime", ["docker", "podman", "process"])
@pytest.mark.parametrize("mode", ["cpu", "one-gpu-shared", "multi-gpu"])
@pytest.mark.parametrize("pins", [(), (TORCH,), (MPI,), (MPICH,), (GCC,), (TORCH, MPI, GCC)])
def test_required_checks_follow_from_the_pins_and_from_where_they_run(
    runtime: str, mode: str, pins: tuple[tuple[str, str], ...]
) -> None:
    contained = runtime != "process"
    wanted = ALWAYS | (IN_CONTAINERS if contained else frozenset())
    if TORCH in pins:
        wanted |= WITH_TORCH | ({"transport"} if mode != "cpu" else frozenset())
    if contained and (MPI in pins or MPICH in pins):
        wanted |= WITH_MPI
    if GCC in pins:
        wanted |= {"toolchain"}
    assert required(runtime, mode, dict(pins)) == wanted
