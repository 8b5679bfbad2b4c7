"""Each row of docs/coming-from.md and of promises.md: its right column runs, in a new project."""

import ast
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import command_line, scale
from support.processes import run_python, run_to_end
from tilusbuild.manifest.loading import load_manifest

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
PROMISES = Path(__file__).parent / "promises.md"
CODE = """\
import os, sys
import tilusbuild, tilusbuild.builder.build, tvm_ffi  # once, before all forks
from tilusbuild import KernelCache, option
from tilusbuild.cli.main import main

def refused(call, words):
    try:
        call()
    except tilusbuild.InputError as error:
        assert words in str(error), error
    else:
        raise AssertionError("it was not refused")

def run(call):
    child = os.fork()
    if not child:
        status = 1
        try:
            status = call()
        finally:
            os._exit(status or 0)
    return os.waitpid(child, 0)[1]

for row in sys.argv[1:]:
    assert run(lambda: main(["build", "-q", "--target", "cpu"])) == 0
    if run(lambda: exec(row, globals())):
        print(row)
"""
"""Runs each row in a process of its own; prints those that do not end well."""


def rows() -> Iterator[tuple[str, str]]:
    """(there, here) of each row."""
    for line in (PAGE.read_text() + PROMISES.read_text()).splitlines():
        cells = re.fullmatch(r"\| (.+) \| `(.+)` \|", line)
        if cells:
            yield cells[1], cells[2]


ROWS = list(dict.fromkeys(rows()))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, built for the host, in a home that has caches of the other systems."""
    home = tmp_path_factory.mktemp("home")
    run(home, home, "tilusbuild init kernels")
    # A script whose last tensor is an output, which that project's is not alone.
    kernel_project = home / "kernels"
    (kernel_project / "kernels/scale.cu.j2").write_text(scale.TEMPLATE.replace("{{ unroll }}", "1"))
    script = (
        scale.script(schedules=1).replace('targets = ["cpu"]', "").split("[script.scale.space]")
    )
    with (kernel_project / "tilus.toml").open("a") as manifest:
        manifest.write(f"\n{script[0]}")
    library = PAGE.parents[1] / "tests" / "binary" / "data" / "library.so"
    kernel = home / ".tilelang/cache/0.1.15/linux-x86_64/kernels" / ("c3" * 32)
    hidet = home / ".cache/hidet/ops/cuda_space_2/relu" / ("0a" * 8)
    for directory in (kernel, hidet):
        directory.mkdir(parents=True)
    (kernel / "executable.so").write_bytes(library.read_bytes())
    (kernel / "manifest.json").write_text('{"version": 1, "files": {}}')
    (hidet / "lib.so").write_bytes(library.read_bytes())
    (hidet / "task.txt").write_text("Task(name: relu)")
    documented = home / "documented"
    files = {
        f"tilelang/{'c3' * 32}": ("kernel.cu", "wrapped_kernel.cu", "kernel_lib.so", "params.pkl"),
        f"hidet/ops/cuda_space_0/mm/{'0b' * 8}": ("lib.so", "nvcc_log.txt", "summary.txt"),
        "hidet/onnx": ("model.onnx",),
    }
    for folder, names in files.items():
        (documented / folder).mkdir(parents=True)
        for name in names:
            (documented / folder / name).write_bytes(library.read_bytes())
    return home / "kernels"


def run(home: Path, directory: Path, command: str) -> None:
    """A command line: ours at once, others by bash, with this environment's programs."""
    if re.fullmatch(r"(?:[A-Z_]+=\S+ )?tilusbuild [^&|*$;<>]*", command):
        words = [re.sub("^~", str(home), word) for word in shlex.split(command)]
        index = words.index("tilusbuild")
        variables = dict(word.split("=") for word in words[:index])
        command_line.run(
            directory, *words[index + 1 :], environment={"HOME": str(home), **variables}
        )
        return
    programs = os.path.dirname(sys.executable)
    environment = {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}
    run_to_end(["bash", "-c", command], cwd=directory, environment=environment)


def test_there_are_rows_for_each_system() -> None:
    assert len(ROWS) > 85
    assert len({original for original, _ in ROWS}) == len(ROWS)


def kind(text: str) -> str:
    if re.match(r'("[\w, ]+"|\w+) = [\[{]', text):
        return "manifest"
    try:
        ast.parse(text)
    except SyntaxError:
        return "shell"
    return "python"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=f"{n}", marks=[pytest.mark.nvcc] if "sm_" in command else [])
        for n, (_, command) in enumerate(ROWS)
        if kind(command) == "shell"
    ],
)
def test_the_command_of_a_row_runs(command: str, project: Path) -> None:
    home = project.parent
    run(home, project, "tilusbuild build -q --target cpu")
    if "dispatch" in command:
        run(home, project, "tilusbuild tune axpby -q --target cpu --size n=1000 --budget 20")
    if "install" in command:
        run(home, project, "tilusbuild package -q --as-built --format tar.zst -o carried")
    run(home, project, command)


def test_the_python_of_each_row_runs(project: Path) -> None:
    rows = [replacement for _, replacement in ROWS if kind(replacement) == "python"]
    home = {"HOME": str(project.parent)}
    assert run_python(CODE, *rows, cwd=project, environment=home).stdout == ""


def test_the_manifest_of_each_row_loads(project: Path) -> None:
    manifest = (project / "tilus.toml").read_text()
    assert "[script.axpby.space]" in manifest
    for replacement in (replacement for _, replacement in ROWS if kind(replacement) == "manifest"):
        changed = re.sub(
            r"(\[script\.axpby\.space\].*\n)", rf"\1{replacement}\n", manifest, count=1
        )
        (project / "other.toml").write_text(changed)
        load_manifest(str(project / "other.toml"))
