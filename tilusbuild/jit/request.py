"""What is asked of a `KernelCache`, and the project that has just the one program that is wanted.

Words and keywords become a `Request` with a key: two requests with equal keys want the same kernel,
as far as is known without reading files. A `Source` is a kernel whose template stands in the
program: it becomes a project of its own in the cache's state directory, named by its content, so
that everything after it is as for any script. The manifest of the project that `opened` returns is
the project's own, with the constants and the schedule of the request in the place of its lists and
defaults; nothing else is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tilusbuild.arch import ArchError, parse_arch
from tilusbuild.builder.project import Project
from tilusbuild.cache.tree import Tree
from tilusbuild.errors import did_you_mean, input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.check_targets import flag_problems
from tilusbuild.manifest.denied_flags import names_march
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.table import format_toml, format_toml_key
from tilusbuild.plan.model import make_targets
from tilusbuild.plan.spaces import read_imported_space
from tilusbuild.runtime.choose import rank_code
from tilusbuild.runtime.device import find_first_gpu
from tilusbuild.runtime.places import get_cache_dir
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.clock import FileTime
from tilusbuild.state.files import sha256_text, write_atomic

AUTO = "auto"
_CUDA = "cuda"
"""The target that is this machine's GPU."""
_BACKENDS = ("tvm_ffi", "ctypes", "nvrtc")
_PASS_CONFIGS = ("disable_ptxas_opt", "dump_ir", "line_directives")
_PREFIX = "TILUSBUILD_"
_FALSE = ("", "0", "false", "no", "off")


class Request(Struct, frozen=True):
    """One kernel that is wanted."""

    source: Source | str
    """A source, or a script's name."""
    directory: str
    """Where the script's project is looked for, absolute; for a source, where the caller was."""
    target: str
    """A target's name, an architecture, "cpu", or "auto"."""
    target_host: str | None
    backend: str
    out: tuple[int, ...] | None
    flags: tuple[str, ...]
    configs: tuple[tuple[str, bool], ...]
    positional: tuple[Value, ...]
    """Constants in the order in which the script declares them."""
    params: tuple[tuple[str, Value], ...]
    verbose: bool

    @property
    def key(self) -> tuple[object, ...]:
        """Return what two requests for one kernel share; `verbose` is not part of it."""
        what = self.source
        named = (what,) if isinstance(what, str) else (what.text, what.name, repr(what.table))
        return (
            *(named, self.directory, self.target, self.target_host, self.backend, self.out),
            *(self.flags, self.configs),
            tuple((type(value), value) for value in self.positional),
            tuple((name, type(value), value) for name, value in self.params),
        )

    def config(self, name: str) -> bool:
        """Return whether a pass config is on."""
        return dict(self.configs).get(name, False)


def request(
    source: Source | str | os.PathLike[str],
    args: Sequence[Value],
    params: Mapping[str, Value],
    *,
    out_idx: int | Sequence[int] | None,
    target: str | None,
    target_host: str | None,
    execution_backend: str,
    verbose: bool | None,
    pass_configs: Mapping[str, Any] | None,
    compile_flags: str | Sequence[str] | None,
) -> Request:
    """Return the request that arguments of `cached` make. Raises `InputError`, `TypeError`."""
    directory, name = _place(source)
    backend = execution_backend
    if backend == AUTO:
        backend = os.environ.get(f"{_PREFIX}EXECUTION_BACKEND") or AUTO
    setting = os.environ.get(f"{_PREFIX}VERBOSE", "").lower() not in _FALSE
    for word, value in (*((f"constant {i}", v) for i, v in enumerate(args, 1)), *params.items()):
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"{word} is a {type(value).__name__}: constants are numbers and words")
    if target is None:
        target = os.environ.get(f"{_PREFIX}TARGET") or AUTO
    out = (out_idx,) if isinstance(out_idx, int) else None if out_idx is None else tuple(out_idx)
    if not all(type(index) is int for index in out or ()):
        raise TypeError(f"out_idx holds whole numbers, not {out_idx!r}")
    words: dict[str, object] = {"target": target, "target_host": target_host or AUTO}
    for argument, spelling in words.items():
        if not (isinstance(spelling, str) and spelling.strip()):
            raise TypeError(f"{argument} is the name of one, not {spelling!r:.80}")
    return Request(
        source=source if isinstance(source, Source) else name,
        directory=directory,
        target=target,
        target_host=target_host,
        backend=_checked_backend(backend),
        out=out,
        flags=_split_flags(compile_flags),
        configs=_checked_configs(pass_configs or {}),
        positional=tuple(args),
        params=tuple(sorted(params.items())),
        verbose=setting if verbose is None else verbose,
    )


def _checked_backend(word: str) -> str:
    """Return the backend that a word names. Raises `InputError`."""
    if word == AUTO:
        return _BACKENDS[0]
    if word not in _BACKENDS:
        raise input_error(
            f'execution_backend is one of {AUTO}, {", ".join(_BACKENDS)}, not "{word}"',
            hint=did_you_mean(word, _BACKENDS),
        )
    return word


def _checked_configs(configs: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
    """Return the pass configs, sorted by name. Raises `InputError` for an unknown name, and
    `TypeError` for a value that is not a bool."""
    for name, value in configs.items():
        if name not in _PASS_CONFIGS:
            raise input_error(
                f'there is no pass config "{name}"',
                hint=did_you_mean(str(name), _PASS_CONFIGS)
                or f"there are {', '.join(_PASS_CONFIGS)}; for flags there is compile_flags",
            )
        if not isinstance(value, bool):
            raise TypeError(f"pass config {name} is True or False, not {value!r:.80}")
    return tuple(sorted(configs.items()))


def _split_flags(flags: object) -> tuple[str, ...]:
    """Return flags that are given as a list or as one string. Raises `TypeError`."""
    if flags is None:
        return ()
    words = flags.split() if isinstance(flags, str) else flags
    if not isinstance(words, list | tuple) or not all(isinstance(each, str) for each in words):
        raise TypeError(f"compile_flags holds words, not {flags!r:.80}")
    return tuple(words)


def _place(source: Source | str | os.PathLike[str]) -> tuple[str, str]:
    """Return the directory to start from and the script's name: `NAME`, `DIR:NAME`."""
    if isinstance(source, Source):
        return os.getcwd(), ""
    if isinstance(source, str | os.PathLike):
        above, colon, name = os.fspath(source).rpartition(":")
        return os.path.abspath(above if colon else os.curdir), name
    raise TypeError(f"a script's name or a Source was expected, not {type(source).__name__}")


TEMPLATE = "kernel.cu.j2"
SOURCES = "sources"
"""The directory of their projects, in the cache's directory for state."""


class Source:
    """A Jinja2 template of CUDA, and the keys of a `[script.NAME]` table of `tilus.toml`.

    `Source(text, kernel="scale", args={…}, launch={…}, space={…})`: the keywords are the table's
    keys, with `_` for `-`. `name` is the script's name; without it, the kernel's. `KernelCache`
    checks them, and raises `InputError`, when it makes a kernel.
    """

    __slots__ = ("name", "table", "text")

    def __init__(self, text: str, *, name: str | None = None, **table: Any) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a template is a str, not {type(text).__name__}")
        if "template" in table or "targets" in table:
            raise TypeError("a Source has its template as text, and its targets from its caller")
        self.text = text
        self.table = {key.replace("_", "-"): value for key, value in table.items()}
        self.name = name or str(table.get("kernel") or table.get("entry") or "kernel")

    def __repr__(self) -> str:
        return f"<Source {self.name}>"

    def manifest(self, target: str, declared: Mapping[str, Any]) -> str:
        """Return a `tilus.toml` that has this script for one target. Raises `InputError`."""
        tables = {
            "project": {"name": "kernel-cache", "version": "0"},
            f"target.{format_toml_key(target)}": declared,
            f"script.{format_toml_key(self.name)}": {"template": TEMPLATE, **self.table},
        }
        _check(self.table)
        lines = ["edition = 1"]
        for name, table in tables.items():
            lines += ["", f"[{name}]"]
            lines += [
                f"{format_toml_key(str(key))} = {format_toml(of)}" for key, of in table.items()
            ]
        return "\n".join(lines) + "\n"

    def project(self, above: str, target: str, declared: Mapping[str, Any]) -> str:
        """Write the project below a directory, unless there; its path. Raises `InputError`."""
        manifest = self.manifest(target, declared)
        directory = os.path.join(above, sha256_text(f"{manifest}\0{self.text}"))
        files = {"tilus.toml": manifest, TEMPLATE: self.text}
        try:
            os.makedirs(directory, exist_ok=True)
            for name, text in files.items():
                path, data = os.path.join(directory, name), text.encode()
                if not os.path.exists(path) or read_bytes(path) != data:
                    write_atomic(path, data)
        except OSError as error:
            raise input_error(f"{directory} cannot be written: {error.strerror}") from None
        return directory


def _check(value: object) -> None:
    """Raise `InputError` for what no manifest holds."""
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            _check(each)
    elif not isinstance(value, bool | int | float | str):
        raise input_error(f"a Source holds numbers, words, lists and tables, not {value!r:.80}")


def opened(wanted: Request) -> tuple[Project, str, str, FileTime]:
    """Return the project, the script's name, the target's, and when we began to read the project.
    Raises `InputError`."""
    given: dict[str, str | int | None] = {"level": 0}
    if wanted.backend == "nvrtc":
        given["device-compiler"] = "nvrtc"
    began = time.monotonic_ns()
    if isinstance(wanted.source, Source):
        target, declared = _target_of_source(wanted.target)
        above = os.path.join(get_cache_dir(), "state", SOURCES)
        given["cache-dir"] = get_cache_dir()
        Tree(
            get_cache_dir()
        ).ensure_complete()  # its mark first: what is in a directory without is not ours
        directory, script = wanted.source.project(above, target, declared), wanted.source.name
        project = Project.open(directory, given, os.environ)
    else:
        project = Project.open(wanted.directory, given, os.environ)
        script = wanted.source
        if script not in project.manifest.scripts:
            hint = did_you_mean(script, project.manifest.scripts)
            raise input_error(f'no script "{script}" in {project.manifest.path}', hint=hint)
        target = _target_of_script(project.manifest, script, wanted.target)
    if wanted.backend == "nvrtc" and project.manifest.targets[target].is_cpu:
        raise input_error(
            f"{script}: the backend nvrtc compiles for GPUs, and {target} is the cpu",
            hint='execution_backend="tvm_ffi" or "ctypes" run there',
        )
    project.manifest = _narrowed(project.manifest, script, target, wanted)
    since = project.clock.read_time().subtract(time.monotonic_ns() - began)
    return project, script, target, since


def _target_of_source(word: str) -> tuple[str, Mapping[str, Any]]:
    if word in (AUTO, _CUDA):
        gpu = find_first_gpu()
        if gpu is None and word == _CUDA:
            raise input_error(
                'target "cuda" is the GPU of this machine, and there is none',
                hint='name its architecture to build anyway: target="sm_90a"',
            )
        word = gpu.arch if gpu else "cpu"
    try:
        name = parse_arch(word).name
    except ArchError as error:
        raise input_error(f'target: "{word}" is not an architecture', hint=error.hint) from None
    return name, {"arch": name}


def _target_of_script(manifest: Manifest, script: str, word: str) -> str:
    """Return the target of that name or architecture; with "cuda" and "auto", the best for this
    machine. Without a GPU, "cuda" is the only target of CUDA, and "auto" the cpu."""
    targets = make_targets(manifest)
    known = {name: targets[name] for name in manifest.targets_of(script)}
    choices = ", ".join(f"{name} ({each.arch})" for name, each in known.items())
    if word not in (AUTO, _CUDA) or word in known:
        fitting = [name for name, each in known.items() if word in (name, each.arch)]
        if not fitting:
            raise input_error(f'{script} is not built for "{word}"', hint=f"it is for {choices}")
        return fitting[0]
    gpu = find_first_gpu()
    ranked = [
        (rank, name)
        for name, each in known.items()
        if gpu and (rank := rank_code([a.name for a in each.archs], each.ptx, gpu)[0])
    ]
    fitting = [name for _, name in sorted(ranked)]
    if word == AUTO:
        fitting += [name for name, each in known.items() if each.kind == "cpu"]
    else:
        of_cuda = [name for name, each in known.items() if each.kind == "cuda"]
        fitting += of_cuda if len(of_cuda) == 1 else []
    if not fitting:
        here = f"its GPU is {gpu}" if gpu else "there is no CUDA device"
        raise input_error(
            f"{script} is built for {choices}, and here {here}", hint="give target= to build anyway"
        )
    return fitting[0]


def _narrowed(manifest: Manifest, script: str, target: str, wanted: Request) -> Manifest:
    """Return the manifest with one instance and one default."""
    owner = manifest.scripts[script]
    _check_flags(manifest, script, target, wanted)
    params = _by_name(manifest, script, target, wanted)
    declared = manifest.toolchain
    if wanted.target_host is not None:
        march = {"host_march": wanted.target_host}
        named = {name: each.replace_values(**march) for name, each in declared.named.items()}
        declared = declared.replace_values(**march, named=named)
    schedule = _schedule(manifest, script, target, params)
    override = dict(owner.override)
    if target in override:
        kept = {name: v for name, v in override[target].default.items() if name not in schedule}
        override[target] = override[target].replace_values(default=kept, params={})
    fixed = owner.replace_values(
        params=_constants(manifest, script, target, params),
        default={**owner.default, **schedule},
        override=override,
    )
    changed: dict[str, Any] = {"scripts": {**manifest.scripts, script: fixed}}
    changed["toolchain"] = declared
    if wanted.config("line_directives"):
        changed["build"] = manifest.build.replace_values(line_directives=True)
    flags = wanted.flags
    host = manifest.targets[target]
    if host.is_cpu:
        host = host.replace_values(flags=(*host.flags, *flags))
        return manifest.replace_values(**changed, targets={**manifest.targets, target: host})
    if wanted.config("disable_ptxas_opt"):
        flags = (*flags, "--ptxas-options=-O0")
    return manifest.replace_values(**changed).with_last_flags(flags)


def _check_flags(manifest: Manifest, script: str, target: str, wanted: Request) -> None:
    """Hold the caller's flags to what a manifest's are held to. Raises `InputError`."""
    unsafe = manifest.build.unsafe_flags or manifest.scripts[script].unsafe_flags
    cpu = manifest.targets[target].is_cpu
    for _, message, hint in flag_problems(wanted.flags, unsafe=unsafe, cpu=cpu):
        raise input_error(f"compile_flags: {message}", hint=hint)
    if wanted.target_host is not None and not names_march(wanted.target_host):
        raise input_error(
            f'target_host: "{wanted.target_host}" is not the name of an architecture',
            hint='such as "x86-64-v3" or "armv8-a+crc"',
        )


def _by_name(manifest: Manifest, script: str, target: str, wanted: Request) -> dict[str, Value]:
    """Return the values of the request by name. Raises `InputError` and `TypeError`."""
    names = [n for each in manifest.scripts[script].params_for(target) for n in each.names]
    if len(wanted.positional) > len(names):
        raise input_error(
            f"{script} has {len(names)} constants, not {len(wanted.positional)}",
            hint="values of the schedule are given by name",
        )
    found = dict(zip(names, wanted.positional, strict=False))
    for name, value in wanted.params:
        if name in found:
            raise TypeError(f"{script}: {name} is given by position and by name")
        found[name] = value
    return found


def _schedule(
    manifest: Manifest, script: str, target: str, params: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the request's values of the space. Raises `InputError` for names of nothing."""
    owner = manifest.scripts[script]
    constants = {name for each in owner.params_for(target) for name in each.names}
    names = {name for each in owner.space_for(target).values() for name in each.names}
    imported = read_imported_space(manifest, script)
    names |= {name for each in (imported.parameters if imported else ()) for name in each.names}
    unknown = sorted(params.keys() - names - constants)
    if unknown:
        raise input_error(
            f'{script} has no parameter "{unknown[0]}"',
            hint=did_you_mean(unknown[0], names | constants),
        )
    return {name: value for name, value in params.items() if name in names}


def _constants(
    manifest: Manifest, script: str, target: str, params: Mapping[str, Value]
) -> dict[str, Any]:
    """Choose one row of each constant, by its key. Raises `InputError` unless one is left."""
    fixed: dict[str, Any] = {}
    for each in manifest.scripts[script].params_for(target):
        wanted = {name: params[name] for name in each.names if name in params}
        rows = [
            row
            for row in each.values
            if all(
                (type(value), value) == (type(own := row[each.names.index(name)]), own)
                for name, value in wanted.items()
            )
        ]
        if len(rows) != 1:
            label = ", ".join(each.names)
            choices = "; ".join(", ".join(map(repr, row)) for row in rows or each.values)
            what = "has several values of" if rows else "has no such value of"
            raise input_error(f"{script} {what} {label}", hint=f"choose by keyword from: {choices}")
        fixed[", ".join(each.names)] = rows[0][0] if len(each.names) == 1 else (rows[0],)
    return fixed
