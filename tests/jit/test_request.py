"""What a request may say: targets, backends, pass configs and constants."""

import os
from pathlib import Path
from typing import Any

import pytest

from support import command_line
from tilusbuild import KernelCache, Source
from tilusbuild.errors import InputError


@pytest.mark.parametrize("target", [3, "", " ", {"kind": "cuda"}, ["cuda"]])
def test_a_target_that_is_not_a_name_is_a_type_error(source: Source, target: Any) -> None:
    with pytest.raises(TypeError, match=r"target (takes|is the name of one)"):
        KernelCache().cached(source, target=target)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tims": 1}, 'no parameter "tims"'),
        ({"times": 9}, 'default 9 of "times" is outside its space'),
        ({"execution_backend": "nvrtc"}, "nvrtc compiles for GPUs"),
        (
            {"compile_flags": "-fplugin=./evil.so"},
            '"-fplugin=./evil.so" runs a program that no hash',
        ),
        ({"compile_flags": ["-O2", "@flags"]}, '"@flags" reads files that no hash'),
        ({"compile_flags": "-o elsewhere"}, '"-o" is set by tilusbuild'),
        ({"target_host": "x86-64,-fplugin=./evil.so"}, "not the name of an architecture"),
        ({"target": "llvm"}, '"llvm" is not an architecture'),
        ({"execution_backend": "cython"}, "execution_backend is one of auto, tvm_ffi"),
        ({"pass_configs": {"tl.enable_fast_math": True}}, "there is no pass config"),
        ({"target_host": "llvm -mcpu=znver4"}, "is not the name of an architecture"),
    ],
)
def test_wrong_words_are_refused_before_a_compile(source, cache: Path, words, message) -> None:
    with pytest.raises(InputError, match=message):
        KernelCache().cached(source, **{"target": "cpu", **words})
    assert not list((cache / "programs").glob("*"))


def test_cuda_is_the_gpu_here_or_the_only_target_of_cuda(source: Source, project: Path) -> None:
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a CUDA device")
    with pytest.raises(InputError, match="and there is none"):
        KernelCache().cached(source, target="cuda")
    both = (project / "tilus.toml").read_text() + '[target.old]\narch = "sm_80"\n'
    (project / "tilus.toml").write_text(both)
    with pytest.raises(InputError, match="here there is no CUDA device"):
        KernelCache().cached("scale", target="cuda", kind="one")


def test_constants_by_position(project: Path) -> None:
    kernels = KernelCache()
    kernel = kernels.cached("scale", None, "two", target="host", times=3)
    assert dict(kernel.script.params) == {"kind": "two"}
    with pytest.raises(TypeError, match="by position and by name"):
        kernels.cached("scale", None, "two", target="host", kind="one")
    with pytest.raises(InputError, match="has 1 constants, not 2"):
        kernels.cached("scale", None, "two", 3, target="host")


def test_the_environments_target_is_every_verbs(project: Path) -> None:
    by_name = command_line.run(project, "plan", "--json", environment={"TILUSBUILD_TARGET": "host"})
    by_arch = command_line.run(project, "plan", "--json", environment={"TILUSBUILD_TARGET": "cpu"})
    by_option = command_line.run(project, "plan", "--json", "-t", "host")
    assert by_name.out == by_arch.out == by_option.out
    auto = command_line.run(project, "plan", "--json", environment={"TILUSBUILD_TARGET": "auto"})
    assert auto.out == command_line.run(project, "plan", "--json").out != by_option.out
    env = {"TILUSBUILD_TARGET": "h101"}
    refused = command_line.run(project, "build", status=2, environment=env)
    assert 'no target "h101"' in refused.err
