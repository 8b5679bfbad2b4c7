"""Which headers a text asks for: what the preprocessor would see in any of its branches."""

from __future__ import annotations

import pytest

from tilusbuild.render.macros import Macros, spelled
from tilusbuild.render.preprocessor import scan


def asked(text):
    """The includes of a text as they are written; `next` has a ^, and an operand is bare."""
    found = scan(text)
    named = [
        ("^" if i.next else "") + (f'"{i.name}"' if i.quoted else f"<{i.name}>")
        for i in found.includes
    ]
    return named + [d.partition(" ")[2] for d in found.directives if d.startswith("inc")]


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
        ("#if 0\ndon't /*\n#endif\n#include <a.h>\n/* */", ["<a.h>"]),
        ("#include <a.h>\r#include <b.h>\r", ["<a.h>", "<b.h>"]),
        ("#\0include\0<a.h>", ["<a.h>"]),
        ("\ufeff#include <a.h>", ["<a.h>"]),
        ("#include", []),
        ("#include <>", []),
        ("#includes <a.h>\n#pragma include <a.h>", []),
        ("", []),
    ],
)  # fmt: skip
def test_includes(text, includes):
    assert asked(text) == includes


WRITTEN_OUT = [
    ('#define H "a.h"', "H", ['"a.h"']),
    ("#define H <a.h>\n#define H <b.h>", "H", ["<a.h>", "<b.h>"]),
    ("#define G <a.h>\n#define H G", "H", ["<a.h>"]),
    ("#define G H\n#define H G", "H", []),
]
PUT_TOGETHER = [
    ("#define H(x) <std/x>", "H(vector)", ["std", "/", "vector"]),
    ("#define S(x) #x\n#define H(x) S(x)", "H(a.h)", ["a", ".", "h"]),
    ("#define N a\n#define H <N.h>", "H", ["a", ".", "h"]),
    ("#define C(a, b) a##b\n#define AB <x>", "C(A,B)", ["x"]),
    ("#define \\u00c4 a\n#define S(x) #x", "S(Ä)", ["a"]),
    ("", "H", []),
    ("", "H(a)", ["a"]),
]


def macros_of(text, *asked):
    macros = Macros()
    for directive in scan(text).directives:
        assert directive.startswith("define ")
        macros.define(directive.removeprefix("define "))
    macros.settle(asked)
    return macros


@pytest.mark.parametrize(("definitions", "call", "headers"), WRITTEN_OUT)
def test_names_that_stand_in_definitions(definitions, call, headers):
    asked = macros_of(definitions).operand(call)
    assert sorted(f'"{i.name}"' if i.quoted else f"<{i.name}>" for i in asked.names) == headers
    assert not asked.pieces


@pytest.mark.parametrize(("definitions", "call", "pieces"), PUT_TOGETHER)
def test_what_names_consist_of_that_macros_make(definitions, call, pieces):
    asked = macros_of(definitions).operand(call)
    assert set(pieces) <= set(asked.pieces)
    assert asked.pieces


@pytest.mark.parametrize(
    ("definitions", "condition", "names"),
    [
        ("#define HAS(x) __has_include(x)", "HAS(<a.h>) && V < 3", {"a.h"}),
        ("#define HAS __has_include", "HAS(<a.h>)", {"a.h"}),
        ("#define HAS(x) __has_include(x)\n#define CHECK HAS(N)", "CHECK", set()),
        ("#define HAS(x) __has_include(x)\n#define N 1", "HAS(<N.h>)", {"N.h"}),
        ("#define C(a, b) a##b\n#define HAS(x) __has_include(x)", "C(HA,S)(x)", set()),
    ],
)
def test_what_conditions_ask_for(definitions, condition, names):
    asked = macros_of(definitions, condition).condition(condition)
    assert {include.name for include in asked.names} == names
    assert asked.pieces


@pytest.mark.parametrize("condition", ["defined(HAS)", "V < 3", "__has_attribute(x)", "C(X,Y)"])
def test_conditions_that_ask_for_nothing(condition):
    assert macros_of("#define C(a, b) a##b").condition(condition) is None


@pytest.mark.parametrize(
    ("name", "is_spelled"),
    [("a.h", True), ("a64.h", True), ("b.h", False), ("a", True), ("aa.hh", True)],
)
def test_names_that_pieces_spell(name, is_spelled):
    assert list(spelled([name], ("a", ".", "h"))) == [name] * is_spelled
