"""What decides which file a name is, is an input like the file: search paths, links, variables.

Each test builds, changes one such thing and nothing else, and builds again. The second build must
do what a fresh cache would: compile where the meaning is another, and find all where it is not.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support import scale
from support.own_gcc import install_gcc, write_specs
from support.project import NewProject, Project

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
    for value in (f"{bin_dir}/g++", f"ccache {bin_dir}/g++"):
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
        ("NVCC_CCBIN", "/nowhere", "this is not the name of a g++"),
        ("CUDA_HOME", "/nowhere", "CUDA_HOME is /nowhere, but there is no /nowhere/bin/nvcc"),
    ],
)
def test_a_variable_that_cannot_be_obeyed_is_an_error(
    new_project: NewProject, variable: str, value: str, message: str
) -> None:
    project = new_project(scale.manifest(scale.script(target="gpu")), **{variable: value})
    assert message in project.run("build", status=2).err
