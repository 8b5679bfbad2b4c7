"""The stand-in for nvcc does what the tests that use it rely on."""

import subprocess

import pytest

from tilusbuild.binary import extract_cubins, read_archs, read_cubin

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


def test_a_fatbin_and_a_library_hold_what_was_asked_for(run, tmp_path):
    run("-fatbin", *SEVERAL, "source.cu", "-o", "k.fatbin")
    run("-c", *SEVERAL, "-Xcompiler", "-fPIC", "source.cu", "-o", "k.o")
    run("-shared", "-cudart", "static", "-Xlinker", "-s", "k.o", "-o", "k.so")
    for name in ("k.fatbin", "k.so"):
        data = (tmp_path / "here" / name).read_bytes()
        held = [(image.kind, image.arch) for image in read_archs(data)]
        assert held == [("sass", "sm_90a"), ("sass", "sm_80"), ("ptx", "sm_80")]
        assert [read_cubin(cubin.data)[0].name for cubin in extract_cubins(data)] == ["k", "k"]


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
