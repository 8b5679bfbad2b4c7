"""Run where a project's `setup.py` is: PyTorch writes the ninja file of its extension there, and
compiles nothing.

The last line printed is the ninja file's path. `torch/__init__.py` is left out, since it loads
libraries that only a machine with a GPU has; what writes the ninja file is PyTorch's own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
import types
from typing import Any, NoReturn


def main() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    home = (spec.submodule_search_locations or [""])[0]
    _without_libraries(home)
    extension: Any = importlib.import_module("torch.utils.cpp_extension")
    extension._run_ninja_build = _written
    sys.argv = ["setup.py", "build_ext"]
    sys.path.insert(0, os.getcwd())
    runpy.run_path("setup.py", run_name="__main__")


def _written(build_directory: str, *_: object, **__: object) -> NoReturn:
    print(os.path.join(build_directory, "build.ninja"))
    raise SystemExit(0)


def _without_libraries(home: str) -> None:
    """Let the parts of PyTorch be imported that need none of its libraries."""
    torch: Any = _module("torch", home)
    _module("torch.utils", f"{home}/utils")
    version: Any = importlib.import_module("torch.version")
    version.cuda = version.cuda or "13.0"  # of its CPU build, which has the same headers
    torch.version, torch.__version__ = version, version.__version__
    torch.cuda = types.SimpleNamespace(_is_compiled=lambda: True, is_available=lambda: True)
    torch.xpu = types.SimpleNamespace(_is_compiled=lambda: False)
    torch.backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_built=lambda: False))
    torch._C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
    places: Any = _module("torch._utils_internal", "")
    places.get_file_path = lambda *parts: os.path.join(home, *parts[1:])
    lock: Any = _module("torch.utils._filelock", "")
    lock.FileLock = None


def _module(name: str, path: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module
    return module


if __name__ == "__main__":
    main()
