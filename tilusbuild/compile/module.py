"""The texts of a program: `options.txt`, the module's files, `compile.sh`; then its `meta.json`.

`options.txt` holds the pipeline's commands with placeholders for tools and directories. It does not
depend on where anything is installed, so the same options have the same text on every machine.
`compile.sh` holds the same commands and needs nothing but the tree and the tools. It works in a
directory of its own, so that a read-only tree can be compiled too, and does not touch a `lib.so`
that already holds the bytes it made.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from tilusbuild.compile.launcher import launcher_source
from tilusbuild.compile.model import (
    HERE,
    OBJECT,
    PRODUCT,
    TOOLKIT,
    Link,
    Options,
    PartOptions,
    Recipe,
    Step,
    is_placeholder,
)
from tilusbuild.compile.steps import (
    CUDA_HEADERS,
    DEVICE_LINKER,
    ENVIRONMENT,
    LAUNCHER,
    LAUNCHER_OBJECT,
    LAUNCHER_STEP,
    NVCC_HERE,
    NVRTC_COMMAND,
    object_name,
    steps,
)
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes, sha256_text
from tilusbuild.toolchain.probe import SCRUBBED

if TYPE_CHECKING:
    from tilusbuild.binary import CodeImage, PtxasUsage
    from tilusbuild.status import Compiled
    from tilusbuild.toolchain import Toolchain


OPTIONS_FORMAT = "tilusbuild options 1"


def options_text(recipe: Recipe, toolchain: Toolchain, external_headers: Sequence[str] = ()) -> str:
    """Return `options.txt`: the half of a program's identity that says how it is compiled.

    The program is named by the digest of this text and `program.txt`. `external_headers` are lines
    for headers outside the toolchain's own fingerprint (`external_header_digests`). Raises
    `ValueError` for a recipe that no launcher can serve.
    """
    pipeline = recipe.pipeline
    archs = [arch.name for arch in recipe.archs] + (["ptx"] if recipe.ptx else [])
    launcher = {LAUNCHER: launcher_source(recipe)} if pipeline.launcher.is_there else {}
    generated = {**launcher, **pipeline.written(recipe)}
    lines = [
        OPTIONS_FORMAT,
        f"pipeline = {pipeline.name}",
        f"target = {' '.join(archs)}",
        *_limits(recipe),
        "",
        "[commands]",
        *command_lines(recipe),
        "",
        "[generated]",
        *(f"{_digest(text)}  {name}" for name, text in generated.items()),
        "",
        "[toolchain]",
        *pipeline.fingerprint(recipe, toolchain),
        *external_headers,
    ]
    return "\n".join(lines) + "\n"


def _limits(recipe: Recipe) -> list[str]:
    limits = asdict(recipe.prune) if recipe.prune is not None else {}
    return [f"prune.{name.replace('_', '-')} = {n}" for name, n in limits.items() if n is not None]


class Given(Options, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the commands are made of besides the program's texts, as fields of a recipe: a line of
    JSON in `compile.sh`, of which the program is compiled again without its manifest. It is in no
    hash: the commands that come of it are."""

    compiler: str
    roots: tuple[tuple[str, bool], ...] = ()
    unit: tuple[str, ...] = ()
    part: PartOptions | None = None
    link: Link | None = None


GIVEN = "# given: "


def _given(recipe: Recipe) -> str:
    """Return the recipe's `Given` as a comment, in ASCII. What changes no command is left out: a
    program has the same bytes in whichever build it is made."""
    words = _said(recipe)
    for owner, names in (("options", Options.__struct_fields__), ("part", ("rdc", "seeded"))):
        for name in names:
            said = getattr(recipe, owner)
            less = replace(said, **{name: getattr(type(said)(), name)})
            without = replace(recipe, **{owner: less})
            recipe = without if _said(without) == words else recipe
    given = Given(
        **asdict(recipe.options),
        compiler=recipe.pipeline.compiler,
        roots=recipe.includes.roots,
        unit=recipe.unit,
        part=None if recipe.part == PartOptions() else recipe.part,
        link=recipe.link,
    )
    return f"{GIVEN}{json.dumps(to_builtins(given))}\n"


def _said(recipe: Recipe) -> tuple[object, ...]:
    """Return what a hash has of `Given`."""
    return steps(recipe)


def command_lines(recipe: Recipe) -> list[str]:
    """Return the commands as `options.txt` has them."""
    return [_line(step) for step in steps(recipe)]


def _line(step: Step) -> str:
    line = " ".join(word if is_placeholder(word) else _quoted(word) for word in step.argv)
    if step.unless_empty:
        given, other = step.unless_empty
        return f"test -s {given} && {line} || cp {other} {step.output}"
    return f"{line} || {_line(step.by_itself)}" if step.alone else line


_digest = lru_cache(maxsize=64)(sha256_text)


@lru_cache(maxsize=1024)
def _quoted(word: str) -> str:
    """Return an argument quoted for a shell, on one line."""
    return shlex.quote(word).replace("\n", "'$'\\n''")


def module_files(
    recipe: Recipe, toolchain: Toolchain, launcher: str | None = None
) -> Mapping[str, bytes]:
    """Return the files of `module/` before the compile: the source and everything generated.

    `launcher` is the digest of the launcher's directory, "" without one; None: it is computed, for
    a pipeline that does not ship the launcher's object. Raises `ValueError` if no launcher can
    serve the recipe.
    """
    pipeline = recipe.pipeline
    source = {"source.cu": recipe.source} if recipe.pipeline.has_source else {}
    texts = {**source, **pipeline.fixed_files, **pipeline.written(recipe)}
    fingerprint = pipeline.fingerprint(recipe, toolchain)
    if launcher is None and pipeline.launcher.is_there:
        launcher = launcher_directory(recipe)[0]
    texts["compile.sh"] = compile_script(recipe, tuple(texts), launcher or "", fingerprint)
    return {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}


def launcher_directory(
    recipe: Recipe, launcher_o: bytes | None = None
) -> tuple[str, Mapping[str, bytes]]:
    """Return the launcher as a directory that programs share: its digest, and its files by name.

    It is laid out like a directory of headers, so that one rule finds, checks and collects both.
    `launcher_o` is the launcher's object (`launcher_object`), for pipelines that ship it. Raises
    `ValueError` for a recipe that no launcher can serve.
    """
    return _launcher_directory(launcher_source(recipe), launcher_o)


@lru_cache(maxsize=64)
def _launcher_directory(source: str, launcher_o: bytes | None) -> tuple[str, Mapping[str, bytes]]:
    files = {LAUNCHER: source.encode()}
    if launcher_o is not None:
        from tilusbuild.toolchain import nvrtc_command

        files[LAUNCHER_OBJECT] = launcher_o
        files |= {os.path.basename(path): read_bytes(path) for path in nvrtc_command.SHIPPED}
    manifest = "".join(f"{sha256_bytes(data)}  {name}\n" for name, data in files.items())
    return sha256_text(manifest), {**files, "MANIFEST": manifest.encode()}


_VARIABLES = {
    "{nvcc}": '"$NVCC"',
    "{nvrtc}": '"${nvrtc[@]}"',
    "{link_flags}": '"${link_flags[@]}"',
    DEVICE_LINKER: f"{HERE}/{NVCC_HERE}/nvcc ${{link_flags:+-L{HERE}/{NVCC_HERE}/../lib}}",
    "{fatbinary}": '"$nvcc_folder/fatbinary"',
    "{ptxas}": '"$PTXAS"',
    "{cudart}": '"-L${cudart%/*}" "-l:${cudart##*/}"',
    "{cxx}": '"$CXX"',
    "{cc}": '"$CC"',
    "{as}": '"$AS"',
    "{ld}": '"$LD"',
    "{ar}": '"$AR"',
    "{sed}": "sed",
    TOOLKIT: '"$nvcc_folder/../include"',
}


def compile_script(
    recipe: Recipe, inputs: Sequence[str], launcher: str, toolchain: Iterable[str]
) -> str:
    """Return `compile.sh` of a program whose `module/` holds the files `inputs`.

    `launcher` is the digest of the launcher's directory; `toolchain` are the fingerprint's lines,
    which the script repeats in a comment. Words from the manifest are quoted for the shell.
    """
    pipeline = recipe.pipeline
    ready = LAUNCHER if pipeline.host_code else LAUNCHER_OBJECT
    commands = [step for step in steps(recipe) if pipeline.host_code or step != LAUNCHER_STEP]
    used = {word for step in commands for word in step.argv if is_placeholder(word)}
    used |= {"{nvcc}"} if TOOLKIT in used else set()
    defaults = [text for tool, text in _DEFAULTS.items() if tool in used]
    variables = ", ".join(re.findall(r"\$\{(\w+):-", "".join(defaults)))
    text = "".join(
        [
            _HEAD.replace("@TOOLS@", variables),
            "".join(f"#   {line}\n" for line in toolchain),
            _given(recipe),
            _START.replace("@UNSET@", " ".join(sorted(SCRUBBED))),
            "".join(defaults).replace("@SHARED@", launcher),
            _NVCC_DIRECTORY if "{nvcc}" in used else "",
            _SHARED_RUNTIME if "{cudart}" in used else "",
            f'cp -- {shlex.join(inputs)} "$work"\n' if inputs else "",
            f'cp -- "$module../../../include/{launcher}/{ready}" "$work"\n' if launcher else "",
            *(_object(number, program) for number, program in enumerate(recipe.objects)),
            'touch -d @1 -- "$work"/*\n',
            _include(recipe),
            _NVRTC_HEADERS if "{nvrtc}" in used else "",
            _NVCC_HERE if DEVICE_LINKER in used else "",
            'cd -- "$work"\n\n',
            "run() { env "
            + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
            + ' "$@"; }\n\n',
            "\n".join(_command(step) for step in commands),
            _END,
        ]
    )
    product = pipeline.product
    if product == PRODUCT:
        return text
    return text.replace(PRODUCT, product).replace(r"lib\\.so", re.escape(product))


def _object(number: int, program: str) -> str:
    made = f'"$module../../{program}/module/{OBJECT}"'
    return f'cp -- {made} "$work/{object_name(number)}"\n'


def _command(step: Step) -> str:
    words = (is_placeholder(word) and _VARIABLES.get(word) for word in step.argv)
    quoted = (known or shlex.quote(word) for known, word in zip(words, step.argv, strict=True))
    line = f"run {' '.join(quoted)}\n"
    if step.unless_empty:
        given, other = step.unless_empty
        return f"if [ -s {given} ]; then {line[:-1]}; else cp {other} {step.output}; fi\n"
    return f"{line[:-1]} || {_command(step.by_itself)}" if step.alone else line


def _include(recipe: Recipe) -> str:
    if recipe.includes.digest is None:
        return ""
    headers = f'"$module../../../include/{recipe.includes.digest}" "$work/include"\n'
    links = "".join(
        f'ln -s -- {shlex.quote(directory)} "$work/{link}"\n'
        for link, directory in recipe.pipeline.include_links(recipe).items()
    )
    if not recipe.pipeline.copies_headers(recipe):
        return f"ln -s -- {headers}{links}"
    return f"cp -R -- {headers}" + 'find "$work/include" -exec touch -d @1 {} +\n' + links


_HEAD = """\
#!/bin/bash
# Compiles source.cu to lib.so: the same bytes as the build that wrote this script.
#
#   ./compile.sh [OUTPUT]      @TOOLS@ name the tools to use
#
# The tools that made the recorded lib.so:
"""

_START = """\
set -euo pipefail
unset CDPATH @UNSET@
export LC_ALL=C
module=${BASH_SOURCE[0]}
case $module in */*) module=${module%/*}/ ;; *) module=./ ;; esac
case $module in /*) ;; *) module=$PWD/$module ;; esac
output=${1:-${OUT:-${module}lib.so}}
case $output in /*) ;; *) output=$PWD/$output ;; esac
work=$(mktemp -d "${TMPDIR:-/tmp}/tilusbuild-XXXXXX")
trap 'rm -rf -- "$work"' EXIT
mkdir -- "$work/tmp"
cd -- "$module"

"""

_DEFAULTS = {
    "{nvcc}": "NVCC=${NVCC:-nvcc}\n",
    "{nvrtc}": f"""\
# NVRTC is a path to libnvrtc.so.13; without it CUDA_HOME, the toolkits and NVIDIA's wheels are
# looked through. PYTHON is any Python 3.8 or later.
NVRTC=${{NVRTC:-}}
nvrtc=("${{PYTHON:-python3}}" "${{module}}../../../include/@SHARED@/{NVRTC_COMMAND}")
""",
    "{cxx}": "CXX=${CXX:-g++}\n",
    "{ptxas}": "PTXAS=${PTXAS:-ptxas}\n",
    "{cc}": "CC=${CC:-gcc}\n",
    "{as}": "AS=${AS:-as}\n",
    "{ld}": "LD=${LD:-ld}\n",
    "{ar}": "AR=${AR:-ar}\n",
}

_NVRTC_HEADERS = f"""\
headers=$("${{nvrtc[@]}}" headers)
if [ -n "$headers" ]; then ln -s -- "$headers" "$work/{CUDA_HEADERS}"; fi
"""

_NVCC_DIRECTORY = """\
nvcc_folder=$("$NVCC" --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#[$] _HERE_=//p')
link_flags=()
if [ ! -e "$nvcc_folder/../lib64" ] && [ -e "$nvcc_folder/../lib" ]; then
  link_flags=("-L$nvcc_folder/../lib")
fi
"""

_NVCC_HERE = f'ln -s -- "$nvcc_folder" "$work/{NVCC_HERE}"\n'

# By its soname, as in `toolchain.cuda`. Where nothing matches, nvcc is given the pattern.
_SHARED_RUNTIME = """\
for cudart in "$nvcc_folder"/../lib64/libcudart.so.* "$nvcc_folder"/../lib/libcudart.so.*
do
  [ ! -e "$cudart" ] || break
done
"""

_END = """
digest() { sha256sum < "$1" | cut -d ' ' -f 1; }
made=$(digest lib.so)
recorded= refused=
if [ -r "$module../meta.json" ]; then
  refused=$(sed -n 's/^ "status": "\\(failed\\|pruned\\)",*$/\\1/p' "$module../meta.json")
  recorded=$(tr -d ' \\n' < "$module../meta.json" |
    sed -n 's/.*"module\\/lib\\.so":{[^}]*"sha256":"\\([0-9a-f]*\\)".*/\\1/p')
fi
if [ -n "$refused" ] && [ "$output" = "${module}lib.so" ]; then
  echo "the compilers accept it; tilusbuild recorded it as $refused, so no lib.so is kept:" >&2
  sed -n '/^ "reason": "/{s/^ "reason": "\\(.*\\)",*$/  \\1/;s/\\\\\\(["\\\\]\\)/\\1/g;p}' \\
    "$module../meta.json" >&2
  echo "  (name an output to have the library)" >&2
  exit 1
elif [ -e "$output" ] && [ "$(digest "$output")" = "$made" ]; then
  echo "$made  unchanged" >&2
elif [ -n "$recorded" ] && [ "$made" != "$recorded" ] && [ "$output" = "${module}lib.so" ]; then
  echo "these tools make other bytes than the recorded lib.so, which is kept" >&2
  echo "  recorded $recorded" >&2
  echo "  made     $made (name an output to have it)" >&2
  exit 1
else
  cp -- lib.so "$output"
  echo "$made  written" >&2
fi
"""


def image_rows(images: Iterable[CodeImage]) -> list[dict[str, Any]]:
    """Return the code in a library: kind, architecture and bytes of each image."""
    return [{"kind": image.kind, "arch": image.arch, "size": image.size} for image in images]


def kernel_rows(usages: Iterable[PtxasUsage]) -> dict[str, dict[str, Any]]:
    """Return what each kernel takes, by name and architecture; bytes, and registers of a thread."""
    kernels: dict[str, dict[str, Any]] = {}
    for usage in usages:
        taken = {name: value for name, value in asdict(usage).items() if isinstance(value, int)}
        kernels.setdefault(usage.kernel, {})[usage.arch] = taken
    return kernels


def described(recipe: Recipe, compiled: Compiled) -> Mapping[str, Any]:
    """Return the `meta.json` of a program: its status, what the binary holds, what it needs.

    `kernels` is by name and architecture, in bytes and registers of a thread; `dynamic_smem` is the
    launch's bytes of a block, or the expression when the call decides it.
    """
    meta: dict[str, Any] = {
        "status": compiled.status,
        "reason": compiled.reason,
        "images": image_rows(compiled.images),
        "kernels": kernel_rows(compiled.ptxas),
    }
    if (product := recipe.pipeline.product) != PRODUCT:
        meta["product"] = f"module/{product}"
    launch = recipe.launch
    if launch is not None:
        smem = launch.smem.substitute(recipe.constants)
        meta["dynamic_smem"] = smem.canonical if smem.constant is None else smem.constant
    return meta
