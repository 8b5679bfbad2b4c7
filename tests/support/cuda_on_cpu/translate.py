"""CUDA C++ source to C++ that runs on device.h: inline assembly becomes function calls.

`asm("name.suffix {%0, %1}, [%2];" : outputs : inputs)` becomes `ptx::name_suffix(out0, out1, in0)`,
and a block of several, `{ .reg .pred p; …; }`, one of calls with its registers as variables. An
instruction that device.h does not have is thus a compile error that names it.
"""

import re

ASSEMBLY = re.compile(r"\basm\b\s*(volatile)?\s*\(")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s*\b(\w+)\s*\[\s*\]\s*;"
)


def translate(source: str, kernel: str) -> str:
    """The source with assembly and shared memory replaced, and a `main` that launches `kernel`."""
    source = assembly(source).replace("#include <cuda.h>", "")
    source = DYNAMIC_SHARED.sub(r"static \1 *const \2 = (\1 *)device::shared_memory;", source)
    source = re.sub(r"\b__shared__\b", "static", source)  # one block runs at a time
    return (
        f'#include "device.h"\n{source}\n'
        "int main(int, char **arguments) {\n"
        f"  return device::main(&{kernel}, arguments[1], arguments[2]);\n}}\n"
    )


def assembly(source: str) -> str:
    """Calls instead of inline assembly."""
    pieces, end = [], 0
    while match := ASSEMBLY.search(source, end):
        pieces.append(source[end : match.start()])
        sections, end = _sections(source, match.end())
        pieces.append(_statement(sections))
    return "".join([*pieces, source[end:]])


def _sections(source: str, start: int) -> tuple[list[str], int]:
    """What stands between the colons of an asm statement, and where the statement ends."""
    sections: list[str] = []
    depth, offset, begin = 0, start, start
    while True:
        char = source[offset]
        if char == '"':
            string = STRING.match(source, offset)
            assert string is not None, source[offset:]
            offset = string.end()
            continue
        if char in "([{":
            depth += 1
        elif char in ")]}":
            if depth == 0:
                return [*sections, source[begin:offset]], offset + 1
            depth -= 1
        elif char == ":" and depth == 0:
            sections.append(source[begin:offset])
            begin = offset + 1
        offset += 1


REGISTERS = {".pred": "unsigned", ".b64": "unsigned long long"}


def _statement(sections: list[str]) -> str:
    """What stands for an asm statement, without its semicolon."""
    text = "".join(STRING.findall(sections[0])).replace("\\n", " ").strip()
    values = [value for section in sections[1:3] for value in _operands(section)]
    if not text.startswith("{"):
        return _call(text.rstrip(";"), values)
    calls = []
    for part in text[1 : text.rindex("}")].split(";"):
        name, _, rest = part.strip().partition(" ")
        if name == ".reg":
            kind, register = rest.split()
            calls.append(f"{REGISTERS[kind]} {register} = 0;")
        elif name:
            calls.append(_call(part.strip(), values) + ";")
    return f"{{ {' '.join(calls)} }}"


def _call(instruction: str, values: list[str]) -> str:
    """The call that stands for an instruction; nothing for an empty one."""
    name, _, operands = instruction.partition(" ")
    words = [o for o in re.split(r"[\s,\[\]{}]+", operands) if o]
    arguments = [values[int(o[1:])] if o.startswith("%") else o for o in words]
    function = re.sub(r"[.:]+", "_", name)
    return f"ptx::{function}({', '.join(arguments)})" if name else "(void)0"


def _operands(section: str) -> list[str]:
    """The expressions of `"=r"(x), "r"(y)`."""
    expressions, offset = [], 0
    while constraint := STRING.search(section, offset):
        begin = section.index("(", constraint.end())
        depth = 0
        for offset in range(begin, len(section)):
            depth += {"(": 1, ")": -1}.get(section[offset], 0)
            if depth == 0:
                break
        offset += 1
        expressions.append(section[begin:offset])
    return expressions
