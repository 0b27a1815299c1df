"""The SSD kernel body: one (batch row, head), a loop over chunks, captures stored on the way.

The state is a value carried by the loop. Between tiles of a row it rests in the final-state
output, whose block stays in place while the tile index advances; so nothing of size chunks x state
exists.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from kernels.decay import decay_between, decay_so_far
from kernels.in_kernel import KernelShape, decay_square, product, start_row, sums_down, turn
from kernels.scan import advance


class Chunk(NamedTuple):
    """One chunk's rows; log-decays and step sizes lie along the lanes."""

    x_CP: jax.Array
    log_decay_1C: jax.Array
    dt_1C: jax.Array
    B_CN: jax.Array
    C_CN: jax.Array


def kernel(shape: KernelShape, *refs: Any) -> None:
    """Refs: [captures,] x, log-decay, dt, B, C, initial state | y, final state [, captured].

    `captures` is what :func:`kernels.in_kernel.capture_order` makes.
    """
    captures_ref: Any = refs[0] if shape.slots else None
    captured_ref: Any = refs[-1] if shape.slots else None
    blocks = refs[1:-1] if shape.slots else refs
    x_ref, log_decay_ref, dt_ref, B_ref, C_ref, initial_ref, y_ref, final_ref = blocks
    row = pl.program_id(0)
    tile = start_row(shape, 2, initial_ref, final_ref, captured_ref)

    def load(index: jax.Array) -> Chunk:
        rows = pl.ds(index * shape.chunk, shape.chunk)
        return Chunk(
            x_ref[0, 0, rows, :],
            log_decay_ref[0, 0, pl.ds(index, 1), :],
            dt_ref[0, 0, pl.ds(index, 1), :],
            B_ref[0, 0, rows, :],
            C_ref[0, 0, rows, :],
        )

    def step(index: jax.Array, state_PN: jax.Array) -> jax.Array:
        chunk = load(index)
        rows = pl.ds(index * shape.chunk, shape.chunk)
        y_ref[0, 0, rows, :] = outputs(state_PN, chunk).astype(y_ref.dtype)
        return state_after(state_PN, chunk)

    def stretch(position: jax.Array, carry: tuple[jax.Array, jax.Array]) -> Any:
        """Run up to the chunk that holds a capture, and take it from the state before that chunk.

        The chunks between two captures run in a loop that knows of neither; captures inside it
        would slow down every chunk.
        """
        start, state_PN = carry
        tokens = shape.chunks_per_tile * shape.chunk
        offset = captures_ref[row, position] - tile * tokens
        end = jnp.clip((offset - 1) // shape.chunk, start, shape.chunks_per_tile)
        state_PN = lax.fori_loop(start, end, step, state_PN)

        @pl.when((offset > 0) & (offset <= tokens))
        def _store() -> None:
            slot = captures_ref[row, shape.slots + 1 + position]
            chunk = first_rows(load(end), offset - end * shape.chunk)
            captured_ref[0, slot, 0] = state_after(state_PN, chunk)

        return end, state_PN

    if captures_ref is None:
        state_PN = lax.fori_loop(0, shape.chunks_per_tile, step, final_ref[0, 0])
    else:
        carry = (jnp.zeros((), jnp.int32), final_ref[0, 0])
        _, state_PN = lax.fori_loop(0, shape.slots + 1, stretch, carry)
    final_ref[0, 0] = state_PN


def first_rows(chunk: Chunk, count: jax.Array) -> Chunk:
    """The chunk with the rows from `count` on turned into identity rows."""
    size = chunk.x_CP.shape[0]
    down = lax.broadcasted_iota(jnp.int32, (size, 1), 0) < count
    along = lax.broadcasted_iota(jnp.int32, (1, size), 1) < count
    return Chunk(
        jnp.where(down, chunk.x_CP, jnp.zeros((), chunk.x_CP.dtype)),
        jnp.where(along, chunk.log_decay_1C, 0.0),
        jnp.where(along, chunk.dt_1C, 0.0),
        jnp.where(down, chunk.B_CN, jnp.zeros((), chunk.B_CN.dtype)),
        chunk.C_CN,
    )


def state_after(state_PN: jax.Array, chunk: Chunk) -> jax.Array:
    """The state after a chunk, from the one before it."""
    sums_C1, last_11 = sums_down(chunk.log_decay_1C)
    weight_C1 = decay_between(last_11, sums_C1) * turn(chunk.dt_1C)
    weighted_CP = chunk.x_CP.astype(jnp.float32) * weight_C1
    increment_PN = product(weighted_CP, chunk.B_CN.astype(jnp.float32), 0, 0)
    return advance(state_PN, (decay_so_far(last_11), increment_PN))


def outputs(state_PN: jax.Array, chunk: Chunk) -> jax.Array:
    """y of a chunk's rows, fp32, from the state before it."""
    sums_C1, _ = sums_down(chunk.log_decay_1C)
    scores_CC = product(chunk.C_CN, chunk.B_CN, 1, 1)
    weights_CC = scores_CC * (decay_square(chunk.log_decay_1C) * chunk.dt_1C)
    inside_CP = product(weights_CC.astype(chunk.x_CP.dtype), chunk.x_CP, 1, 0)
    before_CP = product(chunk.C_CN.astype(jnp.float32), state_PN, 1, 1)
    return advance(before_CP, (decay_so_far(sums_C1), inside_CP))
