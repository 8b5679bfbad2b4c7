"""NVRTC: where it is looked for, what makes it one, and what it is called in a fingerprint."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from support.fake_runner import finished
from tilusbuild.arch import parse_arch
from tilusbuild.errors import InputError
from tilusbuild.toolchain import (
    DigestMemory,
    ToolchainRequest,
    discover_nvrtc,
    discover_toolchain,
    discovery,
)
from tilusbuild.toolchain.nvrtc import NvrtcLibrary

World = Any


def find(world: World, nvcc: str | None = None) -> NvrtcLibrary:
    request = ToolchainRequest(nvcc, False, str(world.root))
    return discover_nvrtc(request, world.env, world.runner, world.memory)


def test_it_needs_neither_nvcc_nor_a_host_compiler(world: World) -> None:
    world.env["CUDA_HOME"] = str(world.root / "cuda")
    library = world.nvrtc(world.root / "cuda")
    nvrtc = find(world)
    assert (nvrtc.library, nvrtc.version, nvrtc.release) == (str(library), "13.0.88", (13, 0))
    assert nvrtc.include_dir == str(world.root / "cuda/include")
    assert nvrtc.can_target(parse_arch("sm_90a"))
    assert not nvrtc.can_target(parse_arch("sm_86"))
    find(world)
    assert [c.argv[-1] for c in world.runner.journal] == ["identify"]  # once for each content


def test_the_order_is_that_of_nvccs_search(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest's path, CUDA_HOME, CUDA_PATH, beside an nvcc on PATH, installed ones, wheels."""
    named = ("own", "home", "path", "onpath", "installed/cuda-13.0", "site/nvidia/cu13")
    expected = [str(world.nvrtc(world.root / name)) for name in named]
    monkeypatch.setattr(discovery, "list_wheel_roots", lambda: [str(world.root / named[-1])])
    world.write("onpath/bin/nvcc", "", executable=True)
    world.env |= {
        "CUDA_HOME": str(world.root / "home"),
        "CUDA_PATH": str(world.root / "path"),
        "PATH": str(world.root / "onpath/bin"),
    }
    world.write("own/bin/nvcc", "", executable=True)
    libraries = []
    for name in named:
        libraries.append(find(world, "own/bin/nvcc").library)
        shutil.rmtree(world.root / name / "lib64")
    assert libraries == expected
    with pytest.raises(InputError, match="no NVRTC found"):
        find(world)


def test_a_requirement_on_nvcc_holds_for_it(world: World) -> None:
    world.nvrtc(world.root / "old", "12.4.99")
    newer = world.nvrtc(world.root / "new")
    world.env |= {"CUDA_HOME": str(world.root / "old"), "CUDA_PATH": str(world.root / "new")}
    assert find(world).version == "12.4.99"
    assert find(world, ">=13").library == str(newer)
    with pytest.raises(InputError) as caught:
        find(world, ">=14")
    hint = caught.value.diagnostics[0].hint or ""
    assert "version 12.4.99 does not meet >=14" in hint
    assert "pip install 'tilusbuild[nvrtc]'" in hint


def test_headers_are_of_its_own_release(world: World) -> None:
    """Given a library without headers beside it, those of another toolkit serve if they fit."""
    library = world.nvrtc(world.root / "first")
    shutil.rmtree(world.root / "first/include")
    world.nvrtc(world.root / "second", "12.4.99")
    world.env |= {"CUDA_HOME": str(world.root / "first"), "CUDA_PATH": str(world.root / "second")}
    nvrtc = find(world)
    assert (nvrtc.library, nvrtc.include_dir) == (str(library), None)
    assert nvrtc.format_fingerprint(world.memory)[-1] == "cuda-headers - -"
    world.write("second/include/cuda_runtime_api.h", "#define CUDART_VERSION 13000")
    assert find(world).include_dir == str(world.root / "second/include")


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (finished(status=-11), "ended with status -11"),
        (finished("nvrtc: NVRTC cannot be loaded: wrong ELF class\n", status=2), "wrong ELF class"),
        (finished("what?\n"), "does not report its release"),
    ],
)
def test_one_that_does_not_work_is_passed_over(world: World, answer: Any, note: str) -> None:
    broken = world.nvrtc(world.root / "broken")
    world.write("broken/lib64/libnvrtc-builtins.so.13.0", "of another kind")
    world.runner.on(lambda c: str(broken) in c.argv, answer)
    good = world.nvrtc(world.root / "good")
    world.env |= {"CUDA_HOME": str(world.root / "broken"), "CUDA_PATH": str(world.root / "good")}
    request = ToolchainRequest(None, False, str(world.root))
    world.host()
    toolchain = discover_toolchain(request, world.env, world.runner, DigestMemory())
    assert toolchain.nvrtc is None
    assert find(world).library == str(good)
    (world.root / "good/lib64/libnvrtc-builtins.so.13.0").unlink()
    with pytest.raises(InputError) as caught:
        find(world)
    hint = caught.value.diagnostics[0].hint or ""
    assert note in hint
    assert "no libnvrtc-builtins beside it" in hint


def test_an_answer_of_another_form_is_not_kept(world: World) -> None:
    """Given a library whose first answer has no release, when it is asked again with the same
    memory, then its present answer counts."""
    world.env["CUDA_HOME"] = str(world.root / "cuda")
    library = world.nvrtc(world.root / "cuda")
    world.runner.on(lambda c: str(library) in c.argv, finished("what?\n"))
    with pytest.raises(InputError, match="no NVRTC found"):
        find(world)
    world.nvrtc(world.root / "cuda")
    assert find(world).release == (13, 0)


def test_a_fingerprint_is_what_the_library_is_and_not_where(world: World) -> None:
    def fingerprint(root: Path) -> tuple[str, ...]:
        world.env["CUDA_HOME"] = str(root)
        nvrtc, memory = find(world), world.memory
        return (*nvrtc.format_fingerprint(memory), *nvrtc.format_joiner_fingerprint(memory))

    world.nvrtc(world.root / "here")
    world.nvrtc(world.root / "there/and/there", directory="lib")
    fingerprint_lines = fingerprint(world.root / "here")
    assert fingerprint_lines == fingerprint(world.root / "there/and/there")
    assert not any(str(world.root) in line for line in fingerprint_lines)
    assert [line.split()[0] for line in fingerprint_lines] == [
        "nvrtc",
        "nvrtc-builtins",
        "cuda-headers",
    ]
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0"):
        with (world.root / "here/lib64" / name).open("a") as file:
            file.write(" changed")
        changed = fingerprint(world.root / "here")
        assert changed != fingerprint_lines
        fingerprint_lines = changed
    world.write("here/include/cuda_fp16.h", "// new")
    assert fingerprint(world.root / "here") != fingerprint_lines
    world.write("here/lib64/libnvfatbin.so.13", "joins")
    assert fingerprint(world.root / "here")[-1].startswith("nvfatbin - ")


def test_an_architecture_that_it_does_not_know(world: World) -> None:
    world.host()
    world.env["CUDA_HOME"] = str(world.root / "cuda")
    world.nvrtc(world.root / "cuda")
    request = ToolchainRequest(None, False, str(world.root), needs_nvrtc=True)
    toolchain = discover_toolchain(request, world.env, world.runner, world.memory)
    toolchain.check_archs([parse_arch("sm_90a")], nvrtc=True)
    with pytest.raises(InputError, match=r"NVRTC 13\.0\.88 does not compile for sm_75"):
        toolchain.check_archs([parse_arch("sm_75")], nvrtc=True)
