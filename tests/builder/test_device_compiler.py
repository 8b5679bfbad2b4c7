"""Projects whose device code NVRTC compiles: the real one, and one that crashes when told to."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.fake_engine import Listener
from support.processes import wait_until
from tilusbuild.builder.build import build_project
from tilusbuild.builder.project import Project, collect_refusals
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import InputError
from tilusbuild.plan.model import PlanSelection
from tilusbuild.toolchain import discovery

LIBRARY = Path(__file__).parents[1] / "support/nvrtc_library.c"

MANIFEST = """\
edition = 1
[project]
name = "small"
version = "1"
[build]
flags = ["-lineinfo"]
[target.gpu]
arch = "sm_90a"
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
targets = ["gpu"]
args = { by = "f32", x = { type = "f32*[n]", out = true }, n = "i32" }
space = { unroll = [1, 2, 4] }
launch = { grid = ["cdiv(n, 256)"], block = [256] }
"""

TEMPLATE = """\
{# x = by * x #}
constexpr int unroll = {{ unroll }};
{# asked #}
extern "C" __global__ void scale(float by, float *x, int n) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) x[i] = by * x[i];
}
"""

Opened = Callable[..., Project]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "tilus.toml").write_text(MANIFEST)
    (tmp_path / "scale.cu.j2").write_text(TEMPLATE)
    return tmp_path


@pytest.fixture
def opened(directory: Path) -> Opened:
    def open_it(device_compiler: str = "nvrtc", **environment: str) -> Project:
        options = {"cache-dir": str(directory / "cache"), "device-compiler": device_compiler}
        env = {"PATH": os.environ["PATH"], **environment}
        return Project.open(str(directory), options, env)

    return open_it


@pytest.fixture(scope="session")
def fake_toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toolkit whose only part is a library that does what sources ask of it."""
    root = tmp_path_factory.mktemp("toolkit")
    lib = root / "lib64"
    lib.mkdir()
    argv = ["gcc", "-shared", "-fPIC", "-x", "c"]
    subprocess.run([*argv, str(LIBRARY), "-o", str(lib / "libnvrtc.so.13")], check=True)
    builtins = [*argv, os.devnull, "-o", str(lib / "libnvrtc-builtins.so.13.0")]
    subprocess.run(builtins, check=True)
    return root


@pytest.fixture
def fake(opened: Opened, fake_toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.setattr(discovery, "list_wheel_roots", list)
    monkeypatch.setattr(discovery, "_INSTALL_ROOT", "/nowhere")
    return lambda **env: opened(CUDA_HOME=str(fake_toolkit), **env)


def asked(directory: Path, text: str) -> None:
    """Put a line into the source of the second schedule."""
    line = f"{{% if unroll == 2 %}}// fake: {text}{{% endif %}}"
    template = directory / "scale.cu.j2"
    template.write_text(TEMPLATE.replace("{# asked #}", line))


@pytest.mark.nvcc
def test_a_project_through_nvrtc(directory: Path, opened: Opened) -> None:
    """Its programs are others than nvcc's, both lie in one cache, and a second build finds all."""
    try:
        with opened() as project:
            project.make_plan(PlanSelection())
            before = project.runner.command_count
            first = build_project(project, PlanSelection(), BuildConfig(jobs=1), Listener())
            started = project.runner.command_count - before
            hashes = [p for i in project.make_plan(PlanSelection()).instances for p in i.programs]
    except InputError as error:
        pytest.skip(error.diagnostics[0].message)
    assert (first.summary.compiled, first.summary.failed) == (3, 0)
    once, per_program = ("the launcher's compiler", "NVRTC's process"), ("as", "ld")
    assert started == len(once) + 3 * len(per_program)
    with opened() as project:
        assert (
            build_project(project, PlanSelection(), BuildConfig(), Listener()).summary.cached == 3
        )
        assert project.runner.command_count == 0
    if shutil.which("nvcc"):
        with opened("nvcc") as project:
            others = [p for i in project.make_plan(PlanSelection()).instances for p in i.programs]
        assert set(hashes).isdisjoint(others)
    modules = list((directory / "cache/programs").glob("*/module"))
    assert len(modules) == 3
    for module in modules:
        assert "nvcc" not in (module.parent / "options.txt").read_text().split("[toolchain]")[0]
        assert not any(word in (module / "compile.sh").read_text() for word in ('"$CC"', '"$NVCC"'))


@pytest.mark.nvcc
def test_an_error_is_told_at_the_templates_line(directory: Path, opened: Opened) -> None:
    (directory / "scale.cu.j2").write_text(TEMPLATE.replace("by * x[i]", "missing"))
    listener = Listener()
    try:
        with opened() as project:
            build_project(project, PlanSelection(), BuildConfig(), listener)
    except InputError as error:
        pytest.skip(error.diagnostics[0].message)
    (entry, *_) = (directory / "cache/programs").glob("*/meta.json")
    assert "source.cu(" in entry.read_text()
    reasons = [event.reason for event in listener.named("finished")]
    assert reasons == ['scale.cu.j2(6): error: identifier "missing" is undefined'] * 3


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("crash", "crashed"),
        ("internal", "crashed"),
        ("hang", "timed_out"),
        ("kill", "killed"),
        ("memory", "killed"),
        ("error", "failed"),
    ],
)
def test_what_happens_to_one_program_happens_to_no_other(directory, fake, text, status) -> None:
    """The others get what this library gives, which is no cubin: another accident."""
    asked(directory, text)
    limit = "[build]\ntimeout = 6" if text == "hang" else "[build]"
    (directory / "tilus.toml").write_text(MANIFEST.replace("[build]", limit))
    with fake() as project:
        result = build_project(project, PlanSelection(), BuildConfig(jobs=1), Listener())
        programs = project.make_plan(PlanSelection()).instances[0].programs
    assert [result.statuses[program] for program in programs] == ["no_output", status, "no_output"]
    recorded = list((directory / "cache/programs").iterdir()) if status == "failed" else []
    assert len(recorded) == (status == "failed")


def serving(library: Path) -> list[str]:
    """The processes that have a library loaded and wait to be asked, by their ids."""
    process_ids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            if b"--serve" in words and os.fsencode(library) in words:
                process_ids.append(name)
    return process_ids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_however_a_build_ends_nothing_goes_on(directory, fake_toolkit, number) -> None:
    """Given a compile that hangs, when the build is interrupted or killed."""
    asked(directory, "hang")
    argv = [sys.executable, "-m", "tilusbuild", "build", "-j2", "--device-compiler", "nvrtc"]
    env = {**os.environ, "CUDA_HOME": str(fake_toolkit)}
    library = fake_toolkit / "lib64/libnvrtc.so.13"
    argv += ["--cache-dir", str(directory / "cache")]
    with subprocess.Popen(argv, cwd=directory, env=env, stderr=subprocess.DEVNULL) as building:
        wait_until(lambda: len(serving(library)) > 0)
        building.send_signal(number)
    assert building.returncode == (130 if number == signal.SIGINT else -number)
    wait_until(lambda: serving(library) == [])


@pytest.mark.parametrize(
    ("change", "message", "line"),
    [
        ('flags = ["-lineinfo", "-Xcompiler", "-fopenmp"]', 'does not know "-Xcompiler"', 6),
        ('flags = ["--expt-relaxed-constexpr"]', 'does not know "--expt-relaxed-constexpr"', 6),
        ('[toolchain]\nstd = "c++23"', "NVRTC does not know c++23", 7),
    ],
)
def test_what_it_cannot_do_is_said_where_it_is_asked(
    directory: Path, fake: Opened, change: str, message: str, line: int
) -> None:
    text = MANIFEST.replace('flags = ["-lineinfo"]', change)
    (directory / "tilus.toml").write_text(text)
    with fake() as project, pytest.raises(InputError) as caught:
        project.make_plan(PlanSelection())
    (diagnostic,) = caught.value.diagnostics
    assert message in diagnostic.message
    assert diagnostic.location is not None
    assert diagnostic.location.line == line


WITH_HOST_CODE = MANIFEST.partition("launch =")[0].replace("kernel =", "entry =")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MANIFEST.replace('"sm_90a"', '["sm_80", "sm_90"]'), "need libnvfatbin beside NVRTC"),
        (MANIFEST.replace('m_90a"', 'm_90a"\ncompress = true'), "compress needs libnvfatbin"),
        (WITH_HOST_CODE, "there is no .*/bin/nvcc"),  # which stays nvcc's
    ],
)
def test_what_needs_more_than_nvrtc_is_refused(directory, fake, text, message) -> None:
    (directory / "tilus.toml").write_text(text)
    with fake(PATH="/usr/bin:/bin") as project, pytest.raises(InputError, match=message):
        project.make_plan(PlanSelection())


@pytest.mark.nvcc
def test_code_is_packed_only_where_all_drivers_unpack_it(directory: Path, opened: Opened) -> None:
    (directory / "tilus.toml").write_text(MANIFEST.replace('m_90a"', 'm_90a"\ncompress = true'))
    with opened("nvcc") as project:
        (spec,) = (instance.spec for instance in project.make_plan(PlanSelection()).instances)
    cuda = spec.toolchain.cuda
    assert cuda is not None
    older = {"": replace(spec.toolchain, cuda=replace(cuda, version="12.9.86"))}
    (refusal,) = collect_refusals(spec.manifest, [("scale", spec.target)], older)
    assert refusal.message == "compress needs CUDA 13 or later, not 12.9.86"
    assert (refusal.location and refusal.location.line) == 9


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("asked_for", "compilers"), [(None, ["nvcc", "NVRTC"]), ("nvrtc", ["NVRTC", "NVRTC"])]
)
def test_a_script_may_choose_for_itself(directory, asked_for, compilers) -> None:
    """Unless somebody asks for one compiler for all."""
    other = MANIFEST.partition("[script.scale]")[2]
    own = f'\n[script.other]\ndevice-compiler = "nvrtc"\n{other}'
    (directory / "tilus.toml").write_text(MANIFEST + own)
    options = {"cache-dir": str(directory / "cache"), "device-compiler": asked_for}
    with Project.open(str(directory), options, os.environ) as project:
        plan = project.make_plan(PlanSelection())
        assert [instance.spec.pipeline.compiler for instance in plan.instances] == compilers
