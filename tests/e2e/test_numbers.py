"""A program has one number and one name, whatever verb, level and file it is in."""

import json
import random
import re
from pathlib import Path

from support.project import Project

KERNEL = """\
extern "C" void f(int n, const float *x, float *y) {
  for (int i = 0; i < n; ++i) y[i] = x[i] + {{ a }} + {{ b }} + {{ c }};
}
"""
MANIFEST = """\
edition = 1
[target.cpu]
arch = "cpu"
[script.f]
template = "f.cu.j2"
kernel = "f"
args = {{ n = "i32", x = "f32*[n]", y = {{ type = "f32*[n]", out = true }} }}
space = {{ a = {a}, b = {b}, "c, d" = {c} }}
restrict = {{ some = "{rule}" }}
default = {default}
levels.sample = {sample}
dispatch.keys = ["n"]
"""
POINT = re.compile(r"f/(\d+) cpu: a=(\d+), b=(\d+), c=(\d+), d=(\d+)")
Point = tuple[int, ...]


def points_of(directory: Path) -> dict[int, Point]:
    """The schedules in the one script directory, by the numbers that its table has."""
    lines = (directory / "schedule.txt").read_text().splitlines()[2:]
    rows = [[int(word) for word in line.split()[:5]] for line in lines]
    return {number: tuple(rest) for number, *rest in rows}


def test_a_number_means_one_program(tmp_path: Path) -> None:
    draw = random.Random(1)
    values = [draw.sample(range(1, 9), draw.randrange(2, 4)) for _ in range(2)]
    rows = [[c, c + 1] for c in draw.sample(range(1, 9), 2)]
    rule = f"(a * b + c) % {draw.randrange(3, 5)} != 0"
    every = [
        (a, b, *row)
        for a in values[0]
        for b in values[1]
        for row in rows
        if eval(rule, {"a": a, "b": b, "c": row[0]})
    ]
    chosen = draw.choice(every[1:])
    names = dict(zip("abcd", chosen, strict=True))
    default = "{ " + ", ".join(f"{name} = {value}" for name, value in names.items()) + " }"
    project = Project(tmp_path, {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})
    text = MANIFEST.format(
        a=values[0], b=values[1], c=rows, rule=rule, default=default, sample=len(every) // 2 + 1
    )
    project.write_all({"tilus.toml": text, "f.cu.j2": KERNEL})
    number, other = every.index(chosen), draw.randrange(len(every))
    of_space = dict(enumerate(every))
    seen = []
    for level in ("0", "1", "2"):
        events = project.run("build", "--level", level, "--json").events
        named = {event["label"]: event["index"] for event in events if event["event"] == "finished"}
        assert all(label == f"f/{index} cpu" for label, index in named.items())
        (directory,) = (
            path.parent for path in tmp_path.glob(".cache/scripts/f/*/script.txt")
            if path.parent not in seen
        )  # fmt: skip
        seen.append(directory)
        point_by_number = points_of(directory)
        assert point_by_number.items() <= of_space.items(), (
            "a file has other numbers than the space"
        )
        assert {int(path.name) for path in directory.glob("programs/*")} == {*point_by_number}
        described = json.loads((directory / "script.json").read_text())
        assert described["default"] == number
        assert f"program {number}\n" in project.run("dispatch", "show", "f").out
        listed = project.run("cache", "ls", "f", "--json").events
        assert {event["index"] for event in listed if event["event"] == "program"} >= {
            *point_by_number
        }
        one = project.run("explain", f"f/{number}", "--level", level, "--json").events
        assert [event["state"] for event in one] == ["built"]
    assert len(point_by_number) == len(every)
    ran = project.run("run", "f", "--size", "n=3").out
    assert POINT.match(ran.splitlines()[0]).groups() == tuple(map(str, (number, *chosen)))  # type: ignore[union-attr]
    by_value = "f[" + ",".join(f"{k}={v}" for k, v in zip("abcd", every[other], strict=True)) + "]"
    ran = project.run("run", by_value, "--size", "n=3").out
    assert ran.startswith(f"f/{other} cpu: ")
    shown = [project.run("cache", "show", name, "--path").out for name in (by_value, f"f/{other}")]
    assert shown[0] == shown[1]
    assert "has no program" in project.run("explain", f"f/{len(every)}", status=2).err


def test_what_is_compiled_for_a_run_is_said(tmp_path: Path) -> None:
    project = Project(tmp_path, {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})
    text = MANIFEST.format(
        a="[1, 2]", b="[1]", c="[[1, 2]]", rule="a > 0", default="{ a = 2 }", sample=1
    )
    project.write_all({"tilus.toml": text, "f.cu.j2": KERNEL})
    built = project.run("build", "--level", "0", "--json").events
    assert [event["label"] for event in built if event["event"] == "finished"] == ["f/1 cpu"]
    assert "compiling" not in project.run("run", "f/1", "--size", "n=2").err
    first = project.run("run", "f/0", "--size", "n=2")
    assert first.err == "f/0 cpu is not built yet: compiling it\n"
    assert first.out.startswith("f/0 cpu: a=1, b=1, c=1, d=2; cold caches\n")
