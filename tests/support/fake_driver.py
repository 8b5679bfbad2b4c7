"""A driver that writes down the calls it gets, and calls of a library in a process that has it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.processes import run_to_end

HERE = Path(__file__).parents[1] / "compile"


@dataclass
class FakeDriver:
    """Runs calls in a process whose driver is the fake one."""

    directory: Path
    journal: Path

    def call(
        self, library: Path, *calls: dict[str, Any], environment: Any = (), **asked: Any
    ) -> SimpleNamespace:
        self.journal.unlink(missing_ok=True)
        answered = run_to_end(
            [sys.executable, str(HERE / "launcher_process.py")],
            input=json.dumps({"library": str(library), "calls": calls, **asked}),
            environment={
                **self.environment,
                "FAKE_CUDA_PARAMETERS": "f32 ptr ptr i32",
                **dict(environment),
            },
        )
        return SimpleNamespace(**json.loads(answered.stdout))

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that has the driver."""
        return {"LD_LIBRARY_PATH": str(self.directory), "FAKE_CUDA_JOURNAL": str(self.journal)}

    def lines(self, start: str = "") -> list[str]:
        """The journal's lines that start so."""
        text = self.journal.read_text(errors="replace") if self.journal.exists() else ""
        return [line for line in text.splitlines() if line.startswith(start)]


def build_driver(directory: Path, *flags: str) -> Path:
    """Return the new directory of a driver that is built with these flags, or with more sources."""
    directory.mkdir(parents=True)
    argv = ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", *flags]
    library = str(directory / "libcuda.so.1")
    subprocess.run([*argv, str(HERE / "fake_cuda.c"), "-o", library], check=True)
    return directory
