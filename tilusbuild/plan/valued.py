"""What a manifest says of each program by its values: the kernel's name, arguments, limits, unit.

A unit is the schedules of an instance whose kernels are compiled in one translation unit. Schedules
with the same values of the parameters in `group` have one source, since their template sees no
other parameter, and each is a kernel of its own in it. A unit is all of them, planned or not: so no
program's hash depends on which of the others are built.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.compile.declared import format_layout_asserts
from tilusbuild.compile.model import Launch, Pipeline, Prune
from tilusbuild.errors import Diagnostic, InputError, Location
from tilusbuild.expr import Expr, ExprError, Value, parse_expression
from tilusbuild.manifest.script import make_signature
from tilusbuild.manifest.script_sections import (
    LaunchSection,
    fill_in_values,
    has_values,
    parse_cached,
)
from tilusbuild.manifest.sections import check_macro_value
from tilusbuild.manifest.table import ValueFault
from tilusbuild.runtime.dtypes import TENSOR_MAP, TENSOR_MAP_TYPES, get_scalar_type
from tilusbuild.runtime.structs import is_struct, parse_struct
from tilusbuild.signature.model import (
    MAP_WIDTHS,
    NULL,
    Argument,
    Signature,
    SignatureError,
    Tile,
    list_packed_values,
    make_struct_parameter,
)
from tilusbuild.signature.parsing import join_arguments, resolve_dim
from tilusbuild.space.model import Schedule, SpaceError, SpaceSpec
from tilusbuild.space.space import Space

if TYPE_CHECKING:
    from tilusbuild.manifest.model import Manifest
    from tilusbuild.render.problems import UndefinedVariableError


class ProgramTexts:
    """The texts of one script for one target that depend on a program's values."""

    def __init__(
        self,
        manifest: Manifest,
        script: str,
        target: str,
        pipeline: Pipeline,
        target_names: Mapping[str, Value],
    ) -> None:
        """`target_names` are the constants that every expression sees: `arch.*` and `facts.*`."""
        self._manifest = manifest
        self._script = script
        self._target = target
        self._pipeline = pipeline
        self.target_names = target_names
        self._owner = manifest.scripts[script]
        self.flag_sources = manifest.merge_flags(script, target)
        self._has_valued_flags = any(map(has_values, self.flag_sources))
        self.prune = self._parse_limits()
        self._scripts = manifest.list_sibling_kernels(script) or (script,)
        """The scripts of one template's kernels: each kernel of a template is a script."""
        self._layouts_text = self._assert_layouts()

    def _assert_layouts(self) -> str:
        """Return C++ that asserts the layouts of the structs of all kernels in the template:
        kernels of one unit have one source."""
        signatures = (make_signature(self._manifest.scripts[script]) for script in self._scripts)
        struct_dtypes = dict.fromkeys(
            argument.dtype
            for signature in signatures
            for argument in signature.arguments
            if is_struct(argument.dtype)
        )
        return format_layout_asserts(parse_struct(dtype) for dtype in struct_dtypes)

    def make_full_source(self, source: str, symbol: str, unit: Sequence[str]) -> str:
        """Return the source to compile: the rendered one and the lines that the manifest adds
        behind it."""
        return self._pipeline.derive_source(source, symbol, unit) + self._layouts_text

    def map_places(self) -> dict[str, Location]:
        """Return places in the manifest: of each line of the full source that asserts a layout, by
        the line's text, and of the kernel, by ""."""
        places_by_line = {"": self._manifest.locate_value("script", self._script, "kernel")}
        for script in self._scripts:
            for argument in make_signature(self._manifest.scripts[script]).arguments:
                if not is_struct(argument.dtype):
                    continue
                location = self._manifest.locate_value("script", script, "args", argument.name)
                asserts = format_layout_asserts([parse_struct(argument.dtype)])
                for line in asserts.splitlines():
                    if line.startswith("static_assert"):
                        places_by_line.setdefault(line, location)
        return places_by_line

    def bind_expression(self, source: Value) -> Expr:
        """Return an expression with the target's constants in place."""
        return parse_cached(source).substitute(self.target_names)

    def name_symbol(self, values: Mapping[str, Value]) -> str:
        """Return the name of the function that the template defines. Raises `InputError`."""
        return self._resolve_symbol(self._script, values)

    def name_kernels(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the kernels that a schedule of the template stands for. Raises `InputError`."""
        return tuple(self._resolve_symbol(script, values) for script in self._scripts)

    def _resolve_symbol(self, script: str, values: Mapping[str, Value]) -> str:
        """Return the kernel or the entry of a script for these values. Raises `InputError`."""
        owner = self._manifest.scripts[script]
        problem = None
        try:
            name = self._fill_in(owner.kernel or owner.entry or "", values)
        except ExprError as error:
            problem = f"kernel: {error.message}"
        else:
            # The name stands in a line of `program.txt`, and of C++ that is added to the source.
            if not name.isprintable():
                problem = f"the kernel's name is {name!r}, not one line"
        if problem is not None:
            location = self._manifest.locate_value("script", script, "kernel")
            raise InputError(Diagnostic(problem, location))
        return name

    def _fill_in(self, text: str, values: Mapping[str, Value]) -> str:
        return fill_in_values(text, lambda source: self.bind_expression(source).evaluate(values))

    def make_flags(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the compiler flags of a program; empty ones are left out. Raises `InputError`
        for a flag that is not allowed once its values are filled in."""
        # Flags without values are the same for every program, and were checked with the manifest.
        if not self._has_valued_flags:
            return self.flag_sources
        try:
            filled_flags = (self._fill_in(flag, values) for flag in self.flag_sources)
            flags = tuple(flag for flag in filled_flags if flag)
            problems = self._list_flag_problems(flags)
        except ExprError as error:
            problems = [(f"flags: {error.message}", None)]
        if problems:
            keys = self._manifest.resolve_override(self._script, self._target, "flags")
            location = self._manifest.locate_key(*keys)
            raise InputError(*(Diagnostic(message, location, hint) for message, hint in problems))
        return flags

    def make_defines(
        self, defines: Mapping[str, str], values: Mapping[str, Value]
    ) -> tuple[tuple[str, str], ...]:
        """Return a program's macros, its values in those of the script. Raises `InputError`."""
        filled = dict(defines)
        for name in filter(filled.__contains__, self._owner.merge_defines(self._target)):
            try:
                filled[name] = self._fill_in(defines[name], values)
                check_macro_value(filled[name])
            except (ExprError, ValueFault) as error:
                keys = self._manifest.resolve_override(self._script, self._target, "defines", name)
                location = self._manifest.locate_value(*keys)
                raise InputError(Diagnostic(f"{name} {error.message}", location)) from None
        return tuple(filled.items())

    def _list_flag_problems(self, flags: Sequence[str]) -> list[tuple[str, str | None]]:
        """Return the message and the hint for each flag that is not allowed."""
        allows_unsafe = self._manifest.build.unsafe_flags or self._owner.unsafe_flags
        # Imported only here: few flags have values, and the start should be quick.
        from tilusbuild.manifest.denied_flags import list_flag_problems

        problems = list_flag_problems(
            flags, unsafe=allows_unsafe, cpu=self._manifest.targets[self._target].is_cpu
        )
        # The checks of the manifest have seen `-O{{ level }}` only, so `-O9` is found here.
        compiler = self._pipeline.compiler
        unknown_flags = self._pipeline.find_refused_flags(flags)
        return [
            *((message, hint) for _, message, hint in problems),
            *((f'{compiler} does not know "{flag}"', hint) for _, flag, hint in unknown_flags),
        ]

    def evaluate_limits(self, values: Mapping[str, Value]) -> Prune | None:
        """Return the limits of a program's kernel, or None. Raises `InputError`."""
        if not self.prune:
            return None
        limits: dict[str, int] = {}
        for name, limit in self.prune.items():
            location = self._manifest.locate_key(
                "script", self._script, "prune", name.replace("_", "-")
            )
            try:
                value = limit.evaluate(values)
            except ExprError as error:
                raise InputError(Diagnostic(f"{name}: {error.message}", location)) from None
            # For Python a bool is an int.
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(Diagnostic(f"{name} is {value!r}, not a whole number", location))
            limits[name] = value
        return Prune(**limits)

    def _parse_limits(self) -> dict[str, Expr]:
        """Return the script's `prune` limits as expressions, by name; {} if no launcher starts the
        kernel."""
        if not self._pipeline.launcher.starts_kernel:
            return {}
        declared = self._owner.prune
        return {
            name: self.bind_expression(source) for name, source in declared if source is not None
        }

    def make_launch(self) -> Launch | None:
        """Return the launch geometry; None if no launcher starts the kernel."""
        declared = self._owner.merge_launch(self._target)
        if declared is None and self._owner.generator:
            declared = LaunchSection()  # the generator sets it
        if declared is None or not self._pipeline.launcher.starts_kernel:
            return None

        def bind_optional(source: Value | None) -> Expr | None:
            return None if source is None else self.bind_expression(source)

        return Launch(
            grid=tuple(self.bind_expression(source) for source in declared.grid or ()),
            block=tuple(self.bind_expression(source) for source in declared.block or ()),
            smem=self.bind_expression(0 if declared.smem is None else declared.smem),
            cluster=tuple(self.bind_expression(source) for source in declared.cluster or ()),
            cooperative=bind_optional(declared.cooperative),
            pdl=bind_optional(declared.pdl),
            carve_out=bind_optional(declared.carve_out),
        )

    def describe_calls(
        self, launch: Launch | None, values: Mapping[str, Value]
    ) -> dict[str, list[str]]:
        """Return the rules of `serves` with values in place, and the grid, for a language."""
        rules = map(self.bind_expression, self._owner.serves.values())
        grid = launch.grid if launch is not None else ()
        return {
            "serves": [rule.substitute(values).canonical for rule in rules],
            "grid": [size.canonical for size in grid],
        }

    def override_launch(self, launch: Launch | None, parts: Mapping[str, Any]) -> Launch | None:
        """Return a launch with the parts that a generator has set in place. Raises `InputError`."""
        if launch is None:
            return None
        try:
            bound = {
                key: tuple(map(self.bind_expression, value))
                if isinstance(value, list)
                else self.bind_expression(value)
                for key, value in parts.items()
                if key in ("grid", "block", "smem", "cluster", "cooperative", "pdl")
            }
        except ExprError as error:
            raise self._make_error(f"a launch of it: {error.message}") from None
        return replace(launch, **bound)

    def _make_error(self, message: str, hint: str | None = None) -> InputError:
        """Return an error at the script's key `generator`."""
        location = self._manifest.locate_value("script", self._script, "generator")
        return InputError(Diagnostic(message, location, hint))

    def select_parameters(
        self, signature: Signature, chosen: Sequence[str | Mapping[str, Any] | None] | None
    ) -> Signature:
        """Return a signature with the kernel's parameters that a generator has chosen, if any: None
        is a null pointer, and a mapping has the fields of a `Packed`, or of a `TensorMap`, which
        becomes an argument. Raises `InputError`."""
        if chosen is None:
            return signature
        known: dict[str | None, Argument] = {a.name: a for a in signature.arguments}
        known[None] = NULL
        parameters = []
        prefix = ""
        try:
            for number, parameter in enumerate(chosen):
                if not isinstance(parameter, Mapping):
                    if parameter not in known:
                        raise ValueError(f'"{parameter}" is not one of args')
                    parameters.append(known[parameter])
                elif "tensor" in parameter:
                    prefix = f"{number}, a tensor map: "
                    name = f"{parameter['tensor']}_map_{number}"
                    parameters.append(_make_tensor_map(name, parameter))
                    signature = join_arguments([*signature.arguments, parameters[-1]])
                    prefix = ""
                else:
                    values = tuple(map(self.bind_expression, parameter["values"]))
                    parameters.append(make_struct_parameter(parameter["type"], values))
            signature = replace(signature, chosen_parameters=tuple(parameters))
            list_packed_values(signature)
        except (ExprError, SignatureError, ValueError) as error:
            hint = getattr(error, "hint", None)
            raise self._make_error(f"its parameter {prefix}{error}", hint) from None
        return signature


def _make_tensor_map(name: str, encoding: Mapping[str, Any]) -> Argument:
    """Return the argument for the fields of a `generate.TensorMap`. Raises `SignatureError`, and
    `ExprError`."""
    chosen: dict[str, Any] = {}
    for key, values in {"type": TENSOR_MAP_TYPES, **MAP_WIDTHS, "oob-fill": (False, True)}.items():
        field_name = key.replace("-", "_")
        number = encoding[field_name]
        if number not in range(len(values)):
            raise SignatureError(f"its {key} is {number}, not 0 to {len(values) - 1}")
        chosen[field_name] = values[int(number)]
    dtype, nan = chosen.pop("type"), chosen.pop("oob_fill")
    bytes_ = get_scalar_type(dtype).bytes
    strides = (1, *(f"({stride}) // {bytes_}" for stride in encoding["strides"]))
    # The manifest has the outermost dimension first.
    dims, steps = (
        tuple(resolve_dim(parse_cached(size), {}) for size in reversed(sizes))
        for sizes in (encoding["sizes"], strides)
    )
    box, element_strides = (
        tuple(map(parse_cached, reversed(encoding[key]))) for key in ("box", "element_strides")
    )
    if any(size.names for size in (*box, *element_strides)):
        raise SignatureError("its box and element strides are numbers")
    if len(dims) != len(steps):
        raise SignatureError(f"it has {len(dims)} sizes, and {len(steps) - 1} strides")
    widths = {key: parse_cached(width) for key, width in chosen.items()}
    view = Argument("view", dtype, dims, strides=steps)
    tile = Tile(encoding["tensor"], box, element_strides, nan=nan, view=view, **widths)
    return Argument(name, TENSOR_MAP, tile=tile)


def format_launch(launch: Launch | None) -> list[str]:
    """Return the lines of a launch in `program.txt`."""
    if launch is None:
        return []
    return [f"{name} = {', '.join(e.canonical for e in group)}" for name, group in launch.lines]


MAX_KERNELS = 256
"""Kernels in one unit."""


class Grouping(Struct):
    """The division of an instance's schedules into translation units."""

    group: Collection[str]
    """The parameters whose values all kernels of a unit share. Constants have no effect here."""
    spec: SpaceSpec
    valued: ProgramTexts
    params: Mapping[str, Value]
    location: Location
    """The place of the manifest's key `group`."""
    _kernels_by_unit: dict[tuple[Value, ...], tuple[str, ...]] = field(default_factory=dict)

    def select_shared_values(self, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return the values that all programs of a unit share, on which its source may depend:
        those of constants, of the parameters by which units differ, and those derived from
        these."""
        names = ({*self.spec.parameter_names} & set(self.group)) | self.spec.constants.keys()
        # A derived value of shared names is shared, and so are the values derived from it. They may
        # be declared in any order: the search ends when a round adds none.
        name_count = -1
        while len(names) != name_count:
            name_count = len(names)
            names |= {name for name, expr in self.spec.derived if expr.names <= names}
        return {name: value for name, value in values.items() if name in names}

    def find_unit_key(self, values: Mapping[str, Value]) -> tuple[Value, ...]:
        """Return the values that distinguish a schedule's unit from others."""
        return tuple(values[name] for name in self.group if name in values)

    def list_unit_kernels(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the names of the kernels of a schedule's unit, in the space's order. The names are
        kept for the unit's other schedules. Raises `InputError`."""
        key = self.find_unit_key(values)
        # Every program of the unit asks, so the answer is kept.
        if key not in self._kernels_by_unit:
            self._kernels_by_unit[key] = self._enumerate_kernels(values)
        return self._kernels_by_unit[key]

    def _enumerate_kernels(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the names of the kernels of a schedule's unit. Raises `InputError` for more than
        `MAX_KERNELS` schedules."""
        grouped_names = {*self.spec.parameter_names} & set(self.group)
        # The unit has all of these schedules, planned or not: a program's hash must not depend on
        # which others are built.
        rules = (
            (f"group {name}", parse_expression(f"{name} == {values[name]!r}"))
            for name in sorted(grouped_names)
        )
        spec = replace(self.spec, restrict=(*self.spec.restrict, *rules))
        try:
            space = Space(spec)
            if space.count > MAX_KERNELS:
                message = f"{space.count} schedules would be one translation unit, more than"
                hint = (
                    "name more parameters in group: schedules that differ in one of these are"
                    " compiled apart"
                )
                raise InputError(Diagnostic(f"{message} {MAX_KERNELS}", self.location, hint))
            points: list[Schedule] = list(space)
        except SpaceError as error:
            raise InputError(Diagnostic(error.message, self.location, error.hint)) from None
        # Two schedules may name one kernel, which is instantiated once: a dict drops the second.
        names: dict[str, None] = {}
        for point in points:
            values_of_point = {**self.params, **point.values}
            names.update(dict.fromkeys(self.valued.name_kernels(values_of_point)))
        return tuple(names)

    def explain_undefined(self, error: UndefinedVariableError) -> InputError:
        """Return `error`, with a hint if its name is a parameter or a derived value: the template
        of a unit sees only those that all of its kernels share."""
        if error.name not in (*self.spec.parameter_names, *(name for name, _ in self.spec.derived)):
            return error
        hint = (
            "the kernels of a unit differ in it: name it in group, or pass it to the kernel, as in "
            f'kernel = "scale<{{{{ {error.name} }}}}>"'
        )
        return InputError(*(mistake._replace(hint=hint) for mistake in error.diagnostics))
