"""Toolkits and a host compiler made of small files, and a runner that speaks for them."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.fake_runner import FakeRunner, finished
from tilusbuild.process.base import Command, CompletedCommand
from tilusbuild.toolchain import (
    DigestMemory,
    Toolchain,
    ToolchainRequest,
    discover_toolchain,
    discovery,
    trace,
)

WHEELS = ("nvidia_cuda_nvcc", "nvidia_nvvm", "nvidia_cuda_crt", "nvidia_cuda_runtime",
          "nvidia_cuda_cccl")  # fmt: skip


def write(path: Path, text: str = "", *, executable: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if executable else 0o644)
    return path


@dataclass
class World:
    """A machine: directories below `root`, programs that answer, an environment."""

    root: Path
    runner: FakeRunner = field(default_factory=FakeRunner)
    memory: DigestMemory = field(default_factory=DigestMemory)
    env: dict[str, str] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    traced: str = ""
    """The lines of the tracer, for every tool."""

    def discover(self, nvcc: str | None = None, *, needs_cuda: bool = True) -> Toolchain:
        request = ToolchainRequest(nvcc, needs_cuda, str(self.root))
        return discover_toolchain(request, self.env, self.runner, self.memory)

    def host(self, name: str = "usr") -> Path:
        """A g++ with all that it needs, first on PATH."""
        root = self.root / name
        for tool in ("g++", "gcc", "as", "ld"):
            write(root / "bin" / tool, f"{tool} 12.2.0", executable=True)
        for part in ("cc1plus", "cc1", "collect2"):
            write(root / "lib" / part, f"{part} 12.2.0", executable=True)
        for part in ("crti.o", "crtn.o", "crtbeginS.o", "crtendS.o", "libgcc.a", "libgcc_eh.a"):
            write(root / "lib" / part, part)
        write(root / "include/c++/12/vector", "// vector")
        write(root / "include/c++/12/bits/c++config.h", "// config")
        write(root / "lib/include/stddef.h", "// stddef")
        write(root / "include/features.h", "#define __GLIBC__ 2\n#define __GLIBC_MINOR__\t36\n")
        write(root / "include/stdio.h", "// stdio")
        write(root / "include/zlib.h", "// zlib")
        self.env["PATH"] = os.pathsep.join(filter(None, (f"{root}/bin", self.env.get("PATH"))))
        self.runner.on(lambda c: c.argv[0].startswith(f"{root}/bin/"), self._host_answer)
        self.runner.on(lambda c: trace.__file__ in c.argv, lambda _: finished(self.traced))
        return root

    def toolkit(self, root: Path, version: str = "13.0.88", *, wheels: bool = False) -> Path:
        """A CUDA toolkit, laid out as an installer does or as NVIDIA's wheels do."""
        release = ".".join(version.split(".")[:2])
        version_text = f"Cuda compilation tools, release {release}, V{version}"
        for tool in ("nvcc", "cudafe++", "ptxas", "fatbinary", "nvlink"):
            magic = "\x7fELF" if tool == "nvcc" else ""
            write(root / "bin" / tool, f"{magic}{tool} {version}", executable=True)
        write(root / "bin/nvcc.profile", "TOP = $(_HERE_)/..")
        write(root / "bin/crt/link.stub", "// stub")
        write(root / "nvvm/bin/cicc", version_text, executable=True)
        write(root / "nvvm/libdevice/libdevice.10.bc", "bitcode")
        for header in ("cuda_runtime.h", "crt/host_config.h", "cccl/nv/target", "cuda_fp16.h"):
            write(root / "include" / header, f"// {header} {version}")
        write(root / "include/cccl/cub/cub.cuh", "// cub")
        for library in ("libcudart_static.a", "libcudadevrt.a"):
            write(root / ("lib" if wheels else "lib64") / library, f"{library} {version}")
        if wheels:
            for name in WHEELS:
                (root.parent.parent / f"{name}-{version}.dist-info").mkdir(exist_ok=True)
        self.releases[str(root)] = version
        self.runner.on(lambda c: c.argv[0].startswith(f"{root}/"), self._cuda_answer)
        return root

    def write(self, name: str, text: str = "", *, executable: bool = False) -> Path:
        """A file below the machine's root."""
        return write(self.root / name, text, executable=executable)

    def nvrtc(self, root: Path, version: str = "13.0.88", directory: str = "lib64") -> Path:
        """NVRTC in a toolkit, with headers of its release."""
        major, minor = version.split(".")[:2]
        library = write(
            root / directory / f"libnvrtc.so.{major}",
            f"Cuda compilation tools, release {major}.{minor}, V{version}",
        )
        write(root / directory / f"libnvrtc-builtins.so.{major}.{minor}", f"builtins {version}")
        write(root / "include/cuda_runtime_api.h", f"#define CUDART_VERSION {major}0{minor}0\n")
        archs = "80 90 120" if version >= "12.8" else "70 80 90"
        result = finished(f"{major}.{minor}\n{archs}\n")
        self.runner.on(lambda c: str(library) in c.argv and "identify" in c.argv, result)
        return library

    def move(self, old: Path, new: Path) -> Path:
        """A toolkit that is moved, with all that answers for it."""
        shutil.move(old, new)
        self.releases[str(new)] = self.releases.pop(str(old))
        self.runner.on(lambda c: c.argv[0].startswith(f"{new}/"), self._cuda_answer)
        return new

    def _host_answer(self, command: Command) -> CompletedCommand:
        root = Path(command.argv[0]).parent.parent
        tool, *arguments = (Path(command.argv[0]).name, *command.argv[1:])
        option, _, name = arguments[0].partition("=")
        answers = {
            "-dumpfullversion": "12.2.0\n",
            "-dumpmachine": "x86_64-linux-gnu\n",
            "--version": f"GNU {tool} (GNU Binutils for Debian) 2.40\n",
        }
        if option in answers:
            return finished(answers[option])
        if option in ("-print-prog-name", "-print-file-name"):
            own = root / "lib" / name
            return finished(f"{own if own.exists() else name}\n")
        assert arguments[-1] == "/dev/null"
        directories = ("include/c++/12", "lib/include", "include")
        listed = "".join(f" {root / directory}\n" for directory in directories)
        head = '#include "..." search starts here:\n#include <...> search starts here:\n'
        return finished(f"{head}{listed}End of search list.\n")

    def _cuda_answer(self, command: Command) -> CompletedCommand:
        program = Path(command.argv[0])
        root = next(Path(r) for r in self.releases if program.is_relative_to(r))
        version = self.releases[str(root)]
        if "--version" in command.argv:
            release = ".".join(version.split(".")[:2])
            return finished(f"Cuda compilation tools, release {release}, V{version}\n")
        if "--help" in command.argv:
            names = ["sm_80", "sm_90", "sm_90a"]
            names += ["sm_120"] if version >= "12.8" else ["sm_70"]
            return finished("Allowed values: " + ",".join(f"'{name}'" for name in names))
        assert "--dryrun" in command.argv
        lib = root / "bin" / ".." / "lib64"
        return finished(
            f"#$ _HERE_={root}/bin\n#$ TOP={root}/bin/..\n"
            f"#$ CICC_PATH={root}/bin/../nvvm/bin\n"
            f"#$ NVVMIR_LIBRARY_DIR={root}/bin/../nvvm/libdevice\n"
            f'#$ INCLUDES="-I{root}/bin/..//include"  \n'
            f'#$ SYSTEM_INCLUDES="-isystem" "{root}/bin/..//include/cccl"  \n'
            f'#$ LIBRARIES=  "-L{lib}/stubs" "-L{lib}"\n'
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine with nothing on it."""
    monkeypatch.setattr(discovery, "_INSTALL_ROOT", str(tmp_path / "installed"))
    monkeypatch.setattr(discovery, "list_wheel_roots", list)
    return World(tmp_path)


@pytest.fixture
def machine(world: World) -> World:
    """A machine with a host compiler, and a toolkit on PATH."""
    world.host()
    root = world.toolkit(world.root / "cuda")
    world.env["PATH"] += f"{os.pathsep}{root}/bin"
    return world
