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
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class DeniedFlag(NamedTuple):
    """A flag that needs `unsafe-flags`."""

    position: int
    """The index of the flag, or of its value, in the list."""
    words: str
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
_MARCH = "set host-march in [toolchain]"
_TOOLCHAIN = "set nvcc or cxx in [toolchain]"
_INCLUDES = "use include-dirs, and include the header in the template"

_REASONS: tuple[tuple[str, str, str], ...] = (
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
    (r"-m?(arch|cpu|tune)=native", "means another CPU on another machine", _MARCH),
    (r"-options-file|-optf", _READS, "write its flags here"),
    (r"@.*", _READS, "write its flags here"),
)  # fmt: skip
_DENIED = tuple(
    (re.compile(rf"-?(?:{pattern})(?:=.*)?", re.DOTALL), reason, remedy)
    for pattern, reason, remedy in _REASONS
)
"""Of every compiler, linker and assembler, whoever passes the flag on: by one or two dashes."""

_LINKS = re.compile(r"-[lL].*|-[TR]|--library.*|--?(rpath|rpath-link|just-symbols|script)(=.*)?")
_OF_TOOLCHAIN = re.compile(r"-l(m|dl|rt|pthread|c|stdc\+\+|gomp|atomic|quadmath|cuda)")
"""Libraries of the compilers and of the system, which the fingerprint covers by their headers."""
_NVCC_WORDS = re.compile(r"-l(ineinfo|to|toir)")
"""nvcc's own, which begin as a library does."""
_DEVICE_TOOLS = re.compile(r"-X(ptxas|fatbin|cudafe|nvlink)|--(ptxas|fatbin|nvlink)-options")
"""The options for tools that link nothing of the host: `-l…` means something else to them."""
_PASSES_ON = re.compile(r"-X\w+|--\w+-options|-mllvm")
_MACRO = re.compile(r"-[DU]|--?(un)?define-macro")
_DEFINES = re.compile(r"-D|--?define-macro(=|\Z)")
_OPENS_NOTHING = re.compile(r"-D|-f(file|macro|debug)-prefix-map=")
"""Flags whose value may have a directory in it."""
_FILE = re.compile(r"[^-].*\.[A-Za-z]\w*", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./^-]*")
"""The words that a shell takes as they are: nvcc hands its words to one. Macros are escaped."""


def names_march(word: str) -> bool:
    """Return whether a word can follow `-march=`: with a comma in it, nvcc would make it several
    flags of the host compiler."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", word) is not None


def names_flag_file(flag: str) -> bool:
    """Return whether a compiler, or a tool behind it, takes further flags from a file: it reads
    that by itself, and no preprocessor or linker lists it."""
    return not _DEFINES.match(flag) and any(part.startswith("@") for part in _parts(flag))


def find_denied_flags(flags: Sequence[str], *, cpu: bool) -> Iterator[DeniedFlag]:
    """Yield the flags that need `unsafe-flags`; with `cpu` they are for the host compiler, else for
    nvcc or NVRTC."""
    before = ""
    for index, flag in enumerate(flags):
        is_last = index == len(flags) - 1
        # A macro's name begins with a letter: gcc takes no flag for one.
        is_macro = _DEFINES.match(flag) or (_DEFINES.fullmatch(before) and flag[:1] != "-")
        if is_last and _takes_value(flag):
            yield DeniedFlag(index, flag, "takes the word after it, and there is none", "")
        elif not is_macro and (found := _find_reason(flag, before, cpu=cpu)):
            words = f"{before} {flag}" if _takes_value(before) else flag
            yield DeniedFlag(index, words, *found)
        before = flag


def _takes_value(flag: str) -> bool:
    return bool(_PASSES_ON.fullmatch(flag) or _MACRO.fullmatch(flag))


def _find_reason(flag: str, before: str, *, cpu: bool) -> tuple[str, str] | None:
    """Return why a flag is denied and the remedy; None where it is not. `before` is the word before
    it, which may pass it on."""
    if not _PLAIN.fullmatch(flag):
        return "has characters that a shell reads", "macros go into defines"
    if not cpu and _NVCC_WORDS.fullmatch(flag):
        return None
    tool = before if _PASSES_ON.fullmatch(before) else flag.partition("=")[0]
    links = _DEVICE_TOOLS.fullmatch(tool) is None
    for part in _parts(flag):
        for pattern, reason, remedy in _DENIED:
            if pattern.fullmatch(part):
                return reason, remedy
        if links and _LINKS.fullmatch(part) and not _OF_TOOLCHAIN.fullmatch(part):
            return "links a file that no hash covers", _LIBRARY_KEYS
        if _names_file(part):
            return "names a file or a directory that no hash covers", _INCLUDES
    return None


def _names_file(part: str) -> bool:
    if _OPENS_NOTHING.match(part):
        return False
    return "/" in part or part.endswith("..") or _FILE.fullmatch(part) is not None


def _parts(flag: str) -> Iterator[str]:
    """Yield the flags in a word: tools take it apart at commas, and pass on what follows a `=`."""
    for part in flag.split(","):
        yield part
        name, _, value = part.partition("=")
        if value.startswith("-") or _PASSES_ON.fullmatch(name):
            yield value
