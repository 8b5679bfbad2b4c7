"""Flags: those of each tool's own `--help`, with values that write, read, run or break out."""

import random
import re
import subprocess
from functools import lru_cache
from typing import Any

from support.hostile.manifests import BASE, TEMPLATE, copied, text
from support.hostile.trial import Trial

_HELPS = (
    ("g++", "--help=common"),
    ("g++", "--help=c++"),
    ("g++", "--help=optimizers"),
    ("g++", "--help=target"),
    ("g++", "--help"),
    ("nvcc", "--help"),
    ("ld", "--help"),
    ("as", "--help"),
)
_PREFIXES = ("", "", "", "-Wl,", "-Wa,", "-Wp,", "-Xcompiler ", "-Xlinker ", "@", "--", "-f")
_VALUES = (
    *("../outside/secret", "@CANARY@", "$(touch @CANARY@)", "`touch @CANARY@`", "; touch @CANARY@"),
    *("/dev/null", "/dev/stdin", "x", "1", "-1", "", " ", "'", '"', "\n"),
    *("|touch @CANARY@", "{cxx}"),
    *("-o@CANARY@", "&&touch @CANARY@", "\\", "a,b", "=", "%s", "../../..", "\x1b[31m", "é"),
)
_KNOWN = (
    *("-MD", "-MF", "-fplugin=", "-wrapper", "-B", "--prefix=", "-imacros", "-include", "-dumpdir"),
    *("-fdump-tree-all", "-aux-info", "-fopt-info=", "-save-temps", "-specs=", "--sysroot=", "-x"),
    *("-l", "-L", "-I", "-iquote", "-isystem", "--options-file", "-optf", "--time", "-ccbin", "-T"),
    *("-fprofile-generate=", "-fprofile-use=", "-fmodule-mapper=", "-o", "-c", "-E", "-S", "-###"),
)


@lru_cache(maxsize=1)
def options() -> tuple[str, ...]:
    """Return the options that the tools of this machine say they have."""
    names = set(_KNOWN)
    for command in _HELPS:
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=30
            )
        except OSError:
            continue
        names.update(re.findall(r"(?<![\w-])--?[A-Za-z][\w+-]*=?", result.stdout))
    return tuple(sorted(names))


def flag(rng: random.Random) -> str:
    """Return one word."""
    word = rng.choice(_PREFIXES) + rng.choice(options())
    if rng.random() < 0.6:
        word += rng.choice(("", "=", ",", " ")) + rng.choice(_VALUES)
    return word


def trial(rng: random.Random) -> Trial:
    """Return a build with odd flags, defines and include directories; a tenth really compiles."""
    data: dict[str, Any] = copied(BASE)
    words = [flag(rng) for _ in range(rng.randint(1, 3))]
    words += [rng.choice(_VALUES)] * (rng.random() < 0.3)
    kind = rng.random()
    if kind < 0.6:
        data["target"]["cpu"]["flags"] = words
    elif kind < 0.7:
        data["build"]["flags"] = words
    elif kind < 0.9:
        name = rng.choice(("ZZ", "a b", "A(x)", "-", "$(x)", ""))
        data["build"]["defines"] = {name: rng.choice((*_VALUES, *words))}
    else:
        data["build"]["include-dirs"] = words
    build = ("build", "-q", "--level", "0") if rng.random() < 0.3 else ("plan",)
    return Trial(
        build,
        {"project/tilus.toml": text(data).encode(), "project/scale.cu.j2": TEMPLATE},
        places=("tilus.toml", "scale"),
    )
