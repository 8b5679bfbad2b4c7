"""Which headers a text asks for: what the preprocessor would see in any of its branches."""

from __future__ import annotations

import pytest

from tilusbuild.render.preprocessor import Macros, scan


def asked(text):
    """The includes of a text as they are written; `next` has a ^, and a computed one is bare."""
    return [
        ("^" if i.next else "") + (i.macro or (f'"{i.name}"' if i.quoted else f"<{i.name}>"))
        for i in scan(text).includes
    ]


@pytest.mark.parametrize(
    ("text", "includes"),
    [
        ('#include "a.h"\n#include <b.h>', ['"a.h"', "<b.h>"]),
        ('  #  include   "a.h"  // why', ['"a.h"']),
        ('#include"a.h"', ['"a.h"']),
        ("%:include <a.h>\n??=include <b.h>", ["<a.h>", "<b.h>"]),
        ("#include_next <a.h>", ["^<a.h>"]),
        ("#import <a.h>", ["<a.h>"]),
        ("#if 0\n#include <a.h>\n#else\n#include <b.h>\n#endif", ["<a.h>", "<b.h>"]),
        ("// #include <a.h>\n/* \n#include <b.h>\n*/", []),
        ("/* c */ # /* d */ include /* e */ <a.h>", ["<a.h>"]),
        ("/* a\n*/ #include <a.h>", ["<a.h>"]),
        ("int x; /* a\n*/ #include <a.h>", []),
        ("int x; #include <a.h>", []),
        ("// a \\\n#include <a.h>\n#include <b.h>", ["<b.h>"]),
        ("#inc\\\nlude \\\n <a.h>", ["<a.h>"]),
        ("#include \\\r\n <a.h>\r\n#include <b.h>\r\n", ["<a.h>", "<b.h>"]),
        # gcc lets blanks follow the backslash and others do not: both readings count.
        ("// a \\  \n#include <a.h>", ["<a.h>"]),
        ("#include \\  \n<a.h>", ["<a.h>"]),
        ('"\n#include <a.h>\n"', ["<a.h>"]),
        ('"\\\n#include <a.h>"', []),
        ('R"(\n#include <a.h>\n)"', []),
        ('R"x(\n)"\n#include <a.h>\n)x"\n#include <b.h>', ["<b.h>"]),
        ('u8R"(\n#include <a.h>\n)"', []),
        ('FOOR"(\n#include <a.h>\n)"', ["<a.h>"]),
        ('"/*"\n#include <a.h>\n"*/"', ["<a.h>"]),
        ("'\"'\n#include <a.h>\n'\"'", ["<a.h>"]),
        ("1'000 /*\n#include <a.h>\n'*/\n#include <b.h>", ["<b.h>"]),
        ("u8'\"' /*\n#include <a.h>\n*/", []),
        ("don't\n#include <a.h>\nisn't", ["<a.h>"]),
        ("#include <sys//a.h>\n#include <b/*c*/.h>", ["<sys//a.h>", "<b/*c*/.h>"]),
        ('#include "a//b.h" // "c.h"', ['"a//b.h"']),
        ("#include NAME // c\n#include F(x)", ["NAME", "F(x)"]),
        ("#if __has_include(<a.h>) && __has_include(\"b.h\")\n#endif", ["<a.h>", '"b.h"']),
        ("#elif __has_include_next(<a.h>)", ["^<a.h>"]),
        ("#define HAS __has_include(<a.h>)", ["<a.h>"]),
        ("#define HAS(x) __has_include(x)", []),
        ("/* open #include <a.h>", []),
        ("\ufeff#include <a.h>", ["<a.h>"]),
        ("#include", []),
        ("#include <>", []),
        ("#includes <a.h>\n#pragma include <a.h>", []),
        ("", []),
    ],
)  # fmt: skip
def test_includes(text, includes):
    assert asked(text) == includes


@pytest.mark.parametrize(
    ("definitions", "call", "headers"),
    [
        ('#define H "a.h"', "H", [("a.h", True)]),
        ("#define H <a.h>\n#define H <b.h>", "H", [("a.h", False), ("b.h", False)]),
        ("#define G <a.h>\n#define H G", "H", [("a.h", False)]),
        ("#define H(x) <std/x>", "H(vector)", [("std/vector", False)]),
        ("#define S(x) #x\n#define H(x) S(x)", "H(a.h)", [("a.h", True)]),
        ("#define G H\n#define H G", "H", []),
        ("#define H(a, b) <a>", "H(vector)", []),
        ("", "H", []),
    ],
)
def test_macros_that_name_headers(definitions, call, headers):
    macros = Macros()
    for definition in scan(definitions).definitions:
        macros.add(definition)
    assert macros.headers(call) == headers
