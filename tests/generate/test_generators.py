"""Sources that a Python function returns (docs/generators.md)."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from support.processes import run_python, wait_until
from support.project import Project, needs_cxx
from tilusbuild.generate.reads import digest_read
from tilusbuild.generate.worker import KernelLoader, import_file
from tilusbuild.manifest.scanner import import_toml
from tilusbuild.process.landlock import find_version
from tilusbuild.process.local import LocalRunner
from tilusbuild.render.generated import GeneratorWorkers

PAGE = (Path(__file__).parents[2] / "docs" / "generators.md").read_text()
MANIFEST, GENERATOR, HELPER, SOURCE, CUBIN = re.findall(
    r"```(?:toml|python)\n(.*?)```", PAGE, re.DOTALL
)
MANIFEST = MANIFEST.replace('"gen.py', '"kernels/gen.py').replace(
    "[target", '[build]\ncache-dir = ".cache"\n[target', 1
)
# Copies 4 bytes of a float: the number in the comment makes another program.
TEXT = "f'extern \"C\" void scale(const float* x, float* y, int n) {{ *y = *x; }} // {unroll} {X}'"
needs_landlock = pytest.mark.skipif(not find_version(), reason="the kernel has no Landlock")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The project of the page, built."""
    files = {"tilus.toml": MANIFEST, "kernels/gen.py": GENERATOR, "kernels/helper.py": HELPER}
    return Project.built(tmp_path, files)


def generate(project: Project, head: str, *, body: str = "pass", file: str = "gen.py") -> None:
    """Write a generator with a value X, for the schedule `unroll = 1` alone."""
    project.write("tilus.toml", MANIFEST.replace("[1, 2, 4]", "[1]"))
    code = f"def scale(unroll, target):\n    {body}\n    {head}\n    return {TEXT}\n"
    project.write(f"kernels/{file}", code)


def test_the_page_builds_three_programs_and_then_none(project: Project) -> None:
    assert import_toml().loads(MANIFEST)["script"]["scale"]["space"] == {"unroll": [1, 2, 4]}
    assert len(project.programs) == 3
    assert project.compiled() == 0


def test_a_program_is_compiled_while_others_are_generated(tmp_path: Path) -> None:
    # Given a generator whose last call waits for a published program, and then makes a mistake,
    head = "import glob, time\n"
    wait = (
        "    while unroll == 4 and not glob.glob('.cache/programs/*/meta.json'): time.sleep(0.02)\n"
    )
    body = GENERATOR.replace("def scale(unroll, target):\n", f"def scale(unroll, target):\n{wait}")
    mistake = body.replace("    steps =", "    assert unroll < 4\n    steps =")
    files = {"tilus.toml": MANIFEST, "kernels/gen.py": head + mistake, "kernels/helper.py": HELPER}
    project = Project(tmp_path).write_all(files)
    # when it is built, then the mistake is the one message,
    refused = project.run("build", "-j2", status=2)
    assert refused.err.count("\n") == refused.err[refused.err.index("error:") :].count("\n")
    # and without it the plan comes first and counts all programs.
    shutil.rmtree(project.cache)
    project.write("kernels/gen.py", head + body)
    events = project.run("build", "-j2", "--json").events
    assert [event["event"] for event in events[:3]] == ["start", "plan", "started"]
    assert (events[1]["programs"], events[1]["to_compile"]) == (3, 3)
    counts = [(e["done"], e["to_compile"]) for e in events if e["event"] == "finished"]
    assert counts == [(1, 3), (2, 3), (3, 3)]
    assert events[-1]["compiled"] == events[-1]["attempts"] == 3


def test_an_interrupt_ends_the_calls_that_run(tmp_path: Path) -> None:
    # Given a generator of which two calls last for long,
    body = "import time\ndef scale(unroll):\n    time.sleep(600 if unroll > 1 else 0)\n"
    files = {"tilus.toml": MANIFEST, "kernels/gen.py": f"{body}    X = 1\n    return {TEXT}\n"}
    project = Project(tmp_path).write_all(files)
    process = project.start("build", "-j2")
    wait_until(lambda: len(project.programs) == 1 or process.poll() is not None, 60)
    # when it is interrupted, then it ends.
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_each_printed_source_begins_a_line(project: Project) -> None:
    # Given sources without a last newline,
    generate(project, "X = 1")
    project.write("tilus.toml", MANIFEST)
    # when they are printed, then each line that names one begins with it.
    assert len(re.findall(r"(?m)^// scale/\d host$", project.run("render").out)) == 3


MEETING = """\
import os, pathlib

def meet(count):
    own = pathlib.Path(os.environ["TMPDIR"], str(os.getpid()))
    own.touch()
    while (present := len(list(own.parent.iterdir()))) < count:
        pass
    return str(present)
"""


@pytest.mark.parametrize("room", [1, 2])
def test_as_many_calls_run_at_once_as_memory_has_room_for(tmp_path: Path, room: int) -> None:
    # Given a function that waits until so many calls run, and room for so many,
    (tmp_path / "gen.py").write_text(MEETING)
    target = {"kind": "cpu", "name": "host", "arch": "cpu", "archs": ["cpu"], "limits": {}}
    path = str(tmp_path / "gen.py")
    request = {
        "path": path,
        "root": str(tmp_path),
        "function": "meet",
        "values": {"count": room},
        "target": target,
        "dumps": False,
        "language": None,
    }

    def can_start(peak: int, running: list[int]) -> bool:
        return len(running) < room

    with LocalRunner() as runner, ThreadPoolExecutor(4) as threads:
        workers = GeneratorWorkers(runner, os.environ, 60, 4, can_start)
        ask = partial(workers.call, str(tmp_path), path)
        # when more are called, then so many processes answer.
        answers = threads.map(ask, [json.dumps(request)] * 2 * room)
        assert {answer["source"]["text"] for answer in answers} == {str(room)}
        workers.release()


def test_an_edit_that_changes_no_source_compiles_nothing(project: Project) -> None:
    project.edit("kernels/gen.py", "from helper", "# a comment\nfrom helper")
    assert project.compiled() == 0


def test_an_edit_of_an_imported_module_compiles_all(project: Project) -> None:
    project.edit("kernels/helper.py", "int n", "int  n")
    assert project.compiled() == 3


@pytest.mark.parametrize(
    ("head", "change"),
    [
        ('X = open("kernels/x.json").read()', "kernels/x.json"),
        ('import os; X = len(os.listdir("kernels/parts"))', "kernels/parts/new"),
        ('import os; X = os.path.exists("kernels/flag")', "kernels/flag"),
        ('import os; X = os.environ.get("FACTOR")', "$FACTOR"),
        ("try: import extra; X = 1\n    except ImportError: X = 0", "kernels/extra.py"),
        ('import pathlib; X = [*pathlib.Path("kernels").glob("*.x")]', "kernels/a.x"),
        ('import subprocess; X = subprocess.check_output(["cat", "kernels/x.json"])',
         "kernels/x.json"),
        ('import sys; sys.path.insert(0, "site"); import pack; X = pack.VERSION', "site/pack.py"),
        ("import shutil as s, tempfile as t; X=open(s.copy('kernels/x.json', t.mkdtemp())).read()",
         "kernels/x.json"),
    ],
)  # fmt: skip
def test_what_a_generator_reads_is_noted(tmp_path: Path, head: str, change: str) -> None:
    needs_cxx()
    project = Project(tmp_path)
    generate(project, head)
    project.write("kernels/x.json", "1")
    project.write("site/pack.py", "VERSION = 1")
    project.write("kernels/parts/old", "")
    assert project.compiled() == 1
    assert project.compiled() == 0
    if change.startswith("$"):
        project.environment[change[1:]] = "2"
    else:
        project.write(change, "VERSION = 2")
    assert project.compiled() == 1
    assert project.compiled() == 0


def test_a_search_for_a_library_is_known_and_its_own_directory_no_input(tmp_path: Path) -> None:
    # Given a process that runs `ldconfig -p`, and asks for a variable with the value of TMPDIR,
    code = (
        "import ctypes.util, os; from tilusbuild.generate.reads import ReadsNoter\n"
        "noter = ReadsNoter(); noter.install(); os.environ['OWN'] = os.environ['TMPDIR']\n"
        "os.environ['OWN'], ctypes.util.find_library('c'); print(*noter.take_fresh())"
    )
    # when its reads are noted, then the cache of libraries is one, and the variable none.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    reads = run_python(code, env=environment, cwd=tmp_path).stdout.split()
    assert "file:/etc/ld.so.cache" in reads
    assert not {"untracked:", "env:OWN", "env:TMPDIR"} & set(reads)


def test_an_import_reads_the_names_of_modules_only(tmp_path: Path) -> None:
    # Given a process that looks for a module in a directory, without success,
    code = (
        "import sys; from tilusbuild.generate.reads import ReadsNoter\n"
        "noter = ReadsNoter(); noter.install(); sys.path.insert(0, sys.argv[1])\n"
        "from importlib import metadata; metadata.entry_points()\n"
        "try: import nosuch\nexcept ImportError: print(*noter.take_fresh())"
    )
    environment = {**os.environ, "TMPDIR": "/nowhere"}
    reads = run_python(code, str(tmp_path), env=environment, cwd=tmp_path).stdout.split()
    # then it depends on the modules and packages there, and on no other names.
    assert f"dir:{tmp_path}" not in reads
    assert f"modules:{tmp_path}" in reads
    digests = [digest_read(f"modules:{tmp_path}", {})]
    for name in ("README.md", ".git/", "x.py", "y.abi3.so", "package/"):
        (tmp_path / name).mkdir() if name[-1] == "/" else (tmp_path / name).touch()
        digests.append(digest_read(f"modules:{tmp_path}", {}))
    assert [a == b for a, b in pairwise(digests)] == [True, True, False, False, False]


def test_of_a_package_that_looks_at_all_variables_only_its_own_are_noted(tmp_path: Path) -> None:
    # Given an installed package that goes through the variables on import, and in a function,
    (tmp_path / "pack.py").write_text(
        "import os\ndef look(): return dict(os.environ.items())\nlook()"
    )
    code = (
        "from tilusbuild.generate import reads\n"
        f"reads._SITE = ({f'{tmp_path}/'!r},); noter = reads.ReadsNoter(); noter.install()\n"
        "import pack; print(*noter.take_fresh()); pack.look(); print(*noter.take_fresh())"
    )
    environment = {"TMPDIR": "/nowhere", "PACK_SIZE": "2", "OLDPWD": "/"}
    # when the project imports it, and then calls the function,
    lines = run_python(code, env=environment, cwd=tmp_path).stdout.splitlines()
    # then the import has read the package's variables, and the call all of them.
    on_import, in_call = ({n for n in line.split() if n[:4] == "env:"} for line in lines)
    assert "env:PACK_SIZE" in on_import
    assert "env:OLDPWD" in in_call - on_import


def test_a_cache_that_a_build_makes_is_no_new_name(tmp_path: Path) -> None:
    (tmp_path / "gen.py").touch()
    digest = digest_read(f"dir:{tmp_path}", {})
    for name in ("__pycache__", ".cache"):
        (tmp_path / name).mkdir()
    (tmp_path / ".cache/CACHEDIR.TAG").touch()
    assert digest_read(f"dir:{tmp_path}", {}) == digest
    (tmp_path / "new").mkdir()
    assert digest_read(f"dir:{tmp_path}", {}) != digest


def test_random_changes_leave_no_program_out_of_date(tmp_path: Path) -> None:
    # Given a generator whose source has everything that it reads,
    needs_cxx()
    project = Project(tmp_path)
    generate(project, "", body="from value import V; import os, glob\n"
             '    X = f"{V} {open(\'kernels/x\').read()} {sorted(glob.glob(\'kernels/*.p\'))}"'
             ' + os.environ.get("FACTOR", "")')  # fmt: skip
    draw = random.Random(7)
    project.write("kernels/value.py", "V = 0")
    project.write("kernels/x", "0")
    for _ in range(15):
        # When one of these changes, also twice within a second and back,
        digit = str(draw.randrange(3))
        match draw.randrange(4):
            case 0:
                project.write("kernels/value.py", f"V = {digit}")
            case 1:
                project.write("kernels/x", digit)
            case 2:
                (tmp_path / "kernels" / f"{digit}.p").touch()
            case _:
                project.environment["FACTOR"] = digit
        project.run("build")
        # then the plan is that of a project that remembers nothing.
        fresh = project.copy(tmp_path.parent / "fresh", cache=False)
        plans = [
            re.findall(r"[0-9a-f]{64}", checkout.run("plan", "--json").out)
            for checkout in (project, fresh)
        ]
        assert plans[0]
        assert plans[0] == plans[1]
        shutil.rmtree(fresh.directory)


@pytest.mark.parametrize(
    ("body", "message", "line"),
    [
        ('raise ValueError("bad")', "ValueError: bad", 2),
        ("return None", "it returned None", 1),
        (
            "from tilusbuild.generate import Source as S; return S('', symbol=1j)",
            "wrong value: 'complex' object",
            1,
        ),
        (
            "from tilusbuild.generate import Source as S; return S('', block=32)",
            "Expected `array | null`, got `int` - at `block`",
            1,
        ),
        ("return scale(unroll, target)", "RecursionError", 2),
        ("import nosuch", "No module named 'nosuch'", 2),
        ("import sys; sys.exit(3)", "SystemExit: 3", 2),
        ("x = (", "SyntaxError", 2),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "no network", 2),
        pytest.param('open("out", "w")', "Permission denied", 2, marks=needs_landlock),
    ],
)
def test_a_mistake_is_shown_at_its_line_with_the_schedule(
    tmp_path: Path, body: str, message: str, line: int
) -> None:
    project = Project(tmp_path)
    generate(project, "X = 0", body=body)
    shown = project.run_to_error("build")
    assert re.match(rf"kernels/gen\.py:{line}:\d+: error: scale: .*{re.escape(message)}", shown)
    assert "for unroll = 1" in shown


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        ("kernels/gen.py:scal", "there is no function scal"),
        ("kernels/gem.py:scale", 'file not found: "kernels/gem.py"'),
        ("kernels/gen.py", '"generator"'),
        ("kernels/gen:scale", '"generator" cannot be "kernels/gen:scale"'),
        ('kernels/gen.py:scale"\ntemplate = "x.cu', 'both "template" and "generator" are set'),
    ],
)
def test_a_wrong_generator_is_one_error(tmp_path: Path, generator: str, message: str) -> None:
    project = Project(tmp_path)
    generate(project, "X = 0")
    project.edit("tilus.toml", "kernels/gen.py:scale", generator)
    assert message in project.run_to_error("build")


def test_a_kernel_language_passes_over_a_statement_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "kernels.py"
    file.write_text("import nosuch\n@nosuch.autotune\ndef f(x: int): return nosuch.y\nnosuch.run()")
    module = import_file(str(file), KernelLoader)
    assert module.f.__annotations__ == {"x": int}
    with pytest.raises(NameError) as missing:
        module.f(1)
    assert str(module.__loader__.find_cause(missing.value)) == "No module named 'nosuch'"


def test_a_package_imports_its_modules(tmp_path: Path) -> None:
    needs_cxx()
    project = Project(tmp_path)
    generate(project, "from .value import V as X; print(X)")
    project.write("kernels/__init__.py", "")
    project.write("kernels/value.py", "V = 1")
    assert project.compiled() == 1
    project.write("kernels/value.py", "V = 2")
    assert project.compiled() == 1


def test_files_with_one_function_import_their_own_modules(tmp_path: Path) -> None:
    # Given two files of one name, which Python's library has, too, with a module beside each,
    needs_cxx()
    project = Project(tmp_path)
    generate(project, "from helper import X")
    code = (tmp_path / "kernels" / "gen.py").read_text()
    script = "[script.scale]" + MANIFEST.partition("[script.scale]")[2].replace("[1, 2, 4]", "[1]")
    text = MANIFEST.partition("[script.scale]")[0]
    for name in ("a", "b"):
        project.write(f"{name}/copy.py", code)
        project.write(f"{name}/helper.py", f"X = '{name}'")
        text += script.replace("script.scale", f"script.{name}").replace(
            "kernels/gen", f"{name}/copy"
        )
    project.write("tilus.toml", text)
    # when both are built,
    project.run("build")
    # then each source has what its own module says.
    sources = [(path / "module" / "source.cu").read_text() for path in project.programs.values()]
    assert sorted(source.rstrip()[-1] for source in sources) == ["a", "b"]


def test_numpy_may_be_used(tmp_path: Path) -> None:
    needs_cxx()
    project = Project(tmp_path)
    generate(project, "import numpy as np; X = np.arange(3).sum()")
    assert project.compiled() == 1
    assert project.compiled() == 0


@pytest.mark.nvcc
def test_a_source_sets_parts_of_the_launch(tmp_path: Path) -> None:
    # Given the source of the page, for a GPU, with another block in the manifest,
    gpu = MANIFEST.replace('"cpu"', '"sm_80"') + "launch = { grid = [1], block = [32] }\n"
    project = Project(tmp_path).write_all({"tilus.toml": gpu, "kernels/gen.py": SOURCE})
    # when it is built,
    project.run("build")
    # then the launch is the source's.
    texts = "".join((path / "program.txt").read_text() for path in project.programs.values())
    assert "grid = cdiv(n, 32)\nblock = 32\nsmem = 0" in texts
    assert "grid = cdiv(n, 128)\nblock = 128\nsmem = 0" in texts
    # And a mistake in it is not the manifest's.
    project.edit("kernels/gen.py", "cdiv(n,", "cdiv(m,")
    message, line = project.run("plan", status=2).err.splitlines()[:2]
    assert message.endswith('grid.x = cdiv(m, 128): unknown name "m"; known: n, unroll')
    assert "generator =" in line


@pytest.mark.parametrize(
    "head",
    ["import time; X = time.time_ns()", "import random; X = random.random()", "X = {*'abcdef'}"],
)
def test_a_source_that_differs_without_a_change_is_found(tmp_path: Path, head: str) -> None:
    needs_cxx()
    project = Project(tmp_path)
    generate(project, "X = 0")
    project.run("build")
    assert "1 program compiled again, 0 not reproduced" in project.run("verify", "--rebuild").out
    generate(project, head)
    project.run("build")
    shown = project.run("verify", "--rebuild", status=1)
    assert "NotReproduced: scale: kernels/gen.py:scale returns another source" in shown.out


@pytest.mark.nvcc
def test_a_cubin_is_linked_without_nvcc(tmp_path: Path) -> None:
    # Given a generator that returns a cubin whose kernel has another name and one parameter more,
    manifest = MANIFEST.replace('"cpu"', '"sm_80"').replace("[1, 2, 4]", "[1]")
    generator = CUBIN.replace("block=(128,),", "block=(128,), cooperative=True,")
    files = {"tilus.toml": manifest + 'device-compiler = "none"\n', "kernels/gen.py": generator}
    project = Project(tmp_path).write_all(files)
    source = tmp_path / "kernels" / "mine.cu"
    source.write_text(
        'extern "C" __global__ void mine(const float* x, float* y, int n, void*) { *y = *x + n; }'
    )
    cubin = source.with_suffix(".cubin")
    subprocess.run(["nvcc", "-cubin", "-arch=sm_80", source, "-o", cubin], check=True)
    # when it is built where no nvcc is,
    project.environment |= {"NVCC": "/nowhere", "TILUSBUILD_REMOTE_EXECUTOR": "grpc://nowhere:1"}
    assert "on this machine: the generator has compiled" in project.run("explain").out
    assert project.compiled() == 1
    project.run("build", "--dump-ir")
    # then the tree has the cubin, how it is launched, and the texts of its compiler,
    (program,) = project.programs.values()
    assert (program / "module" / "kernel.cubin").read_bytes() == cubin.read_bytes()
    refused = project.run("cache", "show", "scale/0", "--source", status=2).err
    assert "has no source but a cubin" in refused
    text = (program / "program.txt").read_text()
    assert 'kernel = "mine"' in text
    assert 'compiler = "mine 1.0"' in text
    assert "block = 128\nsmem = 0\ncooperative = True\nparameters = x, y, n, null pointer\n" in text
    assert (program / "module" / "ir" / "mine.ptx").read_text() == "PTX"
    # and compile.sh, and a verification, make the same library of it.
    shown = subprocess.run([program / "module" / "compile.sh"], capture_output=True, text=True)
    assert "unchanged" in shown.stderr
    assert "0 not reproduced" in project.run("verify", "--rebuild", ".cache").out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"mine.cubin"', '"gen.py"'), "error: the cubin is none"),
        (('"n", None', '"m"'), 'its parameter "m" is not one of args'),
        (('"n", None', 'Packed("struct P { i32 n }", ("n", 1))'), "P has 1 members, not 2"),
        (('"n", None', 'Packed("struct P { f32 n }", ("n",))'), "P.n is a f32, not n"),
        (('"n", None', 'Packed("struct P { i32 n }", ("m",))'), 'unknown name "m"'),
    ],
)
def test_a_wrong_cubin_is_one_error(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    manifest = MANIFEST.replace('"cpu"', '"sm_80"') + 'device-compiler = "none"\n'
    source = CUBIN.replace("import Cubin", "import Cubin, Packed")
    project = Project(tmp_path).write_all({"tilus.toml": manifest, "kernels/gen.py": source})
    project.write("kernels/mine.cubin", "")
    project.edit("kernels/gen.py", *change)
    completed = project.run("build", status=None)
    assert message in completed.err
    assert "Traceback" not in completed.err


def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    project = Project(tmp_path)
    generate(project, "X = 0", body="import os; os.kill(os.getpid(), 9)")
    shown = project.run("build", status=2).err
    assert shown.startswith("kernels/gen.py: error: scale: ended with SIGKILL\n")


def test_the_worker_leaves_no_bytecode(project: Project) -> None:
    assert not [*project.directory.glob("**/__pycache__")]
