"""A cache tree of which a part was deleted is made whole by the very build that had nothing to do.

The oracle is a tree that nobody touched: the same files with the same bytes, and scripts that load.
What was damaged without being deleted is found as docs/cache.md says."""

import os
import random
import shutil
import sys
import time
from pathlib import Path

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.processes import run_to_end, wait_until
from support.project import NewProject, Project, needs_cxx
from support.trees import published

SEEDS = int(os.environ.get("TILUSBUILD_TEST_SEEDS", "3"))
DISPATCH = '\n[script.first.dispatch]\nkeys = ["n"]\n'
READ_BY_A_LOAD = ("lib.so", "script.txt", "script.json", "index.json")
"""Files that a build with nothing to do looks at by themselves."""


@pytest.fixture(scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two scripts, of which one has a header, a dispatcher and a failure; built."""
    needs_cxx()
    project = Project(tmp_path_factory.mktemp("whole") / "project")
    text = scale.manifest(
        scale.script("first") + DISPATCH,
        scale.script("second", schedules=1),
        build='include-dirs = ["include"]',
    )
    broken = "{% if unroll == 2 %}\n#error two\n{% endif %}\n"
    project.write_all(
        {
            "tilus.toml": text,
            "include/one.h": "#define ONE 1\n",
            "include/below/two.h": "#define TWO 2\n",
            "kernels/first.cu.j2": f'#include "one.h"\n#include "below/two.h"\n{broken}'
            + scale.TEMPLATE,
            "kernels/second.cu.j2": scale.TEMPLATE,
        }
    )
    project.run("build")
    project.run("build")
    return project.directory


@pytest.fixture
def built(_built: Path) -> Project:
    """The same project, whole; its records hold, as it is where it was built."""
    project = Project(_built)
    backup = _built.parent / "whole"
    if not backup.exists():
        shutil.copytree(project.cache, backup, symlinks=True)
    project.run("build")
    assert contents(project.cache) == contents(backup)
    return project


def contents(cache: Path) -> dict[str, bytes | str]:
    """Everything that a build makes, by name."""
    content_by_name = published(cache)
    for path in cache.rglob("*"):
        name = str(path.relative_to(cache))
        if (
            name.startswith(("state/", "staging/", "locks/"))
            or not path.is_file()
            or path.is_symlink()
        ):
            continue
        content_by_name[name] = path.read_bytes()
    return content_by_name


def parts(cache: Path) -> list[str]:
    """Every file, link and directory that a build makes."""
    return sorted(
        name
        for path in cache.rglob("*")
        if (name := str(path.relative_to(cache))).split("/")[0]
        in ("index.json", "programs", "scripts", "include")
    )


def delete(cache: Path, name: str) -> None:
    path = cache / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def assert_mended(project: Project, what: object) -> None:
    """The same command makes the tree whole, and is then done with it."""
    project.run("build")
    assert contents(project.cache) == contents(project.directory.parent / "whole"), what
    assert project.run("cache", "verify").status == 0
    assert project.compiled() == 0, what


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_parts_deleted(built: Project, seed: int) -> None:
    choose = random.Random(seed)
    names = choose.sample(parts(built.cache), choose.choice((1, 2, 5, 20)))
    for name in names:
        delete(built.cache, name)
    assert_mended(built, names)


@pytest.mark.parametrize("name", ["index.json", "include", "state", ""])
def test_a_whole_directory_deleted(built: Project, name: str) -> None:
    delete(built.cache, name)
    if name in ("include", "index.json"):
        assert built.compiled() == 0
    assert_mended(built, name)


@pytest.mark.parametrize("kind", READ_BY_A_LOAD)
def test_a_file_that_was_cut_is_made_again(built: Project, kind: str) -> None:
    path = next(path for path in sorted(built.cache.rglob(kind)) if not path.is_symlink())
    time.sleep(0.02)  # a file system's clock moves in ticks
    os.truncate(path, path.stat().st_size // 2)
    assert_mended(built, path)


LOOKED_AT_BY_NO_LOAD = (
    "meta.json", "program.txt", "options.txt",
    "module/source.cu", "module/compile.sh", "module/nvcc_output.txt",
)  # fmt: skip


def test_who_finds_that_a_part_of_a_program_was_cut(built: Project) -> None:
    """The table of docs/cache.md: not the same command; but `verify`, and a build that plans, which
    makes that program again."""
    program = next(path.parents[1] for path in sorted(built.cache.glob("programs/*/module/lib.so")))
    before = {name: (program / name).read_bytes() for name in LOOKED_AT_BY_NO_LOAD}
    names = [name for name, data in before.items() if data]
    for name in names:
        os.truncate(program / name, len(before[name]) - 1)
    assert built.compiled() == 0
    output = built.run("cache", "verify", status=1).out
    assert f"programs/{program.name}" in output

    (program / "meta.json").write_bytes(before["meta.json"])
    output = built.run("cache", "verify", status=1).out
    assert [name for name in names if f"{program.name}/{name}" not in output] == ["meta.json"]
    assert built.compiled("first", "second") == 1
    assert {name: (program / name).read_bytes() for name in before} == before
    assert_mended(built, program)


def test_an_index_that_was_deleted_costs_no_program(built: Project) -> None:
    (built.cache / "index.json").unlink()
    assert "nothing was removed" in built.run("cache", "gc", status=None).err
    assert_mended(built, "index.json")
    built.run("cache", "gc")
    assert_mended(built, "gc")


def test_what_a_killed_build_left_in_the_home_goes_with_the_next(built: Project) -> None:
    litter = Path(os.environ["HOME"], ".cache/tilusbuild/records/.tmp-left")
    litter.parent.mkdir(parents=True, exist_ok=True)
    litter.write_text("part")
    os.utime(built.directory / "tilus.toml")
    built.run("build")
    assert not litter.exists()


def test_one_installation_has_one_record(new_project: NewProject) -> None:
    """`python -m tilusbuild` and the command know what the other one has built."""
    needs_cxx()
    project = new_project()
    time.sleep(0.1)
    records = Path(os.environ["HOME"], ".cache/tilusbuild/records")
    directory = Path(sys.executable).parent
    module = ("python3", "-m", "tilusbuild")
    for number, (program, *words) in enumerate((module, module, ("tilusbuild",))):
        if (directory / program).exists():
            ran = run_to_end(
                [str(directory / program), *words, "build"], status=None, cwd=project.directory
            )
            assert not number or "nothing to do" in ran.stderr, ran.stderr
            assert len([*records.iterdir()]) == 1


def test_a_cache_deleted_during_a_build_stays_deleted_and_the_next_build_makes_it(
    fake_cuda: FakeCuda, new_project: NewProject
) -> None:
    """A part of it that came back without its mark would be taken for somebody else's directory by
    each build from then on."""
    template = "// fake: slow 0.5\n" + scale.TEMPLATE
    text = scale.manifest(scale.script(target="gpu"))
    project = new_project(text, {"kernels/scale.cu.j2": template}, **fake_cuda.environment)
    started = project.start("build", "-j1")
    wait_until(lambda: fake_cuda.journal != [])
    shutil.rmtree(project.cache)
    _, stderr = started.communicate(timeout=60)
    assert started.returncode == 1
    assert "the cache was deleted, moved or unmounted meanwhile\n  build again\n" in stderr
    assert not project.cache.exists()
    assert project.build()["compiled"] == 2
