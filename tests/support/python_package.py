"""The Python package of docs/wheels-with-kernels.md, built as `pip` and `uv` do: by PEP 517."""

import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.paths import ROOT
from support.processes import run_python, run_to_end

PAGE = (ROOT / "docs/wheels-with-kernels.md").read_text()
HATCH, SETUPTOOLS, MANIFEST = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(TEMPLATE,) = re.findall(r"```cpp\n(.*?)```", PAGE, re.DOTALL)
(MODULE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BACKENDS = {
    # Without this, an editable install needs another package of hatch's.
    "hatchling.build": HATCH + "\n[tool.hatch.build.targets.wheel]\ndev-mode-dirs = ['.']\n",
    "setuptools.build_meta": SETUPTOOLS,
}
CALL = """\
import numpy as np, mypackage
print(mypackage.scale(2.0, np.arange(3, dtype="float32")).tolist())
"""


@dataclass
class PythonProject:
    """A project of one package, outside of what is temporary."""

    directory: Path
    backend: str

    @property
    def around(self) -> Path:
        return self.directory.parent

    @property
    def environment(self) -> dict[str, str]:
        around = self.around
        return {"HOME": str(around / "home"), "XDG_CACHE_HOME": "", "TMPDIR": str(around / "tmp")}

    def declare(self, more: str) -> None:
        """Write its pyproject.toml, with more in the table of tilusbuild."""
        (self.directory / "pyproject.toml").write_text(
            re.sub(r"(\[tool.*tilusbuild\]\n)", rf"\1{more}", BACKENDS[self.backend])
        )

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file."""
        path = self.directory / name
        path.write_text(path.read_text().replace(old, new))

    def call(
        self, hook: str, *, directory: Path | None = None, status: int = 0
    ) -> tuple[Path, str]:
        """What a hook of PEP 517 made, and what it said on stderr."""
        out = self.around / "out"
        code = f"import {self.backend} as b, sys\nprint(b.{hook}(sys.argv[1]))"
        ran = run_python(
            code, out, cwd=directory or self.directory, environment=self.environment, status=status
        )
        return out / ran.stdout.splitlines()[-1] if not status else out, ran.stderr

    def unpacked(self, distribution: Path) -> Path:
        """What is in a wheel, or in an sdist in a temporary directory."""
        into = self.around / "tmp" / distribution.name
        if distribution.suffix == ".whl":
            zipfile.ZipFile(distribution).extractall(into)
            return into
        with tarfile.open(distribution) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4 on
            archive.extractall(into)
        return into / distribution.name.removesuffix(".tar.gz")

    def python(self, code: str, path: Path, *, cwd: Path, **environment: str) -> list[str]:
        """What Python code prints that finds the package in `path`."""
        python_path = f"{path}{os.pathsep}{os.environ['PYTHONPATH']}"
        env = {**self.environment, "PYTHONPATH": python_path, **environment}
        return run_python(code, cwd=cwd, environment=env).stdout.splitlines()

    def build(self) -> None:
        """`tilusbuild build` in the project, as a developer runs it."""
        words = [sys.executable, "-m", "tilusbuild", "build", "-q"]
        run_to_end(words, cwd=self.directory, environment=self.environment)


@pytest.fixture
def python_project(tmp_path: Path) -> Callable[[str], PythonProject]:
    """python_project(backend) writes a project in a git repository."""

    def make(backend: str) -> PythonProject:
        if backend.startswith("setuptools"):
            pytest.importorskip("setuptools", "70.1", reason="needs setuptools 70.1 or later")
        project = PythonProject(tmp_path / "project", backend)
        for name in ("project/mypackage", "project/kernels", "project/.git", "out", "tmp", "home"):
            (tmp_path / name).mkdir(parents=True)
        for name, text in (
            ("tilus.toml", MANIFEST),
            ("kernels/scale.cc.j2", TEMPLATE),
            ("mypackage/__init__.py", MODULE),
        ):
            (project.directory / name).write_text(text)
        project.declare("")
        return project

    return make
