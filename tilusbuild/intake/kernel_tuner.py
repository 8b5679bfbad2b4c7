"""A Kernel Tuner script, read and never run: the calls of `tune_kernel` and what they are given."""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tilusbuild.expr import ExprError, Value, parse
from tilusbuild.intake.draft import Draft, KernelDraft, name_of, standard
from tilusbuild.intake.kernels import declared, take_arguments, take_constants, without_comments
from tilusbuild.intake.python_script import Function, Script, Template, Values
from tilusbuild.manifest.pure_flags import impure
from tilusbuild.runtime.regular import read_text
from tilusbuild.space.space import MAX_SCHEDULES

_PARAMETERS = ("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params")
_NEEDED: dict[str, tuple[type, ...]] = {
    "kernel_name": (str,),
    "kernel_source": (str, list, Template),
    "tune_params": (dict,),
}
_BLOCK = ("block_size_x", "block_size_y", "block_size_z")
_DEFAULT_BLOCK = (256, 1, 1)
_SUFFIXES = (".cu", ".cuh", ".cpp", ".c")
_LANGUAGES = ("cuda", "cupy", "nvcuda")
_MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of `tune_kernel`: what was written for each argument, and what it is."""

    where: str
    written: Mapping[str, ast.expr]
    said: Mapping[str, object]
    known: Values

    def shown(self, name: str) -> str:
        """Return an argument's text, for a note."""
        text = ast.unparse(self.written[name]) if name in self.written else "nothing"
        return text if len(text) <= 40 else f"{text[:37]}..."


@dataclass(frozen=True, slots=True)
class _Reader:
    draft: Draft
    root: str
    script: str
    files: dict[str, str]
    calls: dict[str, ast.Call] = field(default_factory=dict)
    """The call that each kernel is of, by the kernel's name."""

    def call(self, node: ast.Call, known: Values, script: Script) -> None:
        """Add the kernel of one call to the draft, or a note."""
        written: dict[str, ast.expr] = dict(zip(_PARAMETERS, node.args, strict=False))
        written |= {word.arg: word.value for word in node.keywords if word.arg}
        said = {name: script.value(each, known) for name, each in written.items()}
        given = _Call(f"{self.script}:{node.lineno}", written, said, known)
        problem, notes = self._problem(given), dict(self.draft.notes)
        if problem is None:
            problem = self._kernel(given)
        if problem is None and self._is_there_already(node):
            # By an earlier round of a loop: over devices, say.
            self.files.pop(self.draft.kernels.pop().template, None)
            self.draft.notes = notes
        if problem is not None:
            self.draft.note(f"left out: {given.where} {problem}")

    def _is_there_already(self, node: ast.Call) -> bool:
        """Return whether the last kernel is an earlier one of the same call by another name."""
        *before, last = self.draft.kernels
        earlier = [each for each in before if self.calls[each.name] is node]
        self.calls[last.name] = node
        text = self.files.get(last.template, last.template)
        return any(
            replace(last, name=each.name, template=each.template) == each
            and text == self.files.get(each.template, each.template)
            for each in earlier
        )

    def _problem(self, given: _Call) -> str | None:
        said = given.said
        if str(said.get("lang") or "cuda").lower() not in _LANGUAGES:
            return (
                f"tunes a function of lang = {said['lang']!r}: only CUDA kernels are read, and no "
                "host function that measures them itself"
            )
        if "texmem_args" in given.written:
            return "needs texture references, which CUDA has no longer"
        for name, kinds in _NEEDED.items():
            if not isinstance(said.get(name), kinds):
                shown = given.shown(name)
                return f"is given a {name} that only running the script would show: {shown}"
        return None

    def _kernel(self, given: _Call) -> str | None:
        """Add a kernel. Return why it cannot be."""
        name, source, space = (given.said[each] for each in _NEEDED)
        taken = [each.name for each in self.draft.kernels]
        kernel = KernelDraft(name_of(str(name), taken), "", str(name))
        text = self._source(given, kernel, source)
        if text is None:
            return f"tunes {kernel.template}, which is not there"
        code = without_comments(text)
        found = declared(code, kernel.kernel)
        if found is None:
            return f"tunes {name}: {kernel.template} declares no such kernel (is it OpenCL?)"
        kernel.kernel = found.name
        take_space(self.draft, kernel, space if isinstance(space, dict) else {})
        take_arguments(self.draft, kernel, found, code)
        self._constants(given, kernel, code)
        self._defines(given, kernel, text)
        self._rules(given, kernel)
        self._launch(given, kernel)
        self._options(given, kernel)
        self.draft.kernels.append(kernel)
        return None

    def _constants(self, given: _Call, kernel: KernelDraft, code: str) -> None:
        filled = given.said.get("cmem_args")
        if isinstance(filled, dict):
            take_constants(self.draft, kernel, map(str, filled), code)
        elif "cmem_args" in given.written and filled != []:
            shown = given.shown("cmem_args")
            self.draft.note(f"{kernel.name}: its cmem_args are not understood: {shown}")

    def _source(self, given: _Call, kernel: KernelDraft, source: object) -> str | None:
        """Return the text of a kernel's file, which it makes where the script has it as text."""
        if isinstance(source, list):
            first = source[0] if source else None
            self.draft.note(
                f"{kernel.name}: its other sources are not written; it may include them"
            )
            source = first
        if isinstance(source, Template):
            kernel.rendered = kernel.jinja2 = True
            source = source.text
        if not isinstance(source, str):
            kernel.template = given.shown("kernel_source")
            return None
        if source.endswith(_SUFFIXES) and "\n" not in source:
            beside = os.path.join(os.path.dirname(self.script), source)
            kernel.template = os.path.normpath(beside)
            path = os.path.join(self.root, kernel.template)
            return read_text(path, "replace") if os.path.isfile(path) else None
        kernel.template = f"kernels/{kernel.name}.cu" + (".j2" if kernel.rendered else "")
        self.files[kernel.template] = source
        return source

    def _defines(self, given: _Call, kernel: KernelDraft, text: str) -> None:
        """Leave the macros out that a script does not want; add those that its source asks for."""
        names = [*kernel.space, *kernel.params]
        head, bracket, rest = kernel.kernel.partition("<")
        if bracket and "defines" in given.written:
            pattern = r"\b(" + "|".join(map(re.escape, names)) + r")\b"
            kernel.kernel = head + bracket + re.sub(pattern, r"{{ \1 }}", rest)
        if "defines" in given.written:
            kernel.flags.clear()
            if given.said.get("defines") != {}:
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

    def _rules(self, given: _Call, kernel: KernelDraft) -> None:
        rules = given.said.get("restrictions")
        listed = rules if isinstance(rules, list) else [rules]
        if "restrictions" not in given.written or rules == []:
            listed = []
        node = given.written.get("restrictions")
        nodes = node.elts if isinstance(node, ast.List) else []
        for number, rule in enumerate(listed, 1):
            text = self._expression(given, kernel, rule)
            if text is None:
                shown = ast.unparse(nodes[number - 1]) if number <= len(nodes) else str(rule)
                shown = given.shown("restrictions") if rule is None and not nodes else shown
                self.draft.note(f"{kernel.name}: a restriction is not understood: {shown}")
            else:
                kernel.restrict[f"rule_{number}"] = text
        sizes = [kernel.space[name] for name in self._block(given) if name in kernel.space]
        most = 1
        for values in sizes:
            if isinstance(values, list):
                most *= max((each for each in values if isinstance(each, int)), default=1)
        if most > _MAX_THREADS:
            product = " * ".join(name for name in self._block(given) if name in kernel.space)
            kernel.restrict["threads"] = f"{product} <= arch.threads_per_block"

    def _expression(self, given: _Call, kernel: KernelDraft, rule: object) -> str | None:
        """Return a text or a function of the parameters as an expression."""
        names = {*kernel.space, *kernel.params}
        text = rule
        if isinstance(rule, Function):
            text = _body(rule, names, given.known)
        if not isinstance(text, str):
            return None
        try:
            unknown = parse(text).names - names
        except ExprError as error:
            self.draft.note(f"{kernel.name}: {text}: {error.message}")
            return None
        return text if not unknown else None

    def _block(self, given: _Call) -> list[str]:
        names = given.said.get("block_size_names")
        known = isinstance(names, list) and all(isinstance(each, str) for each in names)
        return [str(each) for each in names] if known and isinstance(names, list) else [*_BLOCK]

    def _launch(self, given: _Call, kernel: KernelDraft) -> None:
        block = self._block(given)
        wide: list[Value] = [
            name if name in kernel.space else size
            for name, size in zip(block, _DEFAULT_BLOCK, strict=False)
        ]
        while len(wide) > 1 and wide[-1] == 1:
            wide.pop()
        kernel.block = wide
        sizes = self._sizes(given, kernel)
        for axis, size, own in zip("xyz", sizes, block, strict=False):
            node = given.written.get(f"grid_div_{axis}", ast.Constant(None))
            divisors = given.said.get(f"grid_div_{axis}")
            if isinstance(node, ast.Constant) and divisors is None:
                divisors = [own] if own in kernel.space else []
            kernel.grid.append(self._divided(given, kernel, size, divisors, axis))
        smem = given.said.get("smem_args")
        if isinstance(smem, dict):
            most = smem.get("size")
            kernel.smem = most if isinstance(most, int) else self._expression(given, kernel, most)
            if kernel.smem is None:
                self.draft.note(f"{kernel.name}: the size of its shared memory is not understood")

    def _sizes(self, given: _Call, kernel: KernelDraft) -> list[Value]:
        """Return the problem's size by axis: numbers, and expressions."""
        said, node = given.said.get("problem_size"), given.written.get("problem_size")
        nodes = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        values = said if isinstance(said, list) else [said]
        sizes: list[Value] = []
        for index, value in enumerate(values):
            # What the script calls as the kernel does is the argument: it may change from call to
            # call.
            name = getattr(nodes[index], "id", "") if len(nodes) == len(values) else ""
            if kernel.args.get(name) in ("i32", "i64"):
                sizes.append(name)
            elif isinstance(value, int):
                sizes.append(value)
            elif (text := self._expression(given, kernel, value)) is not None:
                sizes.append(text)
            else:
                axis = "xyz"[min(index, 2)]
                self.draft.note(
                    f"{kernel.name}: the problem's size in {axis} is not known; 1 is written"
                )
                sizes.append(1)
        return sizes

    def _divided(
        self, given: _Call, kernel: KernelDraft, size: Value, divisors: object, axis: str
    ) -> Value:
        """Return a size by its divisors, each of which Kernel Tuner rounds down."""
        each = divisors if isinstance(divisors, list) else [divisors]
        texts = []
        for divisor in each:
            if isinstance(divisor, int):
                texts.append(str(divisor))
                continue
            text = self._expression(given, kernel, divisor)
            if text is None:
                shown = given.shown(f"grid_div_{axis}")
                self.draft.note(
                    f"{kernel.name}: the grid's divisor in {axis} is not known: {shown}"
                )
            else:
                texts.append(_floored(text))
        if not texts:
            return size
        by = " * ".join(f"({text})" if re.search(r"\W", text) else text for text in texts)
        return f"cdiv({size}, {by})"

    def _options(self, given: _Call, kernel: KernelDraft) -> None:
        options = given.said.get("compiler_options")
        if "compiler_options" not in given.written:
            return
        words = options if isinstance(options, list) else [options]
        for word in words:
            said = re.fullmatch(r"--?std[= ](\S+)", str(word))
            if said and (std := standard(said[1])):
                self.draft.std = self.draft.std or std
            elif isinstance(word, str) and not list(impure([word], cpu=False)):
                kernel.flags.append(word)
            else:
                shown = word if isinstance(word, str) else given.shown("compiler_options")
                self.draft.note(f"{kernel.name}: an option of the compiler is left out: {shown}")


def read(draft: Draft, root: str, name: str, files: dict[str, str]) -> None:
    """Add the kernels of a script to a draft; `files` takes the sources that it holds as text.
    Raises `SyntaxError`, and `RecursionError` of a script that is nested too deep."""
    reader = _Reader(draft, root, name, files)
    script = Script(
        name,
        "tune_kernel",
        found=lambda call, known: reader.call(call, known, script),
        missed=lambda call: draft.note(
            f"left out: {name}:{call.lineno} is a call of tune_kernel that was not come to"
        ),
    )
    script.walk(read_text(os.path.join(root, name), "replace"))
    if not script.is_whole:
        draft.note(f"{name} is too long to be followed to its end")
    for kernel in draft.kernels:
        points = math.prod(len(v) for v in kernel.space.values() if isinstance(v, list))
        if points > MAX_SCHEDULES:
            draft.level = 1
            draft.note(f"{kernel.name}: a space of up to {points:,} points; level = 1 is written")
    if not draft.kernels:
        draft.note(f"{name} has no call of tune_kernel that could be read")


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


class _Parameters(ast.NodeTransformer):
    """Writes `p["block"]` as `block`, and what is known besides the parameters as its value."""

    def __init__(self, table: str | None, names: set[str], known: Values) -> None:
        self.table, self.names, self.known = table, names, known

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.table:
            key = node.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                return ast.Name(key.value)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self.known.get(node.id)
        is_own = node.id in self.names or node.id == self.table
        return ast.Constant(value) if not is_own and isinstance(value, str | int) else node


def _body(function: Function, names: set[str], known: Values) -> str | None:
    """Return what a function of a configuration computes, as an expression over its parameters."""
    arguments = [each.arg for each in function.args.args]
    if isinstance(function, ast.Lambda):
        body: ast.AST | None = function.body
    else:
        *before, last = function.body
        plain = all(isinstance(each, ast.Expr) for each in before)  # a docstring
        body = last.value if isinstance(last, ast.Return) and plain else None
    if body is None:
        return None
    table = arguments[0] if len(arguments) == 1 and arguments[0] not in names else None
    # Of a copy: the same function may be given to several calls.
    copied = ast.parse(ast.unparse(body), mode="eval").body
    return ast.unparse(_Parameters(table, names, known).visit(copied))


def _floored(text: str) -> str:
    """Return an expression whose value is rounded down: `a / b` as `a // b`."""
    tree = ast.parse(text.strip(), mode="eval").body
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
        return ast.unparse(ast.BinOp(tree.left, ast.FloorDiv(), tree.right))
    return text
