"""Packages of headers and NVIDIA's wheels, found without importing anything."""

import sys
from pathlib import Path

import pytest

from tilusbuild.toolchain import package_dir
from tilusbuild.toolchain.cuda import (
    compiler_roots,
    wheel_releases,
    wheel_roots,
)

ALL = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime",
       "nvidia-cuda-cccl")  # fmt: skip


def test_a_package_is_found_and_not_imported(tmp_path, monkeypatch) -> None:
    (tmp_path / "headers_of_mine/source/include").mkdir(parents=True)
    (tmp_path / "headers_of_mine/__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = package_dir("headers_of_mine", "source/include")
    assert found == str(tmp_path / "headers_of_mine/source/include")
    assert "headers_of_mine" not in sys.modules


@pytest.mark.parametrize(
    ("package", "path", "message"),
    [
        ("no_such_package_here", "include", "no package"),
        ("not a name", "include", "no package"),
        ("", "include", "no package"),
        ("json", "include", 'no directory "include"'),
        ("antigravity", "include", "is a module"),
    ],
)
def test_what_is_not_there_is_a_lookup_error(package: str, path: str, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        package_dir(package, path)


def test_the_newest_wheels_come_first(tmp_path: Path) -> None:
    for name in ("cu12", "cu13", "cudnn"):
        (tmp_path / name / "bin").mkdir(parents=True)
    (tmp_path / "cu12/bin/nvcc").touch()
    assert wheel_roots([str(tmp_path)]) == [str(tmp_path / "cu13"), str(tmp_path / "cu12")]
    assert compiler_roots([str(tmp_path)]) == [str(tmp_path / "cu12")]
    assert wheel_roots([]) == []


def test_releases_are_read_from_the_wheels_metadata(tmp_path: Path) -> None:
    root = tmp_path / "nvidia/cu13"
    root.mkdir(parents=True)
    (tmp_path / "nvidia_nvvm-13.5.37.dist-info").mkdir()
    (tmp_path / "numpy-2.1.0.dist-info").mkdir()
    assert wheel_releases(str(root)) == {"nvidia-nvvm": "13.5.37"}
    assert wheel_releases(str(tmp_path)) == {}
