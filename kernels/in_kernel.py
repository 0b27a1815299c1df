"""What kernel bodies share: their blocks' shape, and running sums that every backend can lower.

A kernel has no cumsum, transpose or slice of values that Mosaic and Triton both take; masked sums
over a square of row and column numbers do the same.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from kernels.decay import LogDecay, split_log_decay


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
