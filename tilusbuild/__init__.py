"""tilusbuild: the build system for projects of tuned CUDA kernels.

The public Python interface, imported on first use, so that `import tilusbuild` costs nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
