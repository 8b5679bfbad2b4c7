import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilusbuild.cache.cache import Cache
from tilusbuild.cache.disk import Disk
from tilusbuild.cache.entries import Entry
from tilusbuild.cache.scripts import ScriptRecord
from tilusbuild.state.hashing import sha256_bytes, sha256_text

OPTIONS = "pipeline = kernel\n"


@dataclass(frozen=True)
class Sample:
    """Makes the things that tests publish. Equal names make equal things."""

    cache: Cache

    @staticmethod
    def program_txt(name: str) -> str:
        return f"tilusbuild program 1\nscript = {name!r}\n"

    def hash(self, name: str) -> str:
        return sha256_text(self.program_txt(name) + OPTIONS)

    def program(
        self, name: str, status: str = "built", *, include: str = "", size: int = 100
    ) -> Entry:
        stage = self.cache.stage()
        module = os.path.join(stage.path, "module")
        os.mkdir(module)
        files = {
            "source.cu": "// " + name,
            "compile.sh": f'ln -s "../../../include/{include}"\n' if include else "true\n",
            "nvcc_output.txt": f"log of {name}\n",
            **({"lib.so": "x" * size} if status == "built" else {}),
        }
        for file, text in files.items():
            Path(module, file).write_text(text)
        meta = {"status": status} | ({} if status == "built" else {"reason": f"{name} is wrong"})
        return stage.publish_program(self.hash(name), self.program_txt(name), OPTIONS, meta)

    def include(self, **headers: str) -> str:
        files = {f"project/{name}.h": text.encode() for name, text in headers.items()}
        manifest = "".join(f"{sha256_bytes(d)}  {n}\n" for n, d in sorted(files.items())).encode()
        digest = sha256_bytes(manifest)
        self.cache.publish_include(digest, {**files, "MANIFEST": manifest})
        return digest

    def record(self, names: Sequence[str], folder: str = "matmul") -> ScriptRecord:
        lines = [f"{index} {self.hash(name)}\n" for index, name in enumerate(names)]
        text = 'tilusbuild script 1\nscript = "Matmul"\ntarget = "h100"\n\n[programs]\n'
        return ScriptRecord(
            folder,
            text + "".join(lines),
            columns=("index", "name"),
            rows=list(enumerate(names)),
        )


def snapshot(root: str) -> dict[str, tuple[int, int, int]]:
    """Everything below a folder, such that any write shows."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (".", *folders, *files):
            path = os.path.join(folder, name)
            stat = os.lstat(path)
            found[path] = (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    return found


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory where that can be: a cache syncs a lot, and a busy disk is slow."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(prefix="tilusbuild-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(memory: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(str(tmp_path / "cache"))


@pytest.fixture
def sample(cache: Cache) -> Sample:
    return Sample(cache)


@pytest.fixture(scope="session")
def sample_at() -> Callable[[str, Disk], Sample]:
    """Samples for a cache at a path, written through a disk."""
    return lambda root, disk: Sample(Cache(root, disk))


@pytest.fixture
def look() -> Callable[[str], dict[str, tuple[int, int, int]]]:
    return snapshot
