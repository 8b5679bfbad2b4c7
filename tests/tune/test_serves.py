"""`serves`: rules of the sizes that a program may serve, from the manifest to a call."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.project import Project, head
from tilusbuild.runtime import load
from tilusbuild.runtime.choose import Choice
from tilusbuild.runtime.errors import LoadError

RULE = 'serves = { whole = "n % vector == 0" }'
MANIFEST = (
    head()
    + f"""
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
args = {{ x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i32" }}
space = {{ vector = [4, 1, 16] }}
default = {{ vector = 4 }}
{RULE}
tune = {{ ref = "ref.py:scale", sizes = [{{ n = 65536 }}, {{ n = 65521 }}] }}
"""
)
# Right only where `vector` divides n, and faster the wider it is.
TEMPLATE = """\
extern "C" void scale(const float *x, float *y, int n) {
  for (int repeat = 0; repeat < {{ 32 // vector }}; repeat++)
    for (int i = 0; i < n / {{ vector }} * {{ vector }}; i++) {
      y[i] = 2 * x[i];
      asm volatile("" ::: "memory");
    }
}
"""
SIZES = (65536, 65521, 65524, 100, 7, 1)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    reference = "def scale(x):\n    return 2 * x\n"
    files = {"tilus.toml": MANIFEST, "scale.cu.j2": TEMPLATE, "ref.py": reference}
    return Project(tmp_path / "project", {"TMPDIR": str(tmp_path)}).write_all(files)


def widths(project: Project) -> dict[int, object]:
    """The vector width that each size gets; its result is right."""
    kernel = load("scale", where=str(project.cache))
    for n in SIZES:
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(kernel(x), 2 * x)
    return {n: kernel.select(n=n).schedule["vector"] for n in SIZES}


def test_before_any_tuning_the_default_serves_only_what_it_may(project: Project) -> None:
    project.run("build")
    assert widths(project) == {65536: 4, 65521: 1, 65524: 4, 100: 4, 7: 1, 1: 1}


def test_tuned_sizes_get_the_best_program_that_serves_them(project: Project) -> None:
    ran = project.run("tune", "scale", "--cache", "warm")
    assert "n=65521: 2 programs left out by the rules of `serves`\n" in ran.out
    assert widths(project) == {65536: 16, 65521: 1, 65524: 4, 100: 4, 7: 1, 1: 1}
    why = load("scale", where=str(project.cache)).select(n=65524).why
    assert why == (
        "measured at n = 65536; program 2 does not serve n = 65524: whole (n % vector == 0)"
    )
    (table,) = project.cache.glob("scripts/scale/*/dispatch_table.json")
    assert "refused" not in json.loads(table.read_text()), "it was not measured there"
    project.run("dispatch", "check", "scale")


def test_the_c_dispatcher_and_a_package_choose_alike(project: Project) -> None:
    project.run("tune", "scale", "--cache", "warm")
    chosen = widths(project)
    (library,) = project.cache.glob("scripts/scale/*/dispatch/libscale.so")
    select = ctypes.CDLL(str(library)).scale_select
    select.argtypes = [ctypes.c_int64]
    assert {n: [4, 1, 16][select(n)] for n in SIZES} == chosen
    package = project.run("package", "--format", "dir").out.strip()
    kernel = load("scale", where=str(Path(project.directory, package)))
    assert {n: kernel.select(n=n).schedule["vector"] for n in SIZES} == chosen


def test_run_names_the_rule_at_sizes_that_its_program_does_not_serve(project: Project) -> None:
    ran = project.run("run", "scale[vector=16]")
    assert "note: scale/2 cpu does not serve n=65521: whole (n % vector == 0)\n" in ran.err
    assert "1 size agrees with ref.py:scale" in ran.out
    err = project.run("run", "scale[vector=16]", "--size", "n=3", status=2).err
    assert "error: scale/2 cpu does not serve n=3: whole (n % vector == 0)" in err


def test_rows_of_the_repository_do_not_decide_a_rule_about_other_sizes(project: Project) -> None:
    """Given a rule that reads a size that is not a key, which no row of the repository has, then
    the rows serve, and each call decides."""
    project.edit("tilus.toml", 'n = "i32" }', 'n = "i32", count = "i32" }')
    project.edit("tilus.toml", RULE, 'serves = { few = "vector <= count" }')
    project.edit("tilus.toml", "{ n = 65536 }, { n = 65521 }", "{ n = 4096, count = 16 }")
    dispatch = 'dispatch = { keys = ["n"], measured = "scale.jsonl" }\ntune'
    project.edit("tilus.toml", "tune", dispatch)
    project.edit("scale.cu.j2", "int n)", "int n, int count)")
    project.run("tune", "scale")
    for action in ("export", "fit"):
        project.run("dispatch", action, "scale")
        assert '"count"' not in (project.directory / "scale.jsonl").read_text()
        project.run("build")
        kernel = load("scale", where=str(project.cache))
        assert kernel.select(n=4096, count=16)[1] == "measured"
        assert kernel.select(n=4096, count=1).schedule["vector"] == 1


def test_a_call_that_nothing_serves_is_an_error_that_names_the_rules(project: Project) -> None:
    project.edit("tilus.toml", "n % vector == 0", "n % vector == 0 and n > 50")
    project.run("build")
    kernel = load("scale", where=str(project.cache))
    refusal = r"no program that serves n = 7\n  whole: n % vector == 0"
    with pytest.raises(LoadError, match=refusal) as raised:
        kernel(np.zeros(7, np.float32))
    assert raised.value.__suppress_context__, "the traceback begins with no KeyError"
    project.edit("tilus.toml", "{ n = 65521 }", "{ n = 7 }")
    warned = project.run("build").err
    assert "warning: scale cpu has no program that serves n = 7" in warned
    output = project.run("dispatch", "check", "scale", status=1).out
    assert "scale cpu has no program that serves n = 7" in output


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("n % vecto == 0", 'unknown name "vecto"'),
        ("n % vector", '"n % vector" is a number, not a condition'),
        ("n %", "not an expression"),
    ],
)
def test_a_mistake_in_a_rule_is_located(project: Project, rule: str, message: str) -> None:
    project.edit("tilus.toml", "n % vector == 0", rule)
    err = project.run_to_error("plan")
    line = 1 + MANIFEST.partition(RULE)[0].count("\n")
    assert err.startswith(f"tilus.toml:{line}:")
    assert message in err


RECORDED = """\
import numpy, tilusbuild
kernel = tilusbuild.load("scale")
for n, calls in ((65536, 5), (50000, 2), (100, 12), (7, 1)):
    for _ in range(calls):
        kernel(numpy.zeros(n, "f4"))
"""


def test_the_recorded_sizes_are_tuned_and_weigh_the_coverage(project: Project) -> None:
    project.run("build")
    environment = {**os.environ, "TILUSBUILD_RECORD": "calls.jsonl"}
    subprocess.run(
        [sys.executable, "-c", RECORDED], cwd=project.directory, env=environment, check=True
    )
    text = project.directory.joinpath("tilus.toml").read_text()
    other = text[text.index("[script.scale]") :].replace("script.scale", "script.other")
    project.write("tilus.toml", text + other)
    # Without a name: the scripts that were called.
    ran = project.run("tune", "--sizes-from", "calls.jsonl", "--cache", "warm", "--json")
    tuned = [event["sizes"]["n"] for event in ran.events if event["event"] == "tuned"]
    assert tuned == [100, 65536, 7], "the most called size of each bucket, most calls first"
    checked = project.run("dispatch", "check", "scale", "--sizes-from", "calls.jsonl").out
    assert "scale cpu: 20 recorded calls: 100.0% by measured\n" in checked
    covered = project.run("dispatch", "coverage", "scale", "--sizes-from", "calls.jsonl", "--json")
    assert [(event["sizes"]["n"], event["calls"]) for event in covered.events[:-1]] == [
        (100, 12),
        (65536, 5),
        (50000, 2),
        (7, 1),
    ]


def test_recorded_calls_that_would_fail_now_are_problems(project: Project) -> None:
    project.run("build")
    line = '{"script": "scale", "params": {}, "target": "cpu", "sizes": {"n": %d}, "calls": %d}\n'
    project.write("calls.jsonl", line % (64, 6) + line % (7, 3) + line % (9, 1))
    project.edit("tilus.toml", "vector = [4, 1, 16]", "vector = [4, 16]")
    project.edit("tilus.toml", ", { n = 65521 }", "")
    project.run("build")
    ran = project.run("dispatch", "check", "scale", "--sizes-from", "calls.jsonl", status=1)
    assert "4 recorded calls at 2 sizes would fail, such as:\n" in ran.out
    assert "has no program that serves n = 7\n" in ran.out
    assert "10 recorded calls: 60.0% by default, 40.0% by none\n" in ran.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--sizes-from calls.jsonl: No such file or directory"),
        ("not a record\n", "TILUSBUILD_RECORD=FILE records them"),
        (
            '{"script": "sum", "params": {}, "target": "cpu", "sizes": {"n": 7}, "calls": 3}',
            "--sizes-from calls.jsonl: it has no calls of scale",
        ),
        (
            '{"script": "scale", "params": {}, "target": "cpu", "sizes": {"m": 7}, "calls": 3}',
            'there is no dimension or scalar argument "m"',
        ),
    ],
)
def test_a_file_without_calls_of_the_script_is_an_error(project, text, message) -> None:
    if text is not None:
        project.write("calls.jsonl", text)
    assert message in project.run("tune", "scale", "--sizes-from", "calls.jsonl", status=2).err


ALIGNED = 'serves = { whole = "n % vector == 0", aligned = "align(x) >= 4 * vector" }'


@pytest.fixture
def aligned(project: Project) -> Project:
    project.edit("tilus.toml", RULE, ALIGNED)
    return project


def offset(count: int, elements: int) -> np.ndarray:
    """An array of `count` elements, so many after an address that 256 divides."""
    memory = np.zeros(count + 128, "f4")
    start = -(memory.ctypes.data // 4) % 64 + elements
    return memory[start : start + count]


def test_a_program_serves_only_addresses_that_suit_it(aligned: Project, monkeypatch) -> None:
    aligned.run("tune", "scale", "--cache", "warm")
    kernel = load("scale", where=str(aligned.cache))
    launched: list[Choice] = []
    choose_program = kernel._choose_program

    def note_choice(*args: Any) -> Choice:
        launched.append(choose_program(*args))
        return launched[-1]

    monkeypatch.setattr(kernel, "_choose_program", note_choice)
    for elements in (0, 64, 16, 4, 1, 0):
        np.testing.assert_array_equal(kernel(offset(65536, elements)), offset(65536, 0))
    assert [choice.schedule["vector"] for choice in launched] == [16, 16, 4, 1], "once for each"
    assert launched[2].why == (
        "measured at n = 65536; program 2 does not serve n = 65536, align(x) = 16: "
        "aligned (align(x) >= 4 * vector)"
    )
    choice = kernel.select(n=65536)
    assert (choice.schedule["vector"], choice.why) == (
        16,
        "measured at n = 65536; align(x) is taken as 256",
    )


def test_the_c_dispatcher_looks_at_addresses_too(aligned: Project) -> None:
    import tvm_ffi

    aligned.run("tune", "scale", "--cache", "warm")
    (path,) = aligned.cache.glob("scripts/scale/*/dispatch/libscale.so")
    library = ctypes.CDLL(str(path))
    library.scale_select.argtypes = [ctypes.c_int64]
    assert [4, 1, 16][library.scale_select(65536)] == 16
    packed = tvm_ffi.load_module(str(path))["launch"]
    for elements in (0, 16, 4, 1):
        x, y = offset(65536, elements), np.zeros(65536, "f4")
        x[:] = 1
        packed(x, y)
        assert (y == 2).all()
        y[:] = 0
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, y)]
        assert library.scale_launch(*pointers, ctypes.c_int32(65536), None) == 0
        assert (y == 2).all()
    assert "given, align(x) is 256. */" in path.with_name("dispatch.h").read_text()
    # At an address that no program serves the rule must have been asked.
    aligned.edit("tilus.toml", "4 * vector", "64 * vector")
    aligned.run("build")
    # Another name: a library of this name is open.
    second = shutil.copy(path, path.with_name("second.so"))
    for call in (tvm_ffi.load_module(second)["launch"], load("scale", where=str(aligned.cache))):
        call(offset(65536, 64), y)
        with pytest.raises(RuntimeError, match="program that serves"):
            call(offset(65536, 4), y)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("align(z) >= 4", "tilus.toml:16:21: error: align(z): there is no such tensor"),
        ("align(n) >= 4", "there is no such tensor"),
        ("align(x)", '"align(x)" is a number, not a condition'),
        ("align(4) >= 4", '"align" takes 2 arguments, not 1'),
    ],
)
def test_a_mistake_in_align_has_its_place(project: Project, rule: str, message: str) -> None:
    project.edit("tilus.toml", "n % vector == 0", rule)
    assert message in project.run("plan", status=2).err


def test_only_serves_knows_addresses(project: Project) -> None:
    project.edit("tilus.toml", RULE, 'restrict = { a = "align(x) > vector" }')
    message = '"align(x)" is not known here\n'
    assert message in project.run("plan", status=2).err
