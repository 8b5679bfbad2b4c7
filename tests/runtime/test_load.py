"""Finding a script and calling it: places, instances, arguments, outputs."""

import importlib
import os
import shutil
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilusbuild
from support.marks import Marks
from tilusbuild.runtime import choose, library, option
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.process import process


def ran(kernel: Any, n: int) -> int:
    """Which variant of `mark` a call of this size runs."""
    return round(float(kernel(np.zeros(n, "float32"))[-1]))


def test_a_misspelt_variable_is_logged_once(built: Marks, monkeypatch, caplog) -> None:
    monkeypatch.setenv("TILUSBUILD_REQUIRE_SIGN", "release.pem")
    option.warn_of_unknown_variables.cache_clear()
    for _ in range(2):
        tilusbuild.load("mark", where=built.cache)
    expected = 'TILUSBUILD_REQUIRE_SIGN is not a variable of tilusbuild: did you mean "TILUSBUILD_'
    assert [message.partition("REQUIRE_SIGNED")[0] for message in caplog.messages] == [expected]


def test_outputs_left_out_are_allocated_and_returned(built: Marks) -> None:
    kernel = tilusbuild.load("modelled", where=built.cache, real="f64")
    x = np.arange(6.0).reshape(2, 3)
    for result in (kernel(x, 5), kernel(x=x, k=5), kernel(x, k=5)):
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, np.repeat(x, 2, axis=1) + 5)
    output = np.empty((2, 6))
    for call in (lambda: kernel(x, k=5, y=output), lambda: kernel(x, output, 5)):
        output.fill(0)
        assert call() is None
        np.testing.assert_array_equal(output, np.repeat(x, 2, axis=1) + 5)


def test_torch_tensors_on_the_cpu(built: Marks) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    kernel = tilusbuild.load("mark", where=built.cache)
    x = torch.arange(8, dtype=torch.float32)
    y = kernel(x)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y, 10 * x + 1)


def test_mistakes_in_a_call_are_named(built: Marks) -> None:
    kernel = tilusbuild.load("modelled", where=built.cache, real="f64")
    x, y = np.ones((2, 3)), np.ones((2, 6))
    no_array = r"expected f64|not an array that supports DLPack"
    for error, text, args, named in (
        (TypeError, "misses k", (x,), {}),
        (TypeError, r"no argument 'kk': .*\"k\"", (x,), {"kk": 5}),
        (TypeError, "4 were given", (x, x, 1, 2), {}),
        (TypeError, "5 were given", (x, x, 1, 2), {"k": 5}),
        (TypeError, "expected f64", (x, y.astype("f4"), 5), {}),
        (ValueError, "shape", (np.ones(3), y, 5), {}),
        (TypeError, no_array, ([1.0], y, 5), {}),
    ):
        with pytest.raises(error, match=text):
            kernel(*args, **named)


def test_selection_by_rule_and_default(built: Marks) -> None:
    kernel = tilusbuild.load("mark", where=built.cache)
    assert kernel.select(n=4)[:2] == (2, "table")
    assert kernel.select(n=5)[:2] == (1, "default")
    assert kernel.select(n=4).schedule == {"variant": 2}
    assert (ran(kernel, 4), ran(kernel, 5)) == (2, 1)
    model = tilusbuild.load("modelled", where=built.cache, real="f32")
    chosen = model.select(m=20, n=10, k=1)  # the model chooses for m's bucket, 32
    assert (chosen.schedule, chosen.source) == ({"tile": 32}, "model")
    with pytest.raises(TypeError, match="chosen by n"):
        kernel.select()
    with pytest.raises(TypeError, match="no size 'x'"):
        kernel.select(n=1, x=3)


def test_the_programs_and_their_schedules(built: Marks) -> None:
    kernel = tilusbuild.load("mark", where=built.cache)
    assert [p.schedule for p in kernel.programs] == [{"variant": i} for i in range(4)]
    assert {p.status for p in kernel.programs} == {"built"}
    assert kernel.schedule(3) == {"variant": 3}
    with pytest.raises(IndexError):
        kernel.schedule(4)
    text = kernel.explain(n=4)
    assert "rule: n <= 4" in text
    assert "suits: host code" in text


def test_where_may_be_many_things(built: Marks) -> None:
    module = ModuleType("kernels")
    module.__path__ = [str(built.cache)]
    script = built.paths("mark")[0]
    cache = built.cache
    for where in (cache, str(cache), built.directory, script, module, lambda: cache):
        assert ran(tilusbuild.load("mark", where=where), 9) == 1
    with pytest.raises(LoadError, match="not a directory"):
        tilusbuild.load("mark", where="/nowhere")
    with pytest.raises(TypeError):
        tilusbuild.load("mark", where=3)


@pytest.mark.parametrize("name", ["", " ", "x[", "x[]", "a/b/c", "mark/", "../mark", "mark\0"])
def test_what_is_no_name_is_refused(built: Marks, name: str) -> None:
    with pytest.raises(LoadError) as caught:
        tilusbuild.load(name, where=built.cache)
    assert str(caught.value).startswith(f"{name!r}: ")


def test_places_are_looked_in_in_order(built, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match="searched:"):
        tilusbuild.load("mark")
    (built.directory / "deep").mkdir(exist_ok=True)
    monkeypatch.chdir(built.directory / "deep")
    assert str(built.cache) in tilusbuild.load("mark").explain()

    site = tmp_path / "site"
    (site / "marks_package").mkdir(parents=True)
    (site / "marks_package" / "__init__.py").write_text("")
    for name in ("scripts", "programs"):
        (site / "marks_package" / name).symlink_to(built.cache / name)
    (site / "marks-1.dist-info").mkdir()
    (site / "marks-1.dist-info" / "METADATA").write_text("Name: marks\nVersion: 1\n")
    points = "[tilusbuild.packages]\nmarks = marks_package\n"
    (site / "marks-1.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    assert str(built.cache) in tilusbuild.load("mark").explain()
    monkeypatch.chdir(tmp_path)
    assert "site/marks_package" in tilusbuild.load("mark").explain()

    monkeypatch.setenv("TILUSBUILD_CACHE_DIR", str(built.cache))
    assert str(built.cache) in tilusbuild.load("mark").explain()
    sys.modules.pop("marks_package", None)


def test_what_is_not_there_is_named_with_what_is(built: Marks) -> None:
    for name, how, text in (
        ("marks", {}, f'did you mean "mark"(.|\\s)*{built.cache}'),
        ("mark", {"target": "h100"}, r"not built for 'h100': there is cpu"),
        ("modelled", {}, r"real='f32'\s+real='f64'"),
        ("modelled", {"real": "f16"}, r"there are: real='f32'; real='f64'"),
        ("modelled", {"rael": "f32"}, 'did you mean "real"'),
    ):
        with pytest.raises(LoadError, match=text):
            tilusbuild.load(name, where=built.cache, **how)  # type: ignore[arg-type]


def test_only_what_the_last_build_made_is_loaded(copied: Marks) -> None:
    manifest = copied.directory / "tilus.toml"
    manifest.write_text(manifest.read_text().replace("range = [0, 3]", "range = [0, 2]"))
    copied.run("build", "mark")
    assert len(copied.paths("mark")) == 2
    (copied.cache / "index.json").unlink()
    copied.run("build")
    assert len(tilusbuild.load("mark", where=copied.cache).programs) == 3


def test_nothing_is_written_beside_the_programs(copied: Marks) -> None:
    def listing() -> dict[str, int]:
        files = [p for p in copied.cache.rglob("*") if not p.is_symlink()]
        return {str(p): p.stat().st_ctime_ns for p in files}

    before = listing()
    assert ran(tilusbuild.load("mark", where=copied.cache), 9) == 1
    assert listing() == before


def test_one_library_for_one_program_that_is_used(copied, monkeypatch) -> None:
    opened: list[str] = []
    load = library._open_cached_launcher

    def noted(path: str, script: Any) -> Any:
        opened.append(path)
        return load(path, script)

    monkeypatch.setattr(library, "_open_cached_launcher", noted)
    kernel = tilusbuild.load("mark", where=copied.cache)
    assert opened == []
    barrier = threading.Barrier(8)

    def call(_: int) -> set[int]:
        barrier.wait()
        return {ran(kernel, n) for n in range(5, 50)}

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(call, range(8))) == [{1}] * 8
    assert len(opened) == 1


def test_a_fork_does_not_wait_for_a_lock_of_its_parent(built: Marks) -> None:
    kernel = tilusbuild.load("mark", where=built.cache)
    assert ran(kernel, 9) == 1
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with kernel._lock, process.library_lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the test
        child = os.fork()
    if child == 0:
        os._exit(0 if ran(kernel, 3) == 2 else 1)  # a program that the parent has not opened
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_working_directory_that_is_gone(built, tmp_path, monkeypatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert ran(tilusbuild.load("mark", where=built.cache), 9) == 1
    with pytest.raises(LoadError):
        tilusbuild.load("mark")


def test_what_a_kernel_remembers_is_bounded(built: Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_MAX_CACHED", 3)
    kernel = tilusbuild.load("modelled", where=built.cache, real="f32")
    sizes = [{"m": 2**i, "n": n, "k": 0} for n in (5, 500) for i in range(7)]
    first = [kernel.select(**size)[:2] for size in sizes]
    assert [kernel.select(**size)[:2] for size in sizes] == first
    assert kernel._activate_default().chooser._choose_for_bucket_cached.cache_info().currsize <= 3


def test_a_program_that_did_not_come_along_is_not_chosen(copied: Marks) -> None:
    default = copied.script("mark").programs[1]
    shutil.rmtree(copied.cache / "programs" / default)
    kernel = tilusbuild.load("mark", where=copied.cache)
    chosen = kernel.select(n=9)
    assert (chosen.program, chosen.source) == (0, "default")
    assert "the default, 1, is missing" in chosen.why
    for digest in copied.script("mark").programs.values():
        shutil.rmtree(copied.cache / "programs" / digest, ignore_errors=True)
    with pytest.raises(LoadError):
        tilusbuild.load("mark", where=copied.cache).select(n=9)
