"""Runs first in each Python that a test starts: torch is as if it were not installed.

tvm_ffi imports torch, which takes two seconds of each process that loads a kernel. Tests that mean
torch use the fixture `with_torch`.
"""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]
