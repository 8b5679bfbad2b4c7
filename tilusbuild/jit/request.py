"""Checks the arguments of `KernelCache.cached`, and opens a project narrowed to the one program.

The arguments become a `KernelRequest` with a key: requests with equal keys are for the same kernel,
as far as that is known without reading files. A `Source` is a kernel whose template is a string in
the caller's program. It becomes a project in the cache's state directory, named by its content, so
that it is then built like any script. In the manifest of the opened project the constants and the
schedule of the request replace the lists and the defaults; nothing else is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from tilusbuild.arch import ArchError, parse_arch
from tilusbuild.builder.project import Project
from tilusbuild.cache import layout
from tilusbuild.cache.tree import Tree
from tilusbuild.errors import did_you_mean, input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.arguments import Arg
from tilusbuild.manifest.denied_flags import list_flag_problems, names_march
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.script import ScriptSection, make_signature
from tilusbuild.manifest.table import format_toml, format_toml_key
from tilusbuild.plan.model import make_targets
from tilusbuild.plan.spaces import read_imported_space
from tilusbuild.runtime.choose import rank_code
from tilusbuild.runtime.device import find_first_gpu
from tilusbuild.runtime.errors import check_types
from tilusbuild.runtime.regular import try_read_bytes
from tilusbuild.runtime.search_roots import get_cache_dir
from tilusbuild.runtime.semantics import check_constants
from tilusbuild.state.clock import FileTime
from tilusbuild.state.files import sha256_text, write_atomic

AUTO = "auto"
_CUDA = "cuda"
"""The target that is this machine's GPU."""
_BACKENDS = ("tvm_ffi", "ctypes", "nvrtc")
_VARIABLES = ("TARGET", "EXECUTION_BACKEND", "VERBOSE")
"""Variables of the environment, without their prefix `TILUSBUILD_`."""
_PASS_CONFIGS = ("disable_ptxas_opt", "dump_ir", "line_directives")
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
    def key(self) -> str:
        """Return a text that is equal for equal requests. The text has all fields but `verbose`,
        and the content of a `Source`."""
        fields, source = asdict(self), self.source
        del fields["verbose"]
        if isinstance(source, Source):
            fields["source"] = (source.text, source.name, source.table)
        # A text, because `True == 1 == 1.0`, and these make different kernels.
        return repr(fields)

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
    check_types(
        out_idx=(out_idx, int, Sequence, None),
        target=(target, str, None),
        target_host=(target_host, str, None),
        execution_backend=(execution_backend, str),
        verbose=(verbose, bool, None),
        pass_configs=(pass_configs, Mapping, None),
    )
    args = (*check_constants({f"constant {i}": value for i, value in enumerate(args, 1)}).values(),)
    params = check_constants(params)
    variables = {name: os.environ.get(f"TILUSBUILD_{name}") or "" for name in _VARIABLES}
    directory, name = _split_script_name(source)
    if target is None:
        target = variables["TARGET"] or AUTO
    outputs = (out_idx,) if isinstance(out_idx, int) else out_idx
    if not all(type(index) is int for index in outputs or ()):
        raise TypeError(f"out_idx holds whole numbers, not {out_idx!r}")
    if not target.strip():
        raise TypeError(f"target is the name of one, not {target!r:.80}")
    backend = execution_backend
    if backend == AUTO:
        backend = variables["EXECUTION_BACKEND"] or AUTO
    # The variable may be "auto", too.
    backend = _BACKENDS[0] if backend == AUTO else backend
    if backend not in _BACKENDS:
        raise input_error(
            f'execution_backend is one of {AUTO}, {", ".join(_BACKENDS)}, not "{backend}"',
            hint=did_you_mean(backend, _BACKENDS),
        )
    return KernelRequest(
        source=source if isinstance(source, Source) else name,
        directory=directory,
        target=target,
        target_host=target_host,
        backend=backend,
        out=None if outputs is None else tuple(outputs),
        flags=_split_flags(compile_flags),
        configs=_normalize_pass_configs(pass_configs or {}),
        positional=tuple(args),
        params=tuple(sorted(params.items())),
        verbose=variables["VERBOSE"].lower() not in _FALSE if verbose is None else verbose,
    )


def _normalize_pass_configs(configs: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
    """Return the pass configs as (name, value), sorted by name. Raises `InputError` for an unknown
    name, and `TypeError` for a value that is not a bool."""
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
    """Return the flags of a list, or of one string that is split at blanks; none for None. Raises
    `TypeError` for anything else."""
    if flags is None:
        return ()
    items = flags.split() if isinstance(flags, str) else flags
    if not isinstance(items, list | tuple) or not all(isinstance(flag, str) for flag in items):
        raise TypeError(f"compile_flags holds words, not {flags!r:.80}")
    return tuple(items)


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


class Source:
    """A Jinja2 template of CUDA, and the keys of a `[script.NAME]` table of `tilus.toml`.

    `Source(text, kernel="scale", args={…}, launch={…}, space={…})`: the keywords are the table's
    keys, with `_` for `-`. `name` is the script's name; without it, the kernel's. `KernelCache`
    checks the keys, and raises `InputError`, when a kernel is requested.
    """

    __slots__ = ("name", "table", "text")

    def __init__(self, text: str, *, name: str | None = None, **table: Any) -> None:
        """Keep the template and the table. Raises `TypeError` for a template that is not text, and
        for the keys `template` and `targets`."""
        if not isinstance(text, str):
            raise TypeError(f"a template is a str, not {type(text).__name__}")
        if "template" in table or "targets" in table:
            raise TypeError("a Source has its template as text, and its targets from its caller")
        self.text = text
        self.table = {key.replace("_", "-"): value for key, value in table.items()}
        self.name = name or str(table.get("kernel") or table.get("entry") or "kernel")

    def __repr__(self) -> str:
        return f"<Source {self.name}>"

    def write_project(self, parent: str, target: str, target_table: Mapping[str, Any]) -> str:
        """Write a project with this script and one target, and return the project's directory: in
        `parent`, named by the digest of the project. Equal files are not written again. Raises
        `InputError`."""
        _check_table_value(self.table)
        tables = {
            "project": {"name": "kernel-cache", "version": "0"},
            f"target.{format_toml_key(target)}": target_table,
            f"script.{format_toml_key(self.name)}": {"template": TEMPLATE, **self.table},
        }
        manifest = "edition = 1\n"
        # One key a line, so that an error shows the line of its key.
        for table_name, table in tables.items():
            manifest += f"\n[{table_name}]\n"
            for key, value in table.items():
                manifest += f"{format_toml_key(key)} = {format_toml(value)}\n"
        directory = os.path.join(parent, sha256_text(f"{manifest}\0{self.text}"))
        try:
            os.makedirs(directory, exist_ok=True)
            for file_name, text in {"tilus.toml": manifest, TEMPLATE: self.text}.items():
                path, data = os.path.join(directory, file_name), text.encode()
                # A file that is written again would have a new stamp, and all would be read again.
                if try_read_bytes(path) != data:
                    write_atomic(path, data)
        except OSError as error:
            raise input_error(f"{directory} cannot be written: {error.strerror}") from None
        return directory


def _check_table_value(value: object) -> None:
    """Raise `InputError` for a value that TOML cannot express, or that contains one."""
    if isinstance(value, Mapping):
        _check_table_value([*value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            _check_table_value(item)
    elif not isinstance(value, bool | int | float | str):
        raise input_error(f"a Source holds numbers, words, lists and tables, not {value!r:.80}")


class OpenedRequest(NamedTuple):
    """The project of a request, its manifest narrowed to the one program. `script` and `target` are
    names; `read_since` is the time at which reading of the project began."""

    project: Project
    script: str
    target: str
    read_since: FileTime


def open_project_of_request(request: KernelRequest) -> OpenedRequest:
    """Open the project of a request, and narrow its manifest to the program that the request asks
    for. For a `Source`, first write its project into the user's cache. Raises `InputError` and
    `CacheError`."""
    settings: dict[str, str | int | None] = {"level": 0}
    if request.backend == "nvrtc":
        settings["device-compiler"] = "nvrtc"
    # Nothing of the project is read before this.
    start = time.monotonic_ns()
    if isinstance(request.source, Source):
        target, target_table = _choose_target_of_source(request.target)
        cache, script = Tree(get_cache_dir()), request.source.name
        settings["cache-dir"] = cache.root
        # A cache writes nothing into a directory without its mark, so the mark comes first.
        cache.ensure_complete()
        sources_directory = os.path.join(cache.state_path, layout.SOURCES)
        directory = request.source.write_project(sources_directory, target, target_table)
        project = Project.open(directory, settings, os.environ)
    else:
        project, script = Project.open(request.directory, settings, os.environ), request.source
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
    # The time `start` by the file system's clock, which is known only now that the project is open:
    # its present time, less the time that has passed. A file with a later time may have been read
    # before it was written.
    read_since = project.clock.read_time().subtract(time.monotonic_ns() - start)
    return OpenedRequest(project, script, target, read_since)


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
        arch = parse_arch(word).name
    except ArchError as error:
        raise input_error(f'target: "{word}" is not an architecture', hint=error.hint) from None
    return arch, {"arch": arch}


def _choose_target_of_script(manifest: Manifest, script: str, word: str) -> str:
    """Return the name of the script's target that `word` means: a name, an architecture, "cuda" or
    "auto".

    "cuda" and "auto" choose the best target for the GPU of this machine. If none fits, "cuda" is
    the script's only target of CUDA, and "auto" is its target for the cpu. Raises `InputError`.
    """
    all_targets = make_targets(manifest)
    targets = {name: all_targets[name] for name in manifest.list_script_targets(script)}
    choices = ", ".join(f"{name} ({target.arch})" for name, target in targets.items())
    if word not in (AUTO, _CUDA) or word in targets:
        fitting = [name for name, target in targets.items() if word in (name, target.arch)]
        if not fitting:
            raise input_error(f'{script} is not built for "{word}"', hint=f"it is for {choices}")
        return fitting[0]
    gpu = find_first_gpu()
    ranks = {}
    if gpu:
        for name, target in targets.items():
            rank = rank_code([arch.name for arch in target.archs], target.ptx, gpu)[0]
            if rank:
                ranks[name] = rank
    if ranks:
        # Targets of equal rank are ordered by name, so that every run gives the same kernel.
        return min(ranks, key=lambda name: (ranks[name], name))
    kind = "cpu" if word == AUTO else "cuda"
    fitting = [name for name, target in targets.items() if target.kind == kind]
    if not fitting or (word == _CUDA and len(fitting) > 1):
        device = f"its GPU is {gpu}" if gpu else "there is no CUDA device"
        raise input_error(
            f"{script} is built for {choices}, and here {device}",
            hint="give target= to build anyway",
        )
    return fitting[0]


def _narrow_manifest(
    manifest: Manifest, script: str, target: str, request: KernelRequest
) -> Manifest:
    """Return a copy of the manifest in which the script has one program: one row of each constant,
    the requested values as defaults, and the requested flags, `-march` and pass configs. Raises
    `InputError` and `TypeError`."""
    section = manifest.scripts[script]
    _check_compile_options(manifest, script, target, request)
    values = _name_values(manifest, script, target, request)
    schedule = _select_schedule(manifest, script, target, values)
    override = dict(section.override)
    if target in override:
        # A target's override takes precedence over the tables of the section, which get the
        # requested values: so it must not have others for them.
        old_defaults = override[target].default
        defaults = {name: old_defaults[name] for name in old_defaults if name not in schedule}
        override[target] = override[target].replace_values(default=defaults, params={})
    narrowed = section.replace_values(
        args=_mark_outputs(section, request.out),
        params=_select_constants(manifest, script, target, values),
        default={**section.default, **schedule},
        override=override,
    )
    changes: dict[str, Any] = {"scripts": {**manifest.scripts, script: narrowed}}
    if request.target_host is not None:
        march, default = request.target_host, manifest.toolchain
        named = {n: tools.replace_values(host_march=march) for n, tools in default.named.items()}
        changes["toolchain"] = default.replace_values(host_march=march, named=named)
    if request.has_config("line_directives"):
        changes["build"] = manifest.build.replace_values(line_directives=True)
    # The requested flags come last, so that a request takes precedence over the manifest.
    old_target = manifest.targets[target]
    if old_target.is_cpu:
        new_target = old_target.replace_values(flags=(*old_target.flags, *request.flags))
        return manifest.replace_values(**changes, targets={**manifest.targets, target: new_target})
    ptxas_flags = ("--ptxas-options=-O0",) if request.has_config("disable_ptxas_opt") else ()
    return manifest.replace_values(**changes).add_last_flags((*request.flags, *ptxas_flags))


def _mark_outputs(section: ScriptSection, out: Sequence[int] | None) -> Mapping[str, Arg]:
    """Return the arguments of a script, of which the passed ones at the positions `out`, and no
    others, are outputs; None: those that are declared. Raises `InputError` for a position out of
    range, and for an argument that cannot be an output."""
    if out is None:
        return section.args
    arguments = make_signature(section).arguments
    passed = [a for a in arguments if a.is_passed and a.bytes is None]
    for index in out:
        if not -len(passed) <= index < len(passed):
            raise input_error(
                f"out_idx {index}: {section.kernel} is called with {len(passed)} arguments"
            )
        argument = passed[index]
        if not argument.is_tensor or argument.inout:
            problem = "is read, too" if argument.inout else "is not a tensor"
            raise input_error(f"out_idx {index}: {argument.name} {problem}")
    outputs = {passed[index].name for index in out}
    return {
        name: arg if arg.inout else arg.replace_values(out=name in outputs)
        for name, arg in section.args.items()
    }


def _check_compile_options(
    manifest: Manifest, script: str, target: str, request: KernelRequest
) -> None:
    """Raise `InputError` for flags and a `-march` that a manifest may not have."""
    # The rules are those for a manifest's flags: flags are part of the hash, so they may only
    # affect what the hash covers.
    unsafe = manifest.build.unsafe_flags or manifest.scripts[script].unsafe_flags
    is_cpu = manifest.targets[target].is_cpu
    for _, message, hint in list_flag_problems(request.flags, unsafe=unsafe, cpu=is_cpu):
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
    names = [n for row in manifest.scripts[script].list_constants(target) for n in row.names]
    if len(request.positional) > len(names):
        raise input_error(
            f"{script} has {len(names)} constants, not {len(request.positional)}",
            hint="values of the schedule are given by name",
        )
    # Not strict, because the other constants may have a value by name, or a single row.
    values = dict(zip(names, request.positional, strict=False))
    for name, value in request.params:
        if name in values:
            raise TypeError(f"{script}: {name} is given by position and by name")
        values[name] = value
    return values


def _select_schedule(
    manifest: Manifest, script: str, target: str, values: Mapping[str, Value]
) -> dict[str, Value]:
    """Return those of the requested `values` that are of the tuning space. Raises `InputError` for
    a name that is neither a constant nor a parameter."""
    section = manifest.scripts[script]
    imported = read_imported_space(manifest, script)
    rows = (
        *section.list_tuning_parameters(target).values(),
        *(imported.parameters if imported else ()),
    )
    names = {name for row in rows for name in row.names}
    constants = {name for row in section.list_constants(target) for name in row.names}
    unknown = sorted(values.keys() - names - constants)
    if unknown:
        raise input_error(
            f'{script} has no parameter "{unknown[0]}"',
            hint=did_you_mean(unknown[0], names | constants),
        )
    return {name: value for name, value in values.items() if name in names}


def _select_constants(
    manifest: Manifest, script: str, target: str, values: Mapping[str, Value]
) -> dict[str, Any]:
    """Return, for each key of the script's constants, the row with the requested `values`: a value,
    or a list of one row for a key of several names. Raises `InputError` unless exactly one row has
    the values."""
    constants: dict[str, Any] = {}
    for parameter in manifest.scripts[script].list_constants(target):
        names = parameter.names
        # Compared with types, because `True == 1 == 1.0`, and these make different kernels.
        requested = {n: (type(values[n]), values[n]) for n in names if n in values}
        rows = []
        for row in parameter.values:
            row_values = {n: (type(v), v) for n, v in zip(names, row, strict=True)}
            # Each requested value is in the row; the row may have more names.
            if requested.items() <= row_values.items():
                rows.append(row)
        if len(rows) != 1:
            choices = "; ".join(", ".join(map(repr, row)) for row in rows or parameter.values)
            problem = "has several values of" if rows else "has no such value of"
            raise input_error(
                f"{script} {problem} {', '.join(names)}", hint=f"choose by keyword from: {choices}"
            )
        constants[", ".join(names)] = rows[0][0] if len(names) == 1 else (rows[0],)
    return constants
