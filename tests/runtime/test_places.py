"""Which place a kernel is taken from: of every pair of two projects, two targets and two versions,
each an installed wheel, a package in a cache, or the project in the working directory."""

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import tilusbuild
from support import command_line, scale
from support.nvcc_journal import FakeCuda, make_toolkit
from support.packages import LIMITS
from support.project import Project, needs_cxx
from tilusbuild.cache.index import read_index
from tilusbuild.cache.tree import Tree
from tilusbuild.package.install import install_package
from tilusbuild.package.read import open_package
from tilusbuild.runtime import device, loading
from tilusbuild.runtime.errors import LoadError

TARGETS = {"cpu": "cpu", "gpu": "sm_80"}


class Made(NamedTuple):
    """What is in a place: version `version` of `project`, for one target."""

    project: str
    target: str
    version: int


ALL = [Made(*words) for words in itertools.product("pq", TARGETS, (1, 2))]


def files_of(variant: Made) -> dict[str, str]:
    number = f"{10 * 'pq'.index(variant.project) + variant.version}"
    script = scale.script(target=variant.target, schedules=1)
    manifest = (
        f'edition = 1\n[project]\nname = "{variant.project}"\nversion = "{variant.version}"\n'
        f'[target.{variant.target}]\narch = "{TARGETS[variant.target]}"\n'
        f"[package.{variant.target}]\n"
    )
    template = scale.TEMPLATE.replace("a * x[i]", f"a * x[i] + {number}")
    return {"tilus.toml": manifest + script, "kernels/scale.cu.j2": template}


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[Made, Project]:
    """Each, built into `.cache` beside its sources, and packed into `dist`."""
    needs_cxx()
    directory = tmp_path_factory.mktemp("made")
    cuda = FakeCuda(make_toolkit(str(directory / "cuda")))
    projects = {}
    for variant in ALL:
        name = "-".join(map(str, variant))
        projects[variant] = Project(directory / name, cuda.environment).write_all(files_of(variant))
        projects[variant].run("build", "--cache-dir", ".cache")
        projects[variant].run("package", "--format", "dir", "--cache-dir", ".cache")
    return projects


class Machine:
    """A home with a cache, a directory of installed wheels, and a working directory."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.home, self.site, self.work = (directory / n for n in ("home", "site", "workspace"))
        for path in (self.home, self.site, self.work):
            path.mkdir(parents=True)
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.syspath_prepend(self.site)
        monkeypatch.chdir(self.work)
        self.cache = Tree(str(self.home / ".cache/tilus"))

    def put(self, form: str, project: Project) -> None:
        (package,) = (project.directory / "dist").iterdir()
        if form == "project":
            shutil.copytree(project.cache, self.cache.root)
            shutil.copytree(project.directory / "kernels", self.work / "kernels")
            shutil.copy(project.directory / "tilus.toml", self.work)
        elif form == "package":
            with open_package(str(package)) as reader:
                install_package(reader, self.cache, LIMITS)
        else:
            module = package.name.replace("-", "_").replace(".", "_") + f"_{self.directory.name}"
            info = self.site / f"{module}-1.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: {module}\nVersion: 1\n")
            points = f"[tilusbuild.packages]\n{module} = {module}:path\n"
            (info / "entry_points.txt").write_text(points)
            (self.site / f"{module}.py").write_text(f"path = {str(package)!r}\n")


def expected(places: list[tuple[str, Made]], gpu: bool) -> str:
    """What `load` is to take. The project that serves the machine is alone; else each target is
    served by the project, or by the only other place that has it."""
    own = {variant for form, variant in places if form == "project"}
    if any(variant.target == ("gpu" if gpu else "cpu") for variant in own):
        return format_made(own)
    chosen: set[Made] = set()
    for target in TARGETS if gpu else ("cpu",):
        having = {variant for _, variant in places if variant.target == target}
        if len(having & own or having) > 1:
            return "tie"
        chosen |= having & own or having
    return format_made(chosen)


def format_made(chosen: Iterable[Made]) -> str:
    return " + ".join(sorted(f"{m.project}{m.version} {m.target}" for m in chosen)) or "none"


def find_origin(project_by_variant: dict[Made, Project]) -> str:
    hashes = {
        next((p.cache / "scripts/scale").iterdir()).name: variant
        for variant, p in project_by_variant.items()
    }
    try:
        chosen = loading._find_instances("scale", None, None, None, {})[0]
    except LoadError as error:
        return "tie" if "several places" in str(error) else "none"
    return format_made(hashes[script.hash] for script in chosen)


FORMS = ("wheel", "package", "project")


@pytest.mark.parametrize("gpu", [False, True], ids=["without a GPU", "with a GPU"])
@pytest.mark.parametrize("forms", list(itertools.product(FORMS, FORMS)), ids=" and ".join)
def test_what_is_taken_of_two_places(forms, gpu, projects, tmp_path, monkeypatch) -> None:
    """Given two places that have one script, when it is loaded, then from the project around the
    working directory, or from whichever place has the machine's target; two are an error."""
    monkeypatch.setattr(device, "may_have_cuda", lambda: gpu)
    # Whether the first is of one project and version or of the other is all the same.
    firsts = [variant for variant in ALL if variant[::2] == ("p", 1)]
    for number, pair in enumerate(itertools.product(firsts, ALL)):
        # Of one name there is one project, one wheel and one package at a time.
        same = pair[0][:2] == pair[1][:2]
        if forms[0] == forms[1] and (same or forms[0] == "project"):
            continue
        places = list(zip(forms, pair, strict=True))
        with monkeypatch.context() as patch:
            machine = Machine(tmp_path / str(number), patch)
            for form, variant in sorted(places, key=lambda item: item[0] != "project"):
                machine.put(form, projects[variant])
            assert (find_origin(projects), pair) == (expected(places, gpu), pair)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "machine", monkeypatch)


def build_at(path: Path, variant: Made) -> Project:
    project = Project(path).write_all(files_of(variant))
    project.run("build")
    return project


def added(work: str | Path = ".") -> float:
    """What the kernel adds to 0 * 0 in a directory, which tells the project and the version."""
    os.chdir(work)
    return float(tilusbuild.load("scale")(0.0, np.zeros(1, "float32"))[0])


def test_two_containers_have_other_projects_at_one_path(machine: Machine) -> None:
    """Given a shared cache and trees that are at one path in turn, when each was built, then each
    loads its own; and a third, also of the same manifest, loads none before its build."""
    needs_cxx()
    work, first, second = machine.work, machine.directory / "first", machine.directory / "second"
    build_at(work, Made("p", "cpu", 1))
    work.rename(first)
    build_at(work, Made("q", "cpu", 1))
    assert added(work) == 11
    work.rename(second)
    first.rename(work)
    assert added(work) == 1
    # Built again, it is where it was in the index; the other stays, so that `gc` keeps it.
    Project(work).run("build", "scale")
    assert len(read_index(machine.cache)) == 2
    clone = Project(work).copy(machine.directory / "clone")
    clone.edit("kernels/scale.cu.j2", "+ 1;", "+ 5;")
    work.rename(first)
    clone.directory.rename(work)
    with pytest.raises(LoadError, match="`tilusbuild build`"):
        added(work)
    Project(work).run("build")
    assert added(work) == 5


def test_a_name_that_is_not_there_gets_hints_of_what_can_be_loaded(machine: Machine) -> None:
    """Given a cache with a project's `scale` and the `shift` of another."""
    needs_cxx()
    build_at(machine.directory / "p", Made("p", "cpu", 1))
    other = Project(machine.work).write_all(files_of(Made("q", "cpu", 1)))
    other.edit("tilus.toml", "[script.scale", "[script.shift")
    other.run("build")
    os.chdir(machine.work)
    for name, hint in {
        "scales": "known: shift",
        "shif": 'did you mean "shift"?',
        "scale": "another project has it: `tilusbuild build` makes this one's, where= names the ",
    }.items():
        with pytest.raises(LoadError, match=re.escape(f"'{name}'\n  {hint}")):
            tilusbuild.load(name)


def test_a_project_is_known_again(machine: Machine, monkeypatch) -> None:
    """Given a built project, when a file is edited, then its last build is loaded still; when it is
    copied or moved, it is known by its files; a new checkout at its path with others is
    another project."""
    needs_cxx()
    project = build_at(machine.work, Made("p", "cpu", 1))
    copy = project.copy(machine.directory / "copy")
    project.edit("kernels/scale.cu.j2", "+ 1;", "+ 5;")
    assert added() == 1
    project.edit("kernels/scale.cu.j2", "+ 5;", "+ 1;")
    project.edit("tilus.toml", "[project]", "# edited\n[project]")
    assert added() == 1
    monkeypatch.chdir(copy.directory)
    assert added() == 1
    copy.edit("kernels/scale.cu.j2", "+ 1;", "+ 5;")
    with pytest.raises(LoadError, match="`tilusbuild build`"):
        tilusbuild.load("scale")
    monkeypatch.chdir(machine.directory)
    shutil.rmtree(machine.work)
    project.write_all(files_of(Made("q", "cpu", 1)))
    monkeypatch.chdir(machine.work)
    with pytest.raises(LoadError, match="`tilusbuild build`"):
        tilusbuild.load("scale")


def test_a_tie_says_what_resolves_it(machine: Machine, projects: dict[Made, Project]) -> None:
    """Given a wheel and a package of one script, when it is loaded, then the error names both, and
    each remedy that it prints works."""
    machine.put("wheel", projects[Made("p", "cpu", 1)])
    machine.put("package", projects[Made("q", "cpu", 2)])
    with pytest.raises(LoadError, match="several places have scale") as caught:
        tilusbuild.load("scale")
    (where,) = re.findall("where='(.*?)'", str(caught.value))
    kernel = tilusbuild.load("scale", where=where)
    assert kernel(0.0, np.zeros(1, "float32"))[0] == 1
    (command,) = re.findall("`tilusbuild (.*?)`", str(caught.value))
    command_line.run(machine.work, *shlex.split(command))
    assert added() == 1


def test_an_installation_warns_of_a_tie(machine: Machine, projects: dict[Made, Project]) -> None:
    """Given a package in a cache, when another project's is installed, then of the same target with
    a warning, and of another target without."""
    machine.put("package", projects[Made("p", "cpu", 1)])
    for target in TARGETS:
        (package,) = (projects[Made("q", target, 1)].directory / "dist").iterdir()
        stderr = command_line.run(machine.work, "install", package).err
        assert ("warning: package p-cpu 1 has scale cpu, too" in stderr) == (target == "cpu"), (
            stderr
        )
