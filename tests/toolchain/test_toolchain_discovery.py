"""The search for compilers on made-up machines: its order, what it refuses, what it remembers."""

import errno
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from support.fake_runner import finished
from tilusbuild.arch import parse_arch
from tilusbuild.errors import InputError, Location
from tilusbuild.preflight.diagnose import diagnose_components
from tilusbuild.toolchain import Toolchain, ToolchainRequest, discovery

World = Any
"""The fixtures' machine, of conftest.py."""


def refused(world: World, nvcc: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        world.discover(nvcc)
    assert caught.value.exit_status == 2
    return str(caught.value.render())


def test_what_is_on_path_has_a_fingerprint_of_versions_and_digests(machine: World) -> None:
    toolchain = machine.discover()
    cuda, host = toolchain.cuda, toolchain.host
    assert (cuda.version, cuda.release, cuda.link_flags) == ("13.0.88", (13, 0), ())
    assert cuda.nvcc == str(machine.root / "cuda/bin/nvcc")
    assert (host.cxx.version, host.ld.version, host.libc) == ("12.2.0", "2.40", "2.36")
    lines = tuple(tool.line for tool in cuda.tools)
    assert toolchain.fingerprint_cuda[: len(lines)] == lines
    assert set(toolchain.fingerprint_host) < set(toolchain.fingerprint_cuda)
    assert not any("/" in line for line in toolchain.fingerprint_cuda)
    assert all(len(line.split()) == 3 for line in toolchain.fingerprint_cuda[:-20])


def test_the_order_of_the_search(machine: World) -> None:
    installed = machine.root / "installed"
    machine.toolkit(installed / "cuda-12.9", "12.9.86")
    machine.toolkit(installed / "cuda-13.1", "13.1.10")
    home = machine.toolkit(machine.root / "home", "12.8.93")
    searched = [entry.where for entry in machine.discover().searched]
    assert searched == [
        "CUDA_HOME",
        "CUDA_PATH",
        f"PATH ({machine.root}/cuda/bin/nvcc)",
        f"{installed}/cuda* ({installed}/cuda-13.1/bin/nvcc)",
        f"{installed}/cuda* ({installed}/cuda-12.9/bin/nvcc)",
        "NVIDIA's wheels in this Python environment",
    ]
    machine.env["CUDA_HOME"] = str(home)
    assert machine.discover().cuda.version == "12.8.93"


def test_a_requirement_passes_over_what_does_not_meet_it(machine: World) -> None:
    machine.toolkit(machine.root / "installed/cuda-12.9", "12.9.86")
    toolchain = machine.discover(">=12.4,<13")
    assert toolchain.cuda.version == "12.9.86"
    notes = {entry.where: entry.note for entry in toolchain.searched}
    note = notes[f"PATH ({machine.root}/cuda/bin/nvcc)"]
    assert note == "version 13.0.88 does not meet >=12.4,<13"
    message = refused(machine, ">=14")
    assert 'no nvcc found for toolchain.nvcc = ">=14"' in message
    assert "version 13.0.88 does not meet >=14" in message
    assert "pip install 'tilusbuild[cuda]'" in message


def test_an_invalid_requirement_is_shown_at_its_place(machine: World) -> None:
    request = ToolchainRequest("13.0", location=Location("tilus.toml", 3, 8))
    with pytest.raises(InputError) as caught:
        discovery.discover_toolchain(request, machine.env, machine.runner, machine.memory)
    assert caught.value.render().startswith("tilus.toml:3:8: error: toolchain.nvcc")


@pytest.mark.parametrize("written", ["other", "other/bin/nvcc", "../{name}/other"])
def test_a_path_is_relative_to_the_project_and_the_only_place(machine: World, written: str) -> None:
    machine.toolkit(machine.root / "other", "12.9.86")
    path = f"./{written}".format(name=machine.root.name)
    toolchain = machine.discover(path)
    assert toolchain.cuda.version == "12.9.86"
    assert len(toolchain.searched) == 1
    assert "no such file" in refused(machine, "./nothing")


def test_a_wrapper_script_leads_to_the_toolkit_behind_it(machine: World) -> None:
    real = machine.root / "cuda"
    wrapper = machine.write("wrappers/nvcc", f"#!/bin/sh\nexec {real}/bin/nvcc", executable=True)
    machine.runner.on(
        str(wrapper),
        lambda command: machine._cuda_answer(
            type(command)((str(real / "bin/nvcc"), *command.argv[1:]), command.cwd)
        ),
    )
    machine.env["PATH"] = f"{machine.root}/usr/bin:{wrapper.parent}"
    assert machine.discover().cuda.nvcc == str(real / "bin/nvcc")


def test_equal_tools_have_one_fingerprint_in_any_place_and_by_any_name(machine: World) -> None:
    before = machine.discover()
    root = machine.toolkit(machine.root / "site/nvidia/cu13", wheels=True)
    wheels = machine.discover(str(root))
    assert wheels.cuda.link_flags == (f"-L{root}/lib",)
    moved = machine.move(machine.root / "cuda", machine.root / "elsewhere")
    machine.env["PATH"] = f"{machine.root}/usr/bin:{moved}/bin"
    after = machine.discover()
    assert after.cuda.nvcc != before.cuda.nvcc
    request = ToolchainRequest(project_root=str(machine.root), name="other")
    named = discovery.discover_toolchain(request, machine.env, machine.runner, machine.memory)
    assert named != after == machine.discover()
    assert all(
        toolchain.fingerprint_cuda == before.fingerprint_cuda
        for toolchain in (wheels, after, named)
    )


@pytest.mark.parametrize(
    "changed",
    ["cuda/bin/ptxas", "cuda/nvvm/bin/cicc", "cuda/bin/nvcc.profile", "cuda/bin/crt/link.stub",
     "cuda/nvvm/libdevice/libdevice.10.bc", "cuda/include/cuda_fp16.h", "cuda/lib64/libcudadevrt.a",
     "usr/lib/cc1plus", "usr/lib/crti.o", "usr/bin/as", "usr/include/stdio.h",
     "usr/include/c++/12/vector"],
)  # fmt: skip
def test_whatever_a_compile_depends_on_changes_the_fingerprint(machine, changed) -> None:
    before = machine.discover().fingerprint_cuda
    path = machine.root / changed
    path.write_text(path.read_text() + " patched")
    assert machine.discover().fingerprint_cuda != before


@pytest.mark.parametrize("added", ["cuda/include/cublas_v2.h", "usr/include/jpeglib.h"])
def test_an_unrelated_header_does_not(machine: World, added: str) -> None:
    before = machine.discover()
    machine.write(added, "// new")
    after = machine.discover()
    assert after.fingerprint_cuda == before.fingerprint_cuda
    directories = after.find_header_directories(cuda=True)
    assert directories.digest_external_headers([Path(added).name], machine.memory)
    assert not directories.digest_external_headers(["vector"], machine.memory)


def test_a_second_search_starts_nothing_unless_the_search_directories_may_differ(machine) -> None:
    directory = machine.root / "usr/include/c++/12"

    def asked() -> list[str]:
        machine.runner.journal.clear()
        machine.discover()
        return [command.argv[1] for command in machine.runner.journal]

    machine.discover()
    assert asked() == []
    directory.rename(machine.root / "elsewhere")
    assert asked() == ["-E"]
    directory.symlink_to(machine.root / "elsewhere")
    assert asked() == ["-E"]
    machine.write("usr/lib/cc1plus", "another", executable=True)
    assert asked() == ["-E"]


def test_no_cuda_is_looked_for_when_none_is_needed(world: World) -> None:
    world.host()
    toolchain = world.discover(needs_cuda=False)
    assert toolchain.fingerprint_host
    assert (toolchain.cuda, toolchain.fingerprint_cuda) == (None, ())


def test_nothing_at_all_says_how_to_get_it(world: World) -> None:
    assert "apt install g++" in refused(world)
    world.host()
    message = refused(world)
    assert "no nvcc found" in message
    assert "/installed/cuda*: none" in message
    assert "pip install 'tilusbuild[cuda]'" in message


def test_a_tool_that_is_not_executable_is_refused_with_the_command_that_fixes_it(machine) -> None:
    path = machine.root / "cuda/nvvm/bin/cicc"
    path.chmod(0o644)
    if os.access(path, os.X_OK):
        pytest.skip("this user may execute everything")
    message = refused(machine, "./cuda")
    assert "cicc is not executable" in message
    assert f"chmod +x {path}" in message
    nvcc = machine.root / "cuda/bin/nvcc"
    nvcc.chmod(0o644)
    assert f"chmod +x {nvcc}" in refused(machine, "./cuda")


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        ("nvvm/bin/cicc", "incomplete: no cicc"),
        ("nvvm/libdevice", "incomplete: no libdevice"),
        ("include/cuda_runtime.h", "incomplete: no cuda_runtime.h"),
        ("include/cccl/nv/target", "incomplete: no nv/target"),
        (
            "../../nvidia_nvvm-13.0.88.dist-info",
            "mixed releases: nvcc is 13.0.88, but there is nvidia-nvvm 13.5.37",
        ),
    ],
)
def test_wheels_that_are_not_whole_are_refused_with_the_command(machine, lost, remedy) -> None:
    root = machine.toolkit(machine.root / "site/nvidia/cu13", wheels=True)
    name = "nvidia_nvvm-13.5.37.dist-info" if "nvidia_nvvm" in lost else "lost"
    (root / lost).rename(root.parent.parent / name)
    message = refused(machine, str(root))
    assert remedy in message
    toolkit = "'cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==13.0.*'"
    assert f"pip install nvidia-cuda-nvcc==13.0.88 {toolkit}" in message


# `Requires-Dist` of cuda-toolkit: the versions of nvcc, nvvm and crt, of runtime, and of cccl.
@pytest.mark.parametrize(
    ("compiler", "runtime", "cccl"),
    [
        ("13.0.48", "13.0.48", "13.0.50"),  # cuda-toolkit 13.0.0
        ("13.0.88", "13.0.96", "13.0.85"),  # 13.0.2
        ("13.1.115", "13.1.80", "13.1.115"),  # 13.1.1
        ("13.2.86", "13.2.86", "13.2.86"),  # 13.2.2
        ("13.3.73", "13.3.29", "13.3.3.4.1"),  # 13.3.1
        ("13.4.59", "13.4.49", "13.3.4.2.1"),  # 13.4.1.0
        ("13.5.37", "13.5.37", "13.3.5.0.6"),  # 13.5.0
    ],
)
def test_the_wheels_that_nvidia_pins_together_are_whole(machine, compiler, runtime, cccl) -> None:
    root = machine.toolkit(machine.root / "site/nvidia/cu13", compiler, wheels=True)
    site = root.parent.parent
    for name, version in (("runtime", runtime), ("cccl", cccl)):
        wheel = site / f"nvidia_cuda_{name}-{compiler}.dist-info"
        wheel.rename(site / f"nvidia_cuda_{name}-{version}.dist-info")
    assert machine.discover(str(root)).cuda.version == compiler


def test_a_compiler_wrapper_is_passed_over(machine: World) -> None:
    ccache = machine.write("ccache/bin/ccache", "ccache", executable=True)
    for name in ("g++", "gcc"):
        (ccache.parent / name).symlink_to(ccache)
    machine.env["PATH"] = f"{ccache.parent}:{machine.env['PATH']}"
    assert machine.discover().host.cxx.path == str(machine.root / "usr/bin/g++")


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        ("bin/g++", "g++ not found on PATH"),
        ("bin/as", "apt install binutils"),
        ("include/features.h", "apt install libc6-dev"),
    ],
)
def test_a_host_compiler_that_is_not_whole_says_what_to_install(machine, lost, remedy) -> None:
    (machine.root / "usr" / lost).unlink()
    assert remedy in refused(machine)


def test_tools_and_compiles_run_without_what_would_change_their_output(machine: World) -> None:
    machine.env |= {"NVCC_APPEND_FLAGS": "-G", "CPATH": "/evil", "LANG": "de_DE", "KEPT": "1"}
    machine.env |= {"LIBRARY_PATH": "/evil", "GCC_EXEC_PREFIX": "/evil", "SOURCE_DATE_EPOCH": "7"}
    environment = machine.discover().build_environment()
    for command in machine.runner.journal:
        assert command.env.keys() <= {"PATH", "LANG", "LC_ALL", "TMPDIR"}
        assert command.env["LC_ALL"] == "C"
    assert set(environment) == {"PATH", "LANG", "LC_ALL", "TZ", "SOURCE_DATE_EPOCH"}
    assert environment["PATH"].startswith(f"{machine.root}/usr/bin:")
    assert environment["SOURCE_DATE_EPOCH"] == "0"


def test_an_architecture_that_the_toolkit_does_not_know_says_which_it_does(machine: World) -> None:
    location = Location("tilus.toml", 12, 8)
    toolchain = machine.discover()
    toolchain.check_archs([parse_arch("sm_90a"), parse_arch("cpu")], location)
    with pytest.raises(InputError) as caught:
        toolchain.check_archs([parse_arch("sm_70"), parse_arch("sm_121")], location)
    first, second = caught.value.diagnostics
    assert first.message == "nvcc 13.0.88 does not compile for sm_70"
    assert "before 13.0" in (first.hint or "")
    assert "knows sm_80, sm_90, sm_90a, sm_120" in (second.hint or "")
    old = machine.toolkit(machine.root / "old", "12.4.99")
    with pytest.raises(InputError) as caught:
        machine.discover(str(old)).check_archs([parse_arch("sm_120")])
    assert "needs CUDA 12.8 or later" in (caught.value.diagnostics[0].hint or "")


def test_a_doctor_never_fails(world: World) -> None:
    def ask() -> dict[str, Any]:
        findings = diagnose_components(ToolchainRequest(), world.env, world.runner, world.memory)
        return {finding.component: finding for finding in findings}

    nothing = ask()
    assert nothing["g++"].status == nothing["nvcc"].status == "missing"
    assert all(finding.gives for finding in nothing.values())
    world.host()
    assert ask()["nvcc"].remedy == "pip install 'tilusbuild[cuda]'"
    world.env["CUDA_HOME"] = str(world.toolkit(world.root / "cuda"))
    assert ask()["NVRTC"].remedy == "pip install 'tilusbuild[nvrtc]'"
    world.nvrtc(world.root / "cuda")
    assert ask()["NVRTC"].status == "warning"
    world.write("cuda/lib64/libnvfatbin.so.13", "")
    world.write("cuda/bin/nvdisasm", "", executable=True)
    tool_by_name = ask()
    assert tool_by_name["g++"].status == tool_by_name["nvcc"].status == "ok"
    assert tool_by_name["nvcc"].searched[0].where.startswith("CUDA_HOME")
    assert tool_by_name["NVRTC"].status == tool_by_name["nvdisasm"].status == "ok"
    assert tool_by_name["tvm-ffi"].status == "ok"


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize("tool", ["g++", "nvcc"])
@pytest.mark.parametrize("inside", [False, True])
def test_what_the_machine_is_short_of_is_not_the_compilers_fault(
    machine: World, number: int, tool: str, inside: bool
) -> None:
    """Whether the tool was not started, or could not start its own processes."""
    message = f"{tool}: fatal error: cannot execute 'cc1plus': vfork: {os.strerror(number)}\n"
    failed = finished(message, status=1) if inside else OSError(number, os.strerror(number))
    machine.runner.on(tool, failed)
    with pytest.raises(OSError, match=os.strerror(number)):
        machine.discover()


@pytest.mark.parametrize("tool", ["g++", "nvcc"])
@pytest.mark.parametrize(
    ("end", "remedy"),
    [
        (finished("", status=-signal.SIGKILL), "ended by SIGKILL"),
        (finished("", status=-signal.SIGTERM), "ended by SIGTERM"),
        # To install a compiler again mends no Python that may not be run.
        (OSError(errno.EACCES, os.strerror(errno.EACCES), sys.executable), sys.executable),
    ],
)
def test_a_tool_that_somebody_ended_is_not_called_broken(machine, tool, end, remedy) -> None:
    machine.runner.on(tool, end)
    with pytest.raises(OSError, match=re.escape(remedy)):
        machine.discover()


def with_cxx(machine: World, cxx: str) -> Toolchain:
    location = Location("tilus.toml", 3, 7)
    request = ToolchainRequest(None, False, str(machine.root), cxx=cxx, cxx_location=location)
    return discovery.discover_toolchain(request, machine.env, machine.runner, machine.memory)


def test_a_host_compiler_by_name_has_its_gcc_beside_it(machine: World) -> None:
    for tool in ("g++", "gcc"):
        machine.write(f"usr/bin/{tool}-11", f"{tool} 11.3.0", executable=True)
    host = with_cxx(machine, "g++-11").host
    assert [(tool.name, tool.path) for tool in (host.cxx, host.cc)] == [
        (tool, f"{machine.root}/usr/bin/{tool}-11") for tool in ("g++", "gcc")
    ]
    assert host.cxx.digest != machine.discover(needs_cuda=False).host.cxx.digest


def test_a_host_compiler_by_path_is_relative_to_the_project(machine: World) -> None:
    machine.host("opt/gcc")
    machine.env["PATH"] = f"{machine.root}/usr/bin"
    toolchain = with_cxx(machine, "./opt/gcc/bin/g++")
    assert toolchain.host.cxx.path == f"{machine.root}/opt/gcc/bin/g++"
    assert toolchain.build_environment()["PATH"].startswith(f"{machine.root}/opt/gcc/bin:")


@pytest.mark.parametrize(
    ("cxx", "why"),
    [
        ("g++-11", "g++-11 not found on PATH"),
        ("./usr/bin/g++-11", "/usr/bin/g++-11 does not exist, or is not executable"),
        ("./usr/bin/x-g++", "/usr/bin/x-gcc does not exist, or is not executable"),
    ],
)
def test_a_host_compiler_that_is_not_there_is_said_at_its_place(machine, cxx, why) -> None:
    machine.write("usr/bin/x-g++", executable=True)
    with pytest.raises(InputError) as caught:
        with_cxx(machine, cxx)
    message = caught.value.render()
    assert message.startswith("tilus.toml:3:7: error: no host compiler: toolchain.cxx = ")
    assert why in message
    assert f"apt install {cxx.rpartition('/')[2]}" in message
