"""Optional rooms: the core names none of them, and works without each."""

import os
import re
import shutil
from pathlib import Path

import pytest

import tilusbuild
from support.processes import run_python
from tilusbuild.rooms import list_rooms

PACKAGE = Path(tilusbuild.__file__).parent
TESTS = Path(__file__).parent
CORE = [
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in list_rooms()
]
WALK = """\
import os, pkgutil, importlib, sys
import tilusbuild
from support.events_schema import schema
from tilusbuild.cli.main import main
from tilusbuild.cli.parser import list_verbs

gone = sys.argv[1]
assert not os.path.exists(os.path.join(tilusbuild.__path__[0], gone))
for found in pkgutil.walk_packages(tilusbuild.__path__, "tilusbuild."):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as missing:
            # PyTorch, for a module that only the room calls; or the room, for one that needs it.
            assert missing.name == "torch" or missing.name.startswith(f"tilusbuild.{gone}"), missing
assert schema()["$defs"]

def run(*words, status=0):
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == status, words

for verb in list_verbs():
    run(verb, "--help")
for action in ("ls", "gc", "stats", "verify"):
    run("cache", action, "--help")
run("init", "p")
os.chdir("p")
os.environ |= {"TILUSBUILD_REMOTE_CACHE": "file://" + os.path.abspath("../remote")}
os.environ |= {"TILUSBUILD_REMOTE_WRITE": "1"}
run("build", "-t", "cpu", "--level", "0")
assert os.listdir("../remote")
run("--cache-dir", "../third", "cache", "pull", "-t", "cpu")
run("cache", "ls")
run("cache", "stats", ".", status=2)
if gone == "tune":
    assert not {"check", "run", "tune"} & {*list_verbs()}
    run("package", "--with-tests", status=2)
else:
    run("run", "axpby", "-t", "cpu", "--size", "n=64")
if gone == "overview":
    run("report", status=2)
if gone == "check":
    run("check", "p", status=2)
run("package", "--as-built", "-o", "../dist")
if gone in ("oci", "kernels", "embed"):
    form = "wheel" if gone == "embed" else gone
    run("package", "--as-built", "--format", form, status=2)
if gone == "rebuild":
    run("verify", "../dist/" + os.listdir("../dist")[0], "--rebuild", status=2)
if gone == "signing":
    run("verify", "../dist/" + os.listdir("../dist")[0], "--key", "pem", status=2)
if gone == "embed":
    run("dispatch", "build", "axpby", "-t", "cpu", status=2)
if gone == "jit":
    assert not hasattr(tilusbuild, "KernelCache")
(package,) = os.listdir("../dist")
run("--cache-dir", "../other", "install", "../dist/" + package)
run("verify", "../dist/" + package)
status = 2 if gone == "preflight" else 0
run("preflight", "../dist/" + package, "--device", "cpu", status=status)
"""


@pytest.mark.parametrize("room", list_rooms())
def test_the_core_works_without_a_room(room: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "tilusbuild", ignore=shutil.ignore_patterns(room))
    if not (tmp_path / "tilusbuild" / "_templates").exists():
        shutil.copytree(PACKAGE.parent / "templates", tmp_path / "tilusbuild" / "_templates")
    work = tmp_path / "work"
    work.mkdir()
    path = f"{tmp_path}:{TESTS}:{os.environ['PYTHONPATH']}"
    environment = {"PYTHONPATH": path, "HOME": str(work)}
    run_python(WALK, room, cwd=work, environment=environment, timeout=120)


@pytest.mark.parametrize("room", list_rooms())
def test_no_module_of_the_core_names_a_room(room: str) -> None:
    word = f"tilusbuild.{room}"
    assert [str(path) for path in CORE if word in _run_text(path)] == []


def _run_text(path: Path) -> str:
    """Return a module's text without what only type checkers read."""
    return re.sub(r"(?m)^if TYPE_CHECKING:.*\n(?:[ \t]+.*\n|\n)*", "", path.read_text())
