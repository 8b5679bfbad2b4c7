"""Runs a CUDA kernel on the CPU (see device.h) with NumPy arrays, in its own process."""

import os
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from support.cuda_on_cpu.translate import translate

HERE = os.path.dirname(os.path.abspath(__file__))
ORDERS = ("forward", "backward", "random")


class KernelError(AssertionError):
    """The kernel did what no GPU allows, or what no GPU promises to get right."""


@dataclass(frozen=True)
class TensorMap:
    """A map of a matrix, which is one of the launch's `mapped`, by its number there."""

    number: int
    tensor: np.ndarray
    box: tuple[int, int]
    """Columns and rows of a tile."""
    swizzle: int = 128

    def tobytes(self) -> bytes:
        rows, columns = self.tensor.shape
        item = self.tensor.itemsize
        return struct.pack("<7I", self.number, columns, rows, *self.box, item, self.swizzle)


@dataclass(frozen=True)
class Launched:
    """What a launch left: the tensors in the order of the arguments, and the counts."""

    tensors: tuple[np.ndarray, ...]
    ldmatrix_conflicts: int
    copy_conflicts: int
    collectives: int


class Kernel:
    def __init__(self, source: str, kernel: str, directory: str):
        """Compiles `source`; files go to `directory`, which is the kernel's own."""
        self._directory = directory
        self._program = os.path.join(directory, "kernel")
        text = os.path.join(directory, "kernel.cc")
        with open(text, "w") as file:
            file.write(translate(source, kernel))
        # The sanitizer finds vector accesses that are not aligned, which a GPU refuses.
        flags = ["-std=c++17", "-O1", "-w", "-fsanitize=alignment", "-fno-sanitize-recover=all"]
        command = ["g++", *flags, f"-I{HERE}", "-o", self._program, text]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KernelError(done.stderr)

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        smem: int,
        arguments: Sequence[Any],
        *,
        mapped: Sequence[np.ndarray] = (),
        late_copies: bool = True,
        order: str = "forward",
        seed: int = 0,
        shift: int = 0,
    ) -> Launched:
        """One launch. Tensors are NumPy arrays, scalars NumPy scalars of the kernel's own types.
        `shift` moves each tensor that many bytes away from its alignment to 256 bytes. `mapped` are
        tensors that the kernel knows by a `TensorMap` only; they come back first.
        """
        sizes = [*grid, 1, 1][:3] + [*block, 1, 1][:3]
        count = len(mapped) + len(arguments)
        job = struct.pack("<11I", *sizes, smem, late_copies, ORDERS.index(order), seed, count)
        for kind, operand in [
            *((2, value) for value in mapped),
            *((None, value) for value in arguments),
        ]:
            tensor = isinstance(operand, np.ndarray)
            data = operand.tobytes()
            job += struct.pack("<IIQ", kind or tensor, shift if tensor else 0, len(data)) + data
        files = [os.path.join(self._directory, name) for name in ("job", "result")]
        with open(files[0], "wb") as file:
            file.write(job)
        done = subprocess.run(
            [self._program, *files], capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise KernelError(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
        with open(files[1], "rb") as file:
            data = file.read()
        tensors, offset = [], 0
        for argument in (*mapped, *arguments):
            if isinstance(argument, np.ndarray):
                flat = np.frombuffer(data, argument.dtype, argument.size, offset)
                tensors.append(flat.reshape(argument.shape))
                offset += argument.nbytes
        return Launched(tuple(tensors), *map(int, done.stdout.split()))
