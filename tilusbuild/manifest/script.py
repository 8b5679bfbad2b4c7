"""`[script.NAME]`: a kernel template, how it is called, and what it is tuned over."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import field

from tilusbuild.expr import Expr, Value
from tilusbuild.manifest.arguments import Arg, make_argument
from tilusbuild.manifest.names import DeclaredName, HeaderName, LinkedNames, split_linked_names
from tilusbuild.manifest.script_sections import (
    KERNEL_NAME,
    PYTHON_FUNCTION,
    DispatchSection,
    JinjaSection,
    LaunchSection,
    LevelsSection,
    PruneSection,
    RuleOrFalse,
    TemplateName,
    TuneSection,
    parse_cached,
)
from tilusbuild.manifest.sections import DeviceCompiler, Macros, ProductKeys, Standard
from tilusbuild.manifest.table import NOTHING, Entries, Key, Table, ValueFault
from tilusbuild.manifest.values import VALUE_SCHEMA, AnyValue, ExprSource, Text, check_value
from tilusbuild.signature.model import Signature
from tilusbuild.signature.parsing import join_arguments
from tilusbuild.space.model import Parameter, Row

Form: TypeAlias = Literal["kernel", "entry", "object", "shared", "static"]
"""What a program is: a kernel or a host function with its launcher, an object, or objects linked
into a library of either kind."""


def _check_row(value: object) -> Value | Row:
    """Return a value, or a row of values. Raises `ValueFault`."""
    if isinstance(value, tuple):
        return tuple(check_value(item) for item in value)
    return check_value(value)


_ROW_SCHEMA = {
    "anyOf": [VALUE_SCHEMA, {"type": "array", "items": VALUE_SCHEMA, "minItems": 1}],
}
RowOrValue = Annotated[Value | Row, Key(plain=_check_row, schema=_ROW_SCHEMA)]
"""A value, or for linked parameters one value each."""


def _check_constant(value: object) -> Value | tuple[Value | Row, ...]:
    """Return a constant of `params`: a value, or an array of rows. Raises `ValueFault`."""
    if isinstance(value, tuple) and value:
        return tuple(_check_row(item) for item in value)
    if value == ():
        raise ValueFault("needs at least 1 item")
    if isinstance(value, dict):
        raise ValueFault(
            "must be a value or an array of values, not a table", "a tuned parameter is in `space`"
        )
    return check_value(value)


ParamValues = Annotated[
    Value | tuple[Value | Row, ...],
    Key(
        plain=_check_constant,
        schema={"anyOf": [VALUE_SCHEMA, {"type": "array", "items": _ROW_SCHEMA, "minItems": 1}]},
    ),
]
"""A constant, or an array that makes one instance of the script for each item."""


MAX_VALUES = 1_000_000
"""Values of one parameter. More are nearly always a slip, and would fill the memory."""


def _check_bounds(key: str, bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Return the bounds of a `range` or `pow2`, which is `key`. Raises `ValueFault` for a number of
    more than 64 bits, and if the first is larger than the last."""
    first, last, *_ = bounds
    if max(map(abs, bounds)) >= 2**63:
        raise ValueFault("does not fit in 64 bits")
    if first > last:
        hint = f"{key} = [{last}, {first}]"
        raise ValueFault("is empty: its first value is larger than its last", hint)
    return bounds


def _check_range(bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Return a range: its first value, its last, and the step if there is one. Raises
    `ValueFault` for an empty or too large one."""
    first, last, *steps = _check_bounds("range", bounds)
    step = steps[0] if steps else 1
    if step < 1:
        raise ValueFault("must have a step of at least 1")
    if (last - first) // step >= MAX_VALUES:
        raise ValueFault(f"holds more than {MAX_VALUES:,} values")
    return bounds


def _check_powers(bounds: tuple[int, int]) -> tuple[int, ...]:
    """Return the first and the last power of two. Raises `ValueFault` for other numbers."""
    for bound in bounds:
        if bound < 1 or bound.bit_count() != 1:
            lower = 1 << max(0, bound.bit_length() - 1)  # the greatest power of two below
            hint = f"the nearest are {lower} and {2 * lower}" if bound > 0 else "the least is 1"
            raise ValueFault(f"takes powers of two, not {bound}", hint)
    return _check_bounds("pow2", bounds)


class ParameterSection(Table, frozen=True):
    """One tuning parameter, or several linked ones (`"warp_m, warp_n"`, with rows of values).

    Written as an array of values, or as a table with exactly one of `values`, `range` and `pow2`.
    """

    shorthands = ((tuple, "values"),)

    values: Annotated[
        tuple[RowOrValue, ...] | None, Key(min_length=1, examples=[[1, 2, 4], [[1, 1], [2, 2]]])
    ] = None
    """The values, in order."""
    bounds: Annotated[
        tuple[int, ...] | None,
        Key(min_length=2, max_length=3, after=_check_range, examples=[[2, 6], [32, 128, 32]]),
    ] = field(name="range", default=None)
    """First and last value, both included, and optionally the step."""
    pow2: Annotated[tuple[int, int] | None, Key(after=_check_powers, examples=[[16, 256]])] = None
    """All powers of two from the first to the last, both included."""
    when: Annotated[Text | None, Key(examples=["not persistent"])] = None
    """An expression over other parameters. Where it is false, the parameter has the value of
    `else`."""
    otherwise: Annotated[RowOrValue | None, Key(examples=[1])] = field(name="else", default=None)
    """The value where `when` is false."""
    default: Annotated[RowOrValue | None, Key(examples=[4])] = None
    """The value in the default schedule."""

    def __post_init__(self) -> None:
        # Called when pydantic makes the table: its values are right by themselves.
        if [self.values, self.bounds, self.pow2].count(None) != 2:
            raise ValueFault('needs exactly one of "values", "range" and "pow2"')
        if (self.when is None) != (self.otherwise is None):
            hint = "the value is that of `else` where `when` is false"
            raise ValueFault('needs both "when" and "else", or neither', hint)

    def list_values(self) -> Sequence[Value | Row]:
        """Return the values as written or counted out, not yet as rows."""
        if self.values is not None:
            return self.values
        if self.bounds is not None:
            first, last, *steps = self.bounds
            step = steps[0] if steps else 1
            return range(first, last + 1, step)
        # `pow2` is set here, as `__post_init__` found one of the three; (1, 0) is for mypy.
        first, last = self.pow2 or (1, 0)
        exponents = range(first.bit_length() - 1, last.bit_length())
        return tuple(1 << exponent for exponent in exponents)


def make_parameter(key: str, parameter: ParameterSection) -> Parameter:
    """Return a checked parameter as rows. `key` is the manifest's: `"warp_m, warp_n"` links two."""
    return Parameter(
        split_linked_names(key),
        tuple(to_row(value) for value in parameter.list_values()),
        when=None if parameter.when is None else parse_cached(parameter.when),
        otherwise=None if parameter.otherwise is None else to_row(parameter.otherwise),
        default=None if parameter.default is None else to_row(parameter.default),
    )


def to_row(value: Value | Row) -> Row:
    """Return a row; a single value becomes a row of one."""
    return value if isinstance(value, tuple) else (value,)


class OverrideSection(Table, frozen=True):
    """Differences of one target. Each entry replaces the whole entry of the script.

    `space.stages = { range = [3, 8] }` also drops the `default` and `when` that `stages` had. New
    entries come after those of the script.
    """

    params: Annotated[Mapping[LinkedNames, ParamValues], Key(examples=[{"in_bytes": 1}])] = NOTHING
    """Constants of this target."""
    space: Annotated[
        Mapping[LinkedNames, ParameterSection], Key(examples=[{"stages": {"range": [3, 8]}}])
    ] = NOTHING
    """Parameters of this target."""
    derived: Annotated[
        Mapping[DeclaredName, ExprSource], Key(examples=[{"threads": "warp_m * warp_n * 32 + 128"}])
    ] = NOTHING
    """Derived values of this target."""
    restrict: Annotated[Entries[RuleOrFalse], Key(examples=[{"tile_m": False}])] = NOTHING
    """Rules of this target. `false` removes a rule."""
    launch: LaunchSection | None = None
    """Launch geometry of this target."""
    default: Annotated[Entries[AnyValue], Key(examples=[{"block_m": 256}])] = NOTHING
    """The default schedule of this target."""
    flags: Annotated[tuple[Text, ...] | None, Key(examples=[["-O2"]])] = None
    """Arguments that replace the script's."""
    defines: Annotated[Macros, Key(examples=[{"USE_TMA": 1}])] = NOTHING
    """Macros of this target."""


_NO_OVERRIDE = OverrideSection()


class KernelSection(Table, frozen=True):
    """One of several kernels of a template: the script `NAME.KERNEL`.

    Keys that you leave out have the values of the script.
    """

    description: Annotated[str | None, Key(examples=["The gradient"])] = None
    """One line for people."""
    kernel: Annotated[
        str | None, Key(pattern=KERNEL_NAME, examples=["ops::backward<{{ block }}>"])
    ] = None
    """The `__global__` function. Without it: the name of this table."""
    args: Annotated[Mapping[DeclaredName, Arg], Key(examples=[{"x": "f32*[n]", "n": "i32"}])] = (
        NOTHING
    )
    """The call signature, in the kernel's order."""
    launch: LaunchSection | None = None
    """The launch geometry."""
    default: Annotated[Entries[AnyValue], Key(examples=[{"block": 128}])] = NOTHING
    """The schedule for calls that no table, rule or model decides."""
    prune: PruneSection = PruneSection()
    """Limits of the compiled kernel."""
    dispatch: DispatchSection | None = None
    """The choice of a schedule by sizes."""
    tune: TuneSection | None = None
    """How `run` and `tune` call the kernel."""


class SpaceKeys(ProductKeys, frozen=True, kw_only=True):
    """What a script is tuned over, and what each target has of it."""

    params: Annotated[
        Mapping[LinkedNames, ParamValues], Key(examples=[{"dtype": ["f16", "bf16"], "in_bytes": 2}])
    ] = NOTHING
    """Constants. The script has one instance for each value of an array, and for each combination
    of several arrays. Linked constants are written like linked parameters."""
    space: Annotated[
        Mapping[LinkedNames, ParameterSection],
        Key(examples=[{"block_k": [16, 32, 64], "stages": {"range": [2, 6]}}]),
    ] = NOTHING
    """The tuning space. The first parameter varies slowest."""
    space_file: Annotated[Text | None, Key(examples=["spaces/matmul.t1.json"])] = None
    """A T1 file that has the space."""
    derived: Annotated[
        Mapping[DeclaredName, ExprSource], Key(examples=[{"threads": "warp_m * warp_n * 32"}])
    ] = NOTHING
    """Values computed from the parameters, for rules, template, launch and dispatch. They may use
    each other in any order."""
    restrict: Annotated[
        Entries[Text], Key(examples=[{"smem_fits": "smem <= arch.smem_per_block"}])
    ] = NOTHING
    """Rules by name. A schedule is valid if all rules are true."""
    serves: Annotated[Entries[Text], Key(examples=[{"whole": "n % vector == 0"}])] = NOTHING
    """Rules by name, over the integer arguments of a call, the schedule, derived values and
    `params`. A program for which one is false at a call is not chosen there."""
    default: Annotated[Entries[AnyValue], Key(examples=[{"block_m": 128}])] = NOTHING
    """The schedule for calls that no table, rule or model decides. It takes precedence over the
    `default` of a parameter."""
    levels: LevelsSection = LevelsSection()
    """The size of a sample."""
    override: Entries[OverrideSection] = NOTHING
    """Differences of one target, by its name."""

    def get_override(self, target: str) -> OverrideSection:
        """Return the target's override; an empty one when it has none."""
        return self.override.get(target) or _NO_OVERRIDE

    def list_constants(self, target: str) -> tuple[Parameter, ...]:
        """Return the constants: an instance takes one row of each."""
        return tuple(
            Parameter(
                split_linked_names(key),
                tuple(map(to_row, rows if isinstance(rows, tuple) else (rows,))),
            )
            for key, rows in {**self.params, **self.get_override(target).params}.items()
        )

    def list_tuning_parameters(self, target: str) -> Mapping[str, Parameter]:
        """Return the tuning parameters by their key (`"warp_m, warp_n"`), in declared order."""
        parameters = {**self.space, **self.get_override(target).space}
        return {key: make_parameter(key, value) for key, value in parameters.items()}

    def parse_derived_values(self, target: str) -> Mapping[str, Expr]:
        """Return the derived values, in declared order."""
        sources = {**self.derived, **self.get_override(target).derived}
        return {name: parse_cached(source) for name, source in sources.items()}

    def parse_rules(self, target: str) -> Mapping[str, Expr]:
        """Return the rules, in declared order, less those that the target removes."""
        rules = self.list_rule_sources(target)
        return {name: parse_cached(source) for name, source in rules.items()}

    def list_rule_sources(self, target: str) -> Mapping[str, str]:
        """Return the rules as written."""
        rules = {**self.restrict, **self.get_override(target).restrict}
        return {name: rule for name, rule in rules.items() if isinstance(rule, str)}

    def merge_default(self, target: str) -> Mapping[str, Value]:
        """Return the default schedule, as far as the manifest fixes it."""
        override = self.get_override(target)
        # A `default` of a parameter; the table `default` of the script or override replaces it.
        parameter_defaults = {
            name: value
            for key, parameter in {**self.space, **override.space}.items()
            if parameter.default is not None
            for name, value in zip(split_linked_names(key), to_row(parameter.default), strict=True)
        }
        return {**parameter_defaults, **self.default, **override.default}


class ScriptSection(SpaceKeys, frozen=True, kw_only=True):
    """A kernel template, how it is called, and what it is tuned over."""

    description: Annotated[str | None, Key(examples=["C = A @ B, in half precision"])] = None
    """One line for people."""
    template: Annotated[
        TemplateName,
        Key(
            examples=["kernels/matmul.cu.j2", {"package": "flashinfer", "path": "data/csrc/pod.cu"}]
        ),
    ]
    """The Jinja2 template, inside the project or in a Python package, which is not imported."""
    generator: Annotated[Text | None, Key(pattern=PYTHON_FUNCTION, examples=["gen.py:matmul"])] = (
        None
    )
    """A Python function that returns the source, in place of `template`: `FILE.py:FUNCTION`."""
    language: Annotated[Text | None, Key(examples=["triton"])] = None
    """The kernel language of the generator's function. `triton = "FILE.py:FUNCTION"` is short for
    `generator`, `language`, `kernel = "FUNCTION"` and `device-compiler = "none"`."""
    generate: Annotated[
        Mapping[HeaderName, Text], Key(examples=[{"config.inc": "kernels/config.inc.j2"}])
    ] = NOTHING
    """Headers that are rendered for each program: the name in `#include "…"`, and the template."""
    render: bool = True
    """`false`: the template is the source, byte for byte. Programs then differ by `flags`,
    `defines` and the C++ name in `kernel`."""
    jinja: Annotated[JinjaSection, Key(examples=["jinja2", {"trim-blocks": False}])] = (
        JinjaSection()
    )
    """The syntax of the templates. `"jinja2"` has the defaults of Jinja2."""
    kernel: Annotated[
        str | None,
        Key(
            pattern=KERNEL_NAME, examples=["matmul", "marlin::Marlin<{{ threads }}, {{ stages }}>"]
        ),
    ] = None
    """The `__global__` function in the template. A plain name is that of an `extern "C"` function;
    any other is a C++ name, such as `::saxpy`. `{{ … }}` is an expression over the values of the
    program. Without it: the kernel of the script's name, or the template's only one, unless there
    is `entry` or `library`."""
    kernels: Entries[KernelSection] = NOTHING
    """Several kernels of the template, in place of `kernel`. Each is a script `NAME.KERNEL`; all
    are one translation unit."""
    entry: Annotated[str | None, Key(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", examples=["launch"])] = (
        None
    )
    """The function in the template that launches the kernel itself, in place of `kernel`."""
    library: Annotated[Text | None, Key(examples=["backend"])] = None
    """The `[library.NAME]` that links the programs of this script as objects, in place of `kernel`
    and `entry`."""
    args: Annotated[Mapping[DeclaredName, Arg], Key(examples=[{"a": "f16*[m, k]", "m": "i32"}])] = (
        NOTHING
    )
    """The call signature, in the kernel's order. The kernel's parameters give the arguments that
    you leave out: a pointer to `const` is an input of any shape, any other pointer is an output,
    and a scalar is passed. If you name an argument that the kernel does not have, you must give all
    arguments."""
    launch: LaunchSection | None = None
    """The launch geometry. A `kernel` for GPU targets needs it."""
    group: Annotated[tuple[Text, ...] | None, Key(examples=[["scalar_type", "dtype"]])] = None
    """Compile the schedules that agree in these parameters in one translation unit. The template
    sees only these parameters; `kernel` sees the others. `[]`: all schedules of an instance."""
    std: Standard | None = None
    """The language standard."""
    device_compiler: DeviceCompiler | Literal["none", "tile"] | None = None
    """The compiler of the kernel. `"none"`: the generator returns cubins. `"tile"`: CUDA Tile."""
    cudart: Literal["static", "shared"] | None = None
    """The CUDA runtime, with `entry`."""
    prune: PruneSection = PruneSection()
    """Limits of compiled kernels."""
    dispatch: DispatchSection | None = None
    """The choice of a schedule by sizes."""
    tune: TuneSection | None = None
    """How `run` and `tune` call the kernel."""

    @property
    def form(self) -> Form:
        """What a program of it is."""
        if self.library is not None:
            return "object"
        return "kernel" if self.kernel is not None else "entry"

    def merge_launch(self, target: str) -> LaunchSection | None:
        """Return the launch geometry as written; None when there is none."""
        script_launch, override_launch = self.launch, self.get_override(target).launch
        if override_launch is None:
            return script_launch
        return (script_launch or LaunchSection()).replace_values(**override_launch.given)

    def merge_flags(self, target: str) -> tuple[str, ...]:
        """Return the script's own flags; `Manifest.merge_flags` has all of them."""
        override_flags = self.get_override(target).flags
        # An empty list is an override, too: it takes all flags away.
        return self.flags if override_flags is None else override_flags

    def merge_defines(self, target: str) -> Mapping[str, Value]:
        """Return the script's own macros; `Manifest.merge_defines` has all of them."""
        return {**self.defines, **self.get_override(target).defines}


def make_signature(script: ScriptSection) -> Signature:
    """Return the signature that a checked script declares, its constants still names."""
    constants = [name for key in script.params for name in split_linked_names(key)]
    # The signature is that of all targets, so it knows the constants that any override adds.
    for override in script.override.values():
        constants += [name for key in override.params for name in split_linked_names(key)]
    return join_arguments(
        [make_argument(name, arg) for name, arg in script.args.items()], constants
    )
