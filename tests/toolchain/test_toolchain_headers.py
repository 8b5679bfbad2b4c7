"""Which headers are in every fingerprint, and when the others come in."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilusbuild.process.local import LocalRunner
from tilusbuild.toolchain import DigestMemory, HeaderDirectories, find_package_directory
from tilusbuild.toolchain.cuda import read_wheel_releases
from tilusbuild.toolchain.headers import drop_nested, is_core_of_system, is_core_of_toolkit
from tilusbuild.toolchain.nvrtc_places import list_wheel_roots
from tilusbuild.toolchain.probe import Probe, ProbeError


@pytest.mark.parametrize(
    ("is_core", "core", "rest"),
    [
        (
            is_core_of_toolkit,
            "cuda_runtime.h crt/mma.hpp cuda_fp16.hpp mma.h cccl/cuda/std/array nv/target",
            "cublas_v2.h cupti.h nvtx3/nvToolsExt.h cccl/cub/cub.cuh thrust/sort.h cudaProfiler.h",
        ),
        (
            is_core_of_toolkit,
            "cooperative_groups/reduce.h sm_61_intrinsics.h",
            "cuda_profiler_api.h cuda_stdint.h curand_kernel.h",
        ),
        (
            is_core_of_system,
            "stdio.h bits/types.h sys/mman.h linux/limits.h linux/",
            "zlib.h linux/usb.h openssl/ python3.11/Python.h",
        ),
    ],
)
def test_core_headers(is_core: Callable[[str], bool], core: str, rest: str) -> None:
    assert [name for name in f"{core} {rest}".split() if is_core(name)] == core.split()


def test_a_directory_within_another_is_not_walked_twice() -> None:
    assert drop_nested(["/a/b", "/c", "/a", "/a/b", "/ab"]) == ["/c", "/a", "/ab"]


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
    assert directories.digest_external_headers(includes, DigestMemory()) == ()


@pytest.mark.parametrize("name", ["cublas_v2.h", "zlib.h"])
def test_any_other_header_adds_all_others(directories: HeaderDirectories, name: str) -> None:
    lines = directories.digest_external_headers(["stdio.h", name], DigestMemory())
    assert [line.split()[0] for line in lines] == ["other-cuda-headers", "other-headers"]
    assert lines == directories.digest_external_headers(None, DigestMemory())


def test_a_header_that_is_installed_later_is_noticed(directories: HeaderDirectories) -> None:
    assert directories.digest_external_headers(["late.h"], DigestMemory()) == ()
    Path(directories.system[0], "late.h").write_text("// late")
    assert directories.digest_external_headers(["late.h"], DigestMemory())


def test_an_empty_directory_in_the_search_path_changes_nothing_and_a_header_in_it_does(
    directories: HeaderDirectories, tmp_path: Path
) -> None:
    memory = DigestMemory()
    local = tmp_path / "local"
    more = HeaderDirectories(
        directories.toolkit, directories.compiler, (str(local), *directories.system)
    )
    assert more.digest_system_core(memory) == directories.digest_system_core(memory)
    local.mkdir()
    (local / "stdio.h").write_text("// shadows")
    assert more.digest_system_core(memory) != directories.digest_system_core(memory)


# Packages of headers and NVIDIA's wheels, found without importing anything.
def test_a_package_is_found_and_not_imported(tmp_path, monkeypatch) -> None:
    (tmp_path / "headers_of_mine/source/include").mkdir(parents=True)
    (tmp_path / "headers_of_mine/__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    directory = find_package_directory("headers_of_mine", "source/include")
    assert directory == str(tmp_path / "headers_of_mine/source/include")
    assert "headers_of_mine" not in sys.modules


@pytest.mark.parametrize(
    ("package", "path", "message"),
    [
        ("no_such_package_here", "include", "no package"),
        ("not a name", "include", "no package"),
        ("", "include", "no package"),
        ("json", "include", 'no directory "include"'),
        ("antigravity", "include", "is a module"),
    ],
)
def test_what_is_not_there_is_a_lookup_error(package: str, path: str, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        find_package_directory(package, path)


def test_the_newest_wheels_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cu12", "cu13", "cudnn"):
        (tmp_path / "nvidia" / name / "bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert list_wheel_roots() == [str(tmp_path / "nvidia/cu13"), str(tmp_path / "nvidia/cu12")]
    root = tmp_path / "nvidia/cu13"
    (tmp_path / "nvidia_nvvm-13.5.37.dist-info").mkdir()
    (tmp_path / "numpy-2.1.0.dist-info").mkdir()
    assert read_wheel_releases(str(root)) == {"nvidia-nvvm": "13.5.37"}
    assert read_wheel_releases(str(tmp_path)) == {}


# What tools are asked, they answer with a TMPDIR of their own.
@pytest.mark.parametrize("ending", ["echo well", "exit 1", "kill -9 $$", "kill -XFSZ $$"])
def test_what_a_tool_leaves_is_removed(tmp_path, monkeypatch, ending) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    tool = tmp_path / "tool"
    tool.write_text(
        f'#!/bin/sh\nmkdir "$TMPDIR/d" && echo "$TMPDIR" > "{tmp_path}/said"\n{ending}\n'
    )
    tool.chmod(0o755)
    with LocalRunner() as runner:
        probe = Probe(runner, dict(os.environ, TMPDIR="/nowhere"), DigestMemory())
        try:
            answer = probe.query_program(str(tool), remember=False)
        except (ProbeError, OSError):
            answer = ""
    assert answer == ("well\n" if "well" in ending else "")
    assert Path((tmp_path / "said").read_text().strip()).parent == tmp_path / "tmp"
    assert os.listdir(tmp_path / "tmp") == []


def test_a_tool_can_be_asked_where_no_directory_can_be_made(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tilusbuild.state.temporary.find_temporary_root", lambda: "/missing")
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho well\n")
    tool.chmod(0o755)
    with LocalRunner() as runner:
        assert Probe(runner, dict(os.environ), DigestMemory()).query_program(str(tool)) == "well\n"
