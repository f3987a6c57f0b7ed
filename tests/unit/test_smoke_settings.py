"""Settings of a job or a host that are baked into an image: which they are, and where they are found."""

from __future__ import annotations

import pytest

from imagebuilder import catalog
from imagebuilder.recipe import jobsettings
from imagebuilder.smoke.checks import settings

ENV = "the image's ENV"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "NCCL_SOCKET_IFNAME",
            "it chooses NCCL's interfaces, devices or algorithms, which differ between hosts",
        ),
        ("GLOO_SOCKET_IFNAME", "it names an interface of one host"),
        ("UCX_NET_DEVICES", "it names the network devices of one host"),
        ("OMPI_MCA_btl_tcp_if_include", "it names interfaces of one host"),
        ("MASTER_ADDR", "it is the address where the ranks of one job meet"),
        ("RANK", "it is one rank's number"),
        ("WORLD_SIZE", "it is the number of ranks of one job"),
        ("CUDA_VISIBLE_DEVICES", "it hides GPUs of the host from every job"),
        ("NCCL_VERSION", ""),
        ("OMPI_MCA_smsc", ""),
        ("OMP_NUM_THREADS", ""),
        ("PATH", ""),
    ],
)
def test_what_belongs_to_a_job_or_a_host(name: str, why: str) -> None:
    assert jobsettings.reason(name) == why


def test_no_component_of_the_catalog_sets_one() -> None:
    names = {name for component in catalog.load().values() for name in component.env}
    assert {"OMPI_ALLOW_RUN_AS_ROOT"} < names
    assert [name for name in sorted(names) if jobsettings.reason(name)] == []


def test_each_is_named_with_its_place_and_what_to_do() -> None:
    (found,) = settings.judge(
        [(ENV, "LANG", "C"), (ENV, "GLOO_SOCKET_IFNAME", "ib0"), (ENV, "UCX_TLS", "rc")], {"UCX_TLS": "x"}
    )
    assert found.message == "the image's ENV sets GLOO_SOCKET_IFNAME: it names an interface of one host"
    assert found.remedy == (
        "leave it out of the image and give it to the job; if every job and host may have it, allow it in "
        "the recipe: `allow_env: [{name: GLOO_SOCKET_IFNAME, reason: ...}]`"
    )


def test_files_are_read_as_their_readers_do() -> None:
    text = (
        'NCCL_STRAY=1\n@file /etc/environment\nexport RANK=1\n# WORLD_SIZE=2\nGLOO_SOCKET_IFNAME=""\n?\n'
        "@file /etc/nccl.conf\nNCCL_DEBUG=INFO\n@file /etc/openmpi/openmpi-mca-params.conf\n"
        "btl_tcp_if_include = eth0\nbtl_tcp_if_exclude =\n#oob_tcp_if_include = eth0\n\x1b[31m = 1\n"
    )
    assert list(settings.in_files(text)) == [
        ("/etc/environment", "RANK", "1"),
        ("/etc/environment", "GLOO_SOCKET_IFNAME", ""),
        ("/etc/nccl.conf", "NCCL_DEBUG", "INFO"),
        ("/etc/openmpi/openmpi-mca-params.conf", "OMPI_MCA_btl_tcp_if_include", "eth0"),
    ]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("GLOO_SOCKET_IFNAME", ""),
        ("NCCL_DEBUG", ""),
        ("MASTER_ADDR", ""),
        ("CUDA_VISIBLE_DEVICES", "empty, it hides all GPUs from every job"),
        ("TORCH_NCCL_BLOCKING_WAIT", "empty, it is no number, and torch ends with an error"),
        ("PET_NNODES", "empty, it is an option without a value"),
    ],
)
def test_an_empty_value_counts_only_where_it_does_something(name: str, why: str) -> None:
    messages = [found.message for found in settings.judge([(ENV, name, "")], {})]
    assert messages == ([f"{ENV} sets {name}: {why}"] if why else [])
