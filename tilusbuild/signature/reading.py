"""Find the kernels of a source or a template: each `__global__` function, with its parameters.

No compiler runs and nothing is rendered. Where the text alone does not decide, nothing is guessed:
the kernel has a `problem`, or a parameter has no `dtype`, and the user writes it down. Offsets in a
blanked text are offsets in the file. The time is proportional to the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from tilusbuild.signature.parsing import C_TYPES, split_at_commas

# Every alternative begins with another letter, so that most positions fail at once.
_SOURCE = (
    r"/(?P<comment>/(?:\\\n|[^\n])*|\*.*?\*/)"
    r'|R"(?P<raw>[^()\\\s]{0,16})\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"'
)
# A tag without an end stops at the next tag or the end of the text. Otherwise each of n open tags
# would read the whole rest of the text.
_JINJA = (
    r"\{(?P<remark>#.*?(?:#\}|\Z))|\{(?P<value>\{(?:(?!\}\}|\{\{|;).)*\}\})"
    r"|\{(?P<tag>%.*?(?:%\}|\Z))"
)
_IN_SOURCE = re.compile(_SOURCE, re.DOTALL)
_IN_TEMPLATE = re.compile(f"{_JINJA}|{_SOURCE}", re.DOTALL)
_VALUE, _TAG = "\1", "\2"
"""Replacements for Jinja's tags: characters that C++ does not have."""
_CPU = re.compile(
    r"\{[{%](?:(?![%}]\}|\{[{%]).)*?\b(?:target\.kind|tilusbuild/portable)\b", re.DOTALL
)
_MARK = re.compile(
    r'e(?<!\we)xtern(?P<c>\s{1,9}"C")\s{0,9}\{|n(?<!\wn)amespace\b(?P<space>[\s\w:]{0,200})\{|[{}]'
    r"|__global__(?<!\w__global__)\b|#\s*define\s+(?P<macro>\w+)\s+(?P<text>[\w: \1]+?)\s*(?:\n|\Z)"
    r"|t(?<!\wt)ypedef\s+(?P<type>[\w: \1]+?)\s+(?P<name>\w+)\s*;"
    r"|u(?<!\wu)sing\s+(?P<alias>\w+)\s*=\s*(?P<of>[\w: \1]+?)\s*;"
)
_HEAD = re.compile(r"\s*(?:\[\[.*?\]\]|([A-Za-z_][\w:]*)\s*(\()?)", re.DOTALL)
_DROPPED = re.compile(r"\[\[.*?\]\]|\\\n|\b(?:volatile|__restrict(?:__)?|TB_RESTRICT)\b")
_PARAMETER = re.compile(
    r"\s*([\w:\s]+?)\s*(\*(?:\s*const\b)?)?\s*\b([A-Za-z_]\w*)\s*(\[[^][]*\])?\s*"
)
_C = 'extern "C"'
_WHOLE = {"unsigned", "signed", "long", "short", "int", "char"}
_TYPES = {*_WHOLE, "const", "float", "double", "void", "bool"}
_OURS = {f"tb::{name}": name for name in ("f16", "bf16", "f8e4m3", "f8e5m2")}


class KernelParameter(Struct, frozen=True):
    """A parameter of a kernel.

    `dtype` is the manifest's name for its type or, of a pointer, for the type of its elements;
    "void", or "" if the text does not decide. `text` is the declaration.
    """

    name: str
    dtype: str
    is_pointer: bool
    is_const: bool
    text: str


class DeclaredKernel(Struct, frozen=True):
    """A `__global__` function. `name` is its name in a manifest: a C++ name contains `::`."""

    name: str
    parameters: tuple[KernelParameter, ...]
    start: int
    """The offset of `__global__` in the text."""
    problem: str = ""
    """Why a manifest has to declare the kernel; "" if it was read."""
    template: str = ""
    """The template parameters of a C++ template; "" for a plain function."""

    @property
    def plain(self) -> str:
        """The name without its namespaces."""
        return self.name.rpartition("::")[2]


def blank_comments(source: str, *, jinja: bool) -> str:
    """Return the text with comments as blanks and Jinja's tags as `_VALUE` and `_TAG`.

    The length and the line breaks stay the same.
    """

    def replace_match(found: re.Match[str]) -> str:
        kind = found.lastgroup or ""
        mark = {"comment": " ", "remark": " ", "value": _VALUE, "tag": _TAG}.get(kind)
        if mark is None:
            return found[0]
        return "\n".join(mark * len(line) for line in found[0].split("\n"))

    return (_IN_TEMPLATE if jinja else _IN_SOURCE).sub(replace_match, source)


def has_cpu_branch(template: str) -> bool:
    """Return whether a template has a branch on the kind of its target."""
    return bool(_CPU.search(template))


def find_kernels(text: str) -> list[DeclaredKernel]:
    """Return the kernels of a text from `blank_comments`."""
    starts, named = _scan_declarations(text)
    return [_read_kernel(text, start, scopes, named) for start, scopes in starts]


def find_aliases(text: str) -> dict[str, str]:
    """Return the types that a blanked text gives other names, by name.

    The type is "" for a name with several declarations, or one inside of braces: which one counts
    is not decided by the text alone.
    """
    return _scan_declarations(text)[1]


def _scan_declarations(text: str) -> tuple[list[tuple[int, list[str]]], dict[str, str]]:
    """Return the offsets of kernels with their scopes, and the aliases.

    A scope is an enclosing brace: `extern "C"`, the name of a namespace ("namespace" without a
    name), or "" for any other.
    """
    starts, named, scopes = list[tuple[int, list[str]]](), dict[str, str](), list[str]()
    for each in _MARK.finditer(text):
        name = each["macro"] or each["name"] or each["alias"]
        if name:
            of = each["text"] or each["type"] or each["of"]
            named[name] = "" if name in named or {*scopes} - {_C} else of
        elif each[0] == "__global__":
            starts.append((each.start(), scopes))
        elif each[0] == "}":
            scopes = scopes[:-1]
        else:
            space = each["space"]
            opened = "" if space is None else "".join(space.split()) or "namespace"
            scopes = [*scopes, _C if each["c"] else opened]
    return starts, named


def _read_kernel(
    text: str, start: int, scopes: list[str], named: Mapping[str, str]
) -> DeclaredKernel:
    name, inside, at = "", None, start
    while inside is None and (head := _HEAD.match(text, at)):
        at = head.end()
        if head[2]:  # the parameters, or those of an attribute, or of a macro
            end = _find_closing_parenthesis(text, at)
            if text[end : end + 200].lstrip()[:1] in ("{", ";"):
                name, inside = head[1], text[at : end - 1]
            at = end
    before = text[max(text.rfind(mark, 0, start) for mark in ";}{") + 1 : start]
    template = re.search(r"\btemplate\s*<(.*)>", before, re.DOTALL)
    outer = [each for each in scopes if each not in ("", _C)]
    is_c = _C in scopes or re.search(r'extern\s+"C"', before)
    inner = [each for _, each in split_at_commas(inside or "", "([{<", ")]}>")]
    if len(inner) == 1 and inner[0].strip() in ("", "void"):
        inner = []
    problem = ""
    if inside is None:
        problem = "the name and the parameters of this kernel are not plain C++"
    elif template or ">" in before:
        problem = f'"{name}" is a template'
    elif _TAG in inside or "#" in inside:
        problem = f'the parameters of "{name}" depend on {"a tag" if _TAG in inside else "macros"}'
    elif "namespace" in outer:
        problem = f'"{name}" is in a namespace without a name'
    return DeclaredKernel(
        name if is_c else "::".join([*outer, name]) if outer else f"::{name}",
        tuple(read_parameter(each, named) for each in inner),
        start,
        problem,
        template[1] if template else "",
    )


def _find_closing_parenthesis(text: str, at: int) -> int:
    """Return the offset after the parenthesis that closes the one opened before `at`."""
    depth = 1
    for found in re.compile(r"[()]").finditer(text, at):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.end()
    return len(text)


def read_parameter(text: str, named: Mapping[str, str]) -> KernelParameter:
    """Return the parameter of a C++ declaration. `named` has the source's own names of types."""
    shown = " ".join(text.replace(_VALUE, "").split())
    match = _PARAMETER.fullmatch(_DROPPED.sub(" ", text.partition("=")[0]))
    if match is None or match[3] in _TYPES:
        last = (re.findall(r"[A-Za-z_]\w*", text.partition("=")[0].partition("[")[0]) or [""])[-1]
        pointer, const = "*" in text or "[" in text, "const" in text.split("*")[0].split()
        return KernelParameter("" if last in _TYPES else last, "", pointer, const, shown)
    words, seen = match[1].split(), set[str]()
    while (own := " ".join(w for w in words if w != "const")) in named and own not in seen:
        seen.add(own)
        words = [*named[own].split(), *(word for word in words if word == "const")]
    is_pointer = bool(match[2] or match[4])
    dtype = _find_dtype([word.removeprefix("std::") for word in words if word != "const"])
    if (match[2] and match[4]) or (dtype == "void" and not is_pointer):
        dtype = ""
    return KernelParameter(match[3], dtype, is_pointer, "const" in words, shown)


def _find_dtype(words: list[str]) -> str:
    if _WHOLE.issuperset(words) and len(words) > 1:
        kept = [word for word in words if word not in ("int", "signed")]
        words = sorted(kept, key=lambda word: word != "unsigned") or ["int"]
    name = "int" if words == ["signed"] else " ".join(words)
    return "void" if name == "void" else C_TYPES.get(name, "") or _OURS.get(name, "")
