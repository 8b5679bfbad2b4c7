"""Kernels read from a text, against what a compiler makes of the same text.

Each seed is a batch of random kernels. Those that are read are held by g++ to the type that was
read; those of which nothing sure can be said must not be. TILUSBUILD_SIGNATURES is how many.
"""

import os
import random
import subprocess
from pathlib import Path

import pytest

from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.signature.reading import KernelSource, read_tags

BATCHES = max(1, int(os.environ.get("TILUSBUILD_SIGNATURES", "120")) // 60)
SPELLINGS = [
    *("float", "double", "bool", "char", "signed char", "unsigned char", "short", "int", "long"),
    *("long long", "long int", "int long", "unsigned", "unsigned int", "int unsigned", "size_t"),
    *("unsigned long long int", "long unsigned int", "short unsigned", "signed", "int64_t"),
    *("std::uint8_t", "uint16_t", "std::int32_t", "signed long", "long long unsigned"),
    *("ptrdiff_t", "std::intptr_t", "uintptr_t"),
]
STUB = """\
#include <cstddef>
#include <cstdint>
#include <type_traits>
#ifndef __CUDACC__
#define __launch_bounds__(...)
#endif
#define BOUNDS(x)
struct Other { int a[3]; };
"""


class Source:
    """A random kernel; `is_sure` is whether its text says all of it."""

    def __init__(self, random: random.Random, number: int) -> None:
        self.random, self.number, self.is_sure = random, number, True
        self.before = ""
        parameters = [self.parameter(index) for index in range(random.randrange(6))]
        inside = f",{self.gap()}".join(parameters) or random.choice(["", "void", " void "])
        bounds = [
            "",
            "__launch_bounds__(2 * (64 + 1), 2) ",
            "BOUNDS((3)) ",
            "__launch_bounds__(8)\n",
        ]
        first, second = random.choice(bounds), random.choice(bounds)
        end = random.choice([" {}", ";", "\n{ /* ; */ }"])
        is_block = random.random() < 0.5
        linkage = self.macro('extern "C"') + " {\n" * is_block
        mark = self.macro(f"__global__{self.gap()} {first}")
        head = f"{linkage} {mark}" if is_block else self.macro(f"{linkage} {mark}")
        self.text = (
            f"{self.before}{head} void {second}k{number}"
            f"{self.gap()}({inside}{self.gap()}){self.gap()}{end}\n{'}' * is_block}\n"
        )

    def gap(self) -> str:
        """What may stand between any two words."""
        return self.random.choice(
            ["", " ", "\n", "/* a, (b) */", "// const float *z, \\\n x )\n", "  /* __global__ */ "]
        )

    def macro(self, words: str) -> str:
        """The words, or a macro that stands for them where CUDA C++ is compiled."""
        name = f"M{self.number}_{len(self.before)}"
        ways = [
            "#define {name} {words}",
            "#ifdef __cplusplus\n#define {name} {words}\n#else\n#define {name}\n#endif",
            "#ifndef __cplusplus\n#define {name} extern\n#else\n#define {name} {words}\n#endif",
            "#ifndef {name}\n#define {name} \\\n {words}\n#endif",
        ]
        if "\n" in words or self.random.random() < 0.6:
            return words
        self.before += self.random.choice(ways).format(name=name, words=words) + "\n"
        return name

    def alias(self, of: str) -> str:
        name = f"T{self.number}_{len(self.before)}"
        ways = ["typedef {of} {name};", "using {name} = {of};", "#define {name} {of}"]
        how = self.random.choice(ways[: 2 if "const" in of else 3])  # a macro would say it twice
        self.before += how.format(of=of, name=name) + self.random.choice(["\n", " // a type\n"])
        return name

    def unsure(self, index: int) -> str:
        self.is_sure = False
        name = f"p{index}"
        twice = f"U{self.number}_{index}"
        if self.random.random() < 0.2:
            self.before += f"namespace s{twice} {{ using {twice} = float; }}\n"
            self.before += f"typedef double {twice};\n"
            return f"{twice} {name}"
        others = f"float **{name}", f"Other {name}", f"const int &{name}", f"float *{name}[2]"
        return self.random.choice([*others, f"void (*{name})(int)"])

    def parameter(self, index: int) -> str:
        choose = self.random.choice
        if self.random.random() < 0.05:
            return self.unsure(index)
        of = choose(SPELLINGS)
        while self.random.random() < 0.3:
            of = self.alias(of if self.random.random() < 0.8 else f"const {of}")
        space = self.gap() or " "
        if self.random.random() < 0.4:
            of = choose([f"const{space}{of}", f"{of}{space}const", f"volatile {of}"])
        name = f"p{index}"
        if self.random.random() < 0.4:
            return f"{choose(['', '[[maybe_unused]] '])}{of}{space} {name}"
        if self.random.random() < 0.2:
            return f"{of} {name}{choose(['[]', '[16]', '[4 * 2]'])}"
        star = choose(["*", " * ", "* const ", "*__restrict__ ", "* __restrict ", "/**/*"])
        return f"{of}{star}{name}"


def c_type(dtype: str, *, is_pointer: bool, is_const: bool) -> str:
    if dtype == "void":
        return "const void *" if is_const else "void *"
    of = DTYPES[dtype].c.replace("_Bool", "bool")
    return f"{'const ' * (is_const and is_pointer)}{of}{' *' * is_pointer}"


COMPILERS = {
    "g++": ("g++", "-fsyntax-only", "-D__global__="),
    "nvcc": ("nvcc", "-x", "cu", "-cuda", "-o", os.devnull),
}


@pytest.mark.parametrize("seed", range(BATCHES))
@pytest.mark.parametrize("compiler", ["g++", pytest.param("nvcc", marks=pytest.mark.nvcc)])
def test_what_is_read_is_what_a_compiler_takes(compiler: str, seed: int, tmp_path: Path) -> None:
    unit, read, sure = STUB, 0, 0
    for number in range(60):
        source = Source(random.Random(1000 * seed + number), number)
        (kernel,) = KernelSource(source.text, jinja=bool(number % 2)).kernels
        is_read = not kernel.problem and all(parameter.dtype for parameter in kernel.parameters)
        assert kernel.name == f"k{number}", source.text
        sure, read = sure + source.is_sure, read + is_read
        assert is_read == source.is_sure, (source.text, kernel)
        # A kernel of nvcc takes no reference.
        unit += source.text if is_read or compiler == "g++" else ""
        if is_read:
            types = [
                c_type(
                    parameter.dtype, is_pointer=parameter.is_pointer, is_const=parameter.is_const
                )
                for parameter in kernel.parameters
            ]
            wanted = f"void (*)({', '.join(types)})"
            unit += (
                f'static_assert(std::is_same<decltype(same(&k{number})), {wanted}>::value, "");\n'
            )
    # `volatile`, and `long` for `long long`, are the same bits.
    unit = unit.replace(STUB, STUB + SAME)
    (tmp_path / "unit.cc").write_text(unit)
    command = [*COMPILERS[compiler], "-std=c++17", "-w", str(tmp_path / "unit.cc")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[:3000]
    assert read > 30


SAME = """\
template <class T> struct as { using t = T; };
#define AS(A, B) template <> struct as<A> { using t = B; };
AS(long, int64_t) AS(long long, int64_t) AS(unsigned long, uint64_t) AS(char, int8_t)
AS(unsigned long long, uint64_t)
template <class T> struct as<volatile T> { using t = typename as<T>::t; };
template <class T> struct as<const T> { using t = const typename as<T>::t; };
template <class T> struct as<const volatile T> { using t = const typename as<T>::t; };
template <class T> struct as<T *> { using t = typename as<T>::t *; };
template <class... A> void (*same(void (*)(A...)))(typename as<A>::t...);
"""


K = """\
extern "C" __global__ void k(const half *x, half *y, int n) {
  if (n > 1) y[0] = x[0];
}
"""
EXTERN = 'extern "C" '
HEAD = K.split("{")[0].strip()
ORDINARY = {
    "a header": "#include <cuda_fp16.h>\n" + K,
    "a macro with parameters": "#define MAX(a,b) ((a) > (b) ? (a) : (b))\n" + K,
    "a condition": "#if __CUDA_ARCH__ >= 800\n#define A 1 > 0\n#endif\n" + K,
    "a condition around it": "#if __CUDA_ARCH__ >= 800\n" + K + "#endif\n",
    "a condition in it": K.replace("{", "{\n#if __CUDA_ARCH__ >= 800\n#endif"),
    "halves of a block": K.replace("{", "{\n#if A\nif (n) {\n#else\nif (!n) {\n#endif\n}"),
    "code that is off": f"#if 0\n{K.replace('half', 'float')}#else\n{K}#endif\n",
    "a prototype": f"{HEAD};\n{K}",
    "a prototype with an attribute": f"{HEAD} __attribute__((cold));\n{K}",
    "a prototype without names": f"{HEAD.replace('*x', '*').replace(' n', '')};\n{K}",
    "linkage of the prototype": f"{HEAD};\n{K.removeprefix(EXTERN)}",
    "bounds": K.replace("void", "void __launch_bounds__(T * (2 + 1), 2)"),
    "bounds before": K.replace("void", "__cluster_dims__(2, 1, 1) __maxnreg__(64) void"),
    "attributes": K.replace("__global__", "[[maybe_unused]] __attribute__((noinline)) __global__"),
    "a macro before": '#define API __attribute__((visibility("default")))\nAPI ' + K,
    "friends": "struct S { template <class T> friend __global__ void z(T); };\n" + K,
    "strings": 'const char *s = "__global__ void z(int)";\n' + K,
    "raw strings": 'const char *s = R"(__global__ void z(int n) {})";\n' + K,
    "comments": f"// __global__ void z(int n) {{}}\n/* {K.replace(' k', ' q')} */\n" + K,
    "a comment inside": K.replace("*x", "*x /* the ( input, */"),
    "quotes": "int a = 1'000; char c = '\"';\n" + K,
    "templates": "template <class T, int N = (3 > 2)> struct S { T x[N]; };\n" + K,
    "a template after": K + "template <class T> __device__ T f(T a) { return a > 0 ? a : -a; }\n",
    "specializations": "template <> __global__ void z<int>(int *x) {}\n" + K,
    "operators": "struct A { bool operator>(const A &b) const; };\nconstexpr int a = 1 >> 2;\n" + K,
    "a namespace before": "namespace a { int f(); }\n" + K,
    "a block": f'extern "C" {{\n{K.removeprefix(EXTERN)}}}\n',
    "a block for C": K.replace(EXTERN, '#ifdef A\nextern "C" {\n#endif\n')
    + "#ifdef A\n}\n#endif\n",
    "restrict": K.replace("*x", "*__restrict__ x"),
    "restrict by a macro": "#define RESTRICT __restrict__\n" + K.replace("*x", "* RESTRICT x"),
    "restrict by either macro": "#ifdef A\n#define R __restrict__\n#else\n#define R\n#endif\n"
    + K.replace("*x", "* R x"),
    "typedef": "typedef half T;\n" + K.replace("half", "T"),
    "using": "using T = const half;\n" + K.replace("const half", "T"),
    "a type by a macro": "#define T half\n" + K.replace("half", "T"),
    "a default": K.replace("int n", "int n = MAX(1, 2)"),
    "long macros": "#define BODY(x) do { \\\n  x; \\\n} while (0)\nDECLARE(foo)\n" + K,
    "a launch": K + "void run() { k<<<dim3(1, 2), 3, 0, s>>>(x, y, n); }\n",
    "assembly": K.replace("if", 'asm("{ mov.b32 %0, {%1,%2}; }" : "=r"(a) : "r"(b)); if'),
    "a comment behind a macro": "#define A /* none */ \n" + K,
    "a mark": "\ufeff" + K,
    "other letters": "// größer 日本\n" + K,
}
IN_TEMPLATES = {
    "tags that strip": "{%- if x -%}\n\n  " + K + "{%- endif -%}\n",
    "raw": "{% raw %}\n" + K + "{% endraw %}\n",
    "statements": "{% set a = 3 > 2 %}{% do f() %}\n{{ async.copy() }}\n" + K,
    "loops": K.replace("if", "{% for i in r %} if (n) { {% break %}{% endfor %} {{ close }} if"),
    "branches": "{% if a %}\nvoid f() {\n{% else %}\nvoid g() {\n{% endif %}\n}\n" + K,
}


@pytest.mark.parametrize("name", [*ORDINARY, *IN_TEMPLATES])
def test_a_kernel_is_read_as_people_write_it(name: str) -> None:
    for jinja in (True,) if name in IN_TEMPLATES else (False, True):
        text = {**ORDINARY, **IN_TEMPLATES}[name]
        (kernel,) = KernelSource(text, jinja=jinja).kernels
        assert (kernel.name, kernel.problem) == ("k", "")
        assert [(p.name, p.dtype, p.is_pointer, p.is_const) for p in kernel.parameters] == [
            ("x", "f16", True, True),
            ("y", "f16", True, False),
            ("n", "i32", False, False),
        ]
        assert text.split("\n")[kernel.line - 1][kernel.column - 1 :].startswith("__global__")


def test_a_hash_behind_a_brace_is_plain_where_nothing_is_rendered() -> None:
    text = f"#define NAME(x) {{#x}}\n{K}#define OTHER(x) {{x #}}\n"
    assert [kernel.name for kernel in KernelSource(text, jinja=False).kernels] == ["k"]
    assert not KernelSource(text, jinja=True).kernels


@pytest.mark.parametrize(
    "text",
    [
        "#ifndef REAL\n#define REAL float\n#endif\n__global__ void f(REAL x) {}",
        "#ifndef half\n#define half float\n#endif\n__global__ void f(half x) {}",
        "__global__ void f(float {{ more }} x) {}",
        "__global__ void f({{ all }}) {}",
        "__global__ void f(\n  {{ all }}\n) {}",
        "template <class T> __global__ void f(T x) {}\ntypedef float T;",
        "".join(f"#define A{i} A{i + 1} A{i + 1}\n" for i in range(60))
        + "__global__ void f(A0 x) {}",
    ],
)
def test_what_the_text_does_not_say_is_not_guessed(text: str) -> None:
    (kernel,) = KernelSource(text, jinja=True).kernels
    assert kernel.problem or not kernel.parameters[0].dtype


def test_a_kernel_whose_macro_has_two_linkages_is_not_guessed() -> None:
    both = f"#if A\n#define KERNEL __global__\n#else\n#define KERNEL {EXTERN}__global__\n#endif\n"
    source = KernelSource(f"{both}KERNEL void k(int n) {{}}", jinja=False)
    assert (source.kernels, source.is_open) == ([], True)


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("template <int N>\n__global__ void f(float *x) {}", "::f", '"f" is a template'),
        ("namespace a { namespace b { __global__ void f(int n) {} } }", "a::b::f", ""),
        ("namespace { __global__ void f(int n) {} }", "::f", ""),
        ("namespace a { namespace { __global__ void f(int n) {} } }", "a::f", ""),
        ("__global__ void f(int a, {% if two %} int b {% endif %}) {}", "::f", "depend on a tag"),
        ("__global__ void f(\n#ifdef A\nint n\n#endif\n) {}", "::f", "depend on macros"),
        ('extern "C" __global__ void {{ name }}(int n) {}', "", "are not plain C++"),
        ("__global__ void __launch_bounds__({{ (threads) }}) f(int n) {}", "::f", ""),
        ("{# __global__ void g(int n) {} #}__global__ void f(int n) {}", "::f", ""),
        ('const char *s = "__global__ // "; __global__ void f(int n) {}', "::f", ""),
    ],
)
def test_what_is_not_sure_is_not_read(text: str, name: str, problem: str) -> None:
    kernel = KernelSource(text, jinja=True).kernels[-1]
    assert kernel.name == name
    assert problem in kernel.problem
    assert bool(problem) == bool(kernel.problem)


def test_a_branch_for_the_cpu() -> None:
    assert read_tags('{% if target.kind == "cpu" %}{% endif %}').has_cpu
    assert read_tags('{{ "a" if target.kind != "cuda" }}').has_cpu
    assert not read_tags("{# target.kind #} int target.kind; {{ x }} // {% set y = 1 %}").has_cpu
    # The mistake is of the template alone, and not also of an override for the cpu.
    assert read_tags('{% if target.kind == "cpu" %}{{ 1 + }}{% endif %}').has_cpu
