"""Names of architectures: parse and combine them, write nvcc's options, find this machine's.

A name must be nvcc's spelling of a real architecture (`sm_90a`), or `cpu`. Any other name raises
`ArchError`, whose `hint` says what would be right: no spelling is guessed silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilusbuild.arch.table import ARCHS, CPU, LIMITS, Arch
from tilusbuild.errors import did_you_mean

# A name in a spelling that is not nvcc's: "compute_90a", "SM 9.0", "cc8.6", "90+ptx".
_OTHER_SPELLING = re.compile(
    r"(?:sm_?|compute_?|lto_?|cc)?\s*(\d{1,2})\.?(\d)\s*([a-z]?)\+?(?:ptx)?", re.IGNORECASE
)


_ARCH_OF_PRODUCT = {
    "v100|volta": "sm_70", r"t4|turing|rtx20\d0|gtx16\d0": "sm_75",
    "a100|a30|a800|ampere": "sm_80", r"a10g?|a16|a2|a40|rtxa\d000|rtx30\d0": "sm_86",
    "orin": "sm_87", r"l4|l20|l40s?|ada|rtx\d000ada|rtx40\d0": "sm_89",
    "g?h100|g?h200|h20|h800|hopper": "sm_90a", "g?b100|g?b200|blackwell": "sm_100a",
    "g?b300": "sm_103a", "thor": "sm_110a", r"rtxpro\d000|rtx50\d0": "sm_120a",
    "gb10|spark": "sm_121a",
}  # fmt: skip
"""Architectures by patterns of the names of GPUs and generations that people write for them, for
hints. Source: https://developer.nvidia.com/cuda-gpus."""
_MAKER = re.compile(r"nvidia|geforce|tesla|quadro|jetson|dgx|agx|[\s_-]")
_MODEL_END = r"(ti|super|laptop|sxm\d|pcie|nvl|d?\d+gb|hbm\d|generation|gpu)*"
"""What follows a product's name and says nothing of the architecture: of A100-SXM4-80GB."""
_NEW_NAME = re.compile(r"sm_([5-9]\d|1\d\d)([af]?)")
_NUMBERS = frozenset(arch.number for arch in ARCHS.values())
_NO_LIMITS: Mapping[str, int] = {}


class ArchError(ValueError):
    """A name is not an architecture, or architectures cannot be combined.

    `hint` says what would be right, or is None.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def list_known_names() -> tuple[str, ...]:
    """Return the names in the table of limits."""
    return (*ARCHS, CPU.name)


def parse_arch(name: str, limits: Mapping[str, int] = _NO_LIMITS) -> Arch:
    """Return the architecture with this name. Raises `ArchError`.

    A number outside of the table may be of a GPU that only nvcc knows. Its `LIMITS` are those of
    `limits`; the rest is unknown, and larger than any that a check compares it with.
    """
    if name == CPU.name:
        return CPU
    if name in ARCHS:
        return ARCHS[name]
    match = _NEW_NAME.fullmatch(name)
    if match is None or int(match[1]) in _NUMBERS:
        raise ArchError(f'unknown architecture "{name}"', _make_name_hint(name))
    known = {key: limits.get(key, getattr(CPU, key)) for key in LIMITS}
    return Arch(name=name, number=int(match[1]), suffix=match[2], since=(0, 0), **known)


def _make_name_hint(name: str) -> str | None:
    """Return a hint for an unknown name: nvcc's spelling, the variants that exist, a similar name,
    or all known numbers."""
    match = _OTHER_SPELLING.fullmatch(name.strip())
    if match is None:
        if name.strip().lower() == "native":
            return "a package must run elsewhere: name the architecture, as in sm_90a"
        product = _MAKER.sub("", name.lower())
        for pattern, arch in _ARCH_OF_PRODUCT.items():
            if re.fullmatch(rf"({pattern}){_MODEL_END}", product):
                return f'write "{arch}"'
        return (
            did_you_mean(name, list_known_names(), likeness=0.7)
            or "as nvcc spells it: sm_80, sm_90a, or cpu"
        )
    # "9.0a" is sm_90a: the last digit is the minor version.
    number, suffix = match[1] + match[2], match[3].lower()
    exact, base = f"sm_{number}{suffix}", f"sm_{number}"
    if exact in ARCHS:
        return f'write "{exact}"' + (", and ptx = true" if "+" in name else "")
    if base in ARCHS:
        variants = [arch.name for arch in ARCHS.values() if arch.number == int(number)]
        return f"there is {' and '.join(variants)}"
    if _NEW_NAME.fullmatch(exact):
        return f'write "{exact}", if nvcc knows it'
    known_bases = dict.fromkeys(f"sm_{arch.number}" for arch in ARCHS.values())
    return f"known: {', '.join(known_bases)}"


def combine_limits(archs: Sequence[Arch]) -> Mapping[str, int]:
    """Return limits that hold on all of several architectures: the smallest value of each that is
    known for all.

    Of `smem_granularity` and `smem_reserved`, which take memory from a block, the largest value.
    Raises `ValueError` without architectures.
    """
    if not archs:
        raise ValueError("no architecture to combine")
    tables = [arch.list_attributes() for arch in archs]
    limits: dict[str, int] = {}
    for key in (key for key in tables[0] if all(key in table for table in tables)):
        takes_memory = key in ("smem_granularity", "smem_reserved")
        choose = max if takes_memory else min
        limits[key] = choose(table[key] for table in tables)
    return limits


def list_embedded_archs(archs: Iterable[Arch], *, ptx: bool) -> Iterator[tuple[Arch, bool]]:
    """Yield (architecture, whether its PTX is embedded) for the code of one library.

    Architectures are sorted by number, so that the order in a manifest does not matter. PTX is
    embedded, with `ptx`, for the newest architecture without a suffix: PTX of an architecture with
    a suffix runs on no later GPU.
    """
    ordered = sorted(set(archs), key=lambda arch: (arch.number, arch.suffix))
    newest = next((arch for arch in reversed(ordered) if not arch.suffix), None)
    yield from ((arch, ptx and arch is newest) for arch in ordered)


def format_gencode(archs: Sequence[Arch], *, ptx: bool) -> tuple[str, ...]:
    """Return the `-gencode` arguments for code of each architecture. With `ptx`, the newest one
    without a suffix has its PTX embedded too.

    Each architecture is compiled once, from its own PTX: `-arch=sm_90a` would run the front end
    twice and embed three images. Raises `ArchError` if PTX is asked for and all have a suffix, and
    `ValueError` for `cpu` or no architecture.
    """
    codes = tuple(list_embedded_archs(archs, ptx=ptx))
    if not codes or any(arch.is_cpu for arch, _ in codes):
        raise ValueError("gencode is for GPU architectures")
    if ptx and not any(has_ptx for _, has_ptx in codes):
        names = ", ".join(arch.name for arch, _ in codes)
        suggestion = " or ".join(dict.fromkeys(f"sm_{arch.number}" for arch, _ in codes))
        raise ArchError(
            f"ptx = true has nothing to embed for {names}",
            "PTX of an `a` or `f` architecture does not run on later GPUs; "
            f"add {suggestion} to the target's archs, or leave ptx out",
        )
    arguments: list[str] = []
    for arch, has_ptx in codes:
        code = f"[{arch.name},{arch.virtual}]" if has_ptx else arch.name
        arguments += ["-gencode", f"arch={arch.virtual},code={code}"]
    return tuple(arguments)


DEVICES = ("/dev/nvidiactl", "/dev/dxg", *(f"/dev/nvidia{number}" for number in range(16)))
"""Device files. They appear, vanish or change when the GPUs of the machine change."""


def find_local_archs() -> tuple[str, ...]:
    """Return the names of the architectures of this machine's GPUs, each once, by their numbers.

    An architecture has its suffix `a` if there is one, since code for this machine may use all its
    features. One that is not in `ARCHS` is among them. The result is () without a GPU. NVIDIA's
    management library is asked, which starts no driver; it takes 20 ms on a machine with a GPU.
    """
    import ctypes  # here, since most commands look for no GPU

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ()
    capabilities: set[int] = set()  # 90 for a compute capability of 9.0
    count, gpu, major, minor = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    if library.nvmlInit_v2():  # nvmlReturn_t: 0 is success, here and below
        return ()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        # A GPU that fails is skipped: it may be lost, or belong to another container.
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)):
            continue
        pointers = ctypes.byref(major), ctypes.byref(minor)
        if not library.nvmlDeviceGetCudaComputeCapability(gpu, *pointers):
            capabilities.add(10 * major.value + minor.value)
    library.nvmlShutdown()
    bases = (f"sm_{capability}" for capability in sorted(capabilities))
    return tuple(f"{base}a" if f"{base}a" in ARCHS else base for base in bases)
