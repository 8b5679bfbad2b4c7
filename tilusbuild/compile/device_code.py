"""What device code says of itself, held against the signature, the launch and the limits.

The pipelines import this when something was compiled: a build that compiles nothing starts without
what reads binaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilusbuild.arch import parse_arch
from tilusbuild.binary import (
    BinaryError,
    extract_cubins,
    is_relocatable,
    parse_ptxas,
    read_cubin,
)
from tilusbuild.compile import checks
from tilusbuild.compile.causes import StepError
from tilusbuild.compile.constants import constants_problem
from tilusbuild.compile.kernel_names import symbol_of
from tilusbuild.compile.model import Findings, Recipe
from tilusbuild.compile.steps import Step
from tilusbuild.status import Cause


def judge_symbol(recipe: Recipe, work: str) -> None:
    """Raise `StepError` when the source did not get to where the kernel's name is asked for."""
    if not symbol_of(recipe, work):
        raise StepError(Cause.CHECK, f'the source ends before "{recipe.symbol}" can be named')


def judge_code(
    recipe: Recipe, step: Step, data: bytes, work: str, log: str, found: Findings
) -> None:
    """Add to `found` what the code of an image says. Raises `StepError` when it must not be."""
    symbol = symbol_of(recipe, work)
    try:
        cubins = extract_cubins(data)
        codes = [(parse_arch(cubin.image.arch), read_cubin(cubin.data)) for cubin in cubins]
        # Of a program without constants the symbols are not read again.
        has_constants = bool(recipe.signature.constants)
        variables = [checks.variable_sizes(cubin.data) for cubin in cubins if has_constants]
        sizes = [checks.parameter_sizes(cubin.data, symbol) for cubin in cubins]
    except BinaryError as error:
        reason = f"{step.tool} ended well but {step.output} cannot be read: {error}"
        raise StepError(Cause.OUTPUT, reason) from None
    if not codes:
        raise StepError(Cause.OUTPUT, f"{step.tool} ended well but {step.output} holds no code")
    # The driver loads no such code, and only a call would find out.
    if any(is_relocatable(cubin.data) for cubin in cubins):
        raise StepError(Cause.CHECK, checks.NO_DEVICE_LINK)
    found.ptxas = parse_ptxas(log)
    for _, kernels in codes:
        names = [kernel.name for kernel in kernels]
        if symbol not in names and (problem := checks.symbol_problem(recipe, names)):
            if checks.are_of_another(names, recipe, work):
                raise StepError(Cause.OUTPUT, f"{step.tool} compiled something else: {problem}")
            raise StepError(Cause.CHECK, problem)
    if "-v" in step.argv and symbol not in (usage.kernel for usage in found.ptxas):
        # Spills are in the log only; that of a tool whose output was lost has no limit.
        raise StepError(Cause.OUTPUT, f"{step.tool} did not say what its {step.output} takes")
    found.usages = [
        (arch, kernel) for arch, kernels in codes for kernel in kernels if kernel.name == symbol
    ]
    if problem := _arguments_problem(recipe, sizes, variables):
        raise StepError(Cause.CHECK, problem)
    if problem := checks.kernel_problem(recipe, found.usages):
        raise StepError(Cause.CHECK, problem)
    if exceeded := checks.prune_reason(recipe, symbol, found.usages, found.ptxas):
        raise StepError(Cause.LIMIT, exceeded)
    found.images = tuple(cubin.image for cubin in cubins)


def _arguments_problem(
    recipe: Recipe,
    sizes: Iterable[tuple[int, ...] | None],
    variables: Iterable[Mapping[str, int]],
) -> str | None:
    """Return how what a call passes differs from what the code takes, for any architecture."""
    for parameters in sizes:
        if problem := checks.parameter_problem(recipe.signature, parameters):
            return problem
    for each in variables:
        if problem := constants_problem(recipe, each):
            return problem
    return None
