"""Compile and run with the image's compilers: C, C++, torch.compile, and with nvcc CUDA and an extension.

Triton's assembler is asked which GPUs it knows: torch.compile needs it for them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import common

# The sum of the squares of the numbers below 1000: a compiler that optimises wrongly gives another one.
ANSWER = "332833500"

C = r"""
#include <stdio.h>
#include <stdlib.h>
static long square(const void *number) { long n = *(const long *)number; return n * n; }
int main(void) {
    long (*call)(const void *) = square, sum = 0, *numbers = malloc(1000 * sizeof *numbers);
    if (!numbers) return 1;
    for (long i = 0; i < 1000; i++) numbers[i] = i;
    for (long i = 0; i < 1000; i++) sum += call(&numbers[i]);
    free(numbers);
    return printf("%ld", sum) > 0 ? 0 : 1;
}
"""
# Threads, exceptions and the standard library: what needs libstdc++ and libgcc at run time.
CPP = r"""
#include <filesystem>
#include <iostream>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>
int main() {
    std::vector<long> squares(1000);
    std::thread worker([&] { for (long i = 0; i < 1000; i++) squares[i] = i * i; });
    worker.join();
    try {
        if (std::filesystem::exists("/no/such/file")) return 1;
        throw std::runtime_error("expected");
    } catch (const std::exception &) {
        std::cout << std::accumulate(squares.begin(), squares.end(), 0L);
    }
}
"""
CUDA = r"""
#include <cstdio>
__global__ void squares(long *out) { long i = threadIdx.x; out[i] = i * i; }
int main() {
    long *out, sum = 0;
    if (cudaMallocManaged(&out, 1000 * sizeof *out) != cudaSuccess) return 1;
    squares<<<1, 1000>>>(out);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    for (int i = 0; i < 1000; i++) sum += out[i];
    return std::printf("%ld", sum) > 0 ? 0 : 1;
}
"""
EXTENSION = r"""
#include <torch/extension.h>
torch::Tensor squares(torch::Tensor numbers) { return numbers * numbers; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("squares", &squares); }
"""
COMPILED = r"""
import torch
def squares(numbers): return (numbers * numbers).sum()
print(int(torch.compile(squares)(torch.arange(1000))))
"""
EXTENSION_TEST = (
    "import torch, imagebuilder_extension as module; print(int(module.squares(torch.arange(1000)).sum()))"
)


def main() -> None:
    parser = common.parser()
    parser.add_argument("--seconds", type=int, required=True, help="limit of each compilation")
    arguments = parser.parse_args()
    tools = {name: shutil.which(name) or "" for name in ("gcc", "g++", "nvcc")}
    versions = {name: version(name) for name in tools if tools[name]}
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), arguments.seconds)
        results["C"] = bench.program("c", C, ("gcc", "-std=c11", "-O2", "-Wall", "-Werror"))
        results["C++"] = bench.program("cpp", CPP, ("g++", "-std=c++17", "-O2", "-pthread"))
        if importlib.util.find_spec("torch"):
            results["torch.compile"] = bench.torch_compile()
        if tools["nvcc"]:
            run = arguments.device == "cuda"
            results["CUDA"] = bench.program("cu", CUDA, ("nvcc", "-O2"), run=run)
            results["torch extension"] = (
                bench.extension() if importlib.util.find_spec("torch") else "no torch"
            )
    common.say(arguments.nonce, tools=tools, versions=versions, results=results, ptxas=known_gpus())


def known_gpus() -> dict[str, list[str]]:
    """Return the GPUs that each of Triton's assemblers writes code for, as `9.0`; nothing without Triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return {}
    known = {}
    for program in sorted(Path(spec.origin).parent.glob("backends/nvidia/bin/ptxas*"))[:4]:
        said = subprocess.run(
            [program, "--help"], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
        numbers = {int(number) for number in re.findall(r"'sm_([0-9]{2,3})[a-z]?'", said.stdout)}
        known[program.name] = [f"{number // 10}.{number % 10}" for number in sorted(numbers)]
    return known


def has_headers() -> bool:
    return (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()


class Bench:
    """A folder to compile in, and the limit of each step in seconds."""

    def __init__(self, folder: Path, seconds: int) -> None:
        self.folder, self.seconds = folder, seconds

    def program(self, suffix: str, text: str, compiler: tuple[str, ...], *, run: bool = True) -> str:
        """Compile a program and run it. Return `ok`, or what went wrong."""
        source, program = self.folder / f"program.{suffix}", self.folder / f"program-{suffix}"
        source.write_text(text)
        problem, _ = self.step((*compiler, str(source), "-o", str(program)))
        if problem or not run:
            return f"does not compile: {problem}" if problem else "ok, compiled only: it needs a GPU to run"
        problem, said = self.step((str(program),))
        if problem:
            return f"compiles, but does not run: {problem}"
        return "ok" if said.strip() == ANSWER else f"runs, but gives {said.strip()[:80]!r}, not {ANSWER}"

    def torch_compile(self) -> str:
        """Let torch compile a function for this processor: with g++, and as a module for Python."""
        if not has_headers():
            return "no Python.h in this image"
        # What an earlier run has compiled is not taken for an answer.
        env = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")}
        problem, said = self.step((sys.executable, "-c", COMPILED), env)
        if problem:
            return f"does not compile: {problem}"
        return "ok" if said.strip() == ANSWER else f"runs, but gives {said.strip()[:80]!r}, not {ANSWER}"

    def extension(self) -> str:
        """Compile a torch extension with torch's own flags, but without ninja, which the image may lack."""
        from torch.utils import cpp_extension

        headers = sysconfig.get_paths()["include"]
        if not has_headers():
            return "no Python.h in this image"
        source, module = self.folder / "extension.cpp", self.folder / "imagebuilder_extension.so"
        source.write_text(EXTENSION)
        folders = [f"-I{folder}" for folder in (*cpp_extension.include_paths(), headers)]
        libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()]
        flags = ("-O0", "-std=c++17", "-shared", "-fPIC", "-DTORCH_EXTENSION_NAME=imagebuilder_extension")
        linked = ("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python")
        problem, _ = self.step(("g++", *flags, *folders, str(source), *libraries, *linked, "-o", str(module)))
        if problem:
            return f"does not compile: {problem}"
        problem, said = self.step((sys.executable, "-c", EXTENSION_TEST), {"PYTHONPATH": str(self.folder)})
        if problem:
            return f"compiles, but does not load: {problem}"
        return "ok" if said.strip() == ANSWER else f"loads, but gives {said.strip()[:80]!r}, not {ANSWER}"

    def step(self, argv: tuple[str, ...], env: dict[str, str] | None = None) -> tuple[str, str]:
        """Run one command. Return the first line of its errors, "" if there is none, and its output."""
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=self.seconds,
                env={**os.environ, **(env or {})},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return (error.strerror or str(error)) if isinstance(error, OSError) else "not in time", ""
        if done.returncode == 0:
            return "", done.stdout
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        told = [line for line in lines if re.search(r"error|undefined|cannot find|unsupported", line)]
        return ((told or lines or [f"it ended with {done.returncode}"])[0][:400]), done.stdout


def version(tool: str) -> str:
    """Return the version line that a compiler prints."""
    try:
        done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"? {error}"
    lines = [line for line in done.stdout.splitlines() if re.search(r"\d+\.\d+", line)]
    return lines[0].strip() if lines else ""


main()
