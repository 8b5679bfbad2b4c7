"""Compilers, assemblers and linkers that do what they should not; the fault is never the program's.

Each fault is one of the faults of `nvcc_journal.cc` or `host_tool.sh`, on the first compile, on the
one that tries it again too, or on several at once. What tools print when the machine fails them is
collected here from strerror and from what nvcc, gcc, ld and sh say."""

import errno
import os
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from support.faults import scenarios
from support.faults.commands import Ended
from support.faults.group import attempt
from support.faults.oracle import Finding
from support.faults.world import World
from support.nvcc_journal import misbehave

SAID = {
    **{errno.errorcode[n]: f"nvcc fatal   : Cannot do that: {os.strerror(n)}" for n in (
        errno.EPERM, errno.ENOENT, errno.EINTR, errno.EIO, errno.ENXIO, errno.E2BIG, errno.ENOEXEC,
        errno.EAGAIN, errno.ENOMEM, errno.EACCES, errno.EBUSY, errno.EXDEV, errno.ENODEV,
        errno.ENFILE, errno.EMFILE, errno.ETXTBSY, errno.EFBIG, errno.ENOSPC, errno.EROFS,
        errno.EMLINK, errno.EPIPE, errno.ENOLCK, errno.ELOOP, errno.ESTALE, errno.EDQUOT,
        errno.ETIMEDOUT, errno.EOVERFLOW,
    )},
    "vfork": "g++: fatal error: cannot execute 'cc1plus': vfork: Resource temporarily unavailable",
    "killed-ld": "collect2: fatal error: ld terminated with signal 9 [Killed]",
    "killed-cc1": "g++: fatal error: Killed signal terminated program cc1plus",
    "no-output-file": "nvcc error   : Could not open output file /tmp/tmpxft_00000001_00000000.ii",
    "no-host": "nvcc fatal   : Failed to preprocess host compiler properties.",
    "no-cicc": "sh: 1: cicc: not found",
    "no-ptxas": "sh: 1: ptxas: Permission denied",
    "ptxas-output": "ptxas fatal   : Output file 'program.cubin' could not be opened",
    "ptxas-memory": "ptxas fatal   : Memory allocation failure",
    "catastrophic": '1 catastrophic error detected in the compilation of "source.cu".',
    "cannot-open": "source.cu: catastrophic error: cannot open source file \"crt/host_config.h\"",
    "segfault": "Segmentation fault (core dumped)",
    "died": "nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)",
    "ice": "source.cu:1:1: internal compiler error: Segmentation fault",
    "license": "nvcc fatal   : license checkout failed",
    "srun": "srun: error: Unable to allocate resources: Requested node is busy",
    "library": "cicc: error while loading shared libraries: libc.so.6: cannot open",
    "nothing": "",
    "nonsense": "something happened",
    "utf-8": "\x80\xff\x00\x1b[2J",
}  # fmt: skip
"""What a tool says, and ends with 1, though nothing is wrong with the source."""

_FAULTS = (
    "crash", "oom", "torn", "other", "empty", "text", "elf", "huge", "folder", "fifo", "link",
    "dangling", "no-output", "255", "137", "stop", "hang", "gone", "daemon", "holder",
    "escaped-holder", "late-writer", "close", "noise", "escapes", "elsewhere", "many", "deep",
    "locked", "nice", "slow", "source", "mask", "say-and-0",
)  # fmt: skip
_TALKATIVE = ("noise", "escapes", "say-and-0")
"""What the tools say is part of a program."""
_SIGNALS = (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 31, 40)
_HOST = ("empty", "text", "no-output", "signal-9", "signal-11", "signal-15", "say")
_HOST_SAID = ("killed-ld", "ENOSPC", "ENOMEM", "EMFILE", "nonsense")
_TIMES = {"once": 1, "twice": 2, "all": 40}


class Compilers:
    """Tools that misbehave."""

    name = "compilers"
    sample = 1

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`nvcc FAULT once|twice|all`, and `TOOL FAULT …` of the host's tools."""
        nvcc = [*_FAULTS, *(f"signal-{number}" for number in _SIGNALS), *(f"say:{n}" for n in SAID)]
        host = [*_HOST[:-1], *(f"say:{name}" for name in _HOST_SAID)]
        for times in _TIMES:
            yield from (f"nvcc {fault} {times}" for fault in nvcc)
            yield from (f"{tool} {fault} {times}" for tool in ("gcc", "as", "ld") for fault in host)

    def run(self, world: World, fault: str) -> list[Finding]:
        tool, what, times = fault.split()
        name, _, key = what.partition(":")

        def command() -> Ended:
            pairs = [(name, SAID.get(key, "well done"))] * _TIMES[times]
            if tool == "nvcc":
                misbehave(world.nvcc, *pairs)
            for number, (_, text) in enumerate(pairs if tool != "nvcc" else ()):
                path = world.toolkit / "host/misbehave" / f"{number:03}-{tool}-{name}"
                path.write_text(text)
            words = ("build", "-j2", "--strict")
            ended = world.run(*words, seconds=60)
            world.obey()
            return ended

        scenario = replace(scenarios.scenarios(world)["cold"], logs=name not in _TALKATIVE)
        return attempt(world, scenario, command)


COMPILERS = Compilers()
