"""The process that imports a generator once and calls it for many programs.

A request has the function's file and name, the values of a schedule, and the target. An answer has
the source, or the error with its frames in the project; and everything that the process read since
the answer before (`reads.py`). What the generator prints is dropped.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib import metadata
from math import lcm
from operator import index
from typing import Any

from msgspec import ValidationError, convert, to_builtins

from tilusbuild.errors import did_you_mean
from tilusbuild.generate import Cubin, Source, Target
from tilusbuild.generate.reads import NO_NETWORK, ReadsNoter, UncachedLoader
from tilusbuild.process.resident import serve_requests
from tilusbuild.runtime.dtypes import DTYPES

# A rule that makes an argument, or a tensor's address, divisible.
_DIVISIBLE = re.compile(r"(\w+) % (\d+) == 0|align\((\w+)\) >= (\d+)|align\((\w+)\) % (\d+) == 0")

_PREFIX = "generator:"
"""Begins the name of the module of a file that is in no package."""

_UNDEFINED = re.compile(r"(\w+)'? is not defined")
"""What Python, and Triton, call a name without a value."""


class GeneratorError(Exception):
    """A generator is not a function as is needed, or returned something else than a source."""

    def __init__(
        self,
        message: str,
        line: int | None = None,
        hint: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message)
        self.line = line
        self.hint = hint
        self.path = path
        """The file of the line, if it is not the generator's."""


def make_arch_error(
    language: str, target: Target, line: int | None = None, arch: str | None = None
) -> GeneratorError:
    """Return the error for a target with architectures that a language does not compile. `arch` is
    the one that it compiles instead."""
    hint = f'set arch = "{arch}"' if arch else "make each GPU architecture a target of its own"
    return GeneratorError(f"{language} has no code for {', '.join(target.archs)}", line, hint)


def list_bound_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, or of which it calls a method, as `x.append`."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name):
                yield name
            case ast.alias(name=name, asname=new_name):
                yield new_name or name.partition(".")[0]
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
                yield name


def name_decorator(decorator: ast.expr) -> str:
    """Return the last name of a decorator: "autotune" of `@triton.autotune(…)`."""
    return ast.unparse(getattr(decorator, "func", decorator)).rpartition(".")[2]


class KernelLoader(UncachedLoader):
    """Runs a file of a kernel language, which often asks for a GPU beside its kernels: to choose
    configurations for `@autotune`, which is left out, or to call them at its end. So a statement
    that fails is passed over."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name, path)
        self._errors: dict[str, BaseException] = {}
        """The errors of statements, by the names that these bind."""

    def exec_module(self, module: Any) -> None:
        body = ast.parse(self.get_data(self.path), self.path).body
        futures = [s for s in body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    node.decorator_list = [
                        d for d in node.decorator_list if name_decorator(d) != "autotune"
                    ]
            tree = ast.Module([*futures, statement], [])
            code = compile(tree, self.path, "exec", dont_inherit=True)
            try:
                exec(code, vars(module))  # noqa: S102 - as every import does
            except (Exception, SystemExit) as error:
                # The first error of a name stays: later ones often follow from it.
                self._errors = dict.fromkeys(list_bound_names(statement), error) | self._errors

    def find_cause(self, error: BaseException) -> BaseException:
        """Return the error of the statement that binds the name that `error` misses; else it."""
        errors = {**self._errors}
        while (match := _UNDEFINED.search(str(error))) and match[1] in errors:
            error = errors.pop(match[1])
        return error


def import_file(path: str, loader_class: type[UncachedLoader] = UncachedLoader) -> Any:
    """Return the module of a file: of a package, if `__init__.py` stands beside it. The directory
    of the module, or of its outermost package, comes first in `sys.path`."""
    directory, name = os.path.split(path.removesuffix(".py"))
    while os.path.isfile(os.path.join(directory, "__init__.py")):
        directory, package = os.path.split(directory)
        name = f"{package}.{name}"
    if sys.path[0] != directory:
        sys.path.insert(0, directory)
    package = name.rpartition(".")[0]
    if package:
        importlib.import_module(package)
    # The file may be called as a module of Python's library is, such as copy.py.
    key = name if package else f"{_PREFIX}{path}"
    if key not in sys.modules:
        loader = loader_class(key, path)
        spec = importlib.machinery.ModuleSpec(key, loader, origin=path)
        spec.has_location = True  # gives the module its `__file__`
        sys.modules[key] = importlib.util.module_from_spec(spec)
        try:
            loader.exec_module(sys.modules[key])
        except BaseException:
            del sys.modules[key]
            raise
    return sys.modules[key]


@dataclasses.dataclass(frozen=True)
class LanguageArgument:
    """An argument of the manifest."""

    dtype: str
    align: int
    """Bytes that its address is a multiple of; 0 for no more than an element's."""
    dims: tuple[int | str, ...] | None
    """The shape of a tensor: numbers, and expressions over arguments. None for a scalar."""
    strides: tuple[int | str, ...] | None
    """Of a tensor that need not be contiguous, in elements."""

    @property
    def is_tensor(self) -> bool:
        return self.dims is not None


@dataclasses.dataclass(frozen=True)
class LanguageInputs:
    """The inputs of a kernel language besides a schedule's values."""

    arguments: Mapping[str, LanguageArgument]
    serves: tuple[str, ...]
    """The rules of `serves`, with values in place: each is true in each call."""
    grid: tuple[str, ...]
    """The manifest's, as expressions."""
    dumps: bool
    """Whether the texts of `ir` are asked for."""

    @property
    def conditions(self) -> list[str]:
        """Return the rules of `serves`, divided at their `and`."""
        rules = [ast.parse(rule, mode="eval").body for rule in self.serves]
        for rule in rules:  # also those that are added
            if isinstance(rule, ast.BoolOp) and isinstance(rule.op, ast.And):
                rules += rule.values
        return [ast.unparse(rule) for rule in rules]

    def find_divisors(self) -> dict[str, int]:
        """Return the number that an argument is a multiple of in each call, or a tensor's address
        in bytes, by name."""
        divisors = {name: argument.align or 1 for name, argument in self.arguments.items()}
        for condition in self.conditions:
            if match := _DIVISIBLE.fullmatch(condition):
                name, number = filter(None, match.groups())
                divisors[name] = lcm(divisors.get(name, 1), int(number))
        return divisors

    def check_type(self, name: str, dtype: str, is_pointer: bool, line: int | None = None) -> None:
        """Raise `GeneratorError` if the type of a kernel's parameter is not that of its argument.
        `dtype` is NumPy's name of it; "" is any."""
        argument = self.arguments.get(name)
        if argument is None:
            return  # the planner reports it
        declared = f"{argument.dtype}{'*' * argument.is_tensor}"
        known = DTYPES[argument.dtype].numpy if argument.dtype in DTYPES else dtype
        if is_pointer != (declared[-1] == "*") or dtype not in ("", known):
            message = f"{name} is {dtype or 'void'}{'*' * is_pointer}, not {declared}"
            raise GeneratorError(message, line)


def describe_packages(*names: str) -> str:
    """Return the version of the first of a compiler's packages, and the digest of the lists of all
    their files and those files' digests."""
    records = (metadata.distribution(name).read_text("RECORD") or "" for name in names)
    digest = hashlib.sha256("".join(records).encode()).hexdigest()
    return f"{names[0]} {metadata.version(names[0])} sha256:{digest}"


def call_by_name(function: Any, arguments: Mapping[str, Any]) -> tuple[Any, int | None]:
    """Return the result of a function, and its line. It gets those of `arguments` that its
    parameters name. Raises `GeneratorError`, and what the function raises."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = None if code is None else code.co_firstlineno
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for parameter in parameters:
        is_missing = parameter.default is parameter.empty and parameter.name not in arguments
        if is_missing and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise GeneratorError(
                f'it asks for "{parameter.name}", which the script does not have',
                line,
                did_you_mean(parameter.name, arguments, max_listed=len(arguments)),
            )
    names = {parameter.name for parameter in parameters}
    chosen = {k: v for k, v in arguments.items() if takes_all or k in names}
    return function(**chosen), line


def call_generator(
    path: str,
    target: Target,
    name: str,
    values: Mapping[str, Any],
    language: Mapping[str, Any] | None,
    dumps: bool,
) -> dict[str, Any]:
    """Return the source or the cubin for a schedule's values, as values of JSON. The function gets
    those of `values` and `target` that its parameters name. With `language`, its module gets the
    function. Raises `GeneratorError`, and what the generator raises."""
    compiler = importlib.import_module(language["module"]) if language else None
    if compiler and hasattr(compiler, "prepare"):
        compiler.prepare()  # before the file imports the language
    module = import_file(path, KernelLoader if language else UncachedLoader)
    find_cause = getattr(module.__loader__, "find_cause", lambda error: error)
    if (function := getattr(module, name, None)) is None or not (callable(function) or language):
        missing = NameError(f"{name} is not defined")
        if (cause := find_cause(missing)) is not missing:
            raise cause
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise GeneratorError(f"there is no function {name}", hint=did_you_mean(name, functions))
    if language and compiler:
        arguments_of_language = {
            name: LanguageArgument(*argument) for name, argument in language["arguments"].items()
        }
        inputs = LanguageInputs(
            arguments_of_language,
            tuple(language["serves"]),
            tuple(language["grid"]),
            dumps,
        )
        try:
            compiled = compiler.generate(function, values, target, inputs)
        except Exception as error:
            raise find_cause(error) from None
        return _encode_source(compiled, None, dumps=dumps)
    result, line = call_by_name(function, {**values, "target": target})
    if isinstance(result, str):
        result = Source(result)
    if not isinstance(result, Source | Cubin):
        kind = "None" if result is None else f"a value of type {type(result).__name__}"
        hint = "return the text, or a Source or Cubin of tilusbuild.generate"
        raise GeneratorError(f"it returned {kind}", line, hint)
    return _encode_source(result, line, dumps=dumps)


def _encode_source(source: Source | Cubin, line: int | None, *, dumps: bool) -> dict[str, Any]:
    """Return a source or a cubin as values of JSON. Without `dumps`, `ir` is empty. Raises
    `GeneratorError`, at `line`, for a field of another type than its class declares."""
    try:
        fields = to_builtins(source, builtin_types=(bytes,), enc_hook=_to_text_or_int)
        convert(fields, type(source), builtin_types=(bytes,))
    except (TypeError, ValidationError) as error:
        message = f"it returned a {type(source).__name__} with a wrong value"
        raise GeneratorError(f"{message}: {error}".replace("$.", ""), line) from None
    fields["ir"] = fields["ir"] if dumps else {}
    if isinstance(source, Cubin):
        fields["data"] = base64.b64encode(source.data).decode()
    return fields  # type: ignore[no-any-return]


def _to_text_or_int(value: Any) -> str | int:
    """Return a value of a class derived from `str`, or of an integer type, such as one of NumPy, as
    Python's own. Raises `TypeError`."""
    return str(value) if isinstance(value, str) else index(value)


def answer_request(noter: ReadsNoter, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request; errors of the generator are answers, too."""
    target = Target(**{**request["target"], "archs": tuple(request["target"]["archs"])})
    path, root = request["path"], os.path.join(request["root"], "")
    os.chdir(root)
    # Not before: this process connects to its builder, which is not an input.
    noter.install()
    answer: dict[str, Any]
    try:
        chosen = (request[key] for key in ("function", "values", "language", "dumps"))
        answer = {"source": call_generator(path, target, *chosen)}
    except GeneratorError as fault:
        frame = fault.path or path, fault.line, None
        answer = {"error": str(fault), "frames": [frame], "hint": fault.hint}
    except (Exception, SystemExit) as error:
        frames: list[tuple[str, int | None, int | None]] = [
            (frame.filename, frame.lineno, (frame.colno or 0) + 1)
            for frame in traceback.extract_tb(error.__traceback__)
            # Python's own modules have names such as <frozen importlib._bootstrap>.
            if os.path.abspath(frame.filename).startswith(root) and frame.filename[:1] != "<"
        ]
        if isinstance(error, SyntaxError) and error.filename:
            frames.append((error.filename, error.lineno, error.offset))
        text = traceback.format_exception_only(error)[-1].strip().removeprefix(f"{_PREFIX}{path}.")
        hint = NO_NETWORK if isinstance(error, PermissionError) else None
        # Each place once: a function may call itself without end.
        locations = [*dict.fromkeys(frames)] or [(path, None, None)]
        answer = {"error": text, "frames": locations, "hint": hint}
    return {**answer, "reads": noter.take_fresh()}


def main(address: str) -> None:
    """Be a worker."""
    sys.dont_write_bytecode = True
    noter = ReadsNoter()
    serve_requests(address, lambda request: answer_request(noter, request))
