"""What a framework keeps beside a tensor's memory, where no launcher sees it: that the memory is
immutable, that a negation is pending, that gradients are recorded, which elements are masked.

Negations and gradients are looked for in every call that allocates an output or names an argument.
All is checked when the sizes of a call are new. A call with all arguments in order, at known sizes,
is not: it takes 0.6 us, and the questions to torch alone would take 0.4.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from tilusbuild.runtime.script import Script, ScriptArgument


def may_write(script: Script, argument: ScriptArgument) -> bool:
    """Return whether the kernel may write a tensor. Where a script declares no output at all, it
    may write each tensor."""
    declares_outputs = any(other.out or other.inout for other in script.arguments)
    return argument.out or argument.inout or not declares_outputs


def has_torch_state(values: Sequence[Any], indices: Sequence[int]) -> bool:
    """Return whether torch records gradients of one of the tensors at `indices`, or owes one its
    negation. True as well beside an array of another framework, of which `check_states` knows."""
    try:
        for i in indices:
            value = values[i]
            if value is not None and (value.requires_grad or value.is_neg()):
                return True
    except AttributeError:
        return True
    return False


def check_states(script: Script, values: Sequence[Any], allocated: Collection[int] = ()) -> None:
    """Raise `ValueError` for a tensor whose memory is not its value, or may not be written, and for
    a gradient that would be lost in a given output. Outputs that were `allocated`, by index, raise
    when they are differentiated. `values` are those of all passed arguments."""
    torch = sys.modules.get("torch")
    requiring, written = "", ""
    for i, argument in enumerate(a for a in script.arguments if not a.dimension):
        value = values[i]
        if argument.dims is None or value is None or i in allocated:
            continue
        is_written = may_write(script, argument)
        if problem := _explain_memory(torch, value, is_written):
            raise ValueError(f'{script.name}: argument "{argument.name}": {problem}')
        if torch is None or not isinstance(value, torch.Tensor):
            continue
        if is_written and value.is_floating_point():
            written = written or argument.name
        if value.requires_grad:
            requiring = requiring or argument.name
    # Mode "nothing" is torch's for whoever wants to see an op without any fallback (`opcheck`).
    if torch is None or not requiring or not torch.is_grad_enabled():
        return
    if written:
        raise ValueError(
            f'{script.name}: argument "{requiring}": it requires a gradient, which would be lost in'
            f' "{written}": pass {requiring}.detach(), or call under torch.no_grad()'
        )
    outputs = [values[i] for i in allocated if values[i].is_floating_point()]
    if outputs and torch._C._get_autograd_fallback_mode() != "nothing":
        inputs = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
        _get_barrier(torch).apply(script.name, len(outputs), *outputs, *inputs)


def _explain_memory(torch: Any, value: Any, is_written: bool) -> str | None:
    """Return why an array's memory is not its value, or may not be written; else None."""
    masked_arrays = sys.modules.get("numpy.ma")
    if masked_arrays is not None and isinstance(value, masked_arrays.MaskedArray):
        return "kernels see no mask: pass its filled(value), or its data"
    if is_written and type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return "the kernel writes it, and arrays of JAX are immutable"
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    if value.is_neg():
        return "its negation is pending: pass its resolve_neg()"
    if is_written and value.is_inference() and not torch.is_inference_mode_enabled():
        return "outside of inference mode, its tensors are not written"
    return None


@cache
def _get_barrier(torch: Any) -> Any:
    """Return the function of torch that is recorded for outputs without a formula for gradients."""

    class Barrier(torch.autograd.Function):  # type: ignore[misc]
        """Its outputs are the first `count` tensors, and depend on all; the derivative raises."""

        @staticmethod
        def forward(ctx: Any, name: str, count: int, *tensors: Any) -> Any:
            ctx.name = name
            ctx.mark_dirty(*tensors[:count])
            return tensors[:count]

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise NotImplementedError(
                f"{ctx.name} has no formula for its gradient: register the op with"
                " backward=, or differentiate only what does not come from it"
            )

    return Barrier
