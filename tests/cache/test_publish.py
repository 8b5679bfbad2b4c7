"""How programs get into a cache, and when they count."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from support.cache_sample import OPTIONS, Sample, sample_at
from support.faulty_disk import FaultyDisk
from support.trees import snapshot
from tilusbuild.cache.entries import Stage, lookup_entry, read_compiler_log
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache


def test_a_published_program_is_named_by_its_texts(cache: Tree, sample: Sample):
    entry = sample.program("a")
    command = "cat program.txt options.txt | sha256sum"
    printed = subprocess.run(command, shell=True, cwd=entry.path, capture_output=True, text=True)
    assert printed.stdout.split()[0] == os.path.basename(entry.path) == entry.hash
    assert lookup_entry(cache, entry.hash) == entry
    assert read_compiler_log(cache, entry.hash) == "log of a\n"
    assert os.listdir(cache.path("staging")) == []
    tag = Path(cache.root, "CACHEDIR.TAG").read_text()
    assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert Path(cache.root, ".gitignore").read_text() == "*\n"


def test_equal_programs_are_equal_bytes_whatever_the_umask(sample: Sample, tmp_path: Path):
    first = sample.program("a")
    before = os.umask(0o077)
    try:
        other = type(sample)(Tree(str(tmp_path / "other"))).program("a")
    finally:
        os.umask(before)
    for path in sorted(Path(first.path).rglob("*")):
        twin = Path(other.path, path.relative_to(first.path))
        if path.is_file():
            assert path.read_bytes() == twin.read_bytes()
            assert path.stat().st_mode == twin.stat().st_mode
    assert stat.S_IMODE(os.stat(Path(first.path, "module/compile.sh")).st_mode) == 0o755
    assert stat.S_IMODE(os.stat(Path(first.path, "meta.json")).st_mode) == 0o644


def test_a_hit_takes_no_lock_and_writes_nothing(cache: Tree, sample: Sample):
    program = sample.program("a").hash
    shutil.rmtree(cache.path("locks"))
    before = snapshot(cache.root)
    entry = lookup_entry(Tree(cache.root), program)
    assert entry is not None
    assert entry.status == "built"
    assert lookup_entry(Tree(cache.root), "0" * 64) is None
    assert snapshot(cache.root) == before


def test_the_second_publisher_discards_its_copy(cache: Tree, sample: Sample):
    first = sample.program("a", size=10)
    inode = os.stat(first.path).st_ino
    second = sample.program("a", size=20)
    assert second == first
    assert os.stat(first.path).st_ino == inode
    assert os.listdir(cache.path("staging")) == []


def _library_is_a_link(path: Path) -> None:
    (path / "module/lib.so").unlink()
    (path / "module/lib.so").symlink_to("source.cu")


def _is_a_link(path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to("nowhere")


def _is_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


def _meta_is_of_another(path: Path) -> None:
    meta = (path / "meta.json").read_text().replace(path.name, "f" * 64)
    (path / "meta.json").write_text(meta)


@pytest.mark.parametrize(
    "damage", [_library_is_a_link, _is_a_file, _is_a_link, _meta_is_of_another]
)
def test_a_broken_entry_is_a_miss_and_is_replaced(cache: Tree, sample: Sample, damage):
    entry = sample.program("a")
    damage(Path(entry.path))
    assert lookup_entry(cache, entry.hash) is None
    assert sample.program("a").status == "built"
    assert lookup_entry(cache, entry.hash) == entry
    assert os.listdir(cache.path("staging")) == []


def test_an_invalid_entry_is_refused_and_leaves_nothing(cache: Tree, sample: Sample):
    texts = sample.program_txt("a"), "options\n"
    right = sample.program("a").hash

    def publish(program=right, options=OPTIONS, meta=None, link=False):
        stage = Stage(cache)
        if link:
            os.symlink("/etc/passwd", os.path.join(stage.path, "link"))
        stage.publish_program(program, texts[0], options, meta or {"status": "failed"})

    with pytest.raises(ValueError, match="do not belong to program"):
        publish(program="0" * 64)
    with pytest.raises(ValueError, match="not a status to publish"):
        publish(meta={"status": "crashed"})
    with pytest.raises(ValueError, match=r"needs a module/lib\.so"):
        publish(meta={"status": "built"})
    with pytest.raises(ValueError, match="not a regular file"):
        publish(link=True)
    stage = Stage(cache)
    stage.discard()
    stage.discard()
    with pytest.raises(ValueError, match="published or discarded"):
        stage.publish_program(right, *texts, {"status": "failed"})
    assert os.listdir(cache.path("staging")) == []
    assert os.listdir(cache.path("programs")) == [right]


def test_a_live_stage_is_left_alone_and_a_dead_one_swept(cache: Tree):
    live = Stage(cache)
    Path(live.path, "mine").write_text("")
    dead = cache.path("staging", "0123456789abcdef0123")
    os.mkdir(dead)
    Path(dead, "left").write_text("")
    next_builder = Tree(cache.root)
    Stage(next_builder).discard()
    assert not os.path.exists(dead)
    assert os.path.exists(os.path.join(live.path, "mine"))


def test_the_tree_can_be_deleted_at_any_time(cache: Tree, sample: Sample):
    sample.program("a")
    subprocess.run(["rm", "-r", cache.root], check=True)
    assert lookup_entry(cache, sample.hash("a")) is None
    entry = sample.program("a")
    assert lookup_entry(cache, entry.hash) == entry
    assert verify_cache(cache) == []


def test_a_whole_entry_that_came_meanwhile_stays(tmp_path: Path):
    """Also where locks do not hold: the other one may be reading what it has just put there."""
    root = str(tmp_path / "cache")
    other = sample_at(root)

    class Late(FaultyDisk):
        """Another builder publishes the program just before ours is put in its place."""

        def rename(self, old: str, new: str) -> None:
            if new == other.cache.program_path(other.hash("a")):
                inodes.append(os.stat(other.program("a").path).st_ino)
            super().rename(old, new)

    inodes: list[int] = []
    entry = sample_at(root, Late()).program("a")
    assert os.stat(entry.path).st_ino == inodes[0]
    assert os.listdir(other.cache.path("staging")) == []
