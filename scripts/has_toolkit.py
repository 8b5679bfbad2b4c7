"""Exit status 0 when this machine has a CUDA toolkit of its own; standard library only.

It looks where `tilusbuild doctor` looks first; the wheels are installed when it finds nothing.
"""

import glob
import os
import shutil
import sys

roots = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
candidates = [os.path.join(root, "bin", "nvcc") for root in roots if root]
candidates += glob.glob("/usr/local/cuda*/bin/nvcc")
nvcc_path = shutil.which("nvcc") or next((c for c in candidates if os.access(c, os.X_OK)), None)
sys.exit(0 if nvcc_path else 1)
