"""A kernel's declaration in a source: the arguments that a manifest declares of it.

A source is read `without_comments`, by whoever asks: what a comment says is not a declaration.
Sizes of arrays are not in a declaration, so the only integer argument stands for them, or 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from tilusbuild.intake.draft import Draft, KernelDraft
from tilusbuild.signature.parsing import C_TYPES

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WORDS = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|restrict|__grid_constant__)\b")


class Declared(Struct, frozen=True):
    """What a source says of a kernel."""

    name: str
    """As `kernel` in a manifest has it."""
    parameters: tuple[str, ...]
    bound: tuple[tuple[str, str], ...] = ()
    """Template parameters that are types, each with the argument that the name gives it."""


def without_comments(source: str) -> str:
    """Return a source as the other functions take it, with a blank for each comment."""
    return _COMMENTS.sub(" ", source)


def declared(text: str, name: str) -> Declared | None:
    """Return the declaration of a `__global__` function; None where there is none."""
    plain = name.partition("<")[0]
    bounds = r"(?:__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)\s*)?"
    head = rf"__global__\s+(?:\w+\s+)*?{bounds}(?:void\s+)?{bounds}{re.escape(plain)}\s*\("
    match = re.search(head, text)
    if match is None:
        return None
    depth, end = 1, match.end()
    while end < len(text) and depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    parameters = [part.strip() for part in text[match.end() : end - 1].split(",")]
    is_c = "<" not in name and _is_c(text, match.start())
    full = name if is_c or "<" in name else f"::{name}"
    bound = _bound(text[: match.start()], name.partition("<")[2].rpartition(">")[0])
    return Declared(full, tuple(filter(None, parameters)), bound)


def _bound(before: str, arguments: str) -> tuple[tuple[str, str], ...]:
    """Return the types among the parameters of the template that ends `before`, as arguments bind
    them. Arguments that hold a comma themselves bind nothing."""
    head = re.search(r"template\s*<([^<>]*)>\s*\Z", before)
    if head is None or re.search(r"[<(]", arguments):
        return ()
    names = [each.partition("=")[0].split() for each in head[1].split(",")]
    given = [each.strip() for each in arguments.split(",")]
    kinds = ("typename", "class")
    pairs = zip(names, given, strict=False)
    return tuple((words[-1], value) for words, value in pairs if words and words[0] in kinds)


def _is_c(text: str, start: int) -> bool:
    """Return whether what stands at `start` is declared `extern "C"`, also by a block."""
    before = text[:start]
    if re.search(r'extern\s+"C"\s*(?:\w+\s+)*\Z', before):
        return True
    opened = [match.end() for match in re.finditer(r'extern\s+"C"\s*\{', before)]
    return any(before[at:].count("{") >= before[at:].count("}") for at in opened)


def take_arguments(draft: Draft, kernel: KernelDraft, found: Declared, text: str) -> None:
    """Add the arguments of a kernel to its draft."""
    named = {**_aliases(text), **dict(found.bound)}
    types = [_argument(parameter, named) for parameter in found.parameters]
    sizes = [name for name, type_, pointer in types if type_ in ("i32", "i64") and not pointer]
    size = sizes[0] if len(sizes) == 1 else "1"
    for (name, type_, pointer), parameter in zip(types, found.parameters, strict=True):
        if type_ is None or not name:
            draft.note(f"{kernel.name}: the type of an argument is not understood: {parameter}")
            type_ = "u8"
        if not pointer:
            kernel.args[name] = type_
            continue
        written = re.search(rf"\b{re.escape(name)}\s*\[[^;]*?\]\s*[-+*/|&^]?=[^=]", text)
        tensor = f"{type_}*[{size}]"
        is_out = written is not None and "const" not in parameter
        kernel.args[name] = {"type": tensor, "out": True} if is_out else tensor
    if size == "1" and any(pointer for _, _, pointer in types):
        draft.note(f"{kernel.name}: the sizes of its arrays are not known; they are written as [1]")


def take_constants(draft: Draft, kernel: KernelDraft, names: Iterable[str], text: str) -> None:
    """Add the `__constant__` variables that a caller fills to a kernel's arguments. A caller may
    fill less of an array than there is, so its size is that of what is given."""
    named = _aliases(text)
    for name in names:
        own = re.escape(name)
        # Bounded, because the source is not trusted.
        match = re.search(
            rf"__(?:constant|device)__([\w\s]{{1,200}})\b{own}\s{{0,20}}(\[[^;={{]{{0,500}}\])?"
            r"\s{0,20}[;={]",
            text,
        )
        type_ = _argument(f"{match[1]} {name}", named)[1] if match else None
        if match is None or type_ is None or name in kernel.args:
            draft.note(f"{kernel.name}: what fills {name} is not understood: declare it in args")
            continue
        if match[2] is None:
            kernel.args[name] = {"type": type_, "constant": True}
            continue
        size = f"{name}_size"
        while size in kernel.args:
            size += "_"
        kernel.args[name] = {"type": f"{type_}*[{size}]", "constant": True}
        kernel.args[size] = {"type": "i32", "parameter": False}


def _aliases(text: str) -> dict[str, str]:
    """Return other names that a source gives types: of several of one name, the first."""
    found: dict[str, str] = {}
    for name, of in re.findall(r"#\s*define\s+(\w+)\s+([\w ]+?)\s*\n", text):
        found.setdefault(name, of)
    for of, name in re.findall(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;", text):
        found.setdefault(name, of)
    for name, of in re.findall(r"\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;", text):
        found.setdefault(name, of)
    return found


def _argument(parameter: str, named: Mapping[str, str]) -> tuple[str, str | None, bool]:
    """Return name, element type and whether it is a pointer, of a parameter as C++ has it; `named`
    has what the source names types itself. Of a vector the type is that of its elements."""
    text = _WORDS.sub(" ", parameter.partition("=")[0])
    pointer = "*" in text or text.rstrip().endswith("]")
    words = re.sub(r"[*&]|\[[^\]]*\]", " ", text).split()
    name = words[-1] if len(words) > 1 else ""
    type_ = " ".join(words[:-1])
    seen: set[str] = set()
    while type_ not in C_TYPES and type_ in named and type_ not in seen:
        seen.add(type_)
        type_ = named[type_]
    plain = re.sub(r"^(u?(?:char|short|int|long)|float|double)[234]$", r"\1", type_)
    return name, C_TYPES.get(plain), pointer
