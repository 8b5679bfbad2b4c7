"""A deployment has tvm-ffi and the standard library: the rest cannot even be imported here."""

import os
import subprocess
import sys

import pytest

from support.dlpack import FLOATS
from support.marks import Marks

ALONE = (
    """\
import ctypes, sys

allowed = {"tilusbuild", "tvm_ffi", "typing_extensions"}  # the last is tvm-ffi's own need

class Nothing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        builder = name.startswith("tilusbuild.") and not name.startswith("tilusbuild.runtime")
        if builder or (top not in allowed and top not in sys.stdlib_module_names):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Nothing())
import tilusbuild

kernel = tilusbuild.load("mark", where=sys.argv[1])
print(kernel.select(n=4).program, kernel.select(n=5).program)

"""
    + FLOATS
    + """\
x, y = Floats(1, 2, 3, 4, 5), Floats(0, 0, 0, 0, 0)
kernel(x, y)
print(list(y.data))
left = [name for name in sys.modules if name.partition(".")[0] == "tilusbuild"]
print(all(name == "tilusbuild" or name.startswith("tilusbuild.runtime") for name in left))
"""
)


def test_loads_selects_and_calls_without_the_builder(built: Marks) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(built.cache)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 1", "[11.0, 21.0, 31.0, 41.0, 51.0]", "True"]


def test_loading_opens_no_library_and_no_driver(built: Marks) -> None:
    code = (
        "import sys, tilusbuild\n"
        f"tilusbuild.load('mark', where={str(built.cache)!r})\n"
        "print({'tvm_ffi', 'numpy', 'pydantic', 'tree_sitter', '_hashlib'} & {*sys.modules})\n"
        "print(any('cuda' in line or 'lib.so' in line for line in open('/proc/self/maps')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "False"]


@pytest.mark.parametrize("platform", ["win32", "darwin", "freebsd14"])
def test_another_system_is_told_what_it_needs(platform: str) -> None:
    """Given a Python of another system, which has no fcntl, when it imports us, then a sentence."""
    code = f"import sys; sys.platform = {platform!r}; sys.modules['fcntl'] = None\n"
    for module in ("tilusbuild", "tilusbuild.runtime", "tilusbuild.__main__"):
        words = [sys.executable, "-c", f"{code}import {module}"]
        ended = subprocess.run(words, check=False, capture_output=True, text=True)
        last = ended.stderr.splitlines()[-1]
        assert last.startswith(f"ImportError: tilusbuild needs Linux, and this is {platform}: on")
