"""`compile.sh`: the commands of a build as a script that needs nothing but the tree and the tools.

It works in a directory of its own, so that a read-only tree can be compiled too, and it leaves a
`lib.so` alone that already holds the bytes it made. All words are quoted for the shell, whatever
characters the manifest had in them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from tilusbuild.compile.model import Recipe
from tilusbuild.compile.steps import HERE, LAUNCHER, LAUNCHER_OBJECT, LAUNCHER_STEP, Step, steps

ENVIRONMENT = {"SOURCE_DATE_EPOCH": "0", "PWD": HERE, "TMPDIR": f"{HERE}/tmp"}  # noqa: S108
"""What every command sees: __DATE__ is constant, and debug information names no directory. nvcc
hands the names of its temporary files to a shell without quoting them, so that path must be
harmless."""

_UNSET = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "DEPENDENCIES_OUTPUT",
    "CDPATH",
)

_VARIABLES = {
    "{nvcc}": '"$NVCC"',
    "{nvrtc}": '"${nvrtc[@]}"',
    "{link_flags}": '"${link_flags[@]}"',
    "{fatbinary}": '"$nvcc_folder/fatbinary"',
    "{cxx}": '"$CXX"',
    "{cc}": '"$CC"',
    "{as}": '"$AS"',
    "{ld}": '"$LD"',
    "{sed}": "sed",
}


def compile_script(
    recipe: Recipe, inputs: Iterable[str], launcher: str, toolchain: Iterable[str]
) -> str:
    """Return the script for a program whose `module/` holds the files `inputs`.

    `launcher` is the digest of the directory with the launcher. `toolchain` are lines that
    say which tools made the recorded `lib.so`, for people.
    """
    pipeline = recipe.pipeline
    ready = LAUNCHER_OBJECT if pipeline.ships_launcher else LAUNCHER
    made = (LAUNCHER_STEP,) if pipeline.ships_launcher else ()
    commands = [step for step in steps(recipe) if step not in made]
    used = {word for step in commands for word in step.argv}
    return "".join(
        [
            _HEAD.replace("@TOOLS@", pipeline.script_tools),
            "".join(f"#   {line}\n" for line in toolchain),
            _START.replace("@UNSET@", " ".join(_UNSET)),
            pipeline.script_start.replace("@SHARED@", launcher),
            "".join(f"{_DEFAULTS[tool]}\n" for tool in _DEFAULTS if tool in used),
            _NVCC_DIRECTORY if "{nvcc}" in used else "",
            f'cp -- {shlex.join(inputs)} "$work"\n',
            f'cp -- "$module../../../include/{launcher}/{ready}" "$work"\n',
            'touch -d @1 -- "$work"/*\n',
            _include(recipe),
            pipeline.script_headers,
            'cd -- "$work"\n\n',
            "run() { env "
            + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
            + ' "$@"; }\n\n',
            "\n".join(_command(step) for step in commands),
            _END,
        ]
    )


def _command(step: Step) -> str:
    return "run " + " ".join(_VARIABLES.get(word) or shlex.quote(word) for word in step.argv) + "\n"


def _include(recipe: Recipe) -> str:
    if recipe.include_digest is None:
        return ""
    headers = f'"$module../../../include/{recipe.include_digest}" "$work/include"\n'
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
#   ./compile.sh [OUTPUT]      @TOOLS@ say which tools to use
#
# The tools that made the recorded lib.so:
"""

_START = """\
set -euo pipefail
unset @UNSET@
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
    "{nvcc}": "NVCC=${NVCC:-nvcc}",
    "{cxx}": "CXX=${CXX:-g++}",
    "{cc}": "CC=${CC:-gcc}",
    "{as}": "AS=${AS:-as}",
    "{ld}": "LD=${LD:-ld}",
}

_NVCC_DIRECTORY = """\
nvcc_folder=$("$NVCC" --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#[$] _HERE_=//p')
link_flags=()
if [ ! -e "$nvcc_folder/../lib64" ] && [ -e "$nvcc_folder/../lib" ]; then
  link_flags=("-L$nvcc_folder/../lib")
fi
"""

_END = """
digest() { sha256sum < "$1" | cut -d ' ' -f 1; }
made=$(digest lib.so)
recorded=
if [ -r "$module../meta.json" ]; then
  recorded=$(tr -d ' \\n' < "$module../meta.json" |
    sed -n 's/.*"module\\/lib\\.so":{[^}]*"sha256":"\\([0-9a-f]*\\)".*/\\1/p')
fi
if [ -e "$output" ] && [ "$(digest "$output")" = "$made" ]; then
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
