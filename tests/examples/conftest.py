"""The examples' programs as values: manifest, schedules, rendered source and launch geometry."""

import ctypes
import functools
import importlib.util
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from support.cuda_on_cpu.emulator import Kernel, Launched
from support.paths import ROOT
from tilusbuild.expr import Value, parse_expression
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.plan.model import Target, list_instances, list_target_constants, make_targets
from tilusbuild.plan.spaces import make_space_spec
from tilusbuild.render.renderer import Renderer
from tilusbuild.space.space import Space


@dataclass(frozen=True)
class Program:
    """One schedule of one script for one target."""

    script: str
    template: str
    target: Target
    values: Mapping[str, Value]
    launch_texts: tuple[tuple[Any, ...], tuple[Any, ...], Any]
    renderer: Renderer

    @property
    def source(self) -> str:
        context = {
            **self.values,
            "target": {
                "kind": self.target.kind,
                "name": self.target.name,
                "arch": self.target.archs[0].name,
            },
            "arch": {
                n.removeprefix("arch."): v for n, v in list_target_constants(self.target).items()
            },
        }
        return self.renderer.render(self.template, context).text

    def geometry(self, **dimensions: int) -> tuple[list[int], list[int], int]:
        """Grid, block and bytes of dynamic shared memory, as the manifest computes them."""
        names = {**self.values, **list_target_constants(self.target), **dimensions}
        grid, block, smem = self.launch_texts
        return (
            [int(parse_expression(text).evaluate(names)) for text in grid],
            [int(parse_expression(text).evaluate(names)) for text in block],
            int(parse_expression(smem or 0).evaluate(names)),
        )


@dataclass(frozen=True)
class Example:
    """One directory of examples/."""

    name: str

    @functools.cached_property
    def manifest(self) -> Any:
        return load_manifest(os.path.join(ROOT, "examples", self.name, "tilus.toml"))

    @functools.cached_property
    def reference(self) -> ModuleType:
        path = os.path.join(ROOT, "examples", self.name, "ref.py")
        spec = importlib.util.spec_from_file_location(f"{self.name}_ref", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def spaces(self, script: str, target: str) -> list[tuple[dict[str, Value], Space]]:
        """The space of each instance, with the instance's constants."""
        declared = make_targets(self.manifest)[target]
        return [
            (params, Space(make_space_spec(self.manifest, script, declared, params)))
            for params in list_instances(self.manifest, script, target)
        ]

    def programs(self, script: str, target: str, **wanted: Value) -> list[Program]:
        """The programs whose values are `wanted`, in the order of the space."""
        return [
            self._program(script, target, {**params, **schedule.values})
            for params, space in self.spaces(script, target)
            for schedule in space
            if wanted.items() <= {**params, **schedule.values}.items()
        ]

    def default(self, script: str, target: str, **wanted: Value) -> Program:
        """The default schedule of the first instance whose constants are `wanted`."""
        for params, space in self.spaces(script, target):
            if wanted.items() <= params.items():
                fixed = self.manifest.scripts[script].merge_default(target)
                schedule = space.complete_point(fixed)
                return self._program(script, target, {**params, **schedule.values})
        raise LookupError(f"{script} has no instance {wanted}")

    def _program(self, script: str, target: str, values: Mapping[str, Value]) -> Program:
        owner = self.manifest.scripts[script]
        launch = owner.merge_launch(target)
        return Program(
            owner.kernel,
            owner.template,
            make_targets(self.manifest)[target],
            values,
            (launch.grid, launch.block, launch.smem),
            Renderer(self.manifest.root),
        )


def _example(name: str) -> Any:
    return pytest.fixture(scope="session", name=name)(lambda: Example(name))


quickstart, attention, marlin = map(_example, ("quickstart", "attention", "marlin"))
indices, serving = map(_example, ("indices", "serving"))
hopper, gemm, cutlass = map(_example, ("hopper", "gemm", "cutlass"))


@pytest.fixture
def emulate(tmp_path: Any) -> Callable[[Program], Kernel]:
    """Makes of a CUDA program what runs on the CPU, with CUDA's own rules (support/cuda_on_cpu)."""
    return lambda program: Kernel(program.source, program.script, str(tmp_path))


def launch(program: Program, kernel: Kernel, arguments: list[Any], **options: Any) -> Launched:
    """Launches with the manifest's geometry. `options`: dimensions and what `Kernel` takes."""
    dimensions = {
        name: options.pop(name)
        for name in ("m", "n", "k", "heads", "bins", "batch")
        if name in options
    }
    grid, block, smem = program.geometry(**dimensions)
    return kernel.launch(grid, block, smem, arguments, **options)


@pytest.fixture(name="launch")
def launch_fixture() -> Callable[..., Launched]:
    return launch


@pytest.fixture
def native(tmp_path: Any) -> Callable[[Program], Any]:
    """Compiles a cpu program with the host compiler: its function, to call with ctypes."""

    def compile_and_load(program: Program) -> Any:
        source, library = (os.path.join(tmp_path, name) for name in ("cpu.cc", "cpu.so"))
        with open(source, "w") as file:
            file.write(program.source)
        flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        subprocess.run(["g++", *flags, "-o", library, source], check=True)
        return getattr(ctypes.CDLL(library), program.script)

    return compile_and_load
