"""What compilers say of the rendered source, told of the template."""

import os
import shutil
import textwrap

import pytest

from support.processes import run_to_end
from tilusbuild.render.messages import map_messages

TEMPLATE = """\
{# A comment of
   two lines. #}
{% macro twice(name) %}
template <class T> {{ device }} T {{ name }}(T x) {
  return x.value * 2;
}
{% endmacro %}
#include "inc.h"
{{ twice("twice_a") }}
{{ device }} int f(int x) { return {{ n }}; }
{{ device }} int f(int x) { return 1; }
extern "C" {{ kernel }} void k(float* y) {
  int never;
  y[0] = twice_a(3.0f) + {{ n }} * absent;
}
"""


@pytest.fixture
def gpu(project):
    return project.mapped(TEMPLATE, n=64, device="__device__", kernel="__global__")


@pytest.fixture
def host(project):
    return project.mapped(TEMPLATE, n=64, device="", kernel="")


def map_text(log, line_map):
    return map_messages(textwrap.dedent(log), line_map).rstrip("\n")


def test_a_front_end_error_shows_the_templates_line_below_the_echo(gpu):
    _, lines = gpu
    log = """\
        source.cu(10): error: identifier "absent" is undefined
            y[0] = twice_a(3.0f) + 64 * absent;
                                        ^
        """
    assert map_text(log, lines) == textwrap.dedent("""\
        k.cu.j2(14): error: identifier "absent" is undefined
            y[0] = twice_a(3.0f) + 64 * absent;
                                        ^
           14 |   y[0] = twice_a(3.0f) + {{ n }} * absent;
              |                                    ^^^^^^""")


def test_references_within_a_message_are_mapped_too(gpu):
    _, lines = gpu
    log = """\
        source.cu(7): error: function "f" has already been defined (defined at line 6)
          __attribute__((device)) int f(int x) { return 1; }
                                      ^
        source.cu(3): error: expression must have class type but it has type "float"
            return x.value * 2;
                   ^
                  detected during instantiation of "T twice_a(T) [with T=float]" at line 10
        """
    assert map_text(log, lines) == textwrap.dedent("""\
        k.cu.j2(11): error: function "f" has already been defined (defined at k.cu.j2:10)
          __attribute__((device)) int f(int x) { return 1; }
                                      ^
           11 | {{ device }} int f(int x) { return 1; }
              |                  ^
        k.cu.j2(5): error: expression must have class type but it has type "float"
            return x.value * 2;
                   ^
          called from k.cu.j2:9
                  detected during instantiation of "T twice_a(T) [with T=float]" at k.cu.j2:14""")


def test_a_headers_own_lines_stay_and_references_to_the_source_do_not(gpu):
    _, lines = gpu
    log = """\
        include/inc.h(2): error: no operator "<" matches these operands
            { return a < b; }
                       ^
                  detected during:
                    instantiation of "void g() [with T=S]" at line 5
                    instantiation of "void h() [with T=S]" at line 10 of source.cu
        """
    assert map_text(log, lines) == textwrap.dedent(log).rstrip("\n").replace(
        "line 10 of source.cu", "k.cu.j2:14"
    )


def test_gcc_messages_have_the_templates_columns(host):
    _, lines = host
    log = """\
        In file included from source.cu:1:
        inc.h:2:26: error: 'nope' was not declared in this scope
            2 | inline int h() { return nope; }
              |                         ^~~~
        source.cu: In function 'void k(float*)':
        source.cu:10:31: error: 'absent' was not declared in this scope
           10 |   y[0] = twice_a(3.0f) + 64 * absent;
              |                               ^~~~~~
        source.cu:9:7: warning: unused variable 'never' [-Wunused-variable]
            9 |   int never;
              |       ^~~~~
        """
    assert map_text(log, lines) == textwrap.dedent("""\
        In file included from k.cu.j2:8:
        inc.h:2:26: error: 'nope' was not declared in this scope
            2 | inline int h() { return nope; }
              |                         ^~~~
        k.cu.j2: In function 'void k(float*)':
        k.cu.j2:14:36: error: 'absent' was not declared in this scope
           14 |   y[0] = twice_a(3.0f) + 64 * absent;
              |                               ^~~~~~
           14 |   y[0] = twice_a(3.0f) + {{ n }} * absent;
              |                                    ^
        k.cu.j2:13:7: warning: unused variable 'never' [-Wunused-variable]
           13 |   int never;
              |       ^~~~~""")


@pytest.mark.parametrize(
    "line",
    [
        "ptxas fatal   : Ptx assembly aborted due to errors",
        "ptxas info    : Used 32 registers, 400 bytes cmem[0]",
        "other_source.cu(3): error: not ours",
        "source.cu(999): error: beyond the end",
        "source.cu:(.text+0x5): undefined reference to `f'",
        '4 errors detected in the compilation of "source.cu".',
        "",
    ],
)
def test_what_names_no_line_of_ours_is_unchanged(gpu, line):
    _, lines = gpu
    assert map_messages(line, lines) == line


def test_paths_before_the_sources_name_are_taken_along(gpu):
    _, lines = gpu
    assert map_messages("./module/source.cu(9): error: x", lines).startswith("k.cu.j2(13): error")


def test_tabs_and_wide_characters_before_the_column(project):
    _, lines = project.mapped("{# c #}\n\tint a = {{ n }}; oops; /* 漢字 */ oops;\n", n=1)
    # g++ counts a tab as up to eight columns and each of these characters as two.
    column = 8 + len("int a = 1; ") + 1
    first = map_messages(f"source.cu:1:{column}: error: oops", lines).split("\n")[0]
    assert first == f"k.cu.j2:2:{len('.int a = {{ n }}; ') + 1}: error: oops"
    behind = f"source.cu:1:{column + 18}: error: oops"
    assert map_messages(behind, lines).split("\n")[0] == "k.cu.j2:2: error: oops"


MISTAKES = {
    # What the compiler must be heard to say of which line of the template.
    'identifier "absent" is undefined': 14,
    'function "f" has already been defined': 11,
    "must have class type": 5,
    '"never" was declared but never referenced': 13,
}


@pytest.mark.nvcc
def test_what_nvcc_says(gpu, tmp_path):
    text, lines = gpu
    (tmp_path / "source.cu").write_text(text)
    (tmp_path / "inc.h").write_text("\n")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    command = [nvcc, "-gencode", "arch=compute_80,code=sm_80", "-cubin", "-o", "x", "source.cu"]
    log = run_to_end(command, status=None, cwd=tmp_path)
    mapped = map_messages(log.stderr + log.stdout, lines)
    for message, line in MISTAKES.items():
        (head,) = [text for text in mapped.split("\n") if message in text]
        assert head.startswith(f"k.cu.j2({line}): ")
    assert "source.cu(" not in mapped


def test_what_gcc_says(host, tmp_path):
    text, lines = host
    (tmp_path / "source.cu").write_text(text)
    (tmp_path / "inc.h").write_text("\n")
    command = ["g++", "-Wall", "-x", "c++", "-fsyntax-only", "source.cu"]
    environment = {**os.environ, "LC_ALL": "C"}
    log = run_to_end(command, status=None, cwd=tmp_path, env=environment)
    mapped = map_messages(log.stderr, lines)
    for start in (
        "k.cu.j2:14:36: error: 'absent' was not declared",
        "k.cu.j2:11:18: error: redefinition of",
        "k.cu.j2:10:18: note:",
        "k.cu.j2:5:",
        "k.cu.j2:13:7: warning: unused variable 'never'",
    ):
        assert [text for text in mapped.split("\n") if text.startswith(start)], (start, mapped)
    assert "source.cu:" not in mapped
