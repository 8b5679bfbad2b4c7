"""The texts of identity: their words, and what each difference is called."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.builder.project import Project
from tilusbuild.diff.explain import list_differences
from tilusbuild.errors import InputError
from tilusbuild.manifest.table import format_toml
from tilusbuild.plan import identity
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.rendering import RenderedProgram, format_definitions, render_program

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)


def text(**changes: object) -> str:
    parts: dict[str, object] = {
        "script": "matmul",
        "entry": ("kernel", "matmul"),
        "params": {"dtype": "f16"},
        "schedule": {"block_m": 64, "persistent": False},
        "derived": {"threads": 128},
        "signature": ["a: f16*[m, k]", "m: i32 dimension"],
        "launch": ["grid = cdiv(m, block_m)", "block = threads", "smem = 0"],
        "source": "int x;\n",
        "headers": [("ab" * 32, "project/include/a.cuh")],
    }
    return identity.format_program_text(**{**parts, **changes})  # type: ignore[arg-type]


def test_a_program_reads_like_a_manifest() -> None:
    assert text() == (
        "tilusbuild program 1\n"
        'script = "matmul"\n'
        'kernel = "matmul"\n'
        f"source = sha256:{hashlib.sha256(b'int x;' + bytes([10])).hexdigest()}\n"
        '\n[params]\ndtype = "f16"\n'
        "\n[schedule]\nblock_m = 64\npersistent = false\n"
        "\n[derived]\nthreads = 128\n"
        "\n[args]\na: f16*[m, k]\nm: i32 dimension\n"
        "\n[launch]\ngrid = cdiv(m, block_m)\nblock = threads\nsmem = 0\n"
        f"\n[headers]\n{'ab' * 32}  project/include/a.cuh\n"
    )


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, max_size=4))
def test_different_schedules_have_different_texts(schedule: dict[str, object]) -> None:
    changed = {**schedule, "block_m": 65}
    assert (text(schedule=schedule) == text(schedule=changed)) == (schedule == changed)


@given(VALUES, VALUES)
def test_a_value_tells_its_type(first: object, second: object) -> None:
    same = type(first) is type(second) and repr(first) == repr(second)
    texts = [format_toml(value) for value in (first, second)]
    assert (texts[0] == texts[1]) == same


COMMAND = "[commands]\n{nvcc} -cubin -O3 /proc/self/cwd/source.cu -o program.cubin\n"
TWO_STEPS = (
    "[commands]\n{nvcc} -ptx -arch compute_80 -O3 -lineinfo /proc/self/cwd/source.cu -o a.ptx\n"
    "{sed} -E -i s#a#b# a.ptx\n{nvcc} -cubin a.ptx -o program.cubin\n"
)


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        (
            text(),
            text(headers=[("cd" * 32, "project/include/a.cuh"), ("ef" * 32, "project/b.cuh")]),
            ["header include/a.cuh changed", "header b.cuh is new"],
        ),
        (
            text(),
            text(params={"dtype": "bf16"}),
            ['constant dtype changed: "f16" → "bf16"'],
        ),
        (text(), text(source="int y;\n"), ["the rendered source changed"]),
        (
            COMMAND,
            COMMAND.replace("-O3", "-O2"),
            ["flags: -O3 → -O2"],
        ),
        (COMMAND, TWO_STEPS, ["flags: -lineinfo"]),
        (
            f"target = sm_80\n{COMMAND}[generated]\n{'ab' * 32}  launcher.c\n",
            f"target = sm_90\n{TWO_STEPS}[generated]\n{'cd' * 32}  launcher.c\n".replace(
                " -lineinfo", ""
            ),
            ["target changed: sm_80 → sm_90"],
        ),
        (
            f"[generated]\n{'ab' * 32}  launcher.c\n",
            f"[generated]\n{'cd' * 32}  launcher.c\n",
            ["generated file launcher.c changed"],
        ),
        (TWO_STEPS, COMMAND, ["flags: no -lineinfo"]),
        (COMMAND, COMMAND.replace("-O3", "-O3 --maxrregcount 40"), ["flags: --maxrregcount 40"]),
        (
            COMMAND.replace("-O3", "-std=c++17"),
            COMMAND.replace("-O3", "-std=c++20"),
            ["flags: -std=c++17 → -std=c++20"],
        ),
    ],
)
def test_each_difference_is_named(before: str, after: str, reasons: list[str]) -> None:
    assert list(list_differences([before], [after])) == reasons


# Compiler arguments with values of the program, and a script's own language standard.
MANIFEST = """\
edition = 1
[project]
name = "p"
version = "0.1.0"
[target.cpu]
arch = "cpu"
[script.one]
template = "one.cpp.j2"
kernel = "scale"
args = { x = "f32*[n]", n = "i64" }
params = { kind = ["plain", "fast"] }
space.level = [1, 3]
override.cpu.flags = FLAGS
"""


def programs(
    directory: Path, flags: str, *, more: str = ""
) -> dict[tuple[object, ...], RenderedProgram]:
    """The programs by their values."""
    (directory / "tilus.toml").write_text(MANIFEST.replace("FLAGS", flags) + more)
    (directory / "one.cpp.j2").write_text('extern "C" void scale(const float *x, long long n) {}\n')
    cache = {"cache-dir": str(directory / "cache")}
    with Project.open(str(directory), cache, os.environ) as project:
        plan = project.make_plan(PlanSelection((), (), 2))
        return {
            (instance.params["kind"], schedule.values["level"]): render_program(
                instance.spec, instance.sources, schedule
            )
            for instance in plan.instances
            for schedule in instance.spec.space
        }


def test_flags_follow_the_values_of_each_program(tmp_path):
    program_by_values = programs(
        tmp_path, """["-O{{ level }}", '{{ "-fno-math-errno" if kind == "fast" else "" }}']"""
    )
    flags = {values: program.recipe.options.flags for values, program in program_by_values.items()}
    assert flags == {
        ("plain", 1): ("-O1",),
        ("plain", 3): ("-O3",),
        ("fast", 1): ("-O1", "-fno-math-errno"),
        ("fast", 3): ("-O3", "-fno-math-errno"),
    }
    assert len({program.hash for program in program_by_values.values()}) == 4
    assert "-O3" in program_by_values["plain", 3].options_txt


def test_a_flag_with_values_has_the_hash_of_what_it_becomes(tmp_path):
    valued = programs(tmp_path, '["-O{{ level * 0 + 2 }}"]')
    assert valued["plain", 1].hash == programs(tmp_path, '["-O2"]')["plain", 1].hash


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ('["-fplugin={{ kind }}.so"]', '"-fplugin=plain.so" runs a program'),
        ("""['-{{ "I" if level == 3 else "O1" }}/usr']""", "is set by tilusbuild|names a file"),
        ('["-O{{ absent }}"]', "absent"),
        ('["-O{{ level + }}"]', "expression|expected|ends"),
    ],
)  # fmt: skip
def test_what_a_flag_becomes_is_checked_at_its_place(tmp_path, flags, message):
    with pytest.raises(InputError, match=message) as caught:
        programs(tmp_path, flags)
    assert caught.value.path is not None
    assert caught.value.line == 13


def test_a_macro_follows_the_values_of_each_program(tmp_path):
    program_by_values = programs(
        tmp_path, "[]", more='defines = { KIND = "{{ kind }}_{{ level }}", ON = true }\n'
    )
    macros = {
        values: program.recipe.options.defines for values, program in program_by_values.items()
    }
    assert macros["plain", 3] == (("KIND", "plain_3"), ("ON", "1"))
    assert macros["fast", 1] == (("KIND", "fast_1"), ("ON", "1"))
    assert len({program.hash for program in program_by_values.values()}) == 4


@pytest.mark.parametrize(
    ("value", "message"),
    [("{{ absent }}", "absent"), ("{{ level + }}", "expression"), ("{{ '\\\\\\\\' }}", "compiler")],
)
def test_what_a_macro_becomes_is_checked_at_its_place(tmp_path, value, message):
    with pytest.raises(InputError, match=message) as caught:
        programs(tmp_path, "[]", more=f'defines = {{ KIND = "{value}" }}\n')
    assert caught.value.line == 14


def test_a_script_has_a_standard_of_its_own(tmp_path):
    program_by_values = programs(tmp_path, "[]", more='std = "c++20"\n')
    assert {program.recipe.options.std for program in program_by_values.values()} == {"c++20"}


def test_a_macro_of_the_flags_is_what_a_compiler_defines() -> None:
    flags = ("-DONE", "-D", "EMPTY=", '--define-macro=H="a=b.h"', "-O2")
    defined = list(format_definitions((("N", "2"),), flags))
    assert defined == ["#define N 2", "#define ONE 1", "#define EMPTY ", '#define H "a=b.h"']
