"""Foreign caches: recognised by content, listed, verified, cleaned up."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from support import command_line, events_schema
from support.json_schema import valid
from tilusbuild.cli.main import main
from tilusbuild.errors import InputError
from tilusbuild.interop.caches import SYSTEMS, read_foreign_cache, recognize_system
from tilusbuild.interop.caches.gc import choose_removals, remove_unless_in_use

SYSTEM_NAMES = list(SYSTEMS)
Made = Callable[..., Path]
LIBRARY = (Path(__file__).parents[1] / "binary" / "data" / "library.so").read_bytes()
Problems = Callable[[Path], list[str]]


@pytest.mark.parametrize("system", SYSTEM_NAMES)
def test_recognised_by_content_under_any_name(system: str, make: Made, tmp_path: Path) -> None:
    directory = make(system)
    other = shutil.move(directory, tmp_path / "some other name")
    assert recognize_system(str(other)) == system


@pytest.mark.parametrize("system", SYSTEM_NAMES)
def test_a_whole_cache_has_no_problems(system: str, make: Made, problems: Problems) -> None:
    directory = make(system)
    assert problems(directory) == []
    cache = read_foreign_cache(str(directory))
    assert cache.system == system
    for entry in cache.entries:
        assert entry.code_archs == ("sm_90a",)
        assert entry.declared_arch in ("", "sm_90", "sm_90a")
        assert entry.size == sum((directory / name).stat().st_size for name in entry.files)
    assert [[entry.kind for entry in group] for group in cache.duplicates] == (
        [["op", "op of a graph"]] if system == "hidet" else []
    )
    pickles = [os.path.basename(name) for entry in cache.entries for name in entry.pickles]
    assert {*pickles} == ({"func_types.pickle"} if system in ("hidet", "tilus") else set())


def test_what_each_entry_is(make: Made) -> None:
    entries_by_system = {
        system: [
            (e.kind, e.name, e.declared_arch, e.compiled_by)
            for e in read_foreign_cache(str(make(system))).entries
        ]
        for system in SYSTEM_NAMES
    }
    assert entries_by_system == {
        "tilus": [("program", "add", "sm_90a", "nvcc")],
        "tilelang": [
            ("kernel", "add", "", "tilelang 0.1.15"),
            ("binary", "", "", "tilelang 0.1.15"),
        ],
        "hidet": [
            ("op", "relu", "sm_90a", "hidet 0.6.1"),
            ("op of a graph", "relu", "sm_90a", "hidet 0.6.1"),
        ],
        "triton": [("kernel", "add", "sm_90", "triton 3.9.0")],
    }


@pytest.mark.parametrize("system", SYSTEM_NAMES)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), ("section", "bytes")),
        (lambda path: path.write_bytes(b""), ("is empty", "bytes")),
        (Path.unlink, ("is missing", "no binary", "no library", "no compiled code")),
    ],
    ids=["cut short", "emptied", "removed"],
)
def test_a_damaged_library_is_found(system, damage, message, make, problems) -> None:
    directory = make(system)
    for suffix in ("*.so", "*.cubin"):
        for library in directory.rglob(suffix):
            damage(library)
    entries = read_foreign_cache(str(directory)).entries
    assert all(entry.problems for entry in entries)
    assert all(any(word in line for word in message) for line in problems(directory)), problems(
        directory
    )


def flip_bit(directory: Path) -> None:
    (library,) = directory.rglob("executable.so")
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)


def append(pattern: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (path,) = directory.glob(pattern)
        path.write_text(path.read_text() + " ")

    return change


def remove_programs(directory: Path) -> None:
    shutil.rmtree(directory / "programs")
    (directory / "programs").mkdir()


@pytest.mark.parametrize(
    ("system", "change", "message"),
    [
        ("tilelang", flip_bit, "is not what its digest says"),
        ("tilus", append("programs/*/options.txt"), "is not named by its options.txt"),
        ("hidet", append("ops/*/*/*/task.txt"), "is not named by its task.txt"),
        ("tilus", remove_programs, "scripts/add/1-807b8705/programs/0: leads to program "),
    ],
)
def test_a_changed_cache_is_broken(system, change, message, make, problems) -> None:
    directory = make(system)
    change(directory)
    assert any(message in line for line in problems(directory))


def test_a_library_for_another_gpu_is_found(make: Made, problems: Problems) -> None:
    (tilus,) = problems(make("tilus", arch="80"))
    assert tilus.endswith("module/lib.so: holds code for sm_90a; its entry says sm_80")
    hidet = problems(make("hidet", arch="sm_86"))
    assert len(hidet) == 2
    assert all(line.endswith("holds code for sm_90a; its entry says sm_86") for line in hidet)


def test_a_cache_of_triton_that_was_moved(make: Made, problems: Problems, tmp_path: Path) -> None:
    shutil.move(make("triton"), tmp_path / "elsewhere")
    (line,) = problems(tmp_path / "elsewhere")
    assert "names 2 files by paths that do not exist: it was moved" in line


def test_an_abandoned_staging_directory_is_litter(make: Made) -> None:
    directory = make("tilelang")
    staging = directory / "0.1.15/linux-x86_64/.staging/key_123_0a1b2c3d"
    staging.mkdir(parents=True)
    (staging / "executable.so").write_bytes(b"x" * 10)
    assert read_foreign_cache(str(directory)).stale == ()  # somebody may be writing it
    for path in (staging / "executable.so", staging):
        os.utime(path, (0, 0))
    (piece,) = read_foreign_cache(str(directory)).stale
    assert (piece.path, piece.size) == (str(staging.relative_to(directory)), 10)


def test_gc_by_age_and_size(make: Made) -> None:
    directory = make("hidet")
    (operator,) = directory.glob("ops/*/*/*")
    for path in operator.rglob("*"):
        os.utime(path, (1000, 1000))
    cache = read_foreign_cache(str(directory))
    operator_path = str(operator.relative_to(directory))
    assert [r.path for r in choose_removals(cache, now=5000, older_than=2000)] == [operator_path]
    (size,) = (entry.size for entry in cache.entries if entry.path == operator_path)
    assert [r.path for r in choose_removals(cache, now=5000, max_size=cache.size - size)] == [
        operator_path
    ]
    assert [r.path for r in choose_removals(cache, now=5000, max_size=0)] == [
        operator_path,
        "graphs/43f704147ed6331f",  # a graph goes as a whole
    ]
    assert choose_removals(cache, now=5000) == ()
    for path in directory.glob("graphs/**/*"):
        os.utime(path, (500, 500))
    removals = choose_removals(read_foreign_cache(str(directory)), now=5000, older_than=2000)
    assert [r.path for r in removals] == ["graphs/43f704147ed6331f", operator_path], (
        "the oldest first"
    )

    gone = list(remove_unless_in_use(cache, choose_removals(cache, now=5000, older_than=2000)))
    assert [went for _, went in gone] == [True]
    assert not operator.exists()
    assert [entry.kind for entry in read_foreign_cache(str(directory)).entries] == ["op of a graph"]
    assert not [name for name in os.listdir(directory) if name.startswith(".")]


def test_gc_leaves_what_its_system_has_locked(make, monkeypatch) -> None:
    directory = make("tilus")
    (lock,) = directory.glob("programs/*/.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cache = read_foreign_cache(str(directory))
        gone = list(remove_unless_in_use(cache, choose_removals(cache, now=1e12, older_than=1)))
    assert [went for _, went in gone] == [False]
    assert lock.exists()
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    assert cache.entries[0].directory.is_locked(str(lock.relative_to(directory)))


def test_a_directory_that_is_not_a_cache(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    with pytest.raises(InputError, match="is not a known cache"):
        read_foreign_cache(str(tmp_path))


def test_names_that_try_to_lead_out(make: Made, problems: Problems, tmp_path: Path) -> None:
    """A manifest that lists other files, and links in the place of files, are no way out."""
    (tmp_path / "secret").write_text("secret")
    directory = make("tilelang")
    (manifest,) = directory.rglob("manifest.json")
    value = json.loads(manifest.read_text())
    value["files"]["../../../../../../secret"] = {"size": 6, "sha256": "0" * 64}
    manifest.write_text(json.dumps(value))
    (library,) = directory.rglob("executable.so")
    library.unlink()
    library.symlink_to(tmp_path / "secret")
    lines = problems(directory)
    assert any("which is not a file of an entry" in line for line in lines)
    assert any("executable.so: is missing" in line for line in lines)


def test_the_command_line(make: Made, tmp_path: Path) -> None:
    def run(*words: str, status: int = 0) -> str:
        return command_line.run(tmp_path, "cache", *words, status=status).out

    directory = str(make("hidet"))
    listed = [json.loads(line) for line in run("ls", directory, "--json").splitlines()]
    assert [(e["system"], e["holds"]) for e in listed] == [("hidet", ["sm_90a"])] * 2
    assert run("verify", directory) == "2 entries of hidet 0.6.1, no problems found\n"
    assert "the same code as another" in run("stats", directory)
    (library,) = Path(directory).glob("ops/*/*/*/lib.so")
    library.write_bytes(library.read_bytes()[:100])
    assert "lib.so: is not a library" in run("verify", directory, status=1)
    assert "would remove 1 of 2 entries" in run("gc", directory, "--broken", "--dry-run")
    assert library.exists()
    assert "removed 1 of 2 entries" in run("gc", directory, "--broken")
    assert run("verify", directory).startswith("1 entry of hidet")


@pytest.mark.parametrize("below", ["", "0.1.5"])
def test_a_cache_as_tilelangs_documentation_lays_it_out(tmp_path: Path, below: str) -> None:
    home = tmp_path / below / ("c3" * 32)
    home.mkdir(parents=True)
    for name in ("kernel.cu", "wrapped_kernel.cu"):
        (home / name).write_text('extern "C" __global__ void add_kernel(float* A) {}')
    (home / "kernel_lib.so").write_bytes(LIBRARY)
    (home / "params.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    cache = read_foreign_cache(str(tmp_path))
    assert (cache.system, cache.version) == ("tilelang", below)
    (entry,) = cache.entries
    assert (entry.name, entry.code_archs, entry.problems) == ("add", ("sm_90a",), [])
    assert entry.pickles == (f"{entry.path}/params.pkl",)


def test_a_cache_as_hidets_documentation_lays_it_out(tmp_path: Path) -> None:
    home = tmp_path / "ops" / "cuda_space_0" / "matmul" / ("ab" * 8)
    home.mkdir(parents=True)
    (home / "task.txt").write_text("Task(name: matmul)")
    (home / "source.cu").write_text("")
    (home / "nvcc_log.txt").write_text("nvcc -gencode arch=compute_90a,code=sm_90a source.cu\n")
    (home / "summary.txt").write_text("index  latency\n")
    (home / "lib.so").write_bytes(LIBRARY)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"not ours")
    cache = read_foreign_cache(str(tmp_path))
    assert (cache.system, cache.broken) == ("hidet", ())
    (entry,) = cache.entries
    assert (entry.declared_arch, entry.code_archs) == ("sm_90a", ("sm_90a",))
    gone = command_line.run(tmp_path, "cache", "gc", tmp_path, "--max-size", "1KB")
    assert "removed 1 of 1" in gone.out
    assert (tmp_path / "onnx" / "model.onnx").read_bytes() == b"not ours"


# With `--json` every line about a foreign cache is one that its verb declares.
SCHEMA = events_schema.schema()


@pytest.mark.parametrize("system", ["tilus", "triton"])
def test_the_lines_of_each_verb(system, make, tmp_path, monkeypatch, capsys) -> None:
    directory = make(system)
    monkeypatch.chdir(tmp_path)
    seen: dict[str, list[str]] = {}

    def check(verb: str, *words: object) -> None:
        main([*verb.split(), *map(str, words), "--json"])
        out, err = capsys.readouterr()
        lines = [json.loads(line) for line in out.splitlines()]
        rule = SCHEMA["$defs"][verb.replace(" ", "-")]
        assert lines, err
        assert [line for line in lines if not valid(line, rule, SCHEMA)] == []
        seen.setdefault(verb, []).extend(line["event"] for line in lines)

    check("cache ls", directory)
    check("cache stats", directory)
    check("cache verify", directory)
    check("cache package", directory, "--format", "dir")
    (package,) = Path("dist").iterdir()
    check("verify", package)
    check("install", package, "--into", tmp_path / "home")
    check("cache gc", directory, "--max-size", "1B")
    assert "entry" in seen["cache ls"]
    assert seen["cache package"] == ["carrier", "package"]
    assert seen["install"] == ["installed"]
