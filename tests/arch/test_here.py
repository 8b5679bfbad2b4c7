"""The GPUs of a machine, asked of a library that stands for NVIDIA's."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import run_to_end

NVML = """\
static const int gpus[][2] = {%s};
int nvmlInit_v2(void) { return %d; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = sizeof gpus / sizeof *gpus; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  *handle = (void *)&gpus[index];
  return gpus[index][0] < 0;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  *major = ((int *)handle)[0], *minor = ((int *)handle)[1];
  return 0;
}
"""


@pytest.mark.parametrize(
    ("gpus", "status", "archs"),
    [
        ("{9, 0}, {8, 0}, {9, 0}", 0, "('sm_80', 'sm_90a')"),
        ("{8, 6}", 0, "('sm_86',)"),
        ("{-1, 0}, {10, 0}", 0, "('sm_100a',)"),
        ("{3, 5}, {99, 9}", 0, "('sm_35', 'sm_999')"),
        ("{9, 0}", 9, "()"),
    ],
)
def test_the_architectures_of_a_machine(gpus: str, status: int, archs: str, tmp_path: Path) -> None:
    (tmp_path / "nvml.c").write_text(NVML % (gpus, status))
    library = tmp_path / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nvml.c")]
    subprocess.run(command, check=True)
    program = "from tilusbuild.arch import names; print(names.find_local_archs())"
    environment = {"LD_LIBRARY_PATH": str(tmp_path)}
    result = run_to_end([sys.executable, "-c", program], environment=environment)
    assert result.stdout.strip() == archs
