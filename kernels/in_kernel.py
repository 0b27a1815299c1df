"""What kernel bodies share: their blocks' shape, sums and products that every backend can lower.

A kernel has no cumsum, transpose or slice of values that Mosaic and Triton both take; masked sums
over a square of row and column numbers do the same.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Int32

from kernels.decay import LogDecay, decay_so_far, split_log_decay
from kernels.precision import product_precision


@dataclasses.dataclass(frozen=True)
class KernelShape:
    """What the body needs to know of its blocks.

    Attributes:
        chunk: rows a chunk.
        chunks_per_tile: chunks in one block of rows.
        num_tiles: blocks of rows; more than one only where the grid's last axis runs in order.
        slots: captures a row.
    """

    chunk: int
    chunks_per_tile: int
    num_tiles: int
    slots: int


NEVER = 2**30
"""An offset behind every row's end."""


def capture_order(offsets_BS: Int32[Array, "B S"]) -> Int32[Array, "B entries"]:
    """Captures of each row from left to right, for a kernel that runs from one to the next.

    Args:
        offsets_BS: normalised offsets, 0 in unused slots.

    Returns:
        int32 [batch, 2 (slots + 1)]: offsets in order, unused ones and one more at `NEVER`; then
        their slots.
    """
    later_BS = jnp.where(offsets_BS > 0, offsets_BS, NEVER)
    later = jnp.pad(later_BS, ((0, 0), (0, 1)), constant_values=NEVER)
    slots = jnp.argsort(later, axis=1).astype(jnp.int32)
    return jnp.concatenate([jnp.take_along_axis(later, slots, axis=1), slots], axis=1)


def start_row(
    shape: KernelShape, tile_axis: int, initial_ref: Any, final_ref: Any, captured_ref: Any
) -> jax.Array | int:
    """On a row's first tile, put its initial state where states rest and clear its captures.

    Args:
        shape: of the blocks.
        tile_axis: axis of the grid that counts tiles.
        initial_ref, final_ref: blocks [1, 1, ...] of states.
        captured_ref: block [1, slots, 1, ...], or None.

    Returns:
        The tile's number.
    """
    tile = pl.program_id(tile_axis) if shape.num_tiles > 1 else 0

    def start() -> None:
        final_ref[0, 0] = initial_ref[0, 0]
        if captured_ref is not None:

            def clear(slot: jax.Array, _: None) -> None:
                captured_ref[0, slot, 0] = jnp.zeros(captured_ref.shape[3:], jnp.float32)

            lax.fori_loop(0, shape.slots, clear, None)

    if shape.num_tiles > 1:
        pl.when(tile == 0)(start)
    else:
        start()
    return tile


def square(size: int) -> tuple[jax.Array, jax.Array]:
    """Row and column numbers of a square."""
    down, along = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    return down, along


def turn(values_1C: jax.Array) -> jax.Array:
    """A row of values as a column, by a masked sum: every backend has that."""
    down, along = square(values_1C.shape[1])
    return jnp.sum(jnp.where(down == along, values_1C, 0.0), axis=1, keepdims=True)


def sums_down(log_decay_1C: jax.Array) -> tuple[LogDecay, LogDecay]:
    """Running sums as a column, and the sum of all."""
    down, along = square(log_decay_1C.shape[1])
    parts = split_log_decay(log_decay_1C)
    sums = [jnp.sum(jnp.where(along <= down, part, 0.0), 1, keepdims=True) for part in parts]
    return LogDecay(*sums), LogDecay(*(jnp.sum(part, 1, keepdims=True) for part in parts))


def sums_along(log_decay_1C: jax.Array) -> LogDecay:
    """Running sums as a row."""
    down, along = square(log_decay_1C.shape[1])
    parts = (turn(part) for part in split_log_decay(log_decay_1C))
    sums = [jnp.sum(jnp.where(down <= along, part, 0.0), 0, keepdims=True) for part in parts]
    return LogDecay(*sums)


def decay_square(log_decay_1C: jax.Array) -> jax.Array:
    """Decay from each column's row to each row; zero above the diagonal."""
    sums_C1, _ = sums_down(log_decay_1C)
    sums_1C = sums_along(log_decay_1C)
    down, along = square(log_decay_1C.shape[1])
    high_CC = jnp.where(down >= along, sums_C1.high - sums_1C.high, -jnp.inf)
    return decay_so_far(LogDecay(high_CC, sums_C1.low - sums_1C.low))


def product(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
    """Matrix product over an axis of each operand, fp32, in the precision of `left`'s dtype."""
    return lax.dot_general(
        left,
        right,
        (((left_axis,), (right_axis,)), ((), ())),
        precision=product_precision(left.dtype),
        preferred_element_type=jnp.float32,
    )
