"""Real binaries to read: small ones kept beside the tests, and what this machine's nvcc makes.

`data/` was made once: `cuda12_*.cubin` by ptxas 12.9 from a kernel `k` of PTX (512 bytes of shared
memory, one barrier), the others by nvcc 13.0 from the kernel `sample` (512 bytes, one barrier,
`__launch_bounds__(128)`): `packed.fatbin` with `-compress-mode size` for sm_80 (also PTX) and
sm_90a, `plain.fatbin` uncompressed for sm_80 (also PTX) and sm_120f. `library.so` is an x86-64
library that exports `launch` and holds `cuda12_sm_90a.cubin` in its `.rodata`.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.processes import run_to_end

DATA = Path(__file__).with_name("data")

Nvcc = Callable[..., str]


@pytest.fixture
def sample() -> Callable[[str], bytes]:
    """The bytes of one of the kept binaries."""
    return lambda name: (DATA / name).read_bytes()


@pytest.fixture
def nvcc(tmp_path: Path) -> Nvcc:
    """Runs nvcc in a directory of its own and gives its log."""
    path = shutil.which("nvcc")
    if path is None:
        pytest.skip("needs nvcc on PATH")

    def run(*arguments: str) -> str:
        done = run_to_end([path, *arguments], cwd=tmp_path)
        return done.stdout + done.stderr

    return run
