"""What is installed in the Python environment: NVIDIA's compiler wheels and packages of headers.

No package is imported for it: importing runs its code, and may take seconds.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping

_WHEELS = {
    "nvidia_cuda_nvcc": "nvidia-cuda-nvcc",
    "nvidia_nvvm": "nvidia-nvvm",
    "nvidia_cuda_crt": "nvidia-cuda-crt",
    "nvidia_cuda_runtime": "nvidia-cuda-runtime",
    "nvidia_cuda_cccl": "nvidia-cuda-cccl",
}
"""The wheels that make a compiler: directory of metadata -> name on the index."""

_SAME_BUILD = ("nvidia-nvvm", "nvidia-cuda-crt")
_DIST_INFO = re.compile(r"(?P<name>[a-z0-9_]+)-(?P<version>\d+(?:\.\d+)*)\.dist-info")


def package_dir(package: str, path: str) -> str:
    """Return the directory `path` of an installed package. Raises `LookupError`, with what to do.

    `package` may be dotted; a namespace package's first directory that has `path` is taken.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        raise LookupError(f'no package "{package}" is installed in this Python environment')
    directories = list(spec.submodule_search_locations or ())
    if not directories:
        raise LookupError(f'"{package}" is a module, not a package with files')
    for directory in directories:
        found = os.path.realpath(os.path.join(directory, path))
        if os.path.isdir(found):
            return found
    raise LookupError(f'package "{package}" ({directories[0]}) has no directory "{path}"')


def wheel_roots(directories: Iterable[str] | None = None) -> list[str]:
    """Return the CUDA roots in NVIDIA's wheels, as `site-packages/nvidia/cu13`, newest first.

    `directories` are those of the namespace package `nvidia`; None asks this environment.
    """
    if directories is None:
        try:
            spec = importlib.util.find_spec("nvidia")
        except (ImportError, ValueError):
            spec = None
        directories = list(spec.submodule_search_locations or ()) if spec else []
    roots = [
        root
        for directory in directories
        for root in glob.glob(f"{glob.escape(directory)}/cu[0-9]*")
    ]
    return sorted(
        set(roots), key=lambda root: (-int(re.sub(r"\D", "", os.path.basename(root)) or 0), root)
    )


def compiler_roots(directories: Iterable[str] | None = None) -> list[str]:
    """Return those of `wheel_roots` that have nvcc."""
    roots = wheel_roots(directories)
    return [root for root in roots if os.path.exists(os.path.join(root, "bin", "nvcc"))]


def wheel_releases(root: str) -> Mapping[str, str]:
    """Return the versions of the compiler wheels that made a root: {"nvidia-nvvm": "13.0.88"}.

    Empty when the root is no wheels'.
    """
    site = os.path.dirname(os.path.dirname(root))
    if os.path.basename(os.path.dirname(root)) != "nvidia":
        return {}
    releases = {}
    for directory in sorted(os.listdir(site)):
        match = _DIST_INFO.fullmatch(directory)
        if match and match["name"] in _WHEELS:
            releases[_WHEELS[match["name"]]] = match["version"]
    return releases


def mixed_releases(releases: Mapping[str, str], nvcc: str) -> str | None:
    """Return what is wrong with a set of wheels for an nvcc of that version; None when they are of
    one."""
    release = _release(nvcc)
    wrong = [
        f"{name} {releases[name]}" if name in releases else f"no {name}"
        for name in _WHEELS.values()
        if name not in releases or _release(releases[name]) != release
    ]
    return f"nvcc is {nvcc}, but there is {', '.join(wrong)}" if wrong else None


def pip_command(nvcc: str) -> str:
    """Return the command that installs a set of one release around an nvcc of that version."""
    pins = [f"nvidia-cuda-nvcc=={nvcc}", *(f"{name}=={nvcc}" for name in _SAME_BUILD)]
    release = ".".join(map(str, _release(nvcc)))
    rest = [n for n in _WHEELS.values() if n not in (*_SAME_BUILD, "nvidia-cuda-nvcc")]
    pins += [f"'{name}=={release}.*'" for name in rest]
    return "pip install " + " ".join(pins)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
