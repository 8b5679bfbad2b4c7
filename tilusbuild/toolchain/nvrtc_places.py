"""Where NVRTC and the headers of its release are: in toolkits and in NVIDIA's wheels.

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


def homes() -> list[str]:
    """Where a CUDA toolkit may be, besides the wheels: roots that are there."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    newest = sorted(glob.glob("/usr/local/cuda-*"), key=numbers, reverse=True)
    return [root for root in (*named, "/usr/local/cuda", *newest) if root and os.path.isdir(root)]


def numbers(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", os.path.basename(path))]


def libraries_under(root: str) -> list[str]:
    """The NVRTC libraries of a toolkit or of wheels, newest first."""
    folders = ("lib64", "lib", "targets/*/lib")
    found = [
        path
        for name in folders
        for path in glob.glob(f"{glob.escape(root)}/{name}/libnvrtc.so.*")
        if re.fullmatch(r"libnvrtc\.so\.\d+", os.path.basename(path))
    ]
    return sorted(found, key=numbers, reverse=True)


def wheels() -> list[str]:
    """The roots of NVIDIA's wheels along Python's path, newest first."""
    found = [
        root
        for folder in sys.path
        if folder
        for root in glob.glob(glob.escape(folder) + "/nvidia/cu[0-9]*")
    ]
    return sorted(set(found), key=numbers, reverse=True)


def headers(folder: str, version: tuple[int, int]) -> str | None:
    """The include folder of the toolkit whose release is the library's, or None."""
    root = os.path.dirname(folder)
    return headers_among(
        (root, os.path.dirname(os.path.dirname(root)), *homes(), *wheels()), version
    )


def headers_among(roots: Iterable[str], version: tuple[int, int]) -> str | None:
    """The first include folder under `roots` that holds the headers of a release."""
    for root in roots:
        for include in (root + "/include", *glob.glob(glob.escape(root) + "/targets/*/include")):
            if header_release(include) == version:
                return os.path.realpath(include)
    return None


def header_release(include: str) -> tuple[int, int] | None:
    """The release of the CUDA headers in a folder: (13, 0), or None where there are none."""
    try:
        with open(include + "/cuda_runtime_api.h", "rb") as file:
            found = re.search(rb"#define\s+CUDART_VERSION\s+(\d+)", file.read())
    except OSError:
        return None
    return (int(found[1]) // 1000, int(found[1]) % 1000 // 10) if found else None


def find() -> str:
    """The library where no option says which: $NVRTC, the toolkits, the wheels, the loader's."""
    if os.environ.get("NVRTC"):
        return os.environ["NVRTC"]
    for root in (*homes(), *wheels()):
        for path in libraries_under(root):
            return path
    return "libnvrtc.so.13"
