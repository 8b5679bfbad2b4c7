"""What nvcc makes of the examples: no warning, and no spills in a default schedule."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from support.paths import ROOT
from support.processes import run_to_end
from support.project import Project

DEFAULTS = [
    ("quickstart", "saxpy", "sm_80"),
    ("quickstart", "rms_norm", "sm_90a"),
    ("gemm", "gemm", "ampere"),
    ("gemm", "gemm", "hopper"),
    ("gemm", "gemm_tma", "hopper"),
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
    done = run_to_end(command)
    return done.stderr


@pytest.mark.nvcc
@pytest.mark.parametrize(("example", "script", "target"), DEFAULTS)
def test_the_default_compiles_clean_and_the_last_schedule_without_warnings(
    request, tmp_path, example, script, target
):
    built_example = request.getfixturevalue(example)
    assert compile_program(built_example.default(script, target), tmp_path) == ""
    log = compile_program(built_example.programs(script, target)[-1], tmp_path)
    assert "warning #" not in log


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_the_cutlass_example_compiles_clean(cutlass, tmp_path, target):
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or spec.origin is None:
        pytest.skip("no CUTLASS headers: pip install nvidia-cutlass==4.2.0.0")
    headers = os.path.join(os.path.dirname(spec.origin), "source", "include")
    assert compile_program(cutlass.default("linear", target), tmp_path, f"-I{headers}") == ""


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "selected", "symbol"),
    [
        ("attention", "decode[head_dim=64] ampere", "decode"),
        ("hopper", "rms_norm hopper", "rms_norm"),
        ("indices", "histogram ampere", "histogram"),
        ("serving", "paged_decode ampere", "paged_decode"),
        ("marlin", "gemm[dtype=f16]", "_ZN5w4a164gemmI6__half"),
    ],
)
def test_a_program_is_built(tmp_path, example, selected, symbol):
    """The build compares the kernel's parameters with the manifest's: a map, a pointer, numbers."""
    project = Project(ROOT / "examples" / example, {"TILUSBUILD_CACHE_DIR": str(tmp_path)})
    assert project.compiled(selected, "--level", "0") == 1
    (meta,) = tmp_path.glob("programs/*/meta.json")
    assert symbol in meta.read_text()


# examples/plain: a file that is not a template, and kernels by their C++ names.
EXAMPLE = Path(__file__).parents[2] / "examples/plain"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    copied = tmp_path / "plain"
    shutil.copytree(EXAMPLE, copied, ignore=shutil.ignore_patterns(".cache"))
    return Project(copied, {"TILUSBUILD_CACHE_DIR": str(copied / ".cache")})


@pytest.mark.nvcc
def test_a_source_is_the_file_and_the_kernel_is_what_its_name_says(project: Project):
    project.run("render", "--output", "rendered")
    rendered = sorted((project.directory / "rendered").rglob("*.cu"))
    assert len(rendered) == 24
    file = (EXAMPLE / "src/softmax.cu").read_bytes()
    assert all(path.read_bytes().startswith(file) for path in rendered)
    assert not project.programs
    project.run("build", "softmax[dtype=f16,half=true]", "--level", "0")
    (program,) = project.programs.values()
    assert "_ZN4rows7softmaxI6__half" in (program / "meta.json").read_text()
    output = project.run("render", "softmax[dtype=f16,half=true]", "--level", "0").out
    assert output.endswith("&rows::softmax<__half, 128, true>;\n")
