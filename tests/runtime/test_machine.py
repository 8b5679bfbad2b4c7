"""What the machine refuses, and no build mends: each its own class, no `CorruptCacheError`."""

import dataclasses
import os
import pickle
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilusbuild
from support.marks import Marks
from tilusbuild.cache.verify import list_loading_problems
from tilusbuild.runtime import errors, library
from tilusbuild.runtime.errors import (
    CorruptCacheError,
    LoadError,
    MissingLibraryError,
    NoExecError,
    ShortageError,
)

X = np.zeros(9, "float32")
LOADER = "Failed to load dynamic shared library /c/lib.so: "


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("lib.so: failed to map segment from shared object", NoExecError),
        ("lib.so: failed to map segment from shared object: Operation not permitted", NoExecError),
        ("lib.so: failed to map segment from shared object: Cannot allocate memory", ShortageError),
        (
            "libX.so.1: cannot open shared object file: No such file or directory",
            MissingLibraryError,
        ),
        ("lib.so: cannot open shared object file: Too many open files", ShortageError),
        ("libc.so.6: version `GLIBC_2.99' not found (required by lib.so)", MissingLibraryError),
        ("lib.so: undefined symbol: cublasLtCreate", MissingLibraryError),
        ("lib.so: wrong ELF class: ELFCLASS32", LoadError),
    ],
)
def test_the_loaders_reason_decides_on_the_class(copied, monkeypatch, reason, kind) -> None:
    def refuse(path: str, script: object) -> None:
        raise RuntimeError(LOADER + reason)

    monkeypatch.setattr(library, "open_launcher", refuse)
    for _ in range(2):  # it is tried again, and not remembered
        with pytest.raises(LoadError, match="cannot be loaded") as caught:
            tilusbuild.load("mark", where=copied.cache)(X)
        assert type(caught.value) is kind
        assert str(caught.value).count(kind.remedy) == 1 or not kind.remedy
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def link_missing(path: Path, directory: Path) -> None:
    """Replace a library by one that needs another, which is gone."""
    gone = directory / "libtilusgone.so.1"
    words = ["cc", "-shared", "-fPIC", "-xc", "-", "-xnone", "-Wl,--no-as-needed"]
    subprocess.run([*words, f"-Wl,-soname,{gone.name}", "-o", gone], input=b"", check=True)
    subprocess.run([*words, gone, "-o", path], input=b"", check=True)
    gone.unlink()


def test_a_missing_library_is_named(copied: Marks, tmp_path: Path) -> None:
    script = copied.script("mark")
    path = Path(script.get_library_path(script.first_program))
    link_missing(path, tmp_path)
    with pytest.raises(MissingLibraryError, match=r"loaded: libtilusgone\.so\.1: cannot open"):
        library._open_cached_launcher(str(path), script)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system from which no code may run."""
    directory = tmp_path / "noexec"
    directory.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "noexec", "none", str(directory)]
    if os.geteuid() or subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount")
    yield directory
    subprocess.run(["umount", "-l", directory], check=True)


def test_a_cache_on_a_file_system_without_code(built: Marks, mounted: Path) -> None:
    shutil.copytree(built.cache, mounted / "cache", symlinks=True)
    with pytest.raises(NoExecError, match="noexec"):
        tilusbuild.load("mark", where=mounted / "cache")(X)


@pytest.fixture
def limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("limit")
def test_too_many_open_files(copied: Marks) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    kernel = tilusbuild.load("mark", where=copied.cache)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    with pytest.raises(ShortageError, match="Too many open files"):
        kernel(X)
    with pytest.raises(ShortageError, match="Too many open files"):
        tilusbuild.load("modelled", where=copied.cache, real="f32")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert kernel(X)[-1] == 1, "it is called when files may be opened again"


@pytest.fixture
def public(built: Marks) -> Iterator[Marks]:
    """A copy where other users may read; pytest's own directory is closed to them."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        project = built.copy(Path(directory, "copy"))
        project.directory.chmod(0o755)
        yield project


def test_each_part_of_a_cache_that_may_not_be_read(public: Marks) -> None:
    """By a process without rights, since root may read everything."""
    import tvm_ffi  # noqa: F401 - the child might not find it

    script = public.script("mark")
    parts: list[Path | str] = [
        *(public.cache, public.cache / "scripts", public.cache / "scripts/mark", script.path),
        *(public.cache / "index.json", f"{script.path}/script.json", f"{script.path}/script.txt"),
        *(public.cache / "programs", public.cache / "programs" / script.programs[1] / "meta.json"),
        *(script.get_library_path(1), public.cache.parent),
    ]
    for part in map(Path, parts):
        mode = part.stat().st_mode
        part.chmod(0)
        message = call_as_nobody(public)
        part.chmod(mode)
        assert message.startswith("UnreadableError"), (part, message)
        assert "Permission denied" in message
    assert call_as_nobody(public) == "1"


def call_as_nobody(project: Marks) -> str:
    """Call `mark` in a child that is not root; return the result or the error."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        if not os.geteuid():
            os.setresuid(65534, 65534, 65534)
        try:
            text = str(int(tilusbuild.load("mark", where=project.cache)(X)[-1]))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        return file.read()


def test_a_package_that_may_not_be_read_is_not_damaged(copied: Marks, tmp_path: Path) -> None:
    copied.run("package", "--format", "dir", "-o", tmp_path)
    package = next(tmp_path.glob("marks*"))
    if not os.geteuid():  # root without its right to read everything
        capabilities = "-dac_override,-dac_read_search"
        words = ("--bounding-set", capabilities, "--inh-caps", capabilities)
        copied = dataclasses.replace(copied, before=("setpriv", *words))
    for part in (next(package.rglob("lib.so")), package):
        part.chmod(0)
        ran = copied.run("verify", package, status=None)
        part.chmod(0o755)
        assert ran.status in (1, 2)
        assert "cannot be read: Permission denied\n" in ran.out + ran.err
        assert "Truncated" not in ran.out


@pytest.mark.parametrize("name", ["EACCES", "EPERM", "EIO", "ESTALE", "ETIMEDOUT"])
def test_an_error_of_the_disk_is_no_damage(name: str) -> None:
    number = getattr(__import__("errno"), name)
    error = errors.make_read_error("/c/index.json", OSError(number, os.strerror(number)))
    assert not isinstance(error, CorruptCacheError)


def test_verify_and_doctor_name_a_missing_library(copied: Marks, tmp_path: Path) -> None:
    script = copied.script("mark")
    link_missing(Path(script.get_library_path(script.first_program)), tmp_path)
    named = "libtilusgone.so.1 is not on this machine"
    assert f"NotLoadable: {named}" in copied.run("verify", copied.cache, status=1).out
    assert f"warning  cache: {named}" in copied.run("doctor", status=None).out
    assert [*list_loading_problems("", str(copied.cache))] == [str(MissingLibraryError(named))]


def test_verify_doctor_and_preflight_see_a_file_system_without_code(
    copied: Marks, mounted: Path
) -> None:
    shutil.copytree(copied.cache, mounted / "cache", symlinks=True)
    copied.run("package", "--format", "dir", "-o", mounted)
    package = next(mounted.glob("marks*"))
    words = "no code may run from the file system of"
    assert words in copied.run("verify", mounted / "cache", status=1).out
    assert words in copied.run("doctor", "--cache-dir", mounted / "cache", status=None).out
    assert words in copied.run("preflight", package, "-d", "cpu", status=1).out
    copied.run("preflight", package, "-d", "cpu", "--glibc", "2.99", status=0)  # another machine
