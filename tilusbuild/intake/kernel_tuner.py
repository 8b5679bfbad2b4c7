"""A Kernel Tuner script, read and never run: the call of `tune_kernel` and what it is given."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence

from tilusbuild.expr import ExprError, Value, parse
from tilusbuild.intake.draft import Draft, KernelDraft, name_of
from tilusbuild.intake.kernels import declared, take_arguments
from tilusbuild.runtime.regular import read_text
from tilusbuild.space.t1 import MAX_VALUES

_PARAMETERS = ("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params")
_BLOCK = ("block_size_x", "block_size_y", "block_size_z")
_MAX_TEXT, _MAX_BITS = 1 << 20, 1 << 10
"""Of what is computed of a script, which is not trusted: characters or items, bits of a number."""
_SUFFIXES = (".cu", ".cuh", ".cpp", ".c")


def read(draft: Draft, root: str, name: str, files: dict[str, str]) -> None:
    """Add the kernels of a script to a draft; `files` takes the sources that it holds as text."""
    tree = ast.parse(read_text(os.path.join(root, name), "replace"))
    for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
        calls = [node for node in ast.walk(scope) if _is_tune(node)]
        inner = [n for n in ast.walk(scope) if isinstance(n, ast.FunctionDef) and n is not scope]
        own = [c for c in calls if not any(c in ast.walk(function) for function in inner)]
        known = {**_assigned(tree, draft, deep=False), **_assigned(scope, draft)} if own else {}
        for call in own:
            if isinstance(call, ast.Call):
                _kernel(draft, root, name, files, call, known)
    if not draft.kernels:
        draft.note(f"{name} has no call of tune_kernel that could be read")


def _is_tune(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    named = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return named == "tune_kernel"


def _assigned(scope: ast.AST, draft: Draft, *, deep: bool = True) -> dict[str, object]:
    """Return the variables of a scope whose values can be read off it, in the order written."""
    known: dict[str, object] = {}
    nodes = ast.walk(scope) if deep else ast.iter_child_nodes(scope)
    found = [node for node in nodes if isinstance(node, ast.Assign | ast.With)]
    for node in sorted(found, key=lambda each: each.lineno):
        if isinstance(node, ast.With):
            _opened(node, known)
            continue
        value = _value(node.value, known)
        for target in node.targets:
            if isinstance(target, ast.Name) and value is not None:
                known[target.id] = value
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                table, key = known.get(target.value.id), _value(target.slice, known)
                if isinstance(table, dict) and isinstance(key, str):
                    table[key] = value
    return known


def _opened(node: ast.With, known: dict[str, object]) -> None:
    """Take the name of a file that is read: `with open("k.cu") as f: text = f.read()`."""
    for item in node.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and call.args and isinstance(item.optional_vars, ast.Name):
            known[item.optional_vars.id] = _value(call.args[0], known)


def _value(node: ast.AST, known: Mapping[str, object]) -> object:
    """Return what an expression is, as far as it can be read; None for what cannot."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return known.get(node.id)
        case ast.List() | ast.Tuple():
            return [_value(item, known) for item in node.elts]
        case ast.Dict():
            keys = [_value(key, known) if key else None for key in node.keys]
            values = [_value(value, known) for value in node.values]
            return {k: v for k, v in zip(keys, values, strict=True) if isinstance(k, str)}
        case ast.Call():
            return _result(node, known)
        case ast.BinOp():
            return _operation(node, known)
        case ast.ListComp(generators=[ast.comprehension(target=ast.Name(id=name), ifs=[])]):
            items = _value(node.generators[0].iter, known)
            if isinstance(items, list):
                return [_value(node.elt, {**known, name: item}) for item in items]
    return None


def _result(node: ast.Call, known: Mapping[str, object]) -> object:
    """Return what a call gives, of those that scripts build their spaces and paths with."""
    given = [_value(each, known) for each in node.args]
    match node.func:
        case ast.Name(id="OrderedDict" | "dict") if not given:
            return {word.arg: _value(word.value, known) for word in node.keywords if word.arg}
        case ast.Name(id="OrderedDict" | "dict" | "list" | "str" | "int"):
            return given[0] if given else None
        case ast.Name(id="range"):
            ends = [each for each in given if isinstance(each, int)]
            if len(ends) != len(given) or not 1 <= len(ends) <= 3 or 0 in ends[2:]:
                return None
            return list(range(*ends)[:MAX_VALUES])
        case ast.Attribute(attr="join"):
            parts = [part for part in given if isinstance(part, str)]
            return parts[-1] if parts else None
        case ast.Attribute(attr="int32" | "int64" | "uint32"):
            return given[0] if given else None
        case ast.Attribute(attr="read", value=ast.Name(id=name)):
            return known.get(name)
    return None


def _operation(node: ast.BinOp, known: Mapping[str, object]) -> object:
    left, right = _value(node.left, known), _value(node.right, known)
    if isinstance(node.op, ast.Add) and type(left) is type(right) and isinstance(left, (str, list)):
        short = len(left) + len(right) <= _MAX_TEXT  # type: ignore[arg-type]
        return left + right if short else None  # type: ignore[operator]
    if not isinstance(left, int) or not isinstance(right, int) or left.bit_length() > _MAX_BITS:
        return None
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Pow() if 0 <= right < 64:
            return left**right
        case ast.FloorDiv() if right:
            return left // right
    return None


def _kernel(
    draft: Draft,
    root: str,
    script: str,
    files: dict[str, str],
    call: ast.Call,
    known: Mapping[str, object],
) -> None:
    given: dict[str, ast.expr] = dict(zip(_PARAMETERS, call.args, strict=False))
    given |= {word.arg: word.value for word in call.keywords if word.arg}
    said = {name: _value(node, known) for name, node in given.items()}
    name, source, space = (
        said.get("kernel_name"),
        said.get("kernel_source"),
        said.get("tune_params"),
    )
    where = f"{script}:{call.lineno}"
    if not isinstance(name, str) or not isinstance(source, str) or not isinstance(space, dict):
        draft.note(f"left out: {where} tunes what only running the script would tell")
        return
    directory = os.path.dirname(script)
    kernel = KernelDraft(name_of(name, [each.name for each in draft.kernels]), "", name)
    if source.endswith(_SUFFIXES) and "\n" not in source:
        kernel.template = os.path.normpath(os.path.join(directory, source))
        if not os.path.isfile(os.path.join(root, kernel.template)):
            draft.note(f"left out: {where} tunes {kernel.template}, which is not there")
            return
        text = read_text(os.path.join(root, kernel.template), "replace")
    else:
        kernel.template = f"kernels/{kernel.name}.cu"
        files[kernel.template] = text = source
    found = declared(text, name)
    if found is None:
        draft.note(
            f"left out: {where}: {kernel.template} declares no kernel {name} (is it OpenCL?)"
        )
        return
    kernel.kernel = found.name
    take_arguments(draft, kernel, found, text)
    take_space(draft, kernel, space)
    _rules(draft, kernel, said.get("restrictions"), "restrictions" in given)
    _launch(draft, kernel, said, given)
    draft.kernels.append(kernel)


def take_space(draft: Draft, kernel: KernelDraft, space: Mapping[object, object]) -> None:
    """Add parameters, each of them a macro as well, as Kernel Tuner has it."""
    for name, values in space.items():
        if not isinstance(values, list) or not values or None in values:
            draft.note(f"{kernel.name}: the values of {name} are not understood")
            continue
        kernel.space[str(name)] = values
        kernel.flags.append(f"-D{name}={{{{ {name} }}}}")


def _rules(draft: Draft, kernel: KernelDraft, rules: object, given: bool) -> None:
    if isinstance(rules, str):
        rules = [rules]
    if not isinstance(rules, list):
        if given:
            draft.note(f"{kernel.name}: its restrictions are not text")
        return
    for number, rule in enumerate(rules, 1):
        try:
            parse(str(rule))
        except ExprError as error:
            draft.note(f"{kernel.name}: a restriction is not understood: {rule} ({error.message})")
        else:
            kernel.restrict[f"rule_{number}"] = str(rule)


def _launch(
    draft: Draft, kernel: KernelDraft, said: Mapping[str, object], given: Mapping[str, object]
) -> None:
    node, sizes = given.get("problem_size"), said.get("problem_size")
    nodes = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    sizes = sizes if isinstance(sizes, list) else [sizes]
    if len(nodes) == len(sizes):
        # What the script calls as the kernel does is the argument: it may change from call to call.
        named = (getattr(each, "id", "") for each in nodes)
        sizes = [
            name if kernel.args.get(name) in ("i32", "i64") else size
            for name, size in zip(named, sizes, strict=True)
        ]
    names = said.get("block_size_names")
    block = names if isinstance(names, list) else _BLOCK
    kernel.block = [name for name in block if name in kernel.space] or [256]
    for axis, size in zip("xyz", sizes, strict=False):
        if not isinstance(size, (int, str)):
            draft.note(f"{kernel.name}: the problem's size in {axis} is not known; 1 is written")
            size = 1
        divisors = said.get(f"grid_div_{axis}")
        if divisors is None and f"grid_div_{axis}" not in given:
            own = f"block_size_{axis}"
            divisors = [own] if own in kernel.space and (axis == "x" or len(sizes) > 1) else []
        kernel.grid.append(_divided(size, divisors))


def _divided(size: Value, divisors: object) -> Value:
    if not isinstance(divisors, Sequence) or isinstance(divisors, str) or not divisors:
        return size
    by = " * ".join(f"({each})" if re.search(r"\W", str(each)) else str(each) for each in divisors)
    return f"cdiv({size}, {by})"
