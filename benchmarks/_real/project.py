"""A project, built its own way and ours, and what is compared of the two.

Both builds start from the same unpacked sources, with the same compiler and as many jobs. CPU time
is that of all processes of a build, as the kernel counts it. The two are run in turn, and ratios
are taken within a round.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _bench import Arm, Ran, WorkNotDoneError, process

from _real import world
from _real.code import Compared, Naming, compare

Command = tuple[Path, Sequence[str]]
"""A directory and the words of a program that is run in it."""


@dataclass
class Project:
    """One project, ready to be built both ways."""

    name: str
    tree: Path
    """Where `tilus.toml` is."""
    theirs: list[Command]
    """What builds it from nothing, in turn."""
    made: Callable[[], list[Path]]
    """What `theirs` built, to be taken away before it is built again."""
    theirs_again: Command
    """ninja, for nothing to do and for what it would build again."""
    theirs_code: Callable[[], list[Path]]
    theirs_compiles: int
    """How many compiles `theirs` are."""
    products: tuple[Callable[[], list[Path]], Callable[[], list[Path]]]
    """What is shipped: of ours, and of theirs."""
    header: Path
    """An edit of it is built again."""
    note: str = ""
    names: Naming | None = None
    """Names kernels where programs have kernels of one name."""


@dataclass
class Measured:
    """What is printed of a project."""

    project: Project
    ours: Arm
    theirs: Arm
    programs: int
    code: Compared
    sizes: tuple[int, int]
    noop: tuple[Ran, Ran]
    again: tuple[int, int]
    rows: dict[str, object] = field(default_factory=dict)


def tilusbuild(*words: str) -> list[str]:
    """Return a command of ours, by the environment's interpreter."""
    return [world.python(), "-m", "tilusbuild", *words]


def _run(commands: Iterable[Command]) -> Ran:
    ran = [process(words, where, world.environment()) for where, words in commands]
    return Ran(
        sum(result.wall for result in ran),
        sum(result.cpu for result in ran),
        max(result.peak_rss for result in ran),
        "".join(result.out for result in ran),
    )


def measure(project: Project, jobs: int, rounds: int) -> Measured:
    """Build a project both ways, and compare what was made and what it took."""
    tree, cache = project.tree, project.tree / ".cache"
    build = tilusbuild("build", "--cache-dir", str(cache), "-j", str(jobs))

    def forget() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        shutil.rmtree(world.WORK / "xdg", ignore_errors=True)

    def wipe() -> None:
        for path in project.made():
            path.unlink(missing_ok=True)

    own_arm = Arm("ours", lambda: _run([(tree, build)]), lambda: bool(programs(project)), forget)
    peer_arm = Arm("theirs", lambda: _run(project.theirs), lambda: True, wipe)
    for number in range(rounds):
        for arm in (own_arm, peer_arm) if number % 2 == 0 else (peer_arm, own_arm):
            arm.once()
    built = programs(project)
    code = compare(built, project.theirs_code(), project.names)
    sizes = tuple(sum(path.stat().st_size for path in side()) for side in project.products)
    noop = [(_run([(tree, build)]), _run([project.theirs_again])) for _ in range(2)][-1]
    edited = rebuild_set(project, cache)
    return Measured(
        project, own_arm, peer_arm, len(built), code, (sizes[0], sizes[1]), noop, edited
    )


def programs(project: Project) -> list[Path]:
    """Return what ours compiled: objects, and libraries that are called by themselves."""
    paths = []
    for module in sorted((project.tree / ".cache/programs").rglob("module")):
        if (module / "object.o").exists():
            paths.append(module / "object.o")
        elif (module / "source.cu").exists() and (module / "lib.so").exists():
            paths.append(module / "lib.so")  # without a source it is a link of objects
    return paths


def rebuild_set(project: Project, cache: Path) -> tuple[int, int]:
    """Return how many compiles an edit of the header asks for, without links: of ours, of
    theirs."""
    header, before = project.header, project.header.read_bytes()
    stamp = header.stat()
    header.write_bytes(before + b"\nstruct tilusbuild_edit;\n")
    try:
        words = tilusbuild("plan", "--cache-dir", str(cache))
        output = process(words, project.tree, world.environment()).out
        where, again = project.theirs_again
        edges = process([*again, "-n", "-v"], where, world.environment()).out
    finally:
        header.write_bytes(before)
        os.utime(header, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    compiles = len(re.findall(r"(?m)^.* (?:-c|--cubin) ", edges))
    return compiles_planned(output, (project.tree / "tilus.toml").read_text()), compiles


def compiles_planned(output: str, manifest: str) -> int:
    """Return how many compiles `plan` said, of what is no link of a library."""
    rows = re.findall(r"(?m)^(\S+) .* (\d+)$", output)
    if not rows:
        raise WorkNotDoneError(f"the output of `plan` was not understood: {output}")
    links = re.findall(r"(?m)^\[library\.([\w-]+)\]", manifest)
    return sum(int(number) for script, number in rows if script not in links)
