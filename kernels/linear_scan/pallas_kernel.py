"""The diagonal recurrence's kernel body: one batch row, a block of channels, a loop over rows.

Between tiles of a row the state rests in the final-state output, whose block stays in place. A
capture runs the first rows of its group again from the state before them, at most GROUP - 1 of
them.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from kernels.in_kernel import KernelShape
from kernels.scan import advance

GROUP = 16
"""Rows laid out one after another; their loads do not wait for the state."""


def kernel(shape: KernelShape, *refs: Any) -> None:
    """Refs: length and offsets, log_a, b, initial state | y, final state [, captured]."""
    bounds_ref, log_a_ref, b_ref, initial_ref, y_ref, final_ref = refs[:6]
    captured_ref = refs[6] if shape.slots else None
    row = pl.program_id(0)
    tile = pl.program_id(2) if shape.num_tiles > 1 else 0
    valid = bounds_ref[row, 0]

    def start() -> None:
        final_ref[0] = initial_ref[0]
        if captured_ref is not None:

            def clear(slot: jax.Array, _: None) -> None:
                captured_ref[0, pl.ds(slot, 1), :] = jnp.zeros_like(initial_ref[0])

            lax.fori_loop(0, shape.slots, clear, None)

    if shape.num_tiles > 1:
        pl.when(tile == 0)(start)
    else:
        start()

    def one(at: jax.Array, state_1M: jax.Array) -> jax.Array:
        here = pl.ds(at, 1)
        decay_1M = jnp.exp(log_a_ref[0, here, :].astype(jnp.float32))
        return advance(state_1M, (decay_1M, b_ref[0, here, :].astype(jnp.float32)))

    def step(index: jax.Array, state_1M: jax.Array) -> jax.Array:
        local = index * GROUP
        first = tile * shape.chunks_per_tile * GROUP + local
        before_1M = state_1M
        for offset in range(GROUP):
            counts = first + offset < valid
            state_1M = jnp.where(counts, one(local + offset, state_1M), state_1M)
            y_1M = jnp.where(counts, state_1M, 0.0)
            y_ref[0, pl.ds(local + offset, 1), :] = y_1M.astype(y_ref.dtype)
        if captured_ref is not None:

            def capture(slot: jax.Array, _: None) -> None:
                count = bounds_ref[row, 1 + slot] - first

                @pl.when((count > 0) & (count <= GROUP))
                def _store() -> None:
                    captured_1M = lax.fori_loop(
                        0, count, lambda offset, state: one(local + offset, state), before_1M
                    )
                    captured_ref[0, pl.ds(slot, 1), :] = captured_1M

            lax.fori_loop(0, shape.slots, capture, None)
        return state_1M

    final_ref[0] = lax.fori_loop(0, shape.chunks_per_tile, step, final_ref[0])
