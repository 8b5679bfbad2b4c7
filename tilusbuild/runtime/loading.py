"""`load`: the kernel of a script, by name, from the first place that has it.

Instances are only glanced at to choose among them. Those that are chosen are locked against
collection, and read after that: what a collection removed in between is not there to be read, and
the choice is made again.
"""

from __future__ import annotations

import os

from tilusbuild.runtime import choose, device
from tilusbuild.runtime.errors import CorruptCacheError, LoadError, did_you_mean
from tilusbuild.runtime.kernel import Kernel
from tilusbuild.runtime.library import LIBRARY, check_library, read_meta
from tilusbuild.runtime.naming import NamePattern, parse_name, to_snake_case
from tilusbuild.runtime.option import warn_of_unknown_variables
from tilusbuild.runtime.places import SearchRoot, find_search_roots, get_working_directory
from tilusbuild.runtime.reader_lock import ReaderLock
from tilusbuild.runtime.script import CALLED, SHARED, Script, read_script, read_script_once
from tilusbuild.runtime.semantics import Value

_REQUIRED = "TILUSBUILD_REQUIRE_SIGNED"
"""Names the PEM file of a public key: then nothing is loaded that it did not sign."""


def load(
    script: str,
    *,
    where: object = None,
    target: str | None = None,
    strict: bool = False,
    signed_by: str | None = None,
    **params: Value,
) -> Kernel:
    """Return the kernel of a script: call it with arrays.

    `script` may have constants with it, `gemm[dtype=f16]`, and a target.
    `where` is a cache tree, a project's directory, a package, the name of a Python package that has
    kernels, or a module that stands for one; without it TILUSBUILD_CACHE_DIR, the installed
    packages and the project's cache are searched.
    `target` is a target's name, an architecture or "cpu"; without it the device decides, of the
    arrays or of the machine. `params` choose the instance. With `strict` a dispatch table of
    another device is an error; without, it is reported once and not used. `signed_by` is the PEM
    file of a public key, else TILUSBUILD_REQUIRE_SIGNED names one: then only a package that it
    signed is accepted.

    Raises `LoadError`s: nothing is found, several fit, nothing runs here, something is damaged. No
    library is opened yet, and the CUDA driver is not called.
    """
    chosen, hold = _find_instances(script, where, target, signed_by, params)
    if (form := chosen[0].form) != CALLED:
        hint = "; tilusbuild.library_path gives its file" if form == SHARED else ""
        raise LoadError(f"{chosen[0].name!r} is a library, and cannot be called{hint}")
    return Kernel(chosen, strict=strict, hold=hold)


def library_path(
    name: str, *, where: object = None, target: str | None = None, signed_by: str | None = None
) -> str:
    """Return the file of a shared library, checked against what was built.

    `where`, `target` and `signed_by` are as for `load`. Raises `LoadError`s. `cache gc` keeps the
    file of a loaded kernel, but not this one: open it at once.
    """
    chosen, _ = _find_instances(name, where, target, signed_by, {})
    if len(chosen) > 1:
        here_is = device.get_gpu(0) if device.may_have_cuda() else device.get_cpu()
        chosen = [choose.choose_instance(chosen, here_is)[0]]
    script = chosen[0]
    if script.form != SHARED:
        raise LoadError(f"{script.name!r} is not a shared library")
    path = script.get_library_path(script.first_program)
    check_library(path, read_meta(script, script.first_program)["files"][LIBRARY]["sha256"])
    return path


def _find_instances(
    script: str,
    where: object,
    target: str | None,
    signed_by: str | None,
    params: dict[str, Value],
) -> tuple[list[Script], ReaderLock]:
    """Return the instances that fit, one for each target, and the lock that keeps them. Raise
    `LoadError`s."""
    warn_of_unknown_variables()
    name = _parse_script_name(script)
    directory = to_snake_case(name.script)
    searched: list[str] = []
    script_names: set[str] = set()
    for root in find_search_roots(where):
        for again in (True, True, False):
            paths = root.list_instances(directory, get_working_directory())
            if not paths:
                break
            key = signed_by or os.environ.get(_REQUIRED)
            if key:
                from tilusbuild.runtime.signed import check_signatures

                check_signatures(paths, key)
            try:
                instances = [read_script_once(path) for path in paths]
                chosen = _choose_instances(name, root, instances, target or name.target, params)
                hold = ReaderLock(root.path, (script.hash for script in chosen))
                return [read_script(each.path) for each in chosen], hold
            except CorruptCacheError:
                if not again or all(map(os.path.isdir, paths)):
                    raise
        script_names.update(root.list_script_names())
        searched.append(f"{root.path} ({root.origin})")
    hint = did_you_mean(directory, script_names)
    lines = [f"there is no script {name.script!r}", *([hint] if hint else []), "searched:"]
    raise LoadError("\n  ".join([*lines, *(f"  {each}" for each in searched)]))


def _parse_script_name(script: str) -> NamePattern:
    """Return the parsed name of a script. Raise `LoadError` for the name of one program."""
    if script.replace("_", "").isalnum():
        return NamePattern(script)  # parsing imports `re`
    try:
        name = parse_name(script)
    except ValueError as error:
        raise LoadError(f"{script!r}: {error}") from None
    if name.program is not None:
        raise LoadError(f"{script!r} is one program: load {name.script!r}")
    return name


def _choose_instances(
    name: NamePattern,
    root: SearchRoot,
    instances: list[Script],
    target: str | None,
    params: dict[str, Value],
) -> list[Script]:
    """Return the instances with these constants, one for each target. Without a CUDA device return
    the one that runs on the cpu. Raise `LoadError`s."""
    script = name.script
    fitting = [
        each
        for each in instances
        if _has_constants(each, params) and name.matches_instance(each.name, each.params)
    ]
    if not fitting:
        unknown = sorted(params.keys() - instances[0].params.keys())
        hint = did_you_mean(unknown[0], instances[0].params) if unknown else ""
        choices = "; ".join(sorted({_format_constants(each) for each in instances}))
        raise LoadError(
            f"no instance of {script} in {root.path} has {_format_params(params) or name}"
            + (f"\n  {hint}" if hint else "")
            + f"\n  there are: {choices or 'instances without constants'}"
        )
    if len({_format_constants(each) for each in fitting}) > 1:
        choices = "\n  ".join(sorted({_format_constants(each) for each in fitting}))
        raise LoadError(f"{script} has several instances: choose one by keyword\n  {choices}")
    if target is not None:
        fitting = _filter_by_target(script, fitting, target)
    if target is None and not device.may_have_cuda():
        return [choose.choose_instance(fitting, device.get_cpu())[0]]
    return fitting


def _filter_by_target(script: str, fitting: list[Script], target: str) -> list[Script]:
    """Return the instances of a target's name, architecture or kind. Raise `LoadError` without
    one."""
    chosen = [each for each in fitting if target in (each.target, each.arch, each.kind)]
    if not chosen:
        choices = ", ".join(f"{each.target} ({each.arch})" for each in fitting)
        raise LoadError(f"{script} is not built for {target!r}: there is {choices}")
    return chosen


def _has_constants(script: Script, params: dict[str, Value]) -> bool:
    # Without a default object for what is missing: there may be thousands of instances.
    return params.items() <= script.params.items()


def _format_constants(script: Script) -> str:
    return _format_params(script.params)


def _format_params(params: object) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in dict(params).items())  # type: ignore[call-overload]
