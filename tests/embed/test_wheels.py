"""A Python package with kernels: its wheel, its sdist, its editable install."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.python_package import BACKENDS, CALL, PythonProject
from tilusbuild.runtime.device import get_cpu

Make = Callable[[str], PythonProject]


@pytest.fixture(params=BACKENDS)
def project(request: pytest.FixtureRequest, python_project: Make) -> PythonProject:
    """With each of the backends."""
    return python_project(request.param)


def test_a_wheel_brings_its_kernels_and_needs_no_compiler(
    project: PythonProject, tmp_path: Path
) -> None:
    wheel, _ = project.call("build_wheel")
    assert wheel.name.startswith("mypackage-0.1.0-py3-none-manylinux_2_")
    site = project.unpacked(wheel)
    assert (site / "mypackage/_kernels/tilus-package.json").exists()
    assert "Root-Is-Purelib: false" in next(site.glob("*.dist-info/WHEEL")).read_text()
    nowhere = {"PATH": "/nonexistent", "CXX": "", "HOME": "/nonexistent"}
    assert project.python(CALL, site, cwd=tmp_path, **nowhere) == ["[0.0, 2.0, 4.0]"]


def test_copies_of_the_sources_compile_nothing_again(project: PythonProject) -> None:
    """Given an editable install, when an sdist and its wheel are built, as `python -m build` and
    `uv build` do, and a second wheel in place."""
    assert "2 compiled" in project.call("build_editable")[1]
    sdist, _ = project.call("build_sdist")
    wheel, output = project.call("build_wheel", directory=project.unpacked(sdist))
    assert "2 programs, nothing to do" in output
    again, output = project.call("build_wheel")
    assert "2 programs, nothing to do" in output
    assert wheel == again
    assert (project.directory / ".cache").exists()
    assert not (project.around / "home/.cache/tilus").exists()


def test_a_copy_that_nothing_is_known_of_uses_the_cache_of_the_user(python_project: Make) -> None:
    project = python_project("hatchling.build")
    copy = project.directory.rename(project.around / "tmp/pip-req-build-1")
    assert "2 compiled" in project.call("build_wheel", directory=copy)[1]
    _, output = project.call(
        "build_wheel", directory=copy.rename(project.around / "tmp/pip-req-build-2")
    )
    assert "2 programs, nothing to do" in output
    index = (project.around / "home/.cache/tilus/index.json").read_text()
    assert "kernel-cache:wheel:mypackage" in index
    assert "/tmp/" not in index.replace(str(project.around.parent), "")


def test_an_editable_install_calls_what_the_last_build_made(
    project: PythonProject, tmp_path: Path
) -> None:
    wheel, _ = project.call("build_editable")
    assert not list(project.unpacked(wheel).rglob("_kernels"))
    assert project.python(CALL, project.directory, cwd=tmp_path) == ["[0.0, 2.0, 4.0]"]
    project.edit("kernels/scale.cc.j2", "a * x", "10 * a * x")
    project.build()
    assert project.python(CALL, project.directory, cwd=tmp_path) == ["[0.0, 20.0, 40.0]"]


def test_a_package_comes_before_a_directory_of_its_name(
    python_project: Make, tmp_path: Path
) -> None:
    """Given a directory in the working directory that is called as the package and has kernels,
    when the package names itself, then it gets its own."""
    project = python_project("hatchling.build")
    site = project.unpacked(project.call("build_wheel")[0])
    (tmp_path / "mypackage/scripts").mkdir(parents=True)
    code = "import sys; sys.path.remove(''); " + CALL
    assert project.python(code, site, cwd=tmp_path) == ["[0.0, 2.0, 4.0]"]
    (path,) = project.python(
        "import sys, tilusbuild; sys.path.remove('')\n"
        "try: tilusbuild.load('scale', where='./mypackage')\n"
        "except tilusbuild.LoadError as error: print(str(error).splitlines()[-1].strip())",
        site,
        cwd=tmp_path,
    )
    assert path == f"{tmp_path}/mypackage (where)"


def test_a_wheel_and_an_sdist_have_the_rows_of_the_repository(
    project: PythonProject, tmp_path: Path
) -> None:
    """Given kernels that were built once, when measurements come to the repository."""
    with (project.directory / "tilus.toml").open("a") as file:
        file.write('\n[script.scale.dispatch]\nkeys = ["n"]\nmeasured = "tuned/scale.jsonl"\n')
    project.call("build_wheel")
    row = {"target": "cpu", "device": get_cpu().name, "arch": "cpu", "params": {}, "seconds": 1}
    lines = [
        {"schema": 1, "script": "scale"},
        {**row, "sizes": {"n": 3}, "schedule": {"step": 2}},
    ]
    path = project.directory / "tuned/scale.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(map(json.dumps, lines)))
    sdist = project.unpacked(project.call("build_sdist")[0])
    assert (sdist / "tuned/scale.jsonl").read_text() == path.read_text()
    site = project.unpacked(project.call("build_wheel", directory=sdist)[0])
    why = "import tilusbuild; print(tilusbuild.load('scale', where='mypackage').select(n=3).why)"
    assert project.python(why, site, cwd=tmp_path) == ["measured at n = 3 (tuned/scale.jsonl)"]


PACKAGES = "\n[package.one]\n[package.two]\n"


@pytest.mark.parametrize(
    ("declared", "manifest", "message"),
    [
        ("manifst = 'tilus.toml'\n", "", ("unknown key", 'did you mean "manifest"?')),
        ("manifest = 'k'\n", "", ("no tilus.toml at k", "kernels/tilus.toml")),
        ("into = 'other'\n", "", ("no Python package other", 'into = "mypackage"')),
        ("", PACKAGES, ("several packages: one, two", 'package = "one"')),
        ("package = 'on'\n", PACKAGES, ('no package "on"', 'did you mean "one"?')),
    ],
)
def test_a_mistake_is_shown_where_it_is(
    python_project: Make, declared: str, manifest: str, message: tuple[str, ...]
) -> None:
    project = python_project("hatchling.build" if manifest else "setuptools.build_meta")
    project.declare(declared)
    with (project.directory / "tilus.toml").open("a") as file:
        file.write(manifest)
    _, text = project.call("build_wheel", status=2)
    assert "Traceback" not in text
    assert all(phrase in text for phrase in message), text
    assert "pyproject.toml:" in text or declared == "package = 'on'\n"


def test_what_does_not_compile_ends_the_build(python_project: Make) -> None:
    project = python_project("hatchling.build")
    project.edit("kernels/scale.cc.j2", "a * x", "a * (x")
    _, text = project.call("build_wheel", status=1)
    assert "kernels/" in text
    assert "were not built" in text
    assert "Traceback" not in text
