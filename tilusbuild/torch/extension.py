"""torch's builds of extensions, with their compiles made by tilusbuild.

torch decides everything: flags, architectures, names, what is linked. It writes a `build.ninja`,
and `build.build_ninja_file` runs in the place of ninja. That holds for threads within one of the
functions of this module only, and for all builds of torch's `BuildExtension` after
`take_over_setup`: a setup.py may name that class, or a subclass, by any module. No mistake of ours
fails a build: torch's own commands run then, and a line says so.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

from tilusbuild.cli.boundary import ISSUES, report_exception
from tilusbuild.errors import TilusbuildError
from tilusbuild.torch.build import BuildFailedError, NinjaRequest
from tilusbuild.torch.build import build_ninja_file as run

_HOOK = "_run_ninja_build"
_is_within_load = ContextVar("is_within_load", default=False)
"""Whether this thread runs our `load` or `load_inline`."""
_running_setups: list[str] = []
"""The projects whose `setup.py` runs: setuptools may build extensions in threads."""
_built_setups: set[str] = set()
"""Those of which something was built by the hook."""


@cache
def import_cpp_extension() -> Any:
    """Import `torch.utils.cpp_extension`. Raises `ModuleNotFoundError`."""
    return importlib.import_module("torch.utils.cpp_extension")


def _set_hook() -> None:
    """Replace torch's function that runs ninja, once and for good: another thread may be within it.
    A torch without the function compiles its own way, and a line says so."""
    cpp_extension = import_cpp_extension()
    original = getattr(cpp_extension, _HOOK, None)
    if original is None:
        torch_name = f"torch {cpp_extension.torch.__version__}"
        _report_bypass(
            f"cpp_extension of {torch_name} has no {_HOOK}: please report it at {ISSUES}"
        )
    elif not hasattr(original, "of_tilusbuild"):
        setattr(cpp_extension, _HOOK, _make_hook(original))


def _report_bypass(reason: str) -> None:
    sys.stderr.write(f"tilusbuild: bypassed, and torch's own commands compile: {reason}\n")


def _make_hook(original: Callable[..., None]) -> Callable[..., None]:
    """Return a replacement of torch's `_run_ninja_build`. The replacement calls `original` outside
    of our functions, for HIP, outside of Linux, and after an error that is not the project's."""

    @wraps(original)
    def run_ninja_build(*arguments: Any, **options: Any) -> None:
        """Build as `original` does. Raises `RuntimeError` with the messages of the tools."""
        cpp_extension = import_cpp_extension()
        # The hook stays in torch, and sees the builds of all other code of this process, too.
        is_ours = _running_setups or _is_within_load.get()
        _built_setups.update(_running_setups)
        if is_ours and cpp_extension.IS_LINUX and not cpp_extension.IS_HIP_EXTENSION:
            try:
                _build_by_tilusbuild(*arguments, **options)
                return
            except BuildFailedError as error:
                # torch's own function raises this class, and callers such as setuptools show it.
                raise RuntimeError(str(error)) from error
            except Exception as error:
                # A defect of tilusbuild must not fail a build that torch can make.
                report_exception(error, sys.argv)
                _report_bypass("it failed as said above")
        original(*arguments, **options)

    run_ninja_build.of_tilusbuild = True  # type: ignore[attr-defined]
    return run_ninja_build


def _build_by_tilusbuild(build_directory: str, verbose: bool, error_prefix: str) -> None:
    """Build what torch's `_run_ninja_build` builds of the same arguments. Raises
    `BuildFailedError`, whose text begins with `error_prefix`."""
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
        raise BuildFailedError(f"{error_prefix}: {text}") from error


@cache
def take_over_setup() -> None:
    """Change torch's `BuildExtension` so that it, and each subclass, compiles through tilusbuild in
    this process. When the process ends, report a setup.py that built extensions otherwise. Raises
    `ModuleNotFoundError` without torch."""
    extension_class = import_cpp_extension().BuildExtension
    original = extension_class.build_extensions

    @wraps(original)
    def build_extensions(self: Any) -> None:
        """Build all extensions, with compiles from the cache. Raises what torch's method raises."""
        # `use_ninja=False` asks for the same objects, one at a time. None is skipped for its time
        # (`force`), since objects are compared by content.
        if import_cpp_extension().is_ninja_available():
            self.use_ninja = self.force = True
        _set_hook()
        # The f-string makes a plain `str`: setuptools may return a subclass of it.
        _running_setups.append(f"{self.distribution.get_name() or 'setup.py'}")
        try:
            original(self)
        finally:
            _running_setups.pop()

    extension_class.build_extensions = build_extensions
    atexit.register(_report_bypassed_setup)


def _report_bypassed_setup() -> None:
    """Report a setup.py of this process that has built extensions, none of them by the hook."""
    # setuptools keeps the distribution of the last `setup()` there.
    setup = getattr(sys.modules.get("distutils.core"), "_setup_distribution", None)
    if _built_setups or not (setup and setup.have_run.get("build_ext") and setup.ext_modules):
        return
    reason = 'its cmdclass names another "build_ext" than BuildExtension'
    if not import_cpp_extension().is_ninja_available():
        reason = "there is no ninja: pip install ninja"
    _report_bypass(reason)


@cache
def wrap_load(name: str) -> Callable[..., Any]:
    """Return torch's `load` or `load_inline`, whose compiles go through tilusbuild. Raises
    `ModuleNotFoundError` without torch."""
    function = getattr(import_cpp_extension(), name)

    @wraps(function)
    def load(*args: Any, **kwargs: Any) -> Any:
        _set_hook()
        # A module that `load` imports may call `load` itself.
        token = _is_within_load.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _is_within_load.reset(token)

    return load
