"""What the tables of a manifest answer beyond their keys, in two forms that give the same answers.

A table is checked as a pydantic model (`model`, `script`, `sections`, `library`) and remembered as
a plain value (`plain`), which imports no pydantic. Both have their methods from here, so that
neither knows more than the other. The `…_for` methods of a script are what a target sees: the
script's tables with the target's override laid over them, entry by entry. An entry is replaced
whole, and `restrict.x = false` removes a rule. `parameter_of` and `constant_of` return a section
that the checks have passed as the space's own `Parameter` or value; for another they may raise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from tilusbuild.expr import Expr, Value, parse
from tilusbuild.manifest.names import linked_names
from tilusbuild.manifest.sources import SOURCE, SOURCES, scripts_of, searched
from tilusbuild.manifest.tools import ToolchainMethods
from tilusbuild.runtime.dtypes import TENSOR_MAP
from tilusbuild.signature import (
    Argument,
    Signature,
    SignatureError,
    Tile,
    parse_argument,
    signature,
)
from tilusbuild.space.model import Parameter, Row

if TYPE_CHECKING:
    from typing_extensions import Self

    from tilusbuild.errors import Place
    from tilusbuild.manifest.document import Document
    from tilusbuild.manifest.library import LibrarySection
    from tilusbuild.manifest.script import OverrideSection, ParameterSection, ScriptSection
    from tilusbuild.manifest.script_sections import Arg, LaunchSection
    from tilusbuild.manifest.sections import (
        BuildSection,
        IncludeDir,
        TargetSection,
        ToolchainSection,
    )

Form: TypeAlias = Literal["kernel", "entry", "object", "shared", "static"]
"""What a program is: a kernel or a host function with its launcher, an object, or objects linked
into a library of either kind."""


class TableMethods:
    """What every table has, whichever of the two it is."""

    @property
    def given(self) -> Mapping[str, Any]:
        """The values that the manifest has, without those that hold where it says nothing."""
        raise NotImplementedError

    def replaced(self, **changes: object) -> Self:
        """Return the table with other values, which are not checked."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """What it says, the same for both forms: what follows from a table is kept by this."""
        said = ", ".join(f"{name}={value!r}" for name, value in self)
        return f"{type(self).__name__}({said})"

    if TYPE_CHECKING:

        def __iter__(self) -> Any: ...


class Launch(NamedTuple):
    """A launch geometry as written, the target's laid over the script's."""

    grid: tuple[Value, ...] | None
    block: tuple[Value, ...] | None
    smem: Value
    cluster: tuple[Value, ...] | None
    cooperative: Value | None
    pdl: Value | None
    carve_out: Value | None


def parameter_of(key: str, parameter: ParameterSection) -> Parameter:
    """Return a checked parameter as rows. `key` is the manifest's: `"warp_m, warp_n"` links two."""
    return Parameter(
        linked_names(key),
        tuple(as_row(value) for value in parameter.domain()),
        expression(parameter.when) if parameter.when is not None else None,
        as_row(parameter.otherwise) if parameter.otherwise is not None else None,
        as_row(parameter.default) if parameter.default is not None else None,
    )


def constant_of(key: str, values: Value | tuple[Value | Row, ...]) -> Parameter:
    """Return a checked entry of `params` as rows: one instance of the script for each."""
    rows = values if isinstance(values, tuple) else (values,)
    return Parameter(linked_names(key), tuple(as_row(value) for value in rows))


def as_row(value: Value | Row) -> Row:
    """Return one value for each name."""
    return value if isinstance(value, tuple) else (value,)


@lru_cache(maxsize=4096, typed=True)
def expression(source: Value) -> Expr:
    """`parse`, remembered: views of many targets ask for the same texts. Raises `ExprError`."""
    return parse(source)


def with_defaults(
    parameters: Mapping[str, ParameterSection], chosen: Mapping[str, Value]
) -> dict[str, Value]:
    """Return each parameter's default, where it has one; `chosen` takes precedence over it."""
    own = {
        name: value
        for key, parameter in parameters.items()
        if parameter.default is not None
        for name, value in zip(linked_names(key), as_row(parameter.default), strict=True)
    }
    return own | dict(chosen)


def signature_of(script: ScriptSection) -> Signature:
    """Return the signature that a checked script declares, its constants still names."""
    constants = [name for key in script.params for name in linked_names(key)]
    for override in script.override.values():
        constants += [name for key in override.params for name in linked_names(key)]
    return signature([argument_of(name, arg) for name, arg in script.args.items()], constants)


def argument_of(name: str, arg: Arg) -> Argument:
    """Return an argument by itself. Raises `SignatureError`."""
    if arg.tensor_map is not None:
        return _tensor_map(name, arg, arg.tensor_map)
    for key, default in _OF_A_MAP.items():
        if getattr(arg, key) != default:
            what = f'"{key.replace("_", "-")}" is for tensor maps'
            raise SignatureError(what, argument=name, hint=_MAP_HINT)
    return _plain_argument(name, arg)


_WIDTHS = ("swizzle", "interleave", "l2_promotion")
_OF_A_MAP = {"box": None, "element_strides": None, **dict.fromkeys(_WIDTHS, 0), "oob_fill": "zero"}
_MAP_HINT = 'as in { tensor-map = "a", box = [64, 32], swizzle = 128 }'


def _tensor_map(name: str, arg: Arg, tensor: str) -> Argument:
    others = (arg.out, arg.bounds, arg.align, arg.optional, arg.strides, arg.constant)
    if any(others) or arg.type != TENSOR_MAP or arg.box is None:
        what = "has a box" if arg.box is None else "has no type and nothing of a tensor"
        raise SignatureError(f"a tensor map {what}", argument=name, hint=_MAP_HINT)
    tile = Tile(
        tensor,
        tuple(expression(source) for source in arg.box),
        tuple(expression(source) for source in arg.element_strides or ()),
        expression(arg.interleave),
        expression(arg.swizzle),
        expression(arg.l2_promotion),
        nan=arg.oob_fill == "nan",
    )
    return Argument(name, TENSOR_MAP, None, tile=tile, is_parameter=arg.parameter)


def _plain_argument(name: str, arg: Arg) -> Argument:
    return parse_argument(
        name,
        arg.type,
        out=arg.out,
        range=arg.bounds,
        align=arg.align,
        optional=arg.optional,
        strides=arg.strides,
        is_parameter=arg.parameter,
        constant=name if arg.constant is True else arg.constant or "",
    )


class ParameterMethods:
    """Of one tuning parameter."""

    if TYPE_CHECKING:
        values: tuple[Value | Row, ...] | None
        bounds: tuple[int, ...] | None
        pow2: tuple[int, int] | None

    def domain(self) -> tuple[Value | Row, ...]:
        """Return the values as written or counted out, not yet as rows."""
        if self.values is not None:
            return self.values
        if self.bounds is not None:
            first, last, *step = self.bounds
            return tuple(range(first, last + 1, step[0] if step else 1))
        first, last = self.pow2 or (1, 0)
        return tuple(1 << n for n in range(first.bit_length() - 1, last.bit_length()))


class TargetMethods:
    """Of one target."""

    if TYPE_CHECKING:
        arch: tuple[str, ...]

    @property
    def is_cpu(self) -> bool:
        """Whether the host compiler makes this target's programs."""
        return self.arch == ("cpu",)


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class _NoOverride:
    """The override of a target that has none."""

    params = space = derived = restrict = default = defines = _NOTHING
    launch = flags = None


class ScriptMethods:
    """Of one script."""

    if TYPE_CHECKING:
        kernel: str | None
        library: str | None
        params: Mapping[str, Value | tuple[Value | Row, ...]]
        space: Mapping[str, ParameterSection]
        derived: Mapping[str, Value]
        restrict: Mapping[str, str]
        default: Mapping[str, Value]
        override: Mapping[str, OverrideSection]
        launch: LaunchSection | None
        flags: tuple[str, ...]
        defines: Mapping[str, Value]

    @property
    def form(self) -> Form:
        """What a program of it is."""
        if self.library is not None:
            return "object"
        return "kernel" if self.kernel is not None else "entry"

    def override_for(self, target: str) -> OverrideSection:
        """Return the target's override; an empty one when it has none."""
        return self.override.get(target) or cast("OverrideSection", _NoOverride)

    def params_for(self, target: str) -> tuple[Parameter, ...]:
        """Return the constants: an instance takes one row of each."""
        values = _laid_over(self.params, self.override_for(target).params)
        return tuple(constant_of(key, value) for key, value in values.items())

    def space_for(self, target: str) -> Mapping[str, Parameter]:
        """Return the tuning parameters by their key (`"warp_m, warp_n"`), in declared order."""
        parameters = _laid_over(self.space, self.override_for(target).space)
        return {key: parameter_of(key, value) for key, value in parameters.items()}

    def derived_for(self, target: str) -> Mapping[str, Expr]:
        """Return the derived values, in declared order."""
        sources = _laid_over(self.derived, self.override_for(target).derived)
        return {name: expression(source) for name, source in sources.items()}

    def restrict_for(self, target: str) -> Mapping[str, Expr]:
        """Return the rules, in declared order, less those that the target removes."""
        rules = self.restrict_sources(target)
        return {name: expression(source) for name, source in rules.items()}

    def restrict_sources(self, target: str) -> Mapping[str, str]:
        """Return the rules as written."""
        rules: Mapping[str, str | bool] = _laid_over(
            self.restrict, self.override_for(target).restrict
        )
        return {name: rule for name, rule in rules.items() if isinstance(rule, str)}

    def launch_for(self, target: str) -> Launch | None:
        """Return the launch geometry as written; None when there is none."""
        base, own = self.launch, self.override_for(target).launch
        if base is None and own is None:
            return None
        each: dict[str, Any] = {**dict.fromkeys(Launch._fields), "smem": 0}
        each |= {} if base is None else {name: getattr(base, name) for name in Launch._fields}
        each |= {} if own is None else own.given
        return Launch(**each)

    def default_for(self, target: str) -> Mapping[str, Value]:
        """Return the default schedule, as far as the manifest fixes it."""
        override = self.override_for(target)
        parameters = _laid_over(self.space, override.space)
        return with_defaults(parameters, _laid_over(self.default, override.default))

    def flags_for(self, target: str) -> tuple[str, ...]:
        """Return the script's own flags; `Manifest.flags_for` has all of them."""
        own = self.override_for(target).flags
        return self.flags if own is None else own

    def defines_for(self, target: str) -> Mapping[str, Value]:
        """Return the script's own macros; `Manifest.defines_for` has all of them."""
        return _laid_over(self.defines, self.override_for(target).defines)


Entry = TypeVar("Entry")


def _laid_over(base: Mapping[str, Entry], override: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """Entries in the base's order, then those that only the override has."""
    return MappingProxyType({**base, **override})


class SourcesMethods(ScriptMethods):
    """Of the script of a library's sources."""

    if TYPE_CHECKING:
        files: tuple[str, ...]

    @property
    def form(self) -> Form:
        return "object"

    def space_for(self, target: str) -> Mapping[str, Parameter]:
        rows = tuple((name,) for name in self.files)
        return MappingProxyType({SOURCE: Parameter((SOURCE,), rows, None, None, None)})


class LinkMethods(ScriptMethods):
    """Of the script of a library itself."""

    if TYPE_CHECKING:
        owner: LibrarySection

    @property
    def form(self) -> Form:
        return self.owner.kind


class ManifestMethods(ToolchainMethods, TableMethods):
    """Of the whole manifest, which knows where each of its keys is written."""

    if TYPE_CHECKING:
        _document: Document
        _last_flags: tuple[str, ...]
        build: BuildSection
        toolchain: ToolchainSection
        targets: Mapping[str, TargetSection]
        scripts: Mapping[str, ScriptSection]
        libraries: Mapping[str, LibrarySection]

    @property
    def path(self) -> str:
        """The manifest's absolute path."""
        return self._document.path

    @property
    def root(self) -> str:
        """The project's directory: absolute, and what relative paths of the manifest start from."""
        return os.path.dirname(self._document.path)

    def place(self, *keys: str | int) -> Place:
        """Return where a key is written, as in `place("script", "matmul", "space", "stages")`.

        For an item of an array, the item. Of a path that is not in the file, its longest part that
        is.
        """
        return self._document.key(*self._written(keys))

    def place_of_value(self, *keys: str | int) -> Place:
        """Return where a key's value is written."""
        return self._document.value(*self._written(keys))

    def place_inside(self, *keys: str | int, column: int | None, width: int = 1) -> Place:
        """Return a position in a string value, such as an expression; `column` counts from 1."""
        return self._document.inside(keys, column, width)

    def _written(self, keys: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Return where keys are written of a script that a library stands for: in its table."""
        if len(keys) > 1 and keys[0] == "script" and isinstance(keys[1], str):
            library = keys[1].removesuffix(SOURCES)
            if library in self.libraries:
                return ("library", library, *keys[2:])
        return keys

    def with_libraries(self, sources: Callable[..., Any], link: Callable[..., Any]) -> Self:
        """Return the manifest with the scripts that its libraries stand for among its own; the two
        make a `SourcesScript` and a `LinkScript` of their values."""
        if not self.libraries:
            return self
        of_libraries = scripts_of(self.root, self.libraries, sources, link)
        return self.replaced(scripts=_laid_over(self.scripts, of_libraries))

    @property
    def searched(self) -> set[str]:
        """The directories in which a new file could match a pattern of a library."""
        return {path for each in self.libraries.values() for path in searched(self.root, each)}

    def objects_of(self, library: str) -> tuple[str, ...]:
        """Return the scripts whose programs are objects of a library, in the manifest's order."""
        return tuple(
            name
            for name, script in self.scripts.items()
            if script.form == "object" and script.library == library
        )

    def kernels_with(self, script: str) -> tuple[str, ...]:
        """Return the scripts that stand for kernels of the same template, a script's own among
        them; () for one that stands for itself."""
        if "." not in script or script not in self._document.kernels:
            return ()
        return self.kernels_of(self._document.kernels[script][0])

    def kernels_of(self, name: str) -> tuple[str, ...]:
        """Return the scripts that stand for the kernels of what is called `name`."""
        if name in self.scripts:
            return ()
        return tuple(each for each, (of, _) in self._document.kernels.items() if of == name)

    def written(self, script: str, target: str, *keys: str | int) -> tuple[str | int, ...]:
        """Return the path of a script's entry as the target sees it: its override's, else its
        own."""
        own = ("script", script, "override", target, *keys)
        return own if own in self._document.locations.keys else ("script", script, *keys)

    def targets_of(self, script: str) -> tuple[str, ...]:
        """Return the names of the targets that a script is built for."""
        chosen = self.scripts[script].targets
        return tuple(self.targets) if chosen is None else chosen

    def flags_for(self, script: str, target: str) -> tuple[str, ...]:
        """Compiler arguments: of `[build]`, the target, and the script or its override.

        Those of `[build]` and of the script are the device compiler's, so a cpu target takes its
        own and those that the script's override for it has.
        """
        owner, chosen = self.scripts[script], self.targets[target]
        if chosen.is_cpu:
            return (*chosen.flags, *(owner.override_for(target).flags or ()))
        own = owner.flags_for(target)
        return (*self.build.flags, *chosen.flags, *own, *self._last_flags)

    @property
    def last_flags(self) -> tuple[str, ...]:
        """What the device compiler is given after all other arguments."""
        return self._last_flags

    def with_last_flags(self, flags: tuple[str, ...]) -> Self:
        """Return the same manifest, whose device compiler is given these after all other
        arguments."""
        changed = self.replaced()
        changed._last_flags = flags
        return changed

    def defines_for(self, script: str, target: str) -> Mapping[str, str]:
        """Macros as `-DNAME=TEXT` spells them, sorted by name; `true` is 1, `false` leaves out."""
        merged: dict[str, Value] = {
            **self.build.defines,
            **self.targets[target].defines,
            **self.scripts[script].defines_for(target),
        }
        return {
            name: "1" if value is True else str(value)
            for name, value in sorted(merged.items())
            if value is not False
        }

    def place_of_torch(self, script: str) -> Place | None:
        """Where the library that a script is, or is an object of, asks for torch."""
        library = self.library_of(script)
        if library is None or not self.libraries[library].torch:
            return None
        return self.place("library", library, "torch")

    def include_dirs_for(self, script: str) -> tuple[IncludeDir, ...]:
        """Include directories in search order: the script's, then the project's."""
        return (*self.scripts[script].include_dirs, *self.build.include_dirs)

    def headers_for(self, script: str) -> tuple[str, ...]:
        """Patterns of headers that programs include by computed names."""
        return (*self.scripts[script].headers, *self.build.headers)
