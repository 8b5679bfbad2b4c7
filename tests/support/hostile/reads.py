"""Ways in which a source reads a file that its program's hash does not cover, by grammar.

A spelling is a directive, a way to say the file's name, and a way to hide the directive from
whoever looks for it in the text. The oracle (`tests/hostile/test_reads.py`) knows none of them: it
edits the files.
"""

import os
import random
import subprocess
from pathlib import Path


def outside(directory: Path, value: int) -> None:
    """Write the files that sources, and linkers, read; what they do with them depends on
    `value`."""
    directory.mkdir(exist_ok=True)
    source = directory / "v.c"
    source.write_text(f"int value(void) {{ return {value}; }}\n")
    subprocess.run(["gcc", "-fPIC", "-c", "v.c"], cwd=directory, check=True)
    (directory / "libv.a").unlink(missing_ok=True)
    subprocess.run(["ar", "rcD", "libv.a", "v.o"], cwd=directory, check=True)
    (directory / "v.ld").write_text(f"value = {value};\n")
    source.unlink()
    (directory / "v.h").write_text(f"#define VALUE {value}\n")
    (directory / "v.inc").write_text(f".long {value}\n")
    (directory / "v.bin").write_bytes(value.to_bytes(4, "little"))
    (directory / "v.txt").write_text(f"{value}\n")


def _named(rng: random.Random, path: str) -> str:
    """Return a name of an absolute path."""
    directory, name = os.path.split(path)
    ways = (
        path,
        f"/{path}",
        f"{directory}/./{name}",
        f"{directory}/../{os.path.basename(directory)}/{name}",
        f"/proc/self/root{path}",
        f"/proc/self/cwd/{'../' * 40}{path[1:]}",
        f"/proc/thread-self/root{path}",
        f"/dev/../{path[1:]}",
        f"{'../' * 40}{path[1:]}",
        f"tmp/{'../' * 40}{path[1:]}",
        f"include/{'../' * 40}{path[1:]}",
    )
    return rng.choice(ways)


def _include(rng: random.Random, path: str) -> str:
    name = _named(rng, path)
    word = rng.choice(("include", "include", "include", "import", "include_next"))
    start = rng.choice(("#", "#", "# ", "%:", "??=", "/**/#/**/", "\t#\\\n", '_Pragma("once")\n#'))
    stem, ending = os.path.split(name)
    directive = rng.choice(
        (
            f'{start}{word} "{name}"',
            f"{start}{word} <{name}>",
            f'{start}{word}"{name}"//',
            f'{start}{word[:3]}\\\n{word[3:]} "{name}"',
            f'{start}{word} "{name[:4]}\\\n{name[4:]}"',
            f'#define F "{name}"\n{start}{word} F',
            f"#define F <{name}>\n{start}{word} F",
            f"#define S(x) #x\n#define T(x) S(x)\n{start}{word} T({name})",
            f"#define A {stem}\n#define B {ending}\n#define S(x) <x>\n{start}{word} S(A/B)",
            f'#if __has_include("{name}")\n{start}{word} "{name}"\n#endif',
            f'const char *q = R"(/*)";\n{start}{word} "{name}"\n/* */',
            f'#if 1 /\\\n* x *\\\n/\n{start}{word} "{name}"\n#endif',
            f'#line 1 "{path}"\n{start}{word} "{os.path.basename(path)}"',
            f'# 1 "{path}" 1\n#{word} "{os.path.basename(path)}"',
        )
    )
    return directive + "\n"


def _assembled(rng: random.Random, directory: str) -> str:
    word, name = rng.choice((("incbin", "v.bin"), ("include", "v.inc")))
    path = _named(rng, f"{directory}/{name}")
    ways = (
        f'.{word} \\"{path}\\"',
        f'.{word}\\t\\"{path}\\"',
        f'.{word} \\"{path[:3]}" "{path[3:]}\\"',
        f'.macro m f\\n.{word} \\"\\\\f\\"\\n.endm\\nm {path}',
        f'.irp f, {path}\\n.{word} \\"\\\\f\\"\\n.endr',
        f'.if 1\\n.{word} \\"{path}\\"\\n.endif',
        f'.{word} \\"' + "".join(f"\\\\{ord(c):03o}" for c in path) + '\\"',
        f'.{word} \\"' + path.replace("/", "\\057") + '\\"',
    )
    section = '.pushsection .rodata.v,\\"a\\"\\n'
    return f'__asm__("{section}{rng.choice(ways)}\\n.popsection");\n'


_OTHER = (
    'const unsigned char w[] = {\n#embed "PATH.txt"\n};\n',
    "const char *when = __TIMESTAMP__;\n",
    "const char *when = __DATE__ __TIME__;\n",
    "const char *where = __FILE__;\n",
    "const char *where = __BASE_FILE__;\n",
    '#pragma GCC dependency "PATH.h"\n',
    '_Pragma("GCC dependency \\"PATH.h\\"")\n',
    '#pragma comment(lib, "PATH.txt")\n',
    '#pragma GCC pch_preprocess "PATH.h"\n',
    '__asm__(".pushsection .deplibs\\n.asciz \\"PATH.txt\\"\\n.popsection");\n',
    '#ident "PATH.h"\n',
)


_LINKED = (
    ("-LDIR", "-lv"),
    ("-L", "DIR", "-l", "v"),
    ("-LDIR", "-l:libv.a"),
    ("DIR/libv.a",),
    ("DIR/v.o",),
    ("-Wl,DIR/v.o",),
    ("-Wl,--whole-archive,DIR/libv.a,--no-whole-archive",),
    ("-Xlinker", "DIR/libv.a"),
    ("-Wl,-LDIR,-lv",),
    ("-Wl,--library-path=DIR,--library=v",),
    ("-Wl,--just-symbols=DIR/v.ld",),
    ("DIR/v.ld",),
    ("-T", "DIR/v.ld"),
    ("-imacros", "DIR/v.h"),
)
CALLS = 'extern "C" int value(void);\n#ifndef VALUE\n#define VALUE value()\n#endif\n'
"""What a source begins with that is linked with one of these."""


def flags(rng: random.Random, directory: Path) -> list[str]:
    """Return flags of the host compiler that read what is outside; all of them are denied."""
    path = _named(rng, f"{directory}/x")[: -len("/x")]
    return [word.replace("DIR", path) for word in rng.choice(_LINKED)]


def spelling(rng: random.Random, directory: Path, *, host: bool) -> str:
    """Return the beginning of a source; with `host`, one that g++ and its assembler read."""
    kind = rng.random()
    if kind < 0.6 or (not host and kind < 0.9):
        return _include(rng, f"{directory}/v.h")
    if kind < 0.9:
        return _assembled(rng, str(directory))
    return rng.choice(_OTHER).replace("PATH", f"{directory}/v")
