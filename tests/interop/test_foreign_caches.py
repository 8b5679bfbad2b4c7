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
    made = make(system)
    other = shutil.move(made, tmp_path / "some other name")
    assert recognize_system(str(other)) == system


@pytest.mark.parametrize("system", SYSTEM_NAMES)
def test_a_whole_cache_has_no_problems(system: str, make: Made, problems: Problems) -> None:
    made = make(system)
    assert problems(made) == []
    cache = read_foreign_cache(str(made))
    assert cache.system == system
    for entry in cache.entries:
        assert entry.code_archs == ("sm_90a",)
        assert entry.declared_arch in ("", "sm_90", "sm_90a")
        assert entry.size == sum((made / name).stat().st_size for name in entry.files)
    assert [[entry.kind for entry in group] for group in cache.duplicates] == (
        [["op", "op of a graph"]] if system == "hidet" else []
    )
    pickles = [os.path.basename(name) for entry in cache.entries for name in entry.pickles]
    assert {*pickles} == ({"func_types.pickle"} if system in ("hidet", "tilus") else set())


def test_what_each_entry_is(make: Made) -> None:
    found = {
        system: [
            (e.kind, e.name, e.declared_arch, e.compiled_by)
            for e in read_foreign_cache(str(make(system))).entries
        ]
        for system in SYSTEM_NAMES
    }
    assert found == {
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
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), ("section", "bytes")),
        (lambda path: path.write_bytes(b""), ("is empty", "bytes")),
        (Path.unlink, ("is missing", "no binary", "no library", "no compiled code")),
    ],
    ids=["cut short", "emptied", "removed"],
)
def test_a_damaged_library_is_found(system, damage, said, make, problems) -> None:
    made = make(system)
    for suffix in ("*.so", "*.cubin"):
        for library in made.rglob(suffix):
            damage(library)
    entries = read_foreign_cache(str(made)).entries
    assert all(entry.problems for entry in entries)
    assert all(any(word in line for word in said) for line in problems(made)), problems(made)


def flip_bit(made: Path) -> None:
    (library,) = made.rglob("executable.so")
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)


def append(pattern: str) -> Callable[[Path], None]:
    def change(made: Path) -> None:
        (path,) = made.glob(pattern)
        path.write_text(path.read_text() + " ")

    return change


def remove_programs(made: Path) -> None:
    shutil.rmtree(made / "programs")
    (made / "programs").mkdir()


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
    made = make(system)
    change(made)
    assert any(message in line for line in problems(made))


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
    made = make("tilelang")
    staging = made / "0.1.15/linux-x86_64/.staging/key_123_0a1b2c3d"
    staging.mkdir(parents=True)
    (staging / "executable.so").write_bytes(b"x" * 10)
    assert read_foreign_cache(str(made)).stale == ()  # somebody may be writing it
    for path in (staging / "executable.so", staging):
        os.utime(path, (0, 0))
    (piece,) = read_foreign_cache(str(made)).stale
    assert (piece.path, piece.size) == (str(staging.relative_to(made)), 10)


def test_gc_by_age_and_size(make: Made) -> None:
    made = make("hidet")
    (operator,) = made.glob("ops/*/*/*")
    for path in operator.rglob("*"):
        os.utime(path, (1000, 1000))
    cache = read_foreign_cache(str(made))
    ours = str(operator.relative_to(made))
    assert [r.path for r in choose_removals(cache, now=5000, older_than=2000)] == [ours]
    (size,) = (entry.size for entry in cache.entries if entry.path == ours)
    assert [r.path for r in choose_removals(cache, now=5000, max_size=cache.size - size)] == [ours]
    assert [r.path for r in choose_removals(cache, now=5000, max_size=0)] == [
        ours,
        "graphs/43f704147ed6331f",  # a graph goes as a whole
    ]
    assert choose_removals(cache, now=5000) == ()
    for path in made.glob("graphs/**/*"):
        os.utime(path, (500, 500))
    removals = choose_removals(read_foreign_cache(str(made)), now=5000, older_than=2000)
    assert [r.path for r in removals] == ["graphs/43f704147ed6331f", ours], "the oldest first"

    gone = list(remove_unless_in_use(cache, choose_removals(cache, now=5000, older_than=2000)))
    assert [went for _, went in gone] == [True]
    assert not operator.exists()
    assert [entry.kind for entry in read_foreign_cache(str(made)).entries] == ["op of a graph"]
    assert not [name for name in os.listdir(made) if name.startswith(".")]


def test_gc_leaves_what_its_system_has_locked(make, monkeypatch) -> None:
    made = make("tilus")
    (lock,) = made.glob("programs/*/.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cache = read_foreign_cache(str(made))
        gone = list(remove_unless_in_use(cache, choose_removals(cache, now=1e12, older_than=1)))
    assert [went for _, went in gone] == [False]
    assert lock.exists()
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    assert cache.entries[0].directory.is_locked(str(lock.relative_to(made)))


def test_a_directory_that_is_not_a_cache(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    with pytest.raises(InputError, match="is not a known cache"):
        read_foreign_cache(str(tmp_path))


def test_names_that_try_to_lead_out(make: Made, problems: Problems, tmp_path: Path) -> None:
    """A manifest that lists other files, and links in the place of files, are no way out."""
    (tmp_path / "secret").write_text("secret")
    made = make("tilelang")
    (manifest,) = made.rglob("manifest.json")
    value = json.loads(manifest.read_text())
    value["files"]["../../../../../../secret"] = {"size": 6, "sha256": "0" * 64}
    manifest.write_text(json.dumps(value))
    (library,) = made.rglob("executable.so")
    library.unlink()
    library.symlink_to(tmp_path / "secret")
    said = problems(made)
    assert any("which is not a file of an entry" in line for line in said)
    assert any("executable.so: is missing" in line for line in said)


def test_the_command_line(make: Made, tmp_path: Path) -> None:
    def run(*words: str, status: int = 0) -> str:
        return command_line.run(tmp_path, "cache", *words, status=status).out

    made = str(make("hidet"))
    listed = [json.loads(line) for line in run("ls", made, "--json").splitlines()]
    assert [(e["system"], e["holds"]) for e in listed] == [("hidet", ["sm_90a"])] * 2
    assert run("verify", made) == "2 entries of hidet 0.6.1, no problems found\n"
    assert "the same code as another" in run("stats", made)
    (library,) = Path(made).glob("ops/*/*/*/lib.so")
    library.write_bytes(library.read_bytes()[:100])
    assert "lib.so: is not a library" in run("verify", made, status=1)
    assert "would remove 1 of 2 entries" in run("gc", made, "--broken", "--dry-run")
    assert library.exists()
    assert "removed 1 of 2 entries" in run("gc", made, "--broken")
    assert run("verify", made).startswith("1 entry of hidet")


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
    made = make(system)
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

    check("cache ls", made)
    check("cache stats", made)
    check("cache verify", made)
    check("cache package", made, "--format", "dir")
    (package,) = Path("dist").iterdir()
    check("verify", package)
    check("install", package, "--into", tmp_path / "home")
    check("cache gc", made, "--max-size", "1B")
    assert "entry" in seen["cache ls"]
    assert seen["cache package"] == ["carrier", "package"]
    assert seen["install"] == ["installed"]
