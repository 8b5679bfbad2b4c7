"""`load`: returns the kernel of a script, by name, from all places that have it.

Their instances are one set, of which the device of a call chooses. What the project around the
working directory built takes precedence, and what is in a tree that a person names. Then installed
packages are looked at only if it does not serve the machine. Two places without precedence that
have an instance for one device are an error.

To choose among instances, descriptions that this process read before are used. The chosen instances
are locked against collection and then read again. If a collection removed one in between, the
choice is repeated.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from tilusbuild.runtime import choose, device
from tilusbuild.runtime.errors import CorruptCacheError, LoadError, check_types, did_you_mean
from tilusbuild.runtime.kernel import Kernel
from tilusbuild.runtime.library import LIBRARY, check_library, read_meta
from tilusbuild.runtime.naming import NamePattern, parse_name, to_snake_case
from tilusbuild.runtime.option import warn_of_unknown_variables
from tilusbuild.runtime.reader_lock import ReaderLock
from tilusbuild.runtime.script import CALLED, SHARED, Script, read_script, read_script_once
from tilusbuild.runtime.search_roots import (
    Place,
    SearchRoot,
    find_search_roots,
    get_working_directory,
)
from tilusbuild.runtime.semantics import Value, check_constants

_REQUIRED = "TILUSBUILD_REQUIRE_SIGNED"
"""The variable with the PEM file of a public key, whose owner must have signed each package."""


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

    `script` is a name, also with constants and a target: `gemm[dtype=f16] sm_80`.
    `where` is a cache tree, a project's directory, a package, the name of a Python package that has
    kernels, or its module. Without `where`, the tree of TILUSBUILD_CACHE_DIR, the installed
    packages and the project's cache are searched.
    `target` is a target's name, an architecture or "cpu". Without `target`, the device of a call's
    arrays decides, or that of the machine. `params` are constants, which choose the instance.
    With `strict`, dispatch tables for other devices only are an error; else they are not used, and
    a warning is logged once. `signed_by` is the PEM file of a public key, by default that of
    TILUSBUILD_REQUIRE_SIGNED: only a package that the key's owner signed is accepted.

    Raises `LoadError`s: nothing is found, several fit, nothing runs here, something is damaged. No
    library is opened yet, and the CUDA driver is not called.
    """
    check_types(script=(script, str), strict=(strict, bool))
    chosen, hold, root = _find_instances(script, where, target, signed_by, params)
    form = chosen[0].form
    if form != CALLED:
        hint = "; tilusbuild.library_path gives its file" if form == SHARED else ""
        raise LoadError(f"{chosen[0].name!r} is a library, and cannot be called{hint}")
    if path := os.environ.get("TILUSBUILD_RECORD"):
        from tilusbuild.runtime.record import record_once  # most processes do not need it

        record_once(path)
    kernel = Kernel(chosen, strict=strict, hold=hold)
    where = _make_portable(where, root)
    options = {"where": where, "target": target, "strict": strict, "signed_by": signed_by}
    kernel.load_again = partial(load, script, **options, **params)  # type: ignore[arg-type]
    return kernel


def _make_portable(where: Any, root: SearchRoot) -> Any:
    """Return a `where` by which another process finds the tree that `where` meant here."""
    by_name = root.origin.startswith("package ") or root.origin.endswith("pyproject.toml")
    if by_name or (where is None and root.origin != "tilusbuild.option"):
        return getattr(where, "__name__", where)  # a module is not pickled
    # Another process has neither the option nor, perhaps, the working directory of this one.
    return root.project or root.path


def library_path(
    name: str, *, where: object = None, target: str | None = None, signed_by: str | None = None
) -> str:
    """Return the path of a shared library, after a check of its bytes by the build's digest.

    `where`, `target` and `signed_by` are as for `load`. Raises `LoadError`s. `cache gc` keeps the
    file of a loaded kernel, but not this one: open it at once.
    """
    check_types(name=(name, str))
    chosen, *_ = _find_instances(name, where, target, signed_by, {})
    if len(chosen) > 1:
        default_device = device.get_gpu(0) if device.may_have_cuda() else device.get_cpu()
        chosen = [choose.choose_instance(chosen, default_device)[0]]
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
) -> tuple[list[Script], list[ReaderLock], SearchRoot]:
    """Return the instances that fit, the locks that keep them, and the tree of the first.
    Signatures are checked if a key is given. Log a warning for each unknown environment variable.
    Raises `LoadError`s, and `TypeError` for an argument of another type."""
    check_types(target=(target, str, None), signed_by=(signed_by, str, os.PathLike, None))
    params = check_constants(params)
    warn_of_unknown_variables()
    name = _parse_script_name(script)
    target = name.target if target is None else target
    key = os.environ.get(_REQUIRED) or None if signed_by is None else signed_by
    # A collection may remove the listed scripts before they are read: then they are listed again,
    # at most three times.
    for is_last in (False, False, True):
        place_of: dict[str, Place] = {}
        try:
            chosen = _search(name, where, target, key, params, place_of)
            roots = [place_of[instance.path].root for instance in chosen]
            hold = [ReaderLock(r.path, [s.hash]) for r, s in zip(roots, chosen, strict=True)]
            return [read_script(instance.path) for instance in chosen], hold, roots[0]
        except CorruptCacheError:
            # If all directories are still there, one is damaged, and was not collected.
            if is_last or all(map(os.path.isdir, place_of)):
                raise
    raise AssertionError  # the last turn returns or raises


def _search(
    name: NamePattern,
    where: object,
    target: str | None,
    key: str | None,
    params: dict[str, Value],
    place_of: dict[str, Place],
) -> list[Script]:
    """Return the instances that fit. The places of all instances of the script are put into
    `place_of`, by their paths. Raises as `_find_instances`."""
    directory, start = to_snake_case(name.script), get_working_directory()
    scripts: list[Script] = []
    searched: list[SearchRoot] = []
    for root in find_search_roots(where):
        for script_group in root.list_places(directory, start):
            if key is not None:
                from tilusbuild.runtime.signed import check_signatures  # few ask for it

                check_signatures(script_group.paths, key)
            for path in script_group.paths:
                place_of[os.path.abspath(path)] = script_group
                scripts.append(read_script_once(path))
        preferred = [script for script in scripts if place_of[script.path].is_first]
        if preferred:
            with suppress(LoadError):  # what is missing may be in another place
                chosen = _choose_instances(name, preferred, place_of, target, params)
                if target or not device.may_have_cuda() or any(s.kind == "cuda" for s in chosen):
                    return chosen
        searched.append(root)
    if scripts:
        return _choose_instances(name, scripts, place_of, target, params)
    names = {(script_name, root) for root in searched for script_name in root.list_script_names()}
    hint = None
    with suppress(LoadError):  # a damaged index, which hides no script here
        # Of the scripts in a cache that projects share, only some can be loaded here.
        loadable = (
            script_name for script_name, root in names if root.list_places(script_name, start)
        )
        hint = did_you_mean(directory, loadable)
    if directory in dict(names):
        hint = "another project has it: `tilusbuild build` makes this one's, where= names the other"
    trees = (f"  {root.path} ({root.origin})" for root in searched)
    lines = [*([hint] if hint else []), "searched:", *trees]
    raise LoadError(f"there is no script {name.script!r}", lines)


def _parse_script_name(script: str) -> NamePattern:
    """Return the parsed name of a script. Raises `LoadError` for the name of one program."""
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
    instances: list[Script],
    place_of: Mapping[str, Place],
    target: str | None,
    params: dict[str, Value],
) -> list[Script]:
    """Return the instances with these constants. Without a CUDA device return the one that runs on
    the cpu. Raises `LoadError`s."""
    script = name.script
    fitting = [
        instance
        for instance in instances
        # Not by `.get`: there may be thousands of instances.
        if params.items() <= instance.params.items()
        and name.matches_instance(instance.name, instance.params)
    ]
    if not fitting:
        unknown = sorted(params.keys() - instances[0].params.keys())
        hint = did_you_mean(unknown[0], instances[0].params) if unknown else None
        choices = "; ".join(sorted({_format_params(instance.params) for instance in instances}))
        lines = [
            *([hint] if hint else []),
            f"there are: {choices or 'instances without constants'}",
        ]
        request = _format_params(params) or name
        trees = ", ".join(dict.fromkeys(instance.root for instance in instances))
        raise LoadError(f"no instance of {script} in {trees} has {request}", lines)
    preferred = [s for s in fitting if place_of[s.path].is_first] or fitting
    constants = sorted({_format_params(instance.params) for instance in preferred})
    if len(constants) > 1:
        raise LoadError(f"{script} has several instances: choose one by keyword", constants)
    # An instance of another place is for calls like those of the preferred ones only.
    form = _describe_call(preferred[0])
    fitting = [s for s in fitting if s in preferred or _describe_call(s) == form]
    if target is not None:
        chosen = [s for s in fitting if target in (s.target, s.arch, s.kind)]
        if not chosen:
            choices = ", ".join(f"{instance.target} ({instance.arch})" for instance in fitting)
            raise LoadError(f"{script} is not built for {target!r}: there is {choices}")
        return _select_runnable(chosen, place_of)
    fitting = _select_runnable(fitting, place_of)
    # Without a GPU only an instance for the cpu can be called, and a missing one is an error now.
    # With a GPU the arrays of a call decide.
    if not device.may_have_cuda():
        return [choose.choose_instance(fitting, device.get_cpu())[0]]
    return fitting


def _describe_call(script: Script) -> object:
    """Return what instances have in common of which a call may use any."""
    return script.params, [(a.name, a.type, a.out, a.inout) for a in script.arguments]


def _select_runnable(scripts: list[Script], place_of: Mapping[str, Place]) -> list[Script]:
    """Return the instances whose host code this CPU runs; of each kind of code those of places with
    precedence, if there are any. Raises `LoadError` for none, and as `_check_places`."""
    refusals = [(script, device.explain_cpu_refusal(script.code.isa)) for script in scripts]
    runnable = [script for script, refusal in refusals if refusal is None]
    if not runnable:
        reasons = (f"{script.label} is {refusal}" for script, refusal in refusals)
        raise LoadError(f"this CPU does not run {scripts[0].name}", reasons)
    first_kinds = {script.kind for script in runnable if place_of[script.path].is_first}
    distinct: dict[str, Script] = {}  # two packages can have the very same one
    for script in runnable:
        if place_of[script.path].is_first or script.kind not in first_kinds:
            distinct.setdefault(script.hash, script)
    callable_kinds = ("cpu", "cuda") if device.may_have_cuda() else ("cpu",)
    _check_places([s for s in distinct.values() if s.kind in callable_kinds], place_of)
    return list(distinct.values())


def is_tie(one: Script, other: Script) -> bool:
    """Return whether two instances of a script are for one architecture, or are called in other
    ways: then no device can choose."""
    return one.code.archs == other.code.archs or _describe_call(one) != _describe_call(other)


def _check_places(scripts: list[Script], place_of: Mapping[str, Place]) -> None:
    """Raise `LoadError` when two places have other instances for one architecture, or instances
    with other arguments."""
    for one, other in itertools.combinations(scripts, 2):
        places = place_of[one.path], place_of[other.path]
        if is_tie(one, other) and places[0] is not places[1]:
            remedies = [f"{places[0].remedy} ({one.label})", f"{places[1].remedy} ({other.label})"]
            raise LoadError(f"several places have {one.name}: choose one", remedies)


def _format_params(params: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in params.items())
