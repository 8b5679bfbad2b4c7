"""The sources that vLLM's generate_kernels.py writes, as it stands: it takes its arguments from
`sys.argv`, and writes all files at once."""

import functools
import sys
import tempfile
from pathlib import Path


@functools.cache
def write_sources() -> Path:
    """Return a directory with the sources of sm_80."""
    directory = tempfile.mkdtemp()
    sys.argv[1:] = ["8.0", directory]
    import generate_kernels

    generate_kernels.generate_new_kernels()
    return Path(directory)


def unit(a_type: str, b_type: str, c_type: str, kernels: int) -> str:
    """Return the source of one combination of types, with its first kernels."""
    name = f"sm80_kernel_{a_type}_{b_type}_{c_type}.cu"
    head, *templates = (write_sources() / name).read_text().split("template __global__")
    chosen = "".join(f"template __global__{template}" for template in templates[:kernels])
    return head + (chosen if kernels >= len(templates) else chosen + "}\n")
