"""Settings for builds and loads inside a program, under the names that users of Tilus know.

The runtime keeps them, because it looks for kernels in `cache_dir`.
"""

from __future__ import annotations

from tilusbuild.runtime.option import (
    bench_repeat,
    bench_warmup,
    cache_dir,
    chosen,
    context,
    debug,
    parallel_workers,
)
from tilusbuild.runtime.search_roots import get_cache_dir

__all__ = [
    "bench_repeat",
    "bench_warmup",
    "cache_dir",
    "chosen",
    "context",
    "debug",
    "get_cache_dir",
    "parallel_workers",
]
