"""DeepSpeed, compiled against the image's torch: ZeRO in two containers over pdsh, with no compiler there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from imagebuilder.store import Store
from tests.integration.test_examples import run
from tests.soak.test_compiled_frameworks import Job, put, started
from tests.support.pods import SCRIPTS

SCRIPT = f"{SCRIPTS}/deepspeed_train.py"
START = r"printf '{} slots={}\n{} slots={}\n' >/tmp/hosts; deepspeed --hostfile /tmp/hosts"
ON_BOTH = START.format("node0", 1, "node1", 1)
ADAM = {1: "fused_adam_op", 2: "cpu_adam_op", 3: "cpu_adam_op"}
OPERATORS = ("CPU_ADAM", "CPU_ADAGRAD", "CPU_LION", "FUSED_ADAM")


@pytest.fixture(scope="module")
def deepspeed(store: Store, engine: DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    yield from started(put(tmp_path_factory.mktemp("deepspeed"), "cpu-deepspeed"), store, engine)


@pytest.mark.parametrize(
    ("options", "stage", "slots"),
    [
        ("", 1, 1),
        ("", 2, 1),
        ("", 3, 1),
        ("", 2, 2),
        # Its own default names the interface eth0, which every container has.
        ("--launcher openmpi", 1, 1),
    ],
)
def test_deepspeed_trains_on_two_nodes_and_compiles_nothing(
    deepspeed: Job, options: str, stage: int, slots: int
) -> None:
    size = 2 * slots
    start = START.format("node0", slots, "node1", slots)
    assert deepspeed.answer(f"{start} {options} {SCRIPT} --stage {stage}") == {
        "stage": stage,
        "size": size,
        "total": [size * (size + 1) / 2] * 4,
        "hosts": ["node0", "node1"],
        "operators": sorted(["deepspeed_shm_comm_op", ADAM[stage]]),
        "compiled": [],
        "equal": True,
        "learnt": True,
        "as alone": True,
    }


def test_the_image_has_no_compiler_and_all_operators(deepspeed: Job) -> None:
    assert deepspeed.run("command -v gcc cc g++ c++ clang nvcc").stdout == ""
    code = "from deepspeed.git_version_info import installed_ops; print(installed_ops)"
    said = deepspeed.run(f"python -c '{code}'").stdout.splitlines()[-1]
    operators = [name for name, built in ast.literal_eval(said).items() if built]
    assert sorted(operators) == ["cpu_adagrad", "cpu_adam", "cpu_lion", "deepspeed_shm_comm", "fused_adam"]


def test_an_operator_of_another_torch_is_refused_where_it_is_loaded(deepspeed: Job) -> None:
    # As if the wheel came from an image with torch 2.12.
    code = (
        "from deepspeed import git_version_info as info; info.torch_info['version'] = '2.12'; "
        "from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()"
    )
    said = deepspeed.run(f'python -c "{code}"')
    assert said.code == 1
    assert "Install torch version=2.12, Runtime torch version=2.13" in said.stderr


def test_a_rank_that_fails_ends_the_job(deepspeed: Job) -> None:
    result = deepspeed.run(f"{ON_BOTH} {SCRIPT} --fail")
    assert result.code == 3, result.stdout[-2000:] + result.stderr[-2000:]
    assert "node1: ssh exited with exit code 3" in result.stderr
    assert "answer" not in result.stdout


@pytest.mark.parametrize(
    ("hosts", "code", "cause"),
    [
        # The first host is tried before anything starts. The others are left to pdsh, and node 0 waits for
        # them as long as DeepSpeed lets it.
        (("node9", "node0"), 1, "host=node9 was not reachable via ssh"),
        (("node0", "node9"), 255, "pdsh@node0: node9: ssh exited with exit code 255"),
    ],
)
def test_a_host_that_cannot_be_reached_is_named_in_time(
    deepspeed: Job, hosts: tuple[str, str], code: int, cause: str
) -> None:
    limits = "export IMAGEBUILDER_WAIT=5; cd $(mktemp -d); echo DEEPSPEED_TIMEOUT=1 >.deepspeed_env"
    result = deepspeed.run(f"{limits}; {START.format(hosts[0], 1, hosts[1], 1)} {SCRIPT}")
    assert result.code == code, result.stdout[-2000:] + result.stderr[-2000:]
    assert cause in result.stderr


def test_a_source_for_another_torch_is_refused_before_it_is_compiled(store: Store, tmp_path: Path) -> None:
    recipe = put(tmp_path, "cpu-deepspeed", ("[torch, ", '["torch>=2.14", '))
    said = run("lock", recipe, store=store, code=4).stderr
    assert "deepspeed is compiled with `torch>=2.14`, and the image has torch 2.13.0" in said


def test_an_operator_for_a_torch_of_the_old_abi_ends_the_build(store: Store, tmp_path: Path) -> None:
    # torch's wheels had it up to 2.6. One operator is enough.
    others = [(f'DS_BUILD_{name}: "1"', f'DS_BUILD_{name}: "0"') for name in OPERATORS]
    old = ('DS_ENABLE_NINJA: "1"', 'CXXFLAGS: "-O2 -g0 -D_GLIBCXX_USE_CXX11_ABI=0"')
    recipe = put(tmp_path, "cpu-deepspeed", old, *others)
    run("lock", recipe, store=store)
    said = run("build", recipe, "--progress", "lines", store=store, code=7).stderr
    assert "deepspeed_shm_comm_op.cpython-311-x86_64-linux-gnu.so needs the symbol c10::" in said
    assert "which no library of the image has (it is linked with libc10.so, libtorch" in said
