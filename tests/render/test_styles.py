"""Styles: a file as it is, byte for byte; and Jinja2's own settings, with Jinja2 as the oracle."""

import sys
from pathlib import Path

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilusbuild.errors import InputError
from tilusbuild.render.environment import Style
from tilusbuild.render.renderer import Renderer

PLAIN = Style(rendered=False)
JINJA2 = Style(
    trim_blocks=False,
    lstrip_blocks=False,
    keep_trailing_newline=False,
    strict=False,
    cpp_values=False,
)
CONTEXT = {"one": 1, "yes": True, "name": "half", "items": (1, 2)}
quiet = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quiet
@given(data=st.binary(max_size=80) | st.sampled_from([b"\xef\xbb\xbfint a;\r\n", b"{{1,2},{3}}"]))
def test_a_plain_file_comes_through_byte_for_byte(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.cu").write_bytes(data)
    rendering = Renderer(str(tmp_path)).get_styled_renderer(PLAIN).render("a.cu", CONTEXT)
    assert rendering.text.encode("utf-8", "surrogateescape") == data
    assert rendering.templates == ("a.cu",)


PARTS = st.sampled_from(
    [
        *("{{ one }}", "{{ yes }}", "{{ nothing }}", "{{ nothing.deep is defined }}", "  ", "\n"),
        *("{% if nothing %}", "{% else %}", "{% endif %}", "{% for i in items %}", "{% endfor %}"),
        *("{% set x = items[1] %}", "{{ x }}", "{# no #}", "float a;", "{{ 1.5 }}", "{{ none }}"),
    ]
)


@quiet
@given(parts=st.lists(PARTS, max_size=14))
def test_settings_of_jinja2_are_those_of_jinja2(tmp_path: Path, parts: list[str]) -> None:
    text = "".join(parts)
    (tmp_path / "a.jinja").write_text(text)
    renderer = Renderer(str(tmp_path)).get_styled_renderer(JINJA2)
    try:
        expected = jinja2.Template(text).render(CONTEXT)
    except jinja2.TemplateError:
        with pytest.raises(InputError):
            renderer.render("a.jinja", CONTEXT)
        return
    assert renderer.render("a.jinja", CONTEXT).text == expected


def test_two_styles_of_one_template(tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text("{% if yes %}\nyes\n{% endif %}\n")
    renderer = Renderer(str(tmp_path))
    assert renderer.render("a.jinja", CONTEXT).text == "yes\n"
    assert renderer.get_styled_renderer(JINJA2).render("a.jinja", CONTEXT).text == "\nyes\n"


def test_a_template_of_a_package_that_is_not_imported(tmp_path, monkeypatch) -> None:
    package = tmp_path / "site/kernels_of_others"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "data/k.jinja").write_text("{{ one }}")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    renderer = Renderer(str(tmp_path))
    name = "package:kernels_of_others/data/k.jinja"
    assert renderer.render(name, CONTEXT).text == "1"
    assert renderer.resolve_path(name) == str(package / "data/k.jinja")
    assert "kernels_of_others" not in sys.modules
    for wrong in ("package:kernels_of_others/../k", "package:not_there_at_all/k"):
        with pytest.raises(InputError):
            renderer.render(wrong, CONTEXT)


def test_a_message_about_a_plain_file_is_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("one\ntwo {{\n")
    renderer = Renderer(str(tmp_path)).get_styled_renderer(PLAIN)
    lines = renderer.map_lines("a.cu", CONTEXT, renderer.render("a.cu", CONTEXT).text)
    assert str(lines.find_origin(2)) == "a.cu:2"
