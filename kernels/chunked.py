"""The driver of every chunked XLA form: chunks left to right, and captures.

An operation brings one function, `chunk_fn(state, rows) -> (new_state, y)`, over a chunk of rows.
It must treat an all-zero row as the identity, exactly: the state passes unchanged, bit for bit.
Then

- a capture between two chunks is the carried state itself;
- a capture inside a chunk is `chunk_fn` once more, with the rows from the offset on zeroed;
- slots that nobody uses cost nothing: captures run in a loop whose trip count is the number of
  used ones.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from kernels.chunk_steps import (
    ChunkFn,
    Jobs,
    PublishFn,
    first_rows,
    job_at,
    masked_step,
    plan_jobs,
    put,
    take_chunk,
    take_row,
    zeros,
)
from kernels.chunked_gradient import chunked_gradient
from kernels.scan import Bounds, Tree

UNROLLED_CHUNKS = 4
"""Up to so many chunks are laid out one after another: a loop's slices cost more than they save."""


def unchanged(state: Tree) -> Tree:
    """The carried layout is the public one."""
    return state


def chunked_scan(
    chunk_fn: ChunkFn,
    rows: Tree,
    initial_state: Tree,
    bounds: Bounds,
    chunk: int,
    publish: PublishFn = unchanged,
    unrolled_chunks: int = UNROLLED_CHUNKS,
) -> tuple[Tree, Tree, Tree]:
    """Run `chunk_fn` over all chunks from left to right.

    Args:
        chunk_fn: maps (state [batch, ...], rows [batch, chunk, ...]) to (new state, y). A
            module-level function or one that hashes by value, so that traces are shared; it closes
            over no tracer.
        rows: tree of [batch, length, ...] with length a multiple of `chunk`; rows beyond the
            lengths may hold anything.
        initial_state: tree of [batch, ...].
        bounds: lengths and normalised capture offsets.
        chunk: rows a chunk.
        publish: turns the carried layout of a state into the public one, for the final state and
            each capture that is made.
        unrolled_chunks: up to so many chunks are laid out one after another; 0 where a chunk is
            large work of many small operations, which only take longer to compile that way.

    Returns:
        y as a tree of [batch, length, ...], the final state, and the captures as a tree of
        [batch, slots, ...] with zeros in unused slots.
    """
    batch, slots = bounds.offsets_BS.shape
    length = jax.tree.leaves(rows)[0].shape[1]
    jobs = plan_jobs(bounds, chunk, length // chunk)
    y, final, flat = _run(chunk_fn, chunk, publish, unrolled_chunks, rows, initial_state, jobs)
    captured = jax.tree.map(lambda leaf: leaf.reshape((batch, slots, *leaf.shape[1:])), flat)
    return y, final, captured


def _capture(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    index: int | Array,
    jobs: Jobs,
    positions: tuple[Array, Array],
    state: Tree,
    rows: Tree,
    captured: Tree,
) -> Tree:
    """Write captures at the start of chunk `index` or inside it, from the state before it."""
    batch = jax.tree.leaves(rows)[0].shape[0]

    def part_of(row: Array) -> Tree:
        def take(leaf: Array) -> Array:
            start = (row, index * chunk, *(0,) * (leaf.ndim - 2))
            return lax.dynamic_slice(leaf, start, (1, chunk, *leaf.shape[2:]))

        return jax.tree.map(take, rows)

    def write(position: Array, captured: Tree) -> Tree:
        job, row, count = job_at(jobs, position, batch, index, chunk)
        found = lax.cond(
            count == 0,
            lambda: publish(take_row(state, row)),
            lambda: publish(first_rows(chunk_fn, count, take_row(state, row), part_of(row))),
        )
        return put(captured, found, job, 0)

    return lax.fori_loop(*positions, write, captured)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _run(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    unrolled_chunks: int,
    rows: Tree,
    initial_state: Tree,
    jobs: Jobs,
) -> tuple[Tree, Tree, Tree]:
    length = jax.tree.leaves(rows)[0].shape[1]
    num_chunks = length // chunk
    num_jobs = jobs.offset_J.shape[0]
    captured = jax.tree.map(
        lambda leaf: jnp.zeros((num_jobs, *leaf.shape[1:]), leaf.dtype),
        jax.eval_shape(publish, initial_state),
    )

    def step(index: int | Array, state: Tree) -> tuple[Tree, Tree]:
        # Without a barrier XLA fuses one chunk's state into the next ones' and computes it again.
        state = lax.optimization_barrier(state)
        counts_B = jobs.lengths_B - index * chunk
        part = take_chunk(rows, index, chunk)
        return lax.optimization_barrier(masked_step(chunk_fn, counts_B, state, part))

    def capture(
        index: int | Array, positions: tuple[Array, Array], state: Tree, captured: Tree
    ) -> Tree:
        if not num_jobs:
            return captured
        return _capture(chunk_fn, chunk, publish, index, jobs, positions, state, rows, captured)

    first = jobs.first_of_chunk
    if num_chunks <= unrolled_chunks:
        parts = []
        state = initial_state
        for index in range(num_chunks):
            captured = capture(index, (first[index], first[index + 1]), state, captured)
            state, y = step(index, state)
            parts.append(y)
        captured = capture(num_chunks, (first[-2], first[-1]), state, captured)
        y = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), *parts)
        return y, publish(state), captured

    def body(index: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        state, y = carry
        state, part = step(index, state)
        return state, put(y, part, index * chunk, 1)

    y_shape = jax.eval_shape(chunk_fn, initial_state, take_chunk(rows, 0, chunk))[1]
    carry = (initial_state, zeros(y_shape, length))
    if not num_jobs:
        state, y = lax.fori_loop(0, num_chunks, body, carry)
        return y, publish(state), captured

    # From capture to capture: the chunks between two run in a loop that knows of neither.
    used = first[-1]

    def stretch(
        position: Array, carry: tuple[Array, Tree, Tree, Tree]
    ) -> tuple[Array, Tree, Tree, Tree]:
        start, captured, state, y = carry
        end = jobs.offset_J[jobs.order_J[position]] // chunk
        end = jnp.where(position < used, end, num_chunks)
        state, y = lax.fori_loop(start, end, body, (state, y))
        positions = (position, jnp.minimum(position + 1, used))
        return end, capture(end, positions, state, captured), state, y

    start = jnp.zeros((), jnp.int32)
    _, captured, state, y = lax.fori_loop(0, used + 1, stretch, (start, captured, *carry))
    return y, publish(state), captured


def _run_fwd(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    unrolled_chunks: int,
    rows: Tree,
    initial_state: Tree,
    jobs: Jobs,
) -> tuple[tuple[Tree, Tree, Tree], tuple[Tree, Tree, Jobs]]:
    result = _run(chunk_fn, chunk, publish, unrolled_chunks, rows, initial_state, jobs)
    return result, (rows, initial_state, jobs)


def _run_bwd(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    unrolled_chunks: int,
    residuals: tuple[Tree, Tree, Jobs],
    cotangents: tuple[Tree, Tree, Tree],
) -> tuple[Tree, Tree, None]:
    return chunked_gradient(chunk_fn, chunk, publish, residuals, cotangents)


_run.defvjp(_run_fwd, _run_bwd)
