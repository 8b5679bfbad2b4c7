"""One classifier of what ended a step: facts before words, and the machine's faults are its own.

The outputs are real ones, of nvcc 13.0, NVRTC 13.0, g++ 12 and binutils 2.40, with the names of the
private directory taken out as a compile does.
"""

import errno
import os
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.compile import causes
from tilusbuild.compile.causes import ProgramInputs, find_step_error, make_start_error
from tilusbuild.process.base import CompletedCommand
from tilusbuild.status import Cause, Status

SAID = "no such tile: Cannot allocate memory"
FLAGS = ("-foo", "-maxrregcount=foo", "-Xptxas=-zzz", "-Xcudafe", "--zzz", "-std=c++99")

PROGRAM = ProgramInputs(
    flags=FLAGS,
    generated_files=frozenset({"program.s", "launcher.c", "exports.map"}),
    list_headers=lambda: frozenset({"project/parts.cuh", "project/deep/more.cuh"}),
    roots=("project",),
)


def ended(
    status: int, log: str = "", timed_out: bool = False, program: ProgramInputs | None = PROGRAM
) -> Cause | None:
    finished = CompletedCommand(status, log.encode(), 1.0, 0, timed_out)
    error = find_step_error("nvcc", finished, log, program)
    return error.cause if error else None


DIAGNOSES = [
    (2, 'source.cu(3): error: identifier "foo" is undefined'),
    (1, 'source.cu(5): error #177-D: variable "b" was declared but never referenced'),
    (1, "source.cu(1): Error: Formal parameter space overflowed (40008 bytes required, max 32764)"),
    (1, 'At end of source: error: expected a "}"\nsource.cu(1): note #3196-D: to match this "{"'),
    (1, "source.cu:2:52: error: no matching function for call to 'push_back(const char [2])'"),
    (1, "source.cu:1:54: fatal error: template instantiation depth exceeds maximum of 900"),
    (1, "source.cu:3:5: sorry, unimplemented: non-trivial designated initializers"),
    (1, "source.cu: Assembler messages:\nsource.cu:1: Error: no such instruction: `bogus %eax'"),
    (1, "source.cu:9:2: error: invalid argument to attribute 'aligned'"),
    (1, "{cuda}/include/cuda_fp16.h(12): error: more than one operator"),
    (
        1,
        "source.cu:1:10: fatal error: nothere.h: No such file or directory\ncompilation terminated",
    ),
    (1, 'source.cu(1): catastrophic error: cannot open source file "nothere.h"'),
    (1, 'source.cu(1): catastrophic error: #error directive: "out of memory"'),
    (1, f"source.cu:2:2: error: #error {SAID}"),
    (1, f'source.cu(3): error: static assertion failed with "{SAID}"'),
    (1, f"source.cu:3:1: error: static assertion failed: {SAID}"),
    (1, '<command-line>: error: expected parameter name, found "1"'),
    (
        255,
        "ptxas tmp/tmp_source.ptx, line 27; error   : Unknown modifier '.f99'\nptxas fatal   : Ptx",
    ),
    (255, "ptxas tmp/tmp_source.ptx, line 23; fatal   : Parsing error near '@': syntax error"),
    (1, " ptxas error   : Entry function 'k' uses too much shared data (0xc3500, 0x38c00 max)"),
    (255, "ptxas error   : File uses too much global constant data (0x11170 bytes, 0x10000 max)"),
    (255, "ptxas error   : Registers are spilled to local memory in function 'k', 160 bytes"),
    (255, "ptxas fatal   : Unresolved extern function '_Z5otherf'"),
    (255, "nvlink error   : Undefined reference to '_Z5otherf' in 'tmp/tmp_source.o'"),
    (1, "ld: source.o: in function `f':\nsource.cu:(.text+0x5): undefined reference to `other()'"),
    (1, "ld: source.cu:12: undefined reference to `zed'\ncollect2: error: ld returned 1"),
    (1, "launcher.c:(.text+0x0): multiple definition of `launch'; source.o: first defined here"),
    (1, "ld: source.o: relocation R_X86_64_32S against undefined symbol `x' can not be used"),
    (1, "nvcc fatal   : Unknown option '-foo'"),
    (1, "nvcc fatal   : 'foo': expected a number"),
    (1, "nvcc fatal   : Value 'c++99' is not defined for option 'std'"),
    (255, "ptxas fatal   : Unknown option 'zzz'"),
    (1, "Command-line error: invalid option: --zzz"),
    (1, "nvrtc: error: --maxrregcount (-maxrregcount) expects an integer value"),
    (1, "g++: error: unrecognized command-line option '-std=c++99'; did you mean '-std=c++98'?"),
]


@pytest.mark.parametrize(("status", "log"), DIAGNOSES)
def test_a_diagnosis_of_the_program_is_a_verdict(status: int, log: str) -> None:
    assert ended(status, log) == Cause.SOURCE
    assert ended(status, log, program=None) != Cause.SOURCE


@pytest.mark.parametrize(
    ("status", "log", "cause"),
    [
        (255, "nvcc fatal   : Unknown option '--jobserver'", Cause.CRASH),
        (1, "", Cause.CRASH),
        (1, "nvcc fatal   : Failed to preprocess host compiler properties.", Cause.CRASH),
        (1, "nvcc fatal   : Could not open output file 'tmp/tmp-1'", Cause.CRASH),
        (1, "g++: fatal error: cannot execute 'cc1plus': vfork: Resource temporarily", Cause.CRASH),
        (1, "collect2: fatal error: ld terminated with signal 9 [Killed]", Cause.KILLED),
        (1, "collect2: fatal error: cannot find 'ld'\ncompilation terminated.", Cause.CRASH),
        (127, "sh: 1: cicc: not found", Cause.CRASH),
        (2, "/bin/sh: 0: 3: Invalid argument", Cause.CRASH),
        (127, "ptxas: error while loading shared libraries: libc.so.6: failed to map", Cause.CRASH),
        (1, "source.cu:1:10: fatal error: x.h: Too many open files", Cause.CRASH),
        (1, "source.cu:1:10: error: x.h: Is a directory", Cause.CRASH),
        (1, "source.cu:1:10: fatal error: parts.cuh: No such file or directory", Cause.CRASH),
        (1, 'include/project/deep/a.h(1): catastrophic error: cannot open source file "more.cuh"',
            Cause.CRASH),
        (1, 'source.cu(1): catastrophic error: cannot open source file "a.h": is a directory',
            Cause.CRASH),
        (1, '{cuda}/include/cuda_runtime_api.h(11682): catastrophic error: out of memory',
            Cause.MEMORY),
        (1, "source.cu:1:1: internal compiler error: Segmentation fault", Cause.CRASH),
        (1, 'source.cu(3): error: "half" is undefined\ng++: fatal error: Killed signal terminated',
            Cause.KILLED),
        (1, "cc1plus: fatal error: source.cu: No such file or directory", Cause.CRASH),
        (1, "program.s:12: Error: file not found: program.cubin", Cause.CRASH),
        (1, "launcher.c:3:1: error: unknown type name", Cause.CRASH),
        (1, "tmp/tmp.s: Assembler messages:\nFatal error: can't create x.o: Permission denied",
            Cause.CRASH),
        (1, "ld: /usr/lib/libstdc++.so: undefined reference to `f@GLIBC_2.38'", Cause.CRASH),
        (1, "ld: cannot find -lnope: No such file or directory", Cause.CRASH),
        (1, "ld: source.o: file not recognized: file truncated", Cause.CRASH),
        (255, "ptxas tmp/tmp_source.ptx, line 65; fatal   : Parsing error near '': syntax error",
            Cause.CRASH),
        (255, "ptxas /tmp/x.ptx, line 1; fatal   : Missing .version directive at start of file ''",
            Cause.CRASH),
        (255, "ptxas fatal   : Memory allocation failure", Cause.MEMORY),
        (255, "ptxas fatal   : Could not open output file 'x.cubin'", Cause.CRASH),
        (255, "ptxas fatal   : fork() failed with 'Resource temporarily unavailable'", Cause.CRASH),
        (2, "nvrtc: NVRTC cannot be loaded: libnvrtc.so.13: cannot open", Cause.CRASH),
        (70, "nvrtc: internal compiler error: [Errno 24] Too many open files: 'source.cu'",
            Cause.CRASH),
        (1, "nvlink fatal: could not write: No space left on device", Cause.DISK),
        (1, "source.cu:1:87: fatal error: error closing tmp/x.s: No space left on device",
            Cause.DISK),
        (1, '1 error\nCatastrophic error: cannot open generated C file "x.c": Disk quota exceeded',
            Cause.DISK),
        (1, "/tmp/x.ptx: Input/output error\n1 error", Cause.DISK),
        (-6, "cicc: No space left on device", Cause.DISK),
        (1, "g++: internal compiler error: x\nas: no space left on device", Cause.DISK),
        (1, "as: Cannot allocate memory", Cause.MEMORY),
        (1, "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes", Cause.MEMORY),
        (1, "virtual memory exhausted: whatever", Cause.MEMORY),
        (1, "nvrtc: fatal: out of memory", Cause.MEMORY),
        (134, "terminate called after throwing an instance of 'std::bad_alloc'", Cause.MEMORY),
        (-9, "", Cause.KILLED),
        (137, "source.cu(3): error: half a line", Cause.KILLED),
        (9, "nvcc error   : 'cicc' died due to signal 9 (Kill signal)", Cause.KILLED),
        (9, "nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", Cause.CRASH),
        (1, "nvrtc: fatal: it does not answer", Cause.CRASH),
        (-11, "", Cause.CRASH),
        (0, "warning: No space left on device", None),
    ],
)  # fmt: skip
def test_whatever_else_ended_a_step_is_an_accident(status, log, cause) -> None:
    assert ended(status, log) == cause


FAILED_CALLS = sorted({os.strerror(number) for number in errno.errorcode} - {os.strerror(2)})
REPORTS = (
    "{tool}: {text}",
    "{tool}: fatal error: {name}: {text}",
    "{tool}: error: cannot open {name}: {text}",
    "source.cu:1:10: fatal error: {name}: {text}",
    "source.cu:1:10: error: {name}: {text}",
    'source.cu(1): catastrophic error: cannot open source file "{name}": {text}',
    "source.cu(1): error: cannot write {name}: {text}",
    "include/project/parts.cuh:3: Error: can't close {name}: {text}",
    "/usr/include/stdio.h:27:10: fatal error: {name}: {text}",
    "ptxas error   : {name}: {text}",
    "ptxas {name}, line 3; fatal   : '{name}': {text}",
    "nvlink fatal   : Could not open '{name}': {text}",
    "collect2: fatal error: cannot execute 'ld': vfork: {text}",
)


@given(
    report=st.sampled_from(REPORTS),
    text=st.sampled_from(FAILED_CALLS),
    name=st.from_regex(r"[a-z_]{1,8}(\.[a-z]{1,3})?", fullmatch=True),
    tool=st.sampled_from(("nvcc", "g++", "cc1plus", "as", "ld", "ptxas", "cicc", "nvrtc")),
    before=st.lists(st.sampled_from(["", *(log for _, log in DIAGNOSES)]), max_size=2),
)
def test_no_report_of_a_failed_call_is_ever_a_verdict(report, text, name, tool, before) -> None:
    """Wherever it points, whichever call failed, whatever was diagnosed besides."""
    log = "\n".join([*before, report.format(tool=tool, name=name, text=text)])
    assert ended(1, log) not in (Cause.SOURCE, None)


@given(
    st.from_regex(re.compile(r"[^\n:'\"-]{0,60}", re.ASCII), fullmatch=True), st.integers(1, 128)
)
def test_what_says_nothing_of_the_program_is_never_a_verdict(words: str, status: int) -> None:
    assert ended(status, f"g++: {words}\n") != Cause.SOURCE


@given(text=st.sampled_from(FAILED_CALLS), quoted=st.booleans(), edg=st.booleans())
def test_a_source_may_say_what_it_likes(text: str, quoted: bool, edg: bool) -> None:
    words = f'"a tile: {text}"' if quoted else f"a tile: {text}"
    program = ProgramInputs((), frozenset(), frozenset, ())
    snippet = f"  #error {words}\n   ^"
    log = (
        f"source.cu(1): catastrophic error: #error directive: {words}\n{snippet}"
        if edg
        else f"source.cu:1:2: error: #error {words}\n    1 | #error {words}\n      |  ^~~~~"
    )
    assert ended(1, log, program=program) == Cause.SOURCE


def test_the_time_limit_is_known_better_than_the_signal_that_enforced_it() -> None:
    assert ended(-9, "error: half a line", timed_out=True) == Cause.TIME


def test_a_tool_that_cannot_be_started() -> None:
    causes_by_number = {errno.ENOENT: Cause.TOOL, errno.EACCES: Cause.TOOL}
    causes_by_number |= {errno.ENOMEM: Cause.MEMORY, errno.ENOSPC: Cause.DISK}
    for number, cause in causes_by_number.items():
        error = make_start_error("ld", OSError(number, os.strerror(number), "/usr/bin/ld"))
        assert (error.cause, error.reason[:21]) == (cause, "ld cannot be started:")


def test_only_the_source_and_the_limits_make_a_result() -> None:
    results = {cause for cause in Cause if cause.status in (Status.FAILED, Status.PRUNED)}
    assert results == {Cause.SOURCE, Cause.CHECK, Cause.LIMIT}


def test_of_a_line_of_any_length_no_more_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler quotes a source's words, and a template may make one of a million letters."""
    long, lengths = "e" * 1_000_000, list[int]()
    pattern = SimpleNamespace(search=lambda text: lengths.append(len(text)))
    monkeypatch.setattr(causes, "_ANY_ACCIDENT", pattern)
    for log in (long, f"s.cu(3): error: identifier {long} is undefined", f"x: {long}: No such"):
        causes.find_diagnosis(log, None)
    assert 0 < sum(lengths) < 10_000
