"""Read the launch of a kernel out of a host function in LLVM's operations, as CuTe DSL makes it.

The function is executed with names in place of a call's values. The sizes and the parameters of the
launch that come out are expressions over these names.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import count, repeat, takewhile
from operator import getitem
from typing import Any, NamedTuple

from tilusbuild.generate import Packed

_COMPARISONS = ("<", operator.lt), ("<=", operator.le), (">", operator.gt), (">=", operator.ge)
_OPERATORS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "add": ("+", operator.add), "sub": ("-", operator.sub), "mul": ("*", operator.mul),
    "sdiv": ("//", operator.floordiv), "srem": ("%", operator.mod),
    "and": ("&", operator.and_), "or": ("|", operator.or_), "xor": ("^", operator.xor),
    "i1 and": ("and", operator.and_), "i1 or": ("or", operator.or_), "i1 xor": ("!=", operator.ne),
    "ashr": (">>", operator.rshift), "shl": ("<<", operator.lshift),
    **{f"icmp {2 + number}": pair for number, pair in enumerate(_COMPARISONS)},
    **{f"{i1}icmp {number}": pair for i1 in ("", "i1 ")
       for number, pair in enumerate((("==", operator.eq), ("!=", operator.ne)))},
}  # fmt: skip
"""The sign and the function of each operation of two numbers, or of two truth values (i1)."""
_UNSIGNED = {
    "udiv": ("//", operator.floordiv), "urem": ("%", operator.mod), "lshr": (">>", operator.rshift),
    **{f"icmp {6 + number}": pair for number, pair in enumerate(_COMPARISONS)},
}  # fmt: skip
_ATTRIBUTE_BYTES = 72  # sizeof(cudaLaunchAttribute)
_CLUSTER, _SWITCHES = 4, {2: "cooperative", 6: "pdl"}  # cudaLaunchAttributeID
_DYNAMIC = -(1 << 31)  # an index of getelementptr that is an operand
_UNKNOWN = float("-inf")


class HostError(Exception):
    """A host function does something else than to launch a kernel. The message is a predicate."""


class Number(NamedTuple):
    """A value of a call, as an expression that is at least `low` in each."""

    text: str
    low: float = _UNKNOWN


class _Address(NamedTuple):
    memory: Any
    offset: int = 0


def read_launch(module: Any, leaves: Iterator[Any], arguments: Mapping[str, str]) -> dict[str, Any]:
    """Return the launch in the host function of a module, as fields of a `Generated`. The function
    gets `leaves`, the members of its arguments; `arguments` are their types by name. Raises
    `HostError`."""
    host = _Host()
    functions = (op_view.operation for op_view in module.body.operations)
    host.run(next(f for f in functions if "llvm.emit_c_interface" in f.attributes), leaves)
    if [*leaves]:
        raise HostError("does not get all values of its arguments")
    if len(host.launches) != 1:
        raise HostError(f"launches {len(host.launches)} kernels, not one")
    ((config, _, parameters),) = host.launches

    def read(address: _Address, *offsets: int) -> tuple[Any, ...]:
        return tuple(_format_value(host.load(address, offset)) for offset in offsets)

    # The places of members of cudaLaunchConfig_t.
    launch: dict[str, Any] = {"grid": read(config, 0, 4, 8), "block": read(config, 12, 16, 20)}
    launch["smem"], used = read(config, 24, 48)
    attributes = host.load(config, 40)
    for start in range(0, used * _ATTRIBUTE_BYTES, _ATTRIBUTE_BYTES):
        number, value, *rest = (
            host.load(attributes, start + field_offset) for field_offset in (0, 8, 12, 16)
        )
        if number == _CLUSTER:
            launch["cluster"] = tuple(map(_format_value, (value, *rest)))
        elif number in _SWITCHES and value == 1:
            launch[_SWITCHES[number]] = True
        elif value != 0:
            raise HostError(f"sets attribute {number} of the launch")
    places = (host.load(parameters, 8 * position) for position in count())
    launch["parameters"] = tuple(
        _make_parameter(host.kinds[slot_address.memory], host.load(slot_address), arguments)
        for slot_address in takewhile(bool, places)
    )
    return launch


class _Host:
    """An execution of a host function: its launches, the values in its memory and their types."""

    def __init__(self) -> None:
        self.launches: list[list[Any]] = []
        self._memory: dict[_Address, Any] = {}
        self.kinds: dict[Any, Any] = {}
        self._values: dict[int, Any] = {}
        """By the hashes of LLVM's values: the DSL's `==` of two values is an operation."""

    def run(self, function: Any, leaves: Iterator[Any]) -> None:
        """Execute a function. Raises `HostError`."""
        block = function.regions[0].blocks[0]
        values = [_fill_type(argument.type, leaves) for argument in block.arguments]
        while block is not None:
            self._values.update(zip(map(hash, block.arguments), values, strict=True))
            *operations, last = (op_view.operation for op_view in block.operations)
            for operation in operations:
                result = self._execute(operation, self._read_operands(operation))
                self._values.update(dict.fromkeys(map(hash, operation.results), result))
            block, values = self._choose_block(last, self._read_operands(last))

    def load(self, address: _Address, offset: int = 0) -> Any:
        """Return the value at a place behind an address; None for none."""
        return self._memory.get(_Address(address.memory, address.offset + offset))

    def _read_operands(self, operation: Any) -> list[Any]:
        return [self._values[hash(operand)] for operand in operation.operands]

    def _choose_block(self, last: Any, operands: list[Any]) -> tuple[Any, list[Any]]:
        """Return the block behind a block's last operation, and its arguments; None for the end."""
        match last.name, operands:
            case "llvm.return", _:
                return None, []
            case "llvm.br", _:
                return last.successors[0], operands
            case "llvm.cond_br", [bool() as condition, *values]:
                then_count = last.attributes["operandSegmentSizes"][1]
                values = values[:then_count] if condition else values[then_count:]
                return last.successors[not condition], values
        reason = f" by {operands[0].text}" if operands and isinstance(operands[0], Number) else ""
        raise HostError(f"decides{reason} whether to launch")

    def _execute(self, operation: Any, operands: list[Any]) -> Any:
        """Execute an operation, and return its result."""
        name, attributes = operation.name.removeprefix("llvm."), operation.attributes
        if name == "icmp":
            name = f"icmp {attributes['predicate'].value}"
        if operands and str(operation.operands[0].type) == "i1":
            name = f"i1 {name}"
        match name, operands:
            case "store", [value, _Address() as address]:
                self._memory[address] = value
                return None
            case "load", [_Address() as address]:
                return self.load(address)
            case "alloca", _:
                memory = hash(operation.results[0])
                self.kinds[memory] = attributes["elem_type"].value
                return _Address(memory)
            case "call", _ if attributes["callee"].value == "_cudaLaunchKernelEx":
                self.launches.append(operands)
                return 0
            case _, [int() | Number() as left, int() | Number() as right]:
                if name in _OPERATORS:
                    return _compute_value(*_OPERATORS[name], left, right)
                if name in _UNSIGNED and min(_find_low(left), _find_low(right)) >= 0:
                    return _compute_value(*_UNSIGNED[name], left, right)
        if name not in _OPERATIONS:
            raise HostError(f"has an operation without an expression: {name}")
        return _OPERATIONS[name](operation, attributes, *operands)


def _refuse(problem: str) -> Any:
    raise HostError(problem)


def _move_address(operation: Any, attributes: Any, base: Any, *indices: int) -> _Address:
    """Return the address of a member. Raises `HostError` for one in an argument's memory."""
    if not isinstance(base, _Address):
        raise HostError("computes with an address")
    rest, kind = iter(indices), attributes["elem_type"].value
    first, *path = (next(rest) if i == _DYNAMIC else i for i in attributes["rawConstantIndices"])
    offset = base.offset + first * _measure_type(kind)[0]
    for index in path:
        members = _list_struct_members(kind) or []
        start, kind = [*_place_members(members)][index], members[index]
        offset += start
    return _Address(base.memory, offset)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "mlir.constant": lambda _, attributes: attributes["value"].value,
    "mlir.poison": lambda operation, _: _fill_type(operation.results[0].type, repeat(None)),
    "mlir.zero": lambda *_: None,
    "mlir.addressof": lambda _, attributes: _Address(attributes["global_name"].value),
    "getelementptr": _move_address,
    "extractvalue": lambda _, attributes, aggregate: reduce(
        getitem, attributes["position"], aggregate
    ),
    "insertvalue": lambda _, attributes, *values: _insert_value(*values, *attributes["position"]),
    "i1 select": lambda _, attributes, *values: _select_value(*values),
    "sext": lambda _, attributes, value: value,
    "zext": lambda _, attributes, value: value,
    "trunc": lambda _, attributes, value: value,
    "i1 zext": lambda _, attributes, value: _select_value(value, 1, 0),
    "inttoptr": lambda _, attributes, value: value and _refuse("computes an address"),
    "ptrtoint": lambda *_: _refuse("computes with an address, as for a TMA descriptor"),
    "call": lambda _, attributes, *values: _refuse(f"calls {attributes['callee'].value}"),
}


def _find_low(value: int | Number) -> float:
    return value.low if isinstance(value, Number) else value


def _compute_value(sign: str, compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Return what an operation of two numbers or of two truth values gives."""
    if not isinstance(left, Number) and not isinstance(right, Number):
        return compute(left, right)
    if isinstance(left, bool):
        left, right = right, left
    if isinstance(right, bool):
        if sign in ("and", "or"):
            return left if right == (sign == "and") else right
        return left if right == (sign == "==") else Number(f"(not {left.text})")
    a, b, low, least = _format_value(left), _format_value(right), _find_low(left), _find_low(right)
    if isinstance(b, int) and sign in ("<", ">=") and low >= b:
        return sign == ">="
    text = f"({a} {sign} {b})"
    if sign in ("//", "%") and low < 0:  # LLVM rounds to 0
        text = f"({a} {sign} {b} if {a} >= 0 else -(-{a} {sign} {b}))"
    lows = {"+": low + least, "-": low - b if isinstance(b, int) else _UNKNOWN}
    return Number(text, lows.get(sign, 0 if low >= 0 and least >= 0 else _UNKNOWN))


def _select_value(condition: Any, yes: Any, no: Any) -> Any:
    """Return one of two values; by a condition that is known in a call an expression of both."""
    if isinstance(condition, bool):
        return yes if condition else no
    a, b = _format_value(yes), _format_value(no)
    quotient = re.fullmatch(r"\((.+) // (.+)\)", str(b))  # as the DSL divides and rounds up
    if quotient and a == f"({b} + 1)":
        dividend, divisor = quotient.groups()
        if condition.text == f"({dividend} != ({b} * {divisor}))":
            return Number(f"cdiv({dividend}, {divisor})", 0)
    return Number(f"({a} if {condition.text} else {b})", min(_find_low(yes), _find_low(no)))


def _format_value(value: Any) -> int | str:
    """Return a number or an expression. Raises `HostError` for something else."""
    if not isinstance(value, int | Number):
        raise HostError(f"passes {'a struct' if isinstance(value, tuple) else 'an unknown value'}")
    return value.text if isinstance(value, Number) else int(value)


def _list_struct_members(kind: Any) -> list[Any] | None:
    """Return the types of the members of a struct or an array; None for another type."""
    if hasattr(kind, "body"):
        return list(kind.body)
    return [kind.element_type] * kind.num_elements if hasattr(kind, "num_elements") else None


def _fill_type(kind: Any, leaves: Iterator[Any]) -> Any:
    """Return a value of a type: the next of `leaves`, or a tuple of one for each member. Raises
    `HostError`."""
    if (members := _list_struct_members(kind)) is not None:
        return tuple(_fill_type(member, leaves) for member in members)
    for leaf in leaves:
        return leaf
    raise HostError("gets more values than its arguments have")


def _insert_value(aggregate: Any, part: Any, index: int, *rest: int) -> Any:
    inner = _insert_value(aggregate[index], part, *rest) if rest else part
    return (*aggregate[:index], inner, *aggregate[index + 1 :])


def _list_leaves(kind: Any, value: Any, start: int = 0) -> Iterator[tuple[int, str, Any]]:
    """Yield the place in bytes, the type and the value of each number in a value."""
    if (members := _list_struct_members(kind)) is None:
        yield start, str(kind).removeprefix("!llvm."), value
        return
    for member, part, offset in zip(members, value, _place_members(members), strict=True):
        yield from _list_leaves(member, part, start + offset)


def _place_members(members: list[Any]) -> Iterator[int]:
    """Yield the place of each member of a struct in bytes."""
    end = 0
    for size, align in map(_measure_type, members):
        yield -(-end // align) * align
        end = -(-end // align) * align + size


def _measure_type(kind: Any) -> tuple[int, int]:
    """Return the size and the alignment of a type in bytes."""
    if (members := _list_struct_members(kind)) is None:
        bits = re.search(r"\d+", str(kind))
        size = 8 if bits is None or "ptr" in str(kind) else -(-int(bits[0]) // 8)
        return size, size
    align = max((_measure_type(member)[1] for member in members), default=1)
    ends = (
        offset + _measure_type(m)[0]
        for offset, m in zip(_place_members(members), members, strict=True)
    )
    return -(-max(ends, default=0) // align) * align, align


def _make_parameter(kind: Any, value: Any, arguments: Mapping[str, str]) -> str | Packed | None:
    """Return a parameter of the kernel: an argument's name, or a struct of values."""
    leaves = [*_list_leaves(kind, value)]
    members: list[str] = []
    values: list[int | str] = []
    end = 0
    for start, name, leaf in leaves:
        dtype = {"i1": "u8"}.get(name, "void*" if name.startswith("ptr") else name)
        if dtype == "void*" and leaf is None and len(leaves) == 1:
            return None
        text = _format_value(leaf)
        size = 8 if dtype == "void*" else -(-int(dtype[-2:].lstrip("if")) // 8)
        if start != -(-end // size) * size:
            members.append(f"u8 pad{end}[{start - end}]")
            values += [0] * (start - end)
        members.append(f"{dtype} at{start}")
        values.append(text)
        end = start + size
        if len(leaves) == 1 and arguments.get(str(text)) == dtype:
            return str(text)
    return Packed(f"struct Parameter {{ {'; '.join(members)} }}", tuple(values))
