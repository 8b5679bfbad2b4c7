"""Flags known to be pure: they change what a compiler makes of its input, and nothing else.

A flag that is not known here may run a program (`-fplugin`, `-wrapper`, `-B`), write beside the
output (`-fdump-…`, `-Wl,-Map`), or read a file that no hash covers (`@file`, `-L`, `-imacros`), and
no list of those would ever be whole: so it is the pure ones that are listed, name and value. The
list is the same on every machine, whatever the compiler there knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

_GCC_F_TEXT = """
    PIC PIE abi-compat-version abi-version access-control aggressive-loop-optimizations
    aligned-new allocation-dce allow-store-data-races asm associative-math
    asynchronous-unwind-tables auto-inc-dec bit-tests branch-count-reg builtin caller-saves
    cf-protection char8_t code-hoisting combine-stack-adjustments common compare-elim concepts
    concepts-ts conserve-stack constexpr-cache-depth constexpr-depth constexpr-fp-except
    constexpr-loop-limit constexpr-ops-limit coroutines cprop-registers crossjumping
    cse-follow-jumps cx-fortran-rules cx-limited-range data-sections dce debug-types-section
    declone-ctor-dtor deduce-init-list defer-pop delayed-branch delete-dead-exceptions
    delete-null-pointer-checks devirtualize devirtualize-speculatively diagnostics-color dse
    early-inlining elide-constructors emit-struct-debug-baseonly emit-struct-debug-detailed
    emit-struct-debug-reduced enforce-eh-specs exceptions excess-precision
    expensive-optimizations ext-numeric-literals extended-identifiers extern-tls-init fast-math
    finite-loops finite-math-only float-store fold-simple-inlines forward-propagate fp-contract
    fp-int-builtin-inexact freestanding function-cse function-sections gcse graphite
    guess-branch-probability harden-compares harden-conditional-branches hoist-adjacent-loads
    ident if-conversion if-conversion2 implement-inlines implicit-constexpr
    implicit-inline-templates implicit-templates indirect-inlining inline inline-atomics
    inline-functions inline-functions-called-once inline-limit inline-small-functions
    inline-stringops isolate-erroneous-paths-attribute isolate-erroneous-paths-dereference
    ivopts jump-tables lax-vector-conversions lifetime-dse limit-function-alignment
    live-patching live-range-shrinkage loop-interchange loop-nest-optimize loop-parallelize-all
    loop-unroll-and-jam lra-remat math-errno max-errors message-length modulo-sched
    modulo-sched-allow-regmoves move-loop-invariants move-loop-stores ms-extensions
    new-inheriting-ctors new-ttp-matching no-threadsafe-statics non-call-exceptions
    nonansi-builtins nothrow-opt omit-frame-pointer openmp openmp-simd operator-names
    optimize-sibling-calls optimize-strlen pack-struct partial-inlining peel-loops peephole
    peephole2 permissive pic pie plt predictive-commoning prefetch-loop-arrays
    printf-return-value random-seed reciprocal-math ree reg-struct-return rename-registers
    reorder-blocks reorder-blocks-algorithm reorder-blocks-and-partition reorder-functions
    reschedule-modulo-scheduled-loops rounding-math rtti sched2-use-superblocks schedule-fusion
    schedule-insns schedule-insns2 section-anchors selective-scheduling selective-scheduling2
    semantic-interposition short-enums short-wchar shrink-wrap shrink-wrap-separate
    signaling-nans signed-bitfields signed-char signed-zeros simd-cost-model
    single-precision-constant sized-deallocation split-ivs-in-unroller split-loops split-paths
    split-wide-types split-wide-types-early ssa-backprop ssa-phiopt stack-check
    stack-clash-protection stack-protector stack-protector-all stack-protector-explicit
    stack-protector-strong stdarg-opt store-merging strict-aliasing strict-enums strict-overflow
    strict-volatile-bitfields strong-eval-order tabstop template-backtrace-limit template-depth
    thread-jumps tls-model toplevel-reorder tracer trapping-math trapv trivial-auto-var-init
    unconstrained-commons unroll-all-loops unroll-completely-grow-size unroll-loops
    unsafe-math-optimizations unsigned-bitfields unsigned-char unswitch-loops unwind-tables
    use-cxa-atexit use-cxa-get-exception-ptr var-tracking variable-expansion-in-unroller
    vect-cost-model verbose-asm visibility visibility-inlines-hidden visibility-ms-compat vpt
    weak web wrapv wrapv-pointer zero-initialized-in-bss
"""
_GCC_F = frozenset(_GCC_F_TEXT.split())
"""`-fNAME`, `-fno-NAME` and `-fNAME=VALUE` of gcc 12: of `--help=optimizers`, `--help=common` and
`--help=c++`, those that generate code or judge the source, but for the families of passes."""
_GCC_PASSES = re.compile(
    r"(align|gcse|graphite|ipa|ira|sched|sel-sched|tree|var-tracking)-[a-z0-9-]+"
)

_F = re.compile(r"-f(?:no-)?(?P<name>[A-Za-z0-9_+-]+?)(?:=[A-Za-z0-9_.:,+-]*)?")
_GCC = re.compile(
    r"""
      -O[0-3sgz]? | -Ofast | -w | -pipe | -pthread | -ansi | -pedantic(-errors)?
    | -g[0-3]? | -ggdb[0-3]? | -gdwarf(-[2-5])?
    | -W(?![alp]$)[A-Za-z0-9+_-]+ (=[A-Za-z0-9_+-]+)?
    | -m(?!specs|llvm)[a-z0-9._-]+ (=(?!native\Z)[A-Za-z0-9._+-]+)?
    | -march=native  # tilusbuild sets -march, and says so
    | --param=[a-z0-9-]+=[0-9]+
    | -f(no-)?builtin-[a-z0-9_]+ | -static-libgcc
    | -f(file|macro|debug)-prefix-map=[^,@]+
    | -l(m|dl|rt|pthread|c|stdc\+\+|gomp|atomic|quadmath|cuda)
    """,
    re.VERBOSE,
)
_LINKER = re.compile(
    r"""
      -?-(O[0-2]|s|S|x|X) | --?(no-)?(as-needed|gc-sections|relax|allow-shlib-undefined|undefined)
    | --?(enable|disable)-new-dtags
    | --?(strip-(all|debug)|hash-style=(gnu|sysv|both)|build-id(=(none|sha1|md5))?)
    | --?Bsymbolic(-functions)?
    | -z | (no)?(relro|now|lazy|defs|execstack|separate-code|combreloc)
    """,
    re.VERBOSE,
)
_PTXAS = re.compile(
    r"""
      --?(v|verbose|w|disable-warnings|Werror|warning-as-error|g|device-debug|lineinfo)
    | --?(generate-line-info|disable-optimizer-constants|preserve-relocs|suppress-debug-info)
    | --?(warn-(on-)?(spills|(local-)?l?mem(ory)?-usage|double(-precision)?-(usage|use)))
    | --?(suppress-stack-size-warning|sp-bounds?-check|position-independent-code|pic)
    | -O[0-4] | -c | --compile-only
    | --?(opt-level|O|dlcm|def-load-cache|dscm|def-store-cache|flcm|fscm)=[a-z0-9]+
    | --?(force-(load|store)-cache|fmad)=[a-z0-9]+
    | --?(allow-expensive-optimizations|ftz|cloning|prec-(div|sqrt))=[a-z0-9]+
    | --?(maxrregcount|func-maxrregcount|device-function-maxrregcount|split-compile)=[0-9]+
    | --?(Ofc|Ofast-compile)=[a-z0-9]+ | --?(uumn|extensible-whole-program|ewp)
    | --?(register-usage-level|regUsageLevel|minnctapersm|maxntid)=[0-9]+
    | --?(device-stack-protector)=(true|false) | --?(optimize-float-atomics|opt-fp-atomics)
    | --?(dont-merge-basicblocks|no-bb-merge|return-at-end|ret-end|override-directive-values)
    | --?(make-errors-visible-at-exit|legacy-bar-warp-wide-behavior)
    | --?(suppress-(async-bulk-multicast-advisory|double-demote)-warning)
    | --?(suppress-sparse-mma-advisory-info|g(no)?-(tensor-memory|tmem)-access-check)
    """,
    re.VERBOSE,
)
_FATBIN = re.compile(r"--?(compress(-all)?|compress(-mode)?=[a-z]+|no-compress)")
_FRONT_END = re.compile(
    r"--?(diag_(suppress|warning|error|default|remark|once)=[a-z0-9_]+|[a-z0-9_]+|no_warnings"
    r"|display_error_number)"
)

_NVCC = re.compile(
    r"""
      -O[0-3] | --?(optimize|opt-level)=[0-3] | -g | --debug | -G | --device-debug | -w
    | --?(generate-line-info|lineinfo|use_fast_math|restrict|disable-warnings|source-in-ptx)
    | --?(expt-extended-lambda|expt-relaxed-constexpr)
    | --?(extended-lambda|resource-usage|res-usage)
    | --?(extra-device-vectorization|Wreorder|Wdefault-stream-launch|Wmissing-launch-bounds)
    | --?(Wno-deprecated-declarations|Wno-deprecated-gpu-targets|Wext-lambda-captures-this)
    | --?(display-error-number|no-display-error-number|err-no|no-err-no|m64|no-align-double)
    | --?(allow-unsupported-compiler|no-compress|device-stack-protector)
    | --?(default-device|device-as-default-execution-space|minimal|device-int128|device-float128)
    | --?(no-exceptions|disable-error-number|brief-diagnostics)
    """,
    re.VERBOSE,
)
_VALUE = re.compile(r"[A-Za-z0-9_.,+-]+")
_NVCC_VALUED_TEXT = """
    -maxrregcount --maxrregcount -ftz --ftz -prec-div --prec-div -prec-sqrt --prec-sqrt -fmad
    --fmad -t -threads --threads -split-compile --split-compile -default-stream --default-stream
    -rdc --relocatable-device-code -diag-suppress --diag-suppress -diag-error --diag-error
    -diag-warn --diag-warn -Werror --Werror -dopt --dopt -compress-mode --compress-mode -Ofc
    --Ofast-compile -device-stack-protector --device-stack-protector -jtd --jump-table-density
    -cudart --cudart -modify-stack-limit --modify-stack-limit -frandom-seed --frandom-seed
    -builtin-move-forward --builtin-move-forward -builtin-initializer-list
    --builtin-initializer-list -opt-info --optimization-info -brief-diag --brief-diagnostics
    -static-global-template-stub --static-global-template-stub -ftemplate-backtrace-limit
    --ftemplate-backtrace-limit -ftemplate-depth --ftemplate-depth
    -device-entity-has-hidden-visibility --device-entity-has-hidden-visibility
"""
_NVCC_VALUED = frozenset(_NVCC_VALUED_TEXT.split())


def names_march(word: str) -> bool:
    """Return whether a word can follow `-march=`: with a comma in it, nvcc would make it several
    flags of the host compiler."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", word) is not None


def _gcc(flag: str) -> bool:
    if found := _F.fullmatch(flag):
        name = found["name"]
        return name in _GCC_F or bool(_GCC_PASSES.fullmatch(name) or _GCC.fullmatch(flag))
    if flag.startswith("-Wl,"):
        return all(_LINKER.fullmatch(word) for word in flag[4:].split(","))
    return _GCC.fullmatch(flag) is not None


def _each(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda words: all(pattern.fullmatch(word) for word in words.split(","))


def _each_of_gcc(words: str) -> bool:
    # nvcc takes them apart at each comma, also at one in a flag's value.
    return all(_gcc(word) for word in words.split(","))


def _name(macro: str) -> bool:
    # A definition is escaped for nvcc's shell; what is undefined needs no more than a name.
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", macro) is not None


_Values: TypeAlias = dict[str, Callable[[str], bool]]
_MACROS: _Values = {"-D": bool, "-U": _name}
_OF_GCC: _Values = {
    **_MACROS,
    "--param": re.compile(r"[a-z0-9-]+=[0-9]+").fullmatch,  # type: ignore[dict-item]
    "-Xlinker": _each(_LINKER),
    "-z": _each(_LINKER),
}
_OF_NVCC: _Values = {
    **_MACROS,
    **dict.fromkeys(("--define-macro", "-define-macro"), bool),
    **dict.fromkeys(("--undefine-macro", "-undefine-macro"), _name),
    **dict.fromkeys(_NVCC_VALUED, lambda value: _VALUE.fullmatch(value) is not None),
    **dict.fromkeys(("-Xcompiler", "--compiler-options"), _each_of_gcc),
    **dict.fromkeys(("-Xptxas", "--ptxas-options"), _each(_PTXAS)),
    **dict.fromkeys(("-Xlinker", "--linker-options"), _each(_LINKER)),
    **dict.fromkeys(("-Xfatbin", "--fatbin-options"), _each(_FATBIN)),
    "-Xcudafe": _each(_FRONT_END),
}


def takes_value(flag: str) -> bool:
    """Return whether the next argument is the value of one of nvcc's flags."""
    return flag in _OF_NVCC


def impure(flags: Sequence[str], *, cpu: bool) -> Iterator[tuple[int, str]]:
    """Yield the index and the words of each flag that is not known to be pure; `cpu`: they are for
    the host compiler, else for nvcc or NVRTC. Flags that tilusbuild sets itself are not passed
    apart."""
    valued = _OF_GCC if cpu else _OF_NVCC
    words = iter(enumerate(flags))
    for index, flag in words:
        name, equals, value = flag.partition("=")
        said = flag
        if flag in valued:
            name, value = flag, next(words, (index, ""))[1]
            said = f"{flag} {value}".rstrip()
        elif flag.startswith("-D") or (flag.startswith("-U") and _name(flag[2:])):
            continue
        elif not (equals and name in valued and name.startswith("-")):
            if not (_gcc(flag) if cpu else _nvcc(flag)):
                yield index, flag
            continue
        is_right = valued[name]
        if not is_right(value) or not (cpu or is_right is bool or _plain(value)):
            yield index, said


def _plain(value: str) -> bool:
    """Return whether nvcc's shell takes a word as it is. Macros are escaped for it."""
    return re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]*", value) is not None


def _nvcc(flag: str) -> bool:
    library = re.fullmatch(r"-l(m|dl|rt|pthread|c|stdc\+\+|cuda)", flag)
    return library is not None or _NVCC.fullmatch(flag) is not None
