"""`KernelCache`: kernels from memory, from disk and from the compiler, through each backend."""

import copy
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tilusbuild
from support import command_line
from support.project import Project
from support.scale import TEMPLATE, manifest
from tilusbuild import KernelCache, KernelNotBuilt, Source
from tilusbuild.cache.index import read_index
from tilusbuild.cache.tree import Tree
from tilusbuild.errors import InputError
from tilusbuild.jit import kernel_cache
from tilusbuild.jit.kernel_cache import Stats

X = np.arange(5, dtype="float32")


def test_memory_then_disk_then_the_compiler(source: Source) -> None:
    kernels = KernelCache()
    first = kernels.cached(source, target="cpu", times=2)
    assert kernels.stats == Stats(compiles=1)
    assert kernels.cached(source, target="cpu", times=2) is first
    assert kernels.stats == Stats(memory_hits=1, compiles=1)
    other = KernelCache()
    other.cached(source, target="cpu", times=2)
    assert other.stats == Stats(disk_hits=1)


@pytest.mark.parametrize("backend", ["tvm_ffi", "ctypes"])
def test_each_backend_computes_the_same_and_checks_the_same(source: Source, backend: str) -> None:
    kernel = KernelCache().cached(source, target="cpu", execution_backend=backend, times=3)
    np.testing.assert_array_equal(kernel(2.0, X), 6 * X)
    into = np.empty_like(X)
    assert kernel(2.0, X, into) is None
    np.testing.assert_array_equal(into, 6 * X)
    np.testing.assert_array_equal(kernel(x=X, a=1), 3 * X)
    # Every other mistake in a call: tests/runtime/test_load.py.
    with pytest.raises(TypeError, match=r'argument "x".*expected f32\*\[n\], got f64'):
        kernel(2.0, X.astype("float64"), into)
    with pytest.raises(ValueError, match=r'argument "x".*contiguous'):
        kernel(2.0, np.zeros(10, "float32")[::2], into)


@pytest.mark.nvcc
def test_nvrtc_is_the_device_compiler_of_the_build(source: Source) -> None:
    kernel = KernelCache().cached(source, target="sm_90a", execution_backend="nvrtc", times=2)
    assert kernel.backend == "nvrtc"
    with open(os.path.join(os.path.dirname(kernel.device_kernel_path), "compile.sh")) as script:
        assert "# NVRTC is a path" in script.read()


def test_which_arguments_are_outputs_can_be_said(source: Source) -> None:
    table = {**source.table, "args": {**source.table["args"], "y": "f32*[n]"}}
    plain = Source(source.text, **table)
    kernels = KernelCache()
    with pytest.raises(TypeError):
        kernels.cached(plain, target="cpu")(2.0, X)
    assert kernels.cached(plain, target="cpu", out_idx=[-1])(2.0, X).shape == (5,)
    with pytest.raises(InputError, match="out_idx 3: scale is called with 3 arguments"):
        kernels.cached(plain, target="cpu", out_idx=3)
    with pytest.raises(KernelNotBuilt, match='parameter 2 of "scale" is const float'):
        kernels.cached(plain, target="cpu", out_idx=1)  # an input: no call may overwrite it


def test_threads_that_ask_for_one_kernel_wait_for_one_compile(source: Source) -> None:
    kernels = KernelCache()
    with ThreadPoolExecutor(8) as threads:
        asked = threads.map(lambda _: kernels.cached(source, target="cpu", times=1), range(8))
    assert len(set(map(id, asked))) == 1
    assert kernels.stats == Stats(memory_hits=7, compiles=1)


def test_scripts_of_a_project_and_their_edits(project: Path) -> None:
    kernels = KernelCache()
    kernel = kernels.cached("scale", target="host", kind="two", times=3)
    assert kernel.script.params == {"kind": "two"}
    assert kernel.script.get_schedule(kernel.script.first_program) == {"times": 3}
    np.testing.assert_array_equal(kernel(1.0, X), 3 * X)
    template = project / "scale.cu.j2"
    template.write_text(template.read_text().replace("a * x[i]", "a + x[i]"))
    edited = kernels.cached("scale", target="host", kind="two", times=3)
    np.testing.assert_array_equal(edited(1.0, X), 3 * X + 1)
    assert kernels.stats.compiles == 2
    elsewhere = kernels.cached(f"{project}:scale", target="cpu", kind="two", times=3)
    assert elsewhere.script.hash == edited.script.hash


def test_the_projects_own_build_is_not_touched(project: Path, cache: Path) -> None:
    kernels = KernelCache()
    kernels.cached("scale", target="host", kind="one", times=1)
    where = ("--cache-dir", cache)
    command_line.run(project, "build", "-q", "-t", "host", *where)
    before = read_index(Tree(str(cache)))[str(project / "tilus.toml")]
    assert len(before.scripts) == 2
    kernels.cached("scale", target="host", kind="one", times=2)
    after = read_index(Tree(str(cache)))
    assert after[str(project / "tilus.toml")] == before
    command_line.run(project, "cache", "gc", *where)
    again = KernelCache()
    again.cached("scale", target="host", kind="one", times=1)
    assert again.stats == Stats(disk_hits=1)  # what was asked for is kept

    from tilusbuild import load

    os.chdir(cache.parent)
    assert len(load("scale", where=str(cache), kind="one").programs) == 3


def test_the_cache_keeps_to_its_size(source: Source, cache: Path, monkeypatch) -> None:
    """Given a kernel that is no longer held, when another is requested and the cache shall be
    small, then the first is removed, and the second, which is held, can be called."""
    KernelCache().cached(source, target="cpu", times=1)
    monkeypatch.setenv("TILUSBUILD_CACHE_MAX_SIZE", "1kB")
    kernels = KernelCache()
    kernel = kernels.cached(source, target="cpu", times=2)
    assert len(os.listdir(cache / "programs")) == 1
    np.testing.assert_array_equal(kernel(1.0, X), 2 * X)
    again = kernels.cached(source, target="cpu", times=2)
    np.testing.assert_array_equal(again(1.0, X), 2 * X)
    assert kernels.stats.compiles == 1
    command_line.run(cache.parent, "cache", "verify", "--cache-dir", cache)


def test_clear_empties_memory_and_disk_of_its_own(project, cache, source) -> None:
    where = ("--cache-dir", cache)
    command_line.run(project, "build", "-q", "-t", "host", *where)
    built = set(os.listdir(cache / "programs"))
    kernels = KernelCache()
    kernels.cached("scale", target="host", kind="one", times=2)
    kernels.cached(source, target="cpu", times=2)
    assert len(os.listdir(cache / "programs")) == len(built) + 1  # the project had the first
    kernels.clear_cache()
    assert set(os.listdir(cache / "programs")) == built
    kernels.cached(source, target="cpu", times=2)
    assert kernels.stats.compiles == 2 - 1 + 1
    verified = command_line.run(project, "cache", "verify", *where)
    assert verified.out == "no problems found\n"


def test_what_the_compiler_says_is_told_in_the_templates_lines(source: Source) -> None:
    text = source.text.replace("a * x[i] * {{ times }};\n}\n{% else", "oops;\n}\n{% else")
    with pytest.raises(KernelNotBuilt, match=r"kernel\.cu\.j2:3:\d+: error: .*oops") as raised:
        KernelCache().cached(Source(text, **source.table), target="cpu")
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        assert error.path is not None
        assert error.column is not None
        assert error.path.endswith("/kernel.cu.j2")
        assert error.line == 3
        assert error.text == text.splitlines()[2]
        assert error.text[error.column - 1 :].startswith("oops")
        assert "oops" in error.message


def test_scripts_that_are_not_there(project: Path) -> None:
    kernels = KernelCache()
    with pytest.raises(InputError, match='no script "scal"'):
        kernels.cached("scal")
    with pytest.raises(InputError, match="has several values of kind"):
        kernels.cached("scale", target="host")
    with pytest.raises(InputError, match='scale is not built for "sm_80"'):
        kernels.cached("scale", target="sm_80", kind="one")


def test_the_environment_says_what_is_left_open(source, monkeypatch, capfd) -> None:
    monkeypatch.setenv("TILUSBUILD_TARGET", "cpu")
    monkeypatch.setenv("TILUSBUILD_EXECUTION_BACKEND", "ctypes")
    monkeypatch.setenv("TILUSBUILD_VERBOSE", "1")
    kernel = KernelCache().cached(source, times=1)
    assert (kernel.backend, kernel.script.target) == ("ctypes", "cpu")
    monkeypatch.setenv("TILUSBUILD_EXECUTION_BACKEND", "auto")
    assert KernelCache().cached(source, times=1).backend == "tvm_ffi"
    assert "1 program" in capfd.readouterr().err


def test_flags_and_the_hosts_processor_make_other_kernels(source: Source) -> None:
    kernels = KernelCache()
    programs = {
        kernels.cached(source, target="cpu", **how).script.programs[0]  # type: ignore[arg-type]
        for how in ({}, {"compile_flags": "-fno-inline"}, {"target_host": "x86-64-v3"})
    }
    assert len(programs) == 3


def test_a_file_too_young_to_trust_its_stamp_is_read_again(project, monkeypatch) -> None:
    """An edit within the file system's tick leaves every number of `stat` as it was."""
    template = project / "scale.cu.j2"
    frozen = template.stat()
    real = os.stat

    def stat(path: str, **more: object) -> os.stat_result:
        return frozen if str(path) == str(template) else real(path, **more)  # type: ignore[arg-type]

    kernels = KernelCache()
    monkeypatch.setattr("tilusbuild.state.stamp.os.stat", stat)
    monkeypatch.setattr("time.time_ns", lambda: frozen.st_ctime_ns + 1)
    kernels.cached("scale", target="host", kind="two", times=3)
    template.write_text(template.read_text().replace("a * x[i]", "a + x[i]"))
    edited = kernels.cached("scale", target="host", kind="two", times=3)
    np.testing.assert_array_equal(edited(1.0, X), 3 * X + 1)


def test_what_changed_while_it_was_read_is_planned_again(project, monkeypatch) -> None:
    os.utime(project / "scale.cu.j2", ns=(5, 5))
    time.sleep(0.1)  # the project's own files are older than a tick
    kernels = KernelCache()
    planned_for = kernel_cache.plan_default

    def slowly(*args: Any) -> Any:
        planned = planned_for(*args)
        template = project / "scale.cu.j2"
        template.write_text(template.read_text().replace("a * x[i]", "a + x[i]"))
        return planned

    with monkeypatch.context() as while_planning:
        while_planning.setattr(kernel_cache, "plan_default", slowly)
        kernels.cached("scale", target="host", kind="two", times=3)
    edited = kernels.cached("scale", target="host", kind="two", times=3)
    np.testing.assert_array_equal(edited(1.0, X), 3 * X + 1)
    time.sleep(0.1)
    again = kernels.cached("scale", target="host", kind="two", times=3)
    assert kernels.cached("scale", target="host", kind="two", times=3) is again


@pytest.fixture
def scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Another project, where the process is now."""
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path).write_all({"tilus.toml": manifest(), "kernels/scale.cu.j2": TEMPLATE})


# What a program in Python gets is what the command line prints, and its parts as attributes.
BROKEN = manifest().replace("unroll = {", "unroll = [1, 2, oops]\nother = {")


@pytest.mark.parametrize(
    ("text", "template"),
    [
        (BROKEN, TEMPLATE),
        (manifest().replace('kernel = "scale"', 'kernal = "scale"'), TEMPLATE),
        (manifest(), TEMPLATE.replace("{{ unroll }}", "{{ unrol }}")),
        (manifest(), TEMPLATE.replace("{% endif %}", "{% endfi %}")),
    ],
    ids=["toml", "key", "name", "tag"],
)
def test_an_error_says_the_same_in_python(scale: Project, text: str, template: str) -> None:
    scale.write_all({"tilus.toml": text, "kernels/scale.cu.j2": template})
    with pytest.raises(tilusbuild.InputError) as raised:
        tilusbuild.KernelCache().cached("scale", target="cpu")
    error = raised.value
    assert scale.run("build", status=2).err.rstrip("\n") == str(error)
    assert error.path is not None
    assert error.text is not None
    source = (scale.directory / error.path).read_text().splitlines()
    assert error.line is not None
    assert error.text == source[error.line - 1]
    assert error.message in str(error)
    assert f"{error.line:>5} | {error.text}" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line, again.hint) == (str(error), error.line, error.hint)


def test_a_kernel_and_its_cache_in_what_copies_its_members(source: Source) -> None:
    kernels = KernelCache()
    kernel = kernels.cached(source, target="cpu", times=2)
    assert copy.deepcopy([kernel]) == [kernel]
    again = pickle.loads(pickle.dumps(kernel))
    assert (again.script.schedules, again.backend) == (kernel.script.schedules, kernel.backend)
    np.testing.assert_array_equal(again(3.0, np.ones(2, "f4")), [6, 6])
    for duplicate in (copy.deepcopy(kernels), pickle.loads(pickle.dumps(kernels))):
        assert duplicate.stats == Stats()


def test_numbers_of_numpy_are_values_of_the_schedule(source: Source) -> None:
    kernel = KernelCache().cached(source, target="cpu", times=cast(int, np.int64(3)))
    np.testing.assert_array_equal(kernel(1.0, np.ones(2, "f4")), [3, 3])
