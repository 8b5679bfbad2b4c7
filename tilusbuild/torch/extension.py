"""torch's builds of extensions, with the compiles in tilusbuild's hands.

torch decides everything: flags, architectures, names, what is linked. It writes a `build.ninja`,
and where it would start ninja on that, `build.build` takes over. Only in a thread that is within
one of the functions here: torch's own keep what they do.
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
from tilusbuild.torch.build import BuildFailedError, Request
from tilusbuild.torch.build import build as run

_HOOK = "_run_ninja_build"
_within = threading.local()
_installing: list[str] = []
"""The projects whose `setup.py` runs: setuptools may build extensions in threads."""


@cache
def theirs() -> Any:
    """Return torch's module. Raises `ModuleNotFoundError`."""
    return importlib.import_module("torch.utils.cpp_extension")


@contextmanager
def _ours() -> Iterator[None]:
    """Have torch's compiles in this block done here. Raises `RuntimeError` for a torch that is made
    in another way."""
    original = getattr(theirs(), _HOOK, None)
    if original is None:
        raise RuntimeError(
            f"tilusbuild.torch does not know torch {theirs().torch.__version__}: its cpp_extension "
            f"has no {_HOOK}; import torch.utils.cpp_extension in its place, and report it"
        )
    if not hasattr(original, "of_tilusbuild"):
        setattr(theirs(), _HOOK, _hook(original))
    before = getattr(_within, "here", False)
    _within.here = True
    try:
        yield
    finally:
        _within.here = before


def _hook(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def run_ninja_build(build_directory: str, verbose: bool, error_prefix: str) -> None:
        ours = _installing or getattr(_within, "here", False)
        if not ours or theirs().IS_HIP_EXTENSION or not theirs().IS_LINUX:
            original(build_directory, verbose, error_prefix)
            return
        workers = os.environ.get("MAX_JOBS", "")
        request = Request(
            os.path.abspath(build_directory),
            _installing[-1] if _installing else "",
            os.getcwd() if _installing else "",
            int(workers) if workers.isdigit() and int(workers) else None,
            sys.stdout if verbose else None,
        )
        try:
            run(request)
        except (BuildFailedError, TilusbuildError) as error:
            text = error.render() if isinstance(error, TilusbuildError) else str(error)
            raise RuntimeError(f"{error_prefix}: {text}") from error

    run_ninja_build.of_tilusbuild = True  # type: ignore[attr-defined]
    return run_ninja_build


@cache
def build_extension() -> type:
    """Return `BuildExtension`. Raises `ModuleNotFoundError` without torch."""

    class BuildExtension(theirs().BuildExtension):  # type: ignore[misc]
        """torch's `BuildExtension`: its options and flags, and objects that come from the cache
        where they were built before. `use_ninja=False` has no effect: it asks for no other objects,
        only for one compile at a time."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "use_ninja": True})

        def build_extensions(self) -> None:
            """Build all extensions. Raises what torch's does."""
            # setuptools has a str of its own.
            _installing.append(f"{self.distribution.get_name() or 'setup.py'}")
            try:
                with _ours():
                    super().build_extensions()
            finally:
                _installing.pop()

    BuildExtension.__module__, BuildExtension.__qualname__ = "tilusbuild.torch", "BuildExtension"
    return BuildExtension


@cache
def loading(name: str) -> Callable[..., Any]:
    """Return torch's `load` or `load_inline`, compiling through tilusbuild. Raises
    `ModuleNotFoundError` without torch."""
    function = getattr(theirs(), name)

    @wraps(function)
    def load(*args: Any, **kwargs: Any) -> Any:
        with _ours():
            return function(*args, **kwargs)

    return load
