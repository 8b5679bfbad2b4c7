"""What the compile tests share: recipes, a toolchain of this machine's tools, the fake driver."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.fake_driver import FakeDriver, build_driver
from support.recipes import link_without_nvcc, write_module
from tilusbuild.compile.checks import find_launch_problem
from tilusbuild.compile.kernel_names import find_symbol
from tilusbuild.compile.model import Recipe
from tilusbuild.compile.pipelines.nvcc import choose_image_name
from tilusbuild.compile.program import Compile, compile_program
from tilusbuild.compile.steps import collect_tools
from tilusbuild.errors import InputError
from tilusbuild.process.base import Runner
from tilusbuild.process.local import LocalRunner
from tilusbuild.state.envelope import StepStore
from tilusbuild.status import Cause, Compiled
from tilusbuild.toolchain import (
    DigestMemory,
    Toolchain,
    ToolchainRequest,
    discover_toolchain,
)

HERE = Path(__file__).parent


def discover(env: dict[str, str], request: ToolchainRequest) -> Toolchain:
    """The first toolchain of an environment, as tilusbuild finds it; without one, skip."""
    with LocalRunner() as running:
        try:
            return discover_toolchain(request, env, running, DigestMemory())
        except InputError as error:
            pytest.skip(error.diagnostics[0].message)


@pytest.fixture(scope="session")
def cuda_toolchain():
    return discover({"PATH": os.environ["PATH"]}, ToolchainRequest())


@pytest.fixture(scope="session")
def host_toolchain():
    """Host tools alone."""
    return discover(dict(os.environ), ToolchainRequest(needs_cuda=False))


@pytest.fixture(scope="session")
def nvrtc_toolchain():
    """Host tools and NVRTC; no nvcc is looked for."""
    return discover(dict(os.environ), ToolchainRequest(needs_cuda=False, needs_nvrtc=True))


@pytest.fixture(scope="session")
def wheel_toolchain():
    """NVIDIA's wheels, in this environment or under $TILUSBUILD_TEST_WHEELS."""
    site = os.environ.get("TILUSBUILD_TEST_WHEELS")
    for directory in [site, *sys.path] if site else sys.path:
        root = os.path.join(directory, "nvidia", "cu13")
        if os.path.exists(os.path.join(root, "bin", "nvcc")):
            return discover({"CUDA_HOME": root, "PATH": "/usr/bin:/bin"}, ToolchainRequest())
    pytest.skip("NVIDIA's compiler wheels are not installed")


@pytest.fixture(scope="session")
def runner():
    with LocalRunner() as running:
        yield running


@pytest.fixture
def compile_in(runner):
    """compile_in(recipe, toolchain, directory) stages the module's files and compiles."""

    def run(recipe: Recipe, toolchain: Any, stage: Path, **options: Any):
        module = stage / "module"
        write_module(recipe, toolchain, module)
        options.setdefault("launchers", StepStore())
        options.setdefault("timeout", 120.0)
        options.setdefault("include_dir", None)
        return compile_program(recipe, toolchain, str(stage), runner=runner, **options)

    return run


class DeviceCode(NamedTuple):
    """A kernel's device code alone; `image` and `symbol` are empty unless it was built."""

    outcome: Compiled
    image: bytes = b""
    symbol: str = ""


@pytest.fixture
def device(tmp_path: Path, nvrtc_toolchain: Any, runner: Runner) -> Callable[..., DeviceCode]:
    """device(recipe) runs the steps of the device code, and no others."""

    def compiled(recipe: Recipe, include_dir: str | None = None) -> DeviceCode:
        if problem := find_launch_problem(recipe):
            return DeviceCode(Compiled.stopped(Cause.CHECK, f"{problem}\n", problem))
        work = tmp_path / "work"
        shutil.rmtree(work, ignore_errors=True)
        tools = collect_tools(nvrtc_toolchain)
        compiling = Compile(recipe, tools, str(tmp_path), str(work), runner, StepStore(), 120.0)
        compiling.prepare_directory(include_dir)
        (work / "source.cu").write_text(recipe.source, errors="surrogateescape")
        os.utime(work / "source.cu", (1, 1))
        image = choose_image_name(recipe)
        outcome = compiling.run_steps(until=image)
        if outcome.cause is not None:
            return DeviceCode(outcome)
        return DeviceCode(outcome, (work / image).read_bytes(), find_symbol(recipe, str(work)))

    return compiled


@pytest.fixture(scope="session")
def driver_directory(tmp_path_factory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver") / "lib")


@pytest.fixture
def driver(driver_directory, tmp_path) -> FakeDriver:
    return FakeDriver(driver_directory, tmp_path / "journal")


@pytest.fixture
def old_driver(tmp_path) -> FakeDriver:
    """A driver from before CUDA 12."""
    return FakeDriver(build_driver(tmp_path / "old", "-DOLD"), tmp_path / "journal")


@pytest.fixture
def link(tmp_path):
    """Links a kernel library without nvcc: link(recipe) gives its path."""
    numbers = iter(range(1000))
    return lambda recipe, **more: link_without_nvcc(recipe, tmp_path / f"m{next(numbers)}", **more)
