"""Whole projects, opened as the command line does: the annotated example, settings that matter."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import scale
from support.fake_engine import Listener
from support.project import head, needs_cxx
from tilusbuild.builder import publish
from tilusbuild.builder.build import build_project
from tilusbuild.builder.project import Project
from tilusbuild.cache import index
from tilusbuild.cache.garbage import clear_cache, collect_garbage
from tilusbuild.cache.index import read_index
from tilusbuild.cache.scripts import publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import InputError, TilusbuildError
from tilusbuild.plan.model import PlanSelection

EXAMPLE = Path(__file__).parents[2] / "tilus.toml.example"

T1 = """{"ConfigurationSpace": {"TuningParameters": [
  {"Name": "tile", "Type": "int", "Values": "[8, 16, 32]", "Default": 16}],
  "Conditions": [{"Expression": "tile <= 16", "Parameters": ["tile"]}]}}"""

SMALL = (
    head()
    + """\
[script.fill]
template = "fill.cu.j2"
kernel = "fill"
args = { x = { type = "f32*[n]", out = true }, n = "i32" }
params = { value = [1, 2] }
"""
)
FILL = (
    'extern "C" void fill(float *x, int n) {\n'
    "  for (int i = 0; i < n; ++i) x[i] = {{ value }};\n"
    "}\n"
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "tilus.toml").write_text(SMALL)
    (tmp_path / "fill.cu.j2").write_text(FILL)
    return tmp_path


Opened = Callable[..., Project]


@pytest.fixture
def opened() -> Opened:
    def open_it(directory: Path, **environment: str) -> Project:
        env = {"PATH": os.environ["PATH"], **environment}
        return Project.open(str(directory), {"cache-dir": str(directory / "cache")}, env)

    return open_it


@pytest.mark.nvcc
def test_the_annotated_example_plans(tmp_path, opened, monkeypatch) -> None:
    """Given every key of the manifest, and files for what it names."""
    (tmp_path / "tilus.toml").write_text(EXAMPLE.read_text())
    kernel = 'extern "C" __global__ void {0}({{{{ "" }}}}) {{ /* {1} */ }}\n'
    for name, text in {
        "kernels/matmul.cu.j2": kernel.format("matmul", "{{ block_m }} {{ dtype }} {{ smem }}"),
        "kernels/transpose.cu.j2": kernel.format("transpose", "{{ tile }}"),
        "kernels/scale.cu.j2": "// Several kernels.\n",
        "kernels/axpy.cpp.j2": "int unrolled{{ unroll }};\n",
        "kernels/copy.py": "def copy(): return ''",
        "src/a.cpp": "",
        "vendor/x.o": "",
        "site/torch/__init__.py": "",
        "site/torch/lib/libtorch.so": "",
        "spaces/transpose.t1.json": T1,
        "ref.py": "def matmul(a, b): return a @ b\n",
        "include/generated/a.cuh": "",
        "kernels/include/tables/b.inc": "",
        "site/cutlass_library/__init__.py": "",
        "site/cutlass_library/source/include/cute.hpp": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with opened(tmp_path) as project:
        plan = project.make_plan(PlanSelection(level=1))
        count_by_instance = {
            (i.script, i.params.get("dtype"), i.target.arch): len(i.programs)
            for i in plan.instances
        }
    assert count_by_instance == {
        ("matmul", "f16", "sm_90a"): 64,
        ("matmul", "bf16", "sm_90a"): 64,
        ("matmul", "f16", "sm_80+sm_86+ptx"): 64,
        ("matmul", "bf16", "sm_80+sm_86+ptx"): 64,
        ("transpose", None, "sm_80+sm_86+ptx"): 2,
        ("norm.forward", None, "sm_80+sm_86+ptx"): 2,
        ("scale", None, "cpu"): 1,
        ("axpy", None, "cpu"): 2,
        ("copy", None, "cpu"): 1,
        ("backend.sources", None, "cpu"): 1,
        ("backend_c.sources", None, "cpu"): 1,
        ("backend", None, "cpu"): 1,
    }
    assert not (tmp_path / "cache").exists()


def test_compilers_are_started_through_the_launcher(small: Path, opened: Opened) -> None:
    prefix = small / "count me"
    prefix.write_text(f'#!/bin/sh\ncat /dev/null\necho "$@" >> "{small}/journal"\nexec "$@"\n')
    prefix.chmod(prefix.stat().st_mode | stat.S_IXUSR)
    with opened(small) as project:
        before = [i.programs for i in project.make_plan(PlanSelection()).instances]
    with (small / "tilus.toml").open("a") as file:
        file.write(f'[toolchain]\nlauncher = ["{prefix}"]\n')
    with opened(small) as project:
        assert [i.programs for i in project.make_plan(PlanSelection()).instances] == before
        result = build_project(project, PlanSelection(), BuildConfig(jobs=1), Listener())
        assert project.find_toolchain(cuda=False).host.cxx.path in (small / "journal").read_text()
    assert result.summary.compiled == 2


def test_a_launcher_that_is_not_there_is_said_at_its_place(small: Path, opened: Opened) -> None:
    with (small / "tilus.toml").open("a") as file:
        file.write('[toolchain]\nlauncher = ["no-such-program"]\n')
    with opened(small) as project, pytest.raises(InputError, match="no program no-such-program"):
        build_project(project, PlanSelection(), BuildConfig(jobs=1), Listener())


def test_a_pattern_that_matches_no_header_is_an_error(small: Path, opened: Opened) -> None:
    text = (small / "tilus.toml").read_text()
    (small / "tilus.toml").write_text(text + 'headers = ["tables/*.inc"]\n')
    with opened(small) as project, pytest.raises(InputError) as caught:
        project.make_plan(PlanSelection())
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.message == 'no header matches "tables/*.inc"'
    assert diagnostic.location is not None
    assert diagnostic.location.text == 'headers = ["tables/*.inc"]'


def test_building_a_part_again_takes_the_place_of_its_last_build(small, opened) -> None:
    """Given two instances, when one script is built, edited, and built again, then the project's
    roots are those of the last build alone, and a caller finds one kernel for its constants."""
    for body in (FILL, FILL.replace("= {{ value }}", "= 0 + {{ value }}")):
        (small / "fill.cu.j2").write_text(body)
        with opened(small) as project:
            build_project(
                project, PlanSelection(scripts=("fill",)), BuildConfig(jobs=2), Listener()
            )
            planned = {i.hash for i in project.make_plan(PlanSelection()).instances}
            (noted,) = read_index(project.cache).values()
            assert {digest for _, digest in noted.scripts} == planned


# A build that finds every script current holds no lock; any other one keeps a collection away.
Built = Callable[..., None]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """Builds a project of one script, in the directory `.cache`."""
    needs_cxx()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/scale.cu.j2").write_text(scale.TEMPLATE)

    def build_it(schedules: int = 1) -> None:
        (tmp_path / "tilus.toml").write_text(scale.manifest(scale.script(schedules=schedules)))
        with Project.open(str(tmp_path), {}, {"PATH": os.environ["PATH"]}) as project:
            build_project(project, PlanSelection(), BuildConfig(jobs=1), Listener())

    return build_it


@pytest.mark.parametrize("who", ["clear", "somebody"])
def test_a_script_that_goes_while_its_tables_are_looked_at(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """`cache clear` is kept out; who asks no lock takes away what he likes."""
    cache = tmp_path / ".cache"
    built()
    (cache / "state/published").unlink(missing_ok=True)

    def removed_then(*arguments: Any) -> str:
        path = publish_script(*arguments)
        if who == "somebody":
            shutil.rmtree(path)
        else:
            with pytest.raises(TilusbuildError, match="a build is using"):
                clear_cache(Tree(str(cache)))
        return path

    monkeypatch.setattr(publish, "publish_script", removed_then)
    if who == "somebody":
        with pytest.raises(TilusbuildError, match="build the project again"):
            built()
    else:
        built()
        assert [*cache.glob("scripts/scale/*/script.json")]


def test_a_script_that_is_collected_before_the_index_names_it(built, tmp_path, monkeypatch) -> None:
    cache = Tree(str(tmp_path / ".cache"))
    built(1)
    built(2)
    record = index.record_build
    removed: list[str] = []

    def collected_first(*words: Any, **more: Any) -> None:
        removed.extend(removal.name for removal in collect_garbage(cache).removed)
        record(*words, **more)

    monkeypatch.setattr(publish, "record_build", collected_first)
    monkeypatch.setattr(publish.PublishedScripts, "is_current", lambda *_: True)
    built(1)
    assert any(name.startswith("scripts/") for name in removed)
    collect_garbage(cache)  # which refuses while the index names what is not there


def test_programs_are_not_cleared_after_they_were_found(built, tmp_path, monkeypatch) -> None:
    """A script's directory names no program that is not there."""
    cache = Tree(str(tmp_path / ".cache"))
    built()
    shutil.rmtree(tmp_path / ".cache/scripts/scale")
    record = publish.make_script_record
    looks: list[object] = []

    def cleared_after_it(*words: Any, **more: Any) -> Any:
        result = record(*words, **more)
        looks.append(result)
        with pytest.raises(TilusbuildError, match="a build is using"):
            clear_cache(cache)
        return result

    monkeypatch.setattr(publish, "make_script_record", cleared_after_it)
    built()
    assert looks
    assert verify_cache(cache) == []
