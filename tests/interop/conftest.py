"""Caches as Tilus 0.2, TileLang 0.1, Hidet 0.6 and Triton 3 leave them, around one real library.

The layouts, names and texts are those that the systems wrote for small kernels; the library is
`tests/binary/data/library.so`, which holds a cubin for sm_90a, and the cubin by itself.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tilusbuild.interop.caches import read_foreign_cache
from tilusbuild.interop.caches.directory import ForeignCache

DATA = Path(__file__).parents[1] / "binary" / "data"
LIBRARY = (DATA / "library.so").read_bytes()
CUBIN = (DATA / "cuda12_sm_90a.cubin").read_bytes()


def write(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tilus(root: Path, *, arch: str = "90a") -> Path:
    options = f"{{'debug_block': None, 'target': Target(kind='nvgpu', arch='sm{arch}', x=1)}}"
    digest = sha256((options + "program").encode())[:12]
    home, script = f"programs/{digest}", "scripts/add/1-807b8705"
    write(
        root,
        {
            f"{home}/options.txt": options,
            f"{home}/program.txt": "program",
            f"{home}/.lock": "",
            f"{home}/module/lib.so": LIBRARY,
            f"{home}/module/source.cu": "",
            f"{home}/module/nvcc_output.txt": "elapsed time: 1.000 seconds",
            f"{home}/module/func_types.pickle": b"cos\nsystem\n(S'false'\ntR.",
            f"{script}/build_options.txt": "BuildOptions(debug_block=None)",
            f"{script}/dispatch_table.pickle": b"cos\nsystem\n(S'false'\ntR.",
        },
    )
    (root / script / "programs").mkdir()
    (root / script / "programs" / "0").symlink_to(f"../../../../{home}")
    return root


def tilelang(root: Path) -> Path:
    source = b'extern "C" __global__ void __launch_bounds__(128, 1) add_kernel(float* A) {}'
    files = {"device_kernel.cu": source, "executable.so": LIBRARY, "params.json": b"{}"}
    facts = {name: {"size": len(data), "sha256": sha256(data)} for name, data in files.items()}
    home, binary = "0.1.15/linux-x86_64/kernels/" + "c3" * 32, "0.1.15/cuda-binaries/" + "bc" * 32
    manifest = json.dumps({"version": 1, "files": facts})
    write(root, {f"{home}/{name}": data for name, data in files.items()})
    metadata = {"format": "tilelang.cuda-binary-cache.v1", "size": len(CUBIN)}
    metadata["sha256"] = sha256(CUBIN)
    return write(
        root,
        {
            f"{home}/manifest.json": manifest,
            f"{binary}/kernel.cubin": CUBIN,
            f"{binary}/metadata.json": json.dumps(metadata),
        },
    )


def hidet(root: Path, *, arch: str = "sm_90a") -> Path:
    task = "Task(\n  name: relu\n)"
    operator: dict[str, bytes | str] = {
        "task.txt": task,
        "version.txt": "0.6.1",
        "meta.json": json.dumps({"name": "relu", "target": "cuda", "hidet_version": "0.6.1"}),
        "compile.sh": f"nvcc -gencode arch=compute_90a,code={arch} --shared source.cu -o lib.so",
        "func_types.pickle": b"cos\nsystem\n(S'false'\ntR.",
        "lib.so": LIBRARY,
        ".lock": "",
    }
    home = f"ops/cuda_space_2/relu/{sha256(task.encode())[:16]}"
    write(root, {f"{home}/{name}": data for name, data in operator.items()})
    write(root, {f"graphs/43f704147ed6331f/kernels/0/{n}": data for n, data in operator.items()})
    return write(root, {"graphs/43f704147ed6331f/meta.json": "{}"})


def triton(root: Path) -> Path:
    home = "75TMBV6NOF4UOSVLR5UL5G4I43VALTUOXKITFVRC5HIS4WZHLYCA"
    meta = {"target": {"backend": "cuda", "arch": 90}, "triton_version": "3.9.0"}
    write(root, {f"{home}/add.cubin": CUBIN, f"{home}/add.json": json.dumps(meta)})
    paths = {name: str(root / home / name) for name in ("add.cubin", "add.json")}
    return write(root, {f"{home}/__grp__add.json": json.dumps({"child_paths": paths})})


MAKERS = {"tilus": tilus, "tilelang": tilelang, "hidet": hidet, "triton": triton}
Made = Callable[..., Path]


@pytest.fixture(scope="session")
def make_at() -> Callable[[str, Path], Path]:
    """make_at("tilus", path) writes a cache of that system in a new directory, and returns it."""
    return lambda system, path: MAKERS[system](path)


@pytest.fixture
def make(tmp_path: Path) -> Made:
    """make("tilus", …) writes a cache of that system and gives its directory."""
    return lambda system, **how: MAKERS[system](tmp_path / system, **how)


@pytest.fixture
def problems() -> Callable[[Path], list[str]]:
    """What is wrong with a cache, in one line each."""

    def list_problems(root: Path) -> list[str]:
        cache: ForeignCache = read_foreign_cache(str(root))
        return [str(problem) for problem in cache.broken]

    return list_problems


_PEERS = Path(os.environ.get("TILUSBUILD_PEERS", Path(__file__).parents[2] / ".peers"))


@pytest.fixture
def peer(tmp_path: Path, with_torch: None) -> Callable[..., subprocess.CompletedProcess[str]]:
    """peer("tilelang", code, …) runs Python code with the real system, in an empty directory."""

    def run(system: str, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        python = _PEERS / system / "bin" / "python"
        if not python.exists():
            pytest.skip(f"needs {system}: `make peers` installs it")
        return subprocess.run(
            [python, "-c", code],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )

    return run
