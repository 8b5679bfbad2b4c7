"""`output` of `[library.NAME]`: a file of its own, and no input of the build that writes it."""

import os
import re
from pathlib import Path

import pytest

from support.processes import wait_until
from support.project import NewProject, Project, head, needs_cxx

FILES = {
    "a/a.cpp": 'int part();\nextern "C" int run() { return part(); }\n',
    "b/b.cpp": "int part() { return 1; }\n",
}
HEADS = head() + '[target.other]\narch = "cpu"\n'
B = '[library.b]\nsources = ["b/*.cpp"]\ntargets = ["cpu"]\nkind = "static"\n'


@pytest.fixture
def project(new_project: NewProject) -> Project:
    needs_cxx()
    return new_project(HEADS, FILES)


def add_library_scripts(project: Project, text: str) -> Project:
    project.write("tilus.toml", HEADS + text)
    return project


def mistake(project: Project, output: str) -> str:
    """What a build says of an output, at whose place it says it; nothing is compiled."""
    stderr = project.run("build", status=2).err
    assert not project.programs
    assert re.search(rf'^ +\d+ \| output = "{re.escape(output)}"$', stderr, re.MULTILINE)
    return stderr


def test_libraries_are_not_written_over_each_other(project: Project):
    both = '[library.a]\nsources = ["b/*.cpp"]\noutput = "l.so"\n'
    stderr = mistake(add_library_scripts(project, both), "l.so")
    assert 'error: the library of target "other" would replace that of "cpu"' in stderr
    assert "add {target} to its name: each gets its own" in stderr
    one = both + 'targets = ["cpu"]\n' + B + 'output = "./l.so"\n'
    stderr = mistake(add_library_scripts(project, one), "./l.so")
    assert 'error: library "a" is written to the same file' in stderr
    add_library_scripts(project, both).build("--target", "other")
    assert (project.directory / "l.so").exists(), "one target at a time is somebody's choice"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("b/b.cpp", '"b" reads this file, which library "b" would write after that'),
        ("tilus.toml", "the output would replace the manifest"),
        (".cache/index.json", "the output would be in the cache"),
    ],
)
def test_a_library_is_not_written_over_what_it_is_made_of(
    project: Project, output: str, message: str
):
    add_library_scripts(project, f'{B}output = "{output}"\n')
    before = (project.directory / "b/b.cpp").read_text()
    assert f"error: {message}" in mistake(project, output)
    assert (project.directory / "b/b.cpp").read_text() == before


@pytest.mark.parametrize(
    "reads", ['objects = ["out/*.a"]', 'link-libs = ["b"]\nlink-dirs = ["out"]']
)
def test_what_one_library_writes_and_another_reads_is_built_first(project: Project, reads: str):
    """In one build the second would be linked with what the first was in the build before."""
    own = '[library.a]\nsources = ["a/*.cpp"]\ntargets = ["cpu"]\n' + reads + '\noutput = "a.so"\n'
    add_library_scripts(project, B + 'output = "out/libb.a"\n' + own)
    project.write("out/libb.a", "!<arch>\n")
    stderr = mistake(project, "out/libb.a")
    assert "build it first: tilusbuild build b; tilusbuild build a" in stderr
    assert (project.compiled("b"), project.compiled("a")) == (2, 2)
    first = (project.directory / "a.so").read_bytes()
    project.edit("b/b.cpp", "1", "2")
    assert 'error: "a" reads this file, which' in project.run("build", status=2).err
    project.build("b")
    project.build("a")
    assert (project.directory / "a.so").read_bytes() != first


def test_watching_writes_nothing_over_a_source(project: Project, tmp_path: Path):
    add_library_scripts(project, B + 'output = "b/b.cpp"\n')
    log_path = tmp_path / "said"
    with log_path.open("w") as log:
        watching = project.start("watch", "--progress", "plain", stderr=log)
    try:
        wait_until(lambda: "reads this file" in log_path.read_text())
        add_library_scripts(project, B + 'output = "b.a"\n')
        wait_until((project.directory / "b.a").exists)
    finally:
        watching.terminate()
        watching.communicate()
    assert (project.directory / "b/b.cpp").read_text() == FILES["b/b.cpp"]


def test_an_output_that_cannot_be_written_is_named(project: Project):
    add_library_scripts(project, B + 'output = "out/lib b.a"\n')
    library = project.directory / "out/lib b.a"
    library.mkdir(parents=True)
    stderr = project.run("build", status=1).err
    assert f"error: {library}: Is a directory" in stderr
    assert os.listdir(library.parent) == [library.name]
    library.rmdir()
    project.build()
    assert library.is_file()
