"""TileLang's words: what they mean here, or what serves instead; none is ignored."""

import enum
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import command_line
from tilusbuild import KernelCache, Source
from tilusbuild.errors import InputError
from tilusbuild.jit.tilelang_words import host_of, pass_configs_of, target_of

X = np.arange(5, dtype="float32")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("auto", ("auto", None)),
        ("cuda", ("cuda", None)),
        ("sm_90a", ("sm_90a", None)),
        ("c", ("c", None)),
        ("cuda -arch=sm_90a", ("sm_90a", None)),
        ("llvm -mcpu=x86-64-v3", ("cpu", "x86-64-v3")),
        ({"kind": "cuda", "arch": "sm_90a"}, ("sm_90a", None)),
        ({"kind": "cuda", "arch": "sm_80", "host": "llvm -mcpu=znver4"}, ("sm_80", "znver4")),
        ({"kind": "cuda", "arch": "sm_80", "host": {"kind": "c"}}, ("sm_80", None)),
        ({"kind": "cuda", "arch": "sm_80", "max_num_threads": 1024}, ("sm_80", None)),
        ({"kind": "c"}, ("cpu", None)),
    ],
)
def test_targets(words: Any, meant: tuple[str, str | None]) -> None:
    assert target_of(words) == meant


@pytest.mark.parametrize("words", [3, "", " ", {"arch": 90}, {"tag": "x"}, ["cuda"]])
def test_what_is_no_target_is_a_type_error(words: Any) -> None:
    with pytest.raises(TypeError):
        target_of(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("cuda --arch", "is not of the form -NAME=VALUE"),
        ({"kind": "cuda", "code": ["sm_90a"]}, '"code" means nothing here'),
        ({"kind": "cuda", "arhc": "sm_90a"}, '"arhc" means nothing here'),
    ],
)
def test_what_a_target_cannot_mean_is_refused_by_name(words: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        target_of(words)


def test_hosts() -> None:
    hosts = (None, "c", "llvm", "llvm -mcpu=znver4", "x86-64-v3")
    assert [host_of(each) for each in hosts] == [None, None, None, "znver4", "x86-64-v3"]


class PassConfigKey(str, enum.Enum):
    """As TileLang's."""

    TL_ENABLE_FAST_MATH = "tl.enable_fast_math"


def test_pass_configs_that_are_flags_of_a_compiler() -> None:
    found = pass_configs_of(
        {
            PassConfigKey.TL_ENABLE_FAST_MATH: True,
            "tl.ptxas_register_usage_level": 5,
            "tl.device_compile_flags": ["-lineinfo", "-g"],
            "dump_ir": False,
        }
    )
    switches, flags, fast_math = found
    assert fast_math
    assert flags == ("--ptxas-options=--register-usage-level=5", "-lineinfo", "-g")
    assert switches == (("dump_ir", False),)


def test_the_cpu_by_any_word_is_one_kernel(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILUSBUILD_EXECUTION_BACKEND", "auto")
    kernels = KernelCache()
    programs = {
        tuple(
            kernels.cached(
                source, None, target=target, target_host=host, times=2
            ).script.programs.items()
        )
        for target, host in (("c", "llvm"), ("llvm", None), ({"kind": "c"}, "c"), ("cpu", None))
    }
    assert len(programs) == 1


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
    given = command_line.run(project, "plan", "--json", "-t", "host")
    assert by_name.out == by_arch.out == given.out
    auto = command_line.run(project, "plan", "--json", environment={"TILUSBUILD_TARGET": "auto"})
    assert auto.out == command_line.run(project, "plan", "--json").out != given.out
    env = {"TILUSBUILD_TARGET": "h101"}
    refused = command_line.run(project, "build", status=2, environment=env)
    assert 'no target "h101"' in refused.err
