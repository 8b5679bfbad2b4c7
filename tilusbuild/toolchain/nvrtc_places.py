"""Find NVRTC and the headers of its release in toolkits and in NVIDIA's wheels.

Used by `nvrtc_command.py`, beside which a copy of it lies in the tree, and by discovery; standard
library only, for Python 3.8 or later. Directories are only looked at, nothing is loaded.
"""

from __future__ import annotations

import glob
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def list_toolkit_roots() -> list[str]:
    """Return the existing roots of CUDA toolkits outside of wheels, the preferred first."""
    from_environment = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    newest = sorted(glob.glob("/usr/local/cuda-*"), key=extract_numbers, reverse=True)
    return [
        root
        for root in (*from_environment, "/usr/local/cuda", *newest)
        if root and os.path.isdir(root)
    ]


def extract_numbers(path: str) -> list[int]:
    """Return the numbers in the last part of a path: [13, 0] of `/usr/local/cuda-13.0`."""
    return [int(number) for number in re.findall(r"\d+", os.path.basename(path))]


def list_libraries(root: str) -> list[str]:
    """Return the paths of the NVRTC libraries of a toolkit or of wheels, newest first."""
    folders = ("lib64", "lib", "targets/*/lib")  # of installers, wheels and conda
    paths = [
        path
        for name in folders
        for path in glob.glob(f"{glob.escape(root)}/{name}/libnvrtc.so.*")
        if re.fullmatch(r"libnvrtc\.so\.\d+", os.path.basename(path))
    ]
    return sorted(paths, key=extract_numbers, reverse=True)


def list_wheel_roots() -> list[str]:
    """Return the roots of NVIDIA's wheels along Python's path, newest first."""
    roots = [
        root
        for folder in sys.path
        if folder
        for root in glob.glob(glob.escape(folder) + "/nvidia/cu[0-9]*")
    ]
    return sorted(set(roots), key=extract_numbers, reverse=True)


def find_include_dir(folder: str, version: tuple[int, int]) -> str | None:
    """Return the include directory with the headers of a release: of the toolkit around `folder`,
    the library's directory, else of another toolkit or of a wheel; None without one."""
    # The library is in the toolkit's lib64, or in its targets/x86_64-linux/lib.
    root_of_lib = os.path.dirname(folder)
    root_of_target = os.path.dirname(os.path.dirname(root_of_lib))
    roots = (root_of_lib, root_of_target, *list_toolkit_roots(), *list_wheel_roots())
    return find_include_dir_among(roots, version)


def find_include_dir_among(roots: Iterable[str], version: tuple[int, int]) -> str | None:
    """Return the first include directory under `roots` with the headers of a release, or None."""
    for root in roots:
        for include in (root + "/include", *glob.glob(glob.escape(root) + "/targets/*/include")):
            if read_header_release(include) == version:
                return os.path.realpath(include)
    return None


def read_header_release(include: str) -> tuple[int, int] | None:
    """Return the release of the CUDA headers in a directory, (13, 0); None without headers."""
    try:
        with open(include + "/cuda_runtime_api.h", "rb") as file:
            match = re.search(rb"#define\s+CUDART_VERSION\s+(\d+)", file.read())
    except OSError:
        return None
    if match is None:
        return None
    number = int(match[1])  # 13000 for CUDA 13.0
    return number // 1000, number % 1000 // 10


def find_library() -> str:
    """Return the library to use without an option: of $NVRTC, toolkits, wheels, or the loader's."""
    if os.environ.get("NVRTC"):
        return os.environ["NVRTC"]
    for root in (*list_toolkit_roots(), *list_wheel_roots()):
        for path in list_libraries(root):
            return path
    # The loader may find it, in a directory of ldconfig or of LD_LIBRARY_PATH.
    return "libnvrtc.so.13"
