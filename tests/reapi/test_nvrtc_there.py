"""Programs whose device code NVRTC compiles on other machines: the same bytes, and no answer of a
worker that cannot do it."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

from support.casd import Casd, worker
from support.processes import wait_until
from support.recipes import make_recipe, write_module
from tilusbuild.compile.model import Includes
from tilusbuild.compile.program import compile_program
from tilusbuild.errors import InputError
from tilusbuild.process.base import Command
from tilusbuild.process.local import LocalRunner
from tilusbuild.reapi.execute import RemoteExecutor
from tilusbuild.reapi.operations import ignore_place
from tilusbuild.reapi.probe import probe_worker
from tilusbuild.reapi.sharing import CompileSlots, SharingRunner
from tilusbuild.remote.settings import make_settings
from tilusbuild.state.envelope import StepStore
from tilusbuild.toolchain import DigestMemory, Toolchain, ToolchainRequest, discover_toolchain

KERNEL = """\
#include <cuda_fp16.h>
#include "helper.cuh"
namespace { __device__ float own(float v) { return v + 1; } }
template <int N> __global__ void scaled(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (n < 0) printf("%s\\n", __FILE__);
  if (i < n) y[i] = N * own(helper(__half2float(__hadd(__float2half(a), __float2half(x[i])))));
}
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = helper(a * x[i]);
}
"""
CASES: dict[str, Any] = {
    "plain": {},
    "several and PTX": {"archs": ("sm_80", "sm_90"), "ptx": True},
    "a C++ name": {"symbol": "scaled<3>"},
    "an error": {"source": KERNEL.replace("helper(a", "missing(a")},
}


@pytest.fixture(scope="module")
def local_tools() -> Iterator[tuple[Toolchain, LocalRunner]]:
    """NVRTC and this machine's host tools, and a runner."""
    with LocalRunner() as runner:
        try:
            request = ToolchainRequest(needs_cuda=False, needs_nvrtc=True)
            yield discover_toolchain(request, dict(os.environ), runner, DigestMemory()), runner
        except InputError as error:
            pytest.skip(error.diagnostics[0].message)


class Elsewhere:
    """A server whose workers are proved, and what compiles there."""

    def __init__(self, server: Casd, tools_and_runner: tuple[Toolchain, LocalRunner]) -> None:
        self.tools, self.inner = tools_and_runner
        self.warned: list[str] = []
        self.server = server
        self.executor = RemoteExecutor(
            make_settings(server.address, "test"),
            lambda run_on_worker: probe_worker(self.tools, self.inner, run_on_worker),
            self.warned.append,
        )
        self.executor.is_ready()
        wait_until(lambda: self.executor._probe_passed is not None or bool(self.warned), 300)

    def compiled(self, stage: Path, limit: int, **changes: Any) -> tuple[str, bytes, bytes]:
        """The status, the library and the log of a program; with a limit of 0 no place is here."""
        headers = stage.parent / "include/digest"
        (headers / "project/include").mkdir(parents=True)
        header = headers / "project/include/helper.cuh"
        header.write_text("__device__ inline float helper(float v) { return 3 * v; }\n")
        os.utime(header, (1_000_000 * (limit + 1),) * 2)
        (headers / "MANIFEST").write_text("")
        recipe = make_recipe(
            "kernel-nvrtc",
            **{"source": KERNEL, **changes},
            includes=Includes("digest", (("project/include", False),)),
        )
        write_module(recipe, self.tools, stage / "module")
        runner = SharingRunner(
            self.inner, lambda: self.executor, CompileSlots(lambda: limit), ignore_place
        )
        outcome = compile_program(
            recipe, self.tools, str(stage), str(headers), runner, StepStore(), 120.0
        )
        assert (outcome.elsewhere is None) == bool(limit)
        library = stage / "module/lib.so"
        content = library.read_bytes() if library.exists() else b""
        return outcome.status, content, (stage / "module/nvcc_output.txt").read_bytes()


@pytest.fixture(scope="module")
def elsewhere(
    local_tools: tuple[Toolchain, LocalRunner], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Elsewhere]:
    """Workers that have the tools at the same places."""
    nvrtc = local_tools[0].nvrtc
    assert nvrtc is not None
    library = os.path.dirname(os.path.realpath(nvrtc.library))
    mount = f"--runner-arg=--ro-bind-mount={library}:{library}"
    server = Casd(tmp_path_factory.mktemp("farm"), *worker(), mount)
    remote = Elsewhere(server, local_tools)
    yield remote
    remote.executor.close()
    server.kill()


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_nvrtc_makes_the_same_elsewhere(case: str, elsewhere: Elsewhere, tmp_path: Path) -> None:
    remote_result = elsewhere.compiled(tmp_path / "there/programs", 0, **CASES[case])
    local_result = elsewhere.compiled(tmp_path / "here/programs", 1, **CASES[case])
    assert remote_result == local_result
    assert local_result[0] == ("failed" if case == "an error" else "built")
    assert elsewhere.warned == []


@pytest.mark.nvcc
@pytest.mark.slow
def test_a_worker_without_nvrtc_is_found_out(local_tools, tmp_path) -> None:
    nvrtc = local_tools[0].nvrtc
    assert nvrtc is not None
    if nvrtc.library.startswith("/usr/"):
        pytest.skip("every worker has /usr")
    server = Casd(tmp_path / "farm", *worker())
    remote = Elsewhere(server, local_tools)
    remote.executor.close()
    server.kill()
    (warning,) = remote.warned
    assert f"a worker has another {nvrtc.library} than this machine, or none" in warning


@pytest.mark.nvcc
def test_a_library_that_does_not_load_there_is_no_answer(local_tools, tmp_path) -> None:
    """Whatever the source is: that its command ends with a status says nothing then."""
    nvrtc = local_tools[0].nvrtc
    assert nvrtc is not None
    (tmp_path / "w/tmp").mkdir(parents=True)
    server = Casd(tmp_path / "farm", *worker())
    executor = RemoteExecutor(
        make_settings(server.address, "test"), lambda run_on_worker: None, print
    )
    gone = replace(nvrtc, library="/nowhere/libnvrtc.so.13")
    words = gone.build_worker_command(("cubin", "source.cu", "source.cu", "out"))
    command = Command(
        nvrtc.command, str(tmp_path / "w"), {}, 60.0, outputs=("out",), on_worker=words
    )
    executor.is_ready()
    wait_until(lambda: executor._probe_passed is not None)
    assert executor.run_command(command, threading.Event(), ignore_place) is None
    executor.close()
    server.kill()
