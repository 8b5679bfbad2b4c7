"""torch's builds of extensions, with their compiles made by tilusbuild.

torch decides everything: flags, architectures, names, what is linked. It writes a `build.ninja`,
and `build.build_ninja_file` runs in the place of ninja. That holds for threads within one of the
functions of this module only: torch's own functions are unchanged.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from tilusbuild.errors import TilusbuildError
from tilusbuild.torch.build import BuildFailedError, NinjaRequest
from tilusbuild.torch.build import build_ninja_file as run

_HOOK = "_run_ninja_build"
_thread_state = threading.local()
_running_setups: list[str] = []
"""The projects whose `setup.py` runs: setuptools may build extensions in threads."""


@cache
def import_cpp_extension() -> Any:
    """Import `torch.utils.cpp_extension`. Raises `ModuleNotFoundError`."""
    return importlib.import_module("torch.utils.cpp_extension")


@contextmanager
def _compile_through_tilusbuild() -> Iterator[None]:
    """Route the compiles that torch starts in this block, on this thread, through tilusbuild. The
    hook stays in torch afterwards, and does nothing outside of such blocks. Raises `RuntimeError`
    for a torch without the function to replace."""
    original = getattr(import_cpp_extension(), _HOOK, None)
    if original is None:
        raise RuntimeError(
            f"tilusbuild.torch does not know torch {import_cpp_extension().torch.__version__}: its"
            f" cpp_extension has no {_HOOK}; import torch.utils.cpp_extension in its place, and"
            " report it"
        )
    # Set once and never undone: another thread may be within a block.
    if not hasattr(original, "of_tilusbuild"):
        setattr(import_cpp_extension(), _HOOK, _make_hook(original))
    # A block may be within another: a module that `load` imports may call `load` itself.
    was_within_block = getattr(_thread_state, "block", False)
    _thread_state.block = True
    try:
        yield
    finally:
        _thread_state.block = was_within_block


def _make_hook(original: Callable[..., None]) -> Callable[..., None]:
    """Return a replacement of torch's `_run_ninja_build`. The replacement calls `original` outside
    of blocks of `_compile_through_tilusbuild`, for HIP, and outside of Linux."""

    @wraps(original)
    def run_ninja_build(build_directory: str, verbose: bool, error_prefix: str) -> None:
        """Build by tilusbuild within its blocks, and by torch's own function elsewhere. Raises
        `RuntimeError` with the messages of the tools."""
        cpp_extension = import_cpp_extension()
        is_within_block = _running_setups or getattr(_thread_state, "block", False)
        if not is_within_block or cpp_extension.IS_HIP_EXTENSION or not cpp_extension.IS_LINUX:
            original(build_directory, verbose, error_prefix)
            return
        max_jobs = os.environ.get("MAX_JOBS", "")
        request = NinjaRequest(
            directory=os.path.abspath(build_directory),
            name=_running_setups[-1] if _running_setups else "",
            project_directory=os.getcwd() if _running_setups else "",
            jobs=int(max_jobs) if max_jobs.isdigit() and int(max_jobs) else None,
            out=sys.stdout if verbose else None,
        )
        try:
            run(request)
        except (BuildFailedError, TilusbuildError) as error:
            text = error.render() if isinstance(error, TilusbuildError) else str(error)
            # torch's own function raises this class, and callers such as setuptools show its text.
            raise RuntimeError(f"{error_prefix}: {text}") from error

    run_ninja_build.of_tilusbuild = True  # type: ignore[attr-defined]
    return run_ninja_build


@cache
def make_build_extension() -> type:
    """Return a subclass of torch's `BuildExtension` that compiles through tilusbuild. Raises
    `ModuleNotFoundError` without torch."""

    class BuildExtension(import_cpp_extension().BuildExtension):  # type: ignore[misc]
        """torch's `BuildExtension`: its options and flags, and objects that come from the cache
        where they were built before. `use_ninja=False` has no effect: it asks for no other objects,
        only for one compile at a time."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "use_ninja": True})

        def build_extensions(self) -> None:
            """Build all extensions, with compiles from the cache. Raises the errors of torch's
            method."""
            # The f-string makes a plain `str`: setuptools may return a subclass of it.
            _running_setups.append(f"{self.distribution.get_name() or 'setup.py'}")
            try:
                with _compile_through_tilusbuild():
                    super().build_extensions()
            finally:
                _running_setups.pop()

    BuildExtension.__module__, BuildExtension.__qualname__ = "tilusbuild.torch", "BuildExtension"
    return BuildExtension


@cache
def wrap_load(name: str) -> Callable[..., Any]:
    """Return torch's `load` or `load_inline`, whose compiles go through tilusbuild. Raises
    `ModuleNotFoundError` without torch."""
    function = getattr(import_cpp_extension(), name)

    @wraps(function)
    def load(*args: Any, **kwargs: Any) -> Any:
        with _compile_through_tilusbuild():
            return function(*args, **kwargs)

    return load
