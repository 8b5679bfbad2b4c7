"""Random edits while watching: at rest, the cache holds what a build of the files makes.

Edits, mistakes, failures, renames, deletions, checkouts of many files and reverts come faster than
builds end. At each rest a build in the same cache compiles nothing and changes no byte. At the end
everything that no script needs any more is collected, and the tree is that of a build of a copy.
"""

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

NAMES = ("scale", "add", "norm")
RESTS = 2
SEEDS = int(os.environ.get("WATCH_SEEDS", "2"))
"""Lives. More of them: `WATCH_SEEDS=40 make test`."""


class Editor:
    """Changes a project at random."""

    def __init__(self, project: Any, chance: random.Random) -> None:
        self.project = project
        self.chance = chance
        self.directory = Path(project.directory)
        self.saved = {str(p.relative_to(self.directory)): p.read_text() for p in self._files()}
        self.moves: list[Callable[[], None]] = [
            self.edit_kernel, self.edit_kernel, self.edit_header, self.edit_common,
            self.edit_manifest, self.break_kernel, self.fail_kernel, self.break_manifest,
            self.shadow_header, self.delete_something, self.rename_directory, self.check_out,
            self.write_in_place,
        ]  # fmt: skip

    def _files(self) -> Iterator[Path]:
        for top in ("kernels", "include", "first"):
            for where, _, names in os.walk(self.directory / top):
                yield from (Path(where, name) for name in names)
        yield self.directory / "tilus.toml"

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

    def step(self) -> None:
        self.chance.choice(self.moves)()
        time.sleep(self.chance.choice([0, 0, 0.005, 0.05, 0.3]))

    def mend(self, last: str) -> None:
        """Put back what is missing, mend what is wrong, and leave the rest, so that nothing hides
        what was not seen. A new script comes last: once it is there, all was."""
        if self.chance.random() < 0.2:
            self.check_out()
        for name, text in self.saved.items():
            if not (self.directory / name).exists():
                self.save(name, text)
        if not self.scripts():
            self.save("tilus.toml", self.saved["tilus.toml"])
        for name in (*self.scripts(), last):
            path = self.directory / f"kernels/{name}.cu.j2"
            if not path.exists() or "no_such_name" in path.read_text():
                self.save(f"kernels/{name}.cu.j2", self.kernel_text("made whole"))
        self.project.declare(last)

    def scripts(self) -> list[str]:
        return re.findall(r"\[script\.(\w+)\]", (self.directory / "tilus.toml").read_text())


def build_changes_nothing(project: Any) -> Any:
    """How a build ends, in the cache as it is."""
    before = project.tree(), project.roots
    *_, last = project.events("build")
    assert not last.get("attempts"), last
    assert (project.tree(), project.roots) == before
    return last


def live(seed: int, make: Callable[..., Any], watch: Any) -> None:
    """A project's life: edits while it is watched, rest, a build there; then a clean build."""
    chance = random.Random(f"{seed} history")
    project = make(*NAMES, directory=f"{seed}/project")
    watching = watch(project)
    watching.rest()
    editor = Editor(project, chance)
    for rest in range(RESTS):
        for _ in range(chance.randrange(1, 12)):
            editor.step()
        last = f"last{rest}"
        editor.mend(last)
        watching.until("finished", script=last)
        ok = watching.rest()[-1]["ok"]
        assert ok == (build_changes_nothing(project)["exit_status"] == 0)
        editor.save(f"kernels/{last}.cu.j2", editor.kernel_text("{{ no_such_name }}"))
        assert not watching.rest()[-1]["ok"]
        assert build_changes_nothing(project)["event"] == "error"
        if rest == RESTS - 1:
            editor.save(f"kernels/{last}.cu.j2", editor.kernel_text("right again"))
            watching.until("watching", ok=True)
    assert watching.interrupt() == 130

    clean = project.copy(project.directory.parent / "clean", cache=False)
    for checkout in (project, clean):
        # How many of the schedules that fail alike are tried, and not left out, is chance.
        checkout.events("build", "-k", "0")
    assert project.roots == clean.roots
    project.events("cache", "gc")
    actual, expected = project.tree(), clean.tree()
    assert sorted(actual) == sorted(expected)
    assert actual == expected
    assert os.listdir(project.cache / "staging") == []


@pytest.mark.slow
def test_at_rest_the_tree_is_that_of_a_clean_build(new_project, watch) -> None:
    # Several lives at once: most of one is waiting.
    with ThreadPoolExecutor(4) as pool:
        lives = [pool.submit(live, seed, new_project, watch) for seed in range(SEEDS)]
    failed = {seed: error for seed, future in enumerate(lives) if (error := future.exception())}
    assert not failed, failed
