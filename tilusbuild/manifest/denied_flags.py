"""Flags that a manifest may not have, each with the reason and with what to write in its place.

All flags are a part of a program's hash, and a compile can open nothing else than what the hash
covers (`compile/reads.py`). So a flag passes, known or not, unless it runs a program, writes beside
the output, or names a file or a directory: where nothing holds a linker or NVRTC, that is all that
stands before such a read. Names without a directory are looked for in the compile's private
directory alone, and so need no rule of their own.

The parts that a flag passes on (`-Xcompiler a,b`, `-Wl,a,b`) are looked into as flags. The list is
the same on every machine, whatever the compiler there knows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tilusbuild.manifest.table import format_toml
from tilusbuild.runtime.errors import find_nearest_word


class DeniedFlag(NamedTuple):
    """A flag that needs `unsafe-flags`."""

    position: int
    """The index of the flag, or of its value, in the list."""
    text: str
    """The flag, with its value where that is the next word."""
    reason: str
    """The predicate of a sentence about the flag."""
    remedy: str
    """What to write in its place; "" where there is nothing."""


_RUNS = "runs a program that no hash covers"
_READS = "reads files that no hash covers"
_WRITES = "writes files beside the output"
_LIBRARY_KEYS = "use link-libs, link-dirs and rpath, as a [library.NAME] and an entry script have"
_DUMPS = "`--dump-ir` keeps the intermediate files"
_HOST_MARCH = "use host-march in [toolchain]; a package must run on other machines"
_FLAG_FILE = "write its flags here: a hash covers the words of a manifest, and not that file"
_TOOLCHAIN = "set nvcc or cxx in [toolchain]"
_INCLUDES = "use include-dirs, and include the header in the template"

_DENIED_PATTERNS: tuple[tuple[str, str, str], ...] = (
    (r"-f?plugin.*|-iplugindir|-fpass-plugin|-load", _RUNS, ""),
    (r"-wrapper", _RUNS, "set launcher in [toolchain]"),
    (r"-B(?!symbolic|static$|dynamic$|group$).*|-prefix", _RUNS, _TOOLCHAIN),
    (r"-m?specs|-config|-ccbin|-compiler-bindir|-arbin|-archiver-binary", _RUNS, _TOOLCHAIN),
    (r"-fuse-ld|-ld-path", _RUNS, _TOOLCHAIN),
    (r"-fmodule.*|-fprebuilt-module-path", _RUNS, _INCLUDES),
    (r"-I.*|-i(dirafter|framework|macros|nclude|prefix|quote|sys|with).*", _READS, _INCLUDES),
    (r"-system-include|-pre-?include.*|-embed-dir", _READS, _INCLUDES),
    (r"-sysroot|-gcc-toolchain|-resource-dir|-cuda-path|-target-dir(ectory)?", _READS, _TOOLCHAIN),
    (r"-ldir|-libdevice-directory|-ivfsoverlay", _READS, _TOOLCHAIN),
    (r"-(create|use)?[-_]?pch([-_].*)?", _READS, "tilusbuild precompiles headers where that pays"),
    (r"-f(auto-)?profile.*|-fbranch-probabilities|-fcreate-profile", _READS, ""),
    (r"-coverage|-ftest-coverage|-fcondition-coverage", _WRITES, ""),
    (r"-fdump.*|-dump.*|-save-temps|-keep|-keep-dir|-aux-info", _WRITES, _DUMPS),
    (r"-fopt-info.*|-fsave-optimization-record|-fstack-usage|-fcallgraph-info", _WRITES, _DUMPS),
    (r"-f(device-)?time-trace|-time|-fcompare-debug.*|-serialize-diagnostics", _WRITES, ""),
    (r"-fdiagnostics-(add-output|set-output|format=\S*file)", _WRITES, ""),
    (r"-a[cdghlmns]*(?==)", _WRITES, ""),
    (r"-M[A-Z]*|-dependency-(file|output)|-fdeps.*|-Map", _WRITES, "tilusbuild lists headers"),
    (r"-gsplit-dwarf", _WRITES, "write -g"),
    (r"-o|-output(-file|-directory)?|-odir|-working-directory|-flto-incremental", _WRITES, ""),
    (r"-(host-|augment-host-)?linker-script|-hls|-aug-hls", _WRITES, ""),
    (r"-forward-unknown.*", "passes on any flag, unseen", "write -Xcompiler=FLAG"),
    (r"-m?(arch|cpu|tune)=native", "means another CPU on another machine", _HOST_MARCH),
    (r"-options-file|-optf|@.*", _READS, _FLAG_FILE),
)  # fmt: skip
# Of every compiler, linker and assembler, whoever passes the flag on: by one or two dashes.
_DENIED = tuple(
    (re.compile(rf"-?(?:{pattern})(?:=.*)?", re.DOTALL), reason, remedy)
    for pattern, reason, remedy in _DENIED_PATTERNS
)

_LINK_FLAG = re.compile(
    r"-[lL].*|-[TR]|--library.*|--?(rpath|rpath-link|just-symbols|script)(=.*)?"
)
# Libraries of the compilers and of the system, which the fingerprint covers by their headers.
_TOOLCHAIN_LIBRARY = re.compile(r"-l(m|dl|rt|pthread|c|stdc\+\+|gomp|atomic|quadmath|cuda)")
# nvcc's own, which begin as a library does.
_NVCC_WORDS = ("-lineinfo", "-lto", "-ltoir")
# The options for tools that link nothing of the host: `-l…` means something else to them.
_DEVICE_TOOLS = re.compile(r"-X(ptxas|fatbin|cudafe|nvlink)|--(ptxas|fatbin|nvlink)-options")
_PASS_ON_FLAG = re.compile(r"-X\w+|--\w+-options|-mllvm")
_MACRO_FLAG = re.compile(r"-[DU]|--?(un)?define-macro")
_DEFINE_FLAG = re.compile(r"-D|--?define-macro(=|\Z)")
# Flags whose value may have a directory in it.
_OPENS_NOTHING = re.compile(r"-D|-f(file|macro|debug)-prefix-map=")
_FILE_NAME = re.compile(r"[^-].*\.[A-Za-z]\w*", re.DOTALL)
# The words that a shell takes as they are: nvcc hands its words to one. Macros are escaped.
_SHELL_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./^-]*")

_TARGET = "set arch and ptx in [target.NAME]"
_OUTPUT = "tilusbuild decides where outputs go; `--dump-ir` keeps the intermediate files"
_STEP = "tilusbuild decides what each step makes"
_TRACKED_HEADERS = "use include-dirs, so that headers are tracked and carried"
_HOST_COMPILER = (
    "tilusbuild finds the host compiler that fits nvcc; `tilusbuild doctor` shows which"
)
_OWN_FLAG_PATTERNS = (
    (r"-o|--output-file|-odir|--output-directory|--?(keep|keep-dir|save-temps|dryrun)", _OUTPUT),
    (r"-clean|--clean-targets", _OUTPUT),
    (r"-[cES]|-dc|-dw|--compile|--preprocess|--?(shared|ptx|cubin|fatbin|link|lib|run)", _STEP),
    (r"--?cuda|--device-c|-dlink|--device-link|-M[MDFPTQ]?|-MMD", _STEP),
    (r"-gencode|--generate-code|-arch|--gpu-architecture|-code|--gpu-code", _TARGET),
    (r"-(I|isystem|iquote|idirafter).*|--include-path|--system-include", _TRACKED_HEADERS),
    (r"-include|--pre-include", "include the header in the template"),
    (r"--?std", 'use std in [toolchain], as in std = "c++20"'),
    (r"-ccbin|--compiler-bindir", _HOST_COMPILER),
    (r"-march|-mtune", _HOST_MARCH),
    (r"-optf|--options-file", _FLAG_FILE),
)
# The flags that tilusbuild sets itself, with what to write in their place.
_OWN_FLAGS = tuple(
    (re.compile(pattern, re.DOTALL), remedy) for pattern, remedy in _OWN_FLAG_PATTERNS
)
_ALLOW = "unsafe-flags = true in [build] or in the script allows it"


def list_flag_problems(
    flags: Sequence[str], *, unsafe: bool, cpu: bool
) -> Iterator[tuple[int, str, str]]:
    """Yield each mistake of flags: the number of the flag, a message, and a hint.

    A mistake is a shell string of several arguments, a flag that tilusbuild sets itself, a zero
    for the letter of `-O3`, a file of flags, and a denied flag. With `cpu` the flags are for the
    host compiler; with `unsafe` no flag is denied.
    """
    denials = () if unsafe else find_denied_flags(flags, cpu=cpu)
    denied = {denial.position: denial for denial in denials}
    is_passed_on = False
    for number, flag in enumerate(flags):
        arguments = _split_shell_string(flag)
        # After `-Xptxas` the flag `-c` is for another tool, and is not the one that we set.
        remedy = None if is_passed_on else suggest_key(flag)
        if is_passed_on and "-march=" in flag:
            remedy = _HOST_MARCH
        if len(arguments) > 1:
            message = "one argument per item: this is a shell string"
            yield number, message, f"write {', '.join(map(format_toml, arguments))}"
        elif remedy is not None:
            yield number, f'"{flag}" is set by tilusbuild', remedy
        elif flag.startswith("-0"):
            yield number, f'"{flag}" begins with a zero', f'write "-O{flag[2:]}"'
        elif unsafe and names_flag_file(flag):
            yield number, f'"{flag}" names a file of flags', _FLAG_FILE
        elif (denial := denied.get(number)) is not None:
            hint = f"{denial.remedy}; {_ALLOW}" if denial.remedy else _ALLOW
            yield number, f'"{denial.text}" {denial.reason}', hint
        is_passed_on = _PASS_ON_FLAG.fullmatch(flag) is not None


def _split_shell_string(flag: str) -> list[str]:
    """Return the arguments of a flag such as "-Xptxas -v"; `[flag]` if the flag is one argument.

    A flag that may be one argument, such as "-DX=a b", is not split.
    """
    if not flag.startswith("-") or not any(character.isspace() for character in flag):
        return [flag]
    try:
        arguments = shlex.split(flag)
    except ValueError:
        return [flag]
    # A flag is split if a second flag follows its first word, or its first word takes a value.
    is_split = _PASS_ON_FLAG.fullmatch(arguments[0]) or suggest_key(arguments[0])
    return arguments if is_split or (arguments[1:2] and arguments[1].startswith("-")) else [flag]


def suggest_key(flag: str) -> str | None:
    """Return what to write in place of a flag that tilusbuild sets itself; None for others."""
    name = flag.partition("=")[0]
    if "-march=" in flag and _PASS_ON_FLAG.fullmatch(name):
        return _HOST_MARCH
    return next((remedy for pattern, remedy in _OWN_FLAGS if pattern.fullmatch(name)), None)


def names_march(word: str) -> bool:
    """Return whether a word can follow `-march=`."""
    # No comma: nvcc would make several flags of the host compiler of it.
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", word) is not None


def names_flag_file(flag: str) -> bool:
    """Return whether a flag makes a compiler, or a tool behind it, read flags from a file.

    No preprocessor or linker lists such a file among those that were read.
    """
    return not _DEFINE_FLAG.match(flag) and any(part.startswith("@") for part in _split_parts(flag))


def find_denied_flags(flags: Sequence[str], *, cpu: bool) -> Iterator[DeniedFlag]:
    """Yield the flags that need `unsafe-flags`.

    With `cpu` the flags are for the host compiler, else for nvcc or NVRTC.
    """
    previous_flag = ""
    for index, flag in enumerate(flags):
        is_last = index == len(flags) - 1
        # The word after `-D` is a macro, which may be any text, unless it begins as a flag.
        is_macro = _DEFINE_FLAG.match(flag) or (
            _DEFINE_FLAG.fullmatch(previous_flag) and flag[:1] != "-"
        )
        denial = None if is_macro else _find_reason(flag, previous_flag, cpu=cpu)
        if is_last and _takes_value(flag):
            reason = "takes the word after it, and there is none"
            yield DeniedFlag(index, flag, reason, remedy="")
        elif denial is not None:
            reason, remedy = denial
            text = f"{previous_flag} {flag}" if _takes_value(previous_flag) else flag
            yield DeniedFlag(index, text, reason, remedy)
        previous_flag = flag


def _takes_value(flag: str) -> bool:
    """Return whether the word after a flag is its value."""
    return bool(_PASS_ON_FLAG.fullmatch(flag) or _MACRO_FLAG.fullmatch(flag))


def _find_reason(flag: str, before: str, *, cpu: bool) -> tuple[str, str] | None:
    """Return the reason and the remedy of a denied flag; None for one that is allowed.

    `before` is the word before the flag, which may pass it on to another tool. Denied are flags
    with characters of a shell, those of `_DENIED`, links of files, and names of files and
    directories.
    """
    if not _SHELL_SAFE.fullmatch(flag):
        return "has characters that a shell reads", "macros go into defines"
    if not cpu and flag in _NVCC_WORDS:
        return None
    tool = before if _PASS_ON_FLAG.fullmatch(before) else flag.partition("=")[0]
    is_for_linker = _DEVICE_TOOLS.fullmatch(tool) is None
    for part in _split_parts(flag):
        for pattern, reason, remedy in _DENIED:
            if pattern.fullmatch(part):
                return reason, remedy
        if is_for_linker and _LINK_FLAG.fullmatch(part) and not _TOOLCHAIN_LIBRARY.fullmatch(part):
            near = None if cpu else find_nearest_word(part, _NVCC_WORDS, likeness=0.8)
            remedy = _LIBRARY_KEYS if near is None else f'write "{near}"'
            return "links a file that no hash covers", remedy
        if _names_file(part):
            return "names a file or a directory that no hash covers", _INCLUDES
    return None


def _names_file(part: str) -> bool:
    """Return whether a flag, or a word by itself, names a file or a directory."""
    if _OPENS_NOTHING.match(part):
        return False
    return "/" in part or part.endswith("..") or _FILE_NAME.fullmatch(part) is not None


def _split_parts(flag: str) -> Iterator[str]:
    """Yield the flags in a word: tools take it apart at commas, and pass on what follows a `=`."""
    for part in flag.split(","):
        yield part
        name, _, value = part.partition("=")
        if value.startswith("-") or _PASS_ON_FLAG.fullmatch(name):
            yield value
