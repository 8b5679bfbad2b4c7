"""Compiler arguments with values of the program, and a script's own language standard."""

import os
from pathlib import Path

import pytest

from tilusbuild.builder.project import Project
from tilusbuild.errors import InputError
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.rendering import RenderedProgram, render

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
        plan = project.plan(PlanSelection((), (), 2))
        return {
            (instance.params["kind"], schedule.values["level"]): render(
                instance.spec, instance.sources, schedule
            )
            for instance in plan.instances
            for schedule in instance.spec.space
        }


def test_flags_follow_the_values_of_each_program(tmp_path):
    made = programs(
        tmp_path, """["-O{{ level }}", '{{ "-fno-math-errno" if kind == "fast" else "" }}']"""
    )
    flags = {values: program.recipe.flags for values, program in made.items()}
    assert flags == {
        ("plain", 1): ("-O1",),
        ("plain", 3): ("-O3",),
        ("fast", 1): ("-O1", "-fno-math-errno"),
        ("fast", 3): ("-O3", "-fno-math-errno"),
    }
    assert len({program.hash for program in made.values()}) == 4
    assert "-O3" in made["plain", 3].options_txt


def test_a_flag_with_values_has_the_hash_of_what_it_becomes(tmp_path):
    valued = programs(tmp_path, '["-O{{ level * 0 + 2 }}"]')
    assert valued["plain", 1].hash == programs(tmp_path, '["-O2"]')["plain", 1].hash


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ('["-fplugin={{ kind }}.so"]', '"-fplugin=plain.so" is not a flag'),
        ("""['-{{ "I" if level == 3 else "O1" }}/usr']""", "is set by tilusbuild|known to be pure"),
        ('["-O{{ absent }}"]', "absent"),
        ('["-O{{ level + }}"]', "expression|expected|ends"),
    ],
)  # fmt: skip
def test_what_a_flag_becomes_is_checked_at_its_place(tmp_path, flags, message):
    with pytest.raises(InputError, match=message) as caught:
        programs(tmp_path, flags)
    assert caught.value.path is not None
    assert caught.value.line == 13


def test_a_script_has_a_standard_of_its_own(tmp_path):
    made = programs(tmp_path, "[]", more='std = "c++20"\n')
    assert {program.recipe.std for program in made.values()} == {"c++20"}
