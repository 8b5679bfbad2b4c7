"""What the compile tests share: recipes, a toolchain of this machine's tools, the fake driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilusbuild.arch import parse_arch
from tilusbuild.compile import (
    Launch,
    LauncherStore,
    Recipe,
    compile_program,
    launcher_folder,
    launcher_object,
    module_files,
)
from tilusbuild.compile.steps import image_name, steps
from tilusbuild.compile.tools import tools_of
from tilusbuild.errors import InputError
from tilusbuild.expr import parse
from tilusbuild.process.local import LocalRunner
from tilusbuild.signature import parse_argument, resolve, signature
from tilusbuild.toolchain import DigestMemory, ToolchainRequest, discover

HERE = Path(__file__).parent

KERNEL = """\
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""

CPU = """\
extern "C" void saxpy(float a, const float *x, float *y, int n) {
  for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];
}
"""

HOST = """\
static __global__ void kernel(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" int saxpy(float a, const float *x, float *y, int n, cudaStream_t stream) {
  kernel<<<(n + 255) / 256, 256, 0, stream>>>(a, x, y, n);
  return cudaGetLastError();
}
"""

SOURCES = {"kernel": KERNEL, "cpu": CPU, "host": HOST}

SAXPY = {"a": "f32", "x": "f32*[n]", "y": "f32*[n]", "n": "i32"}


def make_signature(arguments: dict[str, Any], out: tuple[str, ...] = ("y",)):
    """A signature from {"x": "f32*[n]"}; a value may be (text, {"range": …})."""
    made = []
    for name, text in arguments.items():
        text, more = text if isinstance(text, tuple) else (text, {})
        made.append(parse_argument(name, text, out=name in out, **more))
    return resolve(signature(made), {})


def make_recipe(pipeline: str = "kernel", **changes: Any) -> Recipe:
    """A saxpy; `arguments`, `grid`, `block`, `smem`, `archs` are given as texts."""
    arguments = changes.pop("arguments", SAXPY)
    out = changes.pop("out", ("y",))
    launch = Launch(
        tuple(parse(text) for text in changes.pop("grid", ("cdiv(n, block)",))),
        tuple(parse(text) for text in changes.pop("block", ("block",))),
        parse(changes.pop("smem", "0")),
    )
    archs = changes.pop("archs", ("cpu",) if pipeline == "cpu" else ("sm_90a",))
    recipe = Recipe(
        pipeline=pipeline,
        archs=tuple(parse_arch(name) for name in archs),
        ptx=False,
        source=SOURCES[pipeline],
        symbol="saxpy",
        signature=make_signature(arguments, out),
        launch=launch,
        constants={"block": 256},
    )
    return replace(recipe, **changes)


def make_toolchain(nvcc: str | None = None, root: str | None = None, flags: tuple[str, ...] = ()):
    """What the pipelines need of a toolchain, with this machine's host tools."""
    tool = {name: SimpleNamespace(path=shutil.which(name)) for name in ("g++", "gcc", "as", "ld")}
    cuda = SimpleNamespace(nvcc=nvcc, root=root or "/nowhere", link_flags=flags) if nvcc else None
    return SimpleNamespace(
        cuda=cuda,
        cxx=tool["g++"],
        cc=tool["gcc"],
        as_=tool["as"],
        ld=tool["ld"],
        environment=lambda: {"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        fingerprint_cuda=("nvcc 0 test",),
        nvrtc=None,
        fingerprint_nvrtc=(),
        fingerprint_joiner=(),
        fingerprint_host=("gcc 0 test",),
    )


def find_cuda(**env: str):
    """The CUDA toolkit that this environment has first, as tilusbuild finds it; None without."""
    with LocalRunner() as running:
        try:
            return discover(ToolchainRequest(), env, running, DigestMemory())
        except InputError:
            return None


@pytest.fixture(scope="session")
def cuda_toolchain():
    found = find_cuda(PATH=os.environ["PATH"])
    if found is None:
        pytest.skip("no nvcc was found")
    return found


@pytest.fixture(scope="session")
def nvrtc_toolchain():
    """Host tools and NVRTC; no nvcc is looked for."""
    with LocalRunner() as running:
        try:
            request = ToolchainRequest(needs_cuda=False, needs_nvrtc=True)
            return discover(request, dict(os.environ), running, DigestMemory())
        except InputError as error:
            pytest.skip(error.diagnostics[0].message)


@pytest.fixture(scope="session")
def wheel_toolchain():
    """NVIDIA's wheels, in this environment or under $TILUSBUILD_TEST_WHEELS."""
    site = os.environ.get("TILUSBUILD_TEST_WHEELS")
    for folder in [site, *sys.path] if site else sys.path:
        root = os.path.join(folder, "nvidia", "cu13")
        if os.path.exists(os.path.join(root, "bin", "nvcc")):
            found = find_cuda(CUDA_HOME=root, PATH="/usr/bin:/bin")
            assert found is not None
            return found
    pytest.skip("NVIDIA's compiler wheels are not installed")


@pytest.fixture(scope="session")
def runner():
    with LocalRunner() as running:
        yield running


def write_module(recipe: Recipe, toolchain: Any, module: Path) -> None:
    """The module's files, and in a tree the launcher where compile.sh finds it."""
    module.mkdir(parents=True)
    made = None
    if recipe.through_nvrtc:
        with LocalRunner() as running:
            made = launcher_object(recipe, toolchain, str(module.parent), running, LauncherStore())
            assert isinstance(made, bytes), made
    digest, files = launcher_folder(recipe, made)
    for name, data in module_files(recipe, toolchain, digest).items():
        (module / name).write_bytes(data)
    if module.parents[1].name != "programs":
        return
    folder = module.parents[2] / "include" / digest
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.fixture(name="write_module", scope="session")
def _write_module():
    return write_module


@pytest.fixture
def compile_in(runner):
    """compile_in(recipe, toolchain, folder) stages the module's files and compiles."""

    def run(recipe: Recipe, toolchain: Any, stage: Path, **options: Any):
        module = stage / "module"
        write_module(recipe, toolchain, module)
        options.setdefault("launchers", LauncherStore())
        options.setdefault("timeout", 120.0)
        options.setdefault("include_dir", None)
        return compile_program(recipe, toolchain, str(stage), runner=runner, **options)

    return run


def link_without_nvcc(recipe: Recipe, folder: Path, image: bytes = b"an image") -> Path:
    """The kernel pipeline's library around any bytes: what the launcher's tests call."""
    toolchain = make_toolchain()
    folder.mkdir(parents=True)
    for name, data in module_files(recipe, toolchain).items():
        (folder / name).write_bytes(data)
    (folder / "launcher.c").write_bytes(launcher_folder(recipe)[1]["launcher.c"])
    (folder / image_name(recipe)).write_bytes(image)
    for step in steps(recipe):
        argv = tools_of(toolchain).fill(step.argv)
        if step.name in ("image", "link"):
            subprocess.run(argv, cwd=folder, check=True)
        elif step.name == "launcher":
            (folder / step.output).write_bytes(_launcher_object(folder, argv))
    return folder / "lib.so"


_objects: dict[bytes, bytes] = {}


def _launcher_object(folder: Path, argv: tuple[str, ...]) -> bytes:
    source = (folder / "launcher.c").read_bytes()
    if source not in _objects:
        strict = ["-Wall", "-Wextra", "-Werror"]
        subprocess.run([*argv, *strict], cwd=folder, check=True)
        _objects[source] = (folder / "launcher.o").read_bytes()
    return _objects[source]


@dataclass
class FakeDriver:
    """Runs calls in a process whose driver is the fake one."""

    folder: Path
    journal: Path

    def call(self, library: Path, *calls: dict[str, Any], environment: Any = (), **asked: Any):
        self.journal.unlink(missing_ok=True)
        answered = subprocess.run(
            [sys.executable, str(HERE / "launcher_process.py")],
            input=json.dumps({"library": str(library), "calls": calls, **asked}),
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(self.folder),
                "FAKE_CUDA_JOURNAL": str(self.journal),
                "FAKE_CUDA_PARAMETERS": "f32 ptr ptr i32",
                **dict(environment),
            },
        )
        assert answered.returncode == 0, answered.stderr
        return SimpleNamespace(**json.loads(answered.stdout))

    def lines(self, start: str = "") -> list[str]:
        """The journal's lines that start so."""
        if not self.journal.exists():
            return []
        return [line for line in self.journal.read_text().splitlines() if line.startswith(start)]


def build_driver(folder: Path, *flags: str) -> Path:
    folder.mkdir(parents=True)
    argv = ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", *flags]
    library = str(folder / "libcuda.so.1")
    subprocess.run([*argv, str(HERE / "fake_cuda.c"), "-o", library], check=True)
    return folder


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver") / "lib")


@pytest.fixture
def driver(driver_folder, tmp_path) -> FakeDriver:
    return FakeDriver(driver_folder, tmp_path / "journal")


@pytest.fixture
def old_driver(tmp_path) -> FakeDriver:
    """A driver from before CUDA 12."""
    return FakeDriver(build_driver(tmp_path / "old", "-DOLD"), tmp_path / "journal")


@pytest.fixture(scope="session")
def recipe():
    """Makes recipes: recipe("cpu"), recipe("kernel", smem="65536", constants={…})."""
    return make_recipe


@pytest.fixture(scope="session")
def toolchain():
    """Makes toolchains: toolchain() has this machine's host tools, toolchain(nvcc) an nvcc too."""
    return make_toolchain


@pytest.fixture
def link(tmp_path):
    """Links a kernel library without nvcc: link(recipe) gives its path."""
    made = iter(range(1000))
    return lambda recipe, **more: link_without_nvcc(recipe, tmp_path / f"m{next(made)}", **more)
