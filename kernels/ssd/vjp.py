"""The kernel with a gradient: forward by Pallas, backward by the chunked form, which recomputes."""

from functools import partial

import jax
from jaxtyping import Array, Float

from kernels.scan import Bounds, ScanResult
from kernels.ssd.pallas import ssd_pallas
from kernels.ssd.xla import ssd_xla

Inputs = tuple[Array, Array, Array, Array, Array, Array]


@partial(jax.custom_vjp, nondiff_argnums=(7,))
def ssd_pallas_with_gradient(
    x_BTHP: Float[Array, "B T H P"],
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    B_BTGN: Float[Array, "B T G N"],
    C_BTGN: Float[Array, "B T G N"],
    initial_state: Float[Array, "B H P N"],
    bounds: Bounds,
    chunk: int,
) -> ScanResult:
    """:func:`ssd_pallas` on the default backend, differentiable by everything but the bounds."""
    return ssd_pallas(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, initial_state, bounds, chunk)


def _forward(
    x_BTHP: Array,
    dt_BTH: Array,
    A_H: Array,
    B_BTGN: Array,
    C_BTGN: Array,
    initial_state: Array,
    bounds: Bounds,
    chunk: int,
) -> tuple[ScanResult, tuple[Inputs, Bounds]]:
    inputs = (x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, initial_state)
    return ssd_pallas(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, initial_state, bounds, chunk), (
        inputs,
        bounds,
    )


def _backward(
    chunk: int, residuals: tuple[Inputs, Bounds], cotangents: ScanResult
) -> tuple[Array | None, ...]:
    inputs, bounds = residuals

    def chunked(*inputs: Array) -> ScanResult:
        x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, initial_state = inputs
        return ssd_xla(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, initial_state, bounds, chunk)

    _, pullback = jax.vjp(chunked, *inputs)
    return (*pullback(cotangents), None)


ssd_pallas_with_gradient.defvjp(_forward, _backward)
