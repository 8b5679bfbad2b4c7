"""The published spaces that tuners are compared on, rebuilt from their parameters and rules.

Dedispersion, MicroHH and Hotspot as in the benchmark suite of python-constraint 2 (for an A4000),
the CLBlast GEMM as in the autotuning benchmark hub. Their numbers of valid points are published.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilusbuild.expr import Expr, ExprError, Value, parse_expression
from tilusbuild.space.model import Parameter, SpaceError, SpaceSpec
from tilusbuild.space.space import Space


def make_spec(
    space: Mapping[str, Sequence[object] | Parameter],
    restrict: Mapping[str, str] | None = None,
    derived: Mapping[str, str] | None = None,
    constants: Mapping[str, Value] | None = None,
) -> SpaceSpec:
    """A spec from plain values; the key of linked parameters is "a, b"."""
    parameters = []
    for key, values in space.items():
        if isinstance(values, Parameter):
            parameters.append(values)
            continue
        names = tuple(key.split(", "))
        rows = tuple(tuple(v) if isinstance(v, list | tuple) else (v,) for v in values)
        parameters.append(Parameter(names, rows))
    return SpaceSpec(
        parameters=tuple(parameters),
        constants=constants or {},
        derived=tuple((name, parse_expression(text)) for name, text in (derived or {}).items()),
        restrict=tuple((name, parse_expression(text)) for name, text in (restrict or {}).items()),
    )


@dataclass(frozen=True)
class Published:
    spec: SpaceSpec
    cartesian: int
    count: int


def dedispersion() -> Published:
    spec = make_spec(
        {
            "block_size_x": [1, 2, 4, 8, 16, 32],
            "block_size_y": range(32, 257, 8),
            "block_size_z": [1],
            "tile_size_x": range(1, 5),
            "tile_size_y": range(1, 9),
            "tile_stride_x": [0, 1],
            "tile_stride_y": [0, 1],
            "loop_unroll_factor_channel": [0],
        },
        {
            "block_size": "32 <= block_size_x * block_size_y <= 1024",
            "stride_x": "tile_size_x > 1 or tile_stride_x == 0",
            "stride_y": "tile_size_y > 1 or tile_stride_y == 0",
        },
    )
    return Published(spec, 22_272, 11_130)


def microhh() -> Published:
    spec = make_spec(
        {
            "static_strides": [0],
            "tiling_strategy": [0],
            "rewrite_interp": [0],
            "bx": [1, 2, 4, 8, 16, 32, 128, 256, 512, 1024],
            "by": [1, 2, 4, 8, 16, 32],
            "bz": [1, 2, 4],
            "tx": [1, 2, 4, 8],
            "ty": [1, 2, 4],
            "tz": [1, 2, 4],
            "ux": [1, 2, 4, 8],
            "uy": [1, 2, 4],
            "uz": [1, 2, 4],
            "blocks_per_mp": [0, 1, 2, 3, 4],
        },
        {
            "per_sm": "threads * blocks_per_mp <= 1024",
            "threads": "32 <= threads <= 1536",
            "unroll_x": "ux == 0 or tx % ux == 0",
            "unroll_y": "uy == 0 or ty % uy == 0",
            "unroll_z": "uz == 0 or tz % uz == 0",
            "pad_x": "bx * tx > padding",
            "pad_y": "by * ty > padding",
            "pad_z": "bz * tz > padding",
        },
        {"threads": "bx * by * bz"},
        {"padding": 0},
    )
    return Published(spec, 1_166_400, 138_600)


def hotspot() -> Published:
    spec = make_spec(
        {
            "block_size_x": [1, 2, 4, 8, 16, *range(32, 1025, 32)],
            "block_size_y": [1, 2, 4, 8, 16, 32],
            "tile_size_x": range(1, 11),
            "tile_size_y": range(1, 11),
            "temporal_tiling_factor": range(1, 11),
            "max_tfactor": [10],
            "loop_unroll_factor_t": range(1, 11),
            "sh_power": [0, 1],
            "blocks_per_sm": [0, 1, 2, 3, 4],
        },
        {
            "enough_threads": "block_size_x * block_size_y >= 32",
            "unroll": "temporal_tiling_factor % loop_unroll_factor_t == 0",
            "threads": "block_size_x * block_size_y <= 1024",
            "smem_fits": "smem <= arch.smem_per_block",
            "blocks": "blocks_per_sm == 0 or smem * blocks_per_sm <= arch.smem_per_sm",
        },
        {
            "smem": "(block_size_x * tile_size_x + halo) * (block_size_y * tile_size_y + halo)"
            " * (2 + sh_power) * 4",
            "halo": "temporal_tiling_factor * 2",
        },
        {"arch.smem_per_block": 49152, "arch.smem_per_sm": 102400},
    )
    return Published(spec, 22_200_000, 349_853)


def gemm() -> Published:
    spec = make_spec(
        {
            "GEMMK": [0],
            "MWG": [16, 32, 64, 128],
            "NWG": [16, 32, 64, 128],
            "KWG": [16, 32],
            "MDIMC": [8, 16, 32],
            "NDIMC": [8, 16, 32],
            "MDIMA": [8, 16, 32],
            "NDIMB": [8, 16, 32],
            "KWI": [2],
            "VWM": [1, 2, 4, 8],
            "VWN": [1, 2, 4, 8],
            "STRM": [0, 1],
            "STRN": [0, 1],
            "SA": [0, 1],
            "SB": [0, 1],
            "KREG": [1],
            "PRECISION": [32],
        },
        {
            "k": "KWG % KWI == 0",
            "m_c": "MWG % (MDIMC * VWM) == 0",
            "n_c": "NWG % (NDIMC * VWN) == 0",
            "m_a": "MWG % (MDIMA * VWM) == 0",
            "n_b": "NWG % (NDIMB * VWN) == 0",
            "k_a": "KWG % ((MDIMC * NDIMC) / MDIMA) == 0",
            "k_b": "KWG % ((MDIMC * NDIMC) / NDIMB) == 0",
            "spills": "not (MWG == 128 and NWG == 128 and MDIMC == 8 and NDIMC == 8)",
        },
    )
    return Published(spec, 663_552, 116_928)


PUBLISHED = {f.__name__: f for f in (dedispersion, microhh, hotspot, gemm)}


def place_of(space: Space, values: Mapping[str, Value]) -> int | None:
    """The place of the point with these parameters; None if it is not valid."""
    try:
        return space.complete_point({n: values[n] for n in space.spec.parameter_names}).index
    except SpaceError:
        return None


def points_of(spec: SpaceSpec) -> Iterator[dict[str, Value | ExprError]]:
    """All valid points in order, by the definition: every combination, every rule, one by one. A
    derived value that a point has not is its error. Raises the `ExprError` of a rule that has no
    value at a point that no other one excludes."""
    choices = []
    for parameter in spec.parameters:
        rows = (*parameter.values, *filter(None, (parameter.otherwise,)))
        choices.append({repr(row): row for row in rows})  # 1, 1.0 and True are three values
    for combination in itertools.product(*(item.values() for item in choices)):
        point: dict[str, Any] = dict(spec.constants)
        for parameter, row in zip(spec.parameters, combination, strict=True):
            point.update(zip(parameter.names, row, strict=True))
        remaining = dict(spec.derived)
        while remaining:
            for name in [
                name for name, expr in remaining.items() if not expr.names & remaining.keys()
            ]:
                point[name] = _value(remaining.pop(name), point)
        verdicts = [_value(expr, point) for _, expr in spec.restrict]
        for parameter, row in zip(spec.parameters, combination, strict=True):
            if parameter.when is not None and parameter.otherwise is not None:
                holds = _value(parameter.when, point)
                allowed = parameter.values if holds else (parameter.otherwise,)
                right = repr(row) in map(repr, allowed)
                verdicts.append(holds if isinstance(holds, ExprError) else right)
        if all(verdicts):
            for item in verdicts:
                if isinstance(item, ExprError):
                    raise item
            derived = (name for name, _ in spec.derived)
            names = (name for parameter in spec.parameters for name in parameter.names)
            yield {name: point[name] for name in (*names, *derived)}


def _value(expr: Expr, point: Mapping[str, Any]) -> Any:
    try:
        return expr.evaluate_lazily(point)
    except ExprError as error:
        return error
