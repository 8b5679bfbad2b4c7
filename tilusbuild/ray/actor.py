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
        self._case_directory = os.path.join(self._root, "case")
        os.mkdir(self._case_directory)
        # Ray sets CUDA_VISIBLE_DEVICES, so that the GPU is the first one.
        self._bench = DeviceBench(LocalRunner(), kind, 0, limit=limit, warmup=warmup)

    def describe_device(self) -> dict[str, Any]:
        """Return the facts of the device, and the version of tilusbuild."""
        return {**self._bench.describe_device(), "version": __version__}

    def add_case(self, files: Mapping[str, bytes]) -> None:
        """Write the files of a case, in place of the last one's. Raises `OSError`."""
        shutil.rmtree(self._case_directory)
        os.mkdir(self._case_directory)
        for name, content in files.items():
            write_output(os.path.join(self._case_directory, name), content)

    def add_library(self, program: str, content: bytes) -> None:
        """Write the library of a program, by its hash. Raises `OSError`."""
        write_output(self._get_library_path(program), content)

    def check_program(self, case: Case, program: Candidate, number: int) -> Answer:
        """Check a program as `DeviceBench` does."""
        return self._bench.check_program(*self._localize(case, program), number)

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
        return self._bench.time_program(*self._localize(case, program), number, expected)

    def _localize(self, case: Case, program: Candidate) -> tuple[Case, Candidate]:
        """Return a case and a program with the paths of their files on this node."""
        library = self._get_library_path(program.hash)
        return replace(case, directory=self._case_directory), replace(program, library=library)

    def _get_library_path(self, program: str) -> str:
        return os.path.join(self._root, f"{program}.so")
