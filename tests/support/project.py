"""A project in a directory, to change and to build with the command line."""

import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support import command_line
from support.command_line import Ran

NewProject = Callable[..., "Project"]
P = TypeVar("P", bound="Project")


@dataclass
class Project:
    """A project in a directory, built into `cache`, with variables added to the environment."""

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """Words in front of each command line, as of `setpriv`."""

    @classmethod
    def built(cls: type[P], directory: Path, files: Mapping[str, str]) -> P:
        """One of these files, built; skip where there is no host compiler."""
        needs_cxx()
        project = cls(directory).write_all(files)
        project.run("build")
        return project

    @property
    def cache(self) -> Path:
        return self.directory / ".cache"

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def write_all(self: P, files: Mapping[str, str]) -> P:
        for name, text in files.items():
            self.write(name, text)
        return self

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.directory / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))

    def start(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        """The command, running, in a session of its own; its output is kept as text."""
        return command_line.start(
            self.directory, *words, environment=self.environment, before=self.before, **how
        )

    def run(self, *words: str | Path, status: int | None = 0, **environment: str) -> Ran:
        """The command, ended with this exit status; None is any."""
        environment = {**self.environment, **environment}
        return command_line.run(
            self.directory, *words, status=status, environment=environment, before=self.before
        )

    def run_to_error(self, *words: str) -> str:
        """The message of a command that ends with exactly one error."""
        message = self.run(*words, status=2).err
        assert message.count("error:") == 1, message
        assert "Traceback" not in message, message
        return message

    def build(self, *words: str, status: int | None = 0) -> dict[str, Any]:
        """The summary of a build."""
        return self.run("build", "--json", *words, status=status).summary

    def unpack_wheel(self, directory: Path) -> Path:
        """A new directory for `sys.path` with the project's wheel, and nothing but what it needs.
        The project is built."""
        import tvm_ffi
        import typing_extensions

        self.build()
        self.run("package", "--format", "wheel")
        (wheel,) = (self.directory / "dist").glob("*.whl")
        zipfile.ZipFile(wheel).extractall(directory)
        for module in (tvm_ffi.__path__[0], typing_extensions.__file__):
            (directory / Path(module).name).symlink_to(module)
        return directory

    def compiled(self, *words: str) -> int:
        """How many programs a build that succeeds compiles."""
        count: int = self.build(*words)["attempts"]
        return count

    @property
    def programs(self) -> dict[str, Path]:
        """The program directories in the cache by their names."""
        return {path.name: path for path in sorted(self.cache.glob("programs/*"))}

    @property
    def libraries(self) -> dict[str, bytes]:
        """The bytes of each lib.so by its program."""
        path_by_program = {name: path / "module" / "lib.so" for name, path in self.programs.items()}
        return {name: path.read_bytes() for name, path in path_by_program.items() if path.exists()}

    def copy(self: P, directory: Path, *, cache: bool = True) -> P:
        """The same project elsewhere, with or without what it has built."""
        ignored = None if cache else shutil.ignore_patterns(".cache")
        shutil.copytree(self.directory, directory, symlinks=True, ignore=ignored)
        return replace(self, directory=directory, environment=dict(self.environment))


def head(target: str = "cpu", arch: str = "cpu", *, build: str = "") -> str:
    """The eight lines that a manifest begins with, the last two a target's; `build` goes in
    `[build]`."""
    return (
        'edition = 1\n[project]\nname = "p"\nversion = "0.1.0"\n[build]\ncache-dir = ".cache"\n'
        f'{build}{build and chr(10)}[target.{target}]\narch = "{arch}"\n'
    )


def needs_cxx() -> None:
    """Skip where there is no host compiler."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
