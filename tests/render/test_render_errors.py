"""Every mistake in a template is told with its place, and with what would be right."""

import contextlib
import itertools
import os
from typing import Any

import pytest

from tilusbuild.errors import InputError
from tilusbuild.render.bounds import _GROWING
from tilusbuild.render.environment import Environment, ProjectLoader
from tilusbuild.render.renderer import Renderer

CASES = [
    # template, line, column, message, part of the hint
    ("a\n{{ blok_m }}\n", 2, 4, '"blok_m" is undefined', 'did you mean "block_m"?'),
    ("{{ zzz }}", 1, 4, '"zzz" is undefined', "[script.gemm.params] or [script.gemm.space]"),
    ("{{ block_m +\n   zzz }}", 2, 4, '"zzz" is undefined', "declare it"),
    ("{{ target.knd }}", 1, 11, 'the mapping has no "knd"', 'did you mean "kind"?'),
    ("{{ block_m.bits }}", 1, 12, 'the value 64 has no "bits"', None),
    ("a\n{% if block_m %}\nb\n", 2, 4, '"if" without "endif"', None),
    ("x\n{% endfor %}", 2, 4, "unknown tag 'endfor'", None),
    ("{{ 1 + }}", 1, 1, "unexpected 'end of print statement'", None),
    ("int t[2][2] = {{1,2},{3,4}};", 1, 15, "unexpected '}'", 'in C++ text write "{ {"'),
    ("{{1}} and {{1,}2};", 1, None, "unexpected '}'", 'in C++ text write "{ {"'),
    ("{{ block_m | hexx }}", 1, 14, 'there is no filter "hexx"', 'did you mean "hex"?'),
    ("{{ 3 is pow3 }}", 1, 9, 'there is no test "pow3"', 'did you mean "pow2"?'),
    ('asm("{%0}" :: "r"(x));', 1, None, "a tag has no name", 'write "{ %"'),
    ('\n{{ raise("K must be even") }}', 2, None, "K must be even", None),
    ("{{ 1 // 0 }}", 1, None, "division by zero", None),
    ("{{ cdiv(block_m, 0) }}", 1, None, "division by zero", None),
    ('{{ block_m + "a" }}', 1, None, "unsupported operand", None),
    ('{{ "f61" | ctype }}', 1, None, '"f61" is not an element type', None),
    ('{{ "f8e8m0" | ctype(portable=true) }}', 1, None, "f8e8m0 has a type in CUDA only", None),
    ("{{ none }}", 1, None, "the value is none", None),
    ("{{ cdiv }}", 1, None, "only text and numbers can be written", None),
    ("{{ block_m * 1e308 }}", 1, None, "the value inf:", None),
    ("x\n{{ [1,2][5] }}", 2, 10, 'the list has no "5"', None),
    ("{% include none %}", 1, None, "there is no template in an empty list", None),
    ("{% extends none %}", 1, None, "is a string, not None", None),
    ("x\n{% macro m(a, a) %}\n{% endmacro %}", 2, None, 'duplicate argument "a"', None),
    ("x\n{{ 1e400 + block_m }}", 2, None, "'inf' is not defined", None),
    ("x\n{% call namespace() %}{% endcall %}", 2, None, "writes no text", None),
    # Nothing that may appear later: `ignore missing` is not for these.
    ("\n{% include '' ignore missing %}", 2, None, "is not a path relative to the project", None),
    ("{% include '../x' ignore missing %}", 1, 13, "leads out of the project", None),
    ("{% include ['/x', 'lib/gone.j2'] %}", 1, 14, "is not a path relative to the", None),
    ('{% include "lib/gon.j2" %}', 1, None, 'no template "lib/gon.j2"', '"lib/gone.j2"'),
    ("x\n{% raw %}\n", 2, None, "missing end of raw directive", None),
    ("{% if true %}\nx\n{{ 1 | hexx }}\n{% endif %}", 3, 8, 'no filter "hexx"', '"hex"'),
    ("{% if true %}\nx\n{{ 1 is pow3 }}\n{% endif %}", 3, 9, 'no test "pow3"', '"pow2"'),
]

MISTAKES = ["{{ zzz }}", "{{ 1 | zzz }}", "{{ 1 // 0 }}", "{% include 'zzz' %}", "{% do zzz() %}"]
AROUND = {
    "block": "{% block body %}\nb\nc\n{}\n{% endblock %}\n",
    "macro": "{% macro m() %}{{ 1 }}\nb\nc\n{}\n{% endmacro %}\n{{ m() }}\n",
    "nested call": "{% macro m() %}\n{{ caller() }}{% endmacro %}\n{% call m() %}\n{}{% endcall %}",
    "for": "{% for i in [1, 2] %}\n{{ i }}\n\n{}\n{% endfor %}\n",
    "else": "{% if false %}\nb\n{% else %}\n{}\n{% endif %}\n",
    "raw": "{% raw %}\nb {{ }}\n{% endraw %}\n{}\n",
    "comment": "{# a\n\n #}\n{}\n",
    "set": "{% set q %}\nb\nc\n{}\nd{% endset %}\n",
    "stripped": "a\n\n{{- 1 -}}\n{}\n",
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_line_4_is_shown_there(project, around, mistake):
    diagnostic = project.refusal(AROUND[around].replace("{}", mistake))
    assert (diagnostic.location.path, diagnostic.location.line) == ("k.cu.j2", 4)


def test_a_template_may_append_to_its_own_list(project):
    template = (
        "{% set l = [] %}{% for i in range(3) %}{% do l.append(i) %}{% endfor %}{{ l | join }}"
    )
    assert project.render(template) == "012"


@pytest.mark.parametrize(("template", "line", "column", "message", "hint"), CASES)
def test_mistakes(project, template, line, column, message, hint):
    project.write({"lib/gone.j2": ""})
    diagnostic = project.refusal(template, block_m=64)
    assert message in diagnostic.message
    assert (diagnostic.location.path, diagnostic.location.line) == ("k.cu.j2", line)
    assert diagnostic.location.column == column
    assert diagnostic.location.text == template.split("\n")[line - 1]
    assert hint is None or hint in diagnostic.hint


OUTSIDE = ["/etc/passwd", "../secret.j2", "a/../../secret.j2", "link.j2", "linked/secret.j2"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_the_project_is_read(project, tmp_path, name):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "secret.j2").write_text("secret")
    os.symlink(outside / "secret.j2", tmp_path / "link.j2")
    os.symlink(outside, tmp_path / "linked")
    diagnostic = project.refusal('{% include "' + name + '" %}')
    assert diagnostic.location.line == 1
    with pytest.raises(InputError):
        Renderer(str(tmp_path)).render(name, {})


SANDBOX = [
    '{{ "".__class__ }}',
    "{{ [].__class__.__mro__ }}",
    "{{ cdiv.__globals__ }}",
    "{{ self.__init__ }}",
    '{{ "{0.__class__}".format(1) }}',
    '{{ ""["__class__"] }}',
    '{{ "" | attr("__class__") }}',
    "{{ range.__self__ }}",
]


@pytest.mark.parametrize("template", SANDBOX)
def test_python_is_out_of_reach(project, template):
    assert project.refusal(template, items=[1]).location.line == 1


DOUBLED = "{{% set n = namespace(x='aaaa') %}}{{% for i in range(60) %}}{}{{% endfor %}}"
BOUNDED = {
    "{% for i in range(10**9) %}{% endfor %}": "ranges larger than MAX_RANGE (100000)",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "steps",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}": "without end",
    '{% include "k.cu.j2" %}': "without end",
    '{% for i in range(70000) %}{{ "x" * 1024 }}{% endfor %}': "longer than 16,777,216 characters",
    "{{ 'a' * 10**9 }}": '"*" makes up to 1,000,000,000 characters',
    "{{ ([0] * 10**9) | length }}": '"*" makes up to',
    "{{ (2**99)**999 }}": "an integer has at most 16,384 bits",
    "{{ 'a' | center(10**9) }}": '"center" makes up to',
    "{{ 'a'.zfill(width=10**9) }}": '"zfill" makes up to',
    "{{ 'a'.encode().ljust(10**9) }}": '"ljust" makes up to',
    "{{ (7).to_bytes(10**9) }}": '"to_bytes" makes up to',
    "{{ 7 | hex(10**9) }}": '"hex" makes up to',
    "{{ ['a'] | map('center', 10**9) | list }}": '"center" makes up to',
    "{{ 'a' | indent(10**9, true) }}": '"indent" makes up to',
    "{{ '\t'.expandtabs(10**9) }}": '"expandtabs" makes up to',
    "{{ [1] | batch(10**9, 0) | list | length }}": '"batch" makes up to',
    "{{ {'a': 1} | tojson(10**9) }}": '"tojson" makes up to',
    "{{ '%1000000000d' % 1 }}": '"%" makes up to',
    "{{ '%*d' % (10**9, 1) }}": '"%" makes up to',
    "{{ '%1000000000d' | format(1) }}": '"format" makes up to',
    "{{ '{:{w}}'.format(1, w=10**9) }}": '"format" makes up to',
    "{{ '{a:>1000000000}'.format_map({'a': 1}) }}": '"format_map" makes up to',
    "{{ ('a' * 10**5) | replace('a', 'b' * 10**5) }}": '"replace" makes up to',
    "{{ ('a' * 4000).translate({97: 'b' * 10**6}) }}": '"translate" makes up to',
    "{{ range(99999) | map('string') | join('b' * 10**5) }}": '"join" makes up to',
    "{{ ('b' * 10**5).join(['a'] * 10**5) }}": '"join" makes up to',
    "{{ ('a b ' * 10**4) | wordwrap(3, true, 'x' * 10**5) }}": '"wordwrap" makes up to',
    DOUBLED.format("{% set n.x = n.x ~ n.x %}"): "exceed 67,108,864 characters",
    DOUBLED.format("{% set n.x = n.x + n.x %}"): "exceed 67,108,864 characters",
    DOUBLED.format("{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"): "exceed 67,108,864 characters",
    "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}":
        "an integer has at most 16,384 bits",
    "{% set x %}{% for i in range(99999) %}" + "y" * 1000 + "{% endfor %}{% endset %}":
        "exceed 67,108,864 characters",
}  # fmt: skip


@pytest.mark.parametrize("template", BOUNDED)
def test_a_rendering_ends(project, template):
    diagnostic = project.refusal(template)
    assert BOUNDED[template] in diagnostic.message
    assert diagnostic.location.line == 1


def test_each_method_and_filter_whose_result_may_be_long_is_estimated(tmp_path) -> None:
    """Of all that Jinja2 and Python have: another is found here when one of them adds it."""
    environment = Environment(ProjectLoader(str(tmp_path)))
    environment.begin_rendering({}, lambda name: None)
    context: Any = environment.from_string("").new_context()
    owners: Any = ("a\n" * 150, 7, b"a" * 300, ["a"] * 300, {"a": 1})
    operands: Any = ("a", "b" * 300, 5000, {97: "b" * 300})
    growing = set()
    for count in (0, 1, 2):
        for text, *args in itertools.product(owners, *[operands] * count):
            for name in {*environment.filters, *dir(type(text))} - {"_steps"}:
                with contextlib.suppress(Exception):
                    if name in environment.filters:
                        result = environment.call_filter(name, text, args, context=context)
                    elif name.startswith("_"):
                        continue
                    else:
                        result = getattr(text, name)(*args)
                    result = result if isinstance(result, str) else str([*result])
                    if len(result) > 4000 + 10 * len(str([text, *args])):
                        growing.add(name)
                environment.begin_rendering({}, lambda name: None)
    assert {"replace", "join", "center", "zfill", "indent"} <= growing <= _GROWING


def test_large_numbers_that_are_written_are_no_lengths(project):
    template = (
        "{{ '%-4s%d' % ('a', n) }} {{ '{} {:>3}'.format(n, 7) }} {{ 'N' | replace('N', n) }}"
        "{{ n | hex(11) }}"
    )
    assert project.render(template, n=2**40) == f"a   {2**40} {2**40}   7 {2**40}0x10000000000"


@pytest.mark.parametrize(
    ("files", "template", "location", "words"),
    [
        (
            {"outer.j2": '\n{% include "inner.j2" %}', "inner.j2": "a\nb\n{{ blok }}\n"},
            '\n\n{% include "outer.j2" %}',
            "inner.j2:3:4",
            "\nfrom outer.j2:2\nfrom k.cu.j2:3",
        ),
        ({"l.j2": "{% macro f( %}"}, '{% import "l.j2" as l %}', "l.j2:1", "from k.cu.j2:1"),
        (
            {"l.j2": "{% macro f() %}{{ block_m }}{% endmacro %}"},
            '{% import "l.j2" as l %}\n{{ l.f() }}',
            "l.j2:1:19",
            '"with context"',
        ),
        (
            {},
            '{% import "tilusbuild/smem.cuh.j2" as s %}\n{{ s.swizzle("at", 48) }}',
            "k.cu.j2:2",
            "48",
        ),
        (
            {},
            '{% import "tilusbuild/mma.cuh.j2" as mma %}\n{{ mma.m16n8k61("f16") }}',
            "k.cu.j2:2:8",
            'did you mean "m16n8k16"?',
        ),
    ],
)
def test_a_mistake_elsewhere_is_at_its_place_and_tells_the_way(
    project, files, template, location, words
):
    project.write(files)
    diagnostic = project.refusal(template, block_m=64, block=1)
    assert str(diagnostic.location).startswith(location)
    assert words in f"{diagnostic.message}\n{diagnostic.hint}"


def test_a_script_without_its_template(project):
    with pytest.raises(InputError) as caught:
        Renderer(str(project.directory)).render("gone.cu.j2", {})
    assert 'no template "gone.cu.j2"' in caught.value.render()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% break %}", '"break" outside of a loop'),
        ("{% for i in 'a' %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}", '"continue"'),
        ("{% for i in 'a' %}" * 25 + "{% endfor %}" * 25, "too many statically nested blocks"),
        ("{{ " + "not " * 3000 + "1 }}", "nested too deeply"),
    ],
)
def test_what_cannot_be_compiled_or_told_apart_is_a_message(project, template, message):
    diagnostic = project.refusal(template)
    assert message in diagnostic.message
    assert diagnostic.location is not None
    assert diagnostic.location.path == "k.cu.j2"
