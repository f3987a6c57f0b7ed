"""CUDA 12 with Debian's nvcc: what it compiles, alone and for torch, loads in the image; 20 GB of disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from docker import DockerClient
from docker.models.containers import Container

from tests.integration.conftest import ROOT, Built
from tests.integration.test_compiled import CUDA, said

EXTENSIONS = '''
import torch
from torch.utils import cpp_extension

plain = """
#include <torch/extension.h>
torch::Tensor squares(torch::Tensor numbers) { return numbers * numbers; }
"""
module = cpp_extension.load_inline("squares", plain, functions=["squares"], verbose=True)
print("sum", int(module.squares(torch.arange(1000)).sum()))

declared = """
#include <torch/extension.h>
torch::Tensor cubes(torch::Tensor numbers);
"""
kernel = """
#include <torch/extension.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
__global__ void cube(const float *in, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] * in[i] * in[i];
}
torch::Tensor cubes(torch::Tensor numbers) {
    auto out = torch::empty_like(numbers);
    if (!numbers.is_cuda()) return out.copy_(numbers * numbers * numbers);
    c10::cuda::CUDAGuard guard(numbers.device());
    int count = numbers.numel();
    cube<<<(count + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        numbers.data_ptr<float>(), out.data_ptr<float>(), count);
    return out;
}
"""
module = cpp_extension.load_inline(
    "cubes", declared, kernel, functions=["cubes"], with_cuda=True, verbose=True
)
print("cubes", module.cubes(torch.arange(4.0)).tolist())
print("file", module.__file__)
'''


@pytest.fixture(scope="module")
def devel(built: Built, engine: DockerClient) -> Iterator[Container]:
    reference = built(ROOT / "recipes" / "cuda12-torch-devel.yaml")
    container = engine.containers.run(
        reference,
        ["sleep", "3600"],
        detach=True,
        network_mode="none",
        # Without a GPU there is none to take the architecture from.
        environment={"IMAGEBUILDER_SSHD": "off", "TORCH_CUDA_ARCH_LIST": "9.0"},
    )
    yield container
    container.remove(force=True)
    engine.images.remove(str(engine.images.get(reference).id), force=True)


def test_nvcc_is_the_suite_s_and_what_it_makes_runs(devel: Container) -> None:
    assert "release 12.4, V12.4.131" in said(devel, "nvcc --version")
    assert " 13.3." in said(devel, "gcc --version").splitlines()[0]
    said(devel, f"cat >squares.cu <<'END'\n{CUDA}\nEND\nnvcc -arch=sm_90 squares.cu -o static")
    assert said(devel, "./static") == "runtime 12040\n"
    said(devel, "nvcc -arch=sm_90 -cudart shared squares.cu -o shared")
    assert "libcudart.so.12 => /lib/x86_64-linux-gnu/libcudart.so.12" in said(devel, "ldd shared")
    assert said(devel, "./shared") == "runtime 12040\n"


def test_extensions_of_torch_compile_and_load_with_a_kernel_too(devel: Container) -> None:
    text = said(devel, f"cat >extensions.py <<'END'\n{EXTENSIONS}\nEND\npython extensions.py 2>&1")
    assert "sum 332833500\n" in text
    assert "cubes [0.0, 1.0, 8.0, 27.0]\n" in text
    place = text.rpartition("file ")[2].strip()
    assert ".nv_fatbin" in said(devel, f"readelf -SW {place}")
