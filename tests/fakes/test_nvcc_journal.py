"""The stand-in for nvcc does what the tests that use it rely on."""

import os
import signal
import subprocess

import pytest

from support.nvcc_journal import compiles
from tilusbuild.binary import extract_cubins, parse_ptxas, read_archs, read_cubin
from tilusbuild.process.base import Command
from tilusbuild.process.local import LocalRunner

KERNEL = 'extern "C" __global__ void __launch_bounds__(128) k(float *x) {}\n'
SM_90A = ("-gencode", "arch=compute_90a,code=sm_90a")
SEVERAL = (*SM_90A, "-gencode", "arch=compute_80,code=[sm_80,compute_80]")


@pytest.fixture
def run(nvcc, tmp_path):
    """Runs the stand-in in a directory of its own; its journal is that directory's `journal`."""

    def call(*words, source=KERNEL, directory="here", check=True):
        place = tmp_path / directory
        place.mkdir(exist_ok=True)
        (place / "source.cu").write_text(source)
        return subprocess.run(
            [nvcc, *words],
            cwd=place,
            env={"PATH": "/usr/bin:/bin", "FAKE_NVCC_JOURNAL": str(tmp_path / "journal")},
            capture_output=True,
            text=True,
            check=check,
        )

    return call


def test_a_cubin_has_the_kernels_and_what_they_are_told_to_take(run, tmp_path):
    source = KERNEL + "// fake: registers 40\n// fake: smem 2048\n// fake: spill 8\n"
    done = run("-cubin", *SM_90A, "-Xptxas", "-v", "source.cu", "-o", "k.cubin", source=source)
    data = (tmp_path / "here/k.cubin").read_bytes()
    (usage,) = read_cubin(data)
    assert (usage.name, usage.registers, usage.static_smem) == ("k", 40, 2048)
    assert [(image.kind, image.arch) for image in read_archs(data)] == [("sass", "sm_90a")]
    (said,) = parse_ptxas(done.stderr)
    assert (said.kernel, said.arch, said.registers, said.spill_bytes) == ("k", "sm_90a", 40, 16)


def test_a_fatbin_and_a_library_hold_what_was_asked_for(run, tmp_path):
    run("-fatbin", *SEVERAL, "source.cu", "-o", "k.fatbin")
    run("-c", *SEVERAL, "-Xcompiler", "-fPIC", "source.cu", "-o", "k.o")
    run("-shared", "-cudart", "static", "-Xlinker", "-s", "k.o", "-o", "k.so")
    for name in ("k.fatbin", "k.so"):
        data = (tmp_path / "here" / name).read_bytes()
        held = [(image.kind, image.arch) for image in read_archs(data)]
        assert held == [("sass", "sm_90a"), ("sass", "sm_80"), ("ptx", "sm_80")]
        assert [read_cubin(cubin.data)[0].name for cubin in extract_cubins(data)] == ["k", "k"]


def test_ptx_can_be_compiled_further_and_joined(run, nvcc, tmp_path):
    run("-ptx", "-arch", "compute_90a", "source.cu", "-o", "k.ptx")
    run("-cubin", *SM_90A, "k.ptx", "-o", "k.cubin")
    here = tmp_path / "here"
    fatbinary = os.path.join(os.path.dirname(nvcc), "fatbinary")
    images = ["--image3=kind=elf,sm=90a,file=k.cubin", "--image3=kind=ptx,sm=90a,file=k.ptx"]
    subprocess.run([fatbinary, "--create=k.fatbin", "-64", *images], cwd=here, check=True)
    held = [(image.kind, image.arch) for image in read_archs((here / "k.fatbin").read_bytes())]
    assert held == [("sass", "sm_90a"), ("ptx", "sm_90a")]
    assert read_cubin((here / "k.cubin").read_bytes())[0].name == "k"


def test_output_follows_from_source_headers_and_flags_alone(run, tmp_path):
    def made(directory, *flags, source=KERNEL, header=None):
        (tmp_path / directory / "include").mkdir(parents=True, exist_ok=True)
        if header is not None:
            (tmp_path / directory / "include/h.h").write_text(header)
        run("-cubin", *SM_90A, *flags, "-I", "include", "source.cu", "-o", "k",
            source=source, directory=directory)  # fmt: skip
        return (tmp_path / directory / "k").read_bytes()

    assert made("a") == made("b")
    assert made("a") != made("a", "-DX=1")
    assert made("a") != made("a", source=KERNEL + " ")
    including = '#include "h.h"\n' + KERNEL
    assert made("a", source=including, header="1") == made("b", source=including, header="1")
    assert made("a", source=including, header="1") != made("a", source=including, header="2")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        made("c", source=including)
    assert "h.h: No such file" in caught.value.stderr


@pytest.mark.parametrize(
    ("mark", "status"),
    [
        ("fail", 1),
        ("crash", -signal.SIGSEGV),
        ("oom", -signal.SIGKILL),
        ("no-output", 0),
        ("torn", 0),
    ],
)
def test_it_misbehaves_when_told_to(run, nvcc, tmp_path, mark, status):
    source = f"// line one\n// fake: {mark}\n" + KERNEL
    done = run("-cubin", *SM_90A, "source.cu", "-o", "k", source=source, check=False)
    assert done.returncode == status
    assert (tmp_path / "here/k").exists() == (mark == "torn")
    if mark == "fail":
        assert done.stderr.startswith("source.cu(2): error: ")
    assert (tmp_path / "journal").read_text().split()[2] == mark


def test_it_hangs_when_told_to(nvcc, tmp_path):
    (tmp_path / "source.cu").write_text(KERNEL + "// fake: hang\n")
    argv = (nvcc, "-cubin", "source.cu", "-o", "k")
    with LocalRunner() as runner:
        assert runner.run(Command(argv, str(tmp_path), timeout=0.3)).timed_out


def test_the_journal_is_the_toolkits_when_the_environment_names_none(nvcc, tmp_path):
    (tmp_path / "source.cu").write_text(KERNEL)
    before = compiles(nvcc)
    words = [nvcc, "-cubin", *SM_90A, "source.cu", "-o", "k"]
    for _ in range(2):
        subprocess.run(words, cwd=tmp_path, env={}, check=True)
    (count,) = (compiles(nvcc) - before).values()
    assert count == 2


def test_an_unknown_architecture_is_refused(run):
    done = run("-cubin", "-arch=sm_42", "source.cu", "-o", "k", check=False)
    assert done.returncode == 1
    assert "Unsupported gpu architecture 'sm_42'" in done.stderr
