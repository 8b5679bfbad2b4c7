"""Several toolchains in one build: each program is compiled, hashed and believed with its own."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import one_library, scale
from support.nvcc_journal import FakeCuda
from support.processes import run_to_end, wait_until
from support.project import NewProject, Project
from tilusbuild.toolchain.nvrtc_places import list_wheel_roots

OTHER = '[toolchain.named.other]\nnvcc = "{}"\n\n'
MakeTwo = Callable[..., Project]
_NAMED = os.environ.get("TILUSBUILD_TEST_OTHER_CUDA")
"""Read now: a test has no such variables."""


@pytest.fixture
def two(new_project: NewProject, fake_cuda: FakeCuda, other_cuda: FakeCuda) -> MakeTwo:
    """`plain` by the toolkit of the environment, `special` by another one."""

    def make(more: str = 'toolchain = "other"', head: str = OTHER, template: str = "") -> Project:
        special = scale.script("special", target="gpu", more=more)
        text = scale.manifest(scale.script("plain", target="gpu"), special)
        root = os.path.dirname(os.path.dirname(other_cuda.nvcc))
        text = text.replace("[target.cpu]", head.format(root) + "[target.cpu]")
        templates = {f"kernels/{n}.cu.j2": scale.TEMPLATE + template for n in ("plain", "special")}
        return new_project(text, templates, **fake_cuda.environment)

    return make


def options_of(project: Project, script: str) -> list[str]:
    """The `options.txt` of each program of a script."""
    links = sorted(project.cache.glob(f"scripts/{script}/*/programs/*"))
    return [(link / "options.txt").read_text() for link in links]


def test_each_script_is_compiled_by_its_own_toolkit(two, fake_cuda, other_cuda) -> None:
    project = two()
    assert project.compiled() == 4
    assert (len(fake_cuda.journal), len(other_cuda.journal)) == (2, 2)
    assert all("\nnvcc 13.0.88 " in options for options in options_of(project, "plain"))
    assert all("\nnvcc 13.1.15 " in options for options in options_of(project, "special"))
    one, other = options_of(project, "plain")[0], options_of(project, "special")[0]
    assert one.partition("[toolchain]")[0] == other.partition("[toolchain]")[0]
    described = next(project.cache.glob("scripts/special/*/script.json")).read_text()
    assert "13.1.15" in described
    assert project.compiled() == 0
    # The name of a toolchain is in no hash.
    text = (project.directory / "tilus.toml").read_text()
    project.write("tilus.toml", text.replace("named.other", "named.x").replace('"other"', '"x"'))
    assert project.compiled() == 0
    assert (len(fake_cuda.journal), len(other_cuda.journal)) == (2, 2)


@pytest.mark.parametrize("changed", ["include/cuda_fp16.h", "bin/ptxas"])
def test_a_change_of_one_toolkit_compiles_its_own_programs_only(
    two: MakeTwo, fake_cuda: FakeCuda, other_cuda: FakeCuda, changed: str
) -> None:
    project = two()
    project.build()
    path = Path(other_cuda.nvcc).parents[1] / changed
    again = path.with_name("again")
    again.write_bytes(path.read_bytes() + b"// another\n")
    again.chmod(path.stat().st_mode)
    again.rename(path)
    output = project.run("explain").out
    assert "special" in output
    assert "tool " in output
    assert project.compiled() == 2
    assert (len(fake_cuda.journal), len(other_cuda.journal)) == (2, 4)


def test_what_one_toolkit_said_is_believed_while_another_changes(
    two: MakeTwo, fake_cuda: FakeCuda, other_cuda: FakeCuda
) -> None:
    project = two(template="// fake: slow 0.4\n")
    process = project.start("build", "-j1", "-k", "0")
    wait_until(lambda: len(fake_cuda.journal) > 0)
    with (Path(other_cuda.nvcc).parents[1] / "bin/nvcc.profile").open("a") as file:
        file.write("// another\n")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "other/bin/nvcc.profile changed while it was used; build again" in stderr
    texts = [(path / "options.txt").read_text() for path in project.programs.values()]
    assert ["\nnvcc 13.0.88 " in text for text in texts] == [True, True]
    summary = project.build("-k", "0", status=0)
    assert summary["attempts"] == 2


def test_only_toolchains_of_selected_scripts_are_asked(two: MakeTwo, other_cuda: FakeCuda) -> None:
    """The other toolkit is replaced by a program that notes that it was started."""
    project = two()
    started = project.directory / "started"
    Path(other_cuda.nvcc).write_text(f'#!/bin/sh\necho "$*" >>{started}\nexit 1\n')
    assert project.compiled("plain") == 2
    assert not started.exists()
    stderr = project.run("build", status=2).err
    assert started.exists()
    assert "tilus.toml:12:8: error: no nvcc found for toolchain.named.other.nvcc" in stderr


def test_a_toolkit_that_is_not_there_is_a_mistake_at_its_line(two: MakeTwo) -> None:
    project = two(head='[toolchain.named.other]\nnvcc = "==12.8.*"\n\n')
    stderr = project.run("build", status=2).err
    assert 'error: no nvcc found for toolchain.named.other.nvcc = "==12.8.*"' in stderr
    assert "version 13.0.88 does not meet ==12.8.*" in stderr
    assert "or give the path of one beside others" in stderr


def test_a_target_names_a_toolchain_for_scripts_that_name_none(
    new_project: NewProject, fake_cuda: FakeCuda, other_cuda: FakeCuda
) -> None:
    root = os.path.dirname(os.path.dirname(other_cuda.nvcc))
    text = scale.manifest(
        scale.script("plain", target="gpu"),
        f'[toolchain.named.other]\nnvcc = "{root}"\n[toolchain.named.usual]\n',
        '[target.old]\narch = "sm_75"\ntoolchain = "other"\n',
    ).replace('targets = ["gpu"]', 'targets = ["gpu", "old"]')
    files = {"kernels/plain.cu.j2": scale.TEMPLATE}
    project = new_project(text, files, **fake_cuda.environment)
    project.build()
    assert (len(fake_cuda.journal), len(other_cuda.journal)) == (2, 2)
    project.edit("tilus.toml", 'kernel = "scale"', 'kernel = "scale"\ntoolchain = "usual"')
    assert project.compiled() == 2
    assert (len(fake_cuda.journal), len(other_cuda.journal)) == (4, 2)


@pytest.fixture
def other_host(tmp_path: Path) -> Path:
    """A folder with g++-x and gcc-x, which note their words in the file `journal` beside it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("g++", "gcc"):
        tool = tools / f"{name}-x"
        real = shutil.which(name)
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/journal\nexec {real} "$@"\n')
        tool.chmod(0o755)
    return tools


def on_path(tools: Path) -> dict[str, str]:
    search = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": search, "TILUSBUILD_SANDBOX": "0"}


def test_a_host_compiler_by_name(new_project: NewProject, other_host: Path) -> None:
    """Its gcc is the one beside it."""
    text = scale.manifest(
        scale.script("plain", schedules=1),
        scale.script("special", schedules=1, more='toolchain = "x"'),
    ).replace("[target.cpu]", '[toolchain.named.x]\ncxx = "g++-x"\n\n[target.cpu]')
    files = {f"kernels/{name}.cu.j2": scale.TEMPLATE for name in ("plain", "special")}
    project = new_project(text, files, **on_path(other_host))
    journal = other_host.with_name("journal")
    assert project.compiled("plain") == 1
    assert not journal.exists()
    assert project.compiled() == 1
    assert {line.split()[0] for line in journal.read_text().splitlines()} == {"g++", "gcc"}
    (other_host / "gcc-x").unlink()
    stderr = project.run("build", status=2).err
    assert 'no host compiler: toolchain.named.x.cxx = "g++-x"' in stderr
    assert "apt install g++-x" in stderr


def test_a_librarys_toolchain_compiles_its_objects_and_links_them(new_project, other_host) -> None:
    """But for the objects of a script that names another one itself."""
    text = one_library.MANIFEST.replace("LIBRARY\n", 'toolchain = "x"\n')
    text += '[toolchain.named.x]\ncxx = "g++-x"\n[toolchain.named.usual]\n'
    project = new_project(text, one_library.FILES, **on_path(other_host))
    assert project.compiled() == 6
    compiled = other_host.with_name("journal").read_text().splitlines()
    assert sum(" -c " in f"{words} " for words in compiled) >= 5
    assert any("-shared" in words and "lib.so" in words for words in compiled)
    before = len(compiled)
    project.edit("tilus.toml", "[script.scale]\n", '[script.scale]\ntoolchain = "usual"\n')
    # The wrappers run the same compilers, but they are other files: its two objects, and the link.
    assert project.compiled() == 3
    compiled = other_host.with_name("journal").read_text().splitlines()[before:]
    assert not any(" -c " in f"{words} " for words in compiled)
    assert any("-shared" in words and "lib.so" in words for words in compiled)


def test_doctor_shows_each_toolchain_and_misses_those_in_use(two: MakeTwo) -> None:
    project = two()
    findings = {
        line["component"]: line
        for line in map(json.loads, project.run("doctor", "--json", status=None).out.splitlines())
        if line["event"] == "finding"
    }
    assert "13.1.15" in findings["nvcc of toolchain other"]["detail"]
    assert "13.0.88" in findings["nvcc"]["detail"]
    project = two(head='[toolchain.named.other]\nnvcc = "/nowhere"\n')
    output = project.run("doctor", status=1).out
    assert "missing, and needed by this project: nvcc of toolchain other" in output


def test_a_package_has_programs_of_several_toolkits(two: MakeTwo, tmp_path: Path) -> None:
    """Its target needs a driver for the newest; each script says what made its own."""
    project = two()
    project.edit("tilus.toml", "[target.cpu]", "[package.all]\nformats = ['dir']\n[target.cpu]")
    project.build()
    project.run("package", "all", "--output", tmp_path / "out")
    (package,) = (tmp_path / "out").iterdir()
    project.run("verify", package)
    listed = json.loads((package / "tilus-package.json").read_text())
    assert listed["targets"]["gpu"]["toolkit"] == "13.1.15"
    described = package.glob("scripts/*/*/script.json")
    toolkits = {json.loads(path.read_text())["target"]["toolkit"] for path in described}
    assert toolkits == {"13.0.88", "13.1.15"}


def test_each_program_is_made_again_by_an_nvcc_of_its_own_version(
    two: MakeTwo, fake_cuda: FakeCuda, other_cuda: FakeCuda
) -> None:
    project = two()
    project.build()
    roots = [os.path.dirname(os.path.dirname(cuda.nvcc)) for cuda in (fake_cuda, other_cuda)]
    rebuild = ("verify", project.cache, "--rebuild")
    output = project.run(*rebuild, CUDA_HOME=roots[0], CUDA_PATH=roots[1]).out
    assert "4 programs compiled again, 0 not reproduced" in output
    assert (len(fake_cuda.journal), len(other_cuda.journal)) == (4, 4)


def other_toolkit() -> Path:
    """A real toolkit of another release than the one on PATH."""
    mine = release_of(Path(shutil.which("nvcc") or "").resolve())
    roots = [Path(_NAMED)] if _NAMED else sorted(Path("/usr/local").glob("cuda-*"))
    for root in (*roots, *map(Path, list_wheel_roots())):
        if (root / "bin/nvcc").is_file() and release_of(root / "bin/nvcc") != mine:
            return root
    pytest.skip("needs a toolkit of another release: TILUSBUILD_TEST_OTHER_CUDA names one")


def release_of(nvcc: Path) -> str:
    output = run_to_end([nvcc, "--version"]).stdout
    return output.partition("release ")[2].partition(",")[0]


def said_by(project: Project, script: str) -> bytes:
    """The library of a script's only program."""
    (link,) = project.cache.glob(f"scripts/{script}/*/programs/0")
    return (link / "module/lib.so").read_bytes()


@pytest.mark.nvcc
def test_two_real_toolkits_in_one_build(new_project: NewProject) -> None:
    """Each cubin says which compiler made it."""
    other = other_toolkit()
    text = scale.manifest(
        scale.script("plain", target="gpu", schedules=1),
        scale.script("special", target="gpu", schedules=1, more='toolchain = "other"'),
    ).replace("[target.cpu]", OTHER.format(other) + "[target.cpu]")
    template = "#include <cuda_fp16.h>\n" + scale.TEMPLATE
    files = {f"kernels/{name}.cu.j2": template for name in ("plain", "special")}
    project = new_project(text, files)
    assert project.compiled() == 2
    mine, other_release = (
        release_of(Path(shutil.which("nvcc") or "")),
        release_of(other / "bin/nvcc"),
    )
    for script, release, not_this in (
        ("plain", mine, other_release),
        ("special", other_release, mine),
    ):
        content = said_by(project, script)
        assert f"Cuda compilation tools, release {release}".encode() in content
        assert f"Cuda compilation tools, release {not_this}".encode() not in content
    assert project.compiled() == 0

    ran = project.run("verify", project.cache, "--rebuild", status=1)
    lacks = f"that was made by nvcc {other_release}."
    assert (ran.out + ran.err).count(lacks) == 1
    assert "which was not found: set NVCC" in ran.out + ran.err

    if list(other.glob("**/libnvrtc.so.*")):
        nvrtc = 'device-compiler = "nvrtc"\n'
        project.edit("tilus.toml", 'toolchain = "other"\n', f'toolchain = "other"\n{nvrtc}')
        assert project.compiled() == 1
        assert f"\nnvrtc {other_release}." in "".join(options_of(project, "special"))
        project.edit("tilus.toml", nvrtc, "")
        assert project.compiled() == 0
