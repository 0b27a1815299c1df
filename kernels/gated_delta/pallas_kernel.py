"""The gated delta kernel body: one (batch row, head, block of values), a loop over chunks.

The columns of the state belong to one value each and never meet, so blocks of values are
independent; each solves the chunk's triangular system again. State, tiles and captures as in
kernels.ssd.pallas_kernel; a capture takes the first rows of what the chunk has written already.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from kernels.decay import LogDecay, decay_between, decay_so_far
from kernels.gated_delta.inverse import unit_lower_inverse_whole
from kernels.in_kernel import (
    KernelShape,
    decay_square,
    product,
    square,
    start_row,
    sums_down,
    turn,
)
from kernels.scan import advance


class Chunk(NamedTuple):
    """One chunk's rows; log-decays and write strengths lie along the lanes."""

    q_CK: jax.Array
    k_CK: jax.Array
    v_CV: jax.Array
    g_1C: jax.Array
    beta_1C: jax.Array


def kernel(shape: KernelShape, scale: float, *refs: Any) -> None:
    """Refs: [offsets,] q, k, v, g, beta, initial state | y, final state [, captured]."""
    offsets_ref = refs[0] if shape.slots else None
    inputs = refs[1 if shape.slots else 0 :]
    q_ref, k_ref, v_ref, g_ref, beta_ref, initial_ref, y_ref, final_ref = inputs[:8]
    captured_ref = inputs[8] if shape.slots else None
    row = pl.program_id(0)
    tile = start_row(shape, 3, initial_ref, final_ref, captured_ref)

    def step(index: jax.Array, state_KV: jax.Array) -> jax.Array:
        rows = pl.ds(index * shape.chunk, shape.chunk)
        chunk = Chunk(
            q_ref[0, 0, rows, :],
            k_ref[0, 0, rows, :],
            v_ref[0, 0, rows, :],
            g_ref[0, 0, pl.ds(index, 1), :],
            beta_ref[0, 0, pl.ds(index, 1), :],
        )
        decay_CC = decay_square(chunk.g_1C)
        write_CV = writes(state_KV, chunk, decay_CC)
        y_CV = outputs(state_KV, chunk, decay_CC, write_CV) * scale
        y_ref[0, 0, rows, :] = y_CV.astype(y_ref.dtype)
        if captured_ref is not None and offsets_ref is not None:
            first = (tile * shape.chunks_per_tile + index) * shape.chunk

            def capture(slot: jax.Array, _: None) -> None:
                count = offsets_ref[row, slot] - first

                @pl.when((count > 0) & (count <= shape.chunk))
                def _store() -> None:
                    captured_ref[0, slot, 0] = state_after(state_KV, chunk, write_CV, count)

            lax.fori_loop(0, shape.slots, capture, None)
        return state_after(state_KV, chunk, write_CV, shape.chunk)

    final_ref[0, 0] = lax.fori_loop(0, shape.chunks_per_tile, step, final_ref[0, 0])


def writes(state_KV: jax.Array, chunk: Chunk, decay_CC: jax.Array) -> jax.Array:
    """The value that each row writes at its key, fp32."""
    beta_C1 = turn(chunk.beta_1C)
    down, along = square(decay_CC.shape[0])
    scores_CC = product(chunk.k_CK, chunk.k_CK, 1, 1)
    lower_CC = jnp.where(down > along, scores_CC * decay_CC * beta_C1, 0.0)
    so_far_C1 = decay_so_far(sums_down(chunk.g_1C)[0])
    found_CV = product(chunk.k_CK.astype(jnp.float32), state_KV, 1, 0)
    wanted_CV = beta_C1 * (chunk.v_CV.astype(jnp.float32) - so_far_C1 * found_CV)
    return product(unit_lower_inverse_whole(lower_CC), wanted_CV, 1, 0)


def outputs(
    state_KV: jax.Array, chunk: Chunk, decay_CC: jax.Array, write_CV: jax.Array
) -> jax.Array:
    """y of a chunk's rows without the scale, fp32, from the state before it."""
    mix_CC = product(chunk.q_CK, chunk.k_CK, 1, 1) * decay_CC
    inside_CV = product(mix_CC, write_CV, 1, 0)  # fp32: mixed writes cancel
    before_CV = product(chunk.q_CK.astype(jnp.float32), state_KV, 1, 0)
    return advance(before_CV, (decay_so_far(sums_down(chunk.g_1C)[0]), inside_CV))


def state_after(
    state_KV: jax.Array, chunk: Chunk, write_CV: jax.Array, count: jax.Array | int
) -> jax.Array:
    """The state after the first `count` rows of a chunk, from the one before it."""
    size = chunk.g_1C.shape[1]
    along_1C = lax.broadcasted_iota(jnp.int32, (1, size), 1)
    down_C1 = lax.broadcasted_iota(jnp.int32, (size, 1), 0)
    sums_C1, _ = sums_down(chunk.g_1C)
    _, last_11 = sums_down(jnp.where(along_1C < count, chunk.g_1C, 0.0))
    masked_C1 = LogDecay(jnp.where(down_C1 < count, last_11.high, -jnp.inf), last_11.low)
    kept_C1 = decay_between(masked_C1, sums_C1)
    increment_KV = product(chunk.k_CK.astype(jnp.float32), kept_C1 * write_CV, 0, 0)
    return advance(state_KV, (decay_so_far(last_11), increment_KV))
