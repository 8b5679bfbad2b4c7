"""The kernels that a Kernel Tuner script tunes, read by running the script once.

It runs in a child process whose `tune_kernel` only records its arguments (`recorder.py`). The
script is the user's own and is run as its author runs it, in its directory and with this Python, as
`make` runs a Makefile. Price: its imports must be installed, and branches that it does not take are
not seen.

A kernel's arguments are those of its declaration in the source, read without comments. Sizes of
arrays are not in a declaration: the only integer argument is written for them, or 1.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from tilusbuild.expr import ExprError, Value, parse_expression
from tilusbuild.expr.tree import is_boolean
from tilusbuild.intake import recorder
from tilusbuild.intake.builds import run_recorded
from tilusbuild.intake.draft import KernelDraft, ManifestDraft, make_table_name, to_standard
from tilusbuild.manifest.denied_flags import list_flag_problems
from tilusbuild.runtime.regular import read_text
from tilusbuild.signature.reading import DeclaredKernel, KernelSource
from tilusbuild.space.space import MAX_SCHEDULES

_BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
_DEFAULT_BLOCK_SIZES = (256, 1, 1)
_SOURCE_SUFFIXES = (".cu", ".cuh", ".cpp", ".c")
_LANGUAGES = ("cuda", "cupy", "nvcuda")
_MAX_THREADS = 1024


def _format_recorded(value: object) -> str:
    """Return a recorded value as text for a note, cut after `recorder.LIMIT` characters."""
    text = str(value["?"]) if isinstance(value, dict) and "?" in value else str(value)
    return text if len(text) <= recorder.LIMIT else f"{text[: recorder.LIMIT]}..."


class _CallReader(Struct):
    """Reads one recorded call of `tune_kernel` into a draft of its kernel."""

    draft: ManifestDraft
    root: str
    files: dict[str, str]
    """The sources that the script holds as text, by the names that they are to have."""
    call: Mapping[str, Any]
    kernel: KernelDraft

    def read_kernel(self) -> str | None:
        """Add the kernel to the draft, with notes on its omissions, and return None. If the call
        cannot be imported, add nothing and return the reason, as words that follow its place."""
        call, kernel = self.call, self.kernel
        if str(call.get("lang") or "cuda").lower() not in _LANGUAGES:
            return (
                f"tunes a function of lang = {call['lang']!r}: only CUDA kernels are read,"
                " and no host function that measures them itself"
            )
        if "texmem_args" in call:
            return "needs texture references, which CUDA no longer has"
        source, space = call.get("kernel_source"), call.get("tune_params")
        source, *other_sources = source if isinstance(source, list) and source else [source]
        if not isinstance(source, str):
            return f"is given a kernel_source that is not text: {_format_recorded(source)}"
        if not isinstance(space, dict):
            return f"is given tune_params that are not a dictionary: {_format_recorded(space)}"
        text = self._set_template(source)
        if text is None:
            return f"tunes {kernel.template}, which does not exist"
        code = KernelSource(text, jinja=False, aliases=_ELEMENT_TYPE_OF_VECTOR)
        declared = _find_declaration(code, kernel.kernel)
        if declared is None:
            name = kernel.kernel
            return f"tunes {name}: {kernel.template} declares no such kernel (is it OpenCL?)"
        kernel.kernel, declaration = declared
        if other_sources:
            self._add_note("its other sources are not written; it may include them")
        # In this order: rules, sizes and macros need the names of parameters and arguments.
        self._add_parameters(space)
        _add_arguments(self.draft, kernel, declaration, code)
        if isinstance(constant_arguments := call.get("cmem_args"), dict):
            _add_constants(self.draft, kernel, constant_arguments, code)
        self._add_macros(text)
        self._add_restrictions()
        self._add_launch()
        self._add_options()
        self.draft.kernels.append(kernel)
        return None

    def _add_note(self, text: str) -> None:
        self.draft.add_note(f"{self.kernel.name}: {text}")

    def _set_template(self, source: str) -> str | None:
        """Set the kernel's template, and return its text; None for a file that does not exist.

        `source` is a path, or the text itself. The text is added to `files` as a new template,
        unless a file of the project has the same text.
        """
        if source.endswith(_SOURCE_SUFFIXES) and "\n" not in source:
            self.kernel.template = os.path.relpath(os.path.join(self.root, source), self.root)
            path = os.path.join(self.root, self.kernel.template)
            return read_text(path, "replace") if os.path.isfile(path) else None
        for name in sorted(os.listdir(self.root)):
            path = os.path.join(self.root, name)
            if name.endswith(_SOURCE_SUFFIXES) and read_text(path, "replace") == source:
                # The script has read its text from this file.
                self.kernel.template = name
                return source
        self.kernel.template = f"kernels/{self.kernel.name}.cu"
        self.files[self.kernel.template] = source
        return source

    def _add_parameters(self, space: Mapping[str, object]) -> None:
        """Add the tuning parameters to the kernel's space, and a macro for each, as Kernel Tuner
        does. Values that are not plain become a note."""
        for name, values in space.items():
            if not isinstance(values, list) or not values or not _are_plain(values):
                self._add_note(f"the values of {name} are not understood")
                continue
            # A manifest has each value once. With types, because `1 == 1.0 == True`.
            distinct_values = {(type(value), value): value for value in values}
            self.kernel.space[name] = [*distinct_values.values()]
            self.kernel.flags.append(f"-D{name}={{{{ {name} }}}}")

    def _add_macros(self, text: str) -> None:
        """Add the macros that Kernel Tuner defines by itself, if the source uses them. Add a note
        for each name that Kernel Tuner provides by rewriting the source."""
        names = [*self.kernel.space]
        sizes = dict(zip(_BLOCK_NAMES, _DEFAULT_BLOCK_SIZES, strict=True)) | {"kernel_tuner": 1}
        for name, value in sizes.items():
            if name not in names and re.search(rf"\b{name}\b", text):
                self.kernel.flags.append(f"-D{name}={value}")
        if self.call.get("defines") is not None:
            self._add_note("its defines are not read: each parameter is a macro")
        for name in re.findall(r"\bgrid_size_[xyz]\b|(?<=#pragma unroll )loop_unroll_\w+", text):
            self._add_note(f"Kernel Tuner writes {name} into the source; tilusbuild does not")

    def _add_restrictions(self) -> None:
        """Add the restrictions to the kernel, and a rule for the threads of a block if the space
        can exceed their limit. A restriction that is not understood becomes a note."""
        for number, rule in enumerate(_to_list(self.call.get("restrictions")), 1):
            text = self._to_expression(rule)
            if text is None:
                self._add_note(f"a restriction is not understood: {_format_recorded(rule)}")
            else:
                # In Python any number but 0 is true; a rule of a manifest is a condition.
                is_condition = is_boolean(parse_expression(text).tree)
                self.kernel.restrict[f"rule_{number}"] = text if is_condition else f"({text}) != 0"
        # Kernel Tuner skips blocks that no device takes; a manifest has a rule for it.
        names = [name for name in _list_block_names(self.call) if name in self.kernel.space]
        largest_block = 1
        for name in names:
            sizes = (value for value in self.kernel.space[name] if isinstance(value, int))
            largest_block *= max(sizes, default=1)
        if largest_block > _MAX_THREADS:
            self.kernel.restrict["threads"] = f"{' * '.join(names)} <= arch.threads_per_block"

    def _to_expression(self, rule: object) -> str | None:
        """Return a rule if it is an expression over the parameters, else None. A syntax error
        becomes a note."""
        if not isinstance(rule, str):
            return None
        try:
            unknown_names = parse_expression(rule).names - {*self.kernel.space}
        except ExprError as error:
            self._add_note(f"{rule}: {error.message}")
            return None
        return None if unknown_names else rule

    def _add_launch(self) -> None:
        """Set block, grid and dynamic shared memory of the kernel, with a note on each that is not
        understood."""
        block_names = _list_block_names(self.call)
        block_sizes: list[Value] = [
            name if name in self.kernel.space else size
            for name, size in zip(block_names, _DEFAULT_BLOCK_SIZES, strict=False)
        ]
        # A manifest leaves out trailing sizes of 1.
        while len(block_sizes) > 1 and block_sizes[-1] == 1:
            block_sizes.pop()
        self.kernel.block = block_sizes
        sizes = self._list_sizes()
        for axis, size, block_name in zip("xyz", sizes, block_names, strict=False):
            divisors = self.call.get(f"grid_div_{axis}")
            if divisors is None:
                divisors = [block_name] if block_name in self.kernel.space else []
            self.kernel.grid.append(self._divide_size(size, divisors, axis))
        smem = self.call.get("smem_args")
        if isinstance(smem, dict):
            smem_size = smem.get("size")
            is_number = isinstance(smem_size, int)
            self.kernel.smem = smem_size if is_number else self._to_expression(smem_size)
            if self.kernel.smem is None:
                self._add_note("the size of its shared memory is not understood")

    def _list_sizes(self) -> Iterator[Value]:
        """Yield the problem's size by axis: an argument's name, a number, an expression, or 1 with
        a note if it is not known."""
        argument_names = [*self.kernel.args]
        parts = _to_list(self.call.get("problem_size"))
        indexes = self.call["size arguments"]
        for axis, value, index in zip("xyz", parts, indexes, strict=False):
            name = ""
            # The script may pass more arguments than the source declares.
            if index is not None and index < len(argument_names):
                name = argument_names[index]
            if self.kernel.args.get(name) in ("i32", "i64"):
                yield name
                continue
            size = value if isinstance(value, int) else self._to_expression(value)
            if size is None:
                self._add_note(f"the problem's size in {axis} is not known; 1 is written")
                size = 1
            yield size

    def _divide_size(self, size: Value, divisors: object, axis: str) -> Value:
        """Return `cdiv(size, divisors)`, which rounds up, as an expression; the size itself without
        divisors. A divisor that is not understood is left out with a note."""
        texts = []
        for divisor in _to_list(divisors):
            text = str(divisor) if isinstance(divisor, int) else self._to_expression(divisor)
            if text is None:
                note = f"the grid's divisor in {axis} is not known: {_format_recorded(divisor)}"
                self._add_note(note)
            else:
                # Only a name or a number needs no parentheses.
                texts.append(f"({text})" if re.search(r"\W", text) else text)
        return f"cdiv({size}, {' * '.join(texts)})" if texts else size

    def _add_options(self) -> None:
        """Add the compiler's options to the kernel's flags, and `-std` to the draft's toolchain. An
        option that a manifest may not have becomes a note."""
        for word in _to_list(self.call.get("compiler_options")):
            std_option = re.fullmatch(r"--?std[= ](\S+)", str(word))
            std = to_standard(std_option[1]) if std_option else None
            if std is not None:
                # The first kernel decides: the draft has one toolchain.
                self.draft.toolchain.setdefault("std", std)
            elif isinstance(word, str) and not any(
                list_flag_problems([word], unsafe=False, cpu=False)
            ):
                self.kernel.flags.append(word)
            else:
                self._add_note(f"an option of the compiler is left out: {_format_recorded(word)}")


def _to_list(value: object) -> list[Any]:
    """Return a list as it is, None as an empty list, and any other value as a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _list_block_names(call: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters that are the block size, by axis."""
    names = call.get("block_size_names")
    return [*map(str, names)] if isinstance(names, list) else [*_BLOCK_NAMES]


def _are_plain(values: Iterable[object]) -> bool:
    """Return whether all values are strings or finite numbers."""
    return all(
        math.isfinite(value) if isinstance(value, float) else isinstance(value, str | int)
        for value in values
    )


def read_tuning_script(draft: ManifestDraft, root: str, name: str, files: dict[str, str]) -> None:
    """Run a Kernel Tuner script, and add the kernels that it tunes to a draft, with notes.

    Sources that the script holds as text are added to `files`, by path. A space that is too large
    sets the draft's `level`. Raises `InputError`.
    """
    effect = ("called tune_kernel", "call")
    for call in run_recorded(draft, root, name, recorder.__file__, (), effect):
        kernel_name = str(call.get("kernel_name"))
        used_names = [kernel.name for kernel in draft.kernels]
        kernel = KernelDraft(make_table_name(kernel_name, used_names), "", kernel_name)
        if problem := _CallReader(draft, root, files, call, kernel).read_kernel():
            draft.add_note(f"left out: {name}:{call['where']} {problem}")
    for kernel in draft.kernels:
        # The rules may leave fewer points, but to count those needs the whole manifest.
        points = math.prod(map(len, kernel.space.values()))
        if points > MAX_SCHEDULES:
            draft.level = 1
            draft.add_note(
                f"{kernel.name}: a space of up to {points:,} points; level = 1 is written"
            )
    if not draft.kernels:
        draft.add_note(f"{name} was run, and no call of tune_kernel could be read")


# A kernel's declaration in a source, and the arguments that a manifest declares of it.

_ELEMENT_TYPE_OF_VECTOR = {
    f"{sign[:1]}{element}{width}": f"{sign} {element}"
    for sign, kinds in (("", ("float", "double")), ("unsigned", ()))
    for element in (*kinds, "char", "short", "int", "long")
    for width in (2, 3, 4)
}
"""The type of the elements, by the name of a vector: "unsigned int" for "uint4"."""


def _find_declaration(source: KernelSource, name: str) -> tuple[str, DeclaredKernel] | None:
    """Find the `__global__` function `name`, such as "ns::f" or "f<float>", in a source. Return its
    name for `kernel` in a manifest and its declaration; None if there is none."""
    base_name, _, template_arguments = name.partition("<")
    for kernel in source.kernels:
        if kernel.plain == base_name.rpartition("::")[2]:
            return (name if template_arguments else kernel.name), kernel
    return None


def _add_arguments(
    draft: ManifestDraft, kernel: KernelDraft, declaration: DeclaredKernel, source: KernelSource
) -> None:
    """Add the arguments that the source declares. The size of each array is the kernel's only
    integer argument, or 1 with a note. An array that the source assigns to is an output."""
    arguments = declaration.parameters
    sizes = [a.name for a in arguments if a.dtype in ("i32", "i64") and not a.is_pointer]
    size = sizes[0] if len(sizes) == 1 else "1"
    assigned_names = source.list_assigned_arrays()
    for argument in arguments:
        name, type_ = argument.name, argument.dtype
        if type_ in ("", "void") or not name:
            note = f"the type of an argument is not understood: {argument.text}"
            draft.add_note(f"{kernel.name}: {note}")
            type_ = "u8"
        if not argument.is_pointer:
            kernel.args[name] = type_
            continue
        # A kernel may only read through a pointer that is not const, so an output is one that the
        # source assigns to, as `c[i] += x`.
        tensor = f"{type_}*[{size}]"
        is_out = name in assigned_names and not argument.is_const
        kernel.args[name] = {"type": tensor, "out": True} if is_out else tensor
    if size == "1" and any(argument.is_pointer for argument in arguments):
        draft.add_note(
            f"{kernel.name}: the sizes of its arrays are not known; they are written as [1]"
        )


def _add_constants(
    draft: ManifestDraft, kernel: KernelDraft, names: Iterable[str], source: KernelSource
) -> None:
    """Add the `__constant__` variables `names`, which a caller fills, as arguments. A caller may
    fill less than an array holds, so its size becomes an argument, too. A variable becomes a note
    if the source does not declare it, if its type is not understood, or if `kernel` has it."""
    for name in names:
        variable = source.variables.get(name)
        is_array = variable is not None and "[" in variable.text
        # A pointer has no size to copy.
        is_read = variable is not None and variable.dtype and variable.is_pointer == is_array
        if variable is None or not is_read or name in kernel.args:
            draft.add_note(
                f"{kernel.name}: no argument was found to fill {name}: declare it in args"
            )
            continue
        if not is_array:
            kernel.args[name] = {"type": variable.dtype, "constant": True}
            continue
        size = f"{name}_size"
        while size in kernel.args:
            size += "_"
        kernel.args[name] = {"type": f"{variable.dtype}*[{size}]", "constant": True}
        kernel.args[size] = {"type": "i32", "parameter": False}
