"""Every rendered line knows the template's line that wrote it, and who called for it."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.processes import run_to_end
from tilusbuild.render.preprocessor import find_inner_lines
from tilusbuild.render.renderer import Renderer


def origins(project, template, **values):
    """`text <- template:line` of each rendered line, with the callers behind."""
    text, lines = project.mapped(template, **values)
    origin_lines = []
    for number, line in enumerate(text.split("\n"), 1):
        origin = lines.find_origin(number)
        callers = (
            "".join(f" < {name}:{caller_line}" for name, caller_line in origin.callers)
            if origin
            else ""
        )
        origin_lines.append(f"{line} <- {origin}{callers}")
    return origin_lines


def test_macros_and_includes_tell_who_called(project):
    project.write(
        {
            "lib.j2": "{% macro f(x) %}\nint f{{ x }}() {\n}\n{% endmacro %}",
            "inc.cuh": "// one\n{{ n }}\n",
        }
    )
    template = '{% import "lib.j2" as lib %}\n{{ lib.f(1) }}\n{% include "inc.cuh" %}\nend'
    assert origins(project, template, n=7) == [
        "int f1() { <- lib.j2:2 < k.cu.j2:2",
        "} <- lib.j2:3 < k.cu.j2:2",
        " <- k.cu.j2:2",
        "// one <- inc.cuh:1 < k.cu.j2:3",
        "7 <- inc.cuh:2 < k.cu.j2:3",
        "end <- k.cu.j2:4",
    ]


def test_call_blocks_indentation_and_captured_text(project):
    template = (
        "{% macro wrap() %}\nbegin\n{{ caller() | indent(2, true) }}\n{% endmacro %}\n"
        "{% call wrap() %}\ninner\n\nlast\n{% endcall %}\n"
        "{% set text %}\ncaptured\n{% endset %}\n{{ text }}end"
    )
    assert origins(project, template) == [
        "begin <- k.cu.j2:2 < k.cu.j2:5",
        "  inner <- k.cu.j2:6 < k.cu.j2:3 < k.cu.j2:5",
        " <- k.cu.j2:7 < k.cu.j2:3 < k.cu.j2:5",
        "  last <- k.cu.j2:8 < k.cu.j2:3 < k.cu.j2:5",
        " <- k.cu.j2:3 < k.cu.j2:5",
        "captured <- k.cu.j2:11 < k.cu.j2:13",
        "end <- k.cu.j2:13",
    ]


def test_inherited_templates(project):
    project.write({"base.j2": "first\n{% block body %}\nnone\n{% endblock %}\nlast\n"})
    template = '{% extends "base.j2" %}\n{% block body %}\nmine\n{% endblock %}\n'
    assert origins(project, template)[:3] == [
        "first <- base.j2:1",
        "mine <- k.cu.j2:3",
        "last <- base.j2:5",
    ]


# Each looks at text that carries marks; none may notice them.
NOSY = [
    "{% macro m() %}8{% endmacro %}{{ m() | int + 1 }}",
    "{% macro m() %}ab{% endmacro %}{{ m() | length }} {{ m()[0] }} {{ m() | upper }}",
    "{% macro m() %}{% endmacro %}{{ m() or 'empty' }} {{ 1 if not m() else 2 }}",
    "{% macro m() %}b{% endmacro %}{{ {'b': 1}[m()] }} {{ ['b', m()] | unique | join(m()) }}",
    "{% set x %}\n\n a \n{% endset %}{{ x | trim }}|{{ x | replace('a', 'b') }}|{{ x * 2 }}",
    "{% set x %}ab{% endset %}{% for c in x %}{{ c }}.{% endfor %}{{ x[::-1] }}",
    "{% set x | upper %}\nab\n{% endset %}{{ x }}{% filter replace('a', 'b') %}aaa{% endfilter %}",
    "{% macro m(a) %}{{ a | length }}{% endmacro %}{% macro n() %}xyz{% endmacro %}{{ m(n()) }}",
    "{% macro m() %}abc{% endmacro %}{{ (m() ~ m()) | length }} {{ 'b' in m() }} {{ m() < 'b' }}",
    "{% macro m() %}k{% endmacro %}{{ {m(): 3}['k'] }} {{ m() + 'l' }} {{ 1 if m() == 'k' }}",
    "{% macro m() %}10{% endmacro %}{% filter replace('0', '1') %}{{ m() }}{% endfilter %}",
]


@pytest.mark.parametrize("template", NOSY)
def test_marks_are_never_seen(project, template):
    text, lines = project.mapped(template)
    assert all(lines.find_origin(number) for number in range(1, len(text.splitlines()) + 1))


def test_columns_lead_to_the_templates_own(project):
    template = "{% macro v() %}8{% endmacro %}\n{# c #}  a = {{ n }} + missing + {{ n }};\n"
    text, lines = project.mapped(template, n=12345)
    line = text.split("\n").index("  a = 12345 + missing + 12345;") + 1
    assert lines.find_template_column(line, text.split("\n")[line - 1].index("missing") + 1) == 24
    assert lines.find_template_column(line, 8) is None


def test_text_that_was_not_rendered_from_the_template_is_not_mapped(project):
    project.write({"k.cu.j2": "a\nb\nc\n"})
    lines = Renderer(str(project.directory)).map_lines("k.cu.j2", {}, "a\nX\nc\n")
    assert [lines.find_origin(n) is not None for n in (1, 2, 3)] == [True, False, False]


def test_programs_that_fail_at_the_same_time_are_mapped_each_by_its_own_templates(
    project,
):
    names = [f"k{number}.cu.j2" for number in range(8)]
    project.write(dict.fromkeys(names, "{% include 'part.cuh' %}\n{{ 1 }}\n"))
    project.write({"part.cuh": "a\n"})
    start = Barrier(len(names))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def find_origins(renderer: Renderer, name: str) -> list[str]:
        start.wait()
        lines = renderer.map_lines(name, {}, "a\n1\n")
        return [str(lines.find_origin(number)) for number in (1, 2)]

    try:
        with ThreadPoolExecutor(len(names)) as threads:
            for _ in range(20):
                renderer = Renderer(str(project.directory))
                mapped = threads.map(find_origins, [renderer] * len(names), names)
                assert list(mapped) == [["part.cuh:1", f"{name}:2"] for name in names]
    finally:
        sys.setswitchinterval(interval)


def test_no_directive_stands_where_it_would_be_text(project):
    template = '/* {# c #}\n{# c\n #}a\n*/ R"x(\n{# c\n #}b\n)x" \\\n{# c\n#}c\n{# c\n#}d\n'
    text, lines = project.mapped(template)
    directives = lines.insert_directives()
    assert [line for line in directives.split("\n") if not line.startswith("#line")] == (
        text.split("\n")
    )
    inside = {"a", '*/ R"x(', "b", ')x" \\', "c"}
    followed = directives.split("\n")
    assert not [
        after
        for before, after in pairwise(followed)
        if before.startswith("#line") and after in inside
    ]


def test_the_compiler_agrees_with_the_directives(project, tmp_path):
    template = (
        "{% macro f(x) %}\nint f{{ x }} = __LINE__;\n{% endmacro %}\n\n"
        "{# c #}\nint a = __LINE__;\n/* x\n{# y\n #}*/\n{{ f(1) }}int b = \\\n{# z\n #}__LINE__;\n"
        "{% for i in range(2) %}\nint c{{ i }} = __LINE__;\n{% endfor %}\n"
    )
    _, lines = project.mapped(template)
    command = ["g++", "-x", "c++", "-E", "-P", "-"]
    shown = run_to_end(command, input=lines.insert_directives()).stdout
    line_by_name = dict(re.findall(r"int (\w+) =\s+(\w+);", shown))
    # gcc counts the line at which a spliced line ends or starts; both are lines of this statement.
    assert line_by_name.pop("b") in ("10", "11", "12")
    assert line_by_name == {"f1": "2", "a": "6", "c0": "14", "c1": "14"}


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("a\nb", set()),
        ("/* \n */ a\nb", {2}),
        ("// /*\nb", set()),
        ('"/*"\nb', set()),
        ("a \\\nb\nc", {2}),
        ("// a \\\nb /*\nc", {2}),
        ('R"(\n/*\n)"\nc', {2, 3}),
        ("1'000 /*\n'*/ b\nc", {2}),
        ("u8'\"'\nb", set()),
        ("case'\"': /*\n*/", {2}),
        ("/* open\nb\nc", {2, 3}),
    ],
)
def test_lines_inside(text, inside):
    assert find_inner_lines(text) == inside


PIECES = st.sampled_from(
    [
        "int a;\n", "{{ n }}", "{{ f(n) }}", "{{ f(n) }}\n", "\n", "  x ", "{# c\n c #}",
        "{# c #}\n",
        "{% for i in range(2) %}\n", "{% if n %}", "{{ f(2) | indent(3) }}\n", "{{ f(1) | trim }}",
        "{% call g() %}\n", "{%- if n > 1 %}\n", "{{- n -}}\n", '{% include "inc.j2" %}\n', "b\n",
    ]
)  # fmt: skip
ENDS = {
    "{% for i in range(2) %}\n": "{% endfor %}\n",
    "{% if n %}": "{% endif %}",
    "{%- if n > 1 %}\n": "{% endif -%}\n",
    "{% call g() %}\n": "{% endcall %}\n",
}


@st.composite
def templates(draw):
    """Random templates of nested pieces, whose every line of text names its own line."""
    pieces, closing = [], []
    for piece in draw(st.lists(PIECES, max_size=14)):
        pieces.append(piece)
        if piece in ENDS:
            closing.append(ENDS[piece])
    text = (
        "{% macro f(x) %}\nF{{ x }}\n  G\n{% endmacro %}"
        "{% macro g() %}[{{ caller() }}]\n{% endmacro %}\n"
        + "".join(pieces)
        + "".join(reversed(closing))
    )
    return "\n".join(
        f"{line}@{number}@" if line[-1:].isalpha() or line[-1:] == ";" else line
        for number, line in enumerate(text.split("\n"), 1)
    )


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(template=templates(), n=st.integers(0, 3))
def test_random_templates_are_mapped_whole_and_right(project, template, n):
    project.write({"inc.j2": "I@inc@\n"})
    text, lines = project.mapped(template, n=n)
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        origin = lines.find_origin(number)
        assert origin is not None
        match = re.match(r" *\[*(?:int a;|b|x|G)@(\d+)@", line)
        # A filter may do anything with lines, so its output belongs to the line that applies it.
        if match and "trim" not in (lines.read_template_line(origin) or ""):
            assert origin.line == int(match[1]) or line.lstrip(" ").startswith("[")
