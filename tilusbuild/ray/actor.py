"""The actor of a device: a `DeviceBench` on a node, with its own copies of libraries and cases."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilusbuild._version import __version__
from tilusbuild.process.local import LocalRunner
from tilusbuild.state.files import write_output
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.tune.bench.bench import Answer, DeviceBench
from tilusbuild.tune.bench.work import Candidate, Case


class DeviceActor:
    """The device that Ray has given to this process."""

    def __init__(self, kind: str, limit: float, warmup: int) -> None:
        self._root = TemporaryDirectory("ray").__enter__().path
        self._cases: dict[str, str] = {}
        # Ray sets CUDA_VISIBLE_DEVICES, so that the GPU is the first one.
        self._bench = DeviceBench(LocalRunner(), kind, 0, self._cases, limit=limit, warmup=warmup)

    def describe_device(self) -> dict[str, Any]:
        """Return the facts of the device, and the version of tilusbuild."""
        return {**self._bench.describe_device(), "version": __version__}

    def add_case(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Write the files of a case, in place of the last one's. Raises `OSError`."""
        for directory in self._cases.values():
            shutil.rmtree(directory)
        self._cases.clear()
        directory = os.path.join(self._root, digest)
        os.mkdir(directory)
        for name, content in files.items():
            write_output(os.path.join(directory, name), content)
        self._cases[digest] = directory

    def add_library(self, program: str, content: bytes) -> None:
        """Write the library of a program, by its hash. Raises `OSError`."""
        write_output(self._get_library_path(program), content)

    def check_program(self, case: Case, program: Candidate, number: int) -> Answer:
        """Check a program as `DeviceBench` does."""
        return self._bench.check_program(case, self._localize(program), number)

    def collect_outputs(
        self, case: Case, program: Candidate, number: int
    ) -> tuple[Answer, list[Mapping[str, bytes]]]:
        """Check a program, but for its outputs, and return the different ones."""
        outputs: list[Mapping[str, bytes]] = []
        answer = self.check_program(replace(case, find_mismatch=outputs.append), program, number)
        return answer, outputs

    def end_worker(self) -> None:
        """End the worker that runs programs; the next question starts another one."""
        self._bench.close()

    def time_program(self, case: Case, program: Candidate, number: int, expected: float) -> Answer:
        """Take a sample of a program as `DeviceBench` does."""
        return self._bench.time_program(case, self._localize(program), number, expected)

    def _localize(self, program: Candidate) -> Candidate:
        return replace(program, library=self._get_library_path(program.hash))

    def _get_library_path(self, program: str) -> str:
        return os.path.join(self._root, f"{program}.so")
