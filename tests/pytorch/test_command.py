"""What is taken from a command of torch's `build.ninja`, and what is not."""

from __future__ import annotations

import pytest

from tilusbuild.torch.command import (
    CompdbEntry,
    CompileCommand,
    IncludeDirectory,
    NotCarriedError,
    find_source_root,
    parse_compile_command,
)

NVCC = "/usr/local/cuda/bin/nvcc -MD -MF /b/k.o.d -I/p/csrc -c -c /p/k.cu -o /b/k.o "


def words(command: str, file: str = "/p/k.cu", **environment: str) -> CompileCommand:
    return parse_compile_command(CompdbEntry("/b", command, file), environment)


def test_a_command_of_torch() -> None:
    command = words(
        NVCC + "-D__CUDA_NO_HALF_OPERATORS__ --expt-relaxed-constexpr --compiler-options ''\"'\"'"
        "-fPIC'\"'\"'' -O3 -DTORCH_EXTENSION_NAME=_C -gencode=arch=compute_80,code=sm_80"
        " -Xcompiler -fopenmp -t 4 -std=c++20 -ccbin gcc"
    )
    assert (command.source, command.output, command.compiler) == ("/p/k.cu", "/b/k.o", "gcc")
    assert command.extension == "_C"
    assert command.arguments == [
        IncludeDirectory("-I", "/p/csrc"),
        "-D__CUDA_NO_HALF_OPERATORS__",
        "--expt-relaxed-constexpr",
        "--compiler-options",
        "-fPIC",
        "-O3",
        "-DTORCH_EXTENSION_NAME=_C",
        "-gencode=arch=compute_80,code=sm_80",
        "-Xcompiler",
        "-fopenmp",
        "-t",
        "4",
        "-std=c++20",
    ]


def test_what_the_environment_adds_is_in_the_words() -> None:
    command = words(NVCC, NVCC_APPEND_FLAGS="-lineinfo", CPATH="/opt/h", NVCC_PREPEND_FLAGS="-DA")
    assert command.arguments == [
        "-DA",
        IncludeDirectory("-I", "/p/csrc"),
        "-lineinfo",
        IncludeDirectory("-I", "/opt/h"),
    ]
    host = words("ccache c++ -c /p/k.cpp -o k.o", "/p/k.cpp", NVCC_APPEND_FLAGS="-lineinfo")
    assert (host.arguments, host.output, host.compiler) == ([], "/b/k.o", "c++")


@pytest.mark.parametrize("flags", ["-march=native", "-Xcompiler -march=native -O2"])
def test_the_cpu_of_the_machine_is_noticed(flags: str) -> None:
    assert words(NVCC + flags).native


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("clang++ -c /p/k.cpp -o k.o", "clang.. is neither nvcc nor g.."),
        (NVCC + "-arch=native", "mean this machine"),
        (NVCC + "-arch native", "mean this machine"),
        (NVCC + "-fplugin=/p/x.so", "may name files that no hash covers"),
        (NVCC + "--options-file flags", "--options-file flags names a file of options that"),
        (NVCC + "/p/other.cu", "/p/other.cu is not its source"),
        (NVCC + "-I/p,q", "apart at its comma"),
    ],
)
def test_what_is_left_to_torch(command: str, why: str) -> None:
    file = "/p/k.cpp" if "k.cpp" in command else "/p/k.cu"
    with pytest.raises(NotCarriedError, match=why):
        words(command, file)


def test_where_a_source_is_named_from(tmp_path) -> None:
    (tmp_path / "p/.git").mkdir(parents=True)
    source = str(tmp_path / "p/csrc/k.cu")
    assert find_source_root(source, str(tmp_path)) == str(tmp_path)
    assert find_source_root(source, "") == str(tmp_path / "p")
    assert find_source_root(source, str(tmp_path / "other")) == str(tmp_path / "p")
