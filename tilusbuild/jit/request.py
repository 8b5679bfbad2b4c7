"""What is asked of a `KernelCache`, read once: words and keywords become a value with a key.

Two requests with equal keys want the same kernel, as far as can be told without looking at files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilusbuild.errors import did_you_mean, input_error
from tilusbuild.expr import Value
from tilusbuild.jit.source import Source

BACKENDS = ("tvm_ffi", "ctypes", "nvrtc")
PASS_CONFIGS = ("disable_ptxas_opt", "dump_ir", "line_directives")
AUTO = "auto"
_PREFIX = "TILUSBUILD_"
_FALSE = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Request:
    """One kernel that is wanted."""

    source: Source | str
    """A source, or a script's name."""
    folder: str
    """Where the script's project is looked for, absolute; for a source, where the caller was."""
    target: str
    """A target's name, an architecture, "cpu", or "auto"."""
    target_host: str | None
    backend: str
    out: tuple[int, ...] | None
    flags: tuple[str, ...]
    configs: tuple[tuple[str, bool], ...]
    params: tuple[tuple[str, Value], ...]
    verbose: bool

    @property
    def key(self) -> tuple[object, ...]:
        """What two requests for one kernel share; `verbose` is not part of it."""
        what = self.source
        named = (what,) if isinstance(what, str) else (what.text, what.name, repr(what.table))
        return (
            *(named, self.folder, self.target, self.target_host, self.backend, self.out),
            *(self.flags, self.configs),
            tuple((name, type(value), value) for name, value in self.params),
        )

    def config(self, name: str) -> bool:
        """Whether a pass config is on."""
        return dict(self.configs).get(name, False)


def request(
    source: Source | str | os.PathLike[str],
    params: Mapping[str, Value],
    *,
    out_idx: int | Sequence[int] | None,
    target: str | Mapping[str, Any] | None,
    target_host: str | None,
    execution_backend: str,
    verbose: bool | None,
    pass_configs: Mapping[str, Any] | None,
    compile_flags: str | Sequence[str] | None,
) -> Request:
    """The request that these arguments of `cached` make. Raises `InputError` and `TypeError`."""
    folder, name = _place(source)
    backend = execution_backend
    if backend == AUTO:
        backend = os.environ.get(f"{_PREFIX}EXECUTION_BACKEND") or BACKENDS[0]
    if backend not in BACKENDS:
        raise input_error(
            f'execution_backend is one of {AUTO}, {", ".join(BACKENDS)}, not "{backend}"',
            hint=did_you_mean(backend, BACKENDS),
        )
    said = os.environ.get(f"{_PREFIX}VERBOSE", "").lower() not in _FALSE
    for word, value in params.items():
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"{word} is a {type(value).__name__}: constants are numbers and words")
    return Request(
        source=source if isinstance(source, Source) else name,
        folder=folder,
        target=_target(target),
        target_host=target_host,
        backend=backend,
        out=None if out_idx is None else _indices(out_idx),
        flags=_flags(compile_flags),
        configs=_configs(pass_configs or {}),
        params=tuple(sorted(params.items())),
        verbose=said if verbose is None else verbose,
    )


def _place(source: Source | str | os.PathLike[str]) -> tuple[str, str]:
    """The folder to start from and the script's name: `NAME`, `DIR:NAME`."""
    if isinstance(source, Source):
        return os.getcwd(), ""
    if isinstance(source, str | os.PathLike):
        above, colon, name = os.fspath(source).rpartition(":")
        return os.path.abspath(above if colon else os.curdir), name
    raise TypeError(f"a script's name or a Source is wanted, not {type(source).__name__}")


def _target(target: str | Mapping[str, Any] | None) -> str:
    if target is None:
        target = os.environ.get(f"{_PREFIX}TARGET") or AUTO
    if isinstance(target, Mapping):
        target = target.get("arch") or target.get("kind")
    if not isinstance(target, str) or not target:
        raise TypeError(f"a target is a name or an architecture, not {target!r}")
    return target


def _indices(out: int | Sequence[int]) -> tuple[int, ...]:
    found = (out,) if isinstance(out, int) else tuple(out)
    if not all(type(index) is int for index in found):
        raise TypeError(f"out_idx holds whole numbers, not {out!r}")
    return found


def _flags(flags: str | Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(flags, str):
        flags = flags.split()
    found = tuple(flags or ())
    if not all(isinstance(flag, str) for flag in found):
        raise TypeError(f"compile_flags holds words, not {flags!r}")
    return found


def _configs(given: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
    for name, value in given.items():
        if name not in PASS_CONFIGS:
            raise input_error(
                f'there is no pass config "{name}"', hint=did_you_mean(name, PASS_CONFIGS)
            )
        if not isinstance(value, bool):
            raise TypeError(f"pass config {name} is True or False, not {value!r}")
    return tuple(sorted(given.items()))
