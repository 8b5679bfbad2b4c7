"""`-v` prints each command line, `-vv` what the compilers said, too; without, neither is told."""

import shlex

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.project import NewProject, Project

NOISY = "// fake: noise 60\n" + scale.TEMPLATE


@pytest.fixture
def project(new_project: NewProject, fake_cuda: FakeCuda) -> Project:
    text = scale.manifest(scale.script(target="gpu", schedules=2))
    return new_project(text, {"kernels/scale.cu.j2": NOISY}, **fake_cuda.environment)


def commands(text: str) -> list[list[str]]:
    return [
        shlex.split(line.removeprefix("  $ ")) for line in text.splitlines() if line[:4] == "  $ "
    ]


def test_v_prints_the_command_lines_of_each_program(project: Project, fake_cuda: FakeCuda) -> None:
    command_lines = commands(project.run("-v", "build").err)
    assert [words[0] for words in command_lines].count(fake_cuda.nvcc) == 2
    assert all(
        "source.cu" in " ".join(words) for words in command_lines if words[0] == fake_cuda.nvcc
    )
    assert commands(project.run("-v", "build").err) == []


def test_vv_prints_what_the_compilers_said_too(project: Project) -> None:
    stderr = project.run("-vv", "build").err
    assert commands(stderr)
    assert stderr.count("  this is a warning that says nothing") == 2


@pytest.mark.parametrize(
    ("words", "has_details", "has_commands"),
    [((), False, False), (("-v",), True, False), (("-vv",), True, True)],
)
def test_events_have_as_much_as_was_asked_for(project, words, has_details, has_commands) -> None:
    events = project.run("--json", *words, "build").events
    finished = [event for event in events if event["event"] == "finished"]
    assert len(finished) == 2
    assert all(bool(event["commands"]) == has_details for event in finished)
    assert all(("warning" in event["log"]) == has_commands for event in finished)


def test_the_variable_may_say_how_much(project: Project) -> None:
    assert commands(project.run("build", TILUSBUILD_VERBOSE="true").err)


# `--dump-ir`, and `cache show` of what it keeps.
@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two schedules, of which the second does not compile, and an included template; built first
    and dumped then. Not to be changed."""
    template = '{% include "kernels/head.cuh.j2" %}\n' + scale.TEMPLATE
    project = Project(tmp_path_factory.mktemp("dumped"))
    project.write_all(
        {
            "tilus.toml": scale.manifest(scale.script(more="derived = { twice = 'unroll * 2' }")),
            "kernels/scale.cu.j2": template + "{% if unroll == 2 %}oops{% endif %}\n",
            "kernels/head.cuh.j2": "// {{ twice }}\n",
        }
    )
    assert project.compiled() == 2
    before = project.libraries
    assert project.compiled("--dump-ir") == 0
    assert project.libraries == before
    return project


def test_programs_that_were_there_before_are_dumped(dumped):
    (good,) = (path for path in dumped.programs.values() if (path / "module/lib.so").exists())
    values = (good / "ir/1_values.txt").read_text().split()
    assert values[-6:] == ["schedule", "unroll", "1", "derived", "twice", "2"]
    template = (good / "ir/2_template.cu.j2").read_text()
    assert "// {{ twice }}" in template
    assert "{{ unroll }}" in template
    assert (good / "ir/3_source.cu").read_text() == (good / "module/source.cu").read_text()
    names = {path.name for path in (good / "module/ir").iterdir()}
    assert names == {"host.ii", "host.s"}
    assert "scale" in (good / "module/ir/host.s").read_text()
    assert dumped.run("cache", "verify").out == "no problems found\n"


def test_what_failed_is_dumped_as_far_as_it_went(dumped):
    (bad,) = (path for path in dumped.programs.values() if not (path / "module/lib.so").exists())
    assert "oops" in (bad / "ir/3_source.cu").read_text()
    assert "oops" in (bad / "module/ir/host.ii").read_text()


def test_show(dumped):
    assert "constexpr int unroll = 1;" in dumped.run("cache", "show", "scale/0", "--source").out
    assert "oops" in dumped.run("cache", "show", "scale/1", "--log").out
    refused = dumped.run("cache", "show", "scale/0", "--ptx", status=2)
    assert "`tilusbuild build SCRIPT --dump-ir` dumps it" in refused.err


@pytest.mark.nvcc
def test_of_a_gpu(new_project: NewProject):
    project = new_project(scale.manifest(scale.script(target="gpu", schedules=1)))
    project.build("--dump-ir")
    (program,) = project.programs.values()
    names = {path.name for path in (program / "module/ir").iterdir()} - {"sm_80.sass"}
    assert names == {"device.sm_80.ii", "host.ii", "sm_80.ptx", "usage.txt"}
    assert ".entry scale" in project.run("cache", "show", "scale/0", "--ptx").out
    assert "registers" in project.run("cache", "show", "scale/0").out
    sass = project.run("cache", "show", "scale/0", "--sass", status=None)
    if sass.status == 0:
        assert '//## File "source.cu", line ' in sass.out
    else:
        assert "it needs an nvdisasm" in sass.err


@pytest.mark.nvcc
def test_sass_is_dumped_for_the_architectures_of_the_target_and_no_other(new_project) -> None:
    manifest = scale.manifest(
        scale.script(target="gpu", schedules=1), build='flags = ["-lineinfo"]'
    ).replace('arch = "sm_80"', 'arch = "sm_90a"')
    project = new_project(manifest, {"kernels/scale.cu.j2": scale.TEMPLATE})
    project.build("--dump-ir")
    (program,) = project.programs.values()
    actual = {path.name for path in (program / "module/ir").iterdir()}
    names = {"sm_90a.ptx", "sm_90a.sass", "device.sm_90a.ii"}
    assert {name for name in actual if "sm_" in name} == names
