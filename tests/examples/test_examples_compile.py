"""nvcc compiles the examples without a word: no warning, and no spills in a default schedule."""

import os
import shutil
import subprocess

import pytest

from support.cuda_on_cpu import cute

DEFAULTS = [
    ("quickstart", "saxpy", "sm_80"),
    ("quickstart", "rms_norm", "sm_90a"),
    ("gemm", "gemm", "ampere"),
    ("gemm", "gemm", "hopper"),
    ("hopper", "rms_norm", "hopper"),
]


def compile_program(program, directory, *flags):
    """What nvcc says, with ptxas' warning about spills turned on."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source = os.path.join(directory, "source.cu")
    with open(source, "w") as file:
        file.write(program.source)
    number = program.target.arch.removeprefix("sm_")
    options = ["-cubin", "-std=c++17", f"-gencode=arch=compute_{number},code=sm_{number}"]
    command = [nvcc, *options, "-Xptxas=-warn-spills", *flags, "-o", f"{source}.cubin", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.nvcc
@pytest.mark.parametrize(("example", "script", "target"), DEFAULTS)
def test_defaults_compile_clean(request, tmp_path, example, script, target):
    program = request.getfixturevalue(example).default(script, target)
    assert compile_program(program, tmp_path) == ""


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("example", "script", "target"), DEFAULTS)
def test_the_last_schedule_compiles_without_warnings(request, tmp_path, example, script, target):
    """The one most unlike the default. What every pair of values computes is emulated."""
    program = request.getfixturevalue(example).covering(script, target)[-1]
    said = compile_program(program, tmp_path)
    assert [line for line in said.splitlines() if "warning #" in line] == []


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_the_cutlass_example_compiles_clean(cutlass, tmp_path, target):
    headers = cute.cutlass_headers()
    if headers is None:
        pytest.skip("no CUTLASS headers: pip install nvidia-cutlass==4.2.0.0")
    assert compile_program(cutlass.default("linear", target), tmp_path, f"-I{headers}") == ""
