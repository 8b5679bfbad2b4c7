"""`tilusbuild.torch` with a real torch: setup.py, `load` and `load_inline`."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

import tilusbuild.torch
from support.processes import run_to_end
from support.project import Project

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("setuptools") is None,
    reason="torch and setuptools are not installed (pip install torch setuptools)",
)
pytestmark = [
    pytest.mark.skipif(shutil.which("ninja") is None, reason="no ninja on PATH"),
    pytest.mark.usefixtures("with_torch"),
]

# No header of torch: with one a compile takes half a minute.
MODULE = """\
#include <Python.h>
#include "value.h"
static PyObject *get(PyObject *, PyObject *) { return PyLong_FromLong(VALUE + PLUS); }
static PyMethodDef methods[] = {{"get", get, METH_NOARGS, nullptr}, {}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&def); }
"""
SETUP = """\
import os
from setuptools import setup
from tilusbuild.torch import BuildExtension, CppExtension

class Build(BuildExtension):
    def build_extensions(self):
        with open("csrc/generated.cpp", "w") as file:
            file.write("int generated() { return 1; }\\n")
        super().build_extensions()

setup(
    name="sample",
    packages=["sample"],
    ext_modules=[
        CppExtension(
            "sample._C",
            ["csrc/module.cpp", "csrc/generated.cpp"],
            include_dirs=[os.path.abspath("csrc")],
            extra_compile_args={"cxx": ["-O1", "-DPLUS=2"]},
        )
    ],
    cmdclass={"build_ext": Build.with_options(use_ninja=False)},
)
"""


def project(directory: Path) -> Path:
    files = {"setup.py": SETUP, "csrc/module.cpp": MODULE, "csrc/value.h": "#define VALUE 40\n"}
    files |= {"csrc/generated.cpp": "", "sample/__init__.py": ""}
    return Project(directory).write_all(files).directory


def run(directory: Path, cache: Path, *words: str, **more: str) -> str:
    environment = {"TILUSBUILD_CACHE_DIR": str(cache), "MAX_JOBS": "2", **more}
    ended = run_to_end([sys.executable, *words], cwd=directory, environment=environment)
    return ended.stdout + ended.stderr


@needs_torch
def test_a_setup_py(tmp_path: Path) -> None:
    build, get = ("setup.py", "build_ext", "--inplace"), "from sample import _C; print(_C.get())"
    # given: a project of torch's whose import was changed
    first = project(tmp_path / "first")
    assert "2 sources: 2 compiled" in run(first, tmp_path / "cache", *build)
    assert run(first, tmp_path / "cache", "-c", get) == "42\n"
    # when: it is built in another directory, then: nothing is compiled
    other = project(tmp_path / "below/other")
    assert "2 sources: 0 compiled, 2 from the cache" in run(other, tmp_path / "cache", *build)
    # when: a header is edited, then: its includer is compiled, and the cache keeps to its size
    (other / "csrc/value.h").write_text("#define VALUE 50\n")
    small = {"TILUSBUILD_CACHE_MAX_SIZE": "1B"}
    assert "2 sources: 1 compiled" in run(other, tmp_path / "cache", *build, **small)
    assert list((tmp_path / "cache/programs").iterdir()) == []
    assert run(other, tmp_path / "cache", "-c", get) == "52\n"


THEIRS = """\
from setuptools import setup
{imports}
setup(
    name="theirs",
    ext_modules=[CppExtension("_C", ["csrc/module.cpp"], extra_compile_args=["-DPLUS=2"])],
    cmdclass={{"build_ext": {command}}},
)
"""
TAKEN, BYPASSED = (
    "tilusbuild: 1 sources: ",
    "tilusbuild: bypassed, and torch's own commands compile",
)
OURS = "from tilusbuild.torch import CppExtension"


@needs_torch
@pytest.mark.parametrize(
    ("imports", "command", "message"),
    [
        # as in detectron2
        (f"import torch\n{OURS}", "torch.utils.cpp_extension.BuildExtension", TAKEN),
        (
            f"from torch.utils.cpp_extension import BuildExtension as BE\n{OURS}",
            "type('Build', (BE,), {}).with_options(use_ninja=False)",
            TAKEN,
        ),
        (
            "import tilusbuild.torch as cpp\nCppExtension = cpp.CppExtension",
            "cpp.BuildExtension",
            TAKEN,
        ),
        (
            f"from setuptools.command.build_ext import build_ext\n{OURS}",
            "build_ext",
            f'{BYPASSED}: its cmdclass names another "build_ext"',
        ),
        (
            f"import torch, tilusbuild.torch.extension as e\n{OURS}\ne.run = {{}}.__getitem__",
            "torch.utils.cpp_extension.BuildExtension",
            f"{BYPASSED}: it failed as said above",
        ),
    ],
)
def test_torchs_own_class_is_taken_over_or_said_to_be_bypassed(
    tmp_path: Path, imports: str, command: str, message: str
) -> None:
    # given: a setup.py whose `build_ext` is not named as our page has it
    directory = project(tmp_path / "project")
    (directory / "setup.py").write_text(THEIRS.format(imports=imports, command=command))
    # when: it is built, then: it is built by us, or it is said that it is not
    output = run(directory, tmp_path / "cache", "setup.py", "build_ext", "--inplace")
    assert message in output
    assert ("please report it" in output) == ("e.run" in imports)
    assert [*directory.glob("_C.*.so")]


LOAD = """\
import torch
from tilusbuild.torch import load, load_inline

def value(name, **how):
    import ctypes
    return ctypes.CDLL(load(name, is_python_module=False, **how)).value()

one = dict(sources=["value.cpp"], verbose=True, build_directory="one")
print("is", value("one", **one))
text = 'extern "C" int value() { return 6; }'
load_inline("two", text, is_python_module=False, no_implicit_headers=True, build_directory="two")
try:
    load("bad", ["bad.cpp"], build_directory="bad")
except RuntimeError as error:
    print(error)
"""


@needs_torch
def test_load_and_load_inline(tmp_path: Path) -> None:
    (tmp_path / "value.cpp").write_text('extern "C" int value() { return 5; }\n')
    (tmp_path / "bad.cpp").write_text("int bad() { return it; }\n")
    for name in ("one", "two", "bad"):
        (tmp_path / name).mkdir()
    output = run(tmp_path, tmp_path / "cache", "-c", LOAD)
    assert "1 sources: 1 compiled" in output
    assert "is 5\n" in output
    assert "Error building extension 'bad': " in output
    assert f"{tmp_path}/bad.cpp:1:20: error: 'it' was not declared" in output

    # when: the directories are gone, then: nothing is compiled
    for name in ("one", "two"):
        shutil.rmtree(tmp_path / name)
        (tmp_path / name).mkdir()
    assert "1 sources: 0 compiled, 1 from the cache" in run(
        tmp_path, tmp_path / "cache", "-c", LOAD
    )
    assert (tmp_path / "two/two.so").exists()


@needs_torch
def test_the_pages_example(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/torch-extensions.md").read_text(encoding="utf-8")
    (tmp_path / "csrc").mkdir()
    for name, language in (("setup.py", "python"), ("csrc/answer.cpp", "cpp")):
        text = page.partition(f"```{language}\n")[2].partition("```")[0]
        (tmp_path / name).write_text(text)
    for compiled in (1, 0):
        output = run(tmp_path, tmp_path / "cache", "setup.py", "build_ext", "--inplace")
        assert (
            f"tilusbuild: 1 sources: {compiled} compiled, {1 - compiled} from the cache" in output
        )
    assert run(tmp_path, tmp_path, "-c", "import answer_C; print(answer_C.get())") == "42\n"


@needs_torch
def test_names_are_torchs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    assert tilusbuild.torch.CUDAExtension is cpp_extension.CUDAExtension
    with pytest.raises(AttributeError, match="no_such_name: neither"):
        _ = tilusbuild.torch.no_such_name
    # when: torch builds in another way, then: it does so, and it is said of which torch that is
    monkeypatch.delattr(cpp_extension, "_run_ninja_build")
    with pytest.raises(AssertionError, match="one source is required"):
        tilusbuild.torch.load("x", [])
    assert (
        "bypassed, and torch's own commands compile: cpp_extension of torch"
        in capsys.readouterr().err
    )


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch() -> None:
    with pytest.raises(ModuleNotFoundError, match="load needs torch, which is not"):
        _ = tilusbuild.torch.load
