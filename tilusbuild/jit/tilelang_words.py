"""TileLang's words for targets, backends and pass configs, and what they mean here.

A word of TileLang either has a counterpart here, or is refused by name with what serves instead:
none is ignored. A name that a project declares takes precedence, so nothing here can change what a
manifest says. Sources: TileLang 0.1.15, `tilelang/jit/`, `tilelang/env.py`,
`tilelang/transform/pass_config.py`; target strings are TVM's.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, TypeAlias

from tilusbuild.errors import did_you_mean, input_error

TargetWords: TypeAlias = tuple[str, str | None]
"""What a target's words ask for: a target's name, an architecture, "cuda" for this machine's GPU,
"cpu", or "auto"; and the `-march` of host code, if they say one."""
AUTO = "auto"
BACKENDS = ("tvm_ffi", "ctypes", "nvrtc")
PASS_CONFIGS = ("disable_ptxas_opt", "dump_ir", "line_directives")
CPU_WORDS = ("cpu", "c", "llvm")
CUDA = "cuda"

_OTHER_BACKENDS = {
    "cython": '"ctypes" calls the library, as cython does there',
    "torch": 'that is for Metal there; "tvm_ffi" takes tensors of torch',
    "cutedsl": 'kernels here are CUDA, not Python: a template may include CuTe; "tvm_ffi" calls it',
    "dlpack": '"tvm_ffi" takes whatever speaks DLPack',
}
_FAST_MATH = "tl.enable_fast_math"
_REGISTER_LEVEL = "tl.ptxas_register_usage_level"
_COMPILE_FLAGS = "tl.device_compile_flags"
_VERBOSE_PTXAS = "tl.enable_ptxas_verbose_output"


def backend_of(word: str) -> str:
    """Return the backend that a word names. Raises `InputError`."""
    if word == AUTO:
        return BACKENDS[0]
    if word in BACKENDS:
        return word
    raise input_error(
        f'execution_backend is one of {AUTO}, {", ".join(BACKENDS)}, not "{word}"',
        hint=_OTHER_BACKENDS.get(word) or did_you_mean(word, BACKENDS),
    )


def target_of(target: object) -> TargetWords:
    """Return what a target asks for: a word, TVM's form with options ("cuda -arch=sm_90a"), or a
    table of TVM's. Raises `InputError` and `TypeError`."""
    if isinstance(target, Mapping):
        return _of_table({str(key): value for key, value in target.items()})
    if not isinstance(target, str) or not target.strip():
        raise TypeError(f"a target is a name or an architecture, not {target!r:.80}")
    kind, *options = shlex.split(target)
    if not options:
        return kind, None
    pairs = dict(_option(target, word) for word in options)
    return _of_table({"kind": kind, **pairs})


def _option(target: str, word: str) -> tuple[str, str]:
    name, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("-") or not equals:
        raise input_error(f'target: "{target}": "{word}" is not of the form -NAME=VALUE')
    return name, value


_IGNORED = (
    *("keys", "tag", "libs", "device", "model", "thread_warp_size", "max_num_threads"),
    *("max_threads_per_block", "max_shared_memory_per_block"),
)
"""Keys of TVM's tables that say what the architecture says here, or nothing about CUDA."""


def _of_table(table: Mapping[str, Any]) -> TargetWords:
    known = ("kind", "arch", "mcpu", "host", *_IGNORED)
    for key, value in table.items():
        if key not in known:
            raise input_error(
                f'target: "{key}" means nothing here', hint=did_you_mean(key, known[:4])
            )
        if key in known[:3] and not isinstance(value, str):
            raise TypeError(f"target: {key} is a word, not {value!r:.80}")
    host = host_of(table.get("host"))
    if table.get("kind") in CPU_WORDS:
        return "cpu", table.get("mcpu") or host
    name = table.get("arch") or table.get("kind")
    if not name:
        raise TypeError('a target\'s table has "arch" or "kind"')
    return name, host


def host_of(target_host: object) -> str | None:
    """Return the `-march` that a host target asks for: one itself, or TileLang's "c", "llvm" or
    "llvm -mcpu=NAME". Raises `InputError` and `TypeError`."""
    if target_host is None:
        return None
    if isinstance(target_host, str) and target_host and not target_host.startswith(CPU_WORDS):
        return target_host
    name, march = target_of(target_host)
    if name not in CPU_WORDS:
        raise input_error(
            f'target_host: "{name}" is not a host',
            hint='a -march such as "x86-64-v3", or "c"',
        )
    return march


def pass_configs_of(
    given: Mapping[Any, Any],
) -> tuple[tuple[tuple[str, bool], ...], tuple[str, ...], bool]:
    """Return what pass configs ask for: our switches by name, flags for the device compiler, and
    whether fast math is on. Raises `InputError` for other names, `TypeError` for wrong values."""
    switches: list[tuple[str, bool]] = []
    flags: list[str] = []
    fast_math = False
    for key, value in given.items():
        name = str(getattr(key, "value", key))  # TileLang's PassConfigKey is an enum
        if name == _COMPILE_FLAGS:
            flags += words(name, value)
        elif name == _REGISTER_LEVEL:
            if type(value) is not int or not 0 <= value <= 10:
                raise TypeError(f"pass config {name} is a number from 0 to 10, not {value!r:.80}")
            flags.append(f"--ptxas-options=--register-usage-level={value}")
        elif name not in (*PASS_CONFIGS, _FAST_MATH, _VERBOSE_PTXAS):
            raise _unknown(name)
        elif not isinstance(value, bool):
            raise TypeError(f"pass config {name} is True or False, not {value!r:.80}")
        elif name == _FAST_MATH:
            fast_math = value
        elif name in PASS_CONFIGS:
            switches.append((name, value))
    return tuple(sorted(switches)), tuple(flags), fast_math


def _unknown(name: str) -> Exception:
    if name.startswith(("tl.", "tir.", "relax.")):
        hint = (
            "it steers a pass of TileLang's compiler; here the template is the CUDA itself."
            f" There are {', '.join((*PASS_CONFIGS, _FAST_MATH, _REGISTER_LEVEL, _COMPILE_FLAGS))}"
        )
    else:
        hint = did_you_mean(name, PASS_CONFIGS) or f"there are {', '.join(PASS_CONFIGS)}"
    return input_error(f'there is no pass config "{name}"', hint=hint)


def words(name: str, value: object) -> tuple[str, ...]:
    """Return flags, given as a list or as one string. Raises `TypeError`."""
    found = tuple(value.split()) if isinstance(value, str) else value
    if found is None:
        return ()
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise TypeError(f"{name} holds words, not {value!r:.80}")
    return tuple(found)
