"""A kernel's declaration in a source: the arguments that a manifest declares of it.

Sizes of arrays are not in a declaration, so the only integer argument stands for them, or 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilusbuild.intake.draft import Draft, KernelDraft

_TYPES = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16", "bool": "bool", "char": "i8", "signed char": "i8", "int8_t": "i8",
    "unsigned char": "u8", "uint8_t": "u8", "short": "i16", "int16_t": "i16",
    "unsigned short": "u16", "uint16_t": "u16", "int": "i32", "int32_t": "i32",
    "unsigned int": "u32", "unsigned": "u32", "uint32_t": "u32", "long": "i64", "long long": "i64",
    "int64_t": "i64", "size_t": "u64", "unsigned long": "u64", "unsigned long long": "u64",
    "uint64_t": "u64",
}  # fmt: skip
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WORDS = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|restrict|__grid_constant__)\b")


@dataclass(frozen=True, slots=True)
class Declared:
    """What a source says of a kernel."""

    name: str
    """As `kernel` in a manifest has it."""
    parameters: tuple[str, ...]


def declared(source: str, name: str) -> Declared | None:
    """Return the declaration of a `__global__` function; None where there is none."""
    text = _COMMENTS.sub(" ", source)
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
    return Declared(name if is_c or "<" in name else f"::{name}", tuple(filter(None, parameters)))


def _is_c(text: str, start: int) -> bool:
    """Return whether what stands at `start` is declared `extern "C"`, also by a block."""
    before = text[:start]
    if re.search(r'extern\s+"C"\s*(?:\w+\s+)*\Z', before):
        return True
    opened = [match.end() for match in re.finditer(r'extern\s+"C"\s*\{', before)]
    return any(before[at:].count("{") >= before[at:].count("}") for at in opened)


def take_arguments(draft: Draft, kernel: KernelDraft, found: Declared, source: str) -> None:
    """Add the arguments of a kernel to its draft."""
    types = [_argument(parameter) for parameter in found.parameters]
    sizes = [name for name, type_, pointer in types if type_ in ("i32", "i64") and not pointer]
    size = sizes[0] if len(sizes) == 1 else "1"
    for (name, type_, pointer), parameter in zip(types, found.parameters, strict=True):
        if type_ is None or not name:
            draft.note(f"{kernel.name}: the type of an argument is not understood: {parameter}")
            type_ = "u8"
        if not pointer:
            kernel.args[name] = type_
            continue
        written = re.search(rf"\b{re.escape(name)}\s*\[[^;]*?\]\s*[-+*/|&^]?=[^=]", source)
        tensor = f"{type_}*[{size}]"
        is_out = written is not None and "const" not in parameter
        kernel.args[name] = {"type": tensor, "out": True} if is_out else tensor
    if size == "1" and any(pointer for _, _, pointer in types):
        draft.note(f"{kernel.name}: the sizes of its arrays are not known; they are written as [1]")


def _argument(parameter: str) -> tuple[str, str | None, bool]:
    """Return name, element type and whether it is a pointer, of a parameter as C++ has it."""
    text = _WORDS.sub(" ", parameter.partition("=")[0])
    pointer = "*" in text or text.rstrip().endswith("]")
    words = re.sub(r"[*&]|\[[^\]]*\]", " ", text).split()
    name = words[-1] if len(words) > 1 else ""
    return name, _TYPES.get(" ".join(words[:-1])), pointer
