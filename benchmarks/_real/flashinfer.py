"""FlashInfer: modules of decode and prefill, as its JIT would build them at the first call.

Its own build is the ninja file that its JIT writes for a module. Ours is the same module from the
same templates, as one unit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from _bench import WorkNotDoneError, ninja

from _real import jit_modules, world
from _real.project import Project

REQUIREMENTS = ("flashinfer-python==0.7.2.post1",)
_NEEDS = ("apache-tvm-ffi>=0.1.12", "numpy", "requests", "tqdm", "einops", "click", "tabulate")


def prepare(module: str) -> Project:
    """Lay one module out: `single_decode`, `batch_decode` or `single_prefill`."""
    world.install(*REQUIREMENTS, alone=True)
    world.install(*_NEEDS)
    data = world.site("flashinfer") / "data"
    tree = world.WORK / "flashinfer" / module
    world.port("flashinfer", tree)
    _only(tree / "tilus.toml", module)
    (tree / "csrc").mkdir(exist_ok=True)
    for file in data.glob(f"csrc/{module}*"):
        shutil.copyfile(file, tree / "csrc" / file.name)
    where, count = _jit(module)
    head = "prefill" if "prefill" in module else "decode"
    return Project(
        name=f"FlashInfer, {module} (f16, head 128)",
        tree=tree,
        theirs=[(where, [ninja(), "-j2"])],
        made=lambda: [*where.glob("*.*o")],
        theirs_again=(where, [ninja(), "-j2"]),
        theirs_code=lambda: [*where.glob("*.cuda.o")],
        theirs_compiles=count,
        products=(lambda: [tree / f"build/{module}.so"], lambda: [where / f"{where.name}.so"]),
        header=data / f"include/flashinfer/attention/{head}.cuh",
    )


def _only(manifest: Path, module: str) -> None:
    """Leave one module's tables in a port."""
    parts = re.split(r"(?m)^(?=\[library\.)", manifest.read_text())
    kept = [parts[0], *(part for part in parts[1:] if part.startswith(f"[library.{module}]"))]
    manifest.write_text("".join(kept))


def _jit(module: str) -> tuple[Path, int]:
    """Return where the JIT's ninja file of a module is, and how many sources it compiles."""
    environment = {
        **os.environ,
        **world.environment(),
        "FLASHINFER_CUDA_ARCH_LIST": "8.0",
        "FLASHINFER_WORKSPACE_BASE": str(world.WORK / "flashinfer"),
        "CUDA_HOME": world.toolkit(),
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{world.driver_stub()}",
    }
    result = subprocess.run(
        [world.python(), jit_modules.__file__],
        env=environment, check=False, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if result.returncode:
        raise WorkNotDoneError("FlashInfer's JIT imports PyTorch, whose CPU build (TORCH) will do")
    for line in result.stdout.splitlines():
        if line.startswith("["):
            name, path, sources = json.loads(line)
            if name == module:
                return Path(path).parent, len(sources)
    raise LookupError(module)
