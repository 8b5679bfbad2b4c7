"""The texts that a program and a script are known by; their sha256 are the directories' names.

Both texts are written for people first. They never hold a time, a path outside the project, a host,
a user or the order of work. Values print as in TOML. A line is added to the texts only with a new
number in their first line, because each change of them makes every program another program.

Text costs space and a little time, and buys that `sha256sum` checks a name and `diff` explains a
change (docs/cache.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from tilusbuild.expr import Value
from tilusbuild.manifest.table import format_toml
from tilusbuild.state.files import sha256_text

PROGRAM_FORMAT = "tilusbuild program 1"
SCRIPT_FORMAT = "tilusbuild script 1"


def format_section(title: str, lines: Iterable[str]) -> str:
    """Return a titled block of lines; "" without lines."""
    body = "".join(f"{line}\n" for line in lines)
    return f"\n[{title}]\n{body}" if body else ""


def format_values(title: str, values: Mapping[str, Value]) -> str:
    """Return a block of `name = value` lines, in this order."""
    return format_section(
        title, (f"{name} = {format_toml(value)}" for name, value in values.items())
    )


def format_program_text(
    *,
    script: str,
    entry: tuple[str, str],
    params: Mapping[str, Value],
    schedule: Mapping[str, Value],
    derived: Mapping[str, Value],
    signature: Sequence[str],
    launch: Sequence[str],
    source: str,
    compiler: str = "",
    headers: Sequence[tuple[str, str]],
    objects: Sequence[tuple[str, str]] = (),
    program: str = "",
) -> str:
    """Return `program.txt`: what is compiled.

    `script` is "" for an object: every library that links it has the same one. `entry` is (form,
    name), as in ("kernel", "matmul_f16"); `signature` and `launch` are lines; `headers` are
    (sha256, name relative to its header directory), sorted; `compiler` is that of a generator's
    cubin; `objects` are (name, program hash) of
    each object that a library links, in the order of the link; `program` is the kernel as its
    language prints it.
    """
    form, name = entry
    return "".join(
        [
            f"{PROGRAM_FORMAT}\n",
            f"script = {format_toml(script)}\n" if script else "",
            f"{form} = {format_toml(name)}\n",
            # The source itself is beside this text, in `module/`.
            f"source = sha256:{sha256_text(source)}\n",
            f"compiler = {format_toml(compiler)}\n" if compiler else "",
            format_values("params", params),
            format_values("schedule", schedule),
            format_values("derived", derived),
            format_section("args", signature),
            format_section("launch", launch),
            format_section("objects", (f"{label} = {program}" for label, program in objects)),
            _format_headers(tuple(headers)),
            # Indented, since a line of it could be read as a title.
            format_section("program", (f"  {line}" for line in program.splitlines())),
        ]
    )


@lru_cache(maxsize=16)
def _format_headers(headers: tuple[tuple[str, str], ...]) -> str:
    # The schedules of an instance mostly reach the same headers, thousands with CUTLASS: formatting
    # them again for each program would take most of a plan's time.
    return format_section("headers", (f"{digest}  {name}" for digest, name in headers))


def format_script_text(
    *,
    script: str,
    params: Mapping[str, Value],
    target: str,
    arch: str,
    signature: Sequence[str],
    programs: Iterable[tuple[int, str]],
) -> str:
    """Return `script.txt`: an instance for a target, and its programs.

    `signature` are lines; `programs` are (number, hash), in order.
    """
    return "".join(
        [
            f"{SCRIPT_FORMAT}\nscript = {format_toml(script)}\n",
            f"target = {format_toml(target)}\narch = {format_toml(arch)}\n",
            format_values("params", params),
            format_section("args", signature),
            format_section("programs", (f"{number} {digest}" for number, digest in programs)),
        ]
    )


def parse_sections(text: str) -> dict[str, dict[str, str]]:
    """Return the blocks of a program.txt, options.txt or script.txt, by title, as keys and
    values. The lines before the first title are the block "". A line without a key is its own
    key; in `headers` the name is the key."""
    blocks: dict[str, dict[str, str]] = {"": {}}
    title = ""
    for line in text.split("\n"):
        if line.startswith("[") and line.endswith("]"):
            title = line[1:-1]
            blocks[title] = {}
        elif line:
            key, value = _parse_pair(title, line)
            blocks[title][key] = value
    return blocks


def parse_section(text: str, title: str) -> dict[str, str]:
    """Return the block `title` of `text` as `parse_sections` does; {} if there is none."""
    return parse_sections(text).get(title, {})


_SEPARATORS = {"toolchain": " ", "args": ": "}


def _parse_pair(title: str, line: str) -> tuple[str, str]:
    """Return the key and the value of a line in the block `title`: `bm = 64` is ("bm", "64")."""
    # These lines are as sha256sum writes them: `3f8a…  project/gemm.cuh`.
    if title in ("headers", "generated"):
        digest, _, name = line.partition("  ")
        return name, digest
    if title == "commands":
        # Texts are compared by keys. A changed flag must not change its command's key, so the key
        # is the program and the last word only: `nvcc … source.cu`.
        program, last_word = line.split(" ", 1)[0], line.rsplit(" ", 1)[-1]
        return f"{program} … {last_word}", line
    key, _, value = line.partition(_SEPARATORS.get(title, " = "))
    return key, value
