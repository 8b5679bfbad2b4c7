"""A closure that is remembered is what a search finds now, whatever was edited since."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from support.closures import closure
from support.processes import wait_until
from tilusbuild.render import headers as headers_module
from tilusbuild.render.closure import Closure, Outside, inside
from tilusbuild.render.headers import Headers
from tilusbuild.render.known import KnownClosures
from tilusbuild.state.clock import FileClock
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.stamp import Sighting, sighting

NAMES = ("a.h", "b.h", "sub/a.h", "sub/c.h", "lib/x.h", "unrelated.txt")
PLACES = ("project/kernels", "project/include", "pkg/inc", "toolkit")
SPELLED = ("a.h", "b.h", "sub/a.h", "c.h", "sub/c.h", "../a.h", "lib/x.h", "gone.h")
SOURCES = ('#include "a.h"\n#include <sub/c.h>\n', "#include <lib/x.h>\n", '#include "b.h"\n')


class World:
    """A project with headers, edited at random, and a state directory that stays."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.searches = 0
        for place in PLACES:
            (directory / place).mkdir(parents=True)
        self.roots = [
            inside("project", str(directory / "project"), "kernels", quoted_only=True),
            inside("project", str(directory / "project"), "include"),
            inside("pkg", str(directory / "pkg"), "inc"),
        ]
        self.outside = Outside((str(directory / "toolkit"),), ("lib/x.h",))

    def edit(self, draw: random.Random) -> None:
        path = self.directory / draw.choice(PLACES) / draw.choice(NAMES)
        what = draw.choice(["write", "write", "write", "remove", "touch", "replace", "directory"])
        if what == "write":
            self._clear(path)
            path.write_text(self._text(draw))
        elif what == "replace":
            self._clear(path)
            new = path.with_name("new~")
            new.write_text(self._text(draw))
            new.rename(path)
        elif what == "touch" and path.is_file():
            os.utime(path)
        elif what == "remove" and path.parent.is_dir():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        elif what == "directory" and not path.exists():
            path.mkdir(parents=True)

    def _clear(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.rmtree(path)

    def _text(self, draw: random.Random) -> str:
        forms = ('#include "{}"\n', "#include <{}>\n", "#include_next <{}>\n")
        return "".join(
            draw.choice(forms).format(draw.choice(SPELLED)) for _ in range(draw.randrange(3))
        )

    def settle(self) -> None:
        """Wait until what there is has another stamp when it changes."""
        clock = FileClock(str(self.directory))
        walked = os.walk(self.directory)
        paths = (Path(where) / name for where, _, files in walked for name in (".", *files))
        seen = [sighting(path) for path in paths]

        def settled(each: Sighting) -> bool:
            return each.is_settled(clock.moment())

        wait_until(lambda: all(map(settled, seen)))

    def fresh(self, source: str) -> Closure:
        return closure(source, self.roots, outside=self.outside)

    def remembered(self, source: str) -> Closure:
        state = str(self.directory / "state")
        memory = DigestMemory(state, FileClock(state).moment)
        known = KnownClosures(f"{state}/closures", memory)
        headers = Headers(self.roots, outside=self.outside, digests=memory, known=known)
        found = headers.closure(source)
        known.save()
        memory.save()
        return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    run = headers_module._Search.run

    def counted(self, extra):
        made.searches += 1
        return run(self, extra)

    monkeypatch.setattr(headers_module._Search, "run", counted)
    return made


@pytest.mark.parametrize("seed", range(int(os.environ.get("CLOSURE_SEEDS", "4"))))
def test_what_is_remembered_is_what_a_search_finds(world, seed):
    draw = random.Random(seed)
    asked = 0
    for step in range(40):
        for _ in range(draw.randrange(3)):
            world.edit(draw)
        if step % 2:
            world.settle()
        source = draw.choice(SOURCES)
        before = world.searches
        found = world.remembered(source)
        asked += world.searches - before
        assert found == world.fresh(source), f"seed {seed}, step {step}"
    assert asked < 40  # some were remembered


def test_nothing_is_searched_for_again(world):
    (world.directory / "project/kernels/a.h").write_text('#include "b.h"\n')
    world.settle()
    first = world.remembered(SOURCES[0])
    assert world.searches == 1
    (world.directory / "project/kernels/saved.cu.j2").write_text("")  # not a name that is asked for
    os.utime(world.directory / "project/kernels/a.h")
    assert world.remembered(SOURCES[0]) == first
    assert world.searches == 1


def test_what_changed_within_a_tick_is_searched_for_again(world):
    (world.directory / "project/kernels/a.h").write_text("")
    world.remembered(SOURCES[0])
    world.remembered(SOURCES[0])
    assert world.searches == 2


def test_what_came_while_a_plan_ran_is_not_taken_for_absent_by_the_next(world):
    """A search sees what an earlier one of the same plan saw, however long ago that was."""
    world.settle()
    memory = DigestMemory(None, FileClock(str(world.directory)).moment)
    known = KnownClosures(str(world.directory / "state/closures"), memory)
    running = Headers(world.roots, digests=memory, known=known)
    running.closure('#include "b.h"\n')
    (world.directory / "project/kernels/b.h").write_text("")
    world.settle()
    source = '#include "b.h"\n#include "a.h"\n'
    running.closure(source)
    found = Headers(world.roots, digests=memory, known=known).closure(source)
    assert found == closure(source, world.roots)


def test_a_name_that_is_not_utf_8_is_searched_for_again(world):
    name = os.fsdecode(b"\xff.h")
    (world.directory / "project/kernels" / name).write_text("")
    world.settle()
    for _ in range(2):
        found = world.remembered(f'#include "{name}"\n')
        assert [each.name for each in found.headers] == [f"project/kernels/{name}"]
    assert world.searches == 2
