"""Random edits while watching: at rest, the cache holds what a clean build of the files makes.

Edits, mistakes, failures, renames, deletions, checkouts of many files and reverts come faster than
builds end. Then everything that no script needs any more is collected, and the tree is compared
with that of a build of a copy, byte for byte.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

NAMES = ("scale", "add", "norm")
LAST = "last"
SEEDS = int(os.environ.get("WATCH_SEEDS", "2"))
"""For each way to watch. More of them: `WATCH_SEEDS=40 make test`."""


class Editor:
    """Changes a project at random."""

    def __init__(self, project: Any, chance: random.Random) -> None:
        self.project = project
        self.chance = chance
        self.directory = Path(project.directory)
        self.saved = self._snapshot()
        self.moves: list[Callable[[], None]] = [
            self.edit_kernel,
            self.edit_kernel,
            self.edit_header,
            self.edit_common,
            self.edit_manifest,
            self.break_kernel,
            self.fail_kernel,
            self.break_manifest,
            self.shadow_header,
            self.delete_something,
            self.rename_directory,
            self.check_out,
            self.write_in_place,
            self.droppings,
        ]

    def _files(self) -> Iterator[Path]:
        for top in ("kernels", "include", "first"):
            for where, _, names in os.walk(self.directory / top):
                yield from (Path(where, name) for name in names)
        yield self.directory / "tilus.toml"

    def _snapshot(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.directory)): path.read_text()
            for path in self._files()
            if path.exists()
        }

    def save(self, name: str, text: str) -> None:
        (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
        self.project.save(name, text)

    def note(self) -> str:
        return f"note {self.chance.randrange(6)}"

    def kernel_text(self, note: str) -> str:
        return self.saved["kernels/scale.cu.j2"].replace("as it began", note)

    def edit_kernel(self) -> None:
        self.save(f"kernels/{self.chance.choice(NAMES)}.cu.j2", self.kernel_text(self.note()))

    def edit_header(self) -> None:
        self.save("include/part.h", f"// {self.note()}\n")

    def edit_common(self) -> None:
        self.save("kernels/common.j2", f"// {self.note()}\n")

    def edit_manifest(self) -> None:
        chosen = self.chance.sample(NAMES, self.chance.randrange(1, 4))
        schedules = self.chance.randrange(2, 5)
        self.project.manifest(*sorted(chosen), schedules=schedules, default=2)

    def break_kernel(self) -> None:
        name = f"kernels/{self.chance.choice(NAMES)}.cu.j2"
        self.save(name, self.kernel_text(self.note()) + "{{ no_such_name }}\n")

    def fail_kernel(self) -> None:
        name = f"kernels/{self.chance.choice(NAMES)}.cu.j2"
        self.save(name, self.kernel_text("fake: fail"))

    def break_manifest(self) -> None:
        self.save("tilus.toml", "edition = 1\n[project\n")

    def shadow_header(self) -> None:
        path = self.directory / "first/all.h"
        if path.exists():
            path.unlink()
        else:
            self.save("first/all.h", f"// shadows {self.note()}\n")

    def delete_something(self) -> None:
        self.chance.choice(sorted(self._files())).unlink(missing_ok=True)

    def rename_directory(self) -> None:
        source = self.directory / self.chance.choice(["kernels", "include"])
        if source.exists():
            away = self.directory / f"{source.name}-away"
            os.rename(source, away)
            time.sleep(self.chance.choice([0, 0.05]))
            os.rename(away, source)

    def check_out(self) -> None:
        """Everything as it once was, files that were not there removed, as git does."""
        for path in list(self._files()):
            if str(path.relative_to(self.directory)) not in self.saved:
                path.unlink(missing_ok=True)
        for name, text in self.saved.items():
            path = self.directory / name
            if not path.exists() or path.read_text() != text:
                path.unlink(missing_ok=True)
                self.save(name, text)

    def write_in_place(self) -> None:
        path = self.directory / f"kernels/{self.chance.choice(NAMES)}.cu.j2"
        if path.exists():
            with path.open("w") as file:
                for line in self.kernel_text(self.note()).splitlines(True):
                    file.write(line)
                    file.flush()

    def droppings(self) -> None:
        self.save("kernels/.scale.cu.j2.swp", "x")
        self.save("kernels/4913", "x")

    def step(self) -> None:
        self.chance.choice(self.moves)()
        time.sleep(self.chance.choice([0, 0, 0.005, 0.05, 0.3]))


def live(seed: int, make: Callable[..., Any], watch: Any) -> None:
    """A project's life: edits while it is watched, rest, and the comparison with a clean build."""
    chance = random.Random(f"{seed} ()")
    project = make(*NAMES, directory=f"{seed}/project")
    watching = watch(project)
    watching.rest()
    editor = Editor(project, chance)
    for _ in range(chance.randrange(10, 30)):
        editor.step()
    # What is missing is put back, and what is broken is mostly mended.
    if chance.random() < 0.5:
        editor.check_out()
    for name in NAMES:
        if not (project.directory / f"kernels/{name}.cu.j2").exists() or chance.random() < 0.7:
            editor.save(f"kernels/{name}.cu.j2", editor.kernel_text(editor.note()))
    for name in ("include/all.h", "include/part.h", "kernels/common.j2", "first/other.h"):
        if not (project.directory / name).exists():
            editor.save(name, editor.saved[name])
    # A script that is new: when one of its programs is there, all of this was seen.
    editor.save(f"kernels/{LAST}.cu.j2", editor.kernel_text("the last of all"))
    project.manifest(*NAMES, LAST, schedules=4)
    watching.until("finished", script=LAST)
    ok = watching.rest()[-1]["ok"]

    clean = project.copy(project.directory.parent / "clean", cache=False)
    built = clean.events("build")
    assert watching.interrupt() == 130
    if built[-1]["event"] == "error":
        assert not ok, "a clean build refuses what is left"
        return
    assert ok == (built[-1]["exit_status"] == 0)
    assert project.roots == clean.roots
    project.events("cache", "gc")
    ours, theirs = project.tree(), clean.tree()
    assert sorted(ours) == sorted(theirs)
    assert ours == theirs
    assert os.listdir(project.cache / "staging") == []


@pytest.mark.slow
def test_at_rest_the_tree_is_that_of_a_clean_build(new_project, watch) -> None:
    failed: dict[int, BaseException] = {}
    # Several lives at once: most of one is waiting.
    with ThreadPoolExecutor(4) as pool:
        lives = {seed: pool.submit(live, seed, new_project, watch) for seed in range(SEEDS)}
        for seed, each in lives.items():
            if (error := each.exception()) is not None:
                failed[seed] = error
    assert not failed, failed
