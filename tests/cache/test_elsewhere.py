"""Nothing in a tree leads a change out of it: links, FIFOs and mounts at every level, before every
operation. The oracle: what lies outside is as it was, each inode, time and size of it."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.cache_sample import Sample, sample_at
from support.processes import run_mounted
from support.trees import THINGS, put, snapshot
from tilusbuild.cache.disk import CacheError
from tilusbuild.cache.entries import Stage, lookup_entry
from tilusbuild.cache.garbage import clear_cache, collect_garbage
from tilusbuild.cache.index import collect_stats, forget_projects, list_scripts, record_build
from tilusbuild.cache.merging import merge_caches
from tilusbuild.cache.scripts import publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import repair_cache, verify_cache
from tilusbuild.errors import InputError, TilusbuildError
from tilusbuild.runtime.sealed import CorruptFileError

STALE = "0123456789abcdef0123"

PLACES = [
    "programs", "scripts", "include", "staging", "state", "locks", "index.json",
    "CACHEDIR.TAG", ".gitignore", "notes", "programs/notes", "include/notes", "scripts/notes",
    "staging/notes", "locks/notes", "scripts/matmul/notes",
    "programs/P", "programs/P/module", "programs/P/meta.json", "programs/P/module/lib.so",
    "include/I", "include/I/project", "include/I/MANIFEST",
    "scripts/matmul", "scripts/matmul/S", "scripts/matmul/S/programs", "scripts/matmul/S/failed",
    "scripts/matmul/S/script.txt", "scripts/matmul/S/schedule.txt", "scripts/matmul/S/notes",
    f"staging/{STALE}", f"staging/{STALE}/deep",
    "locks/use", "locks/index", "locks/read-ab", "state/history", "state/plans", "state/tune",
]  # fmt: skip


class Laid:
    """A cache with one of everything, twice: what a build made last, and what is garbage."""

    def __init__(self, directory: str) -> None:
        self.outside = os.path.join(directory, "outside")
        os.mkdir(self.outside)
        Path(self.outside, "precious").write_text("mine")
        self.sample: Sample = sample_at(os.path.join(directory, "cache"), None)
        self.names = {}
        for name in ("old", "new"):
            include = self.sample.include(**{name: "text"})
            record, _ = self.sample.built(name, include=include)
            self.names[name] = (self.sample.hash(name), include, record.hash)
        Path(self.cache.state_path, "plans").mkdir()
        Path(self.cache.state_path, "history").write_text("x")
        Path(self.path("staging", STALE, "deep")).mkdir(parents=True)
        Path(self.path("staging", STALE, "deep", "file")).write_text("x")

    @property
    def cache(self) -> Tree:
        return self.sample.cache

    def path(self, *names: str) -> str:
        return self.cache.path(*names)

    def put(self, pattern: str, thing: str, which: str, number: int) -> None:
        program, include, script = self.names[which]
        hashes = {"P": program, "I": include, "S": script}
        path = self.path(*(hashes.get(part, part) for part in pattern.split("/")))
        put(thing, path, self.outside, number)


def merge(tree: Laid) -> None:
    with tempfile.TemporaryDirectory(dir=os.path.dirname(tree.outside)) as directory:
        other = sample_at(os.path.join(directory, "shard"), None)
        other.program("old", include=other.include(old="text"))
        other.program("of a shard")
        other.built("old", "of a shard")
        merge_caches(tree.cache, [other.cache])
        merge_caches(other.cache, [tree.cache])


def build(tree: Laid) -> None:
    with tree.cache.hold_use():
        for name in ("old", "new", "newer"):
            with tree.cache.lock_program(tree.sample.hash(name), wait=False):
                if lookup_entry(tree.cache, tree.sample.hash(name)) is None:
                    tree.sample.program(name, include=tree.sample.include(**{name: "text"}))
        publish_script(tree.cache, tree.sample.record(["old", "new", "newer"]))
        tree.sample.built("new", include=tree.sample.include(new="text"))


OPERATIONS: dict[str, Callable[[Laid], object]] = {
    "gc": lambda tree: collect_garbage(tree.cache),
    "gc --dry-run": lambda tree: collect_garbage(tree.cache, dry_run=True),
    "gc --max-size 0": lambda tree: collect_garbage(tree.cache, max_size=0),
    "gc --forget": lambda tree: forget_projects(tree.cache, ["/p/tilus.toml"]),
    "clear": lambda tree: clear_cache(tree.cache),
    "verify --repair": lambda tree: repair_cache(tree.cache, verify_cache(tree.cache)),
    "build": build,
    "merge": merge,
    "ls": lambda tree: (list_scripts(tree.cache), collect_stats(tree.cache)),
}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail a block that hangs, as one that waits at a FIFO does."""

    def fail(number: int, frame: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@settings(max_examples=int(os.environ.get("TREES", "60")))
@example(put=[("include/I/MANIFEST", "FIFO", "new")], operations=["merge"])
@given(
    put=st.lists(
        st.tuples(
            st.sampled_from(PLACES), st.sampled_from(THINGS), st.sampled_from(["old", "new"])
        ),
        min_size=1,
        max_size=4,
    ),
    operations=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=4),
)
def test_no_link_or_fifo_leads_outside(memory, put, operations) -> None:
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        tree = Laid(directory)
        for number, (pattern, thing, which) in enumerate(put):
            tree.put(pattern, thing, which, number)
        before = snapshot(tree.outside)
        for operation in operations:
            with within(60), suppress(TilusbuildError, CorruptFileError):
                OPERATIONS[operation](tree)
            assert snapshot(tree.outside) == before, operation


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("path", PLACES[:6])
def test_each_directory_as_a_link_is_refused_or_left(tmp_path: Path, path, operation) -> None:
    tree = Laid(str(tmp_path))
    tree.put(path, "link to a copy", "old", 0)
    before = snapshot(tree.outside)
    with pytest.raises(InputError, match=f"{path} is a link"):
        OPERATIONS[operation](tree)
    assert snapshot(tree.outside) == before
    assert os.path.islink(tree.path(path))


@pytest.mark.parametrize("thing", ["a directory", "a link", "a FIFO"])
def test_what_stands_in_the_place_of_a_lock_is_named(tmp_path: Path, thing: str) -> None:
    tree = Laid(str(tmp_path))
    path = Path(tree.path("locks/use"))
    path.unlink(missing_ok=True)
    {
        "a directory": path.mkdir,
        "a link": lambda: path.symlink_to("nowhere"),
        "a FIFO": lambda: os.mkfifo(path),
    }[thing]()
    assert [problem.name for problem in verify_cache(tree.cache)] == ["locks/use"]
    pattern = "locks/use: .*\n  tilusbuild did not write it: move it elsewhere or delete it"
    with pytest.raises(CacheError, match=pattern):
        collect_garbage(tree.cache)
    assert os.path.lexists(path)


@pytest.mark.parametrize(
    "marks", ["a virtualenv", "target of cargo", "a project", "state", "its half", "empty tag"]
)
def test_a_directory_without_our_mark_is_refused_and_untouched(tmp_path: Path, marks) -> None:
    directory = tmp_path / "place"
    directory.mkdir()
    foreign_tag = "Signature: 8a477f597d28d172789f06886806bc55\n# Created by cargo\n"
    for name in {
        "a virtualenv": ["bin/python", "include/x.h", "CACHEDIR.TAG"],
        "target of cargo": ["debug/x", "CACHEDIR.TAG"],
        "a project": ["include/x.h", "scripts/run.py", "programs/x.c"],
        "state": ["state/terraform"],
        "its half": ["staging/mine"],
        "empty tag": ["CACHEDIR.TAG", "programs/x"],
    }[marks]:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(
            foreign_tag if name == "CACHEDIR.TAG" and marks[0] != "e" else "x"
        )
    cache = Tree(str(directory))
    before = snapshot(tmp_path)
    uses = (Tree.ensure_complete, collect_garbage, clear_cache, verify_cache, collect_stats, Stage)
    for use in uses:
        with pytest.raises(InputError, match="not a cache of tilusbuild"):
            use(cache)
    assert snapshot(tmp_path) == before


def test_the_cache_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "big disk").mkdir()
    (tmp_path / "cache").symlink_to("big disk")
    sample = sample_at(str(tmp_path / "cache"), None)
    record_build(sample.cache, "/p/tilus.toml", "p", [])
    sample.program("a")
    assert len(collect_garbage(sample.cache).removed) == 1
    clear_cache(sample.cache)
    assert (tmp_path / "cache").is_symlink()


MOUNTED = """
import os, sys
from tilusbuild.cache.garbage import clear_cache, collect_garbage
from tilusbuild.cache.verify import repair_cache, verify_cache
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.disk import CacheError
cache = Tree(sys.argv[1])
for change in (
    lambda: collect_garbage(cache, max_size=0),
    lambda: repair_cache(cache, verify_cache(cache)),
    lambda: clear_cache(cache),
):
    try:
        change()
    except CacheError:
        pass
print("left")
"""


def test_a_mount_inside_is_left_alone(tmp_path: Path) -> None:
    """A bind mount, which has the device of what is around it."""
    tree = Laid(str(tmp_path))
    program, include, script = tree.names["old"]
    places = [
        f"programs/{program}/mounted",
        f"include/{include}/project",
        f"scripts/matmul/{script}/failed",
        "state/plans",
        f"staging/{STALE}/deep",
    ]
    before = snapshot(tree.outside)
    mounts = []
    for name in places:
        os.makedirs(tree.path(name), exist_ok=True)
        mounts.append(f'mount --bind "$outside" "$root/{name}"')
    words = (MOUNTED, tree.cache.root)
    done = run_mounted("\n".join(mounts), *words, outside=tree.outside, root=tree.cache.root)
    assert done.stdout == "left\n"
    assert snapshot(tree.outside) == before
