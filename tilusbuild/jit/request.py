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
from tilusbuild.manifest.denied_flags import list_flag_problems, names_march
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


class KernelRequest(Struct, frozen=True):
    """The arguments of one call of `KernelCache.cached`, checked."""

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
        """Return a hashable value that is equal for requests of the same kernel. `verbose` is not
        part of it."""
        source = self.source
        source_key = (
            (source,) if isinstance(source, str) else (source.text, source.name, repr(source.table))
        )
        return (
            *(source_key, self.directory, self.target, self.target_host, self.backend, self.out),
            *(self.flags, self.configs),
            tuple((type(value), value) for value in self.positional),
            tuple((name, type(value), value) for name, value in self.params),
        )

    def has_config(self, name: str) -> bool:
        """Return whether a pass config is on."""
        return dict(self.configs).get(name, False)


def to_request(
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
) -> KernelRequest:
    """Check the arguments of `KernelCache.cached`, apply the environment variables, and return the
    request. Raises `InputError` and `TypeError`."""
    directory, name = _split_script_name(source)
    backend = execution_backend
    if backend == AUTO:
        backend = os.environ.get(f"{_PREFIX}EXECUTION_BACKEND") or AUTO
    is_verbose_by_variable = os.environ.get(f"{_PREFIX}VERBOSE", "").lower() not in _FALSE
    for word, value in (*((f"constant {i}", v) for i, v in enumerate(args, 1)), *params.items()):
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"{word} is a {type(value).__name__}: constants are numbers and words")
    if target is None:
        target = os.environ.get(f"{_PREFIX}TARGET") or AUTO
    output_indexes = (
        (out_idx,) if isinstance(out_idx, int) else None if out_idx is None else tuple(out_idx)
    )
    if not all(type(index) is int for index in output_indexes or ()):
        raise TypeError(f"out_idx holds whole numbers, not {out_idx!r}")
    words: dict[str, object] = {"target": target, "target_host": target_host or AUTO}
    for argument, spelling in words.items():
        if not (isinstance(spelling, str) and spelling.strip()):
            raise TypeError(f"{argument} is the name of one, not {spelling!r:.80}")
    return KernelRequest(
        source=source if isinstance(source, Source) else name,
        directory=directory,
        target=target,
        target_host=target_host,
        backend=_check_backend(backend),
        out=output_indexes,
        flags=_split_flags(compile_flags),
        configs=_check_pass_configs(pass_configs or {}),
        positional=tuple(args),
        params=tuple(sorted(params.items())),
        verbose=is_verbose_by_variable if verbose is None else verbose,
    )


def _check_backend(word: str) -> str:
    """Return the name of the backend, with "auto" resolved. Raises `InputError` for an unknown
    name."""
    if word == AUTO:
        return _BACKENDS[0]
    if word not in _BACKENDS:
        raise input_error(
            f'execution_backend is one of {AUTO}, {", ".join(_BACKENDS)}, not "{word}"',
            hint=did_you_mean(word, _BACKENDS),
        )
    return word


def _check_pass_configs(configs: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
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


def _split_script_name(source: Source | str | os.PathLike[str]) -> tuple[str, str]:
    """Split `NAME` or `DIR:NAME`. Return the absolute directory and the name; of a `Source`, the
    working directory and ""."""
    if isinstance(source, Source):
        return os.getcwd(), ""
    if isinstance(source, str | os.PathLike):
        directory, colon, name = os.fspath(source).rpartition(":")
        return os.path.abspath(directory if colon else os.curdir), name
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

    def write_manifest(self, target: str, declared: Mapping[str, Any]) -> str:
        """Return the text of a `tilus.toml` with this script and one target. Raises
        `InputError`."""
        tables = {
            "project": {"name": "kernel-cache", "version": "0"},
            f"target.{format_toml_key(target)}": declared,
            f"script.{format_toml_key(self.name)}": {"template": TEMPLATE, **self.table},
        }
        _check_table_value(self.table)
        lines = ["edition = 1"]
        for name, table in tables.items():
            lines += ["", f"[{name}]"]
            lines += [
                f"{format_toml_key(str(key))} = {format_toml(of)}" for key, of in table.items()
            ]
        return "\n".join(lines) + "\n"

    def write_project(self, above: str, target: str, declared: Mapping[str, Any]) -> str:
        """Write the project below a directory, under the digest of its content, and return its
        path. Files with the right content are kept. Raises `InputError`."""
        manifest = self.write_manifest(target, declared)
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


def _check_table_value(value: object) -> None:
    """Raise `InputError` for a value that TOML cannot express."""
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            _check_table_value(each)
    elif not isinstance(value, bool | int | float | str):
        raise input_error(f"a Source holds numbers, words, lists and tables, not {value!r:.80}")


def open_requested(request: KernelRequest) -> tuple[Project, str, str, FileTime]:
    """Open the project of a request, and narrow its manifest to the one program. Return the
    project, the names of the script and of the target, and the time at which reading began. Raises
    `InputError`."""
    settings: dict[str, str | int | None] = {"level": 0}
    if request.backend == "nvrtc":
        settings["device-compiler"] = "nvrtc"
    start = time.monotonic_ns()
    if isinstance(request.source, Source):
        target, declared = _choose_target_of_source(request.target)
        sources_directory = os.path.join(get_cache_dir(), "state", SOURCES)
        settings["cache-dir"] = get_cache_dir()
        Tree(
            get_cache_dir()
        ).ensure_complete()  # its mark first: what is in a directory without is not ours
        directory, script = (
            request.source.write_project(sources_directory, target, declared),
            request.source.name,
        )
        project = Project.open(directory, settings, os.environ)
    else:
        project = Project.open(request.directory, settings, os.environ)
        script = request.source
        if script not in project.manifest.scripts:
            hint = did_you_mean(script, project.manifest.scripts)
            raise input_error(f'no script "{script}" in {project.manifest.path}', hint=hint)
        target = _choose_target_of_script(project.manifest, script, request.target)
    if request.backend == "nvrtc" and project.manifest.targets[target].is_cpu:
        raise input_error(
            f"{script}: the backend nvrtc compiles for GPUs, and {target} is the cpu",
            hint='execution_backend="tvm_ffi" or "ctypes" run there',
        )
    project.manifest = _narrow_manifest(project.manifest, script, target, request)
    # By the file system's clock, set back to `start`: what is written later may have been read
    # before.
    read_since = project.clock.read_time().subtract(time.monotonic_ns() - start)
    return project, script, target, read_since


def _choose_target_of_source(word: str) -> tuple[str, Mapping[str, Any]]:
    """Return the target of a `Source`: its name, and its table in the manifest. "auto" is the first
    GPU, or the cpu without one. Raises `InputError`."""
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


def _choose_target_of_script(manifest: Manifest, script: str, word: str) -> str:
    """Return the name of the target that a word means: a name, an architecture, "cuda" or "auto".
    The last two choose the best target for the GPU of this machine. Without a GPU, "cuda" is the
    only target of CUDA, and "auto" is the cpu. Raises `InputError`."""
    targets = make_targets(manifest)
    targets_by_name = {name: targets[name] for name in manifest.targets_of(script)}
    choices = ", ".join(f"{name} ({each.arch})" for name, each in targets_by_name.items())
    if word not in (AUTO, _CUDA) or word in targets_by_name:
        fitting_targets = [
            name for name, each in targets_by_name.items() if word in (name, each.arch)
        ]
        if not fitting_targets:
            raise input_error(f'{script} is not built for "{word}"', hint=f"it is for {choices}")
        return fitting_targets[0]
    gpu = find_first_gpu()
    targets_by_rank = [
        (rank, name)
        for name, each in targets_by_name.items()
        if gpu and (rank := rank_code([a.name for a in each.archs], each.ptx, gpu)[0])
    ]
    fitting_targets = [name for _, name in sorted(targets_by_rank)]
    if word == AUTO:
        fitting_targets += [name for name, each in targets_by_name.items() if each.kind == "cpu"]
    else:
        of_cuda = [name for name, each in targets_by_name.items() if each.kind == "cuda"]
        fitting_targets += of_cuda if len(of_cuda) == 1 else []
    if not fitting_targets:
        here = f"its GPU is {gpu}" if gpu else "there is no CUDA device"
        raise input_error(
            f"{script} is built for {choices}, and here {here}", hint="give target= to build anyway"
        )
    return fitting_targets[0]


def _narrow_manifest(
    manifest: Manifest, script: str, target: str, request: KernelRequest
) -> Manifest:
    """Return the manifest with one row of each constant, the requested values as defaults, and the
    requested flags. Raises `InputError` and `TypeError`."""
    script_section = manifest.scripts[script]
    _check_flags(manifest, script, target, request)
    values = _name_values(manifest, script, target, request)
    toolchain = manifest.toolchain
    if request.target_host is not None:
        march = {"host_march": request.target_host}
        named = {name: each.replace_values(**march) for name, each in toolchain.named.items()}
        toolchain = toolchain.replace_values(**march, named=named)
    schedule = _select_schedule(manifest, script, target, values)
    override = dict(script_section.override)
    if target in override:
        other_defaults = {
            name: v for name, v in override[target].default.items() if name not in schedule
        }
        override[target] = override[target].replace_values(default=other_defaults, params={})
    narrow_section = script_section.replace_values(
        params=_select_constants(manifest, script, target, values),
        default={**script_section.default, **schedule},
        override=override,
    )
    changes: dict[str, Any] = {"scripts": {**manifest.scripts, script: narrow_section}}
    changes["toolchain"] = toolchain
    if request.has_config("line_directives"):
        changes["build"] = manifest.build.replace_values(line_directives=True)
    flags = request.flags
    host = manifest.targets[target]
    if host.is_cpu:
        host = host.replace_values(flags=(*host.flags, *flags))
        return manifest.replace_values(**changes, targets={**manifest.targets, target: host})
    if request.has_config("disable_ptxas_opt"):
        flags = (*flags, "--ptxas-options=-O0")
    return manifest.replace_values(**changes).with_last_flags(flags)


def _check_flags(manifest: Manifest, script: str, target: str, request: KernelRequest) -> None:
    """Raise `InputError` for flags and a `-march` that a manifest may not have."""
    unsafe = manifest.build.unsafe_flags or manifest.scripts[script].unsafe_flags
    cpu = manifest.targets[target].is_cpu
    for _, message, hint in list_flag_problems(request.flags, unsafe=unsafe, cpu=cpu):
        raise input_error(f"compile_flags: {message}", hint=hint)
    if request.target_host is not None and not names_march(request.target_host):
        raise input_error(
            f'target_host: "{request.target_host}" is not the name of an architecture',
            hint='such as "x86-64-v3" or "armv8-a+crc"',
        )


def _name_values(
    manifest: Manifest, script: str, target: str, request: KernelRequest
) -> dict[str, Value]:
    """Return the requested values by name, positional constants first. Raises `InputError` for too
    many constants, `TypeError` for a name that is given twice."""
    names = [n for each in manifest.scripts[script].params_for(target) for n in each.names]
    if len(request.positional) > len(names):
        raise input_error(
            f"{script} has {len(names)} constants, not {len(request.positional)}",
            hint="values of the schedule are given by name",
        )
    values = dict(zip(names, request.positional, strict=False))
    for name, value in request.params:
        if name in values:
            raise TypeError(f"{script}: {name} is given by position and by name")
        values[name] = value
    return values


def _select_schedule(
    manifest: Manifest, script: str, target: str, params: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the requested values of the tuning space, by name. Raises `InputError` for a name that
    is neither a constant nor a parameter."""
    script_section = manifest.scripts[script]
    constants = {name for each in script_section.params_for(target) for name in each.names}
    names = {name for each in script_section.space_for(target).values() for name in each.names}
    imported_values = read_imported_space(manifest, script)
    names |= {
        name
        for each in (imported_values.parameters if imported_values else ())
        for name in each.names
    }
    unknown = sorted(params.keys() - names - constants)
    if unknown:
        raise input_error(
            f'{script} has no parameter "{unknown[0]}"',
            hint=did_you_mean(unknown[0], names | constants),
        )
    return {name: value for name, value in params.items() if name in names}


def _select_constants(
    manifest: Manifest, script: str, target: str, params: Mapping[str, Value]
) -> dict[str, Any]:
    """Return the row of each constant that has the requested values, by its key. Raises
    `InputError` unless exactly one row has them."""
    constants: dict[str, Any] = {}
    for each in manifest.scripts[script].params_for(target):
        requested_values = {name: params[name] for name in each.names if name in params}
        rows = [
            row
            for row in each.values
            if all(
                # With types: `True == 1` and `1 == 1.0`, but they make different kernels.
                (type(value), value) == (type(own := row[each.names.index(name)]), own)
                for name, value in requested_values.items()
            )
        ]
        if len(rows) != 1:
            label = ", ".join(each.names)
            choices = "; ".join(", ".join(map(repr, row)) for row in rows or each.values)
            what = "has several values of" if rows else "has no such value of"
            raise input_error(f"{script} {what} {label}", hint=f"choose by keyword from: {choices}")
        constants[", ".join(each.names)] = rows[0][0] if len(each.names) == 1 else (rows[0],)
    return constants
