"""Where a manifest and its cache are found: a build, `run`, `cache ls` and `load` agree, also in a
project inside of another."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import tilusbuild
from support import command_line
from support.project import Project, head, needs_cxx
from tilusbuild import option
from tilusbuild.manifest import decide_settings, find_project_manifest
from tilusbuild.runtime import where

TEMPLATE = 'extern "C" void twice(const float *x, float *y, long n) { y[0] = 2 * x[0]; }\n'
SCRIPT = """
[script.twice]
template = "twice.cu.j2"
kernel = "twice"
[script.twice.args]
x = "f32*[n]"
y = { type = "f32*[n]", out = true }
n = "i64"
"""


class Layout(NamedTuple):
    """A project in `outer/inner`, below the manifest `outer/tilus.toml`."""

    git: str = ""
    """The directory that is a git repository."""
    outer: str = ""
    """`build.cache-dir` of the outer manifest."""
    inner: str = ""
    variable: str = ""
    expected: str = "home/.cache/tilus"
    """The cache, relative to the test's directory."""


LAYOUTS = {
    "no repository": Layout(),
    "only the outer manifest chooses": Layout(outer=".oc"),
    "only the inner manifest chooses": Layout(inner=".ic", expected="outer/inner/.ic"),
    "both choose": Layout(outer=".oc", inner="../ic/", expected="outer/ic"),
    "around both": Layout(git="outer", expected="outer/.cache"),
    "around both, outer chooses": Layout(git="outer", outer=".oc", expected="outer/.cache"),
    "around both, inner chooses": Layout("outer", ".oc", ".ic", expected="outer/inner/.ic"),
    "of the inner project": Layout("outer/inner", ".oc", expected="outer/inner/.cache"),
    "a home directory": Layout("outer", inner="~/ic", expected="home/ic"),
    "a variable": Layout("outer", ".oc", ".ic", "named", expected="outer/inner/deep/named"),
    "a variable with a home directory": Layout(variable="~/named", expected="home/named"),
}


def cache_dirs(directory: Path) -> list[Path]:
    return [tag.parent for tag in directory.rglob("CACHEDIR.TAG")]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_command_uses_the_cache_of_a_build(layout, tmp_path, monkeypatch) -> None:
    needs_cxx()
    start = tmp_path / "outer" / "inner" / "deep"
    start.mkdir(parents=True)
    (tmp_path / "home").mkdir()
    for directory, declared in ((tmp_path / "outer", layout.outer), (start.parent, layout.inner)):
        replacement = f'cache-dir = "{declared}"' if declared else ""
        manifest = head().replace('cache-dir = ".cache"', replacement) + SCRIPT
        Project(directory).write_all({"tilus.toml": manifest, "twice.cu.j2": TEMPLATE})
    if layout.git:
        (tmp_path / layout.git / ".git").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TILUSBUILD_CACHE_DIR", layout.variable)
    monkeypatch.chdir(start)

    command_line.run(start, "build")
    (built,) = cache_dirs(tmp_path)
    assert built == tmp_path / layout.expected

    assert (
        find_project_manifest(str(start))
        == where.find_manifest(str(start))
        == str(start.parent / "tilus.toml")
    )
    assert command_line.run(start, "cache", "dir").out.strip() == str(built)
    assert "twice" in command_line.run(start, "cache", "ls").out
    command_line.run(start, "run", "twice", "--size", "n=1")
    assert option.get_cache_dir() == str(built)
    x = np.ones(1, "float32")
    for search_root in (None, start.parent):
        kernel = tilusbuild.load("twice", where=search_root)
        assert f"{built}/" in kernel.explain()
        np.testing.assert_array_equal(kernel(x), 2 * x)
    assert cache_dirs(tmp_path) == [built]


def test_a_manifest_is_the_nearest_in_the_repository_also_unreadable(tmp_path: Path) -> None:
    (tmp_path / "clone" / ".git").mkdir(parents=True)
    (tmp_path / "inner").mkdir()
    (tmp_path / "tilus.toml").write_text('[build]\ncache-dir = "c"\n')
    (tmp_path / "inner" / "tilus.toml").write_text("[build\n")
    assert where.find_manifest(str(tmp_path / "clone")) is None
    cache = where.find_project_cache(str(tmp_path / "clone"))
    assert cache[:2] == (str(tmp_path / "clone" / ".cache"), "default")
    assert where.find_project_cache(str(tmp_path / "inner")).path == where.get_user_cache()


def test_a_person_takes_precedence_over_a_manifest(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    root, declared = str(tmp_path / "project"), {"cache-dir": "declared"}
    environment = {where.CACHE_VARIABLE: "variable"}
    for options, program, variables, expected in (
        ({"cache-dir": "option"}, {"cache-dir": "/program"}, environment, "option"),
        ({}, {"cache-dir": "/program"}, environment, "/program"),
        ({}, {}, environment, "variable"),
        ({}, {}, {where.CACHE_VARIABLE: ""}, "project/declared"),
    ):
        decided = decide_settings(root, options, variables, declared, program).cache_dir
        assert decided.value == str(tmp_path / expected)
        named = where.find_named_cache(options.get("cache-dir"), program, variables)
        assert (named or where.choose_project_cache(root, "declared")).source == decided.source
