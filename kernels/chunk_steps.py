"""One chunk of a chunked scan: its rows, its step, and the captures that are due in it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32

from kernels.scan import Bounds, Tree, keep_rows, valid_rows

ChunkFn = Callable[[Tree, Tree], tuple[Tree, Tree]]
PublishFn = Callable[[Tree], Tree]


class Jobs(NamedTuple):
    """Captures as a work list: all slots of all rows, flattened (J entries).

    Attributes:
        order_J: their places, ordered by the chunk that makes them; and one entry too many, for
            with a single slot XLA would see that the loop's body does not depend on its index, and
            move a capture out of a loop that never runs.
        offset_J: tokens consumed; 0 = unused.
        lengths_B: tokens that count in each row.
        first_of_chunk: place in `order_J` of the first capture of each chunk, of the captures at
            the end of the last chunk, and of the unused ones.
    """

    order_J: Int32[Array, " J_plus_1"]
    offset_J: Int32[Array, " J"]
    lengths_B: Int32[Array, " B"]
    first_of_chunk: Int32[Array, " num_chunks_plus_2"]


def plan_jobs(bounds: Bounds, chunk: int, num_chunks: int) -> Jobs:
    """Order the captures; one on the chunk grid belongs to the chunk that starts there."""
    offset_J = bounds.offsets_BS.reshape(-1)
    chunk_J = jnp.where(offset_J > 0, offset_J // chunk, num_chunks + 1)
    order_J = jnp.pad(jnp.argsort(chunk_J).astype(jnp.int32), (0, 1))
    below = chunk_J[None, :] < jnp.arange(num_chunks + 2, dtype=jnp.int32)[:, None]
    return Jobs(order_J, offset_J, bounds.lengths_B, jnp.sum(below, axis=1, dtype=jnp.int32))


def take_chunk(rows: Tree, index: int | Array, chunk: int) -> Tree:
    """The rows of chunk `index`: [batch, length, ...] to [batch, chunk, ...]."""
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, index * chunk, chunk, 1), rows)


def take_row(tree: Tree, row: Array) -> Tree:
    """One entry of the first axis, which stays."""
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, row, 1, 0), tree)


def put(tree: Tree, part: Tree, start: int | Array, axis: int) -> Tree:
    """Write a part over a tree from `start` on along an axis."""
    return jax.tree.map(
        lambda leaf, new: lax.dynamic_update_slice_in_dim(
            leaf, new.astype(leaf.dtype), start, axis
        ),
        tree,
        part,
    )


def zeros(tree: Tree, length: int | None = None) -> Tree:
    """Zeros like a tree of shapes, the second axis stretched to `length` where it is given."""
    return jax.tree.map(
        lambda leaf: jnp.zeros(
            leaf.shape if length is None else (leaf.shape[0], length, *leaf.shape[2:]), leaf.dtype
        ),
        tree,
    )


def masked_step(chunk_fn: ChunkFn, counts_B: Array, state: Tree, rows: Tree) -> tuple[Tree, Tree]:
    """`chunk_fn` over the first `counts_B` rows of a chunk: those behind become identity rows."""
    keep_BC = valid_rows(counts_B, jax.tree.leaves(rows)[0].shape[1])
    return chunk_fn(state, jax.tree.map(lambda leaf: keep_rows(leaf, keep_BC), rows))


def first_rows(chunk_fn: ChunkFn, count: Array, state: Tree, rows: Tree) -> Tree:
    """The state of one batch row after the first `count` rows of a chunk."""
    return masked_step(chunk_fn, count[None], state, rows)[0]


def job_at(
    jobs: Jobs, position: Array, batch: int, index: int | Array, chunk: int
) -> tuple[Array, ...]:
    """Slot (flattened), row, and rows of chunk `index` of the job at a place in the order."""
    job = jobs.order_J[position]
    slots = jobs.offset_J.shape[0] // batch
    return job, job // slots, jobs.offset_J[job] - index * chunk
