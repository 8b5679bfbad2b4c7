"""Templates that a generator writes, most of them wrong: each is rendered, or its mistake has a
line."""

import os
import random

import pytest

from tilusbuild.errors import InputError

ROUNDS = int(os.environ.get("TILUSBUILD_TEST_TEMPLATES", "600"))
_ATOMS = (
    *("1", "-7", "1.5", "1e400", '"a"', "'é'", "none", "true", "[]", "{}", "[1, 2]"),
    *("()",),
    *('{"a": 1}', "block_m", "zzz", "target", "args", "script", "self", "super", "loop", "caller"),
    *("cdiv", "range", "dict", "namespace()", "joiner()", "cycler(1)", "raise", "1//0", "varargs"),
)
_FILTERS = (
    *("int", "float", "length", "first", "last", "join", "sort", "batch(0)", "slice(0)"),
    *("round(-1)",),
    *("map", 'map("x")', 'attr("__class__")', "format(1, 2)", "indent", "replace", "tojson", "sum"),
    *("groupby", "select", "reject", "dictsort", "unique", "min", "xmlattr", "hex", "ctype"),
    *("nope",),
)
_TAGS = (
    *(
        "{{% include {} %}}",
        "{{% import {} as x %}}",
        "{{% extends {} %}}",
        "{{% from {} import a, a %}}",
    ),
    *("{{% set x = {} %}}", "{{% set x, x = {} %}}", "{{% set x.y = {} %}}", "{{% do {} %}}"),
    *("{{% if {} %}}a{{% endif %}}", "{{% for i in {} %}}{{{{ loop.index }}}}{{% endfor %}}"),
    *(
        "{{% for a, b in {} recursive %}}{{{{ loop(a) }}}}{{% endfor %}}",
        "{{% filter {} %}}{{% endfilter %}}",
    ),
    *("{{% macro m(a, a) %}}{{% endmacro %}}", "{{% macro m(a={}, b) %}}{{% endmacro %}}"),
    *(
        "{{% macro m(a) %}}{{{{ m(a) }}}}{{% endmacro %}}{{{{ m({}) }}}}",
        "{{% call {} %}}{{% endcall %}}",
    ),
    *(
        "{{% with a = {} %}}{{{{ a.b }}}}{{% endwith %}}",
        "{{% block a %}}{{{{ {} }}}}{{% endblock %}}",
    ),
    *("{{{{ {} }}}}", "{{{{ {}", "{{% {} %}}", "{{% break %}}", "{{# {}", "{{% raw %}}{}"),
    *(
        "{{% call(a, a) m() %}}{{{{ {} }}}}{{% endcall %}}",
        "{{% autoescape {} %}}x{{% endautoescape %}}",
    ),
)


_FORMS = (
    *("{0}[{1}]", "{0}.{1}", "{0}({1})", "{0}(*{1}, **{2})", "{0} + {1}", "{0} % {1}", "{0}|F"),
    *("{0} is {1}", "{0} ~ {1}", "{0}({1}={2}, {1}={2})", "{0} if {1}", "{0}[{1}:{2}:0]"),
    *("{0} in {1}", "not {0}", "({0})" * 30, "{0} < {1} < {2}", "{0} ** {1}"),
)


def expression(chosen: random.Random, depth: int = 0) -> str:
    if depth > 2 or chosen.random() < 0.3:
        return chosen.choice(_ATOMS)
    parts = [expression(chosen, depth + 1) for _ in range(3)]
    form = chosen.choice(_FORMS)
    return form.replace("F", chosen.choice(_FILTERS)).format(*parts)


def template(chosen: random.Random) -> str:
    tag = chosen.choice(_TAGS).format(expression(chosen))
    if chosen.random() < 0.05:
        around = chosen.choice(("{% if 1 %}", "{% for i in [1] %}", "{{ (", "{{ [", "{{ not "))
        tag = around * 20 + tag
    lines = ["text"] * chosen.randrange(3) + [tag] + ["more"] * chosen.randrange(3)
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(2))
def test_a_template_is_rendered_or_told_with_its_line(project, seed):
    chosen = random.Random(seed)
    error_count = 0
    for _ in range(ROUNDS // 4):
        text = template(chosen)
        try:
            project.render(text, block_m=64)
        except InputError as error:
            error_count += 1
            for diagnostic in error.diagnostics:
                assert diagnostic.location is not None, text
                assert diagnostic.location.line, (text, diagnostic.message)
                assert 1 <= diagnostic.location.line <= text.count("\n") + 1, (text, diagnostic)
                assert diagnostic.message.strip(), text
    assert error_count > ROUNDS // 16
