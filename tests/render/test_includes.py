"""Which headers a text asks for: what the preprocessor would see in any of its branches."""

from __future__ import annotations

import pytest

from tilusbuild.render.preprocessor import scan_text


def asked(text):
    """The includes of a text as they are written; `next` has a ^, and an operand is bare."""
    scan = scan_text(text)
    named = [
        ("^" if i.next else "") + (f'"{i.name}"' if i.quoted else f"<{i.name}>")
        for i in scan.includes
    ]
    return named + list(scan.operands)


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
        ("#if FMT_HAS_INCLUDE(<a.h>) && FMT_HAS_INCLUDE (\"b.h\")\n#endif", ["<a.h>", '"b.h"']),
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


@pytest.mark.parametrize(
    ("text", "is_computed"),
    [
        ("#include NAME", True),
        ("#if __has_include(NAME)\n#endif", True),
        ("#if __has_include(<a.h>)\n#endif", False),
        ("#define HAS(x) __has_include(x)", True),
        ("#define HAS __has_include", True),
        ("#define HAS(N) __has_include(<N.h>)", True),
        ("#if defined(__has_include)\n#endif", False),
        ("#if __has_attribute(x)\n#endif", False),
        ("#define FMT_HAS_INCLUDE(x) __has_include(x)", False),
        ("#define X_HAS_INCLUDE(x) (defined(__has_include) && __has_include( x ))", False),
        ("#if FMT_HAS_INCLUDE(<a.h>) || X_HAS_INCLUDE\n#endif", False),
        ("#if FMT_HAS_INCLUDE(NAME)\n#endif", True),
        ("#define HAS(x) FMT_HAS_INCLUDE(x)", True),
        ("#define HAS FMT_HAS_INCLUDE", True),
        ("#define FMT_HAS_INCLUDE __has_include", True),
        ("#define FMT_HAS_INCLUDE(x) __has_include_next(x)", True),
        ("#define FMT_HAS_INCLUDE(N) __has_include(<N.h>)", True),
        ("#define FMT_HAS_INCLUDE(...) __has_include(__VA_ARGS__)", True),
        ("#ifdef NAME\n#define NAME <a.h>\n#endif", False),
        ('asm(".incbin \\"" S(own) ".bin\\"");', True),
        ('asm(".include \\"own.s\\"");', True),
    ],
)
def test_whether_macros_make_a_name(text, is_computed):
    assert scan_text(text).is_computed == is_computed


@pytest.mark.parametrize(
    ("text", "climbs"),
    [
        ('#define H "../a.h"', True),
        ("#include S(../a.h)", True),
        ('#include "../a.h"', False),
        ("#define F(x, ...) g(x, ##__VA_ARGS__)", False),
    ],
)
def test_whether_a_computed_name_can_climb(text, climbs):
    assert scan_text(text).climbs == climbs
