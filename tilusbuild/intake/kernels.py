"""A kernel's declaration in a source: the arguments that a manifest declares of it.

A source is `readable`, by whoever asks: what a comment says is not a declaration. Sizes of arrays
are not in a declaration, so the only integer argument stands for them, or 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tilusbuild.intake.draft import Draft, KernelDraft
from tilusbuild.signature.reading import Kernel, aliases, kernels, parameter

_VECTORS = {
    f"{sign[:1]}{of}{width}": f"{sign} {of}"
    for sign, kinds in (("", ("float", "double")), ("unsigned", ()))
    for of in (*kinds, "char", "short", "int", "long")
    for width in (2, 3, 4)
}
"""Of a vector the type is that of its elements."""


def declared(text: str, name: str) -> tuple[str, Kernel, Mapping[str, str]] | None:
    """Return a `__global__` function as `kernel` in a manifest has it, its declaration, and the
    types that the name gives to the template's parameters; None where there is none."""
    plain, _, given = name.partition("<")
    for kernel in kernels(text):
        if kernel.plain == plain.rpartition("::")[2]:
            bound = _bound(kernel.template, given.rpartition(">")[0])
            return (name if given else kernel.name), kernel, bound
    return None


def _bound(template: str, arguments: str) -> dict[str, str]:
    """Return the types among the parameters of a template, as arguments bind them. Arguments that
    hold a comma themselves bind nothing."""
    if re.search(r"[<(]", template + arguments):
        return {}
    names = [each.partition("=")[0].split() for each in template.split(",")]
    given = [each.strip() for each in arguments.split(",")]
    pairs = zip(names, given, strict=False)
    return {words[-1]: of for words, of in pairs if words and words[0] in ("typename", "class")}


def take_arguments(
    draft: Draft, kernel: KernelDraft, found: Kernel, bound: Mapping[str, str], text: str
) -> None:
    """Add the arguments of a kernel to its draft."""
    named = {**_VECTORS, **aliases(text), **bound}
    types = [parameter(each.text, named) for each in found.parameters]
    sizes = [each.name for each in types if each.dtype in ("i32", "i64") and not each.is_pointer]
    size = sizes[0] if len(sizes) == 1 else "1"
    for each in types:
        type_ = each.dtype
        if type_ in ("", "void") or not each.name:
            draft.note(f"{kernel.name}: the type of an argument is not understood: {each.text}")
            type_ = "u8"
        if not each.is_pointer:
            kernel.args[each.name] = type_
            continue
        written = re.search(rf"\b{re.escape(each.name)}\s*\[[^;]*?\]\s*[-+*/|&^]?=[^=]", text)
        tensor = f"{type_}*[{size}]"
        is_out = written is not None and not each.is_const
        kernel.args[each.name] = {"type": tensor, "out": True} if is_out else tensor
    if size == "1" and any(each.is_pointer for each in types):
        draft.note(f"{kernel.name}: the sizes of its arrays are not known; they are written as [1]")


def take_constants(draft: Draft, kernel: KernelDraft, names: Iterable[str], text: str) -> None:
    """Add the `__constant__` variables that a caller fills to a kernel's arguments. A caller may
    fill less of an array than there is, so its size is that of what is given."""
    named = {**_VECTORS, **aliases(text)}
    for name in names:
        own = re.escape(name)
        # Bounded, because the source is not trusted.
        match = re.search(
            rf"__(?:constant|device)__([\w\s]{{1,200}})\b{own}\s{{0,20}}(\[[^;={{]{{0,500}}\])?"
            r"\s{0,20}[;={]",
            text,
        )
        type_ = parameter(f"{match[1]} {name}", named).dtype if match else ""
        if match is None or not type_ or name in kernel.args:
            draft.note(f"{kernel.name}: no argument was found to fill {name}: declare it in args")
            continue
        if match[2] is None:
            kernel.args[name] = {"type": type_, "constant": True}
            continue
        size = f"{name}_size"
        while size in kernel.args:
            size += "_"
        kernel.args[name] = {"type": f"{type_}*[{size}]", "constant": True}
        kernel.args[size] = {"type": "i32", "parameter": False}
