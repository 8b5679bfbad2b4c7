"""A Kernel Tuner script, run once in a child process with a `tune_kernel` that only writes down
what it is given (`recorder.py`), and the kernels of these calls.

The script is the user's own and is run as its author runs it, in its directory and with this
Python, as `make` runs a Makefile: what it does besides calling `tune_kernel`, it does. Price: what
it imports must be installed, and branches that it does not take are not seen.

A kernel's arguments are those of its declaration in the source, read without comments. Sizes of
arrays are not in a declaration, so the only integer argument stands for them, or 1.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from tilusbuild.expr import ExprError, Value, parse_expression
from tilusbuild.intake import recorder
from tilusbuild.intake.builds import run_recorded
from tilusbuild.intake.draft import KernelDraft, ManifestDraft, make_table_name, to_standard
from tilusbuild.manifest.denied_flags import list_flag_problems
from tilusbuild.runtime.regular import read_text
from tilusbuild.signature.reading import (
    DeclaredKernel,
    blank_comments,
    find_aliases,
    find_kernels,
    read_parameter,
)
from tilusbuild.space.space import MAX_SCHEDULES

_BLOCK = ("block_size_x", "block_size_y", "block_size_z")
_DEFAULT_BLOCK = (256, 1, 1)
_SUFFIXES = (".cu", ".cuh", ".cpp", ".c")
_LANGUAGES = ("cuda", "cupy", "nvcuda")
_MAX_THREADS = 1024


def _format_recorded(value: object) -> str:
    """Return a recorded value as text for a note, of at most `recorder.LIMIT` characters."""
    text = str(value["?"]) if isinstance(value, dict) and "?" in value else str(value)
    return text if len(text) <= recorder.LIMIT else f"{text[: recorder.LIMIT]}..."


class _CallReader(Struct, frozen=True):
    """Reads the recorded calls of `tune_kernel` into a draft."""

    draft: ManifestDraft
    root: str
    files: dict[str, str]
    """Takes the sources that the script holds as text, by the names that they are to have."""

    def add_kernel(self, recorded_call: Mapping[str, Any]) -> str | None:
        """Add the kernel of one call to the draft. Return None, or the reason why the call cannot
        be imported."""
        if str(recorded_call.get("lang") or "cuda").lower() not in _LANGUAGES:
            return (
                f"tunes a function of lang = {recorded_call['lang']!r}: only CUDA kernels are read,"
                " and no host function that measures them itself"
            )
        if "texmem_args" in recorded_call:
            return "needs texture references, which CUDA no longer has"
        source, space = recorded_call.get("kernel_source"), recorded_call.get("tune_params")
        other_sources = source[1:] if isinstance(source, list) else []
        source = source[0] if isinstance(source, list) and source else source
        if not isinstance(source, str):
            return f"is given a kernel_source that is not text: {_format_recorded(source)}"
        if not isinstance(space, dict):
            return f"is given tune_params that are not a dictionary: {_format_recorded(space)}"
        name = str(recorded_call.get("kernel_name"))
        used_names = [each.name for each in self.draft.kernels]
        kernel = KernelDraft(make_table_name(name, used_names), "", name)
        text = self._find_source(kernel, source)
        if text is None:
            return f"tunes {kernel.template}, which does not exist"
        code = blank_comments(text, jinja=False)
        declared = _find_declaration(code, kernel.kernel)
        if declared is None:
            return f"tunes {name}: {kernel.template} declares no such kernel (is it OpenCL?)"
        kernel.kernel, declaration = declared
        if other_sources:
            self._add_note(kernel, "its other sources are not written; it may include them")
        self._add_parameters(kernel, space)
        _add_arguments(self.draft, kernel, declaration, code)
        if isinstance(constant_arguments := recorded_call.get("cmem_args"), dict):
            _add_constants(self.draft, kernel, constant_arguments, code)
        self._add_macros(recorded_call, kernel, text)
        self._add_restrictions(recorded_call, kernel)
        self._add_launch(recorded_call, kernel)
        self._add_options(recorded_call, kernel)
        self.draft.kernels.append(kernel)
        return None

    def _add_note(self, kernel: KernelDraft, text: str) -> None:
        self.draft.add_note(f"{kernel.name}: {text}")

    def _find_source(self, kernel: KernelDraft, source: str) -> str | None:
        """Set the kernel's template and return its text; None for a file that does not exist. A
        source that the script holds as text is added to `files`, unless a file of the project has
        the same text."""
        if source.endswith(_SUFFIXES) and "\n" not in source:
            kernel.template = os.path.relpath(os.path.join(self.root, source), self.root)
            path = os.path.join(self.root, kernel.template)
            return read_text(path, "replace") if os.path.isfile(path) else None
        for name in sorted(os.listdir(self.root)):
            path = os.path.join(self.root, name)
            if name.endswith(_SUFFIXES) and read_text(path, "replace") == source:
                kernel.template = name  # the script has read it
                return source
        kernel.template = f"kernels/{kernel.name}.cu"
        self.files[kernel.template] = source
        return source

    def _add_parameters(self, kernel: KernelDraft, space: Mapping[str, object]) -> None:
        """Add the tuning parameters. Each is also a macro, as in Kernel Tuner."""
        for name, values in space.items():
            if not isinstance(values, list) or not values or not _are_plain(values):
                self._add_note(kernel, f"the values of {name} are not understood")
                continue
            # A value that appears twice is one schedule here.
            kernel.space[name] = list({(type(each), each): each for each in values}.values())
            kernel.flags.append(f"-D{name}={{{{ {name} }}}}")

    def _add_macros(self, recorded_call: Mapping[str, Any], kernel: KernelDraft, text: str) -> None:
        """Add macros that Kernel Tuner defines by itself, if the source uses them. Note the names
        that only Kernel Tuner's own rewriting of the source provides."""
        names = [*kernel.space]
        sizes = dict(zip(_BLOCK, _DEFAULT_BLOCK, strict=True)) | {"kernel_tuner": 1}
        for name, value in sizes.items():
            if name not in names and re.search(rf"\b{name}\b", text):
                kernel.flags.append(f"-D{name}={value}")
        if recorded_call.get("defines") is not None:
            self._add_note(kernel, "its defines are not read: each parameter is a macro")
        for name in re.findall(r"\bgrid_size_[xyz]\b|(?<=#pragma unroll )loop_unroll_\w+", text):
            self._add_note(
                kernel, f"Kernel Tuner writes {name} into the source itself; nothing here does"
            )

    def _add_restrictions(self, recorded_call: Mapping[str, Any], kernel: KernelDraft) -> None:
        """Add the restrictions, and the limit of threads per block if the parameters can exceed
        it."""
        for number, rule in enumerate(_to_list(recorded_call.get("restrictions")), 1):
            text = self._to_expression(kernel, rule)
            if text is None:
                self._add_note(kernel, f"a restriction is not understood: {_format_recorded(rule)}")
            else:
                kernel.restrict[f"rule_{number}"] = text
        names = [name for name in _list_block_names(recorded_call) if name in kernel.space]
        values = [kernel.space[name] for name in names]
        widest = [
            [v for v in each if isinstance(v, int)] for each in values if isinstance(each, list)
        ]
        if math.prod(max(each, default=1) for each in widest) > _MAX_THREADS:
            kernel.restrict["threads"] = f"{' * '.join(names)} <= arch.threads_per_block"

    def _to_expression(self, kernel: KernelDraft, rule: object) -> str | None:
        """Return a rule if it is an expression over the parameters, else None."""
        if not isinstance(rule, str):
            return None
        try:
            unknown = parse_expression(rule).names - {*kernel.space}
        except ExprError as error:
            self._add_note(kernel, f"{rule}: {error.message}")
            return None
        return rule if not unknown else None

    def _add_launch(self, recorded_call: Mapping[str, Any], kernel: KernelDraft) -> None:
        """Set block, grid and dynamic shared memory of the kernel."""
        block = _list_block_names(recorded_call)
        block_sizes: list[Value] = [
            name if name in kernel.space else size
            for name, size in zip(block, _DEFAULT_BLOCK, strict=False)
        ]
        while len(block_sizes) > 1 and block_sizes[-1] == 1:
            block_sizes.pop()
        kernel.block = block_sizes
        sizes = self._list_sizes(recorded_call, kernel)
        for axis, size, block_name in zip("xyz", sizes, block, strict=False):
            divisors = recorded_call.get(f"grid_div_{axis}")
            if divisors is None:
                divisors = [block_name] if block_name in kernel.space else []
            kernel.grid.append(self._divide_size(kernel, size, divisors, axis))
        smem = recorded_call.get("smem_args")
        if isinstance(smem, dict):
            smem_size = smem.get("size")
            kernel.smem = (
                smem_size if isinstance(smem_size, int) else self._to_expression(kernel, smem_size)
            )
            if kernel.smem is None:
                self._add_note(kernel, "the size of its shared memory is not understood")

    def _list_sizes(self, recorded_call: Mapping[str, Any], kernel: KernelDraft) -> Iterator[Value]:
        """Yield the problem's size by axis: an argument of the kernel, a number, an expression, or
        1 with a note."""
        names = [*kernel.args]
        parts = _to_list(recorded_call.get("problem_size"))
        for axis, value, argument_index in zip(
            "xyz", parts, recorded_call["size arguments"], strict=False
        ):
            name = (
                names[argument_index]
                if argument_index is not None and argument_index < len(names)
                else ""
            )
            if kernel.args.get(name) in ("i32", "i64"):
                yield name
            elif isinstance(value, int):
                yield value
            elif (text := self._to_expression(kernel, value)) is not None:
                yield text
            else:
                self._add_note(kernel, f"the problem's size in {axis} is not known; 1 is written")
                yield 1

    def _divide_size(self, kernel: KernelDraft, size: Value, divisors: object, axis: str) -> Value:
        """Return a size divided by its divisors, rounded up, as an expression."""
        texts = []
        for divisor in _to_list(divisors):
            text = (
                str(divisor) if isinstance(divisor, int) else self._to_expression(kernel, divisor)
            )
            if text is None:
                self._add_note(
                    kernel,
                    f"the grid's divisor in {axis} is not known: {_format_recorded(divisor)}",
                )
            else:
                texts.append(f"({text})" if re.search(r"\W", text) else text)
        return f"cdiv({size}, {' * '.join(texts)})" if texts else size

    def _add_options(self, recorded_call: Mapping[str, Any], kernel: KernelDraft) -> None:
        """Add the compiler's options that a manifest may have, and note the others."""
        for word in _to_list(recorded_call.get("compiler_options")):
            std_option = re.fullmatch(r"--?std[= ](\S+)", str(word))
            if std_option and (std := to_standard(std_option[1])):
                self.draft.toolchain.setdefault("std", std)
            elif isinstance(word, str) and not any(
                list_flag_problems([word], unsafe=False, cpu=False)
            ):
                kernel.flags.append(word)
            else:
                self._add_note(
                    kernel, f"an option of the compiler is left out: {_format_recorded(word)}"
                )


def _to_list(value: object) -> list[Any]:
    """Return a list as it is, None as an empty list, and any other value as a list of one."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _list_block_names(recorded_call: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters that are the block size, by axis."""
    names = recorded_call.get("block_size_names")
    return [str(each) for each in names] if isinstance(names, list) else [*_BLOCK]


def _are_plain(values: Iterable[object]) -> bool:
    """Return whether all values are strings or finite numbers."""
    are_scalars = all(isinstance(each, str | int | float) for each in values)
    return are_scalars and all(math.isfinite(each) for each in values if isinstance(each, float))


def read_tuning_script(draft: ManifestDraft, root: str, name: str, files: dict[str, str]) -> None:
    """Run a Kernel Tuner script, and add the kernels that it tunes to a draft. Sources that the
    script holds as text are added to `files`, by path. Raises `InputError`."""
    reader = _CallReader(draft, root, files)
    recorded_effect = ("called tune_kernel", "call")
    for recorded_call in run_recorded(draft, root, name, recorder.__file__, (), recorded_effect):
        if problem := reader.add_kernel(recorded_call):
            draft.add_note(f"left out: {name}:{recorded_call['where']} {problem}")
    for kernel in draft.kernels:
        points = math.prod(len(v) for v in kernel.space.values() if isinstance(v, list))
        if points > MAX_SCHEDULES:
            draft.level = 1
            draft.add_note(
                f"{kernel.name}: a space of up to {points:,} points; level = 1 is written"
            )
    if not draft.kernels:
        draft.add_note(f"{name} was run, and no call of tune_kernel could be read")


# A kernel's declaration in a source, and the arguments that a manifest declares of it.

_VECTORS = {
    f"{sign[:1]}{of}{width}": f"{sign} {of}"
    for sign, kinds in (("", ("float", "double")), ("unsigned", ()))
    for of in (*kinds, "char", "short", "int", "long")
    for width in (2, 3, 4)
}
"""Of a vector the type is that of its elements."""


def _find_declaration(text: str, name: str) -> tuple[str, DeclaredKernel] | None:
    """Return the name for `kernel` in a manifest, and the declaration of the `__global__` function
    in the source; None if there is no such function."""
    base_name, _, template_arguments = name.partition("<")
    for kernel in find_kernels(text):
        if kernel.plain == base_name.rpartition("::")[2]:
            return (name if template_arguments else kernel.name), kernel
    return None


def _add_arguments(
    draft: ManifestDraft, kernel: KernelDraft, declaration: DeclaredKernel, text: str
) -> None:
    """Add the arguments of a kernel. An array's size is the only integer argument, or 1 with a
    note."""
    aliases = {**_VECTORS, **find_aliases(text)}
    types = [read_parameter(each.text, aliases) for each in declaration.parameters]
    sizes = [each.name for each in types if each.dtype in ("i32", "i64") and not each.is_pointer]
    size = sizes[0] if len(sizes) == 1 else "1"
    for each in types:
        type_ = each.dtype
        if type_ in ("", "void") or not each.name:
            draft.add_note(f"{kernel.name}: the type of an argument is not understood: {each.text}")
            type_ = "u8"
        if not each.is_pointer:
            kernel.args[each.name] = type_
            continue
        assignment = re.search(rf"\b{re.escape(each.name)}\s*\[[^;]*?\]\s*[-+*/|&^]?=[^=]", text)
        tensor = f"{type_}*[{size}]"
        is_out = assignment is not None and not each.is_const
        kernel.args[each.name] = {"type": tensor, "out": True} if is_out else tensor
    if size == "1" and any(each.is_pointer for each in types):
        draft.add_note(
            f"{kernel.name}: the sizes of its arrays are not known; they are written as [1]"
        )


def _add_constants(
    draft: ManifestDraft, kernel: KernelDraft, names: Iterable[str], text: str
) -> None:
    """Add the `__constant__` variables that a caller fills as arguments. A caller may fill less
    than the array holds, so the size is an argument, too."""
    aliases = {**_VECTORS, **find_aliases(text)}
    for name in names:
        name_pattern = re.escape(name)
        # Bounded, because the source is not trusted.
        match = re.search(
            rf"__(?:constant|device)__([\w\s]{{1,200}})\b{name_pattern}\s{{0,20}}(\[[^;={{]{{0,500}}\])?"
            r"\s{0,20}[;={]",
            text,
        )
        type_ = read_parameter(f"{match[1]} {name}", aliases).dtype if match else ""
        if match is None or not type_ or name in kernel.args:
            draft.add_note(
                f"{kernel.name}: no argument was found to fill {name}: declare it in args"
            )
            continue
        if match[2] is None:
            kernel.args[name] = {"type": type_, "constant": True}
            continue
        size = f"{name}_size"
        while size in kernel.args:
            size += "_"
        kernel.args[name] = {"type": f"{type_}*[{size}]", "constant": True}
        kernel.args[size] = {"type": "i32", "parameter": False}
