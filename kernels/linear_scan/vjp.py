"""The kernel with a gradient: forward by Pallas, backward by the chunked form, which recomputes."""

from functools import partial

import jax
from jaxtyping import Array

from kernels.linear_scan.pallas import linear_pallas
from kernels.linear_scan.xla import linear_xla
from kernels.scan import Bounds, ScanResult

Inputs = tuple[Array, Array, Array]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def linear_pallas_with_gradient(chunk: int, inputs: Inputs, bounds: Bounds) -> ScanResult:
    """:func:`linear_pallas` on the default backend, differentiable by all but the bounds.

    Args:
        chunk: tokens a chunk of the backward pass.
        inputs: log_a, b and the initial state.
        bounds: lengths and normalised capture offsets.

    Returns:
        ScanResult.
    """
    return linear_pallas(*inputs, bounds)


def _forward(
    chunk: int, inputs: Inputs, bounds: Bounds
) -> tuple[ScanResult, tuple[Inputs, Bounds]]:
    return linear_pallas(*inputs, bounds), (inputs, bounds)


def _backward(
    chunk: int, residuals: tuple[Inputs, Bounds], cotangents: ScanResult
) -> tuple[Inputs, None]:
    inputs, bounds = residuals

    def chunked(inputs: Inputs) -> ScanResult:
        log_a_BTM, b_BTM, initial_state = inputs
        return linear_xla(log_a_BTM, b_BTM, initial_state, bounds, chunk)

    _, pullback = jax.vjp(chunked, inputs)
    return (*pullback(cotangents), None)


linear_pallas_with_gradient.defvjp(_forward, _backward)
