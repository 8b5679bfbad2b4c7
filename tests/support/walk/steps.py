"""The steps of a walk: edits, commands, damage and interruptions, drawn from a seed.

A step draws what it does from a number of its own and from how things stand, so that a walk from
which steps were dropped is a walk, too.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from support.walk import sources as drawn
from support.walk.world import (
    GCC_OPTIONS,
    OWN_GCC,
    SITES,
    FoundError,
    Surroundings,
    World,
    interrupted,
    linked,
    started,
)
from tilusbuild.state.directories import remove_tree


class Walk:
    """The state of a walk: its world, its sources and its branches."""

    def __init__(self, directory: Path, gpu: str) -> None:
        self.world = World(directory)
        self.sources = drawn.first(gpu)
        self.branches = [self.sources.copy()]
        self.world.write(self.sources.texts())
        self.said: list[str] = []
        """What the last step did, for people."""

    def take(self, name: str, number: int) -> None:
        """Take one step. Raises `FoundError`."""
        self.said = []
        STEPS[name][0](self, Random(number))

    # Edits.

    def edit(self, chance: Random) -> None:
        for name in drawn.draw(chance):
            self.said.append(name)
            drawn.EDITS[name](self.sources, chance)
        self.world.write(self.sources.texts(), chance)

    def branch(self, chance: Random) -> None:
        """Save the sources as a branch, or go to one, as git does."""
        if chance.random() < 0.4:
            self.branches.append(self.sources.copy())
            del self.branches[:-4]
        else:
            self.sources = chance.choice(self.branches).copy()
            self.world.write(self.sources.texts(), chance)

    def edit_and_back(self, chance: Random) -> None:
        """An edit, a build and the text of before, with the times of before."""
        before = self.sources.copy()
        self.edit(chance)
        self.build(chance)
        self.sources = before
        self.world.write(self.sources.texts(), chance)
        self.build(chance)

    def times(self, chance: Random) -> None:
        """Set the times of some files."""
        for name in chance.sample(sorted(self.sources.texts()), 3):
            when = chance.choice([0, 1e9, time.time(), time.time() + 1e6])
            with suppress(FileNotFoundError):  # a link to nothing
                os.utime(self.world.project / name, (when, when))

    def surroundings(self, chance: Random) -> None:
        """Change what commands are run with."""
        world, around = self.world, Surroundings()
        for _ in range(chance.choice([0, 1, 1, 2])):
            match chance.randrange(10):
                case 0:
                    around.variables["CPATH"] = chance.choice(["@/project/other", "/nowhere", ""])
                case 1:
                    around.umask = chance.choice([0o077, 0o002])
                case 2:
                    around.where = chance.choice(["link", "kernels", "src"])
                case 3:
                    around.path = chance.choice(["links", "wrapped"])
                case 4:
                    around.remote = True
                case 5:
                    around.variables["LANGUAGE"] = "de"
                case 7:
                    order = chance.choice([SITES, SITES[::-1], SITES[:1], SITES[1:]])
                    path = os.pathsep.join(f"@/sites/{site}" for site in order)
                    around.variables["PYTHONPATH"] = path
                case 8:
                    around.path = OWN_GCC
                    world.turn_gcc(chance.choice([*GCC_OPTIONS]))
                case 9:
                    around.variables[chance.choice(["CXX", "NVCC_CCBIN"])] = "g++"
                case 6:
                    world.wrap(chance.choice(["first", "second"]))
        world.around = around
        self.said.append(str(around))

    # Builds that are compared.

    def words(self, chance: Random) -> tuple[str, ...]:
        names = sorted(self.sources.scripts)
        some = chance.choice([(), ("--level", "0"), (chance.choice(names),), ("-t", "cpu")])
        some = some if chance.random() < 0.35 else ()
        return ("build", "--json", "-k", "0", *some)

    def build(self, chance: Random) -> None:
        self.compared(self.words(chance))

    def compared(self, words: tuple[str, ...]) -> None:
        """Build, and compare with a clean build."""
        world = self.world
        self.said.append(" ".join(words))
        before = world.entries()
        ended = world.run(*words)
        world.compare(self.sources, words, ended)
        for name in started(ended.out):
            if name in before and name not in world.damaged:
                raise FoundError(f"{name} was there, and is compiled again")
        world.keep(before)

    def build_again(self, chance: Random) -> None:
        """The second build has nothing to do, but to try again what has no answer: a header that
        macros name, and that is nowhere."""
        words = self.words(chance)
        self.compared(words)
        again = self.world.run(*words)
        if list(started(again.out)) and '"status": "crashed"' not in again.out:
            raise FoundError(f"a second build compiles: {again.out[-2000:]}")
        self.world.compare(self.sources, words, again)

    def rebuild_quietly(self, chance: Random) -> None:
        """As people build: plainly. Then compared."""
        self.world.run("build")
        self.compared(("build", "--json", "-k", "0"))

    # What may happen to a build.

    def interrupted(self, chance: Random) -> None:
        world = self.world
        before = world.entries()
        words = chance.choice([("build",), ("build", "-j1"), ("cache", "gc"), ("plan",)])
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
        self.said.append(f"{words} {number.name}")
        running = world.start(*words)
        time.sleep(chance.uniform(0, chance.choice([0.1, 0.5, 1.5])))
        world.send(running, number)
        ended = world.wait(running, signalled=True)
        if not interrupted(ended.status):
            raise FoundError(f"status {ended.status} after {number.name}: {ended.err[-2000:]}")
        world.settle()
        world.keep(before, may_go=words == ("cache", "gc"))

    def two_at_once(self, chance: Random) -> None:
        world = self.world
        before = world.entries()
        others = [("build",), ("build", "-j1"), ("plan",), ("cache", "gc"), ("cache", "verify")]
        others += [("explain",), ("build", chance.choice(sorted(self.sources.scripts)))]
        other = chance.choice(others)
        words = ("build", "--json", "-k", "0")
        self.said.append(f"beside {other}")
        running = [world.start(*words), world.start(*other)]
        first, second = [world.wait(process) for process in running]
        damaged = bool(world.damaged)
        is_readable = not damaged and not self.sources.mistake
        if other[:2] == ("cache", "verify") and second.status and is_readable:
            raise FoundError(f"verify beside a build: {second.out}{second.err}")
        world.compare(self.sources, words, first)
        world.keep(before, may_go=other == ("cache", "gc"))

    def edit_meanwhile(self, chance: Random) -> None:
        """Files change while a build reads them; the next one is right."""
        world = self.world
        running = world.start("build")
        time.sleep(chance.uniform(0, 0.6))
        self.edit(chance)
        world.wait(running)
        self.compared(("build", "--json", "-k", "0"))

    def watch(self, chance: Random) -> None:
        """An edit under `watch`."""
        world = self.world
        running = world.start("watch", "--json")
        time.sleep(chance.uniform(0.2, 1.5))
        self.edit(chance)
        time.sleep(chance.uniform(0.2, 1.5))
        world.send(running, signal.SIGINT)
        ended = world.wait(running, signalled=True)
        if ended.status not in (1, 2, 130):
            raise FoundError(f"watch ends {ended.status}: {ended.err[-2000:]}")
        world.settle()
        self.compared(("build", "--json", "-k", "0"))

    # Verbs that change nothing that is published, or little.

    def look(self, chance: Random) -> None:
        world = self.world
        before = world.entries()
        name = chance.choice(sorted(self.sources.scripts))
        words = chance.choice(
            [
                ("plan",),
                ("plan", "--json", name),
                ("explain",),
                ("explain", name, "--json"),
                ("cache", "ls"),
                ("cache", "stats"),
                ("report",),
                ("compdb",),
                ("render", name),
                ("run", name),
                ("cache", "gc", "--dry-run"),
                ("build", "--dry-run"),
            ]
        )
        self.said.append(" ".join(words))
        world.run(*words)
        world.keep(before)

    def verify(self, chance: Random, *, spoilt: bool = False) -> None:
        """It finds all damage, and nothing else; its repair removes only that."""
        world = self.world
        before = world.entries()
        if self.sources.mistake:  # which may be where the cache's directory is named
            world.run("cache", "verify", status=(2,))
            return
        result = world.run("cache", "verify")
        if result.status and not world.damaged:
            raise FoundError(f"verify: {result.out}{result.err}")
        if not result.status and spoilt:
            raise FoundError("verify does not see it")
        if result.status:
            world.run("cache", "verify", "--repair")
            world.keep(before)
            now = world.entries()
            world.damaged = {k: v for k, v in world.damaged.items() if k in now}
            after = world.run("cache", "verify")
            if after.status and not world.damaged:
                raise FoundError(f"verify after its repair: {after.out}{after.err}")

    def gc(self, chance: Random) -> None:
        """It keeps all that the project's last build made."""
        world = self.world
        self.compared(("build", "--json", "-k", "0"))
        if self.sources.mistake:  # which may be where the cache's directory is named
            return
        world.damaged.clear()
        world.run("cache", "gc", status=(0,))
        again = world.run("build", "--json", "-k", "0")
        if list(started(again.out)):
            raise FoundError(f"gc removed what was needed: {again.out[-2000:]}")
        world.compare(self.sources, ("build", "--json", "-k", "0"), again)

    def clear(self, chance: Random) -> None:
        if self.sources.mistake:
            return
        self.world.run("cache", "clear", status=(0,))
        self.world.damaged.clear()
        self.world.installed = False
        if self.world.entries():
            raise FoundError("clear leaves entries")
        self.build(chance)

    def remote(self, chance: Random) -> None:
        """Programs go to the remote cache, or come from it."""
        world = self.world
        world.around.remote = True
        before = world.entries()
        words = chance.choice([("cache", "push"), ("cache", "pull")])
        self.said.append(" ".join(words))
        world.run(*words)
        world.keep(before)
        if chance.random() < 0.3:  # and are fetched by a build
            shutil.rmtree(world.cache, ignore_errors=True)
            world.damaged.clear()
        self.compared(("build", "--json", "-k", "0"))

    def remote_damage(self, chance: Random) -> None:
        files = sorted(path for path in (self.world.room / "remote").rglob("*") if path.is_file())
        for path in chance.sample(files, min(len(files), 3)):
            _spoil(path, chance)

    def package(self, chance: Random) -> None:
        """A package is that of a clean build, and installs elsewhere, or here."""
        world = self.world
        out = world.room / "made"
        shutil.rmtree(out, ignore_errors=True)
        words = ("package", "--format", "dir", "-o", str(out))
        ended = world.run(*words)
        if ended.status:
            return
        (package_directory,) = out.iterdir()
        clean = world.packaged(self.sources)
        real = world.below(package_directory)
        if real != clean and not world.installed:
            other = sorted(k for k in real.keys() | clean.keys() if real.get(k) != clean.get(k))
            if not all("dispatch" in name or name == "tilus-package.json" for name in other):
                raise FoundError(f"the package is other in {other}")
        before = world.entries()
        if chance.random() < 0.5:
            elsewhere = str(world.room / "elsewhere")
            shutil.rmtree(elsewhere, ignore_errors=True)
            world.run("--cache-dir", elsewhere, "install", str(package_directory), status=(0,))
            world.run("--cache-dir", elsewhere, "cache", "verify", status=(0,))
        else:
            world.installed = True
            world.run("install", str(package_directory), status=(0,))
            world.keep(before)
            self.compared(("build", "--json", "-k", "0"))
            world.run("install", "--remove", "p")

    def tune(self, chance: Random) -> None:
        name = chance.choice(sorted(self.sources.scripts))
        if self.sources.scripts[name].target == "cpu":
            before = self.world.entries()
            self.world.run("tune", name, "--budget", "1s")
            self.world.keep(before)

    # Damage.

    def delete(self, chance: Random) -> None:
        """Something of the cache is deleted; a build restores what it needs."""
        world = self.world
        entries = world.entries()
        places = [world.cache / name for name in entries]
        places += [path for directory in places for path in sorted(directory.rglob("*"))]
        others = [world.cache / name for name in ("index.json", "state", "locks", "scripts")]
        others += [
            world.cache,
            world.room / "home/.cache",
            *sorted((world.cache / "state").glob("*")),
        ]
        others += sorted((world.project / "out").glob("*"))
        chosen = chance.choice(others if chance.random() < 0.3 or not places else places)
        self.said.append(str(chosen.relative_to(world.room)))
        remove_tree(str(chosen))
        self._note_damage(entries)
        self.compared(("build", "--json", "-k", "0"))

    def spoil(self, chance: Random) -> None:
        """Something of the cache is changed in place: `verify` finds it, where it is published, and
        what is only remembered spoils no build. Of measurements there is no second copy."""
        world = self.world
        if chance.random() < 0.4:
            places = [world.cache / "state", world.room / "home/.cache"]
            files = [path for directory in places for path in sorted(directory.rglob("*"))]
            files = [path for path in files if path.is_file() and "tune" not in path.parts]
            for path in chance.sample(files, min(len(files), chance.choice([1, 5, 100]))):
                _spoil(path, chance)
            self.compared(("build", "--json", "-k", "0"))
            return
        if self.sources.mistake:  # `verify` cannot read where the cache is
            return
        entries = world.entries()
        files = [world.cache / name / path for name, of in entries.items() for path in of]
        files = [path for path in files if path.is_file() and not path.is_symlink()]
        # The other files of a script are made of these two at each build.
        files = [
            path
            for path in files
            if "/scripts/" not in str(path) or path.name in ("script.txt", "script.json")
        ]
        if files:
            chosen = chance.choice(files)
            self.said.append(str(chosen.relative_to(world.cache)))
            _spoil(chosen, chance)
            self._note_damage(entries)
            self.verify(chance, spoilt=True)
            self.compared(("build", "--json", "-k", "0"))

    def _note_damage(self, before: dict[str, dict[str, str]]) -> None:
        """Note which entries are other than they were, and the scripts of such programs: their
        links go with what is repaired."""
        now = self.world.entries()
        damaged = {name for name, was in before.items() if now.get(name) != was}
        damaged |= {
            n
            for n, was in before.items()
            if any(linked_name in damaged for linked_name in linked(was))
        }
        for name in damaged:
            self.world.damaged.setdefault(name, before[name])


def _spoil(path: Path, chance: Random) -> None:
    """Change a file in its place, cut it or empty it."""
    data = bytearray(path.read_bytes())
    path.chmod(0o644)
    match chance.randrange(3):
        case 0 if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 1 if data:
            data = data[: len(data) // 2]
        case _:
            data += b"x"
    with path.open("r+b") as file:
        file.write(data)
        file.truncate(len(data))


Step = Callable[[Walk, Random], None]
STEPS: dict[str, tuple[Step, float]] = {
    "edit": (Walk.edit, 22),
    "build": (Walk.build, 16),
    "edit and back": (Walk.edit_and_back, 2),
    "build again": (Walk.build_again, 3),
    "rebuild quietly": (Walk.rebuild_quietly, 1),
    "branch": (Walk.branch, 5),
    "times": (Walk.times, 2),
    "surroundings": (Walk.surroundings, 3),
    "interrupted": (Walk.interrupted, 5),
    "two at once": (Walk.two_at_once, 3),
    "edit meanwhile": (Walk.edit_meanwhile, 2),
    "watch": (Walk.watch, 1),
    "look": (Walk.look, 6),
    "verify": (Walk.verify, 2),
    "gc": (Walk.gc, 2),
    "clear": (Walk.clear, 0.5),
    "remote": (Walk.remote, 2),
    "remote damage": (Walk.remote_damage, 1),
    "package": (Walk.package, 2),
    "tune": (Walk.tune, 1),
    "delete": (Walk.delete, 4),
    "spoil": (Walk.spoil, 4),
}


def steps(seed: int, count: int) -> list[tuple[str, int]]:
    """The steps of a walk: a name, and the number that the step draws from."""
    chance = Random(f"walk {seed}")
    names, weights = [*STEPS], [weight for _, weight in STEPS.values()]
    return [(chance.choices(names, weights)[0], chance.randrange(1 << 32)) for _ in range(count)]
