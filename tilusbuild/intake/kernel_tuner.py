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
from tilusbuild.intake.builds import recorded
from tilusbuild.intake.draft import Draft, KernelDraft, name_of, standard
from tilusbuild.manifest.check_targets import flag_problems
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


def _shown(value: object) -> str:
    """Return a recorded value for a note."""
    text = str(value["?"]) if isinstance(value, dict) and "?" in value else str(value)
    return text if len(text) <= recorder.LIMIT else f"{text[: recorder.LIMIT]}..."


class _Reader(Struct, frozen=True):
    draft: Draft
    root: str
    files: dict[str, str]
    """Takes the sources that the script holds as text, by the names that they are to have."""

    def call(self, said: Mapping[str, Any]) -> str | None:
        """Add the kernel of one call to the draft. Return why it cannot be."""
        if str(said.get("lang") or "cuda").lower() not in _LANGUAGES:
            return (
                f"tunes a function of lang = {said['lang']!r}: only CUDA kernels are read, and no "
                "host function that measures them itself"
            )
        if "texmem_args" in said:
            return "needs texture references, which CUDA no longer has"
        source, space = said.get("kernel_source"), said.get("tune_params")
        others = source[1:] if isinstance(source, list) else []
        source = source[0] if isinstance(source, list) and source else source
        if not isinstance(source, str):
            return f"is given a kernel_source that is not text: {_shown(source)}"
        if not isinstance(space, dict):
            return f"is given tune_params that are not a dictionary: {_shown(space)}"
        name = str(said.get("kernel_name"))
        taken = [each.name for each in self.draft.kernels]
        kernel = KernelDraft(name_of(name, taken), "", name)
        text = self._source(kernel, source)
        if text is None:
            return f"tunes {kernel.template}, which does not exist"
        code = blank_comments(text, jinja=False)
        found = _declared(code, kernel.kernel)
        if found is None:
            return f"tunes {name}: {kernel.template} declares no such kernel (is it OpenCL?)"
        kernel.kernel, declaration = found
        if others:
            self._note(kernel, "its other sources are not written; it may include them")
        self._space(kernel, space)
        _take_arguments(self.draft, kernel, declaration, code)
        if isinstance(filled := said.get("cmem_args"), dict):
            _take_constants(self.draft, kernel, filled, code)
        self._macros(said, kernel, text)
        self._rules(said, kernel)
        self._launch(said, kernel)
        self._options(said, kernel)
        self.draft.kernels.append(kernel)
        return None

    def _note(self, kernel: KernelDraft, text: str) -> None:
        self.draft.note(f"{kernel.name}: {text}")

    def _source(self, kernel: KernelDraft, source: str) -> str | None:
        """Return the text of a kernel's file, which it makes where the script has it as text."""
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

    def _space(self, kernel: KernelDraft, space: Mapping[str, object]) -> None:
        """Add parameters, each of them a macro as well, as Kernel Tuner has it."""
        for name, values in space.items():
            if not isinstance(values, list) or not values or not _plain(values):
                self._note(kernel, f"the values of {name} are not understood")
                continue
            # A value that appears twice is one schedule here.
            kernel.space[name] = list({(type(each), each): each for each in values}.values())
            kernel.flags.append(f"-D{name}={{{{ {name} }}}}")

    def _macros(self, said: Mapping[str, Any], kernel: KernelDraft, text: str) -> None:
        """Add the macros that a source asks for, and note what it has of Kernel Tuner's only."""
        names = [*kernel.space]
        sizes = dict(zip(_BLOCK, _DEFAULT_BLOCK, strict=True)) | {"kernel_tuner": 1}
        for name, value in sizes.items():
            if name not in names and re.search(rf"\b{name}\b", text):
                kernel.flags.append(f"-D{name}={value}")
        if said.get("defines") is not None:
            self._note(kernel, "its defines are not read: each parameter is a macro")
        for name in re.findall(r"\bgrid_size_[xyz]\b|(?<=#pragma unroll )loop_unroll_\w+", text):
            self._note(
                kernel, f"Kernel Tuner writes {name} into the source itself; nothing here does"
            )

    def _rules(self, said: Mapping[str, Any], kernel: KernelDraft) -> None:
        for number, rule in enumerate(_listed(said.get("restrictions")), 1):
            text = self._expression(kernel, rule)
            if text is None:
                self._note(kernel, f"a restriction is not understood: {_shown(rule)}")
            else:
                kernel.restrict[f"rule_{number}"] = text
        names = [name for name in _block(said) if name in kernel.space]
        values = [kernel.space[name] for name in names]
        widest = [
            [v for v in each if isinstance(v, int)] for each in values if isinstance(each, list)
        ]
        if math.prod(max(each, default=1) for each in widest) > _MAX_THREADS:
            kernel.restrict["threads"] = f"{' * '.join(names)} <= arch.threads_per_block"

    def _expression(self, kernel: KernelDraft, rule: object) -> str | None:
        """Return a text as an expression over the parameters; None for what is none."""
        if not isinstance(rule, str):
            return None
        try:
            unknown = parse_expression(rule).names - {*kernel.space}
        except ExprError as error:
            self._note(kernel, f"{rule}: {error.message}")
            return None
        return rule if not unknown else None

    def _launch(self, said: Mapping[str, Any], kernel: KernelDraft) -> None:
        block = _block(said)
        wide: list[Value] = [
            name if name in kernel.space else size
            for name, size in zip(block, _DEFAULT_BLOCK, strict=False)
        ]
        while len(wide) > 1 and wide[-1] == 1:
            wide.pop()
        kernel.block = wide
        sizes = self._sizes(said, kernel)
        for axis, size, own in zip("xyz", sizes, block, strict=False):
            divisors = said.get(f"grid_div_{axis}")
            if divisors is None:
                divisors = [own] if own in kernel.space else []
            kernel.grid.append(self._divided(kernel, size, divisors, axis))
        smem = said.get("smem_args")
        if isinstance(smem, dict):
            most = smem.get("size")
            kernel.smem = most if isinstance(most, int) else self._expression(kernel, most)
            if kernel.smem is None:
                self._note(kernel, "the size of its shared memory is not understood")

    def _sizes(self, said: Mapping[str, Any], kernel: KernelDraft) -> Iterator[Value]:
        """Yield the problem's size by axis: numbers, arguments of the kernel, expressions."""
        names = [*kernel.args]
        parts = _listed(said.get("problem_size"))
        for axis, value, at in zip("xyz", parts, said["size arguments"], strict=False):
            name = names[at] if at is not None and at < len(names) else ""
            if kernel.args.get(name) in ("i32", "i64"):
                yield name
            elif isinstance(value, int):
                yield value
            elif (text := self._expression(kernel, value)) is not None:
                yield text
            else:
                self._note(kernel, f"the problem's size in {axis} is not known; 1 is written")
                yield 1

    def _divided(self, kernel: KernelDraft, size: Value, divisors: object, axis: str) -> Value:
        """Return a size by its divisors, each of which is a whole number."""
        texts = []
        for divisor in _listed(divisors):
            text = str(divisor) if isinstance(divisor, int) else self._expression(kernel, divisor)
            if text is None:
                self._note(kernel, f"the grid's divisor in {axis} is not known: {_shown(divisor)}")
            else:
                texts.append(f"({text})" if re.search(r"\W", text) else text)
        return f"cdiv({size}, {' * '.join(texts)})" if texts else size

    def _options(self, said: Mapping[str, Any], kernel: KernelDraft) -> None:
        for word in _listed(said.get("compiler_options")):
            asked = re.fullmatch(r"--?std[= ](\S+)", str(word))
            if asked and (std := standard(asked[1])):
                self.draft.toolchain.setdefault("std", std)
            elif isinstance(word, str) and not any(flag_problems([word], unsafe=False, cpu=False)):
                kernel.flags.append(word)
            else:
                self._note(kernel, f"an option of the compiler is left out: {_shown(word)}")


def _listed(value: object) -> list[Any]:
    """Return what may be given alone or in a list as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _block(said: Mapping[str, Any]) -> list[str]:
    names = said.get("block_size_names")
    return [str(each) for each in names] if isinstance(names, list) else [*_BLOCK]


def _plain(values: Iterable[object]) -> bool:
    plain = all(isinstance(each, str | int | float) for each in values)
    return plain and all(math.isfinite(each) for each in values if isinstance(each, float))


def read(draft: Draft, root: str, name: str, files: dict[str, str]) -> None:
    """Run a script and add the kernels that it tunes to a draft; `files` takes the sources that it
    holds as text. Raises `InputError`."""
    reader = _Reader(draft, root, files)
    what = ("called tune_kernel", "call")
    for said in recorded(draft, root, name, recorder.__file__, (), what):
        if problem := reader.call(said):
            draft.note(f"left out: {name}:{said['where']} {problem}")
    for kernel in draft.kernels:
        points = math.prod(len(v) for v in kernel.space.values() if isinstance(v, list))
        if points > MAX_SCHEDULES:
            draft.level = 1
            draft.note(f"{kernel.name}: a space of up to {points:,} points; level = 1 is written")
    if not draft.kernels:
        draft.note(f"{name} was run, and no call of tune_kernel could be read")


# A kernel's declaration in a source, and the arguments that a manifest declares of it.

_VECTORS = {
    f"{sign[:1]}{of}{width}": f"{sign} {of}"
    for sign, kinds in (("", ("float", "double")), ("unsigned", ()))
    for of in (*kinds, "char", "short", "int", "long")
    for width in (2, 3, 4)
}
"""Of a vector the type is that of its elements."""


def _declared(text: str, name: str) -> tuple[str, DeclaredKernel] | None:
    """Return a `__global__` function as `kernel` in a manifest has it, and its declaration; None
    where there is none."""
    plain, _, given = name.partition("<")
    for kernel in find_kernels(text):
        if kernel.plain == plain.rpartition("::")[2]:
            return (name if given else kernel.name), kernel
    return None


def _take_arguments(draft: Draft, kernel: KernelDraft, found: DeclaredKernel, text: str) -> None:
    """Add the arguments of a kernel to its draft."""
    named = {**_VECTORS, **find_aliases(text)}
    types = [read_parameter(each.text, named) for each in found.parameters]
    sizes = [each.name for each in types if each.dtype in ("i32", "i64") and not each.is_pointer]
    size = sizes[0] if len(sizes) == 1 else "1"
    for each in types:
        type_ = each.dtype
        if type_ in ("", "void") or not each.name:
            draft.note(f"{kernel.name}: the type of an argument is not understood: {each.text}")
            type_ = "u8"
        if not each.is_pointer:
            kernel.args[each.name] = type_
            continue
        written = re.search(rf"\b{re.escape(each.name)}\s*\[[^;]*?\]\s*[-+*/|&^]?=[^=]", text)
        tensor = f"{type_}*[{size}]"
        is_out = written is not None and not each.is_const
        kernel.args[each.name] = {"type": tensor, "out": True} if is_out else tensor
    if size == "1" and any(each.is_pointer for each in types):
        draft.note(f"{kernel.name}: the sizes of its arrays are not known; they are written as [1]")


def _take_constants(draft: Draft, kernel: KernelDraft, names: Iterable[str], text: str) -> None:
    """Add the `__constant__` variables that a caller fills to a kernel's arguments. A caller may
    fill less of an array than there is, so its size is that of what is given."""
    named = {**_VECTORS, **find_aliases(text)}
    for name in names:
        own = re.escape(name)
        # Bounded, because the source is not trusted.
        match = re.search(
            rf"__(?:constant|device)__([\w\s]{{1,200}})\b{own}\s{{0,20}}(\[[^;={{]{{0,500}}\])?"
            r"\s{0,20}[;={]",
            text,
        )
        type_ = read_parameter(f"{match[1]} {name}", named).dtype if match else ""
        if match is None or not type_ or name in kernel.args:
            draft.note(f"{kernel.name}: no argument was found to fill {name}: declare it in args")
            continue
        if match[2] is None:
            kernel.args[name] = {"type": type_, "constant": True}
            continue
        size = f"{name}_size"
        while size in kernel.args:
            size += "_"
        kernel.args[name] = {"type": f"{type_}*[{size}]", "constant": True}
        kernel.args[size] = {"type": "i32", "parameter": False}
