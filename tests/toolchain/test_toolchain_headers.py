"""Which headers are in every fingerprint, and when the others come in."""

from pathlib import Path

import pytest

from tilusbuild.toolchain import DigestMemory, HeaderDirectories
from tilusbuild.toolchain.headers import is_core_of_system, is_core_of_toolkit, outermost


@pytest.mark.parametrize(
    "name",
    ["cuda_runtime.h", "crt/mma.hpp", "cuda_fp16.hpp", "mma.h", "cccl/cuda/std/array", "nv/target",
     "cooperative_groups/reduce.h", "sm_61_intrinsics.h"],
)  # fmt: skip
def test_core_of_the_toolkit(name: str) -> None:
    assert is_core_of_toolkit(name)


@pytest.mark.parametrize(
    "name",
    ["cublas_v2.h", "cupti.h", "nvtx3/nvToolsExt.h", "cccl/cub/cub.cuh", "thrust/sort.h",
     "cuda_profiler_api.h", "cudaProfiler.h", "cuda_stdint.h", "curand_kernel.h"],
)  # fmt: skip
def test_the_rest_of_the_toolkit(name: str) -> None:
    assert not is_core_of_toolkit(name)


def test_core_of_the_system() -> None:
    for name in ("stdio.h", "bits/types.h", "sys/mman.h", "linux/limits.h", "linux/"):
        assert is_core_of_system(name)
    for name in ("zlib.h", "linux/usb.h", "openssl/", "python3.11/Python.h"):
        assert not is_core_of_system(name)


def test_a_directory_within_another_is_not_walked_twice() -> None:
    assert outermost(["/a/b", "/c", "/a", "/a/b", "/ab"]) == ["/c", "/a", "/ab"]


@pytest.fixture
def directories(tmp_path: Path) -> HeaderDirectories:
    for name in ("toolkit/cuda_fp16.h", "toolkit/cublas_v2.h", "compiler/vector", "system/stdio.h",
                 "system/zlib.h"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"// {name}")
    toolkit, compiler, system = (str(tmp_path / n) for n in ("toolkit", "compiler", "system"))
    return HeaderDirectories((toolkit,), (compiler,), (system,))


def test_a_program_of_core_headers_adds_nothing(directories: HeaderDirectories) -> None:
    includes = ["cuda_fp16.h", "vector", "stdio.h", "windows.h"]
    assert directories.external_header_digests(includes, DigestMemory()) == ()


@pytest.mark.parametrize("name", ["cublas_v2.h", "zlib.h"])
def test_any_other_header_adds_all_others(directories: HeaderDirectories, name: str) -> None:
    lines = directories.external_header_digests(["stdio.h", name], DigestMemory())
    assert [line.split()[0] for line in lines] == ["other-cuda-headers", "other-headers"]
    assert lines == directories.external_header_digests(None, DigestMemory())


def test_a_header_that_is_installed_later_is_noticed(directories: HeaderDirectories) -> None:
    assert directories.external_header_digests(["late.h"], DigestMemory()) == ()
    Path(directories.system[0], "late.h").write_text("// late")
    assert directories.external_header_digests(["late.h"], DigestMemory())


def test_an_empty_directory_in_the_search_path_changes_nothing_and_a_header_in_it_does(
    directories: HeaderDirectories, tmp_path: Path
) -> None:
    memory = DigestMemory()
    local = tmp_path / "local"
    more = HeaderDirectories(
        directories.toolkit, directories.compiler, (str(local), *directories.system)
    )
    assert more.core_of_system(memory) == directories.core_of_system(memory)
    local.mkdir()
    (local / "stdio.h").write_text("// shadows")
    assert more.core_of_system(memory) != directories.core_of_system(memory)
