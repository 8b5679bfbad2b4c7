"""Templates by Jinja2's grammar: statements and expressions in each other. What makes a text or a
number of any length in one step is not among them: a rendering does not bound that."""

import random

from support.hostile.manifests import BASE, damaged, text
from support.hostile.trial import Trial

_LEAVES = (
    *("unroll", "target", "arch", "args", "script", "flag", "word", "x", "ns", "ns.s", "loop"),
    *("loop.index", "caller", "self", "varargs", "none", "true", "1", "0", "-1"),
    *("'a'", "'%d'", "'{0.__class__}'", "'aaaa'", "[]", "{}", "()", "''", "'\\ud800'", "1.5"),
    *("range(99999)", "joiner()", "cycler(1, 2)", "namespace(s='a')", "dict(a=1)", "'\\x1b[31m'"),
    *("script.__class__", "''.__class__.__mro__", "super()", "cycler.__init__.__globals__"),
)
_OPERATORS = (
    *("+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">="),
    *("and", "or", "in", "is defined and", "not in"),
)
_FILTERS = (
    *("abs", "attr('__class__')", "batch(3, 0)", "capitalize", "center(10)", "default(1)"),
    *("dictsort", "escape", "filesizeformat", "first", "float", "format(10, 1)", "groupby(0)"),
    *("indent(9)", "int(0, 99)", "items", "join(ns.s)", "last", "length", "list", "lower"),
    *("map('string')", "max", "min", "reject", "replace('a', 'aa')", "replace('', 'b')"),
    *("reverse", "round(400)", "safe", "select", "slice(12)", "sort", "string", "striptags"),
    *("sum", "sum(start=[])", "title", "tojson", "trim", "truncate(-5)", "unique", "upper"),
    *("urlencode", "urlize", "wordcount", "wordwrap(1)", "xmlattr", "hex", "bits", "ctype", "nope"),
)
_METHODS = (
    *("format(w=9)", "zfill(9)", "ljust(9)", "join(['a'] * 9)", "expandtabs(9)"),
    *("upper()", "split('')", "items()", "append(1)", "find('b')"),
    *("encode()", "replace('a', 'b')", "__len__()", "splitlines()", "format_map(x)"),
)


def expression(rng: random.Random, depth: int = 3) -> str:
    """Return an expression."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return rng.choice(_LEAVES)
    one, two, three = (expression(rng, depth - 1) for _ in range(3))
    if kind < 0.5:
        return f"({one} {rng.choice(_OPERATORS)} {two})"
    if kind < 0.7:
        return f"{one}|{rng.choice(_FILTERS)}"
    if kind < 0.8:
        return f"({one}).{rng.choice(_METHODS)}"
    if kind < 0.87:
        return f"({one} if {two} else {three})"
    if kind < 0.93:
        return f"[{one}, {two}][{three}]"
    return rng.choice(("not ", "-", "(", "[")) * rng.choice((1, 50, 400)) + one


def statement(rng: random.Random, depth: int = 4) -> str:
    """Return a piece of a template."""
    inner = "".join(statement(rng, depth - 1) for _ in range(rng.randint(0, 2))) if depth else "t"
    value = expression(rng)
    choices = (
        f"{{{{ {value} }}}}",
        f"{{{{ {value} }}}}",
        f"{{% for i in {value} %}}{inner}{{% endfor %}}",
        f"{{% for i in range(9) %}}{{% set ns.s = {value} %}}{{% endfor %}}{{{{ ns.s|length }}}}",
        f"{{% for i in {value} recursive %}}{{{{ loop({value}) }}}}{{% endfor %}}",
        f"{{% if {value} %}}{inner}{{% else %}}{inner}{{% endif %}}",
        f"{{% macro m(a, b={value}) %}}{inner}{{{{ a }}}}{{% endmacro %}}{{{{ m({value}) }}}}",
        "{% macro r(a) %}{{ r(a) }}{% endmacro %}{{ r('a') }}",
        f"{{% call m({value}) %}}{inner}{{% endcall %}}",
        f"{{% set x %}}{inner}{{{{ x }}}}{{{{ x }}}}{{% endset %}}{{{{ x }}}}",
        f"{{% set x = {value} %}}{inner}",
        f"{{% set ns = namespace(s={value}) %}}{inner}",
        f"{{% with x = {value} %}}{inner}{{% endwith %}}",
        f"{{% filter {rng.choice(_FILTERS)} %}}{inner}{{% endfilter %}}",
        f"{{% block b{rng.randrange(9)} %}}{inner}{{% endblock %}}",
        f"{{% include {value} ignore missing %}}",
        "{% include 'scale.cu.j2' %}",
        f"{{% extends {value} %}}",
        f"{{% import {value} as x %}}{{{{ x.y }}}}",
        f"{{% do {value} %}}",
        rng.choice(("{% break %}", "{% continue %}")),
        f"{{{{ raise({value}) }}}}",
        f"{{% raw %}}{inner}{{% endraw %}}",
        rng.choice(
            ("{%", "{{", "{#", "%}", "}}", "{% nope %}", "{% endfor %}", "\0", "\x1b]0;a\7")
        ),
    )
    return rng.choice(choices)


def trial(rng: random.Random) -> Trial:
    """Return a command with a template."""
    body = "{% set ns = namespace(s='aaaa') %}\n" * (rng.random() < 0.5)
    body += "\n".join(statement(rng) for _ in range(rng.randint(1, 4)))
    if rng.random() < 0.1:
        piece = statement(rng, 1)
        body = rng.choice(("{% if 1 %}", "{% for i in 'a' %}", "{% set x %}", "{{ (", piece)) * 300
    data = body.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        data = damaged(rng, data)
    return Trial(
        rng.choice((("plan",), ("build", "-n"), ("plan", "--json"))),
        {"project/tilus.toml": text(BASE).encode(), "project/scale.cu.j2": data},
        places=("scale.cu.j2", "tilus.toml"),
    )
