"""The diagonal recurrence for Mosaic GPU: one warp group a batch row and 128 channels.

Meant to succeed the Triton launcher on Hopper and later. It lowers, but has not run on a GPU, so no
public call takes it yet. Only this recurrence can take it: the
others multiply fp32 matrices with the state, and Mosaic GPU's products take 16-bit or tf32
operands. Rows travel from global memory to registers and back; nothing is staged.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels.linear_scan.pallas_kernel import GROUP
from kernels.scan import advance

WIDTH = 128
"""Channels of a warp group: one a thread."""


def call(
    slots: int,
    bounds: jax.Array,
    log_a: jax.Array,
    b: jax.Array,
    initial: jax.Array,
) -> tuple[jax.Array, ...]:
    """Launch the kernel.

    Args:
        slots: captures a row.
        bounds: int32 [batch, 1 + slots], length and offsets.
        log_a: [batch, length, channels], channels a multiple of 128.
        b: like log_a.
        initial: float32 [batch, channels].

    Returns:
        y like b, the final state and, where there are slots, the captures.
    """
    batch, length, channels = b.shape
    results = [
        jax.ShapeDtypeStruct(b.shape, b.dtype),
        jax.ShapeDtypeStruct((batch, channels), jnp.float32),
    ]
    if slots:
        results.append(jax.ShapeDtypeStruct((batch, slots, channels), jnp.float32))
    launch = plgpu.kernel(
        partial(_body, slots, length),
        out_type=results,
        grid=(batch, channels // WIDTH),
        grid_names=("row", "column"),
    )
    return tuple(launch(bounds, log_a, b, initial))


def _body(slots: int, length: int, *refs: Any) -> None:
    """Refs: length and offsets, log_a, b, initial state | y, final state [, captured]."""
    bounds_ref, log_a_ref, b_ref, initial_ref, y_ref, final_ref = refs[:6]
    captured_ref = refs[6] if slots else None
    row = lax.axis_index("row")
    here = pl.ds(lax.axis_index("column") * WIDTH, WIDTH)
    valid = bounds_ref[row, 0]
    nothing = jnp.zeros((WIDTH,), jnp.float32)

    def one(at: jax.Array, state_M: jax.Array) -> jax.Array:
        decay_M = jnp.exp(log_a_ref[row, at, here].astype(jnp.float32))
        return advance(state_M, (decay_M, b_ref[row, at, here].astype(jnp.float32)))

    def put(at: jax.Array, state_M: jax.Array) -> jax.Array:
        state_M = one(at, state_M)
        y_ref[row, at, here] = state_M.astype(y_ref.dtype)
        return state_M

    def capture(first: jax.Array, before_M: jax.Array) -> None:
        """Captures in the group at `first`, from the state before it."""
        if captured_ref is None:
            return

        def store(slot: jax.Array, _: None) -> None:
            count = bounds_ref[row, 1 + slot] - first

            @pl.when((count > 0) & (count <= GROUP))
            def _store() -> None:
                captured_ref[row, slot, here] = lax.fori_loop(
                    0, count, lambda offset, state: one(first + offset, state), before_M
                )

        lax.fori_loop(0, slots, store, None)

    def blank(at: jax.Array, _: None) -> None:
        y_ref[row, at, here] = nothing.astype(y_ref.dtype)

    def group(index: jax.Array, before_M: jax.Array) -> jax.Array:
        state_M = before_M
        for offset in range(GROUP):
            state_M = put(index * GROUP + offset, state_M)
        capture(index * GROUP, before_M)
        return state_M

    if captured_ref is not None:

        def clear(slot: jax.Array, _: None) -> None:
            captured_ref[row, slot, here] = nothing

        lax.fori_loop(0, slots, clear, None)
    whole = valid // GROUP
    before_M = lax.fori_loop(0, whole, group, initial_ref[row, here])
    final_ref[row, here] = lax.fori_loop(whole * GROUP, valid, put, before_M)
    capture(whole * GROUP, before_M)
    lax.fori_loop(valid, length, blank, None)
