"""Devices, and the rules by which compiled code runs on a device, with a reason for each verdict.

The CUDA driver is called only for facts about a GPU, because a process that has called it can no
longer fork workers that use it. The answers are cached for this process, not for its children.

`can_run` has NVIDIA's rules (CUDA C++ Programming Guide, "Binary Compatibility", "PTX
Compatibility" and "Architecture-specific / Family-specific features"). SASS without a suffix: same
major version, equal or higher minor. `f`: the same family, equal or higher minor. `a`: that
architecture alone. PTX without a suffix: any equal or later device, compiled by the driver; with
one, as the SASS. A family is a major version so far. An architecture outside of `KNOWN_ARCHS` runs
code for itself only: an error message is better than a wrong number.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from typing import Literal, NamedTuple

from tilusbuild.runtime.errors import DriverError
from tilusbuild.runtime.process import process
from tilusbuild.runtime.regular import open_file, try_list

CPU_KIND, CUDA_KINDS = 1, (2, 13)
"""DLPack's device types: the host, and memory of CUDA, managed or not."""
_HOST_KINDS = (CPU_KIND, 3)


class Device(NamedTuple):
    """A device that kernels run on: the host or a GPU."""

    kind: str
    """ "cpu" or "cuda"."""
    ordinal: int
    name: str
    arch: str
    """ "cpu", or the compute capability as nvcc spells it: "sm_90"."""
    driver: int = 0
    """The CUDA version that the driver supports, as the driver returns it: 13000 is 13.0."""

    def __str__(self) -> str:
        gpu = f"cuda:{self.ordinal} ({self.name}, {self.arch})"
        return self.name if self.kind == "cpu" else gpu

    def make_fingerprint(self, script: str) -> dict[str, str]:
        """Return the fields that a dispatch table's fingerprint must equal to hold on this
        device."""
        return {"script": script, "device": self.name, "arch": self.arch}


@lru_cache(maxsize=1)
def get_cpu() -> Device:
    """Return the host, named as in /proc/cpuinfo."""
    # Arm's kernels print no model name.
    name = _read_cpu_field("model name") or f"{os.uname().machine} cpu"
    return Device("cpu", 0, name, "cpu")


def explain_cpu_refusal(features: frozenset[str]) -> str | None:
    """Return why this CPU does not run code that uses these features; None if it does."""
    available = _list_cpu_features() if features else frozenset()
    missing = sorted(features - available)
    # Without features that can be read, as of an emulated CPU, the CPU itself decides.
    if not missing or not available:
        return None
    remedy = "build it with an older host-march or fewer -m flags"
    return f"made for a CPU with {', '.join(missing)}: {remedy}"


@lru_cache(maxsize=1)
def _list_cpu_features() -> frozenset[str]:
    return frozenset(_read_cpu_field("flags").replace("_", "").split())


def _read_cpu_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo; "" without it."""
    # Line by line: the system asks each CPU, which takes milliseconds where there are hundreds.
    with suppress(OSError), open_file("/proc/cpuinfo") as file:
        for line in file:
            # Such as "model name\t: AMD EPYC 9654".
            key, _, value = line.decode("utf-8", "replace").partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def parse_dlpack_kind(dlpack: tuple[int, int]) -> str | None:
    """Return "cpu" or "cuda" for the result of `__dlpack_device__`; None for any other device
    type."""
    kind = int(dlpack[0])
    if kind in _HOST_KINDS:
        return "cpu"
    return "cuda" if kind in CUDA_KINDS else None


def may_have_cuda() -> bool:
    """Return whether /dev has a device file of NVIDIA. The driver is not called."""
    names = try_list("/dev")
    # `nvidia0`, `nvidia1`, …; Windows' Linux has the one device `dxg`.
    numbers = (name.removeprefix("nvidia") for name in names if name.startswith("nvidia"))
    return "dxg" in names or any(map(str.isdigit, numbers))


def get_gpu(index: int) -> Device:
    """Return a GPU by its number, as the driver describes it. Raises `DriverError`."""
    # The process id is part of the key: the driver's answers from before a fork do not hold in the
    # child.
    key = (os.getpid(), index)
    with process.device_lock:
        device: Device | None = process.devices.get(key)
        if device is None:
            device = process.devices[key] = _query_gpu(index)
        return device


def find_first_gpu() -> Device | None:
    """Return cuda:0; None without one."""
    try:
        return get_gpu(0) if may_have_cuda() else None
    except DriverError:
        return None


def has_one_gpu() -> bool:
    """Return whether cuda:0 is the only GPU."""
    try:
        get_gpu(1)  # the driver's numbers have no gaps
    except DriverError:
        return True
    return False


def _query_gpu(index: int) -> Device:
    """Initialize the driver and return a GPU by its number. Raises `DriverError`."""
    # Imported here: ctypes costs milliseconds, and most loads never ask the driver.
    from tilusbuild.runtime.cuda_driver import CudaDriver

    driver = CudaDriver()
    driver.call_function("cuInit", 0)
    handle = driver.get_device(index)
    name, arch = driver.get_name(handle), driver.get_arch(handle)
    return Device("cuda", index, name, arch, driver.get_version())


CodeKind = Literal["sass", "ptx"]

KNOWN_ARCHS = frozenset(
    ["cpu"]
    + [f"sm_{n}" for n in (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89)]
    + [f"sm_{n}{s}" for n, s in ((90, ""), (90, "a"))]
    + [f"sm_{n}{s}" for n in (100, 101, 103, 110, 120, 121) for s in ("", "a", "f")]
)
"""Architectures whose rules are known; a test holds it to the builder's table."""


class DeviceVerdict(NamedTuple):
    """Whether code runs on a device, and the rule that decides."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


def can_run(code: str, device: str, kind: CodeKind = "sass") -> DeviceVerdict:
    """Return whether an image for the architecture `code` runs on `device` (sm_ and its compute
    capability). A suffix of the device is ignored.

    - Unknown code runs on its own architecture only, and on an unknown device no other code does,
      except for PTX without a suffix.
    - Host code runs on the cpu only, and no other code runs there.
    - PTX without a suffix runs on an equal or later device.
    - Code with the suffix `a` runs on its own architecture only.
    - Other code runs in its family (suffix `f`) or major version, from its minor version on.
    """
    if code not in KNOWN_ARCHS:
        number = parse_arch_number(code)
        if number and number == parse_arch_number(device):
            return DeviceVerdict(True, f"{code} code runs on sm_{number}")
        why = f'unknown architecture "{code}": nothing is known about where it runs'
        return DeviceVerdict(False, why)
    if "cpu" in (code, device) and device in KNOWN_ARCHS:
        same = code == device
        return DeviceVerdict(same, "host code" if same else f"{code} code is not for {device}")
    number, suffix = _split_arch(code)
    device_number, device_suffix = _split_arch(device)
    # Only for PTX without a suffix does NVIDIA promise that it runs on GPUs that do not exist yet.
    is_portable_ptx = kind == "ptx" and not suffix
    runs_as_ptx = is_portable_ptx and device_number >= number > 0
    if device not in KNOWN_ARCHS and (not runs_as_ptx or device_suffix):
        unknown = f'unknown architecture "{device}": whether {code} code runs on it is not known'
        return DeviceVerdict(False, unknown)
    label = f"{code} {'PTX' if kind == 'ptx' else 'code'}"
    device_arch = f"sm_{device_number}"
    if runs_as_ptx:
        return DeviceVerdict(True, f"{label} is compiled by the driver for {device_arch}")
    if is_portable_ptx:
        why = f"{label} runs on sm_{number} and later, not on {device_arch}"
        return DeviceVerdict(False, why)
    if suffix == "a":
        why = f"{label} runs on sm_{number} only"
        if number == device_number:
            return DeviceVerdict(True, why)
        return DeviceVerdict(False, f"{why}, not {device_arch}")
    # The last digit is the minor version: sm_103 is 10.3.
    major, minor = divmod(number, 10)
    device_major, device_minor = divmod(device_number, 10)
    rule = "its family, from its own minor version up" if suffix else "the same major version"
    if major != device_major:
        return DeviceVerdict(False, f"{label} runs on {rule} ({major}.x), not on {device_arch}")
    if device_minor < minor:
        why = f"{label} needs minor version {minor} or higher; {device_arch} is older"
        return DeviceVerdict(False, why)
    return DeviceVerdict(True, f"{label} runs on {rule} ({major}.{minor} and higher)")


def rank_image(code: str, device: str, kind: CodeKind = "sass") -> int:
    """Return the rank of an image that can run on the device; the least is the best.

    0: suffix `a`; 1: the exact architecture; 2: suffix `f`; 3: an older minor version; 4: PTX. Of
    two images with one rank the newer is better.
    """
    if kind == "ptx":
        return 4  # the last: the driver compiles it at the first load
    number, suffix = _split_arch(code)
    if suffix:
        return 0 if suffix == "a" else 2
    return 1 if number == parse_arch_number(device) else 3


def parse_arch_number(name: str) -> int:
    """Return the digits of an architecture's name; 0 for "cpu" and for an invalid name."""
    return _split_arch(name)[0]


def _split_arch(name: str) -> tuple[int, str]:
    """Return the number and the suffix, `(90, "a")` for `sm_90a`; `(0, "")` for any other name."""
    suffix = name[-1:] if name[-1:] in ("a", "f") else ""
    digits = name.removeprefix("sm_").removesuffix(suffix)
    is_number = digits.isascii() and digits.isdigit()
    # Two digits until sm_90, three since sm_100.
    if name.startswith("sm_") and is_number and 2 <= len(digits) <= 3:
        return int(digits), suffix
    return 0, ""
