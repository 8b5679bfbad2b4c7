"""What a compile makes of compilers that refuse, crash, hang, lie, or hold too much."""

import dataclasses
import os
import stat
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.recipes import make_recipe, make_toolchain
from tilusbuild.arch import parse_arch
from tilusbuild.binary.elf import Elf
from tilusbuild.binary.fatbin import CodeImage
from tilusbuild.compile.causes import StepError
from tilusbuild.compile.checks import check_device_code, find_library_problem
from tilusbuild.compile.launcher import EXPORTS
from tilusbuild.compile.model import Findings, Link, Prune, Step
from tilusbuild.compile.pipelines.library import LinkCpu
from tilusbuild.compile.program import compile_launcher, compile_program
from tilusbuild.process.base import Command, CompletedCommand, WorkerRun
from tilusbuild.state.envelope import StepStore
from tilusbuild.status import RECORDED, Cause

SHF_MERGE = 0x10


@pytest.fixture
def nvcc(tmp_path):
    """nvcc("script") is a toolchain whose nvcc is that shell script; $out is what it shall make."""

    def make(script: str):
        path = tmp_path / "fake" / "bin" / "nvcc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nfor out; do :; done\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return make_toolchain(str(path))

    return make


@pytest.mark.parametrize(
    ("script", "status", "cause", "reason"),
    [
        (
            'echo "source.cu(3): error: identifier \\"foo\\" is undefined"; exit 2',
            "failed",
            Cause.SOURCE,
            'source.cu(3): error: identifier "foo" is undefined',
        ),
        ("exit 7", "crashed", Cause.CRASH, "nvcc ended with status 7"),
        ("exit 0", "no_output", Cause.OUTPUT, "nvcc ended well but made no program.cubin"),
        ("kill -9 $$", "crashed", Cause.KILLED, "nvcc was ended by SIGKILL"),
        ("kill -11 $$", "crashed", Cause.CRASH, "nvcc was ended by SIGSEGV"),
        (
            "/bin/sleep 60",
            "timed_out",
            Cause.TIME,
            "nvcc was stopped after 1 s, which timeout in [build] sets",
        ),
        (
            "printf '\\177ELF\\002 and then the disk was full' > \"$out\"",
            "no_output",
            Cause.OUTPUT,
            "nvcc ended well but program.cubin cannot be read",
        ),
    ],
)
def test_a_compiler_that_fails(nvcc, compile_in, tmp_path, script, status, cause, reason):
    outcome = compile_in(make_recipe(), nvcc(script), tmp_path / "stage", timeout=1.0)
    assert (outcome.status, outcome.cause) == (status, cause)
    assert outcome.reason[: len(reason)] == reason
    assert (outcome.status in RECORDED) == (status == "failed")
    assert not (tmp_path / "stage/module/lib.so").exists()
    assert os.listdir(tmp_path / "stage") == ["module"]
    assert reason in (tmp_path / "stage/module/nvcc_output.txt").read_text()


@pytest.mark.parametrize("is_remote", [None, WorkerRun("grpc://there", "w-7")])
def test_only_a_step_on_a_worker_gives_a_compile_one(nvcc, runner, tmp_path, is_remote) -> None:
    class Workers:
        def run(self, command: Command) -> CompletedCommand:
            return dataclasses.replace(runner.run(command), elsewhere=is_remote)

        cancel = runner.cancel

    (tmp_path / "stage/module").mkdir(parents=True)
    where = (str(tmp_path / "stage"), None, Workers(), StepStore())
    outcome = compile_program(make_recipe(), nvcc("exit 7"), *where)
    assert outcome.elsewhere == is_remote
    assert (outcome.peak_rss == 0) == (is_remote is not None)


def test_a_link_whose_object_was_taken_back_is_tried_again(nvcc, runner, tmp_path):
    recipe = make_recipe("cpu", link=Link("lib.so", objects=("1" * 64,)))
    recipe = replace(recipe, pipeline=LinkCpu())
    gone = str(tmp_path / "object.o")
    (tmp_path / "stage/module").mkdir(parents=True)
    where = (str(tmp_path / "stage"), None, runner, StepStore())
    outcome = compile_program(recipe, nvcc("exit 0"), *where, objects=[gone])
    assert (outcome.status, outcome.cause) == ("no_output", Cause.OUTPUT)
    assert outcome.reason == f"{gone} no longer exists"
    assert outcome.status not in RECORDED


def test_a_compile_finds_its_own_tools_by_name_and_no_others(
    nvcc, compile_in, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("as", "ptxas"):  # as when somebody has another toolkit on PATH
        (tmp_path / name).symlink_to("/bin/true")
    named = (
        'for t in as ld ptxas gcc sed; do command -v $t && /bin/readlink "$(command -v $t)"; done'
    )
    toolchain = nvcc(f"{named}; exit 7")
    outcome = compile_in(make_recipe(), toolchain, tmp_path / "stage")
    assert outcome.log.splitlines() == ["as", "as", "ld", "ld"]


def test_what_cannot_be_removed_of_a_compile_is_not_published(compile_in, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    assert compile_in(make_recipe("cpu"), make_toolchain(), tmp_path / "stage").status == "built"
    assert os.listdir(tmp_path / "stage") == ["module"]
    assert len(os.listdir(tmp_path)) == 2


def test_a_library_may_be_run_by_everyone_whatever_the_umask(compile_in, tmp_path):
    umask = os.umask(0o077)
    try:
        compile_in(make_recipe("cpu"), make_toolchain(), tmp_path / "stage")
    finally:
        os.umask(umask)
    assert (tmp_path / "stage/module/lib.so").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"block": ("2048",)}, "block.x is 2048, outside 1..1024"),
        ({"block": ("64", "64")}, "a block of (64, 64, 1) has 4096 threads, more than 1024"),
        (
            {"smem": "300000"},
            "a block needs 300000 bytes of dynamic shared memory; sm_90a has 232448",
        ),
        ({"grid": ("0",)}, "grid.x is 0"),
        ({"grid": ("cdiv(n, tile)",)}, "grid.x = cdiv(n, tile): unknown name"),
        ({"block": ("block / 2",)}, "block.x = block / 2 is 128.0, not an integer"),
        (
            {"cluster": ("2",), "archs": ("sm_80",)},
            "clusters need sm_90 or later, which sm_80 is not",
        ),
        ({"cluster": ("17",)}, "cluster.x is 17, outside 1..16"),
        ({"cluster": ("1", "0")}, "cluster.y is 0, outside 1..16"),
        ({"cluster": ("8", "4")}, "a cluster of (8, 4, 1) has 32 blocks, more than 16"),
        (
            {"cluster": ("1", "2"), "grid": ("n", "5")},
            "grid.y is 5, which is not a multiple of cluster.y, 2",
        ),
        (
            {"pdl": True, "archs": ("sm_90a", "sm_80")},
            "pdl needs sm_90 or later, which sm_80 is not",
        ),
        ({"carve_out": 101}, "carve-out is 101, outside 0..100 percent"),
        ({"cooperative": 1.5}, "cooperative = 1.5 is 1.5, not an integer"),
    ],
)
def test_a_launch_that_no_device_can_run_is_not_compiled(nvcc, changes, reason, tmp_path, runner):
    (tmp_path / "stage/module").mkdir(parents=True)
    witness = tmp_path / "ran"
    toolchain, stage = nvcc(f"/usr/bin/touch {witness}"), str(tmp_path / "stage")
    outcome = compile_program(make_recipe(**changes), toolchain, stage, None, runner, StepStore())
    assert (outcome.status, outcome.reason[: len(reason)]) == ("failed", reason)
    assert not witness.exists()


@pytest.mark.parametrize("content", ["text", "", "\\177ELF"])
def test_a_launcher_that_does_not_link_is_made_again(compile_in, tmp_path, content):
    """gcc ended well, and its object is kept for all programs: no build may fail for ever by it."""
    toolchain, directory = make_toolchain(), str(tmp_path / "launchers")
    gcc = tmp_path / "gcc"
    broken = f'if [ -e {gcc}.broken ]; then printf "{content}" >launcher.o; exit; fi'
    gcc.write_text(f'#!/bin/sh\n{broken}\nexec {toolchain.host.cc.path} "$@"\n')
    gcc.chmod(0o755)
    toolchain.host.tools[1].path = str(gcc)
    Path(f"{gcc}.broken").touch()
    kept = StepStore(directory)
    outcome = compile_in(make_recipe("cpu"), toolchain, tmp_path / "first", launchers=kept)
    assert outcome.status not in RECORDED
    Path(f"{gcc}.broken").unlink()
    for number, store in enumerate((kept, StepStore(directory))):
        stage = tmp_path / f"again{number}"
        assert compile_in(make_recipe("cpu"), toolchain, stage, launchers=store).status == "built"


@pytest.mark.parametrize(
    ("before", "call", "reason"),
    [
        (
            "",
            "x[i]",
            'the source defines no function "saxpy" with C linkage: is it extern "C"?',
        ),
        ('extern "C" ', "missing(x[i])", "source.cu:2:42: error: 'missing' was not declared"),
        ('float other(float);\nextern "C" ', "x[i]", ""),
        (
            'float other(float);\nextern "C" ',
            "other(x[i])",
            "error: nothing that is linked defines other(float)",
        ),
    ],
)
def test_a_cpu_source_that_is_wrong(compile_in, tmp_path, before, call, reason):
    source = make_recipe("cpu").source.replace('extern "C" ', before).replace("x[i]", call, 1)
    outcome = compile_in(make_recipe("cpu", source=source), make_toolchain(), tmp_path / "stage")
    assert outcome.status == ("failed" if reason else "built")
    assert outcome.reason.startswith(reason)
    if "other(x" in call:  # at the link
        assert "undefined reference to `other(float)'" in outcome.log
        assert "/ld:" not in outcome.log


def test_what_the_linker_left_out_after_a_failed_read(tmp_path):
    """ld ends with 0 when it cannot read an object's unwind entries."""
    source = "".join(f"int {name}(void) {{ return 0; }}\n" for name in EXPORTS)
    (tmp_path / "exports.c").write_text(source)
    for flag, problem in (
        ("--eh-frame-hdr", None),
        ("--no-eh-frame-hdr", "lib.so has unwind entries and no index of them (.eh_frame_hdr)"),
    ):
        words = ["-shared", "-nostdlib", f"-Wl,{flag}", "exports.c", "-o", "lib.so"]
        subprocess.run(["gcc", *words], cwd=tmp_path, check=True)
        images = (CodeImage("sass", "sm_90a", 0),)
        library = (tmp_path / "lib.so").read_bytes()
        assert find_library_problem(make_recipe(), library, images) == problem


def test_a_launcher_has_no_section_that_a_linker_may_merge_or_not(host_toolchain, runner, tmp_path):
    """ld merges nothing of a section that it cannot read, and says nothing: other bytes."""
    (tmp_path / "stage").mkdir()
    where = (str(tmp_path / "stage"), runner, StepStore())
    launcher = compile_launcher(make_recipe(), host_toolchain, *where)
    assert isinstance(launcher, bytes)
    flags = {section.name: section.flags for section in Elf(launcher).sections}
    assert ".text" in flags
    assert [name for name, value in flags.items() if value & SHF_MERGE] == []


SPILLING = """extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
  float v[64];
  for (int i = 0; i < 64; i++) v[i] = x[i * n + threadIdx.x];
  for (int k = 0; k < n; k++)
    for (int i = 0; i < 64; i++) v[i] = v[i] * a + v[(i * 7) % 64];
  for (int i = 0; i < 64; i++) y[i * n + threadIdx.x] = v[i];
}"""
KERNEL = make_recipe().source


def clusters(size: str) -> str:
    return KERNEL.replace("void saxpy", f"void __cluster_dims__({size}) saxpy")


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("source", "changes", "status", "reason"),
    [
        (KERNEL, {"prune": Prune(max_registers=4)}, "pruned", "registers on sm_90a, more than 4"),
        (
            KERNEL,
            {"prune": Prune(min_blocks_per_sm=99)},
            "pruned",
            "blocks per SM on sm_90a, fewer than 99",
        ),
        (KERNEL, {"prune": Prune(255, 0, 1)}, "built", ""),
        (
            SPILLING,
            {"flags": ("-maxrregcount=24",), "prune": Prune(max_spill_bytes=0)},
            "pruned",
            "bytes of spills on sm_90a, more than 0",
        ),
        (
            KERNEL.replace("void saxpy", "void __launch_bounds__(128) saxpy"),
            {},
            "failed",
            "256 threads; the kernel is bounded to 128",
        ),
        (
            KERNEL.replace(
                "int i =", "__shared__ float s[8192]; s[threadIdx.x] = a; a = s[n]; int i ="
            ),
            {"smem": "220000"},
            "failed",
            "252768 bytes of shared memory (32768 static); sm_90a has 232448",
        ),
        (clusters("2"), {"cluster": ("2",), "grid": ("4",)}, "built", ""),
        (clusters("2"), {"grid": ("n",)}, "built", ""),
        (
            clusters("2"),
            {"grid": ("5",)},
            "failed",
            "grid.x is 5, which is not a multiple of cluster.x, 2",
        ),
        (
            clusters("2"),
            {"cluster": ("2", "2"), "grid": ("4", "4")},
            "failed",
            "launch.cluster is (2, 2, 1); the kernel is compiled for (2, 1, 1)",
        ),
        (
            clusters("2"),
            {"cluster": ("n",)},
            "failed",
            "launch.cluster is one that depends on arguments; the kernel is compiled for",
        ),
        (
            clusters("16"),
            {"grid": ("n",)},
            "failed",
            "the kernel has clusters of (16, 1, 1) blocks: declare launch.cluster",
        ),
    ],
)
def test_code_is_held_to_limits_and_launch_before_the_link(
    cuda_toolchain, compile_in, tmp_path, source, changes, status, reason
):
    recipe = make_recipe(source=source, **changes)
    outcome = compile_in(recipe, cuda_toolchain, tmp_path / "stage")
    assert (outcome.status, bool(outcome.reason)) == (status, bool(reason))
    assert reason in outcome.reason
    assert (tmp_path / "stage/module/lib.so").exists() == (status == "built")
    assert outcome.ptxas[0].registers > 4


@pytest.mark.parametrize(
    ("constant", "smem", "reason"),
    [
        ({}, 512, None),
        ({}, 511, r"needs 512 bytes of shared memory \(512 static\); sm_80 has 511"),
        ({"f": ("f32", {"constant": "f"})}, 512, 'the code has no variable "f"'),
    ],
)
def test_a_cubin_is_held_to_the_targets_limits_and_the_constants(constant, smem, reason):
    cubin = Path(__file__).parents[1] / "binary/data/cuda12_sm_80.cubin"
    arguments = {"x": "f32*[4]", **constant}
    recipe = make_recipe("kernel-nvrtc", symbol="k", arguments=arguments, out=(), grid=("1",))
    recipe = replace(recipe, archs=(replace(parse_arch("sm_80"), smem_per_block=smem),))
    step, findings = Step("device", ("nvrtc",), "program.cubin"), Findings()
    refusal = nullcontext() if reason is None else pytest.raises(StepError, match=reason)
    with refusal:
        check_device_code(recipe, step, cubin.read_bytes(), "/nowhere", "", findings)
    assert bool(findings.images) == (reason is None)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("declared", "parameters", "reason"),
    [
        (
            {"x": "f32*[n]", "n": "i32"},
            "float *x",
            (
                "the kernel takes 1 parameters; 2 arguments are declared (x, n); "
                'not taken: n, as in n = { type = "i32", parameter = false }'
            ),
        ),
        (
            {"x": "f32*[n]", "n": "i64"},
            "float *x, int n",
            'parameter 2 of the kernel has 4 bytes; "n" is declared i64, which has 8',
        ),
        (
            {"x": "f32*[n]", "n": "i32"},
            "int n, float *x",
            'parameter 1 of the kernel has 4 bytes; "x" is declared f32*[n], which has 8',
        ),
        (
            {"a": "i8", "b": "u16", "c": "f64", "d": "bool", "x": "f16*[n]", "n": "i64"},
            "char a, unsigned short b, double c, bool d, void *x, long n",
            None,
        ),
    ],
)
@pytest.mark.parametrize("archs", [("sm_75",), ("sm_90a",), ("sm_80", "sm_120")])
def test_parameters_are_held_to_the_declared_arguments(
    cuda_toolchain, compile_in, tmp_path, declared, parameters, reason, archs
):
    source = f'extern "C" __global__ void saxpy({parameters}) {{}}'
    recipe = make_recipe(source=source, arguments=declared, out=(), grid=("n",), archs=archs)
    outcome = compile_in(recipe, cuda_toolchain, tmp_path / "stage")
    assert outcome.status == ("failed" if reason else "built")
    assert outcome.reason == (reason or "")
