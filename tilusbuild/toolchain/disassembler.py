"""Where nvdisasm is: what shows SASS. No compile needs it, so it is asked for only by dumps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from tilusbuild.toolchain.cuda import Cuda
from tilusbuild.toolchain.packages import wheel_roots

NAME = "nvdisasm"


def disassembler(cuda: Cuda | None) -> str | None:
    """Its path: beside nvcc, on PATH, or in NVIDIA's wheels; None where there is none. It reads the
    cubins of its own release and of older ones."""
    return next((path for path in _places(cuda) if os.access(path, os.X_OK)), None)


def _places(cuda: Cuda | None) -> Iterator[str]:
    if cuda is not None:
        yield os.path.join(os.path.dirname(cuda.nvcc), NAME)
    if (found := shutil.which(NAME)) is not None:
        yield found
    for root in wheel_roots():
        yield os.path.join(root, "bin", NAME)
