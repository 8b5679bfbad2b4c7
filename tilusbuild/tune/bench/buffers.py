"""The tensors of a case in the memory of a device, and the check of what a call left in them.

Every tensor lies between two guards of known bytes. A call is right when the outputs are right, the
inputs are as they were, and the guards are whole: a kernel that writes beside its tensors is wrong
even where the numbers come out.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

from tilusbuild.tune.bench.elements import compare
from tilusbuild.tune.bench.work import Case, CaseArgument

GUARD = 4096
"""Bytes before and after each tensor: whole pages, so that the tensors stay aligned."""
_PATTERN = 0xA5


class Memory(Protocol):
    """The memory of a device."""

    def allocate(self, size: int) -> int: ...
    def write(self, address: int, data: bytes) -> None: ...
    def read(self, address: int, size: int) -> bytes: ...
    def copy(self, to: int, source: int, size: int) -> None: ...


class WrongResultError(Exception):
    """A call left something that it should not have. `error` is the largest absolute difference of
    the outputs that were compared, 0 where none was."""

    def __init__(self, message: str, error: float = 0.0) -> None:
        super().__init__(message)
        self.error = error


class _Tensor:
    __slots__ = ("address", "argument", "original", "pristine", "want")

    def __init__(
        self, argument: CaseArgument, address: int, pristine: int, original: bytes
    ) -> None:
        self.argument = argument
        self.address = address
        self.pristine = pristine
        self.original = original
        self.want: bytes | None = None


class Buffers:
    """All tensors of a case, allocated. Raises `OSError` when a file of the case is missing."""

    def __init__(self, memory: Memory, case: Case, directory: str) -> None:
        self._memory = memory
        self._tensors: dict[str, _Tensor] = {}
        self._right: dict[bytes, float] = {}
        for argument in case.arguments:
            if argument.shape is not None:
                self._tensors[argument.name] = self._made(argument, directory)
        self.addresses = [
            self._tensors[a.name].address if a.shape is not None else 0 for a in case.arguments
        ]

    def _made(self, argument: CaseArgument, directory: str) -> _Tensor:
        with open(os.path.join(directory, f"{argument.name}.in"), "rb") as file:
            data = file.read()
        if len(data) != argument.bytes:
            raise OSError(f"{argument.name}.in has {len(data)} bytes, not {argument.bytes}")
        whole = bytes([_PATTERN]) * GUARD
        end = whole + bytes([_PATTERN]) * (-len(data) % GUARD)
        base = self._memory.allocate(len(data) + len(whole) + len(end))
        self._memory.write(base, whole + data + end)
        pristine = base
        if argument.out:
            pristine = self._memory.allocate(max(1, len(data)))
            self._memory.write(pristine, data)
        tensor = _Tensor(argument, base + GUARD, pristine, data)
        if argument.want is not None:
            with open(os.path.join(directory, f"{argument.name}.want"), "rb") as file:
                tensor.want = file.read()
        return tensor

    def restore(self) -> None:
        """Give the outputs what they held at first: noise, or what the kernel adds to."""
        for tensor in self._tensors.values():
            if tensor.argument.out and tensor.original:
                self._memory.copy(tensor.address, tensor.pristine, len(tensor.original))

    def check(self) -> float:
        """Look at what a call left; the largest error. Raises `WrongResultError`."""
        largest = 0.0
        for tensor in self._tensors.values():
            data = self._guarded(tensor)
            if not tensor.argument.out:
                if data != tensor.original:
                    raise WrongResultError(f"it changed its input {tensor.argument.name}")
                continue
            if tensor.want is not None:
                largest = max(largest, self._compared(tensor, data, tensor.want))
        return largest

    def _guarded(self, tensor: _Tensor) -> bytes:
        size = len(tensor.original)
        found = self._memory.read(tensor.address - GUARD, size + 2 * GUARD)
        for place, guard in (("before", found[:GUARD]), ("after", found[GUARD + size :])):
            if guard.count(_PATTERN) != GUARD:
                raise WrongResultError(f"it wrote {place} the tensor {tensor.argument.name}")
        return found[GUARD : GUARD + size]

    def _compared(self, tensor: _Tensor, data: bytes, want: bytes) -> float:
        """Most schedules give the very same bits: those are compared once."""
        argument = tensor.argument
        known = hashlib.sha256(argument.name.encode() + b"\0" + data).digest()
        if known in self._right:
            return self._right[known]
        error, mismatch = compare(
            argument.name,
            argument.shape or (),
            data,
            argument.dtype,
            want,
            argument.want or argument.dtype,
            argument.rtol,
            argument.atol,
        )
        if mismatch is not None:
            raise WrongResultError(str(mismatch), error)
        self._right[known] = error
        return error
