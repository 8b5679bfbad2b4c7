"""Programs that share precompiled headers have the bytes and the messages of those compiled alone.

Sources are generated: what stands before, between and after their includes, and what headers do
with macros, counters and names of files. One process compiles them in an order of its own with
precompiled headers, another one from their text alone.
"""

import json
import os
import random
import re
import sys
from itertools import product
from pathlib import Path

import pytest

from support.processes import run_to_end
from tilusbuild.process import landlock
from tilusbuild.toolchain.nvrtc_pch import _INCLUDES

HARNESS = Path(__file__).with_name("pch_process.py")
SOURCES = int(os.environ.get("PCH_SOURCES", "10"))
CLOSURES = {"a" * 64: "1", "b" * 64: "2"}
"""Two closures whose headers have the same names and lengths, and other contents."""

pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.skipif(not landlock.find_version(), reason="this kernel offers no Landlock"),
]

HEADERS = {
    "count.cuh": """#pragma once
#ifdef __COUNTER__
#define COUNT __COUNTER__
#else
#define COUNT (__LINE__ + @)
#endif
""",
    "once.cuh": """#pragma once
#include "count.cuh"
#include <cuda_fp16.h>
#ifndef SCALE
#define SCALE @
#endif
static __device__ int hits = __LINE__;
__device__ inline float once(float v) { hits += COUNT + @; return v * SCALE; }
""",
    "guarded.cuh": """#ifndef GUARDED
#define GUARDED
#include "count.cuh"
#include "deep/inner.cuh"
namespace {
__device__ float table[@];
template <int N> __device__ float pick() { return table[N % @] + N; }
}
template <class T, int N> struct Box {
  T v[N];
  static constexpr int size = N + @;
  __device__ T sum() const { T s = 0; for (auto x : v) s += x; return s; }
};
__device__ inline const char *where() { return __FILE__; }
#define MARK __LINE__ + COUNT
#endif
""",
    "deep/inner.cuh": """#pragma once
#include "../once.cuh"
#if __has_include("nothing.cuh") || __has_include("../source.cu")
#define FOUND 1
#else
#define FOUND @
#endif
__device__ inline float inner(float v) { return once(v) + FOUND + __INCLUDE_LEVEL__; }
extern __device__ float shared_by_all;
""",
    "each.cuh": """#ifndef EACH
#define EACH @
#endif
#define AGAIN (EACH + 1)
__device__ inline float each(float v) { return v + EACH; }
""",
    "warns.cuh": """#pragma once
#warning "told by a header @"
__device__ inline float warns(float v) { int unused; return v - @; }
""",
    "own.cuh": """#pragma once
#include "/proc/self/cwd/beside.h"
#define SECOND 1
#include "/proc/thread-self/cwd/source.cu"
#undef SECOND
__device__ inline float own(float v) { return v + BESIDE; }
""",
    "lines.cuh": """#pragma once
#line 700 "elsewhere.cuh"
__device__ inline int lines() { return __LINE__; }
__device__ inline const char *file() { return __FILE__ __BASE_FILE__; }
""",
}
CALLS = {
    "once.cuh": "once(v) + COUNT",
    "guarded.cuh": "pick<3>() + inner(v) + Box<float, 4>{}.sum() + MARK + where()[n % 3]",
    "deep/inner.cuh": "inner(v)",
    "each.cuh": "each(v) * AGAIN",
    "warns.cuh": "warns(v)",
    "own.cuh": "own(v)",
    "lines.cuh": "lines() + file()[n & 7]",
    "cuda_fp16.h": "__half2float(__hadd(__float2half(v), __float2half(1)))",
}
OPTIONS: tuple[list[str], ...] = (
    [],
    ["-lineinfo"],
    ["-DSCALE=7"],
    ["-default-device", "-use_fast_math"],
    ["-G"],
    ["-diag-suppress=20169"],
    ["--kernel=by_name<3>"],
)


def source(draw: random.Random) -> str:
    """A program that uses some headers, in one of the ways that people and tools write them."""
    ordinary = [name for name in CALLS if name not in ("warns.cuh", "own.cuh")]
    chosen = draw.sample(ordinary, draw.randint(1, 4))
    if draw.random() < 0.25:
        chosen.append(draw.choice(["warns.cuh", "own.cuh"]))
    top = ["", "// a comment\n", "/* of two\n lines */\n", "#define SCALE 9\n", "#pragma once\n"]
    text = draw.choices(top, [6, 3, 3, 2, 1])[0]
    between = ["", "\n", "  // why \\\n", "#define EACH 4\n", "#undef SCALE\n", "#if 1\n#endif\n"]
    for name in chosen:
        quotes = draw.choice(['"{}"', "<{}>"]) if name != "cuda_fp16.h" else "<{}>"
        text += f"#include {quotes.format(name)}{draw.choice(['', '', ' // for it'])}\n"
        text += draw.choices(between, [8, 3, 1, 1, 1, 1])[0]
    number = draw.randint(0, 3)
    calls = " + ".join(CALLS[name] for name in chosen)
    text += draw.choice(["", f"#define OWN {number}\n", "static __device__ int own_variable;\n"])
    late = '#include "each.cuh"\n' if draw.random() < 0.2 else ""
    wrong = "undeclared(v)" if draw.random() < 0.1 else str(number)
    return f"""{text}
#ifndef COUNT
#define COUNT 5
#endif
#ifndef SECOND
{late}namespace {{ __device__ float here(float v) {{ return v + __LINE__ + COUNT; }} }}
extern "C" __global__ void k(float *x, int n) {{
  float v = x[threadIdx.x];
  if (n < {number}) printf("%s %d", __FILE__, __LINE__);
  x[threadIdx.x] = here(v) + {calls} + {wrong};
}}
template <int N> __global__ void by_name(float *x) {{ x[N] = COUNT; }}
#endif
"""


class Shelf:
    """Sources in private directories, as a build lays them out, and what compiles them."""

    def __init__(self, root: Path, library: str, include: str) -> None:
        self.root, self.library, self.include = root, library, include
        for closure, number in CLOSURES.items():
            for name, text in HEADERS.items():
                path = root / "include" / closure / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text.replace("@", number))
                os.utime(path, (1, 1))

    def add(self, text: str, closure: str, options: list[str]) -> tuple[str, list[str]]:
        """The command that compiles a source: a directory and words."""
        work = self.root / f"work{len(list(self.root.glob('work*')))}"
        (work / "tmp").mkdir(parents=True)
        (work / "include").symlink_to(self.root / "include" / closure)
        (work / "cuda").symlink_to(self.include)
        (work / "source.cu").write_text(text)
        (work / "beside.h").write_text(f"#define BESIDE {len(text)}\n")
        headers = str(self.root / "include" / closure)
        real = (os.path.realpath(self.include), os.path.dirname(os.path.realpath(self.library)))
        read = (self.include, *real, headers, "/usr/lib", "/proc")
        cwd = "/proc/self/cwd"
        searched = [f"-I{cwd}/include", f"-I{cwd}/cuda", f"-I{cwd}/cuda/cccl"]
        words = ["--confine", landlock.__file__, *read, "--", str(work), os.devnull, "--"]
        words += ["cubin", "source.cu", f"{cwd}/source.cu", "out", "--gpu-architecture=sm_90a"]
        return str(work), [*words, "--std=c++17", *searched, "--ptxas-options=-v", *options]

    def compile(
        self, commands: list[tuple[str, list[str]]], mode: str
    ) -> list[tuple[list[str], int]]:
        """What came of each command, times taken out; and whether it used precompiled headers."""
        ended = run_to_end(
            [sys.executable, str(HARNESS), self.library, mode],
            input=json.dumps(commands),
            environment={"TMPDIR": "/proc/self/cwd/tmp"},
        )
        times = re.compile(r".*Compile time.*\n")
        return [
            ([str(status), times.sub("", log), digest], used)
            for (status, log, digest), used in json.loads(ended.stdout)
        ]


@pytest.fixture
def shelf(tmp_path, nvrtc_toolchain):
    nvrtc = nvrtc_toolchain.nvrtc
    if nvrtc.include_dir is None:
        pytest.skip("NVRTC without the toolkit's headers")
    return Shelf(tmp_path, nvrtc.library, nvrtc.include_dir)


def compare(shelf: Shelf, seed: int, count: int) -> int:
    """Compile generated sources in both ways; how often precompiled headers were used."""
    draw = random.Random(seed)
    kinds = list(product(CLOSURES, OPTIONS))
    commands: list[tuple[str, list[str]]] = []
    while len(commands) < count:
        closure, options = draw.choice(kinds)
        text = source(draw)
        commands.append(shelf.add(text, closure, list(options)))
        if len(commands) < count:  # the same top, with another closure or other options
            other = draw.choice([(closure, options), (closure, options), draw.choice(kinds)])
            commands.append(shelf.add(text.replace("x[", "x[1 + "), *other))
    plain = shelf.compile(commands, "plain")
    order = [draw.randrange(count) for _ in range(count // 2)] + draw.sample(range(count), count)
    results = shelf.compile([commands[number] for number in order], "precompile")
    for number, (answer, _) in zip(order, results, strict=True):
        text = Path(commands[number][0], "source.cu").read_text()
        assert answer == plain[number][0], f"seed {seed}, {commands[number][1][-3:]}\n{text}"
    assert {answer[0] for answer, _ in plain} <= {"0", "1"}
    return sum(used for _, used in results)


def test_the_bytes_and_messages_are_those_of_a_compile_alone(shelf):
    assert compare(shelf, seed=18, count=SOURCES) > SOURCES // 4


HALF = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void k(__half *x, __nv_bfloat16 *y) {
  x[threadIdx.x] = __hadd(x[threadIdx.x], __float2half(@));
  y[threadIdx.x] = __hmul(y[threadIdx.x], __float2bfloat16(@));
}
"""


def test_headers_that_are_not_of_the_closure_are_not_precompiled(shelf):
    """One that reads what is beside the source, a closure that is not named by its content, and
    rendered headers beside the source, of which the closure may have others of the same names."""
    body = 'extern "C" __global__ void k(float *x, int n) { *x += %d; }\n'
    own = '#include "own.cuh"\n#ifndef SECOND\n' + body.replace("%d", "BESIDE") + "#endif\n"
    commands = [shelf.add(own + "//" * number, "a" * 64, []) for number in (1, 2, 3)]
    (shelf.root / "include" / ("b" * 64)).rename(shelf.root / "include" / "named")
    commands += [shelf.add('#include "each.cuh"\n' + body % n, "named", []) for n in (1, 2, 3)]
    (shelf.root / "include" / ("a" * 64) / "beside.h").write_text("#define BESIDE 7\n")
    text = '#include "beside.h"\n' + body.replace("%d", "BESIDE")
    rendered = ["-I/proc/self/cwd"]
    commands += [shelf.add(text + "//" * n, "a" * 64, rendered) for n in (1, 2, 3)]
    plain = [answer for answer, _ in shelf.compile(commands, "plain")]
    assert [answer[0] for answer in plain] == ["0"] * 9
    assert [len({answer[2] for answer in plain[n : n + 3]}) for n in (0, 3, 6)] == [3, 3, 3]
    assert shelf.compile(commands, "precompile") == [(answer, 0) for answer in plain]


@pytest.mark.parametrize(
    ("top", "rest"),
    [
        ('#include <a>\n#include "b"\n', "int x;\n"),
        ("// c\n/* d\n*/ \n  # include <a> // e\n", "\n// f\n#define X\n#include <b>\n"),
        ("#include <a>\r\n", "\r\nint x;\n"),
        ("", "#define X\n#include <a>\n"),
        ("", "#pragma once\n#include <a>\n"),
        ("", "int x;\n#include <a>\n"),
        ("", "// goes on \\\n#include <a>\n"),
        ("", "// goes on ??/\n#include <a>\n"),
        ("", "#include X\n"),
        ("", "#include <a> int x;\n"),
        ("", "#include <a>\\\n\n#include <b>\n"),
        ("", "#if 1\n#include <a>\n#endif\n"),
        ("", "#include <a>"),
        ("", ""),
    ],
)
def test_the_top_of_a_source(top, rest):
    text = (top + rest).encode()
    match = _INCLUDES.match(text)
    assert match is not None
    assert text[: max(match.end("end"), 0)] == top.encode()


def test_headers_are_made_for_the_second_program_where_the_first_took_long(shelf, monkeypatch):
    """Programs without headers of their own share those of the toolkit."""
    commands = [shelf.add(HALF.replace("@", str(number)), "a" * 64, []) for number in range(3)]
    for directory, _ in commands:
        Path(directory, "include").unlink()
    plain = [answer for answer, _ in shelf.compile(commands, "plain")]
    assert len({answer[2] for answer in plain}) == 3
    monkeypatch.setenv("PCH_WORTH", "0.001")
    results = shelf.compile(commands, "precompile")
    assert results == list(zip(plain, (0, 1, 1), strict=True))
    monkeypatch.setenv("PCH_WORTH", "1000")
    assert [used for _, used in shelf.compile(commands, "precompile")] == [0, 0, 0]
