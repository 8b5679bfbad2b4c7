"""A command that a signal stops ends as at Ctrl-C: what it has, it removes and lets go of.

It is stopped in the middle: where a function of it would run, or a compiler, that says so and
waits.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import run_python, wait_until
from support.project import Project

_DRIVER = """\
import importlib, sys, time
from tilusbuild.cli.main import main

def wait(*given, **__):
    if hasattr(given[0], "runner"):
        import os
        from tilusbuild.process.base import Command
        words = ("/bin/sh", "-c", "touch here && exec sleep 60")
        return given[0].runner.run(Command(words, os.getcwd(), dict(os.environ)))
    open("here", "w").close()
    time.sleep(60)

if sys.argv[1]:
    module, name = sys.argv[1].split(":")
    owner = importlib.import_module(module)
    *path, last = name.split(".")
    for each in path:
        owner = getattr(owner, each)
    setattr(owner, last, wait)
sys.exit(main(sys.argv[2:]))
"""
MANIFEST = """\
edition = 1
project = { name = "p", version = "1" }
target.cpu = { arch = "cpu" }
[script.copy]
template = "copy.cu.j2"
kernel = "k"
args = { x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }
"""
TEMPLATE = 'extern "C" void k(const float *x, float *y, long long n) { y[0] = x[n - 1]; }\n'
VERBS = {
    "verify": ("tilusbuild.package.check:PackageChecker.check_scripts", "verify", "packed"),
    "rebuild": ("tilusbuild.compile.program:Compile.execute_step", "verify", "--rebuild", ".cache"),
    "diff": ("tilusbuild.package.read:PackageChecker.check_scripts", "diff", "packed", "packed"),
    "doctor": ("tilusbuild.process.local:LocalRunner.run", "doctor"),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project, and its package `packed`."""
    files = {"tilus.toml": MANIFEST, "copy.cu.j2": TEMPLATE, ".git": ""}
    project = Project.built(tmp_path_factory.mktemp("built"), files)
    project.run("package", "-o", "made", "--format", "dir")
    (package,) = (project.directory / "made").iterdir()
    package.rename(project.directory / "packed")
    return project.directory


@pytest.fixture
def directory(built: Path, tmp_path: Path) -> Path:
    """A copy of it, with an empty TMPDIR."""
    shutil.copytree(built, tmp_path / "project", symlinks=True)
    (tmp_path / "project/tmp").mkdir()
    return tmp_path / "project"


def started(directory: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command, and return when it waits in the middle."""
    marker = directory / "here"
    marker.unlink(missing_ok=True)
    environment = {**os.environ, "TMPDIR": str(directory / "tmp")}
    command = [sys.executable, "-c", _DRIVER, *words]
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: marker.exists() or process.poll() is not None)
    return process


_SWALLOWED = """\
import ctypes, os, sys, time
from tilusbuild.cli import main, parser

children = {}
for each in sys.argv[1:]:
    way, _, number = each.partition(" ")
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(writing, 1), os.dup2(writing, 2)
        break
    os.close(writing)
    children[each] = pid, reading
else:
    for each, (pid, reading) in children.items():
        said = open(reading).read()
        print(each, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said, end="")
    sys.exit()

def stop(*_):
    os.kill(os.getpid(), int(number))
    for _ in range(1000):  # where the handler runs
        pass
    return 0

class Dying:
    def __del__(self): stop()

def finalizer(): Dying()

def callback():
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(stop)
    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(), 2, 4, compare)

def printed():
    try:
        stop()
    except BaseException as error:
        sys.last_value = error  # as PyErr_Print does
        sys.excepthook(type(error), error, error.__traceback__)

def handled():
    try:
        stop()
    except:
        pass

def handled_often():
    for _ in range(3):
        try:
            stop() if not _ else time.sleep(5)
        except:
            pass

def became_an_answer():
    global kept
    try:
        stop()
    except BaseException as error:
        kept = error

class Stopped:
    def __hash__(self): return stop()

def became_an_error_of_a_library():
    from pydantic_core import SchemaValidator
    SchemaValidator({"type": "literal", "expected": [Stopped()]})

def in_a_loop_of_messages():
    from tilusbuild.process.stopping import catch_signals
    handled()
    messages = []
    with catch_signals(messages.append):
        while not messages:
            time.sleep(0.01)

def between_a_library_and_itself():
    try:
        stop()
    except BaseException:
        os._exit(99)  # msgspec would crash

class Command:
    verb = "verify"
    class arguments:
        json, color, directory, quiet, progress = False, "auto", None, False, "none"
    def run():
        globals()[way]()
        if way not in ("became_an_answer", "in_a_loop_of_messages"):
            time.sleep(60)
        return 0

parser.parse_command = lambda *_, **__: Command
sys.exit(main.main(["verify"]))
"""


WAYS = (
    *("finalizer", "callback", "printed", "handled", "handled_often", "became_an_answer"),
    *("became_an_error_of_a_library", "in_a_loop_of_messages", "between_a_library_and_itself"),
)


def test_a_stop_that_something_swallows() -> None:
    """Each in a fork of one process."""
    sent = [f"{way} 2" for way in WAYS] + [f"{way} 15" for way in ("finalizer", "handled_often")]
    sent += ["in_a_loop_of_messages 1"]
    ended = run_python(_SWALLOWED, *sent, timeout=60)
    assert ended.stdout.splitlines() == [
        f"{case} {128 + int(case.split()[1])} interrupted" for case in sent
    ]


@pytest.mark.parametrize(
    ("verb", "number"),
    [
        *((verb, signal.SIGTERM) for verb in VERBS),
        ("verify", signal.SIGHUP),
        ("rebuild", signal.SIGINT),
    ],
)
def test_what_a_signal_stops_leaves_nothing(directory: Path, verb: str, number: int) -> None:
    with started(directory, *VERBS[verb]) as process:
        assert os.listdir(directory / "tmp")
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (128 + number, "interrupted\n")
    assert os.listdir(directory / "tmp") == []


def test_what_a_kill_leaves_the_next_one_removes(directory: Path) -> None:
    names = []
    for _ in range(2):
        with started(directory, *VERBS["verify"]) as process:
            names += os.listdir(directory / "tmp")
            process.kill()
    assert len(set(names)) == len(names) == 2
    environment = {**os.environ, "TMPDIR": str(directory / "tmp")}
    command = [sys.executable, "-m", "tilusbuild", "verify", "packed"]
    subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True)
    assert os.listdir(directory / "tmp") == []


def test_what_a_parent_ignores_stays_ignored(directory: Path) -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = started(directory, *VERBS["verify"])
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM


BESIDE = {
    "package": (
        "tilusbuild.package.pack:_move_into_place",
        ("package", "-o", "out/made", "--format", "dir"),
    ),
    "export": (
        "tilusbuild.interop.export:_write_items",
        ("cache", "export", "--layout", "tilus", "out/made"),
    ),
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("verb", BESIDE)
def test_what_is_made_beside_its_place(directory: Path, verb: str, number: int) -> None:
    hook, words = BESIDE[verb]
    with started(directory, hook, *words) as process:
        assert private(directory)
        process.send_signal(number)
        process.communicate(timeout=20)
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
    else:  # the next one removes what is left
        assert private(directory)
        Project(directory).run(*words)
    assert private(directory) == []


_INTERRUPTED_IMPORT = """\
import os, runpy, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == "tilusbuild.noop":
            os.kill(os.getpid(), 2)

sys.meta_path.insert(0, Interrupts())
runpy.run_module("tilusbuild", run_name="__main__")
"""


def test_an_interrupt_while_the_command_is_imported() -> None:
    ran = run_python(_INTERRUPTED_IMPORT, status=None)
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


def private(directory: Path) -> list[Path]:
    """The hidden directories in which a package or an export is made."""
    return [path for path in (directory / "out").rglob(".*") if path.is_dir()]


def test_a_cache_is_let_go_of(directory: Path) -> None:
    with started(directory, "tilusbuild.cache.verify:_check_scripts", "cache", "verify") as process:
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (128 + signal.SIGTERM, "interrupted\n")
    Project(directory).run("cache", "clear")
