"""Compile a program again from its entry, and compare the product byte for byte.

A program is compiled as a build compiles it: by this machine's pipeline (`plan/recorded.py`), in
the sandbox, from `options.txt` and the sources. Nothing that came with it is run: `compile.sh` is
for people. The result is compared and removed.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.cache import layout
from tilusbuild.cache.entries import get_product, read_meta
from tilusbuild.compile.model import OBJECT
from tilusbuild.compile.pipelines import PIPELINES
from tilusbuild.compile.program import compile_program
from tilusbuild.compile.steps import LAUNCHER, find_launcher
from tilusbuild.errors import InputError, input_error
from tilusbuild.plan.identity import parse_section
from tilusbuild.plan.recorded import ForeignTextsError, restore_recipe
from tilusbuild.process.local import LocalRunner
from tilusbuild.remote.archive import Archive
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.envelope import StepStore
from tilusbuild.state.files import sha256_file
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.status import Status
from tilusbuild.toolchain import DigestMemory, Toolchain, ToolchainRequest, discover_toolchain


class RebuildResult(Struct, frozen=True):
    """A program that was compiled again. `error` is why it could not be."""

    program: str
    recorded_sha256: str
    rebuilt_sha256: str | None
    error: str = ""
    missing_tool: str = ""
    """The tool that made the recorded product, if this machine does not have it."""

    @property
    def same(self) -> bool:
        """Whether both products have the same bytes."""
        return self.rebuilt_sha256 == self.recorded_sha256

    def __str__(self) -> str:
        entry = f"{layout.PROGRAMS}/{self.program}"
        if self.rebuilt_sha256 is None:
            return f"{entry} does not compile here: {self.error}"
        if self.same:
            return f"{entry} is reproduced"
        text = f"{entry}: made sha256 {self.rebuilt_sha256}, recorded {self.recorded_sha256}"
        if not self.missing_tool:
            return text
        return f"{text}; that needs {self.missing_tool}, which was not found: set NVCC or CXX"


class Rebuilder:
    """Compiles programs again. May be used from several threads."""

    def __init__(self, root: str, runner: LocalRunner) -> None:
        """`root` is the tree that has the include directories and the objects that are linked."""
        self._runner = runner
        self._root = root
        self._launchers = StepStore()
        self._memory = DigestMemory()
        self._guard = threading.Lock()
        self._toolchains: dict[ToolchainRequest, Toolchain] = {}

    def rebuild_program(self, program: str, digest: str, entry: str = "") -> RebuildResult:
        """Compile a program again, and compare its product with the recorded digest. `entry` is the
        path of its entry; "" stands for the entry in the tree. A program that cannot be compiled
        has an `error` in the result. Raises `CancelledError`."""
        try:
            rebuilt_digest, missing_tool = self._compile_entry(entry or self._locate_entry(program))
        except (OSError, ForeignTextsError, InputError) as error:
            return RebuildResult(program, digest, None, str(error))
        return RebuildResult(program, digest, rebuilt_digest, missing_tool=missing_tool)

    def verify_archive(self, program: str, archive: Archive) -> str | None:
        """Return how a remote's product differs from this machine's; None for the same bytes.

        Raises `InputError` if the program cannot be compiled, `CancelledError` and `OSError`.
        """
        with TemporaryDirectory("verify") as directory:
            entry = directory.path
            for name, source in archive.files.items():
                path = os.path.join(entry, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "xb") as file:
                    file.write(source if isinstance(source, bytes) else read_bytes(source))
            product = get_product(read_meta(entry, program))
            result = self.rebuild_program(program, product.sha256 or "", entry)
        if result.rebuilt_sha256 is None:
            raise input_error(f"it cannot be compiled again: {result.error}")
        return None if result.same else f"{product.name} has other bytes"

    def _locate_entry(self, program: str) -> str:
        return os.path.join(self._root, layout.PROGRAMS, program)

    def _compile_entry(self, entry: str) -> tuple[str, str]:
        """Compile an entry in a temporary directory. Return the digest of the new product, and the
        recorded tool that this machine does not have, "" without one.

        Raises `OSError`, `InputError`, `CancelledError`; `ForeignTextsError` if it does not compile
        or an object that it links is missing.
        """
        program_txt, options_txt, compile_sh = (
            str(read_bytes(os.path.join(entry, name)), "utf-8", "surrogateescape")
            for name in (layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.COMPILE_SH)
        )
        files = self._read_sources(entry, parse_section(options_txt, "generated"), compile_sh)
        recipe = restore_recipe(program_txt, options_txt, files, compile_sh)
        objects = [
            os.path.join(self._locate_entry(program), "module", OBJECT)
            for program in recipe.objects
        ]
        missing = [path for path in objects if not os.path.isfile(path)]
        if missing:
            raise ForeignTextsError(
                f"{len(missing)} of the objects that it links are missing: a package holds none;"
                " verify the cache that built them"
            )
        toolchain = self._find_toolchain(options_txt)
        files |= {name: text.encode() for name, text in recipe.pipeline.fixed_files.items()}
        include: str | None = None
        if recipe.includes.digest:
            include = os.path.join(self._root, layout.INCLUDE, recipe.includes.digest)
        with TemporaryDirectory("rebuild") as directory:
            stage = directory.path
            os.makedirs(os.path.join(stage, "module"))
            for name, data in files.items():
                with open(os.path.join(stage, "module", name), "wb") as file:
                    file.write(data)
            scope = self._runner.open_scope()
            compiled = compile_program(
                recipe, toolchain, stage, include, scope, self._launchers, objects=objects
            )
            if compiled.status != Status.BUILT:
                raise ForeignTextsError(compiled.reason)
            digest = sha256_file(os.path.join(stage, "module", recipe.pipeline.product))
        fingerprint = recipe.pipeline.select_fingerprint(recipe, toolchain)
        return digest, _find_other_tool(options_txt, fingerprint)

    def _read_sources(
        self, entry: str, generated: Mapping[str, str], compile_sh: str
    ) -> dict[str, bytes]:
        """Return the bytes of the source, of the `generated` files and of the launcher that
        `compile_sh` names, by file name. A missing file is left out."""
        include = os.path.join(self._root, layout.INCLUDE)
        digests = layout.find_header_digests(compile_sh.encode("utf-8", "replace"))
        sources = {pipeline.source_name for pipeline in PIPELINES}
        paths = {name: os.path.join(entry, "module", name) for name in (*generated, *sources)}
        # A launcher is shared by the programs of a script, so it is not in an entry but in one of
        # the include directories that the script names.
        directories = (os.path.join(include, digest) for digest in digests)
        paths[LAUNCHER] = find_launcher(directories) or ""
        return {
            name: read_bytes(path)
            for name, path in paths.items()
            if "/" not in name and os.path.isfile(path)
        }

    def _find_toolchain(self, options_txt: str) -> Toolchain:
        """Return the compilers that NVCC and CXX name; else those of the recorded version, else any
        of this machine. Raises `InputError`."""
        # A line of the section is such as "nvcc 12.8.93 …": a tool, its version, digests.
        recorded = parse_section(options_txt, "toolchain")
        tool = next((name for name in ("nvcc", "nvrtc") if name in recorded), None)
        nvcc = shutil.which(os.environ.get("NVCC") or "")
        if nvcc is None and tool is not None:
            version = recorded[tool].split(" ")[0]
            nvcc = f"=={version}"
        request = ToolchainRequest(
            nvcc=nvcc,
            needs_cuda=tool == "nvcc",
            needs_nvrtc=tool == "nvrtc",
            cxx=os.environ.get("CXX"),
        )
        # The guard is held while tools run, so that no two threads discover the same ones.
        with self._guard:
            if request not in self._toolchains:
                self._toolchains[request] = self._discover_tools(request)
        return self._toolchains[request]

    def _discover_tools(self, request: ToolchainRequest) -> Toolchain:
        """Return the requested tools, else those of any version. Raises `InputError`."""
        with suppress(InputError):
            return discover_toolchain(request, os.environ, self._runner, self._memory)
        request = replace(request, nvcc=None)
        return discover_toolchain(request, os.environ, self._runner, self._memory)


def _find_other_tool(options_txt: str, local_lines: Iterable[str]) -> str:
    """Return the name and version of the first recorded tool whose fingerprint differs from that of
    this machine's tool; "" without one. `local_lines` are this machine's fingerprints, in the form
    of the section "toolchain"."""
    recorded = parse_section(options_txt, "toolchain")
    local = parse_section("\n".join(("[toolchain]", *local_lines)), "toolchain")
    for name, fingerprint in recorded.items():
        if local.get(name, fingerprint) != fingerprint:
            version = fingerprint.split(" ")[0]
            return f"{name} {version}"
    return ""
