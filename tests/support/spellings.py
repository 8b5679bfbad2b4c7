"""Ways to name a header in an include, by grammar: written out, or made by macros.

A `World` is a project's headers, a system's by some of the same names, and a source. The oracle
(`tests/compile/test_spellings.py`) knows none of the spellings: it asks the compilers.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

NAMES = (
    "sysexits.h", "paths.h", "own.h", "sub/paths.h", "sub/deep/own.h", "v64.h", "64.h", "noext",
    "Äpfel.h", "cost$.h", "two words.h", "a-b.h", "a+b.inc", "..h", "major.h",
    "./own.h", "../own.h", "sub/../paths.h", "../inc/sub/paths.h", "link/own.h", "link/v64.h",
)  # fmt: skip
PLACES = ("project/kernels", "project/inc", "project/inc/sub", "pkg/inc")
SYSTEM = "system"
_WORDS = ("alpha", "B_", "x", "h", "sub", "_", "Q7", "NAME", "sys", "own")


@dataclass
class World:
    """The files of a case, and how its command says what it defines."""

    files: dict[str, str] = field(default_factory=dict)
    defines: list[str] = field(default_factory=list)
    line_end: str = "\n"

    def write(self, directory: Path) -> None:
        (directory / "project/inc/sub/deep").mkdir(parents=True)
        (directory / "project/inc/link").symlink_to("sub/deep")
        for name, text in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.replace("\n", self.line_end).encode())


class _Maker:
    """Makes the definitions that a spelling needs, and says where each stands."""

    def __init__(self, rng: random.Random, *, narrow: bool) -> None:
        self.rng = rng
        self.narrow = narrow
        self.definitions: list[str] = []
        self.count = 0

    def name(self) -> str:
        self.count += 1
        stem = self.rng.choice(_WORDS if self.narrow else (*_WORDS, "Ä", "\\u00c4", "c$"))
        return f"{stem}{self.count}" if self.rng.random() < 0.9 else f"{stem}M{self.count}"

    def define(self, head: str, body: str) -> None:
        rng = self.rng
        sign = rng.choice(("#", "#", "#", "%:", " # ", "/**/#", "#/*\n*/"))
        text = f"{sign}define {head} {body}"
        way = rng.randrange(12)
        if way == 0:
            text = f"#if 0\n#define {head} {rng.choice(_WORDS)}\n#else\n{text}\n#endif"
        elif way == 1:
            text = f"#define {head} {rng.choice(_WORDS)}\n#undef {head.split('(')[0]}\n{text}"
        elif way == 2 and len(body) > 3:
            text = f"{sign}define {head} {body[:2]}\\\n{body[2:]}"
        elif way == 3:
            text += " // " + rng.choice(_WORDS)
        self.definitions.append(text)

    def object(self, body: str) -> str:
        name = self.name()
        self.define(name, body)
        return name

    def piece(self, text: str, depth: int = 0) -> str:
        """Return what expands to `text`."""
        rng = self.rng
        way = rng.randrange(10) if depth < 4 else 0
        if way < 3:
            return text
        if way == 3:
            return self.object(self.piece(text, depth + 1))
        if way == 4:
            name = self.name()
            self.define(f"{name}()", self.piece(text, depth + 1))
            return f"{name}()"
        if way == 5:
            name, parameter = self.name(), rng.choice(("x", "h", "sys", "NAME"))
            self.define(f"{name}({parameter})", parameter)
            return f"{name}({self.piece(text, depth + 1)})"
        if way == 6 and len(text) > 1 and text.isascii() and text.isidentifier():
            cut = rng.randrange(1, len(text))
            return f"{self.pasting()}({text[:cut]},{text[cut:]})"
        if way == 7:
            macro_name = self.object(self.piece(text, depth + 1))
            if macro_name.isascii() and macro_name.isidentifier() and len(macro_name) > 2:
                return f"{self.pasting()}({macro_name[:2]},{macro_name[2:]})"
            return macro_name
        if way == 8:
            name = self.name()
            self.define(f"{name}(...)", rng.choice(("__VA_ARGS__", "__VA_OPT__(__VA_ARGS__)")))
            return f"{name}({self.piece(text, depth + 1)})"
        if rng.random() < 0.7:
            return self.object(text)
        empty = self.object("")
        return rng.choice((f"{empty} {text}", f"{text} {empty}"))

    def pasting(self) -> str:
        inner, outer = self.name(), self.name()
        glue = self.rng.choice(("##", " ## ", "%:%:"))
        self.define(f"{inner}(a, b)", f"a{glue}b")
        if self.rng.random() < 0.5:
            return inner
        self.define(f"{outer}(a, b)", f"{inner}(a, b)")
        return outer

    def composed(self, name: str) -> str:
        """Return a header's name of pieces."""
        parts: list[str] = []
        word = ""
        for character in name:
            if character.isalnum() or character in "_$":
                word += character
                continue
            parts += [word, character] if word else [character]
            word = ""
        parts += [word] if word else []
        return "".join(self.piece(part) if part.isalnum() else part for part in parts)

    def stringised(self, text: str) -> str:
        rng = self.rng
        inner, outer = self.name(), self.name()
        dots = rng.choice(("x", "...", "r..."))
        value = {"x": "x", "...": "__VA_ARGS__", "r...": "r"}[dots]
        self.define(f"{inner}({dots})", rng.choice(("#", "# ", "%:")) + value)
        if rng.random() < 0.2:
            return f"{inner}({text})"
        self.define(f"{outer}({dots})", f"{inner}({value})")
        return f"{outer}({text})"

    def operand(self, name: str) -> str:
        """Return what stands after an `#include`."""
        rng = self.rng
        way = rng.randrange(12)
        plain = rng.choice((f'"{name}"', f"<{name}>"))
        if way == 0:
            return plain
        if way == 1:
            return self.object(plain)
        if way == 2:
            return self.object(self.object(plain))
        if way == 3:
            return self.object(f"<{self.composed(name)}>")
        if way == 4:
            function = self.name()
            self.define(f"{function}(x)", "<x>")
            return f"{function}({self.composed(name)})"
        if way == 5:
            return f"{self.object('<')} {self.composed(name)}>"
        if way == 6:
            directory, slash, stem = name.rpartition("/")
            function = self.name()
            self.define(f"{function}(x)", f"<{directory}{slash}x>")
            return f"{function}({self.composed(stem)})"
        spelling = self.stringised(self.composed(name))
        return self.object(spelling) if rng.random() < 0.3 else spelling


def _directive(rng: random.Random, operand: str, *, narrow: bool) -> str:
    signs = ("#", "#", "#", "# ", "%:", "/**/#/**/", "\t#", "#\\\n", "\f#", "??=")
    sign = rng.choice(signs[: 9 if narrow else 10])
    words = ("include", "include", "include", "include", "include_next", "import")
    word = rng.choice(words[: 5 if narrow else 6])
    if rng.random() < 0.1:
        word = f"{word[:3]}\\\n{word[3:]}"
    blank = rng.choice((" ", " ", "\t", "  ", "/* c */", " /* a\n b */ ", "\\\n ", "\v"))
    end = rng.choice(("", "", "", " // c", " /* c */", "\t"))
    return f"{sign}{word}{blank}{operand}{end}"


def _guarded(maker: _Maker, operand: str, directive: str) -> str:
    rng = maker.rng
    way = rng.randrange(8)
    asks = f"__has_include({operand})"
    if way == 1:
        name = maker.name()
        maker.define(f"{name}(x)", "__has_include(x)")
        asks = f"{name}({operand})"
    elif way == 2:
        asks = maker.object(asks)
    elif way == 3:
        asks = f"{maker.object('__has_include')}({operand})"
    elif way == 4:
        asks = f"1 && {asks} && __cplusplus > 3"
    if rng.random() < 0.4:
        directive = f"int has{maker.count};"
    return f"#if {asks}\n{directive}\n#else\nint hasnot{maker.count};\n#endif"


def _hidden(rng: random.Random, directive: str) -> str:
    way = rng.randrange(24)
    return {
        0: f"/*\n{directive}\n*/",
        1: f"//{' c' if rng.random() < 0.5 else ''} \\\n{directive}",
        2: f'const char *r{rng.randrange(99)} = R"(\n{directive}\n)";',
        3: f'const char *s{rng.randrange(99)} = "/*"; // */\n{directive}',
        4: f"int d{rng.randrange(99)} = 1'000; // '\n{directive}",
        5: f"#if 1 /\\\n* x *\\\n/\n{directive}\n#endif",
    }.get(way, directive)


def world(rng: random.Random, *, narrow: bool = False) -> World:
    """A case. Each header says in a variable which it is; some hold an include of their own. A
    `narrow` one has nothing that NVRTC never takes."""
    case = World(line_end=rng.choice(("\n",) * 8 + ("\r\n", "\r\n", "\r")[: 2 if narrow else 3]))
    maker = _Maker(rng, narrow=narrow)
    names = [name for name in NAMES if not narrow or (name.isascii() and "$" not in name)]
    chosen = rng.sample(names, rng.randrange(2, 6))
    number = 0
    for directory in (*PLACES, SYSTEM):
        for name in chosen:
            # A system's header above its directory would lie beside the source.
            if rng.random() < 0.5 and not (directory == SYSTEM and name.startswith("../")):
                case.files[f"{directory}/{name}"] = f"int in_{number};\n"
                number += 1

    def include(*, computed: bool = True, climbs: bool = True) -> str:
        inner = [name for name in chosen if ".." not in name.split("/")]
        name = rng.choice(chosen if climbs or not inner else inner)
        operand = maker.operand(name) if computed else rng.choice((f'"{name}"', f"<{name}>"))
        directive = _directive(rng, operand, narrow=narrow)
        text = _guarded(maker, operand, directive) if rng.random() < 0.4 else directive
        return text if narrow else _hidden(rng, text)

    if case.files and rng.random() < 0.6:
        linked = [name for name in case.files if "/link/" in name]
        own = [name for name in case.files if not name.startswith(SYSTEM)]
        # docs/headers.md: headers of the system are followed where the project shadows one.
        searched = [directory for directory in PLACES if directory != "project/inc/sub"]
        shadows = any(
            {f"{SYSTEM}/{name}", f"{directory}/{name}"} <= case.files.keys()
            for name in NAMES
            for directory in searched
        )
        inside = rng.choice(linked or (own if own and not shadows else [*case.files]))
        # docs/headers.md: a name that macros of the system make is not followed, nor a header of
        # the system that macros name; and the copy has no links.
        is_system = inside.startswith(f"{SYSTEM}/")
        own_text = include(computed=not is_system and inside not in linked, climbs=not is_system)
        case.files[inside] = f"#ifndef G{number}\n#define G{number}\n{own_text}\n#endif\n"
        case.files[inside] += f"int in_{number};\n"
    body = [include() for _ in range(rng.randrange(1, 3))]
    definitions = "\n".join(maker.definitions) + "\n"
    way = rng.random()
    if way < 0.15:
        case.files["project/inc/definitions.h"] = definitions
        definitions = '#include "definitions.h"\n'
    elif way < 0.25 and case.line_end == "\n":
        macro_name = f"g{number}"
        case.defines.append(f"{macro_name}={rng.choice(chosen)}")
        outer = _Maker(rng, narrow=narrow)
        body.append(f"#include {outer.stringised(macro_name)}")
        definitions += "\n".join(outer.definitions) + "\n"
    case.files["source.cu"] = definitions + "\n".join(body) + "\nint end;\n"
    return case


def options(case: World, roots: Sequence[str], system: str, *quoted: str) -> list[str]:
    """The search path of a compile in a directory that holds these roots, and what it defines;
    `quoted` are the words before the first root, if `#include "…"` alone searches that."""
    where = [*quoted, roots[0]] if quoted else []
    where += [f"-I{root}" for root in (*roots[bool(quoted) :], system)]
    return [*where, *(f"-D{define}" for define in case.defines)]
