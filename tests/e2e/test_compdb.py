"""compile_commands.json: an editor that reads it finds the user's own files."""

import json
import os
from pathlib import Path

from support import scale
from support.nvcc_journal import FakeCuda
from support.processes import run_to_end
from support.project import NewProject, Project

HEADERS = 'include-dirs = ["include", "odd, name"]\ndefines = { FAST = 1 }'
FILES = {"include/factor.h": "#define FACTOR a\n", "odd, name/other.h": ""}


def with_header():
    return scale.TEMPLATE.replace("{# y", '#include "factor.h"\n{# y').replace(
        "a * x", "FACTOR * x"
    )


def test_the_command_of_each_default_compiles_with_the_projects_own_headers(new_project):
    more = "default = { unroll = 2 }"
    text = scale.manifest(scale.script(more=more), build=HEADERS)
    project = new_project(text, {"kernels/scale.cu.j2": with_header(), **FILES})
    before = project.run("compdb")
    assert json.loads(before.out) == []
    assert "1 program without a source yet" in before.err
    assert not project.cache.exists(), "looking writes nothing"

    project.build()
    (entry,) = json.loads(project.run("compdb").out)
    assert entry["directory"] == str(project.directory)
    source = Path(entry["file"])
    assert "constexpr int unroll = 2;" in source.read_text()
    assert str(project.directory / "include") in entry["arguments"]

    project.write("include/factor.h", "#define FACTOR 2 * a\n")
    printed = run_to_end([*entry["arguments"], "-E", "-o", "-"])
    assert "y[i] = 2 * a * x[i]" in printed.stdout, "the edit, which no compile has seen, is seen"

    project.write("include/factor.h", "#define FACTOR a\n")
    source.unlink()
    assert project.run("compdb").err == "", "a build adds none: a cubin of a generator has none"


def test_all_schedules_into_a_file(project: Project):
    project.build()
    result = project.run("compdb", "--all", "-o", "compile_commands.json", "--json")
    written = json.loads((project.directory / "compile_commands.json").read_text())
    assert {Path(entry["file"]).parts[-3] for entry in written} == set(project.programs)
    (*commands, summary) = result.events
    assert [
        {k: command[k] for k in ("directory", "file", "arguments")} for command in commands
    ] == written
    assert [command["label"] for command in commands] == ["scale/0 cpu", "scale/1 cpu"]
    assert summary == {"event": "summary", "commands": 2, "missing": 0}
    nowhere = project.run("compdb", "-o", "none/file", status=2)
    assert nowhere.err == "error: none/file: No such file or directory\n"


def test_for_a_gpu_in_nvccs_words_and_in_clangs(new_project: NewProject, fake_cuda: FakeCuda):
    text = scale.manifest(
        scale.script(target="gpu", more='flags = ["-lineinfo", "-DX=1"]'), build=HEADERS
    )
    files = {"kernels/scale.cu.j2": scale.TEMPLATE, **FILES}
    project = new_project(text, files, **fake_cuda.environment)
    project.build()
    (entry,) = json.loads(project.run("compdb").out)
    words = entry["arguments"]
    assert words[0] == fake_cuda.nvcc
    assert words[-1] == entry["file"]
    assert [words[n + 1] for n, word in enumerate(words) if word == "-I"] == [
        str(project.directory / "include"),
        str(project.directory / "odd, name"),
    ]
    assert not [word for word in words if word.startswith("/proc") or "{" in word]

    (entry,) = json.loads(project.run("compdb", "--clang").out)
    toolkit = os.path.dirname(os.path.dirname(fake_cuda.nvcc))
    assert entry["arguments"] == [
        "clang++",
        "-x",
        "cuda",
        f"--cuda-path={toolkit}",
        "--cuda-host-only",
        "-nocudalib",
        "-Wno-unknown-cuda-version",
        "-std=c++17",
        "-DFAST=1",
        "-iquote",
        str(project.directory / "kernels"),
        "-I",
        str(project.directory / "include"),
        "-I",
        str(project.directory / "odd, name"),
        "-DX=1",
        "-fsyntax-only",
        entry["file"],
    ]
