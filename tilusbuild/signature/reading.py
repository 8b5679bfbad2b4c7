"""Kernels as a source or a template declares them: each `__global__` function, with its parameters.

No compiler runs and nothing is rendered, so what the text does not say for sure is not read: a
kernel's `problem`, or a parameter without a `dtype`, is for a person. Each place in a text is one
of the file. It takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from tilusbuild.signature.parsing import C_TYPES, split_at_commas

# Each alternative begins with a letter of its own: only there is anything tried.
_SOURCE = (
    r"/(?P<comment>/(?:\\\n|[^\n])*|\*.*?\*/)"
    r'|R"(?P<raw>[^()\\\s]{0,16})\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"'
)
# One without an end goes to the next, or to the end of the text: else each reads all of the rest.
_JINJA = (
    r"\{(?P<remark>#.*?(?:#\}|\Z))|\{(?P<value>\{(?:(?!\}\}|\{\{|;).)*\}\})"
    r"|\{(?P<tag>%.*?(?:%\}|\Z))"
)
_IN_SOURCE = re.compile(_SOURCE, re.DOTALL)
_IN_TEMPLATE = re.compile(f"{_JINJA}|{_SOURCE}", re.DOTALL)
_VALUE, _TAG = "\1", "\2"
"""What a text has in the place of Jinja: letters of no C++."""
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


class Parameter(Struct, frozen=True):
    """A parameter. `dtype` is that of a manifest, of a pointer that of its elements, or "void"; ""
    where the text does not say it."""

    name: str
    dtype: str
    is_pointer: bool
    is_const: bool
    text: str


class Kernel(Struct, frozen=True):
    """A `__global__` function. Its name is as a manifest has it: of C++, with `::`."""

    name: str
    parameters: tuple[Parameter, ...]
    start: int
    """Where it begins in the text."""
    problem: str = ""
    """Why it is not read."""
    template: str = ""
    """The parameters of the template that it is."""

    @property
    def plain(self) -> str:
        """The name without its namespaces."""
        return self.name.rpartition("::")[2]


def readable(source: str, *, jinja: bool) -> str:
    """Return a text with blanks for its comments, and letters of no C++ for Jinja's tags."""

    def instead(found: re.Match[str]) -> str:
        kind = found.lastgroup or ""
        mark = {"comment": " ", "remark": " ", "value": _VALUE, "tag": _TAG}.get(kind)
        if mark is None:
            return found[0]
        return "\n".join(mark * len(line) for line in found[0].split("\n"))

    return (_IN_TEMPLATE if jinja else _IN_SOURCE).sub(instead, source)


def has_cpu_branch(template: str) -> bool:
    """Return whether a template asks what kind of target it is rendered for."""
    return bool(_CPU.search(template))


def kernels(text: str) -> list[Kernel]:
    """Return the kernels of a readable text."""
    starts, named = _marks(text)
    return [_kernel(text, start, scopes, named) for start, scopes in starts]


def aliases(text: str) -> dict[str, str]:
    """Return what a readable text names types by; "" where several places do, or one in braces."""
    return _marks(text)[1]


def _marks(text: str) -> tuple[list[tuple[int, list[str]]], dict[str, str]]:
    """Return where kernels begin, each with what is open there: `extern "C"`, namespaces by name
    ("namespace" for none), "" for other braces; and the aliases."""
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


def _kernel(text: str, start: int, scopes: list[str], named: Mapping[str, str]) -> Kernel:
    name, inside, at = "", None, start
    while inside is None and (head := _HEAD.match(text, at)):
        at = head.end()
        if head[2]:  # the parameters, or those of an attribute, or of a macro
            end = _closed(text, at)
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
    return Kernel(
        name if is_c else "::".join([*outer, name]) if outer else f"::{name}",
        tuple(parameter(each, named) for each in inner),
        start,
        problem,
        template[1] if template else "",
    )


def _closed(text: str, at: int) -> int:
    """Return where the parenthesis that was opened before `at` ends."""
    depth = 1
    for found in re.compile(r"[()]").finditer(text, at):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.end()
    return len(text)


def parameter(text: str, named: Mapping[str, str]) -> Parameter:
    """Return a parameter as C++ has it; `named` has what the source names types by itself."""
    shown = " ".join(text.replace(_VALUE, "").split())
    match = _PARAMETER.fullmatch(_DROPPED.sub(" ", text.partition("=")[0]))
    if match is None or match[3] in _TYPES:
        last = (re.findall(r"[A-Za-z_]\w*", text.partition("=")[0].partition("[")[0]) or [""])[-1]
        pointer, const = "*" in text or "[" in text, "const" in text.split("*")[0].split()
        return Parameter("" if last in _TYPES else last, "", pointer, const, shown)
    words, seen = match[1].split(), set[str]()
    while (own := " ".join(w for w in words if w != "const")) in named and own not in seen:
        seen.add(own)
        words = [*named[own].split(), *(word for word in words if word == "const")]
    is_pointer = bool(match[2] or match[4])
    dtype = _dtype([word.removeprefix("std::") for word in words if word != "const"])
    if (match[2] and match[4]) or (dtype == "void" and not is_pointer):
        dtype = ""
    return Parameter(match[3], dtype, is_pointer, "const" in words, shown)


def _dtype(words: list[str]) -> str:
    if _WHOLE.issuperset(words) and len(words) > 1:
        kept = [word for word in words if word not in ("int", "signed")]
        words = sorted(kept, key=lambda word: word != "unsigned") or ["int"]
    name = "int" if words == ["signed"] else " ".join(words)
    return "void" if name == "void" else C_TYPES.get(name, "") or _OURS.get(name, "")
