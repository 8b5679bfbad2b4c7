"""`tilusbuild cache show PROGRAM --source|--log|--ptx|--sass|--usage`: one text of it, paged.

On a terminal it is highlighted and goes through `$PAGER`, or `less`; elsewhere it is printed as it
is.
"""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilusbuild.errors import InputError, input_error

if TYPE_CHECKING:
    from tilusbuild.cache.cache import Cache
    from tilusbuild.cache.entries import Entry

PARTS: Mapping[str, str] = {
    "source": "source.cu",
    "log": "what the compiler printed",
    "ptx": "the PTX, of a dump",
    "sass": "the SASS: of a dump with the source's lines, else of the library",
    "usage": "registers, memory and spills",
    "path": "the folder",
}
_LEXERS = {"source": "cuda", "ptx": "nasm", "sass": "nasm"}


def show(cache: Cache, program: str, part: str) -> None:
    """Print or page one part of a program. Raises `InputError`."""
    folder = cache.program_path(program)
    if part == "path":
        print(folder)
        return
    _page(_text(cache, program, folder, part), _LEXERS.get(part))


def _text(cache: Cache, program: str, folder: str, part: str) -> str:
    if part == "source":
        return _read(os.path.join(folder, "module", "source.cu"))
    if part == "log":
        return _read(os.path.join(folder, "module", "nvcc_output.txt"))
    if part == "usage":
        return _usage(cache.lookup(program), program)
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "module", "ir", f"*.{part}")))
    if found:
        heads = [f"// {os.path.basename(path)}\n" if len(found) > 1 else "" for path in found]
        return "".join(head + _read(path) for head, path in zip(heads, found, strict=True))
    if part == "sass":
        return _disassembled(os.path.join(folder, "module", "lib.so"))
    raise _no_dump(program, "PTX")


def _no_dump(program: str, what: str) -> InputError:
    return input_error(
        f"{program[:12]} has no {what} of a dump",
        hint="`tilusbuild build SCRIPT --dump-ir` makes it, without compiling anything else anew",
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise input_error(f"{path}: {error.strerror}") from None


def _usage(entry: Entry | None, program: str) -> str:
    if entry is None:
        raise input_error(f"{program} is not whole: `tilusbuild cache verify` says why")
    rows = resources(entry.meta)
    if not rows:
        return "nothing is known of its resources: it holds no code for a GPU\n"
    shared = f"dynamic shared memory: {entry.meta.get('dynamic_smem', 0)} bytes a block\n"
    return rows + shared


def resources(meta: Mapping[str, Any]) -> str:
    """What each kernel of a program takes on each architecture, as a table; "" for no kernel."""
    from tilusbuild.table import table

    fields = ("registers", "stack", "spill_stores", "spill_loads", "static_smem", "barriers")
    rows = [
        (kernel, arch, *(usage[field] for field in fields))
        for kernel, usages in meta["kernels"].items()
        for arch, usage in usages.items()
    ]
    return table(("kernel", "arch", *fields), rows) if rows else ""


def _disassembled(library: str) -> str:
    """The code of a library, without the source's lines."""
    import tempfile

    from tilusbuild.binary import BinaryError
    from tilusbuild.binary.fatbin import extract_cubins
    from tilusbuild.toolchain.disassembler import disassembler

    tool = disassembler(None)
    if tool is None:
        raise input_error("no nvdisasm was found", hint="pip install 'tilusbuild[sass]'")
    try:
        with open(library, "rb") as file:
            cubins = extract_cubins(file.read())
    except (OSError, BinaryError) as error:
        raise input_error(f"{library}: {error}") from None
    if not cubins:
        raise input_error(f"{library} holds no code for a GPU")
    parts = []
    for cubin in cubins:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin.data)
            file.flush()
            done = subprocess.run([tool, "-c", file.name], capture_output=True, check=False)
        if done.returncode:
            raise input_error(f"{tool}: {done.stderr.decode(errors='replace').strip()}")
        parts.append(f"// {cubin.image.arch}\n{done.stdout.decode(errors='replace')}")
    return "".join(parts)


def _page(text: str, lexer: str | None) -> None:
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    pager = shlex.split(os.environ.get("PAGER", "")) or ["less", "-RFX"]
    if shutil.which(pager[0]) is None:
        sys.stdout.write(_coloured(text, lexer))
        return
    environment = {"LESS": "-R", **os.environ}
    with subprocess.Popen(pager, stdin=subprocess.PIPE, text=True, env=environment) as process:
        try:
            process.communicate(_coloured(text, lexer))
        except (BrokenPipeError, KeyboardInterrupt):
            process.wait()


def _coloured(text: str, lexer: str | None) -> str:
    if lexer is None or os.environ.get("NO_COLOR"):
        return text
    import io

    from rich.console import Console
    from rich.syntax import Syntax

    into = io.StringIO()
    width = max(map(len, text.splitlines()), default=0) + 1
    console = Console(file=into, force_terminal=True, width=width)
    console.print(Syntax(text, lexer, theme="ansi_dark", background_color="default"))
    lines = (line.rstrip() for line in into.getvalue().splitlines())
    return "\n".join(lines) + "\n"
