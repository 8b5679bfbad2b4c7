"""A plan by memo is the plan without it, and renders only what may have changed."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.project import head
from tilusbuild.builder.project import Project
from tilusbuild.cache.tree import Tree
from tilusbuild.plan import memo
from tilusbuild.plan.memo import digest_own_code
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Plan
from tilusbuild.render.renderer import Renderer, Rendering
from tilusbuild.space.model import Schedule, Schedules
from tilusbuild.state.digests import DigestMemory

MANIFEST = (
    head(build='include-dirs = ["include"]')
    + """\
[script.one]
template = "kernels/one.cu.j2"
kernel = "scale"
targets = ["cpu"]
args = { x = "f32*[n]", n = "i64" }
launch = { grid = ["cdiv(n, 256)"], block = [256] }
space.unroll = [1, 2, 4]
derived.tile = "unroll * 2"
[script.two]
template = "kernels/two.cu.j2"
kernel = "scale"
targets = ["cpu"]
args = { x = "f32*[n]", n = "i64" }
launch = { grid = ["cdiv(n, 256)"], block = [256] }
space.unroll = [1, 2]
"""
)
TEMPLATE = """\
{% include "kernels/part.cu.j2" ignore missing %}
#include {{ '<shared.h>' if unroll == 1 else '"shared.h"' }}
{% if unroll == 4 %}
#include <wide.h>
{% endif %}
extern "C" void scale(const float *x, long long n) { /* {{ unroll }} */ }
"""
FILES = {
    "tilus.toml": MANIFEST,
    "kernels/one.cu.j2": TEMPLATE,
    "kernels/two.cu.j2": TEMPLATE,
    "include/shared.h": '#include "deeper.h"\n',
    "include/deeper.h": "#pragma once\n",
    "include/wide.h": "#pragma once\n",
}


@dataclass
class Workshop:
    """A project in a directory, planned again and again; `rendered` are the templates of one
    plan."""

    directory: Path
    rendered: list[str] = field(default_factory=list)

    def plan(self, memo: bool = True) -> Plan:
        """The plan of the project as it is now; without the memo in another cache."""
        self.rendered.clear()
        cache = self.directory / (".cache" if memo else ".fresh")
        Tree(str(cache)).ensure_complete()  # what is remembered is kept in a tree
        (cache / "state").mkdir(exist_ok=True)
        with Project.open(str(self.directory), {"cache-dir": str(cache)}, os.environ) as project:
            planner = project.make_planner(PlanSelection())
            if not memo:
                planner.memo = None
            return planner.make_plan(PlanSelection())

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.directory / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def known(self, *, memo: bool = True) -> list[Any]:
        """What a plan says of each instance, and what it rests on."""
        return [
            (instance.hash, instance.schedules, instance.default, instance.inputs)
            for instance in self.plan(memo=memo).instances
        ]

    @property
    def memos(self) -> list[Path]:
        return sorted((self.directory / ".cache/state/plans").iterdir())


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    shop = Workshop(tmp_path)
    for name, text in FILES.items():
        shop.write(name, text)
    render = Renderer.render

    def counting(self: Renderer, template: str, context: Any) -> Rendering:
        shop.rendered.append(template)
        return render(self, template, context)

    monkeypatch.setattr(Renderer, "render", counting)
    shop.plan()
    return shop


def test_nothing_is_rendered_when_nothing_changed(shop: Workshop) -> None:
    assert shop.known() == shop.known(memo=False)
    shop.plan()
    assert shop.rendered == []


def test_a_plan_that_is_known_makes_one_schedule_for_each_program(shop, monkeypatch) -> None:
    schedules: list[Schedule] = []
    make = Schedules._make_schedules

    def counting(self: Schedules, start: int, stop: int) -> Iterator[Schedule]:
        for schedule in make(self, start, stop):
            schedules.append(schedule)
            yield schedule

    monkeypatch.setattr(Schedules, "_make_schedules", counting)
    plan = shop.plan()
    assert len(schedules) == sum(len(instance.programs) for instance in plan.instances) == 5


def test_an_edit_of_a_template_renders_its_own_script_only(shop: Workshop) -> None:
    shop.edit("kernels/one.cu.j2", "long long n", "long long m")
    shop.plan()
    assert shop.rendered == ["kernels/one.cu.j2"] * 3
    shop.plan()
    assert shop.rendered == []


def test_a_value_more_in_a_space_renders_the_new_schedules_only(shop: Workshop) -> None:
    shop.edit("tilus.toml", "space.unroll = [1, 2, 4]", "space.unroll = [1, 2, 3, 4, 8]")
    shop.plan()
    assert shop.rendered == ["kernels/one.cu.j2"] * 2


def test_only_programs_that_reach_a_header_are_rendered_when_it_changes(shop: Workshop) -> None:
    shop.write("include/wide.h", "#define WIDE 1\n")
    shop.plan()
    assert shop.rendered == ["kernels/one.cu.j2"]


def edit(name: str, old: str, new: str) -> Callable[[Workshop], None]:
    return lambda shop: shop.edit(name, old, new)


def write(name: str, text: str) -> Callable[[Workshop], None]:
    return lambda shop: shop.write(name, text)


CHANGES = {
    "template": edit("kernels/one.cu.j2", "void scale", "void  scale"),
    "a part appears": write("kernels/part.cu.j2", "// part\n"),
    "header": write("include/shared.h", "// nothing\n"),
    "deeper header": write("include/deeper.h", "// nothing\n"),
    "a header appears before another": write("kernels/shared.h", "// shadows\n"),
    "kernel": edit("tilus.toml", 'kernel = "scale"', 'kernel = "other"'),
    "argument": edit("tilus.toml", 'x = "f32*[n]"', 'x = { type = "f32*[n]", align = 16 }'),
    "range": edit("tilus.toml", 'n = "i64"', 'n = { type = "i64", range = [1, 9] }'),
    "constant": edit("tilus.toml", "space.unroll = [1, 2]", "space.unroll = [1, 2]\nparams.c = 1"),
    "derived": edit("tilus.toml", '"unroll * 2"', '"unroll * 3"'),
    "type of a value": edit("tilus.toml", "space.unroll = [1, 2]", "space.unroll = [1.0, 2.0]"),
    "flags": edit("tilus.toml", 'arch = "cpu"', 'arch = "cpu"\nflags = ["-O1"]'),
    "defines": edit("tilus.toml", "[target.cpu]", "defines = { A = 1 }\n[target.cpu]"),
    "line directives": edit("tilus.toml", "[target.cpu]", "line-directives = true\n[target.cpu]"),
    "standard": edit("tilus.toml", "[target.cpu]", '[toolchain]\nstd = "c++20"\n[target.cpu]'),
    "machine": edit(
        "tilus.toml", "[target.cpu]", '[toolchain]\nhost-march = "x86-64-v3"\n[target.cpu]'
    ),
    "include-dirs": edit("tilus.toml", '["include"]', '["include", "kernels"]'),
    "declared headers": edit("tilus.toml", "[target.cpu]", 'headers = ["*.h"]\n[target.cpu]'),
    "name of a target": lambda shop: shop.write(
        "tilus.toml", MANIFEST.replace("target.cpu", "target.host").replace('["cpu"]', '["host"]')
    ),
    "order of values": edit("tilus.toml", "[1, 2, 4]", "[4, 2, 1]"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_after_any_change_the_plan_is_the_one_without_a_memo(shop, change) -> None:
    before = shop.known()
    change(shop)
    fresh = shop.known(memo=False)
    assert fresh != before
    assert shop.known() == fresh


def test_another_tilusbuild_asks_the_memo_of_this_one_nothing(shop, monkeypatch) -> None:
    monkeypatch.setattr("tilusbuild.plan.memo.digest_own_code", lambda memory: "another")
    shop.plan()
    assert len(shop.rendered) == 5


def test_this_tilusbuild_is_all_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo, "__file__", str(tmp_path / "plan/memo.py"))
    digests = [digest_own_code(DigestMemory())]
    for name in ("plan/memo.py", "compile/launcher_parts/cpu.c", "__pycache__/memo.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("edited")
        digests.append(digest_own_code(DigestMemory()))
    assert len(set(digests)) == 3
    assert digests[2] == digests[3]


def test_a_directory_that_cannot_be_written_is_left_alone(shop: Workshop) -> None:
    for path in shop.memos:
        path.unlink()
    (shop.directory / ".cache/state/plans").rmdir()
    (shop.directory / ".cache/state/plans").write_text("in the way")
    assert shop.known() == shop.known(memo=False)


def test_a_source_that_is_not_utf_8_is_remembered(shop: Workshop) -> None:
    source = TEMPLATE.partition("{% if")[0].partition("\n")[2].encode() + b"// \xff\n"
    (shop.directory / "kernels/two.cu.j2").write_bytes(source)
    shop.edit("tilus.toml", "[script.two]", "[script.two]\nrender = false")
    assert shop.known() == shop.known() == shop.known(memo=False)


@pytest.mark.parametrize("data", [b"", b"tilusbuild plan 1\n", b"tilusbuild plan 3\n0 0\n\n", b"x"])
def test_what_was_not_written_as_a_memo_is_refused(shop: Workshop, data: bytes) -> None:
    for path in shop.memos:
        path.write_bytes(data)
    assert shop.known() == shop.known(memo=False)
