"""A library of two C++ sources, one of C, and two programs of a script, for the cpu target."""

import subprocess
from pathlib import Path

from support.project import head

MANIFEST = (
    head()
    + """
[library.backend]
sources = ["src/**/*.cpp", "src/*.c"]
output = "out/{target}/libbackend.so"
LIBRARY
[script.scale]
template = "scale.cpp.j2"
library = "backend"
space = { n = [2, 3] }
"""
)
"""LIBRARY stands for further keys of the library."""
FILES = {
    "scale.cpp.j2": '#include "src/scale.h"\ntemplate <> int scale<{{ n }}>(int x) '
    "{ return {{ n }} * x; }\n",
    "src/scale.h": "#pragma once\ntemplate <int N> int scale(int x);\n",
    "src/main.cpp": '#include "scale.h"\nextern "C" int c_part(int);\nint host_part(int);\n'
    'extern "C" int run(int x) { return scale<2>(x) + 10 * scale<3>(x) + c_part(x) + '
    "host_part(x); }\n"
    'extern "C" const char *where() { return __FILE__; }\n',
    "src/deep/part.cpp": '#include "part.h"\nnamespace { int twice(int n) { return TIMES * n; } }\n'
    "int host_part(int n) { return 1000 * twice(n); }\n",
    "src/deep/part.h": "#define TIMES 2\n",
    "src/c.c": "int c_part(int new) { return 100 * new; }\n",
}


def archive(directory: Path, value: int) -> None:
    """Make `vendor/x.o` and an archive of it, whose part of the library gives `value`."""
    directory.mkdir(exist_ok=True)
    (directory / "x.cpp").write_text(f"int host_part(int n) {{ return n * {value}; }}\n")
    compiler = ["g++", "-c", "-fPIC", "x.cpp", "-o", "x.o"]
    subprocess.run(compiler, cwd=directory, check=True)
    (directory / "libpart.a").unlink(missing_ok=True)
    subprocess.run(["ar", "rcsD", "libpart.a", "x.o"], cwd=directory, check=True)
