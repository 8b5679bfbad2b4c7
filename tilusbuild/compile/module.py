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

from tilusbuild.compile.launcher import format_launcher
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
    format_object_name,
    list_steps,
)
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes, sha256_text

if TYPE_CHECKING:
    from tilusbuild.binary.cubin import PtxasUsage
    from tilusbuild.binary.fatbin import CodeImage
    from tilusbuild.status import Compiled
    from tilusbuild.toolchain import Toolchain


OPTIONS_FORMAT = "tilusbuild options 1"


def format_options(
    recipe: Recipe, toolchain: Toolchain, external_headers: Sequence[str] = ()
) -> str:
    """Return `options.txt`: the half of a program's identity that says how it is compiled.

    The program is named by the digest of this text and `program.txt`. `external_headers` are lines
    for headers outside the toolchain's own fingerprint (`digest_external_headers`). Raises
    `ValueError` for a recipe that no launcher can serve.
    """
    pipeline = recipe.pipeline
    archs = [arch.name for arch in recipe.archs] + (["ptx"] if recipe.ptx else [])
    launcher = {LAUNCHER: format_launcher(recipe)} if pipeline.launcher.is_there else {}
    generated = {**launcher, **pipeline.collect_own_files(recipe)}
    lines = [
        OPTIONS_FORMAT,
        f"pipeline = {pipeline.name}",
        f"target = {' '.join(archs)}",
        *_format_limits(recipe),
        "",
        "[commands]",
        *format_command_lines(recipe),
        "",
        "[generated]",
        *(f"{_digest(text)}  {name}" for name, text in generated.items()),
        "",
        "[toolchain]",
        *pipeline.select_fingerprint(recipe, toolchain),
        *external_headers,
    ]
    return "\n".join(lines) + "\n"


def _format_limits(recipe: Recipe) -> list[str]:
    limits = asdict(recipe.prune) if recipe.prune is not None else {}
    return [f"prune.{name.replace('_', '-')} = {n}" for name, n in limits.items() if n is not None]


class RecipeInputs(
    Options, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The inputs of the commands besides the program's texts: a line of JSON in `compile.sh`, from
    which the program is compiled again without its manifest. The line is in no hash, since the
    commands that follow from it are."""

    compiler: str
    roots: tuple[tuple[str, bool], ...] = ()
    unit: tuple[str, ...] = ()
    part: PartOptions | None = None
    link: Link | None = None


GIVEN = "# given: "


def _format_inputs(recipe: Recipe) -> str:
    """Return the recipe's inputs as a comment in ASCII. Inputs that change no command are left out,
    so that every build of a program writes the same bytes."""
    steps = list_steps(recipe)
    input_names = [("options", name) for name in Options.__struct_fields__]
    input_names += [("part", "rdc"), ("part", "seeded")]
    # Only the pipeline knows which inputs it reads: so each is set to its default, and stays there
    # if the steps are still the same.
    reduced = recipe
    for field, name in input_names:
        inputs = getattr(reduced, field)
        default = getattr(type(inputs)(), name)
        candidate = replace(reduced, **{field: replace(inputs, **{name: default})})
        if list_steps(candidate) == steps:
            reduced = candidate
    inputs_of_script = RecipeInputs(
        **asdict(reduced.options),
        compiler=reduced.pipeline.compiler,
        roots=reduced.includes.roots,
        unit=reduced.unit,
        part=None if reduced.part == PartOptions() else reduced.part,
        link=reduced.link,
    )
    return f"{GIVEN}{json.dumps(to_builtins(inputs_of_script))}\n"


def format_command_lines(recipe: Recipe) -> list[str]:
    """Return the recipe's commands as the lines of `options.txt`."""
    return [_format_step(step) for step in list_steps(recipe)]


def _format_step(step: Step) -> str:
    """Return a step as a line of `options.txt`."""
    line = " ".join(word if is_placeholder(word) else _quote_argument(word) for word in step.argv)
    # A step that fails for all programs of a unit is run for this program alone.
    return f"{line} || {_format_step(step.by_itself)}" if step.alone else line


# The schedules of an instance have one launcher, so its text is digested again and again.
_digest = lru_cache(maxsize=64)(sha256_text)


@lru_cache(maxsize=1024)
def _quote_argument(word: str) -> str:
    """Return an argument quoted for a shell, on one line."""
    # bash reads `'a'$'\n''b'` as a, newline, b: a line of `options.txt` is one command.
    return shlex.quote(word).replace("\n", "'$'\\n''")


def collect_module_files(
    recipe: Recipe, toolchain: Toolchain, launcher: str | None = None
) -> Mapping[str, bytes]:
    """Return the files of `module/` before the compile: the source and everything generated.

    `launcher` is the digest of the launcher's directory, "" for no launcher. With None the digest
    is computed, for a pipeline that does not ship the launcher's object. Raises `ValueError` if no
    launcher can serve the recipe.
    """
    pipeline = recipe.pipeline
    source = {pipeline.source_name: recipe.source} if pipeline.has_source else {}
    texts = {**source, **pipeline.fixed_files, **pipeline.collect_own_files(recipe)}
    fingerprint = pipeline.select_fingerprint(recipe, toolchain)
    if launcher is None and pipeline.launcher.is_there:
        launcher = lay_out_launcher(recipe)[0]
    texts["compile.sh"] = format_compile_script(recipe, tuple(texts), launcher or "", fingerprint)
    return {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}


def lay_out_launcher(
    recipe: Recipe, launcher_o: bytes | None = None
) -> tuple[str, Mapping[str, bytes]]:
    """Return the digest, and the files by name, of the directory of a launcher. Programs share the
    directory.

    The layout is that of a directory of headers, so that one rule finds, checks and collects both.
    `launcher_o` is the launcher's object (`compile_launcher`), for pipelines that ship it. Raises
    `ValueError` for a recipe that no launcher can serve.
    """
    return _lay_out_launcher_files(format_launcher(recipe), launcher_o)


@lru_cache(maxsize=64)
def _lay_out_launcher_files(
    source: str, launcher_o: bytes | None
) -> tuple[str, Mapping[str, bytes]]:
    """Return what `lay_out_launcher` returns, for the text of a launcher and its object."""
    files = {LAUNCHER: source.encode()}
    if launcher_o is not None:
        from tilusbuild.toolchain import nvrtc_command

        files[LAUNCHER_OBJECT] = launcher_o
        files |= {os.path.basename(path): read_bytes(path) for path in nvrtc_command.SHIPPED}
    manifest = "".join(f"{sha256_bytes(data)}  {name}\n" for name, data in files.items())
    return sha256_text(manifest), {**files, "MANIFEST": manifest.encode()}


_SHELL_WORDS = {
    "{nvcc}": '"$NVCC"',
    "{nvrtc}": '"${nvrtc[@]}"',
    "{link_flags}": '"${link_flags[@]}"',
    DEVICE_LINKER: f"{HERE}/{NVCC_HERE}/nvcc ${{link_flags:+-L{HERE}/{NVCC_HERE}/../lib}}",
    "{fatbinary}": '"$nvcc_folder/fatbinary"',
    "{cudart}": '"-L${cudart%/*}" "-l:${cudart##*/}"',
    "{cxx}": '"$CXX"',
    "{cc}": '"$CC"',
    "{as}": '"$AS"',
    "{ld}": '"$LD"',
    "{ar}": '"$AR"',
    "{sed}": "sed",
    TOOLKIT: '"$nvcc_folder/../include"',
}


def format_compile_script(
    recipe: Recipe, inputs: Sequence[str], launcher: str, fingerprint: Iterable[str]
) -> str:
    """Return `compile.sh` of a program whose `module/` holds the files `inputs`.

    `launcher` is the digest of the launcher's directory, or ""; `fingerprint` are the lines of the
    tools, for a comment of the script. Words from the manifest are quoted for the shell.
    """
    pipeline = recipe.pipeline
    # Where no C compiler is needed, the launcher's object is copied and its step left out.
    launcher_file = LAUNCHER if pipeline.host_code else LAUNCHER_OBJECT
    steps = [step for step in list_steps(recipe) if pipeline.host_code or step != LAUNCHER_STEP]
    placeholders = {word for step in steps for word in step.argv if is_placeholder(word)}
    if TOOLKIT in placeholders:  # a directory beside nvcc's
        placeholders.add("{nvcc}")
    defaults = "".join(text for tool, text in _TOOL_VARIABLES.items() if tool in placeholders)
    # "CXX" of `CXX=${CXX:-g++}`
    variables = ", ".join(re.findall(r"\$\{(\w+):-", defaults))
    copies = ""
    if inputs:
        copies += f'cp -- {shlex.join(inputs)} "$work"\n'
    if launcher:
        copies += f'cp -- "$module../../../include/{launcher}/{launcher_file}" "$work"\n'
    for number, program in enumerate(recipe.objects):
        object_path = f'"$module../../{program}/module/{OBJECT}"'
        copies += f'cp -- {object_path} "$work/{format_object_name(number)}"\n'
    environment = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    text = "".join(
        [
            _HEAD.replace("@TOOLS@", variables).replace("@SOURCE@", pipeline.source_name),
            "".join(f"#   {line}\n" for line in fingerprint),
            _format_inputs(recipe),
            _SETUP.replace("@UNSET@", " ".join(sorted(_UNSET))),
            defaults.replace("@SHARED@", launcher),
            _NVCC_DIRECTORY if "{nvcc}" in placeholders else "",
            _SHARED_RUNTIME if "{cudart}" in placeholders else "",
            copies,
            # As in the build: ptxas writes its inputs' times into the code.
            'touch -d @1 -- "$work"/*\n',
            _format_header_commands(recipe),
            _NVRTC_HEADERS if "{nvrtc}" in placeholders else "",
            _LINK_TO_NVCC if DEVICE_LINKER in placeholders else "",
            'cd -- "$work"\n\n',
            f'run() {{ env {environment} "$@"; }}\n\n',
            "\n".join(_format_command(step) for step in steps),
            _KEEP_LIBRARY,
        ]
    )
    product = pipeline.product
    if product == PRODUCT:
        return text
    # In the expression by which sed searches `meta.json`, the dot is escaped.
    return text.replace(PRODUCT, product).replace(re.escape(PRODUCT), re.escape(product))


def _format_command(step: Step) -> str:
    """Return a step as a line of `compile.sh`, with a shell variable for each tool."""
    words = (
        _SHELL_WORDS[word] if is_placeholder(word) and word in _SHELL_WORDS else shlex.quote(word)
        for word in step.argv
    )
    command = f"run {' '.join(words)}"
    return f"{command} || {_format_command(step.by_itself)}" if step.alone else f"{command}\n"


def _format_header_commands(recipe: Recipe) -> str:
    """Return the lines of `compile.sh` that link or copy the headers; "" without headers."""
    if recipe.includes.digest is None:
        return ""
    source_and_target = f'"$module../../../include/{recipe.includes.digest}" "$work/include"'
    links = "".join(
        f'ln -s -- {shlex.quote(directory)} "$work/{link}"\n'
        for link, directory in recipe.pipeline.list_include_links(recipe).items()
    )
    if not recipe.pipeline.copies_headers(recipe):
        return f"ln -s -- {source_and_target}\n{links}"
    return f'cp -R -- {source_and_target}\nfind "$work/include" -exec touch -d @1 {{}} +\n{links}'


_HEAD = """\
#!/bin/bash
# Compiles @SOURCE@ to lib.so: the same bytes as the build that wrote this script.
#
#   ./compile.sh [OUTPUT]      @TOOLS@ name the tools to use
#
# The tools that made the recorded lib.so:
"""

_UNSET = frozenset(
    {
        "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "LIBRARY_PATH",
        "COMPILER_PATH", "GCC_EXEC_PREFIX", "GCC_COMPARE_DEBUG", "DEPENDENCIES_OUTPUT",
        "SUNPRO_DEPENDENCIES", "SOURCE_DATE_EPOCH", "LD_RUN_PATH", "LDEMULATION", "LD_PRELOAD",
        "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "NVCC_THREADS",
        "INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES", "CUDAFE_FLAGS", "PTXAS_FLAGS",
        "CCC_OVERRIDE_OPTIONS", "CL", "_CL_", "LANGUAGE", "LC_CTYPE", "LC_MESSAGES",
    }
)  # fmt: skip
"""Variables that add options of gcc, ld or nvcc, or that change the language of their output: a
user of `compile.sh` may have set them. nvcc.profile appends to those from INCLUDES to
PTXAS_FLAGS."""

_SETUP = """\
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

_TOOL_VARIABLES = {
    "{nvcc}": "NVCC=${NVCC:-nvcc}\n",
    "{nvrtc}": f"""\
# NVRTC is a path to libnvrtc.so.13; without it CUDA_HOME, the toolkits and NVIDIA's wheels are
# looked through. PYTHON is any Python 3.8 or later.
NVRTC=${{NVRTC:-}}
nvrtc=("${{PYTHON:-python3}}" "${{module}}../../../include/@SHARED@/{NVRTC_COMMAND}")
""",
    "{cxx}": "CXX=${CXX:-g++}\n",
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

_LINK_TO_NVCC = f'ln -s -- "$nvcc_folder" "$work/{NVCC_HERE}"\n'

# By its soname, as in `toolchain.cuda`. Where nothing matches, nvcc is given the pattern.
_SHARED_RUNTIME = """\
for cudart in "$nvcc_folder"/../lib64/libcudart.so.* "$nvcc_folder"/../lib/libcudart.so.*
do
  [ ! -e "$cudart" ] || break
done
"""

_KEEP_LIBRARY = """
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


def list_image_rows(images: Iterable[CodeImage]) -> list[dict[str, Any]]:
    """Return the code in a library: kind, architecture and bytes of each image."""
    return [{"kind": image.kind, "arch": image.arch, "size": image.size} for image in images]


def list_kernel_rows(usages: Iterable[PtxasUsage]) -> dict[str, dict[str, Any]]:
    """Return the numbers of `PtxasUsage` by kernel, architecture and field: bytes, and registers of
    a thread."""
    kernels: dict[str, dict[str, Any]] = {}
    for usage in usages:
        numbers = {name: value for name, value in asdict(usage).items() if isinstance(value, int)}
        kernels.setdefault(usage.kernel, {})[usage.arch] = numbers
    return kernels


def describe_program(recipe: Recipe, compiled: Compiled) -> Mapping[str, Any]:
    """Return the `meta.json` of a program: its status, its code, and the resources of its kernels.

    `kernels` is by name and architecture, in bytes and registers of a thread; `dynamic_smem` is the
    launch's bytes of a block, or the expression when the call decides it.
    """
    meta: dict[str, Any] = {
        "status": compiled.status,
        "reason": compiled.reason,
        "images": list_image_rows(compiled.images),
        "kernels": list_kernel_rows(compiled.ptxas),
    }
    if (product := recipe.pipeline.product) != PRODUCT:
        meta["product"] = f"module/{product}"
    if compiled.images and (toolkit := recipe.pipeline.find_toolkit(recipe)):
        meta["toolkit"] = toolkit
    launch = recipe.launch
    if launch is not None:
        smem = launch.smem.substitute(recipe.constants)
        meta["dynamic_smem"] = smem.canonical if smem.constant is None else smem.constant
    return meta
