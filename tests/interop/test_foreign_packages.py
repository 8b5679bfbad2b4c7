"""Foreign caches, packed here and installed there."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from support import command_line
from support.faulty_disk import dies, kill
from tilusbuild.errors import InputError
from tilusbuild.interop.caches import SYSTEMS, find_home, read_foreign_cache
from tilusbuild.interop.caches.gc import choose_removals, remove_unless_in_use
from tilusbuild.interop.install import install_foreign_cache as install_cache
from tilusbuild.interop.listing import ListedCache, get_foreign_cache
from tilusbuild.interop.pack import collect_foreign_cache
from tilusbuild.manifest.sections import PackageSection
from tilusbuild.package import pack
from tilusbuild.package.check import verify_package
from tilusbuild.package.collect import PackageOrder
from tilusbuild.package.errors import PackageError
from tilusbuild.package.extract import Limits
from tilusbuild.package.listing import FileEntry, FileList, parse_list
from tilusbuild.package.read import open_package

SYSTEM_NAMES = list(SYSTEMS)
Made = Callable[..., Path]


def packed(cache: Path, output: Path, form: str = "tar.zst") -> str:
    """The path of the package that a cache makes."""
    foreign_cache = read_foreign_cache(str(cache))
    contents = collect_foreign_cache(foreign_cache, "carried", "1")
    ((_, path, _),) = pack.write_formats(
        PackageOrder("carried", PackageSection(), foreign_cache.system, "1"),
        contents,
        [form],
        str(output),
    )
    return path


def listed(package: str) -> FileList:
    with open_package(package) as reader:
        return parse_list(reader.list_bytes())


def install(package: str, directory: Path) -> tuple[int, int]:
    with open_package(package) as reader:
        return install_cache(reader, parse_list(reader.list_bytes()), str(directory), Limits())


def problems_of(package: str) -> list[PackageError]:
    with open_package(package) as reader:
        return list(verify_package(reader, Limits())[1])


def contents_of(root: Path) -> dict[str, bytes | str]:
    """Every file and link of a cache but locks, by its name."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.name != ".lock" and (path.is_symlink() or path.is_file())
    }


@pytest.mark.parametrize("form", ["dir", "tar.zst", "oci"])
@pytest.mark.parametrize("system", SYSTEM_NAMES)
def test_it_arrives_as_it_was(system: str, form: str, make: Made, tmp_path: Path) -> None:
    cache, directory = make(system), tmp_path / "there" / "cache"
    package = packed(cache, tmp_path / "dist", form)
    assert problems_of(package) == []
    entries = read_foreign_cache(str(cache)).entries
    assert install(package, directory)[0] == len(entries)
    foreign_cache = read_foreign_cache(str(directory))
    assert [e.path for e in foreign_cache.entries] == [e.path for e in entries]
    assert foreign_cache.broken == ()
    came, was = contents_of(directory), contents_of(cache)
    assert came.keys() == was.keys()
    assert [name for name in was if came[name] != was[name] and "__grp__" not in name] == []
    again = install(package, directory)
    assert again[:2] == (0, 0)


def test_a_group_of_triton_names_its_new_place(make: Made, tmp_path: Path) -> None:
    install(packed(make("triton"), tmp_path / "dist"), tmp_path / "there")
    (group,) = (tmp_path / "there").glob("*/__grp__add.json")
    assert json.loads(group.read_text())["child_paths"] == {
        name: str(group.parent / name) for name in ("add.cubin", "add.json")
    }


def test_a_cache_of_triton_that_was_moved_works_again(make: Made, tmp_path: Path) -> None:
    moved = Path(shutil.move(make("triton"), tmp_path / "moved"))
    install(packed(moved, tmp_path / "dist"), tmp_path / "there")
    assert read_foreign_cache(str(tmp_path / "there")).broken == ()


@pytest.mark.parametrize("system", SYSTEM_NAMES)
def test_the_same_entries_are_the_same_package(system: str, make: Made, tmp_path: Path) -> None:
    cache = make(system)
    first = packed(cache, tmp_path / "one")
    moved = shutil.move(cache, tmp_path / "moved")
    second = packed(Path(moved), tmp_path / "two")
    assert Path(first).read_bytes() == Path(second).read_bytes()


def test_locks_and_litter_stay(make: Made, tmp_path: Path) -> None:
    cache = make("triton")
    (entry,) = cache.iterdir()
    (entry / "tmp.pid_12_ab").mkdir()
    (entry / "tmp.pid_12_ab" / "add.cubin").write_bytes(b"half")
    names = [*listed(packed(cache, tmp_path / "t")).files]
    names += listed(packed(make("tilus"), tmp_path / "u")).files
    assert not [name for name in names if "tmp.pid" in name or name.endswith(".lock")]


def test_a_broken_entry_is_not_packaged(make: Made, tmp_path: Path) -> None:
    """Until it is removed; what led to it stays behind."""
    cache = make("tilus")
    second = Path(shutil.copytree(next(cache.glob("programs/*")), cache / "programs/0123456789ab"))
    (link,) = cache.glob("scripts/*/*/programs/0")
    (link.parent / "1").symlink_to(f"../../../../programs/{second.name}")
    with pytest.raises(PackageError, match=r"is broken: programs/0123456789ab: is not named"):
        packed(cache, tmp_path / "dist")
    foreign_cache = read_foreign_cache(str(cache))
    assert list(
        remove_unless_in_use(foreign_cache, choose_removals(foreign_cache, now=0, broken=True))
    )
    links = get_foreign_cache(listed(packed(cache, tmp_path / "dist"))).links
    assert list(links) == [str(link.relative_to(cache))]


def test_a_link_out_of_the_cache_is_not_packaged(make: Made, tmp_path: Path) -> None:
    cache = make("hidet")
    (source,) = cache.glob("ops/*/*/*/task.txt")
    (source.parent / "source.cu").symlink_to("/etc/passwd")
    with pytest.raises(PackageError, match="which is not an entry"):
        packed(cache, tmp_path / "dist")


def test_an_entry_that_is_there_stays(make: Made, tmp_path: Path) -> None:
    cache = make("tilelang")
    directory = Path(shutil.copytree(cache, tmp_path / "there"))
    shutil.rmtree(next(directory.glob("*/cuda-binaries/*")))
    (mine,) = directory.rglob("device_kernel.cu")
    mine.write_text("mine")
    assert install(packed(cache, tmp_path / "dist"), directory)[0] == 1
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("system", SYSTEM_NAMES)
def test_killed_between_two_entries_and_again(system: str, make: Made, tmp_path: Path) -> None:
    cache, directory = make(system), tmp_path / "there"
    package = packed(cache, tmp_path / "dist")
    units = len(get_foreign_cache(listed(package)).units)
    for survived in range(units):
        _killed_after(survived, package, directory)
        entries = read_foreign_cache(str(directory)).entries if survived else ()
        assert not [problem for entry in entries for problem in entry.problems]
    install(package, directory)
    assert contents_of(directory).keys() == contents_of(cache).keys()
    assert not list(directory.glob(".tilusbuild-*"))


def _killed_after(renames: int, package: str, directory: Path) -> None:
    """Install in a process that dies in its next rename; every attempt comes one unit further."""
    rename, remaining = os.rename, iter(range(1 if renames else 0))

    def dying(source: str, target: str) -> None:
        if next(remaining, None) is None:
            kill(target)
        rename(source, target)

    def work() -> None:
        os.rename = dying  # type: ignore[assignment]
        install(package, directory)

    dies(work)


def test_a_place_that_cannot_be_written(make: Made, tmp_path: Path) -> None:
    package = packed(make("tilelang"), tmp_path / "dist")
    (tmp_path / "file").write_text("")
    with pytest.raises(PackageError, match="cannot be written: Not a directory"):
        install(package, tmp_path / "file" / "cache")


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("system", ["tilus", "tilelang", "hidet"])
def test_a_link_in_the_place_is_refused(make, tmp_path, system, depth) -> None:
    """Each directory above an entry, from the first on."""
    package = packed(make(system), tmp_path / "dist")
    units = sorted(get_foreign_cache(listed(package)).units)
    above = ["/".join(unit.split("/")[:depth]) for unit in units if unit.count("/") >= depth]
    if not above:
        pytest.skip("no entry lies so deep")
    directory, outside = tmp_path / "place", tmp_path / "outside"
    (directory / above[0]).parent.mkdir(parents=True)
    outside.mkdir()
    (directory / above[0]).symlink_to(outside)
    with pytest.raises(PackageError, match="is a link or a file"):
        install(package, directory)
    assert os.listdir(outside) == []


HOSTILE: dict[str, tuple[Callable[[FileList, ListedCache], FileList], str]] = {
    "a link out": (
        lambda file_list, cache: _with(file_list, links={next(iter(cache.links)): "../../etc"}),
        "which is not an entry",
    ),
    "a link in the place of an entry": (
        lambda file_list, cache: _with(file_list, links={cache.units[0]: cache.units[0]}),
        "a directory that is a file",
    ),
    "a file of programs": (
        lambda file_list, cache: replace(
            file_list, files={**file_list.files, f"programs/{'0' * 64}/lib.so": _any(file_list)}
        ),
        "belongs to no cache",
    ),
    "another system's file": (
        lambda file_list, cache: replace(
            file_list, files={**file_list.files, "caches/hidet/ops/x": _any(file_list)}
        ),
        "belongs to no cache",
    ),
    "no library": (
        lambda file_list, cache: _with(
            file_list, entries=(replace(cache.entries[0], library="lib.so"),)
        ),
        "has no library",
    ),
    "no unit": (
        lambda file_list, cache: _with(file_list, units=cache.units[1:]),
        "belongs to no unit",
    ),
    "no cache": (
        lambda file_list, cache: FileList(
            **{name: getattr(file_list, name) for name in FileList.__struct_fields__}
        ),
        "does not mention",
    ),
    "a terminal's control characters": (
        lambda file_list, cache: _with(file_list, version="\x1b[2J"),
        "cannot be printed",
    ),
}


def _any(file_list: FileList) -> FileEntry:
    return next(iter(file_list.files.values()))


def _with(file_list: FileList, **changes: object) -> FileList:
    changed = replace(get_foreign_cache(file_list), **changes)
    return replace(file_list, part=changed)


@pytest.mark.parametrize("case", HOSTILE)
def test_invalid_lists_are_refused(case: str, make: Made, tmp_path: Path) -> None:
    change, pattern = HOSTILE[case]
    honest = listed(packed(make("tilus"), tmp_path / "dist"))
    with pytest.raises(PackageError, match=pattern) as caught:
        change(honest, get_foreign_cache(honest)).encode()
    assert caught.value.kind in ("MalformedList", "UnsafeName")
    with pytest.raises(PackageError, match="not in its canonical form"):
        parse_list(honest.encode() + b" ")


def test_code_for_another_gpu_than_the_list_says(make: Made, tmp_path: Path) -> None:
    cache = make("tilelang")
    foreign_cache = read_foreign_cache(str(cache))
    contents = collect_foreign_cache(foreign_cache, "carried", "1")
    entries = tuple(replace(e, images=()) for e in get_foreign_cache(contents.listed).entries)
    wrong = _with(contents.listed, entries=entries)
    contents = replace(contents, listed=wrong, encoded=wrong.encode())
    order = PackageOrder("carried", PackageSection(), foreign_cache.system, "1")
    ((_, path, _),) = pack.write_formats(order, contents, ["tar.zst"], str(tmp_path / "dist"))
    assert {problem.kind for problem in problems_of(path)} == {"CodeMismatch"}
    with pytest.raises(PackageError):
        install(path, tmp_path / "there")
    assert not list((tmp_path / "there").iterdir())


def test_where_each_system_looks() -> None:
    assert find_home("tilelang", {"TILELANG_CACHE_DIR": "/a/b"}) == "/a/b"
    assert find_home("tilelang", {}) == os.path.expanduser("~/.tilelang/cache")
    assert find_home("triton", {"TRITON_HOME": "/a"}) == "/a/.triton/cache"
    assert find_home("triton", {}) == os.path.expanduser("~/.triton/cache")
    with pytest.raises(InputError, match="depends on where hidet is installed"):
        find_home("hidet", {})


def test_the_command_line_packages_and_installs(make: Made, tmp_path: Path) -> None:
    def run(*words: str, status: int = 0, **more: str) -> tuple[str, str]:
        done = command_line.run(tmp_path, *words, status=status, environment=more)
        return done.out, done.err

    directory, package = str(make("tilelang")), "dist/tilelang-cache-0.1.15.tar.zst"
    assert run("cache", "package", directory)[0] == f"{package}\n"
    assert "2 entries of tilelang, 6 files" in run("verify", package)[0]
    assert "2 entries of tilelang" in run("preflight", package, "-d", "sm_80", status=1)[1]
    output = run("install", package, TILELANG_CACHE_DIR=str(tmp_path / "home"))[0]
    assert f"into {tmp_path}/home: 2 entries of tilelang, 2 of them new" in output
    assert read_foreign_cache(str(tmp_path / "home")).broken == ()
    assert (
        'unknown format "wheel"'
        in run("cache", "package", directory, "--format=wheel", status=2)[1]
    )

    _, warned = run("cache", "package", str(make("hidet")), "--name", "mine", "-o", "out")
    assert "2 of its files are pickles: tilusbuild opens none, hidet does" in warned
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == "hidet-mine-0.6.1.tar.zst"
    assert "--into" in run("install", str(path), status=2)[1]
    output, warned = run("install", str(path), "--into", "there", "--json")
    assert json.loads(output)["new"] == 2
