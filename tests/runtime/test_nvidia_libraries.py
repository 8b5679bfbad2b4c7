"""Libraries of NVIDIA that the loader does not find: from wheels, each with those that it needs."""

import ctypes
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tilusbuild.runtime.cuda_driver import open_with_dependencies


def library(path: Path, code: str, *needs: Path) -> Path:
    """A library with a soname of its name, which is not told where `needs` are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["cc", "-shared", "-fPIC", "-xc", "-", "-xnone", f"-Wl,-soname,{path.name}"]
    subprocess.run([*words, *needs, "-o", path], input=code, text=True, check=True)
    return path


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """A library that needs one wheel's, which needs another's."""
    wheels = tmp_path / "site/nvidia"
    deep = library(wheels / "cu99/lib/libtilusdeep.so.9", "int deep(void) { return 41; }\n")
    near = library(
        wheels / "near/lib/libtilusnear.so.9",
        "int deep(void); int near_(void) { return 1 + deep(); }\n",
        deep,
    )
    code = "int near_(void); int answer(void) { return near_(); }\n"
    return library(tmp_path / "lib.so", code, near)


def test_what_it_needs_is_found_in_wheels(product: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"libtilusnear\.so\.9: cannot open"):
        open_with_dependencies(partial(ctypes.CDLL, str(product)))
    monkeypatch.setattr(sys, "path", [*sys.path, str(product.parent / "site")])
    assert open_with_dependencies(partial(ctypes.CDLL, str(product))).answer() == 42


def test_the_loaders_words_are_kept_where_it_is_nowhere(tmp_path: Path) -> None:
    gone = library(tmp_path / "libtilusgone.so.9", "int gone(void) { return 1; }\n")
    code = "int gone(void); int f(void) { return gone(); }\n"
    product = library(tmp_path / "lib.so", code, gone)
    gone.unlink()
    with pytest.raises(OSError, match=r"libtilusgone\.so\.9: cannot open shared object file"):
        open_with_dependencies(partial(ctypes.CDLL, str(product)))


def test_a_library_that_opens_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", None)  # which nothing may look at
    assert open_with_dependencies(lambda: 7) == 7
