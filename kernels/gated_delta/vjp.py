"""The kernel with a gradient: forward by Pallas, backward by the chunked form, which recomputes."""

from functools import partial

import jax
from jaxtyping import Array

from kernels.gated_delta.pallas import gated_delta_pallas
from kernels.gated_delta.xla import gated_delta_xla
from kernels.scan import Bounds, ScanResult

Inputs = tuple[Array, Array, Array, Array, Array]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gated_delta_pallas_with_gradient(
    scale: float, chunk: int, inputs: Inputs, initial_state: Array, bounds: Bounds
) -> ScanResult:
    """:func:`gated_delta_pallas` on the default backend, differentiable by all but the bounds.

    Args:
        scale: factor of y.
        chunk: tokens a chunk.
        inputs: q, k, v, g and beta.
        initial_state: states before the first token.
        bounds: lengths and normalised capture offsets.

    Returns:
        ScanResult.
    """
    return gated_delta_pallas(*inputs, scale, initial_state, bounds, chunk)


def _forward(
    scale: float, chunk: int, inputs: Inputs, initial_state: Array, bounds: Bounds
) -> tuple[ScanResult, tuple[Inputs, Array, Bounds]]:
    result = gated_delta_pallas(*inputs, scale, initial_state, bounds, chunk)
    return result, (inputs, initial_state, bounds)


def _backward(
    scale: float, chunk: int, residuals: tuple[Inputs, Array, Bounds], cotangents: ScanResult
) -> tuple[Inputs, Array, None]:
    inputs, initial_state, bounds = residuals

    def chunked(inputs: Inputs, initial_state: Array) -> ScanResult:
        return gated_delta_xla(*inputs, scale, initial_state, bounds, chunk)

    _, pullback = jax.vjp(chunked, inputs, initial_state)
    return (*pullback(cotangents), None)


gated_delta_pallas_with_gradient.defvjp(_forward, _backward)
