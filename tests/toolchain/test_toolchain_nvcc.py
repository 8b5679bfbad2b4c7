"""This machine's own toolkit: found, whole, known by content, usable in its environment."""

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.processes import run_to_end
from tilusbuild.process.local import LocalRunner
from tilusbuild.state.digests import walk_files
from tilusbuild.toolchain import DigestMemory, Toolchain, ToolchainRequest, discover_toolchain
from tilusbuild.toolchain.cuda import Cuda
from tilusbuild.toolchain.headers import is_core_of_system, is_core_of_toolkit
from tilusbuild.toolchain.reach import find_reach

pytestmark = pytest.mark.nvcc

INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*(?:include|if.*__has_include\s*\()\s*[<"]([^>"\n]+)[>"]', re.MULTILINE
)


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    with LocalRunner() as runner:
        return discover_toolchain(ToolchainRequest(), os.environ, runner, DigestMemory())


def test_what_it_says_of_itself(toolchain: Toolchain) -> None:
    assert toolchain.cuda
    assert "sm_80" in toolchain.cuda.archs
    assert os.path.isfile(os.path.join(toolchain.cuda.include_dirs[0], "cuda_runtime.h"))
    assert not any("/" in line for line in toolchain.fingerprint_cuda)
    assert toolchain.host.libc != "-"


def test_core_headers_of_the_toolkit_include_core_headers_only(toolchain: Toolchain) -> None:
    """What lets a fingerprint leave out the rest of the toolkit's headers."""
    assert toolchain.cuda
    files = dict(walk_files(toolchain.cuda.include_dirs[0], lambda _: True))
    wrong = []
    for name, path in files.items():
        if is_core_of_toolkit(name):
            for included in INCLUDE.findall(Path(path).read_text(errors="replace")):
                beside = os.path.normpath(os.path.join(os.path.dirname(name), included))
                candidates = {beside, included, f"cccl/{included}"} & files.keys()
                wrong += [f"{name} includes {f}" for f in candidates if not is_core_of_toolkit(f)]
    assert not wrong


def test_core_headers_cover_what_the_standard_libraries_include(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    """What lets a fingerprint leave out the rest of the system's headers."""
    headers = ("bits/stdc++.h", "unistd.h", "sys/mman.h", "sys/stat.h", "sys/socket.h", "dlfcn.h",
               "fcntl.h", "pthread.h", "semaphore.h", "netinet/in.h", "poll.h")  # fmt: skip
    (tmp_path / "all.cpp").write_text("".join(f"#include <{name}>\n" for name in headers))
    command = (toolchain.host.cxx.path, "-std=c++20", "-M", "all.cpp")
    listed = run_to_end(command, cwd=tmp_path, env=toolchain.build_environment()).stdout
    directories = [
        f + "/" for f in (*toolchain.host.compiler_headers, *toolchain.host.system_headers)
    ]
    wrong = []
    for word in listed.replace("\\\n", " ").split():
        path = os.path.realpath(word)
        holders = [directory for directory in directories if path.startswith(directory)]
        if word.startswith("/") and holders:
            holder = max(holders, key=len)
            is_system = holder[:-1] in toolchain.host.system_headers
            if is_system and not is_core_of_system(path[len(holder) :]):
                wrong.append(path)
    assert not wrong


@pytest.mark.parametrize(("version", "takes"), [("12.9.86", False), ("13.0.48", True)])
def test_a_seed_is_for_releases_that_have_the_flag(version: str, takes: bool) -> None:
    assert Cuda("nvcc", "/", version, (), (), (), "", "", ()).takes_seed == takes


def test_a_compile_may_open_what_the_links_of_a_toolkit_lead_to(tmp_path: Path) -> None:
    for name, link in {"x.h": "include/x.h", "libx.so.10": "lib/libx.so"}.items():
        (tmp_path / name).write_text("")
        (tmp_path / "cuda" / link).parent.mkdir(parents=True)
        (tmp_path / "cuda" / link).symlink_to(tmp_path / name)
    root = str(tmp_path / "cuda")
    cuda = Cuda(
        f"{root}/bin/nvcc", root, "13.0", (), (), (f"{root}/include",), "", f"{root}/lib", ()
    )
    nothing = SimpleNamespace(compiler_headers=(), system_headers=(), files=(), tools=(), parts=())
    uncached: Any = find_reach.__wrapped__
    reach = uncached(nothing, cuda, None, sandboxed=True)
    assert str(tmp_path / "x.h") in reach.headers
    assert str(tmp_path / "libx.so.10") in reach.tools
