"""Spaces, quotes, newlines and letters from anywhere in the names of directories and templates."""

import subprocess
from pathlib import Path

import pytest

from support import scale
from support.project import NewProject

ODD = 'it\'s "q" $HOME `x` é日\n;#&\\ {0} %s'


@pytest.fixture
def odd(new_project: NewProject, tmp_path: Path):
    """A project, its cache, its template and its headers, all with names to stumble over."""

    def make(target, **environment):
        text = scale.manifest(
            scale.script(target=target, schedules=1)
            + '[script.scale.tune]\nref = "ré f.py:scale"\nsizes = [{ n = 10 }]\n',
            build="include-dirs = ['''in \"cl'ude\n''']",
        ).replace('"kernels/scale.cu.j2"', "'''kern's\n\"els/sc ale.cu.j2'''")
        files = {
            "kern's\n\"els/sc ale.cu.j2": '#include "fac tor.h"\n' + scale.TEMPLATE,
            "in \"cl'ude\n/fac tor.h": "#define FACTOR 1\n",
            "ré f.py": scale.REFERENCE,
        }
        return new_project(text, files, f"{ODD}/project", **environment)

    return make


def build_and_reproduce(project, cache):
    words = ("--cache-dir", str(cache))
    assert project.compiled(*words) == 1
    assert project.compiled(*words) == 0
    assert project.run("cache", "verify", *words).out.strip() == "no problems found"
    (program,) = (cache / "programs").iterdir()
    library = program / "module/lib.so"
    before = library.read_bytes()
    library.unlink()
    subprocess.run([program / "module/compile.sh"], cwd="/", check=True, capture_output=True)
    assert library.read_bytes() == before
    return program


def test_for_the_host(odd, tmp_path: Path):
    project = odd("cpu")
    cache = tmp_path / ODD / "the cache"
    build_and_reproduce(project, cache)
    ran = project.run("run", "scale", "--cache-dir", str(cache))
    assert "1 size agrees" in ran.out


@pytest.mark.nvcc
def test_for_a_gpu(odd, tmp_path: Path):
    build_and_reproduce(odd("gpu"), tmp_path / ODD / "the cache")


def test_a_failure_names_the_template(odd, tmp_path: Path):
    project = odd("cpu")
    project.edit("kern's\n\"els/sc ale.cu.j2", "y[i] = a", "y[i] = unknown")
    ran = project.run("build", "--cache-dir", str(tmp_path / ODD / "c"), status=1)
    assert "sc ale.cu.j2:6:" in ran.err
    command = ran.err.partition("  reproduce: ")[2].partition("\n\nerror")[0]
    again = subprocess.run(
        ["sh", "-c", command], cwd=project.directory, capture_output=True, text=True
    )
    assert "unknown" in again.stderr
