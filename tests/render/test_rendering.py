"""What a template can say, and what it cannot reach."""

import pytest

from tilusbuild.render.renderer import Renderer


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("{{ persistent }} {{ not persistent }}", "true false"),
        ("{{ block_m }} {{ alpha }}", "64 0.5"),
        ('{{ "f16" | ctype }} {{ "u8" | ctype }}', "__half unsigned char"),
        ('{{ "f16" | ctype(portable=true) }}', "tb::f16"),
        ('{{ "f4e2m1x2" | ctype }} {{ "f4e2m1x2" | bits }}', "__nv_fp4x2_e2m1 8"),
        ('{{ "f8e8m0" | ctype }} {{ "f8e8m0" | bytes }}', "__nv_fp8_e8m0 1"),
        ('{{ "bf16" | bits }} {{ "f32" | bytes }}', "16 4"),
        ("{{ cdiv(7, 2) }} {{ 7 | align(4) }} {{ log2(64) }} {{ pow2(3) }}", "4 8 6 8"),
        ("{{ min(3, true, 2) }} {{ [3, 1] | max }} {{ gcd(12, 18) }}", "1 3 6"),
        ("{{ 255 | hex }} {{ 1 | hex(4) }}", "0xff 0x0001"),
        ("{{ 64 is pow2 }} {{ 48 is pow2 }} {{ 48 is divisible(16) }}", "true false true"),
        ("{% for i in range(3) %}{{ i }}{{ ', ' if not loop.last }}{% endfor %}", "0, 1, 2"),
        ("{% for i in [4, 5] %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/2 2/2 "),
        ("a\n{# a comment #}\n  {% if true %}\nb\n  {% endif %}\n", "a\nb\n"),
    ],
)
def test_writes(project, template, written):
    assert project.render(template, block_m=64, alpha=0.5, persistent=True) == written


def test_a_template_comment_changes_nothing(project):
    plain = project.render("a {{ n }}\nb\n", n=1)
    assert project.render("{# one\n   two #}\na {{ n }}\n{# three #}\nb\n", n=1) == plain


def test_types_follow_the_target(project, cpu):
    assert project.render('{{ "bf16" | ctype }}', cpu) == "tb::bf16"


def test_nested_imports_see_the_target_of_each_rendering(project, cpu, ampere):
    project.write(
        {
            "inner.j2": "{% macro kind() %}{{ target.kind }}{% endmacro %}",
            "outer.j2": '{% import "inner.j2" as inner %}'
            "{% macro kind() %}{{ inner.kind() }}{% endmacro %}",
            "k.cu.j2": '{% import "outer.j2" as outer %}{{ outer.kind() }}',
        }
    )
    renderer = Renderer(str(project.directory))
    assert [renderer.render("k.cu.j2", around).text for around in (cpu, ampere, cpu)] == [
        "cpu", "cuda", "cpu",
    ]  # fmt: skip


def test_a_name_with_a_dot_is_relative_to_the_template_that_names_it(project):
    project.write({"lib/a.j2": '{% include "./b.j2" %}', "lib/b.j2": "b{% include '../c.j2' %}"})
    project.write({"c.j2": "c"})
    assert project.render('{% include "lib/a.j2" %}') == "bc"


def test_the_rendering_tells_which_templates_it_used_and_missed(project):
    project.write(
        {
            "a.j2": '{% include ["gone.j2", "b.j2"] %}{% include "no.j2" ignore missing %}',
            "b.j2": "",
            "unused.j2": "",
        }
    )
    rendered = Renderer(str(project.directory)).render("a.j2", {})
    assert rendered.templates == ("a.j2", "b.j2")
    assert rendered.missing == ("gone.j2", "no.j2")


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_the_source(project):
    project.write({"k.j2": b"\xef\xbb\xbfa\r\nb\r\n"})
    assert Renderer(str(project.directory)).render("k.j2", {}).text == "a\nb\n"
