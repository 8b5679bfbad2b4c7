"""The kernel pipeline with NVRTC: a library in a resident process, instead of nvcc's processes.

The commands are those of `toolchain/nvrtc_command.py`, of which `compile.sh` runs a copy. A compile
finds the program's headers below /proc/self/cwd/include, as with nvcc, and the toolkit's below
/proc/self/cwd/cuda; NVRTC searches no other directory. A machine with NVRTC may have no C compiler,
so the launcher's object is kept beside its source.

The price: NVRTC's code differs from nvcc's, so its programs are other programs, and an engineer
chooses it by name (docs/design-notes.md). It keeps a variable for each constant of a header that
is instantiated, so a program with large headers is larger than through nvcc (docs/performance.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from tilusbuild.arch import Arch, list_embedded_archs
from tilusbuild.compile.kernel_names import SYMBOL_FILE, anchor_kernel, is_cpp_name
from tilusbuild.compile.model import (
    HERE,
    SOURCE,
    TIMES_OF_HEADERS,
    DumpInProgress,
    Recipe,
    Step,
    Tools,
)
from tilusbuild.compile.pipelines.nvcc import (
    KernelPipeline,
    choose_image_name,
    has_line_info,
    list_compression,
)
from tilusbuild.compile.steps import CUDA_HEADERS, format_defines, protect_user_flags
from tilusbuild.errors import Diagnostic, InputError, Location
from tilusbuild.process.base import OnWorker
from tilusbuild.render.preprocessor import TOKENS
from tilusbuild.runtime.regular import read_text
from tilusbuild.toolchain import HeaderDirectories, Toolchain

_OPTIONS_WITH_VALUE = """
    -dopt --dopt -Ofc --Ofast-compile -Xptxas --ptxas-options -maxrregcount --maxrregcount
    -ftz --ftz -prec-sqrt --prec-sqrt -prec-div --prec-div -fmad --fmad -modify-stack-limit
    --modify-stack-limit -jtd --jump-table-density -device-stack-protector --device-stack-protector
    -frandom-seed --frandom-seed -D --define-macro -U --undefine-macro -builtin-move-forward
    --builtin-move-forward -builtin-initializer-list --builtin-initializer-list -opt-info
    --optimization-info -diag-error --diag-error -diag-suppress --diag-suppress -diag-warn
    --diag-warn -brief-diag --brief-diagnostics -split-compile --split-compile -Xcudafe
"""
_OPTIONS_WITHOUT_VALUE = """
    -G --device-debug -lineinfo --generate-line-info -use_fast_math --use_fast_math
    -extra-device-vectorization --extra-device-vectorization -w --disable-warnings -restrict
    --restrict -default-device --device-as-default-execution-space -device-int128 --device-int128
    -device-float128 --device-float128 -err-no --display-error-number -no-err-no
    --no-display-error-number -minimal --minimal
"""
VALUED, BARE = frozenset(_OPTIONS_WITH_VALUE.split()), frozenset(_OPTIONS_WITHOUT_VALUE.split())
"""Options of NVRTC 13.0: those with a value, after "=" or as the next word, and those without."""

# How many outputs each verb of a compile names after its source.
_OUTPUT_COUNTS = {"cubin": 1, "both": 2}
_KERNEL_OPTION = "--kernel="

# nvcc's optimisation level of host code, which NVRTC does not compile.
_HOST_OPTIMIZATION = re.compile(r"-O[0-3]?|--optimize=[0-3]")

_HINT_OF_FLAG = {
    "-Xcompiler": "NVRTC has no host compiler: leave it out",
    "--compiler-options": "NVRTC has no host compiler: leave it out",
    "--expt-relaxed-constexpr": "say __device__ of those functions, or give -default-device",
    "-expt-relaxed-constexpr": "say __device__ of those functions, or give -default-device",
    "--extended-lambda": "in NVRTC a lambda of a kernel is the device's: leave out its __device__",
    "-extended-lambda": "in NVRTC a lambda of a kernel is the device's: leave out its __device__",
    "-rdc": "a program is whole: relocatable code is not linked",
    "-dlto": "a program is whole: relocatable code is not linked",
    "-time": "`-v` and the record of a build have times",
}
# Of the flags that are refused, those whose value is the next word.
_REFUSED_VALUED = frozenset(
    {"-Xcompiler", "--compiler-options", "-Xlinker", "-Xfatbin", "-Xnvlink"}
)


def drop_host_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags without those for nvcc's host compiler."""
    kept: list[str] = []
    is_value = False  # of the flag before: `-O3` may be a macro's value
    for flag in flags:
        if is_value or not _HOST_OPTIMIZATION.fullmatch(flag):
            kept.append(flag)
        is_value = flag in VALUED
    return tuple(kept)


# NVRTC ignores SOURCE_DATE_EPOCH, and a program must not depend on when it was compiled.
_DATE_MACRO = re.compile(r"\b__(?:DATE|TIME)__\b")


def find_date_macro(texts: Mapping[str, str], headers: str | None) -> str | None:
    """Return a compiler's error line for the first `__DATE__` or `__TIME__` in `texts` (by file
    name) or in the files of the directory `headers`; None without one."""
    for name, text in texts.items():
        if line := _find_date_line(text):
            return f"{name}({line}): error: {_NO_DATE}"
    return _find_date_in_headers(headers) if headers else None


_NO_DATE = "NVRTC compiles the present time into __DATE__ and __TIME__: leave them out, or use nvcc"


@lru_cache(maxsize=64)
def _find_date_in_headers(directory: str) -> str | None:
    """Return `find_date_macro` of a directory of headers, which many programs share."""
    for parent, _, names in sorted(os.walk(directory)):
        for name in sorted(names):
            path = os.path.join(parent, name)
            if line := _find_date_line(read_text(path, "replace")):
                return f"include/{os.path.relpath(path, directory)}({line}): error: {_NO_DATE}"
    return None


def _find_date_line(text: str) -> int | None:
    """Return the line, from 1, of the first `__DATE__` or `__TIME__` outside comments and strings;
    None without one."""
    # Splitting a text into tokens takes long, and few texts have these words.
    if "__DATE__" not in text and "__TIME__" not in text:
        return None
    # The newline in front makes the number of newlines before the macro the number of its line.
    code = TOKENS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), "\n" + text)
    match = _DATE_MACRO.search(code)
    return code.count("\n", 0, match.start()) if match else None


def _find_namesake(recipe: Recipe, headers: str) -> str | None:
    """Return an error for a rendered header that has the name of a header of include-dirs; None
    without one. `headers` is the directory of the program's headers."""
    # `#include <…>` would find the rendered one, and with nvcc finds the other.
    for name in recipe.headers:
        for root, quoted_only in recipe.includes.roots:
            if not quoted_only and os.path.exists(os.path.join(headers, root, name)):
                return (
                    f"{name}(1): error: the program has include/{root}/{name}, too, and NVRTC "
                    f'takes #include <{name}> for "{name}": rename one of them, or use nvcc'
                )
    return None


class KernelNvrtc(KernelPipeline):
    compiler = "NVRTC"
    host_code = False
    standards = ("c++14", "c++17", "c++20")

    def can_compile(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        return target == "cuda" and has_kernel and device_compiler == "nvrtc"

    def derive_source(self, text: str, symbol: str, unit: Sequence[str] = ()) -> str:
        return anchor_kernel(text) if is_cpp_name(symbol) else text

    def list_device_steps(self, recipe: Recipe, image: str) -> list[Step]:
        """Return for each architecture a compile to a cubin, and to PTX where that is embedded; for
        a fatbin, then the step that joins them."""
        steps: list[Step] = []
        images: list[str] = []
        is_fatbin = image.endswith(".fatbin")
        for arch, with_ptx in list_embedded_archs(recipe.archs, ptx=recipe.ptx):
            number = arch.name.removeprefix("sm_")
            stem = arch.name if is_fatbin else "program"
            outputs = [f"{stem}.cubin"]
            images.append(f"elf:{number}:{stem}.cubin")
            if with_ptx:
                outputs.append(f"{stem}.ptx")
                images.append(f"ptx:{number}:{stem}.ptx")
            command = _build_compile_command(recipe, arch.name, outputs)
            steps.append(Step("device", command, outputs[0], code=arch.name))
        if is_fatbin:
            argv = ("{nvrtc}", "fatbin", *list_compression(recipe), image, *images)
            steps.append(Step("fatbin", argv, image, of_program=False))
        return steps

    def select_fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        is_joined = choose_image_name(recipe).endswith(".fatbin")
        joiner = toolchain.fingerprint_joiner if is_joined else ()
        return (*joiner, *toolchain.fingerprint_nvrtc)

    def list_header_directories(self, toolchain: Toolchain) -> HeaderDirectories:
        return toolchain.find_header_directories(cuda=True, nvrtc=True)

    def list_links(self, recipe: Recipe, tools: Tools) -> Mapping[str, str]:
        headers = tools.nvrtc.include_dir if tools.nvrtc is not None else None
        return {CUDA_HEADERS: headers} if headers is not None else {}

    def explain_local_only(self, recipe: Recipe, notes: Sequence[Diagnostic] = ()) -> str | None:
        if notes:
            return "its includes are not known, and only this machine limits NVRTC's headers"
        # The times of headers are cleared in the code, but the number of bytes of a time remains.
        return TIMES_OF_HEADERS if has_line_info(recipe) else self.explain_denied_flag(recipe)

    def list_remote_outputs(self, step: Step) -> tuple[str, ...]:
        if step.argv[:1] != ("{nvrtc}",) or step.argv[1] not in _OUTPUT_COUNTS:
            return ()
        # The words of `_build_compile_command`, in its order.
        _, verb, _, _, *outputs_and_options = step.argv
        outputs = outputs_and_options[: _OUTPUT_COUNTS[verb]]
        if any(word.startswith(_KERNEL_OPTION) for word in outputs_and_options):
            outputs.append(SYMBOL_FILE)
        return tuple(outputs)

    def find_worker_command(self, step: Step, tools: Tools) -> OnWorker | None:
        if tools.nvrtc is None or step.argv[0] != "{nvrtc}":
            return None
        return tools.nvrtc.build_worker_command(step.argv[1:])

    def find_source_problem(self, recipe: Recipe, headers: str | None) -> str | None:
        # A program that holds the time of its compile is never the same twice. A macro of the
        # command line, such as -DBUILT=__DATE__, brings the time in as well as a text does.
        for word in (*recipe.options.flags, *format_defines(recipe)):
            if _find_date_line(word):
                return f"error: {word}: {_NO_DATE}"
        date_problem = find_date_macro({"source.cu": recipe.source, **recipe.headers}, headers)
        if date_problem is not None or headers is None:
            return date_problem
        return _find_namesake(recipe, headers)

    def find_source_command(self, recipe: Recipe) -> tuple[str, ...]:
        raise ValueError("NVRTC compiles it, and has no command")

    def check_archs(
        self, toolchain: Toolchain, archs: Sequence[Arch], ptx: bool, location: Location | None
    ) -> None:
        toolchain.check_archs(archs, location, nvrtc=True)
        nvrtc = toolchain.nvrtc
        if (len(archs) > 1 or ptx) and nvrtc is not None and nvrtc.joiner is None:
            message = "several architectures, or PTX, in one library need libnvfatbin beside NVRTC"
            hint = "pip install 'tilusbuild[nvrtc]', or give each architecture a target of its own"
            raise InputError(Diagnostic(message, location, hint))

    def find_refused_flags(self, flags: Iterable[str]) -> Iterator[tuple[int, str, str]]:
        # NVRTC itself would refuse them program by program, far from their place in the manifest.
        remaining = iter(enumerate(flags))
        for index, flag in remaining:
            name, equals, _ = flag.partition("=")
            is_known = name in VALUED or flag[:2] in ("-D", "-U") or flag in BARE
            if not is_known and not _HOST_OPTIMIZATION.fullmatch(flag):
                hint = _HINT_OF_FLAG.get(name, "leave it out, or compile this project with nvcc")
                yield index, flag, hint
            # The next word is the value of this flag, and is not checked.
            if not equals and (name in VALUED or name in _REFUSED_VALUED):
                next(remaining, None)

    def dump_intermediates(self, recipe: Recipe, dump: DumpInProgress) -> None:
        """Write the PTX of each architecture, which a compile to a cubin does not keep."""
        for name in (arch.name for arch, _ in list_embedded_archs(recipe.archs, ptx=recipe.ptx)):
            argv = _build_compile_command(recipe, name, [f"{name}.cubin", f"{name}.ptx"])
            if dump.run(Step("dump", argv, f"{name}.ptx")):
                dump.copy(f"{name}.ptx", f"{name}.ptx")
        dump.disassemble(os.path.join(dump.work, choose_image_name(recipe)))


def _build_compile_command(recipe: Recipe, name: str, outputs: list[str]) -> tuple[str, ...]:
    """Return the command of one compile: to a cubin or, with two outputs, to a cubin and PTX."""
    verb = "cubin" if len(outputs) == 1 else "both"
    argv = ("{nvrtc}", verb, "source.cu", _choose_source_path(recipe), *outputs)
    kernel = (f"{_KERNEL_OPTION}{recipe.symbol}",) if is_cpp_name(recipe.symbol) else ()
    return (*argv, *kernel, f"--gpu-architecture={name}", *_list_options(recipe))


def _choose_source_path(recipe: Recipe) -> str:
    """Return the source's name for NVRTC, which searches that directory for `#include "…"`."""
    for name, quoted_only in recipe.includes.roots:
        if quoted_only:
            return f"{HERE}/include/{name}/source.cu"
    return SOURCE


def _list_options(recipe: Recipe) -> tuple[str, ...]:
    """Return NVRTC's options besides the architecture: language, macros, header directories,
    flags."""
    roots = recipe.includes.roots
    quoted_only = [f"{HERE}/include/{name}" for name, is_quoted_only in roots if is_quoted_only]
    any_include = [f"{HERE}/include/{name}" for name, is_quoted_only in roots if not is_quoted_only]
    directories = [*any_include, f"{HERE}/{CUDA_HEADERS}", f"{HERE}/{CUDA_HEADERS}/cccl"]
    # For quoted includes NVRTC searches the source's directory, and has no option for others. The
    # rendered headers come first, as for nvcc. They may include headers beside the source. That
    # directory comes last, so that `#include <…>` prefers the others.
    if recipe.headers:
        directories = [HERE, *directories, *quoted_only]
    return (
        f"--std={recipe.options.std}",
        *format_defines(recipe),
        *(f"-I{directory}" for directory in directories),
        "--ptxas-options=-v",
        *drop_host_flags(protect_user_flags(recipe)),
    )


KERNEL_NVRTC = KernelNvrtc()
