"""The functions of `tilusbuild.option`, by which a running program chooses settings.

They hold for the whole process and take precedence over the environment; a command line takes
precedence over both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType

from tilusbuild.runtime.errors import did_you_mean
from tilusbuild.runtime.process import process

Value = str | int | bool
_NAMES = """
    BENCH_REPEAT BENCH_WARMUP CACHE_DIR CACHE_MAX_SIZE DEBUG DEVICE_COMPILER DISABLE_PTXAS_OPT
    DUMP_IR EXECUTION_BACKEND JOBS LEVEL LOAD_AVERAGE NICE REBUILT RECORD REMOTE_CACHE
    REMOTE_CONNECT_TIMEOUT REMOTE_CREDENTIAL_HELPER REMOTE_EXECUTOR REMOTE_HEADERS REMOTE_INSTANCE
    REMOTE_JOBS REMOTE_PATIENCE REMOTE_PROPERTIES REMOTE_SEND_TIMEOUT REMOTE_TIMEOUT REMOTE_TLS_CA
    REMOTE_TLS_CERTIFICATE REMOTE_TLS_KEY REMOTE_VERIFY REMOTE_WRITE REQUIRE_SIGNED SAFE_DIRECTORIES
    SANDBOX TARGET VERBOSE
"""
VARIABLES = frozenset("TILUSBUILD_" + name for name in _NAMES.split())
"""Every environment variable of tilusbuild: a test compares them with the code that reads them."""


def find_unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each unknown variable with the prefix `TILUSBUILD_`. Variables of the
    tests, `TILUSBUILD_TEST_`, do not count."""
    for name in sorted(environment):
        if not name.startswith("TILUSBUILD_") or name.startswith("TILUSBUILD_TEST_"):
            continue
        if name not in VARIABLES:
            hint = did_you_mean(name, VARIABLES)
            yield f"{name} is not a variable of tilusbuild{f': {hint}' if hint else ''}"


@cache
def warn_of_unknown_variables() -> None:
    """Log a warning for each unknown variable, once for the process."""
    for message in find_unknown_variables(os.environ):
        # Imported only for a message: it takes milliseconds.
        import logging

        logging.getLogger("tilusbuild").warning("%s", message)


def _set_option(name: str, value: Value) -> None:
    with process.option_lock:
        process.options[name] = value


def chosen() -> Mapping[str, Value]:
    """Return the options set so far, by the names that the settings have: `cache-dir`, `jobs`, …"""
    # A copy, since another thread may choose an option while a build reads them.
    with process.option_lock:
        return MappingProxyType(dict(process.options))


@contextmanager
def context() -> Iterator[None]:
    """Restore the options at the end of the `with` block."""
    with process.option_lock:
        before = dict(process.options)
    try:
        yield
    finally:
        with process.option_lock:
            process.options.clear()
            process.options.update(before)


def cache_dir(path: str | os.PathLike[str]) -> None:
    """Set the cache tree to build into and to load from; `path` is relative to the present working
    directory. Raises `TypeError`, and `ValueError` for an empty path."""
    # As text now: the working directory may change before the build.
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a cache directory is a str or a path of one, not {type(text).__name__}")
    if not text or "\0" in text:
        raise ValueError(f"{text!r} names no directory")
    _set_option("cache-dir", os.path.abspath(os.path.expanduser(text)))


def parallel_workers(count: int) -> None:
    """Set the number of compilers at once. Raises `TypeError` and `ValueError`."""
    _set_option("jobs", _check_count("parallel_workers", count, least=1))


def bench_warmup(count: int) -> None:
    """Set the number of calls before each sample of a tuning. Raises `TypeError` and
    `ValueError`."""
    _set_option("bench-warmup", _check_count("bench_warmup", count, least=0))


def bench_repeat(count: int) -> None:
    """Set the number of samples of each program that is nearly the best. Raises `TypeError` and
    `ValueError`."""
    _set_option("bench-repeat", _check_count("bench_repeat", count, least=1))


class debug:  # noqa: N801 - the name that users of Tilus know
    """The settings for looking into a kernel."""

    @staticmethod
    def dump_ir(enable: bool = True) -> None:
        """Keep the intermediate files of each compile beside its result. Raises `TypeError`."""
        _set_option("dump-ir", _check_switch("dump_ir", enable))

    @staticmethod
    def disable_ptxas_opt(enable: bool = True) -> None:
        """Compile without ptxas' optimizations, to programs of other hashes. Raises `TypeError`."""
        _set_option("disable-ptxas-opt", _check_switch("disable_ptxas_opt", enable))


def _check_count(name: str, value: object, *, least: int) -> int:
    # By its type: a bool is an int in Python.
    if type(value) is not int:
        raise TypeError(f"{name} takes an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} is at least {least}, not {value}")
    return value


def _check_switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} takes True or False, not {type(value).__name__}")
    return value
