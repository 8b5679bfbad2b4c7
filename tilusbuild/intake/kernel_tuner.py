"""A Kernel Tuner script, run once in a child process with a `tune_kernel` that only writes down
what it is given (`recorder.py`), and the kernels of these calls.

The script is the user's own and is run as its author runs it, in its directory and with this
Python, as `make` runs a Makefile: what it does besides calling `tune_kernel`, it does. Price: what
it imports must be installed, and branches that it does not take are not seen.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.errors import input_error
from tilusbuild.expr import ExprError, Value, parse
from tilusbuild.intake import recorder
from tilusbuild.intake.draft import Draft, KernelDraft, name_of, standard
from tilusbuild.intake.kernels import declared, take_arguments, take_constants, without_comments
from tilusbuild.manifest.pure_flags import impure
from tilusbuild.process.base import Command
from tilusbuild.process.local import LocalRunner
from tilusbuild.runtime.regular import read_text
from tilusbuild.space.space import MAX_SCHEDULES
from tilusbuild.state.temporary import TemporaryDirectory

_TIMEOUT = 120.0
"""Seconds."""
_BLOCK = ("block_size_x", "block_size_y", "block_size_z")
_DEFAULT_BLOCK = (256, 1, 1)
_SUFFIXES = (".cu", ".cuh", ".cpp", ".c")
_LANGUAGES = ("cuda", "cupy", "nvcuda")
_MAX_THREADS = 1024
_MAX_SHOWN = 40


def _shown(value: object) -> str:
    """Return a recorded value for a note."""
    text = str(value["?"]) if isinstance(value, dict) and "?" in value else str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


class _Reader(Struct, frozen=True):
    draft: Draft
    root: str
    script: str
    files: dict[str, str]
    lines: dict[str, int] = field(default_factory=dict)
    """The line of the call that each kernel is of, by the kernel's name."""

    def call(self, said: Mapping[str, Any]) -> None:
        """Add the kernel of one call to the draft, or a note."""
        notes = dict(self.draft.notes)
        problem = self._problem(said) or self._kernel(said)
        if problem is not None:
            self.draft.note(f"left out: {self.script}:{said['where']} {problem}")
        elif self._is_there_already(said):
            # By an earlier round of a loop: over devices, say.
            self.files.pop(self.draft.kernels.pop().template, None)
            self.draft.notes = notes

    def _is_there_already(self, said: Mapping[str, Any]) -> bool:
        """Return whether the last kernel is an earlier one of the same line by another name."""
        *before, last = self.draft.kernels
        line = self.lines[last.name] = int(str(said["where"]))
        text = self.files.get(last.template, last.template)
        return any(
            replace(last, name=each.name, template=each.template) == each
            and text == self.files.get(each.template, each.template)
            for each in before
            if self.lines[each.name] == line
        )

    def _problem(self, said: Mapping[str, Any]) -> str | None:
        if str(said.get("lang") or "cuda").lower() not in _LANGUAGES:
            return (
                f"tunes a function of lang = {said['lang']!r}: only CUDA kernels are read, and no "
                "host function that measures them itself"
            )
        if "texmem_args" in said:
            return "needs texture references, which CUDA has no longer"
        source = said.get("kernel_source")
        if not isinstance(source, str | list) and "template" not in (source or {}):
            return f"is given a kernel_source that is not text: {_shown(source)}"
        if not isinstance(said.get("tune_params"), dict):
            return (
                f"is given tune_params that are not a dictionary: {_shown(said.get('tune_params'))}"
            )
        return None

    def _kernel(self, said: Mapping[str, Any]) -> str | None:
        """Add a kernel. Return why it cannot be."""
        name, space = str(said.get("kernel_name")), said["tune_params"]
        taken = [each.name for each in self.draft.kernels]
        kernel = KernelDraft(name_of(name, taken), "", name)
        text = self._source(kernel, said["kernel_source"])
        if text is None:
            return f"tunes {kernel.template}, which is not there"
        code = without_comments(text)
        found = declared(code, kernel.kernel)
        if found is None:
            return f"tunes {name}: {kernel.template} declares no such kernel (is it OpenCL?)"
        kernel.kernel = found.name
        take_space(self.draft, kernel, space)
        take_arguments(self.draft, kernel, found, code)
        if isinstance(filled := said.get("cmem_args"), dict):
            take_constants(self.draft, kernel, filled, code)
        self._defines(said, kernel, text)
        self._rules(said, kernel)
        self._launch(said, kernel)
        self._options(said, kernel)
        self.draft.kernels.append(kernel)
        return None

    def _source(self, kernel: KernelDraft, source: object) -> str | None:
        """Return the text of a kernel's file, which it makes where the script has it as text."""
        if isinstance(source, list):
            first = source[0] if source else None
            self.draft.note(
                f"{kernel.name}: its other sources are not written; it may include them"
            )
            source = first
        if isinstance(source, dict) and "template" in source:
            kernel.rendered = kernel.jinja2 = True
            source = source["template"]
        if not isinstance(source, str):
            kernel.template = _shown(source)
            return None
        if source.endswith(_SUFFIXES) and "\n" not in source:
            kernel.template = os.path.relpath(os.path.join(self.root, source), self.root)
            path = os.path.join(self.root, kernel.template)
            return read_text(path, "replace") if os.path.isfile(path) else None
        for name in sorted(os.listdir(self.root)):
            path = os.path.join(self.root, name)
            if name.endswith((*_SUFFIXES, ".j2")) and read_text(path, "replace") == source:
                kernel.template = name  # the script has read it
                return source
        kernel.template = f"kernels/{kernel.name}.cu" + (".j2" if kernel.rendered else "")
        self.files[kernel.template] = source
        return source

    def _defines(self, said: Mapping[str, Any], kernel: KernelDraft, text: str) -> None:
        """Leave the macros out that a script does not want; add those that its source asks for."""
        names = [*kernel.space, *kernel.params]
        if (defines := said.get("defines")) is not None:
            head, bracket, rest = kernel.kernel.partition("<")
            if bracket:
                pattern = r"\b(" + "|".join(map(re.escape, names)) + r")\b"
                kernel.kernel = head + bracket + re.sub(pattern, r"{{ \1 }}", rest)
            kernel.flags.clear()
            if defines:
                self.draft.note(f"{kernel.name}: its defines are not written: give them as flags")
            return
        self._unrolled(kernel)
        sizes = dict(zip(_BLOCK, _DEFAULT_BLOCK, strict=True)) | {"kernel_tuner": 1}
        for name, value in sizes.items():
            if name not in names and re.search(rf"\b{name}\b", text):
                kernel.flags.append(f"-D{name}={value}")
        if re.search(r"\bgrid_size_[xyz]\b", text):
            self.draft.note(f"{kernel.name}: the macros grid_size_x, _y and _z are not defined")

    def _unrolled(self, kernel: KernelDraft) -> None:
        """Declare what `#pragma unroll` is given, where no macro is expanded, as Kernel Tuner does:
        by a template before the source."""
        names = [name for name in kernel.space if "loop_unroll_factor" in name]
        if not names or kernel.rendered:
            return
        before = "kernels"
        own = f"{before}/{kernel.name}.cu.j2"
        lines = [f"constexpr int {name} = {{{{ {name} }}}};" for name in names]
        lines.append(f'#include "{os.path.relpath(kernel.template, before)}"')
        self.files[own] = "\n".join(lines) + "\n"
        kernel.template, kernel.rendered = own, True
        for name in names:
            kernel.flags.remove(f"-D{name}={{{{ {name} }}}}")

    def _rules(self, said: Mapping[str, Any], kernel: KernelDraft) -> None:
        rules = said.get("restrictions") or []
        for number, rule in enumerate(rules if isinstance(rules, list) else [rules], 1):
            text = self._expression(kernel, rule)
            if text is None:
                self.draft.note(f"{kernel.name}: a restriction is not understood: {_shown(rule)}")
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
        names = {*kernel.space, *kernel.params}
        if not isinstance(rule, str):
            return None
        try:
            unknown = parse(rule).names - names
        except ExprError as error:
            self.draft.note(f"{kernel.name}: {rule}: {error.message}")
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
                self.draft.note(f"{kernel.name}: the size of its shared memory is not understood")

    def _sizes(self, said: Mapping[str, Any], kernel: KernelDraft) -> list[Value]:
        """Return the problem's size by axis: numbers, arguments of the kernel, expressions."""
        given, positions = said.get("problem_size"), said["size arguments"]
        names = [*kernel.args]
        sizes: list[Value] = []
        parts = given if isinstance(given, list) else [given]
        for axis, value, at in zip("xyz", parts, positions, strict=False):
            name = names[at] if at is not None and at < len(names) else ""
            if kernel.args.get(name) in ("i32", "i64"):
                sizes.append(name)
            elif isinstance(value, int):
                sizes.append(value)
            elif (text := self._expression(kernel, value)) is not None:
                sizes.append(text)
            else:
                self.draft.note(
                    f"{kernel.name}: the problem's size in {axis} is not known; 1 is written"
                )
                sizes.append(1)
        return sizes

    def _divided(self, kernel: KernelDraft, size: Value, divisors: object, axis: str) -> Value:
        """Return a size by its divisors, each of which Kernel Tuner rounds down."""
        texts = []
        for divisor in divisors if isinstance(divisors, list) else [divisors]:
            text = str(divisor) if isinstance(divisor, int) else self._expression(kernel, divisor)
            if text is None:
                self.draft.note(
                    f"{kernel.name}: the grid's divisor in {axis} is not known: {_shown(divisor)}"
                )
            else:
                texts.append(_floored(text))
        if not texts:
            return size
        by = " * ".join(f"({text})" if re.search(r"\W", text) else text for text in texts)
        return f"cdiv({size}, {by})"

    def _options(self, said: Mapping[str, Any], kernel: KernelDraft) -> None:
        options = said.get("compiler_options") or []
        for word in options if isinstance(options, list) else [options]:
            asked = re.fullmatch(r"--?std[= ](\S+)", str(word))
            if asked and (std := standard(asked[1])):
                self.draft.std = self.draft.std or std
            elif isinstance(word, str) and not list(impure([word], cpu=False)):
                kernel.flags.append(word)
            else:
                self.draft.note(
                    f"{kernel.name}: an option of the compiler is left out: {_shown(word)}"
                )


def _block(said: Mapping[str, Any]) -> list[str]:
    names = said.get("block_size_names")
    return [str(each) for each in names] if isinstance(names, list) else [*_BLOCK]


def _recorded(draft: Draft, root: str, name: str) -> list[dict[str, Any]]:
    """Run a script, and return what each of its calls was given. Raises `InputError` of a script
    that fails before its first call."""
    with TemporaryDirectory("import") as made, LocalRunner() as runner:
        package = os.path.join(made.path, "kernel_tuner")
        os.mkdir(package)
        shutil.copy(recorder.__file__, os.path.join(package, "__init__.py"))
        record = os.path.join(made.path, "calls")
        path = os.pathsep.join(filter(None, (made.path, os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path, "TILUSBUILD_RECORD": record}
        ended = runner.run(Command((sys.executable, name), root, env, timeout=_TIMEOUT))
        text = read_text(record) if os.path.exists(record) else ""
    calls = [json.loads(line) for line in text.splitlines()]
    if not ended.ok:
        how = f"has not ended after {_TIMEOUT:.0f} s" if ended.timed_out else "failed"
        said = ended.output.decode(errors="replace").strip()
        if not calls:
            raise input_error(f"{name} was run, and {how} before it called tune_kernel", hint=said)
        last = said.splitlines()[-1] if said else "it printed nothing"
        draft.note(f"{name} was run, and {how} after its call {len(calls)}: {last}")
    return calls


def read(draft: Draft, root: str, name: str, files: dict[str, str]) -> None:
    """Run a script and add the kernels that it tunes to a draft; `files` takes the sources that it
    holds as text. Raises `InputError`."""
    reader = _Reader(draft, root, name, files)
    for said in _recorded(draft, root, name):
        reader.call(said)
    for kernel in draft.kernels:
        points = math.prod(len(v) for v in kernel.space.values() if isinstance(v, list))
        if points > MAX_SCHEDULES:
            draft.level = 1
            draft.note(f"{kernel.name}: a space of up to {points:,} points; level = 1 is written")
    if not draft.kernels:
        draft.note(f"{name} was run, and no call of tune_kernel could be read")


def take_space(draft: Draft, kernel: KernelDraft, space: Mapping[object, object]) -> None:
    """Add parameters, each of them a macro as well, as Kernel Tuner has it."""
    for name, values in space.items():
        if not isinstance(values, list) or not values or not _plain(values):
            draft.note(f"{kernel.name}: the values of {name} are not understood")
            continue
        # A value that is there twice is one schedule here.
        kernel.space[str(name)] = list({(type(each), each): each for each in values}.values())
        kernel.flags.append(f"-D{name}={{{{ {name} }}}}")


def _plain(values: Iterable[object]) -> bool:
    plain = all(isinstance(each, str | int | float) for each in values)
    return plain and all(math.isfinite(each) for each in values if isinstance(each, float))


def _floored(text: str) -> str:
    """Return an expression whose value is rounded down: `a / b` as `a // b`."""
    tree = ast.parse(text.strip(), mode="eval").body
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
        return ast.unparse(ast.BinOp(tree.left, ast.FloorDiv(), tree.right))
    return text
