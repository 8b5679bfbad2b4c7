"""A compile of torch's, as a program of the cache: its directories by names, and its job.

A program is content: the source's text, the headers that it can reach, its command without paths,
the compilers. A command that cannot be written without paths is refused with a reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from tilusbuild.builder.project import Project
from tilusbuild.compile.model import HERE, TOOLKIT, Includes, Options, PartOptions, Pipeline, Recipe
from tilusbuild.compile.module import format_options
from tilusbuild.compile.pipelines.library import LIBRARY_PIPELINES
from tilusbuild.compile.reads import detect_landlock
from tilusbuild.errors import InputError
from tilusbuild.plan import identity
from tilusbuild.plan.rendering import RenderedProgram, format_definitions
from tilusbuild.plan.roots import PROJECT, choose_free_name
from tilusbuild.render.closure import Root, make_root
from tilusbuild.render.headers import Headers
from tilusbuild.runtime.regular import read_text
from tilusbuild.signature.model import Signature
from tilusbuild.state.files import sha256_text
from tilusbuild.toolchain import DigestMemory, Toolchain, ToolchainRequest, discover_toolchain
from tilusbuild.toolchain.cuda import is_toolkit
from tilusbuild.torch.command import (
    INCLUDES,
    SYSTEM,
    CompileCommand,
    IncludeDirectory,
    NotCarriedError,
    find_impure_flag,
    find_source_root,
)

_SAFE_NAME = re.compile(r"[\w.+/-]+")
# Such as `/usr/lib/python3/dist-packages/torch/include`.
_PATH_IN_PACKAGE = re.compile(
    r"(?P<base>/.*/(?:site|dist)-packages/(?P<name>\w[\w.-]*))(?:/(?P<path>.*))?"
)


class TorchJob(Struct, frozen=True):
    """A source, as a job of the engine (`engine.interfaces.Job`)."""

    hash: str
    label: str
    script: str
    index: int
    rendered: RenderedProgram
    compile: CompileCommand
    paths: Mapping[str, str]
    """The path of each file and directory, by its name in messages."""
    is_default = is_part = True
    kept_here = unit = ""
    needs = ()

    @property
    def instance(self) -> tuple[str, ...]:
        return (self.script, self.label)

    @property
    def instance_label(self) -> str:
        return self.label

    def render(self) -> RenderedProgram:
        return self.rendered

    def translate_log(self, log: str) -> str:
        """Return a compiler's log with paths in the place of the program's names for files."""
        # Paths of this machine, as torch's own build shows them: editors open them.
        for name, path in self.paths.items():
            replacement = path.replace("\\", r"\\")
            log = re.sub(rf"(?<![\w/.-]){re.escape(name)}(?=[/:(])", replacement, log)
        return log


class TreeDigests(Struct):
    """Digests of files and directories. Each directory is digested once, since every source asks
    for the same."""

    memory: DigestMemory
    digest_by_tree: dict[tuple[str, str], str] = field(default_factory=dict)

    def digest_file(self, path: str) -> str:
        return self.memory.digest_file(path)

    def digest_tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        if (root, label) not in self.digest_by_tree:
            self.digest_by_tree[root, label] = self.memory.digest_tree(root, label, select)
        return self.digest_by_tree[root, label]


class CompilePlanner(Struct):
    """Makes jobs of compile commands. Toolchains and header scans are reused for later commands."""

    project: Project
    project_directory: str
    """The directory to which names of sources in it are relative."""
    trees: TreeDigests
    toolchains: dict[tuple[str, str], Toolchain] = field(default_factory=dict)
    headers: dict[tuple[object, ...], Headers] = field(default_factory=dict)

    def plan_job(self, compile_command: CompileCommand, index: int) -> TorchJob:
        """Return the job of a compile command: its program's texts, toolchain and headers. The
        toolchain and the header scan are kept for later commands. Raises `InputError`, and
        `NotCarriedError` for a command that depends on this machine."""
        base = find_source_root(compile_command.source, self.project_directory)
        script = compile_command.extension
        name = os.path.relpath(compile_command.source, base)
        toolchain = self._find_toolchain(compile_command)
        arguments, roots, trees = _name_directories(compile_command, base, toolchain)
        # Host code that includes the headers of a CUDA toolkit is of the kind "beside": compiled
        # beside the toolkit.
        host_kind = "beside" if TOOLKIT in arguments else "cpu"
        kind = "cuda" if compile_command.nvcc else host_kind
        pipeline = LIBRARY_PIPELINES[kind, "object"]
        impure_flag = find_impure_flag(compile_command)
        if impure_flag and not (toolchain.sandboxed and detect_landlock()):
            raise NotCarriedError(
                f"no hash covers what {impure_flag} does, and this machine has no sandbox"
            )
        text = read_text(compile_command.source, "surrogateescape")
        # The program's file is `source.cu`, and the directive makes messages show the own name.
        source = f"#line 1 {json.dumps(name, ensure_ascii=False)}\n{text}"
        headers = self._find_headers(roots, pipeline, toolchain)
        closure = headers.find_closure("\n".join((source, *format_definitions((), arguments))))
        named = zip(roots, closure.roots, strict=True)
        words = {f"{HERE}/include/{old.name}": f"{HERE}/include/{new.name}" for old, new in named}
        arguments = [words.get(argument, argument) for argument in arguments]
        roots = closure.roots
        seeded = toolchain.cuda is not None and toolchain.cuda.takes_seed
        recipe = Recipe(
            pipeline=pipeline,
            # The arguments have the architectures.
            archs=(),
            ptx=False,
            source=source,
            symbol="",
            signature=Signature(()),
            launch=None,
            constants={},
            includes=Includes(
                closure.digest if closure.headers else None,
                tuple((root.name, root.quoted_only) for root in roots) if closure.headers else (),
            ),
            options=Options(flags=tuple(arguments)),
            part=PartOptions(
                "cu" if compile_command.nvcc else "c++", compile_command.rdc, seeded, written=True
            ),
        )
        program_txt = identity.format_program_text(
            script="",
            entry=("object", name),
            params={"cpu": _digest_cpu()} if compile_command.native else {},
            schedule={},
            derived={},
            signature=(),
            launch=(),
            source=source,
            headers=[(header.sha256, header.name) for header in closure.headers],
        )
        outside = pipeline.list_header_directories(toolchain)
        external_digests = outside.digest_external_headers(closure.external, self.trees)
        options_txt = format_options(recipe, toolchain, external_digests)
        rendered = RenderedProgram(program_txt, options_txt, recipe, toolchain, closure)
        paths = {f"include/{tree}": path for tree, path in trees.items()}
        paths[name] = compile_command.source
        return TorchJob(rendered.hash, name, script, index, rendered, compile_command, paths)

    def _find_toolchain(self, compile_command: CompileCommand) -> Toolchain:
        """Return the compilers of a command, found in PATH and asked for their version once. Raises
        `NotCarriedError` for a compiler that is not found or not supported."""
        nvcc = shutil.which(compile_command.nvcc or _find_nvcc_of_headers(compile_command)) or ""
        host = _find_gxx(compile_command.compiler)
        if not host or (compile_command.nvcc and not nvcc):
            raise NotCarriedError(
                f"{compile_command.compiler or 'its compiler'} cannot be found, or is not g++"
            )
        if (nvcc, host) not in self.toolchains:
            request = ToolchainRequest(nvcc=nvcc or None, cxx=host, needs_cuda=bool(nvcc))
            try:
                self.toolchains[nvcc, host] = discover_toolchain(
                    request, os.environ, self.project.runner, self.project.digests
                )
            except InputError as error:
                raise NotCarriedError(error.message) from None
        return self.toolchains[nvcc, host]

    def _find_headers(
        self, roots: tuple[Root, ...], pipeline: Pipeline, toolchain: Toolchain
    ) -> Headers:
        """Return the resolver of includes for these directories; the same for equal directories."""
        outside = pipeline.list_outside_directories(toolchain)
        key = roots, outside
        if key not in self.headers:
            self.headers[key] = Headers(
                roots,
                outside=outside,
                digests=self.project.digests,
                scans=self.project.memo.scans,
            )
        return self.headers[key]


def _find_nvcc_of_headers(compile_command: CompileCommand) -> str:
    """Return the nvcc of the toolkit whose headers a command of host code includes; "" for none."""
    directories = (a.path for a in compile_command.arguments if isinstance(a, IncludeDirectory))
    toolkit = next(filter(is_toolkit, directories), "")
    return toolkit and os.path.join(os.path.dirname(toolkit), "bin/nvcc")


def _find_gxx(name: str) -> str:
    """Return the path of the g++ that a name means, spelled so that its gcc is beside it; ""
    for another program."""
    real = os.path.realpath(shutil.which(name or "g++") or "")
    match = re.fullmatch(r"(.*/(?:[^/]*-)?)(?:gcc|g\+\+)(-[\d.]+)?", real)
    return f"{match[1]}g++{match[2] or ''}" if match else ""


def _name_directories(
    compile_command: CompileCommand, base: str, toolchain: Toolchain
) -> tuple[list[str], tuple[Root, ...], dict[str, str]]:
    """Give each directory of headers a name that is the same on every machine.

    Return the arguments with names in the place of directories, the directories in search order,
    and the path of each named tree. Directories without files, and those of the toolchain, are
    dropped. Raises `NotCarriedError`.
    """
    source_directory = os.path.dirname(os.path.relpath(compile_command.source, base))
    beside = make_root(PROJECT, base, source_directory, quoted_only=True)
    ranked_roots: list[tuple[int, Root]] = []
    base_by_tree = {PROJECT: base}
    # The program's source is not beside the headers that a `#include "…"` of torch's source finds.
    arguments = ["-iquote", f"{HERE}/include/{beside.name}"]
    if compile_command.nvcc:
        # nvcc has no `-iquote`: it passes the option on to the host compiler.
        arguments = [word for argument in arguments for word in ("-Xcompiler", argument)]
    compiler_directories = {*toolchain.host.compiler_headers, *toolchain.host.system_headers}
    toolkit = toolchain.cuda.include_dirs if toolchain.cuda else ()
    for argument in compile_command.arguments:
        if isinstance(argument, str):
            arguments.append(argument)
            continue
        option, path = argument.option, argument.path
        real_path = os.path.realpath(path)
        is_of_compiler = real_path in compiler_directories
        if is_of_compiler and option != "-I":
            raise NotCarriedError(f"{option} {path} is a directory of the compiler's")
        has_files = any(files for _, _, files in os.walk(path))
        # The compiler ignores its own directories after -I, and directories without files.
        if is_of_compiler or not has_files:
            continue
        if real_path in toolkit[:1]:
            arguments += [option, TOOLKIT]
            continue
        root = _name_root(path, base, base_by_tree, quoted_only=option == "-iquote")
        if not _SAFE_NAME.fullmatch(root.name):
            raise NotCarriedError(f"{path} has characters that compilers read otherwise")
        ranked_roots.append((INCLUDES.index(option), root))
        arguments += [option, f"{HERE}/include/{root.name}"]
    # gcc searches by the kind of option, then in order. A directory that is also a system directory
    # is searched only as such.
    system_names = {root.name for rank, root in ranked_roots if rank >= SYSTEM}
    # The sort is stable: directories of one kind stay in their order.
    ranked_roots.sort(key=lambda pair: pair[0])
    roots = (root for rank, root in ranked_roots if rank >= SYSTEM or root.name not in system_names)
    if beside.name in system_names:
        raise NotCarriedError("its own directory is declared as one of the system's")
    return arguments, (beside, *dict.fromkeys(roots)), base_by_tree


def _name_root(path: str, base: str, base_by_tree: dict[str, str], *, quoted_only: bool) -> Root:
    """Return the directory at `path` with a name: of the Python package that it is in, of the
    project at `base`, or of its own. The path of a new name is added to `base_by_tree`."""
    if match := _PATH_IN_PACKAGE.fullmatch(path):
        tree, tree_base, path_in_tree = match["name"], match["base"], match["path"] or ""
    elif path == base or path.startswith(base + "/"):
        tree, tree_base, path_in_tree = PROJECT, base, os.path.relpath(path, base)
    else:
        tree, tree_base, path_in_tree = os.path.basename(path), path, ""
    tree = choose_free_name(tree, tree_base, base_by_tree)
    return make_root(tree, tree_base, path_in_tree, quoted_only=quoted_only)


def _digest_cpu() -> str:
    """Return a digest of the facts about the CPU on which `-march=native` depends."""
    # Only the first processor is read: gcc asks the one that it runs on, and all are alike.
    lines = read_text("/proc/cpuinfo").partition("\n\n")[0].splitlines()
    facts = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part", "cache size")
    return sha256_text("\n".join(line for line in lines if line.startswith(facts)))[:16]
