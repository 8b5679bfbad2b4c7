"""Search paths, links and variables decide which file a name is: they are inputs like the file.

Each test builds, changes one such thing and nothing else, and builds again. The second build must
do what a fresh cache would: compile where the meaning is another, and find all where it is not.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from support import scale
from support.own_gcc import install_gcc, write_specs
from support.project import NewProject, Project
from tilusbuild.toolchain import trace

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None,
    reason="no host compiler: apt install g++",
)

VALUE = '#include "value.h"\n' + scale.TEMPLATE.replace("a * x[i]", "a * x[i] + VALUE")


def make_package(site: Path, value: int) -> Path:
    """A Python package `values.inner` with a header of one macro, which cannot be imported."""
    inner = site / "values/inner"
    (inner / "include").mkdir(parents=True)
    for directory in (inner, inner.parent):
        (directory / "__init__.py").write_text("raise SystemExit('imported')\n")
    (inner / "include/value.h").write_text(f"#define VALUE {value}\n")
    return inner


@pytest.fixture
def sites(tmp_path: Path) -> list[Path]:
    """Two directories of Python packages, which have one by the same name."""
    sites = [tmp_path / "a", tmp_path / "b"]
    for number, site in enumerate(sites):
        make_package(site, number)
    return sites


def use_package(new_project: NewProject, **environment: str) -> Project:
    build = 'include-dirs = [{ package = "values.inner", path = "include" }]'
    text = scale.manifest(scale.script(schedules=1), build=build)
    return new_project(text, {"kernels/scale.cu.j2": VALUE}, **environment)


def join(paths: list[Path]) -> str:
    return os.pathsep.join(map(str, paths))


def count_compiles(project: Project) -> int:
    """Build twice, the second time with nothing to do; return the compiles of the first."""
    count = project.compiled()
    assert "nothing to do" in project.run("build").err
    return count


def test_packages_are_searched_along_pythons_path(new_project, sites: list[Path]) -> None:
    project = use_package(new_project, PYTHONPATH=join(sites))
    assert count_compiles(project) == 1
    project.environment["PYTHONPATH"] = join(sites[::-1])
    assert count_compiles(project) == 1
    project.environment["PYTHONPATH"] = join(sites)
    assert count_compiles(project) == 0


def test_a_package_that_is_installed_in_front_of_another(new_project, sites: list[Path]) -> None:
    first = sites[0]
    away = shutil.move(first / "values", first.with_name("away"))
    project = use_package(new_project, PYTHONPATH=join(sites))
    assert count_compiles(project) == 1
    shutil.move(away, first / "values")
    assert count_compiles(project) == 1


def test_a_link_in_a_package_that_turns_elsewhere(new_project, sites: list[Path]) -> None:
    """As in an editable installation, whose directories are links."""
    include, other = (site / "values/inner/include" for site in sites)
    real = shutil.move(include, sites[0] / "real")
    include.symlink_to(real)
    project = use_package(new_project, PYTHONPATH=str(sites[0]))
    assert count_compiles(project) == 1
    include.unlink()
    include.symlink_to(other)
    assert count_compiles(project) == 1


def test_the_working_directory_is_not_one_of_packages(new_project, sites: list[Path]) -> None:
    project = use_package(new_project)
    make_package(project.directory, 3)
    message = project.run("build", status=2).err
    assert 'no package "values.inner" is installed' in message


def test_a_project_by_a_link(new_project: NewProject, tmp_path: Path) -> None:
    projects = [new_project(directory=name) for name in ("one", "two")]
    link = tmp_path / "link"
    link.symlink_to("one")
    command = Project(tmp_path)
    command.run("-C", "link", "build")
    assert "nothing to do" in command.run("-C", "link", "build").err
    link.unlink()
    link.symlink_to("two")
    command.run("-C", "link", "build")
    assert len(projects[1].libraries) == 2


def test_a_manifest_that_appears_nearer(new_project: NewProject) -> None:
    project = new_project()
    nearer = Project(project.directory / "part")
    nearer.directory.mkdir()
    nearer.run("build")
    assert "nothing to do" in nearer.run("build").err
    text = scale.manifest(scale.script(schedules=1))
    nearer.write_all({"tilus.toml": text, "kernels/scale.cu.j2": scale.TEMPLATE})
    nearer.run("build")
    assert len(nearer.libraries) == 1


def list_asked(project: Project, tmp_path: Path) -> tuple[list[Path], list[Path]]:
    """The files that a plan reads, and those that it looks for in vain, below `tmp_path`."""
    trash = tmp_path / "trash"
    trash.mkdir()
    command = (sys.executable, "-I", "-S", trace.__file__, sys.executable, "-m", "tilusbuild")
    environment = {**os.environ, **project.environment, "TMPDIR": str(trash)}
    words = ("-C", str(project.directory), "plan")
    listed = subprocess.run(
        (*command, *words), env=environment, capture_output=True, text=True, check=True
    ).stdout
    paths = [line.partition(" ") for line in listed.splitlines() if str(tmp_path) in line]
    paths = [(word, blank, path) for word, blank, path in paths if "/.cache" not in path]
    read = [Path(path) for word, _, path in paths if word == trace.READ]
    return read, [Path(path) for word, _, path in paths if word == trace.ABSENT]


def list_scripts(project: Project) -> list[list[str]]:
    """The scripts of the last build, with their hashes."""
    index = json.loads((project.cache / "index.json").read_text())
    (of_project,) = index["projects"].values()
    return sorted(of_project["scripts"])


CHANGES = int(os.environ.get("TILUSBUILD_TEST_CHANGES", "6"))


@pytest.mark.slow
def test_whatever_a_plan_asks_of_the_disk(new_project, sites: list[Path], tmp_path: Path) -> None:
    """Each file that it reads is changed, each that it misses is made, one at a time: the next
    build is as one with a new cache."""
    project = use_package(new_project, PYTHONPATH=join(sites))
    project.edit("kernels/scale.cu.j2", VALUE, '{% include "kernels/part.j2" %}\n' + VALUE)
    project.write("kernels/part.j2", '#include "other.h"\n#include <unused.h>\n')
    project.write("kernels/other.h", "")
    project.write("kernels/unused.h", "")
    project.edit("tilus.toml", "include-dirs = [", 'include-dirs = ["kernels", "none", ')
    (project.directory / "none").mkdir()
    read, absent = list_asked(project, tmp_path)  # with no memory of an earlier plan
    project.run("build")
    changes = [*((path, True) for path in read), *((path, False) for path in absent)]
    chosen = Random(1).sample(changes, min(CHANGES, len(changes)))
    assert len(read) > 5
    assert len(absent) > 5
    for number, (path, is_there) in enumerate(chosen):
        if path.suffix in (".pyc", ".so") or (is_there and not path.is_file()):
            continue
        before = path.read_bytes() if is_there else b""
        missing = next((p for p in [*path.parents][::-1] if not p.exists()), path)
        path.parent.mkdir(parents=True, exist_ok=True)
        comment = b"\n#define VALUE 9\n" if path.suffix in (".h", ".j2", "") else b"\n# x\n"
        path.write_bytes(before + comment)
        again, fresh = project, project.copy(tmp_path / f"fresh{number}", cache=False)
        ends = [checkout.run("build", status=None).status for checkout in (again, fresh)]
        assert ends[0] == ends[1], path
        if ends[0] != 2:
            assert list_scripts(again) == list_scripts(fresh), path
        if is_there:
            path.write_bytes(before)
        elif missing.is_dir():
            shutil.rmtree(missing)
        else:
            missing.unlink()
        shutil.rmtree(fresh.directory)
        project.run("build")


# Tools.


def on_path(directory: Path) -> str:
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def test_a_specs_file_beside_the_compiler(new_project: NewProject, tmp_path: Path) -> None:
    project = new_project(
        scale.manifest(scale.script(schedules=1)),
        {"kernels/scale.cu.j2": VALUE.replace('#include "value.h"', "")},
        PATH=on_path(install_gcc(tmp_path / "gcc", "-DVALUE=1")),
    )
    assert count_compiles(project) == 1
    write_specs(tmp_path / "gcc", "-DVALUE=2")
    assert count_compiles(project) == 1
    assert len(set(project.libraries.values())) == 2


def test_a_link_to_another_installation_of_the_same_driver(new_project, tmp_path: Path) -> None:
    """As `update-alternatives` turns it."""
    for name in "ab":
        install_gcc(tmp_path / name, f"-DVALUE='{name}'")
    link = tmp_path / "gcc"
    link.symlink_to("a")
    project = new_project(
        scale.manifest(scale.script(schedules=1)),
        {"kernels/scale.cu.j2": VALUE.replace('#include "value.h"', "")},
        PATH=on_path(link / "bin"),
    )
    assert count_compiles(project) == 1
    link.unlink()
    link.symlink_to("b")
    assert count_compiles(project) == 1
    link.unlink()
    link.symlink_to("a")
    assert count_compiles(project) == 0


DRIVER = """\
#include <unistd.h>
int needed(void);
int main(int count, char **words) {
  words[0] = "%s";
  return needed() || execv(words[0], words);
}
"""


def test_a_compiler_whose_libraries_are_found_by_a_variable(new_project, tmp_path: Path) -> None:
    """As of a module system: the compiler starts with LD_LIBRARY_PATH only."""
    library = tmp_path / "lib/libneeded.so"
    (tmp_path / "bin").mkdir()
    library.parent.mkdir()

    def compile_c(text: str, *options: str | Path) -> None:
        subprocess.run(("gcc", "-x", "c", "-", *options), input=text, text=True, check=True)

    compile_c("int needed(void) { return 0; }", "-shared", "-fPIC", "-o", library)
    for name in ("g++", "gcc"):
        driver = DRIVER % shutil.which(name)
        compile_c(driver, "-o", tmp_path / "bin" / name, "-x", "none", library)
    project = new_project(PATH=on_path(tmp_path / "bin"), LD_LIBRARY_PATH=str(library.parent))
    assert count_compiles(project) == 2
    assert "ok" in project.run("doctor").out
    library.unlink()
    compile_c("int needed(void) { return 0 * 1; } int more;", "-shared", "-fPIC", "-o", library)
    assert count_compiles(project) == 2


@pytest.mark.parametrize("variable", ["CXX", "NVCC_CCBIN"])
def test_the_variables_of_the_host_compiler(new_project, tmp_path: Path, variable: str) -> None:
    bin_dir = install_gcc(tmp_path / "gcc", "-DVALUE=1")
    project = new_project(
        scale.manifest(scale.script(schedules=1)),
        {"kernels/scale.cu.j2": VALUE.replace('#include "value.h"', "")},
    )
    assert project.build(status=1)["failed"] == 1  # the machine's g++ has no such macro
    for value in (f"{bin_dir}/g++", f"ccache {bin_dir}/g++", f"{bin_dir}/gcc"):
        project.environment[variable] = value
        project.build()
    assert "nothing to do" in project.run("build").err
    del project.environment[variable]
    assert project.build(status=1)["failed"] == 1


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CXX", "clang++", 'CXX = "clang++": this is not the name of a g++'),
        ("CXX", "g++ -m32", 'CXX = "g++ -m32": options of the host compiler are not used'),
        ("NVCC_CCBIN", "/nowhere", "set NVCC_CCBIN=g++, or unset NVCC_CCBIN"),
        ("CUDA_HOME", "/nowhere", "CUDA_HOME is /nowhere, but there is no /nowhere/bin/nvcc"),
    ],
)
def test_a_variable_that_cannot_be_obeyed_is_an_error(
    new_project: NewProject, variable: str, value: str, message: str
) -> None:
    project = new_project(scale.manifest(scale.script(target="gpu")), **{variable: value})
    assert message in project.run("build", status=2).err


def test_a_directory_of_the_system_keeps_its_place(new_project: NewProject) -> None:
    """`-I/usr/include` would put C's <math.h> before C++'s, whose `abs` takes a double, too; g++
    ignores it, as any directory that it searches anyway."""
    text = scale.manifest(scale.script(schedules=1), build='include-dirs = ["/usr/include"]')
    source = "#include <math.h>\nstatic_assert(sizeof(abs(-0.5)) == 8);\n" + scale.TEMPLATE
    project = new_project(text, {"kernels/scale.cu.j2": source})
    assert count_compiles(project) == 1
    assert not [*project.cache.glob("include/*/include")]
